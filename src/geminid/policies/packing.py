"""Placing counts of slots on nodes, for policies that place by themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from geminid.policies.base import Allocation, ClusterView, JobView


class FreeSlots:
    """Free slots per node while a policy hands them out. A job's slots are always of one GPU type."""

    def __init__(self, view: ClusterView, per_node: Sequence[int]) -> None:
        self.per_node = list(per_node)
        self.nodes_of_type = view.cluster.nodes_of_type
        self._usable = view.usable_slots
        self._rack = view.cluster.node_rack.tolist() if view.cluster.links.several_racks else None

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
        gpu_type = self._roomiest(slots, gpu_types)
        return None if gpu_type is None else self._from_emptiest(slots, gpu_type)

    def fewest_nodes(self, slots: int, gpu_types: Iterable[str]) -> Allocation | None:
        """Take ``slots`` from as few nodes as possible, and leave as few free slots behind as possible.

        A job that fits on one node gets the fullest that has room for it; a larger one the emptiest nodes, the last of
        them the fullest that has room for the rest, of one rack if one has enough. None if there are not enough slots;
        among several types, the one with the most free slots is taken.
        """
        gpu_type = self._roomiest(slots, gpu_types)
        if gpu_type is None:
            return None
        return self._fewest(slots, self.nodes_of_type[gpu_type])

    def consolidated(self, slots: int, gpu_types: Iterable[str]) -> Allocation | None:
        """Take ``slots`` of one node, the fullest that has them; of whole nodes where no node is large enough.

        None where that is impossible now. Types are tried in the order of their free slots, the most first.
        """
        for gpu_type in sorted(gpu_types, key=self.of_type, reverse=True):
            nodes: Sequence[int] = self.nodes_of_type[gpu_type]
            largest = max(self._usable[node] for node in nodes)
            if slots > largest > 0:
                nodes = [node for node in nodes if self.per_node[node] == self._usable[node] > 0]
            elif max(self.per_node[node] for node in nodes) < slots:
                continue
            if sum(self.per_node[node] for node in nodes) >= slots:
                return self._fewest(slots, nodes)
        return None

    def _fewest(self, slots: int, among: Sequence[int]) -> Allocation:
        """Take ``slots`` from as few as possible of some nodes, which have enough."""
        nodes, left, taken = set(self.of_one_rack(slots, among)), slots, []
        while left:
            whole = [n for n in nodes if self.per_node[n] >= left]
            node = min(whole or nodes, key=lambda n: (self.per_node[n] if whole else -self.per_node[n], n))
            count = min(self.per_node[node], left)
            taken.append((node, count))
            left -= count
            nodes.remove(node)
        allocation = tuple(sorted(taken))
        self.take(allocation)
        return allocation

    def of_one_rack(self, slots: int, nodes: Sequence[int]) -> Sequence[int]:
        """Those of some nodes that are in one rack, the fullest that has enough free slots; all if there is none."""
        return nodes if self._rack is None else of_one_rack(slots, nodes, self.per_node, self._rack)

    def _roomiest(self, slots: int, gpu_types: Iterable[str]) -> str | None:
        """The type with the most free slots, if these are enough."""
        gpu_type = max(gpu_types, key=self.of_type, default=None)
        return gpu_type if gpu_type is not None and self.of_type(gpu_type) >= slots else None

    def _from_emptiest(self, slots: int, gpu_type: str) -> Allocation:
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


def most_slots(job: JobView) -> int:
    """No more slots than its batch can be divided over."""
    smallest = min((limit.smallest_per_slot for limit in job.facts.limits.values()), default=1)
    batch = job.facts.requested_batch
    return job.facts.max_slots if batch is None else min(job.facts.max_slots, max(batch // smallest, 1))


def usable_types(job: JobView, free: FreeSlots) -> Sequence[str]:
    """The GPU types of the cluster that a job allows."""
    allowed = job.facts.gpu_types
    return [t for t in free.nodes_of_type if allowed is None or t in allowed]


def of_one_rack(slots: int, nodes: Sequence[int], free: Sequence[int], rack: Sequence[int]) -> Sequence[int]:
    """Those of some nodes that are in one rack, the fullest that has enough free slots; all if there is none.

    A node that has enough by itself is preferred to a fuller rack.
    """
    sums: dict[int, int] = defaultdict(int)
    for node in nodes:
        sums[rack[node]] += free[node]
    enough = [each for each, slots_free in sums.items() if slots_free >= slots]
    if not enough or any(free[node] >= slots for node in nodes):
        return nodes
    chosen = min(enough, key=lambda each: (sums[each], each))
    return [node for node in nodes if rack[node] == chosen]
