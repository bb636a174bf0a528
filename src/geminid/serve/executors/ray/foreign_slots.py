"""Which slots of a cluster that is shared with others are not for our jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from geminid.clock import Clock

#: How long a node to which code cannot be brought is given to no job, in seconds.
UNFIT_S = 60.0

#: How long a slot that Ray has and did not give us is not requested again, in seconds.
REFUSED_S = 15.0


class OthersSlots:
    """By node, the indices of slots that others have, that Ray has refused to give us, or that cannot be used now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: dict[str, tuple[int, ...]] = {}
        self._why: dict[str, str] = {}
        self._refused_until_s: dict[tuple[str, int], float] = {}
        self._unfit: dict[str, tuple[float, str]] = {}  # until when, and why

    @property
    def taken(self) -> Mapping[str, tuple[int, ...]]:
        """What is not for us, as it was counted last."""
        return self._taken

    def has(self, node: str, index: int) -> bool:
        """Whether a slot is not for us."""
        return index in self._taken.get(node, ())

    def refuse(self, slots: Iterable[tuple[str, int]]) -> None:
        """Ray has these slots for others: they are left alone for a while."""
        self._refused_until_s |= dict.fromkeys(slots, self._clock.monotonic_s() + REFUSED_S)

    def spare(self, nodes: Collection[str], reason: str) -> list[str]:
        """Use no more slots of these nodes for a while; returns those of them for which that is new."""
        new = sorted(
            node for node in nodes if node not in self._unfit or self._unfit[node][0] <= self._clock.monotonic_s()
        )
        self._unfit |= dict.fromkeys(nodes, (self._clock.monotonic_s() + UNFIT_S, reason))
        return new

    def why_unfit(self, node: str) -> str:
        """Why a node is not used now, if it is not."""
        return self._unfit[node][1] if node in self._unfit else ""

    def mark(self, slots: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
        """These slots are not ours, until their nodes are counted again; what is not for us of their nodes now."""
        by_node: dict[str, set[int]] = {}
        for node, index in slots:
            by_node.setdefault(node, set(self._taken.get(node, ()))).add(index)
        marked = {node: tuple(sorted(indices)) for node, indices in by_node.items()}
        self._taken |= marked
        return marked

    def forget_waits(self) -> bool:
        """Whether some slot or node has been left alone for long enough."""
        now_s, before = self._clock.monotonic_s(), len(self._unfit) + len(self._refused_until_s)
        self._unfit = {node: unfit for node, unfit in self._unfit.items() if now_s < unfit[0]}
        self._refused_until_s = {slot: until_s for slot, until_s in self._refused_until_s.items() if now_s < until_s}
        return len(self._unfit) + len(self._refused_until_s) < before

    def count(self, node: str, slots: int, others: int, held: Set[int]) -> tuple[int, ...] | None:
        """What is not for us of a node where others have ``others`` slots and we hold these; None if unchanged.

        Which slots others have is not known: it may be any that we do not hold, the last ones before the first. Those
        that Ray has refused to give us are among them.
        """
        unheld = [index for index in range(slots) if index not in held]
        refused = [index for index in unheld if (node, index) in self._refused_until_s]
        count = len(unheld) if node in self._unfit else max(others, len(refused))
        first = refused + [index for index in reversed(unheld) if index not in refused]
        taken = tuple(sorted(first[:count]))
        why = self.why_unfit(node)
        if taken == self._taken.get(node, ()) and why == self._why.get(node, ""):
            return None
        self._taken[node], self._why[node] = taken, why
        return taken

    def lose_node(self, node: str) -> None:
        """A node is gone."""
        self._taken.pop(node, None)
        self._why.pop(node, None)
