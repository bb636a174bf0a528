"""Nodes that are gone, where processes may still run: when it is proven, or certain, that none does any more.

An agent stops its processes when its lease ends (``LEASE_S``). So nothing runs ``FENCE_S`` after a node was given up;
earlier, if its machine answers that nothing listens where the agent was, since the agent's port is open for as long as
any of its processes lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from geminid.clock import Clock
from geminid.node import messages as m
from geminid.node.agent import FENCE_S
from geminid.wire.codec import ProtocolError
from geminid.wire.reactor import Reactor

#: Time between two attempts to connect with an agent that may be gone, and the longest time for one.
PROBE_S = 0.5


@dataclass(slots=True)
class _Doubt:
    """A node that is gone; where its agent listened, if that is known."""

    until_s: float
    place: tuple[str, int] | None
    probe_at_s: float = 0.0
    probe: m.ServiceEnd | None = None


class Doubts:
    """Used in the thread of the reactor. ``on_settled`` is called with a node on which nothing runs any more."""

    def __init__(
        self, reactor: Reactor, clock: Clock, on_settled: Callable[[str], None], fence_s: float = FENCE_S
    ) -> None:
        self._reactor, self._clock, self._on_settled, self._fence_s = reactor, clock, on_settled, fence_s
        self._doubts: dict[str, _Doubt] = {}

    def add(self, node: str, place: tuple[str, int] | None) -> None:
        """A node is gone; its agent listened there, if that is known."""
        self._doubts.setdefault(node, _Doubt(self._clock.monotonic_s() + self._fence_s, place))

    def resolve(self) -> None:
        """See on which nodes nothing runs any more."""
        now_s = self._clock.monotonic_s()
        for node, doubt in list(self._doubts.items()):
            if now_s >= doubt.until_s:
                self._settle(node)
            elif doubt.place is not None and now_s >= doubt.probe_at_s:
                doubt.probe_at_s = now_s + PROBE_S
                self._probe(node, doubt, *doubt.place)

    def drop(self, node: str) -> None:
        """A node is back, or nobody needs to know any more."""
        doubt = self._doubts.pop(node, None)
        if doubt is not None and doubt.probe is not None:
            self._close(doubt.probe)

    def close(self) -> None:
        """Drop all."""
        for node in list(self._doubts):
            self.drop(node)

    def _probe(self, node: str, doubt: _Doubt, host: str, port: int) -> None:
        """See whether nothing listens there any more, on a machine that answers; nobody waits for it."""
        if doubt.probe is not None:
            self._close(doubt.probe)
            doubt.probe = None
        try:
            probe = doubt.probe = m.connect(host, port)
        except ConnectionRefusedError:
            self._settle(node)
        except OSError:
            pass  # later, perhaps
        else:
            self._reactor.watch(probe, lambda: self._probed(node, probe))

    def _probed(self, node: str, connection: m.ServiceEnd) -> None:
        doubt = self._doubts.get(node)
        if doubt is None or doubt.probe is not connection:
            return
        try:
            connection.receive()
        except ConnectionRefusedError:
            self._settle(node)
        except (OSError, EOFError, ProtocolError):
            self._close(connection)
            doubt.probe = None

    def _settle(self, node: str) -> None:
        self.drop(node)
        self._on_settled(node)

    def _close(self, connection: m.ServiceEnd) -> None:
        self._reactor.unwatch(connection)
        connection.close()
