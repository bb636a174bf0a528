"""Which processes hold the slots of this node: when one ends, whatever ran on its slot must end, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from msgspec.structs import asdict

from geminid.node import messages as m
from geminid.process.identity import still_runs
from geminid.wire.reactor import Reactor


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process that holds a slot, and its pidfd, which becomes readable when it ends."""

    identity: m.Identity
    descriptor: int


class SlotHolders:
    """The holders of slots, by slot. ``on_lost`` is called with a slot that is not held any more."""

    def __init__(self, reactor: Reactor, on_lost: Callable[[str], None]) -> None:
        self._reactor, self._on_lost = reactor, on_lost
        self._holders: dict[str, _Holder | None] = {}

    @property
    def slots(self) -> Set[str]:
        """All slots that are held, though it may not be known yet by which process."""
        return self._holders.keys()

    def hold(self, slots: Mapping[str, m.Identity | None]) -> None:
        """Slots are held by these processes, or by one that will be named (None)."""
        for slot, identity in slots.items():
            self._hold(slot, identity)

    def close(self) -> None:
        """Stop watching."""
        for holder in self._holders.values():
            if holder is not None:
                self._unwatch(holder)
        self._holders.clear()

    def _hold(self, slot: str, identity: m.Identity | None) -> None:
        holder = self._holders.get(slot)
        if holder is not None:
            if holder.identity == identity:
                return
            self._unwatch(holder)
        self._holders[slot] = None
        if identity is None:
            return
        try:
            if not still_runs(asdict(identity)):
                raise ProcessLookupError
            holder = self._holders[slot] = _Holder(identity, os.pidfd_open(identity.pid))
            self._reactor.watch(holder.descriptor, lambda: self._lose(slot))
        except ProcessLookupError:
            self._lose(slot)

    def _lose(self, slot: str) -> None:
        """A slot has been taken away: it must not be used any more."""
        holder = self._holders.pop(slot)
        if holder is not None:
            self._unwatch(holder)
        self._on_lost(slot)

    def _unwatch(self, holder: _Holder) -> None:
        self._reactor.unwatch(holder.descriptor)
        os.close(holder.descriptor)
