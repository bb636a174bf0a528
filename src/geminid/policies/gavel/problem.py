"""The question that every policy over time fractions answers, and its answer.

An :class:`AllocationProblem` says how fast each job trains on each GPU type, alone and beside others; a solver answers
with :class:`TimeFractions`: which fraction of the time each job, or pair of jobs, should hold each type. A solver is a
callable from the one to the other. It never raises on a well-formed problem: what it could not honour is in the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Smallest weight; smaller ones are raised to it, because programs cannot distinguish tiny shares from rounding.
LEAST_WEIGHT = 1e-3

#: Largest weight; larger ones are lowered to it.
MOST_WEIGHT = 1e3

#: One or two jobs that hold the same slots.
Combination = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangJob:
    """A job that runs on exactly ``gang`` slots of one GPU type at a time, all or none.

    ``kind`` names what trains, such as a model with its batch size and gang: pair throughputs are looked up by it.
    ``elapsed_s`` counts from the submission, ``isolated_s`` is how long the work done so far would have taken on an
    equal static share. ``deadline_s`` is counted from now. ``entity`` is the path in a hierarchy, the outermost first.
    Jobs are served in the order of ``arrived_s`` where an order matters.
    """

    id: str
    gang: int = 1
    kind: Hashable = None
    weight: float = 1.0
    arrived_s: float = 0.0
    steps_left: float = 1.0
    elapsed_s: float = 0.0
    isolated_s: float = 0.0
    deadline_s: float | None = None
    entity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairThroughputs:
    """Steps per second of a job of one kind while it shares its slots with a job of another.

    ``rates[a, b, j]`` belongs to kind a beside kind b on GPU type j; 0 on either side means that they cannot share it.
    Only jobs of equal gang are paired. Rates that are no finite numbers count as 0.
    """

    kinds: tuple[Hashable, ...]
    rates: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", np.nan_to_num(self.rates, nan=0.0, posinf=0.0, neginf=0.0))

    @property
    def index(self) -> Mapping[Hashable, int]:
        """Where each kind stands."""
        return {kind: i for i, kind in enumerate(self.kinds)}


@dataclass(frozen=True, slots=True)
class Limit:
    """The most gangs of a size that can have a column at once."""

    column: int
    gang: int
    most: float


@dataclass(frozen=True)
class AllocationProblem:
    """Jobs, slots per GPU type, and steps per second of every whole gang on every type (0: cannot run there).

    ``pairs`` allows space sharing. ``costs`` are prices per slot and hour, by type. ``reference`` replaces the
    throughput that a job's own is measured against (see ``reference_throughput``). Where it matters whether gangs stand
    on as few nodes as possible, there is a second column of each type for those that do not (see ``placement.py``):
    ``uses`` is the column whose slots a column takes, ``limits`` say how many whole gangs there is room for.
    """

    gpu_types: tuple[str, ...]
    slots: Array
    jobs: tuple[GangJob, ...]
    throughputs: Array
    pairs: PairThroughputs | None = None
    costs: Array | None = None
    reference: Array | None = None
    uses: tuple[int, ...] | None = None
    limits: tuple[Limit, ...] = ()

    @cached_property
    def gangs(self) -> Array:
        """Slots of each job."""
        return np.array([job.gang for job in self.jobs], dtype=float)

    @cached_property
    def weights(self) -> Array:
        """Weight of each job, within bounds."""
        return bounded_weights([job.weight for job in self.jobs])

    @cached_property
    def steps_left(self) -> Array:
        """Steps that each job still has to make."""
        return np.array([job.steps_left for job in self.jobs], dtype=float)

    @cached_property
    def usable(self) -> Array:
        """Throughputs with 0 also where a type has fewer slots than the job's gang, or they are no finite numbers."""
        able = (self.gangs[:, None] <= self.slots) & np.isfinite(self.throughputs) & (self.throughputs > 0)
        return np.where(able, self.throughputs, 0.0)

    @cached_property
    def runs(self) -> Mask:
        """Which jobs some GPU type can run."""
        return np.asarray((self.usable > 0).any(axis=1))

    @cached_property
    def reference_throughput(self) -> Array:
        """P_i, what the job would reach if it spent on each type the time that the type has of all slots."""
        if self.reference is not None:
            return self.reference
        total = self.slots.sum()
        return self.usable @ self.slots / total if total > 0 else np.zeros(len(self.jobs))

    @cached_property
    def isolated_fractions(self) -> Array:
        """A static equal share of every type: N_j/(m·s_i), rows cut down to one where they sum to more.

        m are the jobs that some type can run: what others would have is nobody's.
        """
        slots = self.slots if self.uses is None else np.where(np.arange(len(self.uses)) == self.uses, self.slots, 0.0)
        shares = slots / (max(int(self.runs.sum()), 1) * self.gangs[:, None])
        return np.asarray(shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True)))

    @cached_property
    def isolated_throughput(self) -> Array:
        """What each job reaches on its static equal share."""
        return np.asarray((self.usable * self.isolated_fractions).sum(axis=1))


