"""Gandiva as the simulator that was published with Tiresias has it, to repeat figures that were made with it.

Its node sets and slices are those of ``nodesets.py``, with these peculiarities, found by reading and running it:

- It looks at the cluster at arrivals and 10 s after its last look. Slots that become free wait for the next look.
- A slice ends only at a look on a full minute. Looks are counted from the last arrival, so on the 60-job trace, whose
  last job comes 1,779 s after the start, nobody ever loses a slice again after that.
- When a set has become empty (or, here, nodes have come or gone), jobs from the queue are tried in order; after one
  that starts, the next one is passed over (a list is changed while it is walked through).
- A set's load counts every job that was ever put there.
- At every look, each size is to have slots in proportion to what its jobs ask for: if it should have more, free nodes
  are added, or if there are none its jobs are dealt again; if fewer, sets are given up, one for each job's worth of
  slots too many, but for the last. The jobs that wait in the queue do not count.

Repaired, the same rules give another mean JCT on that trace (``gandiva:published=false``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from geminid.policies.base import Allocation, ClusterView, Decision, JobView
from geminid.policies.nodesets import NodeSet, NodeSets, Unit, preferred_types

#: Seconds between looks.
LOOK_S = 10.0

#: Slack when comparing times.
INSTANT_S = 1e-6


@dataclass(slots=True)
class PublishedGandiva:
    """Node sets, slices and looks; see the module's docstring."""

    slice_s: float
    nodes: NodeSets = field(default_factory=NodeSets)
    _placed: dict[NodeSet, int] = field(default_factory=dict)
    _looked_s: float = -math.inf
    _known: set[str] = field(default_factory=set)
    _usable: tuple[int, ...] = ()

    def decide(self, view: ClusterView) -> Decision:
        """Look if it is time to; else everything stays as it is."""
        jobs = {job.id: job for job in view.jobs}
        arrived = [job for job in view.jobs if job.id not in self._known]
        if not arrived and view.now_s < self._looked_s + LOOK_S - INSTANT_S:
            return Decision({}, wake_at_s=self._looked_s + LOOK_S, others_stay=True)
        self._looked_s = view.now_s
        if view.now_s % self.slice_s < 1.0:
            for each in self.nodes.sets:
                if each.waiting:
                    each.turn()
        emptied = self.nodes.forget({job for unit in self.nodes.units() for job in unit if job not in jobs})
        emptied |= self.nodes.dissolve_changed(view) or view.usable_slots != self._usable or not self.nodes.sets
        self._usable = view.usable_slots
        self._known = set(jobs)
        self.nodes.queue += [(job.id,) for job in arrived if not self._place(view, job)]
        if emptied:
            self._try_queue(view, jobs)
        self._adjust(view)
        granted = {job: each.allocation() for each in self.nodes.sets for unit in each.running for job in unit}
        return Decision(_as_they_are(granted, jobs), wake_at_s=view.now_s + LOOK_S)

    def _try_queue(self, view: ClusterView, jobs: dict[str, JobView]) -> None:
        left: list[Unit] = []
        started = False
        for unit in self.nodes.queue:
            started = not started and self._place(view, jobs[unit[0]])
            if not started:
                left.append(unit)
        self.nodes.queue = left

    def _place(self, view: ClusterView, job: JobView) -> bool:
        """Into the least loaded set of its size if that has room, else into a new one, else behind others."""
        types, size = preferred_types(view, job), job.facts.requested_slots
        sets = self.nodes.of(types, size)
        best = min(sets, key=lambda each: self._placed[each], default=None)
        if best is None or self._placed[best] + 1 > best.room:
            made = self.nodes.open(view, types, size)
            if made is not None:
                self._placed[made] = 0
            best = made or best
        if best is None:
            return False
        self._put((job.id,), best)
        return True

    def _put(self, unit: Unit, each: NodeSet) -> None:
        each.ring.append(unit)
        self._placed[each] += 1

    def _adjust(self, view: ClusterView) -> None:
        """More or fewer sets for each size, in proportion to what its jobs ask for."""
        sizes: dict[tuple[str, int], list[NodeSet]] = defaultdict(list)
        for each in self.nodes.sets:
            sizes[each.gpu_type, each.size].append(each)
        asked = {key: key[1] * sum(len(each.ring) for each in sets) for key, sets in sizes.items()}
        slots = view.usable_slots_per_type()
        for (gpu_type, size), sets in sorted(sizes.items()):
            of_type = sum(more for (other, _), more in asked.items() if other == gpu_type)
            plan = asked[gpu_type, size] * slots[gpu_type] // max(of_type, 1)
            lacking = min(plan, asked[gpu_type, size]) - sum(sum(each.slots) for each in sets)
            if lacking > 0:
                self._expand(view, gpu_type, size, sets, -(-lacking // size))
            elif lacking < 0:
                for each in sorted(sets, key=self._placed.__getitem__)[: min(-(lacking // size), len(sets) - 1)]:
                    sets.remove(each)
                    self.nodes.sets.remove(each)
                    for unit in each.ring:
                        self._put(unit, min(sets, key=self._placed.__getitem__))

    def _expand(self, view: ClusterView, gpu_type: str, size: int, sets: list[NodeSet], more: int) -> None:
        added = None
        for _ in range(more):
            added = self.nodes.open(view, [gpu_type], size)
            if added is not None:
                self._placed[added] = 0
                sets.append(added)
        if added is not None and len(added.nodes) == 1:
            return
        units = [unit for each in sets for unit in each.ring]
        for each in sets:
            each.ring, self._placed[each] = [], 0
        for unit in units:
            self._put(unit, min(sets, key=self._placed.__getitem__))


def _as_they_are(granted: dict[str, Allocation], jobs: dict[str, JobView]) -> dict[str, Allocation]:
    """Allocations, as the very values that jobs hold where they keep them."""
    return {job: jobs[job].allocation if jobs[job].allocation == got else got for job, got in granted.items()}
