"""Dally: jobs wait a while for slots that are close together, and give up places that the network makes useless.

Sharma et al., "GPU Cluster Scheduling for Network-Sensitive Deep Learning", 2024 (arXiv 2401.16492).

- **Delay scheduling.** A job takes slots of a single node only, until it has waited for T(node); then also slots of a
  single rack, until T(rack), and so on up to the whole cluster. Levels that can never hold it are skipped. Jobs are
  served in the order of their submission, each on the slots it asks for; a job without a place is passed over.
- **Auto-tuned timers.** T(level, slots) is the mean of the last waits after which jobs of that size got a place at that
  level, plus ``k`` standard deviations. The option of that level counts as a few waits, so that the first jobs, which
  find an empty cluster and wait for nothing, do not set the timer to zero for all that follow. Where jobs of an
  application and size have been seen to compute for only a part of their time at a level, others of that kind wait for
  a closer one that many times longer (at most twenty times).
- **Network-sensitive preemption.** The score of a running job is the time that it has computed over the time since it
  got its slots: low where synchronising or pausing takes most of it. A job with a low score that stands further apart
  than it need moves to a better place if one is free, before waiting jobs are served; else it makes way for a waiting
  job that would stand closer together on its slots, and have more slots than its own times its score: more slots
  compute then. It waits itself for a better place, with its timers reset. The lowest scores go first.

Inferred and unverified. The abstract and third-party notes name the three parts and the results; the levels, the
score and the form of the timers are from memory of the paper, everything else is our reading: that timers count from
the same moment (not one after the other), how many waits the options count for, that sensitive kinds wait longer,
when to preempt (``below``, ``quantum``) and that the queue is in order of submission. Times of computing are those
that jobs report where they stand; of jobs without any, all of the time after the pause counts as computing, so that
they are never preempted. Where GPU types are mixed, a job takes the dearest that has room at the level, as the
policies do that know nothing of speeds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.gputypes import LinkClass
from geminid.network import WHERE
from geminid.policies.base import Allocation, ClusterView, Decision, JobFacts, JobView, Policy
from geminid.policies.options import AtLeast, AtMost, OrInfinite, Positive

#: How many waits the option of a level counts for in the mean.
WAITS_OF_OPTION = 3

#: Slack when comparing times.
INSTANT_S = 1e-6

#: Jobs that compute less of their time than this at a level wait for a closer one as if they computed this much.
LEAST_SHARE = 0.05

#: Jobs of one application and size at a level.
PlaceKind = tuple[str, int, LinkClass]

Timer = Annotated[float, AtLeast(0.0), OrInfinite()]


@dataclass(slots=True)
class Dally(Policy):
    """Delay scheduling: a job waits for slots of one node, then of one rack, then takes any.

    It accepts only a place on one node until it has waited for the timer of that level and of its number of slots, then
    one in a rack until the timer of that, and so on; levels that can never hold it are skipped. With ``auto`` the
    timers follow the waits after which jobs got such places: their mean plus ``k`` standard deviations. Jobs for which
    the network leaves little time to compute move to better places, or make way for others who would stand closer
    together (``preempt``). Timers of 0 mean no consolidation, of inf full consolidation.
    """

    name = "dally"
    paper = "Sharma et al., arXiv 2401.16492"
    objective = "slots close together within a tuned delay; jobs that the network starves are moved"
    needs_reports = True
    meanings: ClassVar[Mapping[str, str]] = {
        "node": "seconds to wait for one node; with auto, what the timer starts from",
        "rack": "the same for one rack, from the same moment",
        "zone": "the same for one zone",
        "auto": "tune the timers by the waits of jobs that got their place",
        "k": "standard deviations above the mean wait",
        "window": "waits that the mean is over",
        "preempt": "move jobs that the network leaves little time to compute",
        "below": "share of computing time below which a job may be moved",
        "quantum": "seconds for which a job runs at least before it is moved",
    }

    node_s: Timer = 600.0
    rack_s: Timer = 1800.0
    zone_s: Timer = 3600.0
    auto: bool = True
    k: Annotated[float, AtLeast(0.0)] = 2.0
    window: Annotated[int, AtLeast(1)] = 100
    preempt: bool = True
    below: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.5
    quantum_s: Positive = 600.0
    _waits: dict[tuple[LinkClass, int], deque[float]] = field(default_factory=dict)
    _tuned_s: dict[tuple[LinkClass, int], float] = field(default_factory=dict)
    _since_s: dict[str, float] = field(default_factory=dict)
    _running: set[str] = field(default_factory=set)
    _computing: dict[PlaceKind, float] = field(default_factory=dict)

    def decide(self, view: ClusterView) -> Decision:
        """Move starved jobs to better places that are free, serve the queue in order, and swap who is still starved."""
        places = Places.of(view)
        self._update(view, places)
        assignments: dict[str, Allocation] = {}
        reasons: dict[str, str] = {}
        waiting = []
        for job in view.jobs:
            if not job.allocation or not places.keep(job.allocation):
                waiting.append(job)
                if job.allocation:
                    assignments[job.id] = ()
        starved = self._starved(view, places, assignments) if self.preempt else []
        starved = self._upgrade(view, places, starved, assignments, reasons)
        waiting = self._serve(view, places, waiting, assignments, reasons)
        if starved:
            self._swap(view, places, starved, waiting, assignments, reasons)
        return Decision(assignments, reasons, self._wake_at_s(view, places, assignments), others_stay=True)

    def timer_s(self, level: LinkClass, slots: int) -> float:
        """How long a job with this number of slots waits for a place at a level before it accepts the next."""
        start_s = self._option_s(level)
        tuned_s = self._tuned_s.get((level, slots)) if self.auto and start_s < math.inf else None
        return start_s if tuned_s is None else tuned_s

    def _option_s(self, level: LinkClass) -> float:
        return {LinkClass.NODE: self.node_s, LinkClass.RACK: self.rack_s, LinkClass.ZONE: self.zone_s}.get(level, 0.0)

    # --- The queue ---

    def _update(self, view: ClusterView, places: Places) -> None:
        """Since when everybody has been waiting, or running, and how much of the time jobs compute where they are."""
        active = {job.id for job in view.jobs}
        self._since_s = {job_id: since_s for job_id, since_s in self._since_s.items() if job_id in active}
        running = {job.id for job in view.jobs if job.allocation}
        for job in view.jobs:
            if job.id not in self._since_s:
                self._since_s[job.id] = view.now_s if job.allocation else job.facts.submitted_s
            elif (job.id in running) != (job.id in self._running):  # a node failed, or a command was not carried out
                self._since_s[job.id] = view.now_s
            if self.auto and job.observed is not None and len(job.allocation) > 1:
                share = max(compute_share(job), LEAST_SHARE)
                self._computing[_place_kind(job, places.level(job.allocation))] = share
        self._running = running

    def _serve(
        self,
        view: ClusterView,
        places: Places,
        waiting: Sequence[JobView],
        assignments: dict[str, Allocation],
        reasons: dict[str, str],
    ) -> list[JobView]:
        """Place the jobs that find a place at a level that they accept by now; returns the others."""
        hopeless: set[tuple[Kind, LinkClass]] = set()
        left = []
        for job in waiting:
            level, until_s = self._accepts(job, places, view.now_s)
            kind = (kind_of(job.facts), level)
            found = None if kind in hopeless else places.find(job.facts, level)
            if found is None:
                hopeless.add(kind)
                left.append(job)
                if until_s is not None:
                    timer_s = until_s - self._since_s[job.id]
                    limit = "however long it takes" if timer_s == math.inf else f"for {timer_s:.0f} s at most"
                    reasons[job.id] = f"waits for {job.facts.requested_slots} slots {WHERE[level]}, {limit}"
                continue
            at, allocation = found
            places.take(allocation)
            self._start(job, at, view.now_s)
            assignments[job.id] = allocation
        return left

    def _start(self, job: JobView, level: LinkClass, now_s: float) -> None:
        key = (level, job.facts.requested_slots)
        waits = self._waits.setdefault(key, deque(maxlen=self.window))
        waits.append(now_s - self._since_s[job.id])
        self._tuned_s[key] = fmean([*waits, *[self._option_s(level)] * WAITS_OF_OPTION]) + self.k * pstdev(waits)
        self._since_s[job.id] = now_s
        self._running.add(job.id)

    def _accepts(self, job: JobView, places: Places, now_s: float) -> tuple[LinkClass, float | None]:
        """The widest level that a job accepts by now, and when it will accept the next (None if it accepts any)."""
        levels = places.levels_for(job)
        since_s, until_s = self._since_s[job.id], -math.inf
        for level, wider in pairwise(levels):
            timer_s = self.timer_s(level, job.facts.requested_slots) / self._computing.get(_place_kind(job, wider), 1.0)
            until_s = max(until_s, since_s + timer_s)
            if now_s < until_s - INSTANT_S:
                return level, until_s
        return levels[-1], None

    def _wake_at_s(self, view: ClusterView, places: Places, assignments: Mapping[str, Allocation]) -> float | None:
        """When the first of those who wait will accept more than now."""
        waiting = (job for job in view.jobs if not assignments.get(job.id, job.allocation))
        ends = [until_s for job in waiting if (until_s := self._accepts(job, places, view.now_s)[1]) is not None]
        first_s = min(ends, default=math.inf)
        return first_s if first_s < math.inf else None

    # --- Preemption ---

    def score(self, job: JobView, now_s: float) -> float:
        """The time that a running job has computed over the time since it got its slots."""
        held_s = now_s - self._since_s[job.id]
        worked_s = min(held_s, max(now_s - max(job.paused_until_s, self._since_s[job.id]), 0.0))
        return worked_s / held_s * compute_share(job) if held_s > 0 else 1.0

    def _starved(
        self, view: ClusterView, places: Places, assignments: Mapping[str, Allocation]
    ) -> list[tuple[float, JobView]]:
        """Running jobs that hardly compute and are further apart than they need be, the lowest score first."""
        found = []
        for job in view.jobs:
            if not job.allocation or job.id in assignments or view.now_s < self._since_s[job.id] + self.quantum_s:
                continue
            score = self.score(job, view.now_s)
            if score < self.below and places.level(job.allocation) is not places.levels_for(job)[0]:
                found.append((score, job))
        return sorted(found, key=lambda starved: (starved[0], starved[1].id))

    def _upgrade(
        self,
        view: ClusterView,
        places: Places,
        starved: Sequence[tuple[float, JobView]],
        assignments: dict[str, Allocation],
        reasons: dict[str, str],
    ) -> list[tuple[float, JobView]]:
        """Move starved jobs to free slots that are closer together; returns those for which there are none."""
        left = []
        for score, job in starved:
            at = places.level(job.allocation)
            places.give_back(job.allocation)
            found = places.find(job.facts, places.closer(at)[-1])
            if found is None:
                places.take(job.allocation)
                left.append((score, job))
                continue
            places.take(found[1])
            assignments[job.id] = found[1]
            reasons[job.id] = f"moves to slots {WHERE[found[0]]}: it {_in_words(score, at)}"
            self._since_s[job.id] = view.now_s
        return left

    def _swap(
        self,
        view: ClusterView,
        places: Places,
        starved: Sequence[tuple[float, JobView]],
        waiting: Sequence[JobView],
        assignments: dict[str, Allocation],
        reasons: dict[str, str],
    ) -> None:
        """Let waiting jobs that would compute there have the slots of starved ones.

        Jobs that ask for the same are one kind: if the first of them finds no place, none does.
        """
        queues: dict[Kind, deque[JobView]] = {}
        order = {job.id: position for position, job in enumerate(waiting)}
        for job in waiting:
            queues.setdefault(kind_of(job.facts), deque()).append(job)
        for score, job in starved:
            if not queues:
                return
            at = places.level(job.allocation)
            closer, gives_up = places.closer(at), {node for node, _ in job.allocation}
            places.give_back(job.allocation)
            first = sorted((queue[0] for queue in queues.values()), key=lambda other: order[other.id])
            swapped = next(
                (
                    (other, place)
                    for other in first
                    if other.facts.requested_slots > score * job.slots
                    and (place := places.find(other.facts, closer[-1])) is not None
                    and not gives_up.isdisjoint(node for node, _ in place[1])
                ),
                None,
            )
            if swapped is None:
                places.take(job.allocation)
                continue
            other, (level, allocation) = swapped
            places.take(allocation)
            queue = queues[kind_of(other.facts)]
            queue.popleft()
            if not queue:
                del queues[kind_of(other.facts)]
            reasons.pop(other.id, None)
            self._start(other, level, view.now_s)
            assignments[other.id] = allocation
            assignments[job.id] = ()
            reasons[job.id] = f"makes way for {other.id}, which then is {WHERE[level]}: it {_in_words(score, at)}"
            self._since_s[job.id] = view.now_s
            self._running.discard(job.id)


def _in_words(score: float, at: LinkClass) -> str:
    return f"computes for {100 * score:.0f} % of its time {WHERE[at]}"


def _place_kind(job: JobView, level: LinkClass) -> PlaceKind:
    return job.facts.kind, job.facts.requested_slots, level


def compute_share(job: JobView) -> float:
    """The share of an iteration that computing takes where a job stands, as it has measured; 1 before it has."""
    seen = job.observed
    limits = job.facts.limits.get(job.gpu_type or "")
    if seen is None or limits is None:
        return 1.0
    total = job.facts.requested_batch or limits.initial
    passes = max(-(-total // (job.slots * limits.largest_per_slot)), 1)
    computing_s = passes * seen.accumulation_s
    return min(computing_s / (computing_s - seen.accumulation_s + seen.step_s), 1.0)


#: What decides where a job can be placed: its number of slots and the GPU types that it may use.
Kind = tuple[int, frozenset[str] | None]


def kind_of(facts: JobFacts) -> Kind:
    """What decides where a job can be placed."""
    return facts.requested_slots, facts.gpu_types


@dataclass(slots=True, eq=False)
class Places:
    """Free slots while they are handed out, and where in the cluster they are.

    ``nodes`` are those of each GPU type, the dearest type first; ``group`` says for every level which node, rack or
    zone a node belongs to, and ``sums`` how many slots of a type are free in each of them.
    """

    cluster: Cluster
    free: NDArray[np.int64]
    levels: tuple[LinkClass, ...]
    nodes: Mapping[str, NDArray[np.int64]]
    group: Mapping[LinkClass, NDArray[np.int64]]
    sums: Mapping[str, Mapping[LinkClass, NDArray[np.int64]]]
    most: Mapping[str, Mapping[LinkClass, int]]
    _levels: dict[Kind, Sequence[LinkClass]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: ClusterView) -> Places:
        """With all usable slots free."""
        cluster = view.cluster
        levels = (LinkClass.NODE, *cluster.links.tiers)
        dearest = sorted(cluster.nodes_of_type, key=lambda name: -cluster.gpu_type(name).relative_cost)
        nodes = {name: np.array(cluster.nodes_of_type[name]) for name in dearest}
        group = {level: _groups(cluster, level) for level in levels}
        usable = np.array(view.usable_slots, dtype=np.int64)
        whole = np.array(view.slots_in_service, dtype=np.int64)

        def summed(slots: NDArray[np.int64], inside: NDArray[np.int64], level: LinkClass) -> NDArray[np.int64]:
            groups = group[level]
            sums = np.bincount(groups[inside], weights=slots[inside], minlength=int(groups.max()) + 1)
            return sums.astype(np.int64)

        sums = {name: {level: summed(usable, inside, level) for level in levels} for name, inside in nodes.items()}
        most = {
            name: {level: int(summed(whole, inside, level).max()) for level in levels} for name, inside in nodes.items()
        }
        return cls(cluster, usable, levels, nodes, group, sums, most)

    def keep(self, allocation: Allocation) -> bool:
        """Take the slots of a running job if they are still there."""
        there = all(self.free[node] >= slots for node, slots in allocation)
        if there:
            self.take(allocation)
        return there

    def take(self, allocation: Allocation) -> None:
        """Hand slots out."""
        self._add(allocation, -1)

    def give_back(self, allocation: Allocation) -> None:
        """Take slots back."""
        self._add(allocation, 1)

    def _add(self, allocation: Allocation, sign: int) -> None:
        sums = self.sums[self.cluster.nodes[allocation[0][0]].gpu_type]
        for node, slots in allocation:
            self.free[node] += sign * slots
            for level, groups in self.group.items():
                sums[level][groups[node]] += sign * slots

    def level(self, allocation: Allocation) -> LinkClass:
        """How far apart the slots of an allocation are."""
        return self.cluster.links.tier([node for node, _ in allocation])

    def closer(self, level: LinkClass) -> Sequence[LinkClass]:
        """The levels whose slots are closer together than at a level."""
        return self.levels[: self.levels.index(level)]

    def levels_for(self, job: JobView) -> Sequence[LinkClass]:
        """The levels whose nodes in service can hold a job, if nobody else were there; at least the whole cluster."""
        kind = kind_of(job.facts)
        if kind not in self._levels:
            slots, types = job.facts.requested_slots, self._types(job.facts)
            able = [level for level in self.levels if any(self.most[name][level] >= slots for name in types)]
            self._levels[kind] = able or self.levels[-1:]
        return self._levels[kind]

    def find(self, job: JobFacts, widest: LinkClass) -> tuple[LinkClass, Allocation] | None:
        """A place for a job, the closest together first and not wider than a level; the level, and the slots."""
        slots, types = job.requested_slots, self._types(job)
        for level in self.levels[: self.levels.index(widest) + 1]:
            for name in types:
                if self.most[name][level] < slots:
                    continue
                free = self.sums[name][level]
                able = np.flatnonzero(free >= slots)
                if len(able):
                    nodes = self.nodes[name]
                    return self._filled(nodes[self.group[level][nodes] == able[np.argmin(free[able])]], slots)
        return None

    def _filled(self, nodes: NDArray[np.int64], slots: int) -> tuple[LinkClass, Allocation]:
        """The slots of the emptiest of some nodes, which have enough; within racks first, where there are several."""
        racks = self.cluster.node_rack[nodes]
        in_rack = np.bincount(racks, weights=self.free[nodes])
        order = nodes[np.lexsort((nodes, -self.free[nodes], -in_rack[racks]))]
        parts = []
        for node in order.tolist():
            part = min(int(self.free[node]), slots)
            if part > 0:
                parts.append((node, part))
                slots -= part
        allocation = tuple(sorted(parts))
        return self.level(allocation), allocation

    def _types(self, job: JobFacts) -> list[str]:
        """The GPU types that a job may use, the dearest first."""
        allowed = job.gpu_types
        return [name for name in self.nodes if allowed is None or name in allowed]


def _groups(cluster: Cluster, level: LinkClass) -> NDArray[np.int64]:
    """Which node, rack or zone each node belongs to, or all to the cluster, as small numbers."""
    match level:
        case LinkClass.NODE:
            return np.arange(len(cluster.nodes))
        case LinkClass.RACK:
            return cluster.node_rack
        case LinkClass.ZONE:
            return cluster.node_zone
    return np.zeros(len(cluster.nodes), dtype=np.int64)
