"""Put configurations onto nodes: keep running jobs where they are, and leave as little fragmentation as possible.

Jobs that keep their configuration stay. The others go in from the largest to the smallest, each where the least is left
over. Where the free slots are too scattered for one, smaller jobs make room and are placed again, which may go on in
turn but always with smaller ones: in sizes that are powers of two or whole nodes everything finds its place that way
whenever there are enough slots. As a last resort everything of a GPU type is placed afresh, jobs of several nodes first
evenly over them, then on whole nodes and a rest; and what then still has no place, because of odd sizes, gets as many
slots scattered over nodes. So a decision that keeps to the number of slots of
each type is always carried out, and what had to be done differently is said.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.configuration import Configuration

Allocation = tuple[tuple[int, int], ...]

#: Number of racks, the emptiest, in which room for a whole job is looked for.
MOST_RACKS = 16


@dataclass(frozen=True, slots=True)
class Placed:
    """Where every job goes; which jobs got their slots on more nodes than wanted, and which none; with the reason."""

    allocations: dict[str, Allocation]
    unplaced: dict[str, str]
    scattered: dict[str, str] = field(default_factory=dict)


def place(
    cluster: Cluster,
    usable_slots: Iterable[int],
    wanted: Mapping[str, Configuration],
    current: Mapping[str, Allocation],
) -> Placed:
    """Place all wanted configurations, one GPU type at a time. Only more slots than there are can leave a job out."""
    free = list(usable_slots)
    node_type = cluster.node_type.tolist()
    result = Placed({}, {})
    by_type: dict[str, dict[str, Configuration]] = {}
    for job_id, configuration in wanted.items():
        by_type.setdefault(configuration.gpu_type, {})[job_id] = configuration
    nodes_of: dict[int, list[int]] = {}
    for node, index in enumerate(node_type):
        nodes_of.setdefault(index, []).append(node)
    for gpu_type, jobs in by_type.items():
        index = cluster.type_index[gpu_type]
        stay = {
            job_id: current[job_id]
            for job_id, configuration in jobs.items()
            if job_id in current and _realises(current[job_id], configuration, node_type, index)
        }
        kept = _OneType(cluster, nodes_of[index], free, current)
        kept.fit(stay, jobs)
        for whole_nodes in (False, True):
            if kept.left:
                afresh = _OneType(cluster, nodes_of[index], free, current, whole_nodes=whole_nodes)
                afresh.fit({}, jobs)
                if len(afresh.left) < len(kept.left):
                    kept = afresh
        kept.scatter(jobs)
        result.allocations.update(kept.placed)
        result.scattered.update(kept.scattered)
        result.unplaced.update((job_id, f"no slots are left for {jobs[job_id]}") for job_id in kept.left)
    return result


def _realises(allocation: Allocation, configuration: Configuration, node_type: Sequence[int], index: int) -> bool:
    return (
        len(allocation) == configuration.nodes
        and sum(slots for _, slots in allocation) == configuration.slots
        and all(node_type[node] == index for node, _ in allocation)
    )


class _OneType:
    """The nodes of one GPU type while jobs are put on them.

    Nodes with equally many free slots are in one heap by index. A node that has changed since is found out when it is
    taken from the heap.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Sequence[int],
        free: Sequence[int],
        current: Mapping[str, Allocation],
        *,
        whole_nodes: bool = False,
    ) -> None:
        self.nodes = np.array(nodes)
        self.position = {node: i for i, node in enumerate(nodes)}
        self.free = [free[node] for node in nodes]
        self.racks, self.zones = cluster.node_rack[self.nodes], cluster.node_zone[self.nodes]
        self.one_rack = bool((self.racks == self.racks[0]).all())
        self.current = current
        self.whole_node_slots = max(self.free, default=0) if whole_nodes else None
        self.placed: dict[str, Allocation] = {}
        self.on_node: list[list[str]] = [[] for _ in nodes]
        self.left: list[str] = []
        self.scattered: dict[str, str] = {}
        self.levels: list[list[int]] = [[] for _ in range(max(self.free, default=0) + 1)]
        for i, slots in enumerate(self.free):
            self.levels[slots].append(i)

    # --- Taking and giving back ---

    def _take(self, job_id: str, parts: Iterable[tuple[int, int]]) -> None:
        allocation = []
        for i, slots in parts:
            self._change(i, -slots)
            self.on_node[i].append(job_id)
            allocation.append((int(self.nodes[i]), slots))
        self.placed[job_id] = tuple(sorted(allocation))

    def _evict(self, job_id: str) -> None:
        for node, slots in self.placed.pop(job_id):
            i = self.position[node]
            self.on_node[i].remove(job_id)
            self._change(i, slots)

    def _change(self, i: int, slots: int) -> None:
        self.free[i] += slots
        heapq.heappush(self.levels[self.free[i]], i)

    def _at_level(self, level: int) -> list[int]:
        """The heap of the nodes with this many free slots, with one of them on top if there is any."""
        heap = self.levels[level]
        while heap and self.free[heap[0]] != level:
            heapq.heappop(heap)
        return heap

    # --- Fitting ---

    def fit(self, stay: Mapping[str, Allocation], jobs: Mapping[str, Configuration]) -> None:
        """Keep those that stay, and place the others from the largest to the smallest."""
        moved = []
        for job_id in jobs:
            allocation = stay.get(job_id)
            if allocation is None:
                moved.append(job_id)
                continue
            parts = [(self.position[node], slots) for node, slots in allocation]
            if all(self.free[i] >= slots for i, slots in parts):
                self._take(job_id, parts)
            else:
                moved.append(job_id)
        queue = [(-jobs[j].slots, -jobs[j].nodes, order, j) for order, j in enumerate(moved)]
        heapq.heapify(queue)
        budget = 4 * len(jobs)
        while queue:
            job_id = heapq.heappop(queue)[-1]
            found = self._find(job_id, jobs[job_id])
            if found is None and budget > 0:
                evicted = self._make_room(jobs[job_id], jobs)
                for other in evicted:
                    self._evict(other)
                    heapq.heappush(queue, (-jobs[other].slots, -jobs[other].nodes, len(moved) + budget, other))
                    budget -= 1
                found = self._find(job_id, jobs[job_id])
            if found is None:
                self.left.append(job_id)
            else:
                self._take(job_id, found)

    def _find(self, job_id: str, configuration: Configuration) -> list[tuple[int, int]] | None:
        """Nodes for one job: the fullest that have room, its own among equals; several from as few racks as can be."""
        parts = _parts(configuration, self.whole_node_slots)
        if len(parts) == 1:
            i = self._fullest(parts[0], self.current.get(job_id, ()))
            return None if i is None else [(i, parts[0])]
        if parts[0] == parts[-1]:
            return self._equal_parts(parts[0], len(parts))
        for nodes in self._parts_of_the_cluster(len(parts)):
            found = self._unequal_parts(parts, nodes)
            if found is not None:
                return found
        return None

    def _parts_of_the_cluster(self, count: int) -> Iterator[Sequence[int]]:
        """Nodes among which to look for this many: of each rack that has enough, of each zone, and of all."""
        if not self.one_rack:
            for group in (self.racks, self.zones):
                for index in np.flatnonzero(np.bincount(group) >= count).tolist():
                    yield np.flatnonzero(group == index).tolist()
        yield range(len(self.free))

    def _unequal_parts(self, parts: Sequence[int], nodes: Sequence[int]) -> list[tuple[int, int]] | None:
        taken: dict[int, int] = {}
        for part in parts:
            eligible = [(self.free[i], i) for i in nodes if self.free[i] >= part and i not in taken]
            if not eligible:
                return None
            taken[min(eligible)[1]] = part
        return list(taken.items())

    def _fullest(self, slots: int, own: Allocation) -> int | None:
        for level in range(slots, len(self.levels)):
            heap = self._at_level(level)
            if heap:
                for node, _ in own:
                    i = self.position.get(node)
                    if i is not None and self.free[i] == level:
                        return i
                return heap[0]
        return None

    def _equal_parts(self, slots: int, count: int) -> list[tuple[int, int]] | None:
        free = np.array(self.free)
        eligible = np.flatnonzero(free >= slots)
        if len(eligible) < count:
            return None
        order = eligible[np.argsort(free[eligible], kind="stable")]
        if not self.one_rack:
            order = self._near_each_other(order, count)
        return [(int(i), slots) for i in order[:count]]

    def _near_each_other(self, order: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        """The nodes of the rack that has just enough, else of such a zone, else of the racks that have the most."""
        for group in (self.racks, self.zones):
            having = np.bincount(group[order])
            enough = np.flatnonzero(having >= count)
            if len(enough):
                best = enough[np.argmin(having[enough])]
                inside: NDArray[np.intp] = order[group[order] == best]
                if group is self.zones:
                    inside = self._by_rack(inside)
                return inside
        return self._by_rack(order)

    def _by_rack(self, order: NDArray[np.intp]) -> NDArray[np.intp]:
        having = np.bincount(self.racks[order])
        by_rack: NDArray[np.intp] = order[np.lexsort((self.racks[order], -having[self.racks[order]]))]
        return by_rack

    def _make_room(self, configuration: Configuration, jobs: Mapping[str, Configuration]) -> list[str]:
        """Smaller jobs whose slots, with what is free, make enough nodes usable; of one rack if that evicts no more."""
        parts = _parts(configuration, self.whole_node_slots)
        by_free = np.array(sorted(range(len(self.free)), key=lambda i: (-self.free[i], i)), dtype=np.intp)
        best = self._make_room_on(by_free.tolist(), parts, configuration.slots, jobs)
        if len(parts) > 1 and not self.one_rack and best is not None:
            for rack in dict.fromkeys(self.racks[by_free[:MOST_RACKS]].tolist()):
                inside = by_free[self.racks[by_free] == rack]
                other = self._make_room_on(inside.tolist(), parts, configuration.slots, jobs)
                if other is not None and len(other) <= len(best):
                    return other
        return best or []

    def _make_room_on(
        self, nodes: Iterable[int], parts: Sequence[int], smaller: int, jobs: Mapping[str, Configuration]
    ) -> list[str] | None:
        """Make room on some of these nodes, the first ones first; None if it cannot be made there."""
        evicted: dict[str, None] = {}
        missing_nodes = len(parts)
        for i in nodes:
            if not missing_nodes:
                break
            missing = (
                parts[-missing_nodes]
                - self.free[i]
                - sum(slots for j in evicted for node, slots in self.placed[j] if node == self.nodes[i])
            )
            chosen = self._cheapest(i, missing, smaller, jobs, evicted)
            if chosen is not None:
                evicted.update(dict.fromkeys(chosen))
                missing_nodes -= 1
        return None if missing_nodes else list(evicted)

    def _cheapest(
        self, i: int, missing: int, smaller: int, jobs: Mapping[str, Configuration], evicted: Iterable[str]
    ) -> list[str] | None:
        """Few jobs of one node that hold the missing slots; those that are on the move anyway first."""
        if missing <= 0:
            return []
        node, gone = int(self.nodes[i]), set(evicted)
        holders = [
            (self.current.get(j) == self.placed[j], dict(self.placed[j])[node], j)
            for j in self.on_node[i]
            if jobs[j].slots < smaller and j not in gone
        ]
        chosen = []
        while missing > 0 and holders:
            enough = [h for h in holders if h[1] >= missing]
            best = min(enough) if enough else max(holders, key=lambda h: (not h[0], h[1]))
            holders.remove(best)
            chosen.append(best[2])
            missing -= best[1]
        return None if missing > 0 else chosen

    def scatter(self, jobs: Mapping[str, Configuration]) -> None:
        """Give jobs without a place as many slots over as few nodes as there is room on."""
        for job_id in list(self.left):
            slots, parts = jobs[job_id].slots, []
            for i in sorted(range(len(self.free)), key=lambda i: (-self.free[i], i)):
                part = min(self.free[i], slots)
                if part:
                    parts.append((i, part))
                    slots -= part
            if not slots:
                self._take(job_id, parts)
                self.left.remove(job_id)
                self.scattered[job_id] = f"the free slots are too scattered for {jobs[job_id]}"


def _parts(configuration: Configuration, whole_node_slots: int | None) -> list[int]:
    """Slots per node, the larger shares first: as even as possible, or whole nodes of a given size and a rest."""
    slots, nodes = configuration.slots, configuration.nodes
    if whole_node_slots and (nodes - 1) * whole_node_slots < slots < nodes * whole_node_slots:
        return [whole_node_slots] * (nodes - 1) + [slots - (nodes - 1) * whole_node_slots]
    share, extra = divmod(slots, nodes)
    return [share + (i < extra) for i in range(nodes)]