def bounded_weights(weights: Iterable[float]) -> Array:
    """Weights that solvers can tell apart: as given between bounds, 1 where it is not a number."""
    given = np.array(list(weights), dtype=float)
    return np.clip(np.where(np.isnan(given), 1.0, given), LEAST_WEIGHT, MOST_WEIGHT)


def agnostic(problem: AllocationProblem, seen_as: str = "") -> AllocationProblem:
    """The same problem as seen by who cannot tell GPU types apart: every type as fast as the job's fastest.

    Or as fast as the type that it is ``seen_as``, for jobs that run there. Types that cannot run a job at all are
    still avoided, and nothing is known of pairs or prices.
    """
    fastest = problem.usable.max(axis=1, initial=0.0)
    if seen_as in problem.gpu_types:
        there = problem.usable[:, problem.gpu_types.index(seen_as)]
        fastest = np.where(there > 0, there, fastest)
    throughputs = np.where(problem.usable > 0, fastest[:, None], 0.0)
    return replace(problem, throughputs=throughputs, pairs=None, costs=None, reference=fastest)


#: Reason of a note: no solution was found, or not the best; what was taken instead is in its text.
SOLVER_FAILED = "solver_failed"

#: The same, because there was no more time for it.
OUT_OF_TIME = "out_of_time"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a solver could not honour, and what it did instead.

    ``reason`` is a fixed word for programs: ``no_type_runs`` (no GPU type can run the job), ``infeasible_slo``,
    ``solver_failed``, ``out_of_time``, …. A note without jobs concerns all of them.
    """

    reason: str
    text: str
    jobs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}"


@dataclass(frozen=True)
class TimeFractions:
    """The fraction of time that each combination of jobs should hold each GPU type.

    A row of ``fractions`` belongs to a combination, a column to a GPU type. ``objective`` is the policy's own, computed
    from these fractions.
    """

    gpu_types: tuple[str, ...]
    combinations: tuple[Combination, ...]
    fractions: Array
    objective: float = float("nan")
    notes: tuple[Note, ...] = field(default=())

    def by_job(self, problem: AllocationProblem) -> Array:
        """Time of each job on each type, alone or shared (jobs × types)."""
        rows = {job.id: i for i, job in enumerate(problem.jobs)}
        result = np.zeros((len(rows), len(self.gpu_types)))
        for member in (0, 1):
            chosen, index = _members(self.combinations, member, rows)
            np.add.at(result, index, self.fractions[chosen])
        return result

    def effective_throughput(self, problem: AllocationProblem) -> Array:
        """Steps per second of each job, averaged over time."""
        rows = {job.id: i for i, job in enumerate(problem.jobs)}
        result = np.zeros(len(rows))
        alone = np.array([len(c) == 1 for c in self.combinations], dtype=bool)
        if alone.any():
            index = np.array([rows[c[0]] for c in self.combinations if len(c) == 1])
            np.add.at(result, index, (problem.usable[index] * self.fractions[alone]).sum(axis=1))
        if problem.pairs is not None and not alone.all():
            kinds = problem.pairs.index
            kind_of = [kinds.get(job.kind, -1) for job in problem.jobs]
            first = np.array([rows[c[0]] for c in self.combinations if len(c) == 2])
            second = np.array([rows[c[1]] for c in self.combinations if len(c) == 2])
            kind = np.array(kind_of)
            time = self.fractions[~alone]
            np.add.at(result, first, (problem.pairs.rates[kind[first], kind[second]] * time).sum(axis=1))
            np.add.at(result, second, (problem.pairs.rates[kind[second], kind[first]] * time).sum(axis=1))
        return result

    def slots_used(self, problem: AllocationProblem) -> Array:
        """Slots of each type in use, averaged over time (none in columns that take another's)."""
        gang = {job.id: job.gang for job in problem.jobs}
        sizes = np.array([gang[c[0]] for c in self.combinations], dtype=float)
        used = np.asarray(sizes @ self.fractions) if len(sizes) else np.zeros(len(self.gpu_types))
        return used if problem.uses is None else np.bincount(problem.uses, used, minlength=len(used)).astype(float)


#: What each policy brings: a callable from the problem to the time fractions.
Solver = Callable[[AllocationProblem], TimeFractions]


def single_fractions(
    problem: AllocationProblem, fractions: Array, objective: float, notes: Iterable[Note] = ()
) -> TimeFractions:
    """An answer in which every job runs alone, from a row per job."""
    return TimeFractions(
        problem.gpu_types, tuple((job.id,) for job in problem.jobs), fractions, objective, tuple(notes)
    )


def _members(
    combinations: tuple[Combination, ...], member: int, rows: Mapping[str, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which combinations have such a member, and the row of the job that it is."""
    chosen = np.array([i for i, c in enumerate(combinations) if len(c) > member], dtype=np.int64)
    return chosen, np.array([rows[combinations[i][member]] for i in chosen.tolist()], dtype=np.int64)
