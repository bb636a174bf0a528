"""Slots of a Ray cluster that are held for us, those that Ray was asked for, and those that are not for our jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set

from geminid.clock import Clock
from geminid.node.messages import Identity
from geminid.serve.executors.provider import Notice, Seat, SlotsTaken
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.foreign_slots import UNFIT_S, OthersSlots
from geminid.serve.executors.ray.unanswered import Unanswered
from geminid.serve.executors.slotnames import node_of, place_of

#: A slot that no job needs is given back to Ray after this time.
LINGER_S = 3.0


class Leases:
    """The leases of slots. ``send`` passes a request to the bridge; ``hold`` sends a node's agent its holders."""

    def __init__(self, send: Callable[[b.Request], int | None], hold: Callable[[str], None], clock: Clock) -> None:
        self._send, self._hold, self._clock = send, hold, clock
        self.held: dict[str, Seat] = {}
        self.pending = Unanswered()
        self.others = OthersSlots(clock)
        self._idle_since_s: dict[str, float] = {}

    def request(self, job_id: str, slots: Sequence[str]) -> list[str]:
        """Ask Ray for those of some slots that are not held, if none of them is others'; which were asked for.

        Where there is no bridge, they are asked for again at the next tick.
        """
        missing = [slot for slot in slots if slot not in self.held]
        blocked = any(self.others.has(*place_of(slot)) for slot in missing) or self.pending.among(missing)
        if not missing or blocked:
            return []
        self.pending.ask(job_id, missing, lambda number: self._send(b.Lease(id=number, slots=missing)))
        return missing

    def granted(self, seats: Mapping[str, Seat]) -> None:
        """Slots are held for us; their agents get the holders before anything is started there."""
        self.held |= {slot: seat for slot, seat in seats.items() if seat.holder or slot not in self.held}
        for node in {node_of(slot) for slot in seats}:
            self._hold(node)

    def seated(self, seats: Mapping[str, Seat]) -> None:
        """The processes that hold these slots are known now."""
        waiting = {slot for slot in seats if slot in self.held and self.held[slot].holder is None}
        self.granted({slot: seat for slot, seat in seats.items() if slot in waiting})

    def changed(self, found: Mapping[str, Seat]) -> list[str]:
        """Slots whose holder has changed; the earlier one may not have been known yet."""
        return [slot for slot, seat in self.held.items() if _is_another(found.get(slot), seat)]

    def release(self, slots: Collection[str]) -> None:
        """Give slots back."""
        if slots:
            for slot in slots:
                self.held.pop(slot, None)
            self._send(b.Release(slots=list(slots)))

    def release_idle(self, needed: Set[str]) -> None:
        """Give back slots that no job has needed for a while."""
        now_s = self._clock.monotonic_s()
        idle = self._idle_since_s
        self._idle_since_s = {slot: idle.get(slot, now_s) for slot in self.held if slot not in needed}
        self.release([slot for slot, since_s in self._idle_since_s.items() if now_s - since_s > LINGER_S])

    def holders_on(self, node: str, slots: int) -> dict[str, Identity | None]:
        """The processes that hold the slots of a node for us, by index."""
        seats = {index: self.held.get(f"{node}/{index}") for index in range(slots)}
        return {str(index): seat.holder for index, seat in seats.items() if seat is not None}

    # --- Slots that are not for our jobs ---

    def count_others(self, nodes: Mapping[str, b.SeenNode]) -> list[SlotsTaken]:
        """What is not for us of some nodes, where that has changed."""
        taken = []
        for name in sorted(nodes):
            held = {index for index in range(nodes[name].slots) if f"{name}/{index}" in self.held}
            indices = self.others.count(name, nodes[name].slots, nodes[name].others, held)
            if indices is not None:
                taken.append(SlotsTaken(name, indices, self.others.why_unfit(name)))
        return taken

    def mark_taken(self, slots: Sequence[str]) -> list[SlotsTaken]:
        """These slots are used by others, until their nodes are looked at again."""
        marked = self.others.mark(map(place_of, slots))
        return [SlotsTaken(node, indices, self.others.why_unfit(node)) for node, indices in marked.items()]

    def avoid(self, nodes: Collection[str], reason: str, in_use: Set[str]) -> list[Notice]:
        """Nodes that cannot be used are given to no job for a while; their slots that no job uses are given back."""
        new = self.others.spare(nodes, reason)
        self.release([slot for slot in self.held if node_of(slot) in nodes and slot not in in_use])
        return [Notice(f"{reason}; {', '.join(new)} is not given to jobs for {UNFIT_S:g} s")] if new else []


def _is_another(found: Seat | None, known: Seat) -> bool:
    return found is None or (known.holder is not None and found != known)
