"""What a cluster's autoscaler is asked for, in what Ray calls slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geminid.serve.executors.ray.messages import Bundle, RequestCapacity


class CapacityRequest:
    """Slots that there is work for, by GPU type, and whether the present bridge has been asked for them.

    A service that does not scale withdraws whatever one before it may have requested.
    """

    def __init__(self, send: Callable[[RequestCapacity], int | None], *, scales: bool) -> None:
        self._send, self.scales = send, scales
        self._kinds: dict[str, tuple[Mapping[str, float], str | None]] = {}
        self._requested: list[Bundle] | None = None
        self._is_sent = False

    def learn(self, gpu_type: str, bundle: Mapping[str, float], accelerator: str | None) -> None:
        """A slot of this type is this bundle of resources to Ray, on nodes with this accelerator."""
        self._kinds[gpu_type] = (bundle, accelerator)

    def request(self, slots_by_type: Mapping[str, int]) -> None:
        """Request these slots and nothing else; of a type that was never here, whatever Ray calls by that name."""
        requested: list[Bundle] = []
        for gpu_type, slots in sorted(slots_by_type.items()):
            never = ({"geminid_slot": 1.0}, None) if gpu_type == "cpu" else ({"GPU": 1.0}, gpu_type.upper())
            bundle, accelerator = self._kinds.get(gpu_type, never)
            requested.append(Bundle(bundle=dict(bundle), accelerator=accelerator, slots=slots))
        if requested != self._requested:
            self._requested, self._is_sent = requested, False

    def bridge_gone(self) -> None:
        """The bridge that was asked is gone."""
        self._is_sent = False

    def send(self) -> None:
        """Ask the bridge, if it has not been."""
        if self._is_sent or (self.scales and self._requested is None):
            return
        self._is_sent = self._send(RequestCapacity(bundles=self._requested)) is not None
