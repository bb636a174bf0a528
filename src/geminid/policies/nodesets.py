"""Nodes by the size of the jobs that they run, and who has the next slice of time there: what Gandiva is made of.

A node set is one node, or as many as one large job needs. All its jobs ask for the same number of slots: that is the
set's affinity. As many as fit run at a time; the others wait for the next slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from geminid.policies.base import Allocation, ClusterView, JobView
from geminid.policies.packing import of_one_rack

#: Jobs that take turns as one: a single job, or two that share their slots.
Unit = tuple[str, ...]


@dataclass(slots=True, eq=False)
class NodeSet:
    """Nodes for jobs of one size; the first ``room`` units of the ring run, the others wait for their slice.

    ``slice_began_s`` is when the slice of each running unit began, by its first job.
    """

    gpu_type: str
    size: int
    nodes: tuple[int, ...]
    slots: tuple[int, ...]
    ring: list[Unit] = field(default_factory=list)
    slice_began_s: dict[str, float] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """How many units run at a time."""
        return 1 if len(self.nodes) > 1 else self.slots[0] // self.size

    @property
    def load(self) -> float:
        """Slots asked for, of those that there are."""
        return len(self.ring) / self.room

    @property
    def running(self) -> Sequence[Unit]:
        """Who has the current slice."""
        return self.ring[: self.room]

    @property
    def waiting(self) -> Sequence[Unit]:
        """Who has one of the next."""
        return self.ring[self.room :]

    def turn(self) -> None:
        """The jobs that ran go to the end of the ring."""
        self.ring = [*self.waiting, *self.running]

    def end_slices(self, now_s: float, slice_s: float) -> None:
        """Whoever has run for a slice goes to the end of the ring; each unit has a whole slice, whenever it began."""
        ended = [unit for unit in self.running if now_s >= self.slice_began_s.get(unit[0], now_s) + slice_s]
        self.ring = [*(unit for unit in self.ring if unit not in ended), *ended]
        for unit in ended:
            del self.slice_began_s[unit[0]]

    def begin_slices(self, now_s: float) -> None:
        """Note the slices of units that run from now on; where nobody waits, slices begin when somebody does."""
        began_s = self.slice_began_s if self.waiting else {}
        self.slice_began_s = {unit[0]: began_s.get(unit[0], now_s) for unit in self.running}

    def next_end_s(self, slice_s: float) -> float:
        """When the first slice ends."""
        return min(self.slice_began_s.values()) + slice_s

    def allocation(self) -> Allocation:
        """What one of its units gets."""
        taken, left = [], self.size
        for node, slots in zip(self.nodes, self.slots, strict=True):
            taken.append((node, min(slots, left)))
            left -= min(slots, left)
        return tuple(sorted((node, slots) for node, slots in taken if slots))


@dataclass(slots=True)
class NodeSets:
    """All node sets, and the jobs that no set has yet, in the order in which they came."""

    sets: list[NodeSet] = field(default_factory=list)
    queue: list[Unit] = field(default_factory=list)

    def units(self) -> Iterator[Unit]:
        """Everybody, in sets and in the queue."""
        for each in self.sets:
            yield from each.ring
        yield from self.queue

    def of(self, gpu_types: Iterable[str], size: int) -> list[NodeSet]:
        """The sets for jobs of a size on one of these types."""
        allowed = set(gpu_types)
        return [each for each in self.sets if each.size == size and each.gpu_type in allowed]

    def forget(self, gone: Iterable[str]) -> bool:
        """Drop jobs that are no longer there; whether a set has become empty, and its nodes unassigned."""
        lost = set(gone)

        def kept(units: Iterable[Unit]) -> list[Unit]:
            left = (tuple(job for job in unit if job not in lost) for unit in units)
            return [unit for unit in left if unit]

        for each in self.sets:
            each.ring = kept(each.ring)
        self.queue = kept(self.queue)
        before = len(self.sets)
        self.sets = [each for each in self.sets if each.ring]
        return len(self.sets) < before

    def dissolve(self, each: NodeSet) -> None:
        """Give up a set; its jobs are the first in the queue."""
        self.sets.remove(each)
        self.queue = [*each.ring, *self.queue]

    def dissolve_changed(self, view: ClusterView) -> bool:
        """Give up sets whose nodes have other slots than they had, or none; whether there were any."""
        changed = [each for each in self.sets if tuple(view.usable_slots[n] for n in each.nodes) != each.slots]
        for each in changed:
            self.dissolve(each)
        return bool(changed)

    def unassigned(self, view: ClusterView, gpu_type: str) -> list[int]:
        """Usable nodes of a type that belong to no set."""
        taken = {node for each in self.sets for node in each.nodes}
        nodes = view.cluster.nodes_of_type.get(gpu_type, ())
        return [node for node in nodes if view.usable_slots[node] > 0 and node not in taken]

    def open(self, view: ClusterView, gpu_types: Iterable[str], size: int) -> NodeSet | None:
        """A new set on unassigned nodes of the first type that has enough: one node if possible, else the largest."""
        for gpu_type in gpu_types:
            free = self.unassigned(view, gpu_type)
            usable = view.usable_slots
            whole = [node for node in free if usable[node] >= size]
            nodes = [min(whole, key=lambda node: (usable[node] % size, usable[node], node))] if whole else []
            if not whole and size > max((usable[n] for n in view.cluster.nodes_of_type[gpu_type]), default=0):
                left = size
                if view.cluster.links.several_racks:
                    free = list(of_one_rack(size, free, usable, view.cluster.node_rack.tolist()))
                for node in sorted(free, key=lambda node: (-usable[node], node)):
                    nodes.append(node)
                    left -= usable[node]
                    if left <= 0:
                        break
                nodes = nodes if left <= 0 else []
            if nodes:
                slots = tuple(usable[node] for node in nodes)
                made = NodeSet(gpu_type, size, tuple(nodes), slots)
                self.sets.append(made)
                return made
        return None


def least_loaded(sets: Sequence[NodeSet]) -> NodeSet | None:
    """The set with the fewest jobs for its room, the first of equals."""
    return min(sets, key=lambda each: each.load, default=None)


def preferred_types(view: ClusterView, job: JobView) -> list[str]:
    """The GPU types that a job allows, the dearest first: the policy knows nothing of speeds."""
    allowed = job.facts.gpu_types
    types = [t for t in view.cluster.nodes_of_type if allowed is None or t in allowed]
    return sorted(types, key=lambda t: -view.cluster.gpu_type(t).relative_cost)
