"""Placing counts of slots on nodes, for policies that place by themselves."""

from __future__ import annotations

from geminid.policies.base import Allocation


class FreeSlots:
    """Free slots per node while a policy hands them out."""

    def __init__(self, slots_per_node: tuple[int, ...] | list[int]) -> None:
        self.per_node = list(slots_per_node)

    @property
    def total(self) -> int:
        """All free slots."""
        return sum(self.per_node)

    def holds(self, allocation: Allocation) -> bool:
        """Whether all of these slots are free."""
        return all(self.per_node[node] >= slots for node, slots in allocation)

    def take(self, allocation: Allocation) -> None:
        """Hand these slots out."""
        for node, slots in allocation:
            self.per_node[node] -= slots

    def give_back(self, allocation: Allocation) -> None:
        """Free these slots again."""
        for node, slots in allocation:
            self.per_node[node] += slots

    def emptiest_first(self, slots: int) -> Allocation | None:
        """Take ``slots`` from the nodes with the most free ones first (ties by index); None if there are not enough."""
        if slots > self.total:
            return None
        taken: list[tuple[int, int]] = []
        for node in sorted(range(len(self.per_node)), key=lambda n: (-self.per_node[n], n)):
            count = min(self.per_node[node], slots)
            if count:
                taken.append((node, count))
                slots -= count
            if not slots:
                break
        allocation = tuple(sorted(taken))
        self.take(allocation)
        return allocation
