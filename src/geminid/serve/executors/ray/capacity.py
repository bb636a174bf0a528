"""What a cluster's autoscaler is asked for, in what Ray calls slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geminid.serve.executors.ray.messages import Bundle, RequestCapacity


class Wishes:
    """Slots that are wished for, by type of GPU, and whether the bridge that there is knows them.

    A service that does not scale takes back whatever one before it may have wished for.
    """

    def __init__(self, send: Callable[[RequestCapacity], int | None], *, scales: bool) -> None:
        self._send, self.scales = send, scales
        self._kinds: dict[str, tuple[Mapping[str, float], str | None]] = {}
        self._wished: list[Bundle] | None = None
        self._is_told = False

    def learn(self, gpu_type: str, bundle: Mapping[str, float], accelerator: str | None) -> None:
        """A slot of this type is this bundle of resources to Ray, on nodes with this accelerator."""
        self._kinds[gpu_type] = (bundle, accelerator)

    def make(self, slots_by_type: Mapping[str, int]) -> None:
        """Wish for these slots, and for nothing else; of a type that was never here, for whatever Ray calls so."""
        wished: list[Bundle] = []
        for gpu_type, slots in sorted(slots_by_type.items()):
            never = ({"geminid_slot": 1.0}, None) if gpu_type == "cpu" else ({"GPU": 1.0}, gpu_type.upper())
            bundle, accelerator = self._kinds.get(gpu_type, never)
            wished.append(Bundle(bundle=dict(bundle), accelerator=accelerator, slots=slots))
        if wished != self._wished:
            self._wished, self._is_told = wished, False

    def forget_telling(self) -> None:
        """The bridge that was told is gone."""
        self._is_told = False

    def tell(self) -> None:
        """Tell the bridge what it does not know yet."""
        if self._is_told or (self.scales and self._wished is None):
            return
        self._is_told = self._send(RequestCapacity(bundles=self._wished)) is not None
