"""What all policies over time fractions have in common: they state a problem, solve it, and let rounds realise it.

Fractions are computed again when jobs have come or gone, slots have, or what is known of the jobs' speeds has changed,
but not more often than every ``recompute`` seconds; in between new jobs only get slots that nobody else wants. A solver
that fails is asked again in the next round, and equal shares go on until then. At the end of each round jobs are
chosen by priority (:mod:`geminid.policies.gavel.rounds`) and placed, on the slots they have where possible, which
extends their lease.

Options of all of them: ``round`` and ``recompute`` in seconds; ``limit`` is how many seconds one solve may take, after
which the best found so far is taken, or what is found in a quarter of that, or equal shares; ``fill=true`` gives slots
that become free within a round to waiting jobs at once (in the paper they are idle until its end); ``adaptive=true``
reads goodputs of jobs that tune themselves instead of throughputs at the requested batch size, and lets them do so;
``reserve=true`` repeats what the published simulator does with jobs that wait for their first fractions: they hold free
slots and do not run; ``warm=false`` solves every problem from scratch: fractions then depend on it alone, not on what
was solved before; ``profiled=0.2`` takes only that part of the pairs to have been measured beforehand
(:class:`SpeedReader`), the others are estimated until they have run; ``seen_as=v100`` has policies that cannot tell GPU
types apart take every type to be as fast as that one, as the published code does, instead of as the job's fastest.

Deviations from the published code, common to all. Jobs that wait for their first fractions run on slots that are
free. When one of two jobs on shared slots is done it leaves at once and the other runs on alone, instead of both at the
end of the round. Rounds last exactly as long as they say: steps are not rounded down to whole ones within a round.
Pairs that should have no time get none, even if slots are idle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import le
from typing import Annotated, ClassVar

import numpy as np

from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.gavel.gangs import place_gangs
from geminid.policies.gavel.level import fallback, unrunnable
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.placement import folded, with_spread
from geminid.policies.gavel.problem import (
    OUT_OF_TIME,
    SOLVER_FAILED,
    AllocationProblem,
    Array,
    Combination,
    GangJob,
    Note,
    TimeFractions,
    agnostic,
)
from geminid.policies.gavel.rounds import Account
from geminid.policies.gavel.speeds import SpeedReader, kind_of
from geminid.policies.options import AtLeast, AtMost, Positive
from geminid.solve.lp import LONGEST_S, Allowance, Clock

#: Notes after which a solver is asked again in the next round.
UNFINISHED = (SOLVER_FAILED, OUT_OF_TIME)

#: Slack when comparing times.
INSTANT_S = 1e-6

#: How long the first job of an idle cluster waits for others, so that jobs submitted together share from the start.
GATHERING_S = 1.0


@dataclass
class TimeSharingPolicy(Policy):
    """Time fractions by :meth:`solve`, realised in rounds; see the module's docstring.

    ``aware`` policies know how fast jobs run on each GPU type, others treat all types that can run a job alike (and go
    through the types in random order). ``packed`` ones may run two jobs on the same slots. With ``backfill`` off, jobs
    run only where they should have time; with ``fills_by_speed`` slots that nobody should have go to who is fast there;
    with ``knows_placement`` (and ``aware``) the problem tells whole gangs from spread ones where that matters. One that
    ``optimises`` solves linear programs.
    """

    paper = "Narayanan et al., OSDI '20 (Gavel)"
    aware: ClassVar[bool] = True
    packed: ClassVar[bool] = False
    backfill: ClassVar[bool] = True
    fills_by_speed: ClassVar[bool] = True
    knows_placement: ClassVar[bool] = False
    optimises: ClassVar[bool] = False

    round_s: Positive = 360.0
    recompute_s: Annotated[float, AtLeast(0.0)] = 1920.0
    limit_s: Positive = LONGEST_S
    fill: bool = False
    adaptive: bool = False
    reserve: bool = False
    warm: bool = True
    profiled: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 1.0
    seen_as: str = ""
    seed: int = 0

    _account: Account | None = field(default=None, repr=False)
    _solved_for: tuple[frozenset[str], tuple[int, ...]] | None = field(default=None, repr=False)
    _solved_with: Mapping[str, Mapping[str, float]] | None = field(default=None, repr=False)
    _solved_s: float = field(default=-np.inf, repr=False)
    _usable: tuple[int, ...] = field(default=(), repr=False)
    _round_ends_s: float = field(default=-np.inf, repr=False)
    _gathering: bool = field(default=False, repr=False)
    _present: frozenset[str] = field(default=frozenset(), repr=False)
    _running: dict[Combination, tuple[str, float, float]] = field(default_factory=dict, repr=False)
    _placed: dict[Combination, Allocation] = field(default_factory=dict, repr=False)
    _notes: tuple[Note, ...] = field(default=(), repr=False)
    _unread: tuple[Note, ...] = field(default=(), repr=False)
    _fractions: TimeFractions | None = field(default=None, repr=False)
    _speeds: SpeedReader = field(default_factory=SpeedReader, repr=False)
    _isolated: dict[str, tuple[float, float, float]] = field(default_factory=dict, repr=False)
    _memory: Memory = field(default_factory=Memory, repr=False)
    _clock: Clock | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.adapts_batch = self.adaptive
        self.needs_models = self.brings_profiles = self.reads_speeds
        self._speeds.adaptive, self._speeds.profiled = self.adaptive, self.profiled
        self._speeds.seed = self.seed
        self._rng = np.random.default_rng(self.seed)

    @classmethod
    def ignores(cls) -> frozenset[str]:
        """What only matters to policies that pair jobs, are unaware of GPU types or solve programs."""
        matters = {
            "profiled": cls.packed,
            "seen_as": not cls.aware and cls.needs_oracle,
            "warm": cls.optimises,
            "limit_s": cls.optimises,
            "seed": cls.packed or not cls.aware,
        }
        return frozenset(field for field, used in matters.items() if not used)

    @abstractmethod
    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """The policy itself: which fraction of the time everyone should have each type."""

    @property
    def reads_speeds(self) -> bool:
        """Whether speeds matter: to tell types apart, to tune jobs, or to know how long their steps left will take."""
        return self.aware or self.adaptive or self.needs_oracle

    @property
    def memory(self) -> Memory | None:
        """What is kept from one solve to the next, if anything is to be."""
        return self._memory if self.warm else None

    def allowance(self) -> Allowance:
        """How long one solve may take."""
        return Allowance(self.limit_s, self._clock)

    def measure_by(self, clock: Clock) -> None:
        """Let everything that a solve does count against its limit, by this clock."""
        self._clock = clock

    def held_types(self) -> dict[str, str]:
        """The GPU types that jobs should have had all the time under the last fractions."""
        last = self._fractions
        if last is None:
            return {}
        return {
            job_id: last.gpu_types[int(row.argmax())]
            for combination, row in zip(last.combinations, last.fractions, strict=True)
            for job_id in combination
            if row.max() > 0.5
        }

    def held_pairs(self) -> list[Combination]:
        """The pairs of jobs under the last fractions."""
        return (
            [combination for combination in self._fractions.combinations if len(combination) == 2]
            if self._fractions
            else []
        )

    # --- Rounds ---

    def decide(self, view: ClusterView) -> Decision:
        """At the end of a round choose who runs in the next; within one, keep who runs (and fill what is free)."""
        if self.reads_speeds:  # jobs that bring their throughputs need no models, nor the reports behind them
            self.needs_models = any(job.facts.limits for job in view.jobs)
        jobs = frozenset(job.id for job in view.jobs)
        runs = any(job.allocation for job in view.jobs)
        if jobs and not runs and self._present.isdisjoint(jobs):
            self._gathering, self._round_ends_s = True, view.now_s + GATHERING_S
        self._present = jobs
        within = view.now_s < self._round_ends_s - INSTANT_S
        if not jobs:  # or none that is shown: the round of those who run goes on
            return Decision({}, wake_at_s=self._round_ends_s if within else None)
        if within:
            if self._gathering and not runs:
                return self._decision({})
            if runs and not self._gathering and self._has_its_slots(view):
                return self._go_on(view)
        self._gathering = False
        return self._next_round(view)

    def _has_its_slots(self, view: ClusterView) -> bool:
        """Whether the round has the slots that it began with.

        Jobs that may not be touched for a while are not shown, nor are their slots (``serve/guard.py``): those who are
        back bring theirs along, and those who are not to be seen may have taken theirs with them.
        """
        most, least = list(self._usable), list(self._usable)
        shown = {job.id for job in view.jobs}
        for combination, allocation in self._placed.items():
            if shown.isdisjoint(combination):
                for node, slots in allocation:
                    least[node] -= slots
        placed = {job_id for combination in self._placed for job_id in combination}
        for job in view.jobs:
            if job.id not in placed and (job.partner is None or job.id < job.partner):
                for node, slots in job.allocation:
                    most[node] += slots
                    least[node] += slots
        return all(map(le, least, view.usable_slots)) and all(map(le, view.usable_slots, most))

    def _next_round(self, view: ClusterView) -> Decision:
        self._settle(view)
        speeds = self._read_speeds(view)
        account = self._up_to_date(view, speeds)
        gangs = {job.id: job.facts.requested_slots for job in view.jobs}
        chosen = account.select(
            speeds, gangs, self._free(view), backfill=self.backfill, aware=self.aware and self.fills_by_speed
        )
        if self.reserve and self._solved_for is not None:
            known, _ = self._solved_for
            chosen = [(combination, gpu_type) for combination, gpu_type in chosen if known.issuperset(combination)]
        chosen = self._fitting(view, chosen)
        placed = place_gangs(view, chosen, gangs, worth=self._worth_spread(view))
        self._running, self._placed = self._started(view, chosen, placed), placed
        self._round_ends_s = view.now_s + self.round_s
        self._usable = view.usable_slots
        return self._decision(placed)

    def _go_on(self, view: ClusterView) -> Decision:
        """Keep everybody's slots until the end of the round; if asked to, give free ones to those who wait."""
        jobs = {job.id: job for job in view.jobs}
        kept: dict[Combination, Allocation] = {}
        for job in view.jobs:
            if job.allocation and (job.partner is None or job.id < job.partner):
                kept[(job.id,) if job.partner is None else (job.id, job.partner)] = job.allocation
        if self.fill and self._account is not None:
            speeds = self._read_speeds(view)
            free = self._free(view)
            for combination, allocation in kept.items():
                free[jobs[combination[0]].gpu_type or ""] -= sum(slots for _, slots in allocation)
            if any(free.values()):
                for job in view.jobs:
                    self._account.add(job.id)
                gangs = {job.id: job.facts.requested_slots for job in view.jobs}
                taken = {job.id for job in view.jobs if job.allocation}
                chosen = self._account.select(
                    speeds, gangs, free, backfill=self.backfill, aware=self.aware and self.fills_by_speed, taken=taken
                )
                chosen = self._fitting(view, chosen)
                placed = place_gangs(view, chosen, gangs, list(kept.values()), worth=self._worth_spread(view))
                kept |= placed
                self._placed |= placed
                self._running |= self._started(view, chosen, placed)
        return self._decision(kept)

    def _decision(self, placed: Mapping[Combination, Allocation]) -> Decision:
        assignments = {job_id: allocation for c, allocation in placed.items() for job_id in c}
        pairs = [(c[0], c[1]) for c in placed if len(c) == 2]
        reasons: dict[str, str] = {}
        for note in (*self._notes, *self._unread):  # one that names no jobs concerns everybody
            for job_id in note.jobs or self._present:
                reasons[job_id] = f"{reasons[job_id]}; {note}" if job_id in reasons else str(note)
        return Decision(assignments, reasons=reasons, wake_at_s=self._round_ends_s, pairs=pairs)

    def _fitting(self, view: ClusterView, chosen: Sequence[tuple[Combination, str]]) -> list[tuple[Combination, str]]:
        """The same, the first alone where two that nobody has measured turn out not to fit together."""
        if self.profiled >= 1 or view.sharing is None:
            return list(chosen)
        jobs = {job.id: job for job in view.jobs}
        result: list[tuple[Combination, str]] = []
        for combination, gpu_type in chosen:
            pair = [jobs[job_id] for job_id in combination]
            if len(pair) == 2 and min(view.sharing.relative_speeds(pair[0].facts, pair[1].facts, gpu_type)) <= 0:
                if self._speeds.try_out(pair[0], pair[1]):
                    self._solved_with = None
                combination = combination[:1]
            result.append((combination, gpu_type))
        return result

    def _worth_spread(self, view: ClusterView) -> Callable[[str, str], float]:
        """What a job's time on a type is worth on more nodes than needed; 1 for who cannot tell."""
        jobs = {job.id: job for job in view.jobs}
        known = self.aware and not self._unread
        return lambda job_id, gpu_type: (
            self._speeds.relative_when_spread(view.cluster, jobs[job_id], gpu_type) if known else 1.0
        )

    def _started(
        self, view: ClusterView, chosen: Sequence[tuple[Combination, str]], placed: Mapping[Combination, Allocation]
    ) -> dict[Combination, tuple[str, float, float]]:
        """Who runs from now on, where, and what its time is worth: less for a gang on more nodes than it needs."""
        worth_spread = self._worth_spread(view)
        result = {}
        for combination, gpu_type in chosen:
            if combination in placed:
                nodes, slots = len(placed[combination]), sum(slots for _, slots in placed[combination])
                spread = nodes > -(-slots // view.cluster.largest_node_slots[gpu_type])
                worth = min(worth_spread(job_id, gpu_type) for job_id in combination) if spread else 1.0
                result[combination] = gpu_type, view.now_s, worth
        return result

    def _settle(self, view: ClusterView) -> None:
        """Book what the combinations that still exist have had since they got their slots."""
        jobs = {job.id: job for job in view.jobs}
        for combination, (gpu_type, start_s, worth) in self._running.items():
            if self._account is not None and all(job_id in jobs for job_id in combination):
                self._account.record(combination, gpu_type, worth * (view.now_s - start_s))
            pair = [jobs[job_id] for job_id in combination if job_id in jobs]
            if len(pair) == 2 and self._speeds.try_out(pair[0], pair[1]):
                self._solved_with = None  # what they keep is known now, and may not be what was expected
        self._running = {}

    def _free(self, view: ClusterView) -> dict[str, int]:
        """Usable slots by type, the dearest type first, or in random order for who cannot tell types apart."""
        types = sorted(view.cluster.type_index, key=lambda t: -view.cluster.gpu_type(t).relative_cost)
        if not self.aware:
            types = [types[i] for i in self._rng.permutation(len(types)).tolist()]
        usable = view.usable_slots_per_type()
        return {gpu_type: usable[gpu_type] for gpu_type in types}

    # --- The problem ---

    def _up_to_date(self, view: ClusterView, speeds: Mapping[str, Mapping[str, float]]) -> Account:
        """The account, with new fractions if they are due.

        ``_solved_with`` is None as long as no solver has succeeded for what is there: then they are.
        """
        gpu_types = tuple(view.cluster.type_index)
        now_for = self._present, view.usable_slots
        account = self._account
        if account is None:
            account = self._account = Account(gpu_types, 0.5 * self.round_s)
        due = self._solved_with is None or view.now_s - self._solved_s >= self.recompute_s - INSTANT_S
        due |= not any(job.allocation for job in view.jobs)
        if due and (now_for != self._solved_for or speeds != self._solved_with):
            fractions = self._fractions = self._solve(view, speeds)
            self._notes = (*fractions.notes, *self.left_out(view))
            settle = account.revise if now_for == self._solved_for else account.retarget
            settle(fractions, [job.id for job in view.jobs], view.now_s)
            failed = bool(self._unread) or any(note.reason in UNFINISHED for note in fractions.notes)
            self._solved_for, self._solved_s = now_for, view.now_s
            self._solved_with = None if failed else speeds
        else:
            for job in view.jobs:
                account.add(job.id)
        return account

    def left_out(self, view: ClusterView) -> list[Note]:
        """What the policy was asked for and cannot do here."""
        notes = []
        gpu_types = view.cluster.type_index
        if self.seen_as and self.seen_as not in gpu_types:
            text = f"option seen_as is {self.seen_as}, but must be one of {', '.join(gpu_types)}: left out"
            notes.append(Note("unknown_type", text))
        if self.packed and view.sharing is None:
            text = "nothing is known here of how fast jobs are on shared slots: everyone has its slots alone"
            notes.append(Note("no_sharing", text))
        return notes

    def _read_speeds(self, view: ClusterView) -> Mapping[str, Mapping[str, float]]:
        """Everyone's speeds; if they cannot be read, the same for all wherever they may run."""
        self._unread = ()
        try:
            return self._speeds.speeds(view.cluster, view.jobs)
        except Exception as error:
            text = f"{type(error).__name__}: {error}; all jobs are taken to be equally fast"
            self._unread = (Note("speeds_unknown", text),)
            allowed = {job.id: job.facts.throughputs or job.facts.limits or job.facts.gpu_types for job in view.jobs}
            types = view.cluster.type_index
            return {job_id: {t: 1.0 for t in types if only is None or t in only} for job_id, only in allowed.items()}

    def _solve(self, view: ClusterView, speeds: Mapping[str, Mapping[str, float]]) -> TimeFractions:
        """State the problem and solve it, or, whatever goes wrong, give everyone an equal share: rounds must go on."""
        try:
            problem = self.problem(view, speeds)
            return folded(problem, self.solve(problem))
        except Exception as error:
            self._memory.forget()
            why = Note(SOLVER_FAILED, f"{type(error).__name__}: {error}")
            problem = self._alone(view, speeds)
            return fallback(problem, lambda _: float("nan"), unrunnable(problem), why)

    def problem(self, view: ClusterView, speeds: Mapping[str, Mapping[str, float]]) -> AllocationProblem:
        """The problem as the policy sees it."""
        problem = self._alone(view, speeds)
        if self.packed and view.sharing is not None:
            problem = replace(problem, pairs=self._speeds.pairs(problem.gpu_types, view.jobs, speeds, view.sharing))
        if self.aware and self.knows_placement:
            problem = self._with_spread(problem, view)
        seen = problem if self.aware else agnostic(problem, self.seen_as)
        self._remember_isolated(seen)
        return seen

    def _alone(self, view: ClusterView, speeds: Mapping[str, Mapping[str, float]]) -> AllocationProblem:
        """The problem without pairs, and without gangs on more nodes than they need."""
        gpu_types = tuple(view.cluster.type_index)
        slots = view.usable_slots_per_type()
        throughputs = np.array([[speeds[job.id].get(t, 0.0) for t in gpu_types] for job in view.jobs])
        return AllocationProblem(
            gpu_types=gpu_types,
            slots=np.array([slots[t] for t in gpu_types], dtype=float),
            jobs=tuple(self._gang_job(job, view, speeds) for job in view.jobs),
            throughputs=throughputs.reshape(len(view.jobs), len(gpu_types)),
            costs=np.array([view.cluster.gpu_type(t).relative_cost for t in gpu_types]),
        )

    def _with_spread(self, problem: AllocationProblem, view: ClusterView) -> AllocationProblem:
        """The problem with columns for gangs on more nodes than they need, where they matter."""
        if not (problem.gangs > 1).any():
            return problem
        nodes = view.cluster.nodes_of_type
        node_slots = {t: [view.usable_slots[n] for n in nodes[t]] for t in problem.gpu_types}
        return with_spread(problem, self._spread_speeds(view, problem), node_slots)

    def _spread_speeds(self, view: ClusterView, problem: AllocationProblem) -> Array:
        """Throughputs on more nodes than needed; as on the fewest where nothing else is known."""
        relative = [
            [self._speeds.relative_when_spread(view.cluster, job, t) for t in problem.gpu_types] for job in view.jobs
        ]
        return np.asarray(problem.throughputs * np.array(relative).reshape(problem.throughputs.shape))

    def _gang_job(self, job: JobView, view: ClusterView, speeds: Mapping[str, Mapping[str, float]]) -> GangJob:
        left = _steps_left(job, view) if self.needs_oracle else 1.0
        isolated_s, before, throughput = self._isolated.get(job.id, (0.0, left, 0.0))
        if throughput > 0:
            isolated_s += max(before - left, 0.0) / throughput
        self._isolated[job.id] = isolated_s, left, throughput
        deadline_s = job.facts.deadline_s
        return GangJob(
            id=job.id,
            gang=job.facts.requested_slots,
            kind=kind_of(job, speeds),
            weight=job.facts.weight,
            arrived_s=job.facts.submitted_s,
            steps_left=left,
            elapsed_s=job.age_s(view.now_s),
            isolated_s=isolated_s,
            deadline_s=None if deadline_s is None else deadline_s - view.now_s,
            entity=self._entity(job),
        )

    def _entity(self, job: JobView) -> tuple[str, ...]:
        return tuple(job.facts.owner.split("/")) if job.facts.owner else ()

    def _remember_isolated(self, problem: AllocationProblem) -> None:
        """Keep what everyone would reach on an equal static share, to know later how long the work would have taken."""
        isolated = problem.isolated_throughput.tolist()
        self._isolated = {
            job.id: (*self._isolated[job.id][:2], throughput)
            for job, throughput in zip(problem.jobs, isolated, strict=True)
        }


def _steps_left(job: JobView, view: ClusterView) -> float:
    """Steps of the requested batch size that a job still has to make: as the oracle knows, or else as its user says.

    One where nobody knows: then all such jobs count as equally long.
    """
    facts = job.facts
    if view.oracle is not None:
        return view.oracle.remaining_iterations(job.id)
    if facts.work is None:  # progress is counted in steps then
        return 1.0 if facts.steps is None else max(facts.steps - job.progress, 0.01 * facts.steps)
    batch = facts.requested_batch or next((limits.initial for limits in facts.limits.values()), 1)
    return max(facts.work - job.progress, 0.01 * facts.work) / batch
