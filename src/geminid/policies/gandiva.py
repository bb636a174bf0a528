"""Gandiva: jobs of one size on the same nodes, in slices of time, packed, moved, grown and shrunk.

Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI '18.

A new job goes to (1) the least loaded node of its affinity, that is of jobs that ask for as many slots, if that has
room; (2) a node that belongs to nobody, which takes its affinity; (3) a node of another affinity with free slots; (4) a
node of its affinity that is full, where all take turns; else (5) it waits for nodes. Jobs that take turns are suspended
and resumed every ``slice``. Options switch the rest on and off:

- ``packing``: under overload the waiting job that keeps its slots least busy joins the running one that does, if both
  fit into memory. Once they have run together for a slice (times of suspension and restarts do not count), their
  measured speeds decide: if these add up to less than one job alone, which is what taking turns gives, they part and
  jobs of these kinds are not tried again. Pairs part when there is room.
- ``migration``: when jobs have left, jobs move from full sets into new ones, and sets of one size that have become
  small are merged, which frees nodes.
- ``growth``: a job that may have more slots takes those of its node that have been idle for a slice, and gives them
  back as soon as anybody needs them.

Inferred and unverified. The order of places is from third-party notes, growth and shrinking from memory of the paper.
How nodes change their affinity is not published: merging is ours, and a large job waits until enough nodes belong to
nobody (live, the service gives those who wait for long a turn). How busy a job keeps its slots is read from how fast it
is beside a copy of itself. A slice lasts at least ten times the restart of the jobs that take turns: in the paper
suspending costs next to nothing, here it costs what a change of slots does.

``published=true`` repeats the simulator that was published with Tiresias (``gandiva_published.py``), with its defects
and without everything above but node sets and slices; it is the default for traces of durations, so that they compare
with published figures; asking for a part that it leaves out is refused. Its mean JCT on the 60-job trace, 787 s, is
that of a schedule in which no slice ever ends: slices end only at looks on a full minute, and no look is on one while
jobs wait. Where slices end, none of the times between looks (1 to 20 s), starts of slices and orders of the queue that
we tried meets both the published mean and makespan: the mean is 1 to 15 % longer, with these rules 4 %. Live, jobs
cannot share slots: nobody is packed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.gandiva_published import PublishedGandiva
from geminid.policies.nodesets import NodeSet, NodeSets, Unit, least_loaded, preferred_types
from geminid.policies.options import Positive
from geminid.policies.packing import most_slots
from geminid.policies.sharing import busy

#: Shortest time slice, in restarts of the jobs that take turns.
SLICE_RESTARTS = 10.0

#: Two that share must together be worth this many jobs alone: as much as taking turns.
LEAST_TOGETHER = 1.0

#: Slack when comparing times.
INSTANT_S = 1e-6


@dataclass(slots=True)
class Trial:
    """A pair on trial: how long its jobs have run together, as counted at a time."""

    counted_s: float
    together_s: float = 0.0


@dataclass(slots=True)
class Gandiva(Policy):
    """Every node runs jobs that ask for equally many slots (its affinity).

    A new job goes to the least loaded node of its size, else to a node of nobody, else to free slots elsewhere until
    these are needed there, else it takes turns with others of its size, each suspended and resumed every ``slice``.
    Under overload light jobs are put on the same slots on trial, and part again if that is slower than taking turns
    (``packing``; off live, where jobs cannot share slots). When jobs leave, the others move together (``migration``);
    idle slots of a node go to a job there until somebody needs them (``growth``). It knows nothing of speeds and
    durations. Traces of durations are run as by the simulator published with Tiresias (``published``).
    """

    name = "gandiva"
    paper = "Xiao et al., OSDI '18"
    objective = "jobs of one size share nodes in slices; packed, moved, grown and shrunk by trial"
    traced_defaults: ClassVar[Mapping[str, Any]] = {"published": True}
    meanings: ClassVar[Mapping[str, str]] = {
        "slice": "seconds until others of the same size have their turn",
        "packing": "under overload, try two jobs on the same slots (in simulations only)",
        "migration": "move jobs together when others leave",
        "growth": "let jobs have slots of their node that have been idle for a slice",
        "published": "as the simulator published with Tiresias, which has slices only; true for traces of durations",
    }

    slice_s: Positive = 60.0
    packing: bool = True
    migration: bool = True
    growth: bool = True
    published: bool = False
    _nodes: NodeSets = field(default_factory=NodeSets)
    _known: set[str] = field(default_factory=set)
    _trials: dict[Unit, Trial] = field(default_factory=dict)
    _undone: set[frozenset[str]] = field(default_factory=set)
    _idle_since_s: dict[int, float] = field(default_factory=dict)
    _as_published: PublishedGandiva | None = None

    def __post_init__(self) -> None:
        self.needs_reports = self.packing
        self._as_published = PublishedGandiva(self.slice_s) if self.published else None

    @property
    def parts_left_out(self) -> frozenset[str]:
        """The published simulator has node sets and slices only."""
        return frozenset({"packing", "migration", "growth"}) if self.published else frozenset()

    def decide(self, view: ClusterView) -> Decision:
        """Bring node sets up to date with who came and went, end slices, and hand out slots."""
        if self._as_published is not None:
            return self._as_published.decide(view)
        jobs = {job.id: job for job in view.jobs}
        left = self._forget(view, jobs)
        self._count_trials(view, jobs)
        self._turn(view, jobs)
        for job in view.jobs:
            if job.id not in self._known:
                self._nodes.queue.append((job.id,))
        self._known = set(jobs)
        self._serve_queue(view, jobs)
        if left and self.migration:
            self._merge()
            self._serve_queue(view, jobs)
        if self.migration:
            self._spread(view)
        if self.packing and view.sharing is not None:
            self._judge_trials(view, jobs)
            self._pack(view, jobs)
        return self._decision(view, jobs)

    # --- Who is where ---

    def _forget(self, view: ClusterView, jobs: Mapping[str, JobView]) -> bool:
        """Drop jobs that left, and sets whose nodes have changed; whether anybody left."""
        gone = {job for unit in self._nodes.units() for job in unit if job not in jobs}
        self._nodes.forget(gone)
        self._trials = {unit: trial for unit, trial in self._trials.items() if not gone.intersection(unit)}
        self._nodes.dissolve_changed(view)
        return bool(gone)

    def _serve_queue(self, view: ClusterView, jobs: Mapping[str, JobView]) -> None:
        """Into sets with room, new sets, or behind others of its size; a job that finds neither stays in the queue."""
        self._nodes.queue = [unit for unit in self._nodes.queue if not self._place(view, jobs[unit[0]], unit)]

    def _place(self, view: ClusterView, job: JobView, unit: Unit) -> bool:
        types, size = preferred_types(view, job), job.facts.requested_slots
        best = least_loaded(self._nodes.of(types, size))
        if best is None or len(best.ring) >= best.room:
            best = self._nodes.open(view, types, size) or best
        if best is None:
            return False
        best.ring.append(unit)
        return True

    def _merge(self) -> None:
        """Move the jobs of the smallest set of a size into others that have room for all of them."""
        for key in {(each.gpu_type, each.size) for each in self._nodes.sets}:
            while True:
                sets = sorted(self._nodes.of([key[0]], key[1]), key=lambda each: len(each.ring))
                room = sum(max(each.room - len(each.ring), 0) for each in sets[1:])
                if len(sets) < 2 or len(sets[0].ring) > room or not self._wanted(key):
                    break
                self._nodes.sets.remove(sets[0])
                for unit in sets[0].ring:
                    min(sets[1:], key=lambda each: each.load).ring.append(unit)

    def _wanted(self, key: tuple[str, int]) -> bool:
        """Whether jobs of another size could use nodes of a type: they wait, or take turns."""
        turns = any(each.waiting for each in self._nodes.sets if (each.gpu_type, each.size) != key)
        return bool(self._nodes.queue) or turns

    def _spread(self, view: ClusterView) -> None:
        """Give nodes that belong to nobody to the size that takes turns most, and move those there who wait."""
        while True:
            full = [each for each in self._nodes.sets if each.waiting]
            busiest = max(full, key=lambda each: each.load, default=None)
            made = None if busiest is None else self._nodes.open(view, [busiest.gpu_type], busiest.size)
            if busiest is None or made is None:
                return
            while len(made.ring) < made.room:
                source = max(self._nodes.of([made.gpu_type], made.size), key=lambda each: each.load)
                if not source.waiting:
                    break
                made.ring.append(source.ring.pop())

    # --- Slices ---

    def _slice_of(self, each: NodeSet, jobs: Mapping[str, JobView]) -> float:
        """The slice of a set's jobs; jobs that have never run do not count, their first start is no restart."""
        started = (jobs[job] for unit in each.ring for job in unit if jobs[job].started_s is not None)
        return max(self.slice_s, SLICE_RESTARTS * max((job.facts.rescale_s for job in started), default=0.0))

    def _turn(self, view: ClusterView, jobs: Mapping[str, JobView]) -> None:
        """End the slices that are over."""
        for each in self._nodes.sets:
            if each.waiting:
                each.end_slices(view.now_s, self._slice_of(each, jobs) - INSTANT_S)

    # --- Packing ---

    def _count_trials(self, view: ClusterView, jobs: Mapping[str, JobView]) -> None:
        """Add the time since the last decision to the trials of pairs that have run in it."""
        for (host, guest), trial in self._trials.items():
            if jobs[host].allocation and jobs[host].partner == guest:
                from_s = max(trial.counted_s, jobs[host].paused_until_s, jobs[guest].paused_until_s)
                trial.together_s += max(view.now_s - from_s, 0.0)
            trial.counted_s = view.now_s

    def _judge_trials(self, view: ClusterView, jobs: Mapping[str, JobView]) -> None:
        """Part pairs that have run for a slice and do not pay, and any where there is room for both.

        A trial goes on until both have measured their speeds.
        """
        for each in self._nodes.sets:
            ring: list[Unit] = []
            spare = each.room - len(each.ring)
            for unit in each.ring:
                parted = False
                if len(unit) == 2:
                    speeds = [jobs[job].relative_speed for job in unit]
                    trial = self._trials.get(unit)
                    long_enough = trial is not None and trial.together_s >= self._slice_of(each, jobs) - INSTANT_S
                    tried = long_enough and None not in speeds
                    failed = tried and sum(s or 0.0 for s in speeds) < LEAST_TOGETHER
                    if tried:
                        del self._trials[unit]
                    if failed:
                        self._undone.add(frozenset(jobs[job].facts.kind for job in unit))
                    parted = failed or spare > 0
                    spare -= parted
                ring += [unit[:1], unit[1:]] if parted else [unit]
            each.ring = ring
        inside = set(self._nodes.units())
        self._trials = {unit: trial for unit, trial in self._trials.items() if unit in inside}

    def _ends_of_trials(self, view: ClusterView, jobs: Mapping[str, JobView]) -> Iterator[float]:
        """When the pairs on trial that run now will have run for a slice, or when to ask again for their speeds."""
        for each in self._nodes.sets:
            slice_s = self._slice_of(each, jobs)
            for unit in each.running:
                if unit in self._trials:
                    left_s = slice_s - self._trials[unit].together_s
                    yield view.now_s + (left_s if left_s > INSTANT_S else slice_s)

    def _pack(self, view: ClusterView, jobs: Mapping[str, JobView]) -> None:
        """In every set where jobs wait, try one more pair: those that keep their slots least busy."""
        assert view.sharing is not None
        for each in self._nodes.sets:
            if not each.waiting or any(unit in self._trials for unit in each.ring):
                continue
            hosts, guests = (
                sorted(
                    (unit[0] for unit in units if len(unit) == 1),
                    key=lambda job, on=each.gpu_type: busy(view.sharing, jobs[job].facts, on),  # type: ignore[misc]
                )
                for units in (each.running, each.waiting)
            )
            for host in hosts:
                guest = next((job for job in guests if self._may_share(view, jobs, host, job)), None)
                if guest is not None:
                    pair = (host, guest)
                    each.ring.remove((guest,))
                    each.ring[each.ring.index((host,))] = pair
                    self._trials[pair] = Trial(view.now_s)
                    break

    def _may_share(self, view: ClusterView, jobs: Mapping[str, JobView], host: str, guest: str) -> bool:
        one, other = jobs[host].facts, jobs[guest].facts
        gpu_type = jobs[host].gpu_type
        if gpu_type is None or view.sharing is None or frozenset((one.kind, other.kind)) in self._undone:
            return False
        return min(view.sharing.relative_speeds(one, other, gpu_type)) > 0

    # --- Slots ---

    def _decision(self, view: ClusterView, jobs: Mapping[str, JobView]) -> Decision:
        free = list(view.usable_slots)
        given: dict[str, Allocation] = {}
        pairs = []
        for each in self._nodes.sets:
            allocation = each.allocation()
            for unit in each.running:
                for node, slots in allocation:
                    free[node] -= slots
                given |= dict.fromkeys(unit, allocation)
                if len(unit) == 2:
                    pairs.append((unit[0], unit[1]))
        reasons: dict[str, str] = {}
        self._lodge(view, jobs, free, given, reasons)
        for each in self._nodes.sets:
            each.begin_slices(view.now_s)
        wake_at_s = [each.next_end_s(self._slice_of(each, jobs)) for each in self._nodes.sets if each.waiting]
        wake_at_s += self._ends_of_trials(view, jobs)
        if self.growth:
            wake_at_s += self._grow(view, jobs, free, given, {job for pair in pairs for job in pair}, reasons)
        if view.sharing is None and self.packing and any(each.waiting for each in self._nodes.sets):
            reason = "no_sharing: jobs cannot share slots here, they take turns"
            reasons |= {job: reason for each in self._nodes.sets for unit in each.waiting for job in unit}
        later = [at_s for at_s in wake_at_s if at_s > view.now_s + INSTANT_S]
        kept = {job: jobs[job].allocation if jobs[job].allocation == got else got for job, got in given.items()}
        return Decision(kept, pairs=pairs, reasons=reasons, wake_at_s=min(later, default=None))

    def _lodge(
        self,
        view: ClusterView,
        jobs: Mapping[str, JobView],
        free: list[int],
        given: dict[str, Allocation],
        reasons: dict[str, str],
    ) -> None:
        """Let waiting jobs use free slots on nodes of another size until these are needed, in order of arrival."""
        waiting = [unit[0] for unit in self._nodes.queue]
        waiting += [unit[0] for each in self._nodes.sets for unit in each.waiting if len(unit) == 1]
        for job in sorted((jobs[name] for name in waiting), key=lambda job: not job.allocation):
            size, types = job.facts.requested_slots, preferred_types(view, job)
            allocation = job.allocation if job.allocation and _holds(free, job.allocation) else None
            if allocation is None or job.slots != size:
                nodes = [n for t in types for n in view.cluster.nodes_of_type[t] if free[n] >= size]
                allocation = ((min(nodes, key=lambda n: free[n]), size),) if nodes else None
            if allocation is not None:
                for node, slots in allocation:
                    free[node] -= slots
                given[job.id] = allocation
                reasons[job.id] = "runs on free slots of a node for jobs of another size"

    def _grow(
        self,
        view: ClusterView,
        jobs: Mapping[str, JobView],
        free: list[int],
        given: dict[str, Allocation],
        paired: set[str],
        reasons: dict[str, str],
    ) -> list[float]:
        """Give slots that have been idle for a slice to a job on the same node; when to look at idle slots again."""
        self._idle_since_s = {n: self._idle_since_s.get(n, view.now_s) for n, slots in enumerate(free) if slots > 0}
        on_node: dict[int, list[str]] = {}
        for job, allocation in given.items():
            if len(allocation) == 1 and job not in paired and jobs[job].facts.adaptivity is not Adaptivity.RIGID:
                on_node.setdefault(allocation[0][0], []).append(job)
        looks = []
        for node, since_s in self._idle_since_s.items():
            has = {job: given[job][0][1] for job in on_node.get(node, ())}
            able = [job for job in has if most_slots(jobs[job]) > has[job]]
            for job in sorted(able, key=lambda job: -jobs[job].slots):  # who has grown stays grown
                target = min(has[job] + free[node], most_slots(jobs[job]))
                grown = jobs[job].allocation and jobs[job].allocation[0][0] == node and jobs[job].slots > has[job]
                if grown:
                    target = min(target, jobs[job].slots) if target < jobs[job].slots else target
                if not grown and view.now_s < since_s + self.slice_s - INSTANT_S:
                    looks.append(since_s + self.slice_s)
                    continue
                free[node] -= target - has[job]
                given[job] = ((node, target),)
                reasons[job] = "has idle slots of its node beside its own"
                break
        return looks


def _holds(free: list[int], allocation: Allocation) -> bool:
    return all(free[node] >= slots for node, slots in allocation)
