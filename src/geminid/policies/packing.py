"""Placing counts of slots on nodes, for policies that place by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from geminid.policies.base import Allocation, ClusterView, JobView


class FreeSlots:
    """Free slots per node while a policy hands them out. A job's slots are always of one GPU type."""

    def __init__(self, view: ClusterView, per_node: Sequence[int]) -> None:
        self.per_node = list(per_node)
        self.nodes_of_type = view.cluster.nodes_of_type

    def of_type(self, gpu_type: str) -> int:
        """Free slots of one GPU type."""
        return sum(self.per_node[node] for node in self.nodes_of_type.get(gpu_type, ()))

    def holds(self, allocation: Allocation) -> bool:
        """Whether all of these slots are free."""
        return all(self.per_node[node] >= slots for node, slots in allocation)

    def take(self, allocation: Allocation) -> None:
        """Hand these slots out."""
        for node, slots in allocation:
            self.per_node[node] -= slots

    def emptiest_first(self, slots: int, gpu_types: Iterable[str]) -> Allocation | None:
        """Take ``slots`` from the nodes with the most free ones first (ties by index), None if there are not enough.

        Among several types, the one with the most free slots is taken.
        """
        gpu_type = max(gpu_types, key=self.of_type, default=None)
        if gpu_type is None or self.of_type(gpu_type) < slots:
            return None
        taken: list[tuple[int, int]] = []
        for node in sorted(self.nodes_of_type[gpu_type], key=lambda n: (-self.per_node[n], n)):
            count = min(self.per_node[node], slots)
            if count:
                taken.append((node, count))
                slots -= count
            if not slots:
                break
        allocation = tuple(sorted(taken))
        self.take(allocation)
        return allocation


def usable_types(job: JobView, free: FreeSlots) -> Sequence[str]:
    """The GPU types of the cluster that a job allows."""
    allowed = job.facts.gpu_types
    return [t for t in free.nodes_of_type if allowed is None or t in allowed]
