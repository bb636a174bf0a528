"""Max-min fairness all the way up, by water filling; flat or over a hierarchy of entities.

Raise all jobs together until some cannot be raised without lowering another; those keep what they have, the others
are raised on. In a hierarchy an entity's weight is shared out among its members that can still be raised: in
proportion to their weights ("fairness"), or all of it to the first to arrive ("fifo"), level by level.

Which jobs are held is read from the dual values of the raising program: a requirement with a positive one is tight in
every optimal solution, so its jobs cannot have more. (The published code asks an integer program with tolerances.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from geminid.policies.gavel.groups import Groups, Ints
from geminid.policies.gavel.handout import Totals, shared_out
from geminid.policies.gavel.level import finish, next_best, no_optimum, unrunnable
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import AllocationProblem, Array, Mask, Note, TimeFractions, bounded_weights
from geminid.policies.gavel.program import Raised, TimeProgram
from geminid.policies.gavel.requirement import Affine
from geminid.solve.lp import Allowance

Order = Literal["fairness", "fifo"]

#: What a job has is asked for again in later rounds less this part, so that rounding cannot make it impossible.
SLACK = 1e-7

#: A level or a gain up to this is none.
NO_GAIN = 1e-6

#: Rounds limited only by the jobs' own best rates after which the length of such a series is computed at once.
PATIENCE = 3

#: With more tangents than this for every group and pool the program starts again: those of earlier rounds slow it down.
TANGENTS = 2

#: Weights of jobs in a round of filling, given which can still be raised.
Weights = Callable[[Mask], Array]


@dataclass(frozen=True, slots=True)
class Entity:
    """A node of the hierarchy: its weight among its siblings, and how its own members share."""

    weight: float = 1.0
    within: Order = "fairness"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Entities by their path, the outermost first; () is the whole cluster. What is not named is an ``Entity()``."""

    entities: Mapping[tuple[str, ...], Entity] = field(default_factory=dict)

    def weights(self, problem: AllocationProblem) -> Weights:
        """How the weight of the cluster is shared out, level by level, among the jobs that can still be raised."""
        tree = _Tree.of(self, problem)
        return lambda open_: tree.share(open_)


def water_filling(
    problem: AllocationProblem,
    *,
    hierarchy: Hierarchy | None = None,
    merged: bool = True,
    memory: Memory | None = None,
    within: Allowance | None = None,
) -> TimeFractions:
    """The fractions that are max-min fair at every level; the objective is the level of the least served."""
    weights: Weights = hierarchy.weights(problem) if hierarchy is not None else lambda _: problem.weights
    time = Allowance() if within is None else within
    labels: list[Hashable] = [0] * len(problem.jobs) if merged else list(range(len(problem.jobs)))
    level = 0.0
    failure: list[Note] = []

    def solutions(groups: Groups) -> Iterator[Totals]:
        nonlocal level
        filled, notes = _fill(problem, groups, weights, memory, time)
        failure[:] = notes
        if filled is not None:
            level = filled.level
            yield Totals(filled.values, filled.need)

    found = shared_out(problem, solutions, labels)
    if found is None:
        slope = np.where(problem.runs, weights(problem.runs) / problem.gangs, 0.0)
        first = Affine(np.zeros(len(slope)), slope / max(float(slope.max(initial=0.0)), 1e-300))
        return next_best(problem, first, lambda _: 0.0, unrunnable(problem), failure[0], time)
    combinations, fractions, _ = found
    return finish(problem, combinations, fractions, lambda _: level, [*unrunnable(problem), *failure])


def _fill(
    problem: AllocationProblem, groups: Groups, weights: Weights, memory: Memory | None, within: Allowance
) -> tuple[Raised | None, list[Note]]:
    """Raise until nobody can be raised; the level is that at which the first job is held.

    If the solver gives up, what has been reached by then, if anything, and a note.
    """
    filling = _Filling(groups, memory, within)
    have = np.zeros(len(problem.jobs))
    open_ = problem.runs.copy()
    first: float | None = None
    alone = 0
    result = Raised(0.0, np.zeros(len(groups.first)), have, ~open_)
    while open_.any():
        slope = np.where(open_, weights(open_) / problem.gangs, 0.0)
        top = float(slope.max())
        if top <= 0:
            break
        raised = filling.raise_level(have, slope / top, near=0.0 if first is not None else None)
        if raised is None:
            if first is None:
                return None, [no_optimum(filling.program.outcome, within)]
            text = "not everyone was raised as far as possible"
            return result, [no_optimum(filling.program.outcome, within, text)]
        first = raised.level / top if first is None else first
        have = filling.reached
        open_ &= ~raised.tight
        if raised.level <= NO_GAIN:
            open_ &= filling.raisable(have, open_)
        alone = alone + 1 if (have >= filling.best * (1 - NO_GAIN))[raised.tight].all() else 0
        if alone >= PATIENCE:  # nobody has been in anybody's way for some time
            alone = 0
            have, open_ = filling.skip_ahead(have, open_, lambda now: weights(now) / problem.gangs)
        result = Raised(first, raised.values, have, ~open_)
        if not raised.tight.any():
            break
    if not np.array_equal(result.need, filling.reached):  # skipped to the end: the times that reach it
        final = filling.raise_level(have, np.where(have > 0, 1.0, 0.0), near=0.0)
        if final is not None:
            result = Raised(result.level, final.values, have, result.tight)
    return result, []


class _Filling:
    """The program of all rounds, and the fastest that each job can be."""

    def __init__(self, groups: Groups, memory: Memory | None, within: Allowance) -> None:
        self.groups, self._within = groups, within
        self.program = TimeProgram(groups, memory, within)
        self.best = self.program.best
        self.reached = np.zeros(len(self.best))
        self._most = 64 + TANGENTS * len(groups.members) * (1 + len(groups.pools))

    def raise_level(self, have: Array, slope: Array, near: float | None) -> Raised | None:
        """Everyone keeps what it has and is raised by its slope; ``reached`` is what everyone has then.

        Those who are raised take up what the others have been asked for less, and rounding adds up: where that makes it
        impossible, everyone gives up a little for good, so that it does not happen again in every later round.
        """
        for slack in (0.0, SLACK, SLACK, 10 * SLACK):
            have = _relaxed(have, slack)
            if self.program.tangents > self._most:
                self.program = self._anew()
            raised = self.program.raise_level(Affine(_relaxed(have), slope), near=near)
            if raised is not None:
                self.reached = np.maximum(have, raised.need)
                return raised
            if self._within.over:
                return None
            self.program = self._anew()
        return None

    def _anew(self) -> TimeProgram:
        """The program without its tangents, with the columns that it has."""
        return TimeProgram(self.groups, None, self._within, self.program.columns)

    def skip_ahead(self, have: Array, open_: Mask, weights: Weights) -> tuple[Array, Mask]:
        """Go as far as jobs are held by nothing but their own best rate, in steps that grow and then halve.

        The rates after this many such rounds need no program; whether it is possible needs one.
        """
        path = [(have, open_)]

        def after(rounds: int) -> tuple[Array, Mask]:
            while len(path) <= rounds and path[-1][1].any():
                path.append(self._round_alone(*path[-1], weights))
            return path[min(rounds, len(path) - 1)]

        possible, impossible, stride = 0, 1 << 30, 1
        while impossible - possible > 1:
            trial = possible + stride if impossible == 1 << 30 else (possible + impossible) // 2
            needs, _ = after(trial)
            trial = min(trial, len(path) - 1)
            if trial <= possible:
                break
            raised = self.program.raise_level(
                Affine(np.zeros(len(needs)), needs / needs.max()), near=float(needs.max())
            )
            if raised is not None and raised.level >= needs.max() * (1 - SLACK):
                possible, stride = trial, 2 * stride
            else:
                impossible = trial
        return path[possible]

    def _round_alone(self, have: Array, open_: Mask, weights: Weights) -> tuple[Array, Mask]:
        """A round that ends when the first job has its best rate."""
        slope = np.where(open_, weights(open_), 0.0)
        rising = slope > 0
        if not rising.any():
            return have, np.zeros_like(open_)
        by = float(((self.best - have)[rising] / slope[rising]).min())
        now = have + slope * by
        held = rising & (now >= self.best * (1 - 1e-12))
        return np.where(held, self.best, now), open_ & ~held

    def raisable(self, have: Array, open_: Mask) -> Mask:
        """Open jobs of groups that can have more in all; of the others it is certain that they cannot."""
        groups = self.groups
        count = len(groups.members)
        candidates = np.zeros(count, dtype=bool)
        candidates[groups.group_of[open_]] = True
        total = np.bincount(groups.group_of, have, minlength=count)
        made = groups.use_time * groups.use_rate
        can = np.zeros(count, dtype=bool)
        program = self._anew()
        while candidates.any():
            use = candidates[groups.use_group]
            gain = np.zeros(len(groups.first))
            np.add.at(gain, groups.use_column[use], made[use])
            values = program.maximise(gain, _relaxed(have))
            if values is None:
                break
            reached = np.bincount(groups.use_group, made * values[groups.use_column], minlength=count)
            more = candidates & (reached > total * (1 + NO_GAIN) + NO_GAIN)
            if not more.any():
                break
            can |= more
            candidates &= ~more
        return np.asarray(can[groups.group_of])


def _relaxed(have: Array, slack: float = SLACK) -> Array:
    return np.maximum(have * (1 - slack) - 0.1 * slack, 0.0)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The hierarchy as arrays: nodes with parents before children, jobs with the node they belong to."""

    parent: Ints
    weight: Array
    fifo: Mask
    node_of_job: Ints
    job_weight: Array
    order: Ints

    @classmethod
    def of(cls, hierarchy: Hierarchy, problem: AllocationProblem) -> _Tree:
        paths: dict[tuple[str, ...], int] = {(): 0}
        parent = [-1]
        for job in problem.jobs:
            for depth in range(1, len(job.entity) + 1):
                path = job.entity[:depth]
                if path not in paths:
                    paths[path] = len(paths)
                    parent.append(paths[path[:-1]])
        entities = [hierarchy.entities.get(path, Entity()) for path in paths]
        arrived = np.array([job.arrived_s for job in problem.jobs])
        rank = np.empty(len(arrived), dtype=np.int64)
        rank[np.argsort(arrived, kind="stable")] = np.arange(len(arrived))
        return cls(
            np.array(parent),
            bounded_weights(entity.weight for entity in entities),
            np.array([entity.within == "fifo" for entity in entities]),
            np.array([paths[job.entity] for job in problem.jobs], dtype=np.int64),
            problem.weights,
            rank,
        )

    def share(self, open_: Mask) -> Array:
        """Weight of each job: 1 in all, divided from the root down among the nodes and jobs that are open.

        A node's jobs and its entities are its members alike. Under "fifo" the member with the earliest open job has
        everything.
        """
        nodes = len(self.parent)
        nobody = len(open_)
        earliest = np.full(nodes, nobody)
        jobs = np.flatnonzero(open_)
        np.minimum.at(earliest, self.node_of_job[jobs], self.order[jobs])
        for node in range(nodes - 1, 0, -1):
            earliest[self.parent[node]] = min(earliest[self.parent[node]], earliest[node])
        claims = np.bincount(self.node_of_job[jobs], self.job_weight[jobs], minlength=nodes)
        for node in range(1, nodes):
            if earliest[node] < nobody:
                claims[self.parent[node]] += self.weight[node]
        share = np.zeros(nodes)
        share[0] = 1.0
        for node in range(1, nodes):
            above = self.parent[node]
            if earliest[node] == nobody:
                continue
            if self.fifo[above]:
                share[node] = share[above] if earliest[node] == earliest[above] else 0.0
            else:
                share[node] = share[above] * self.weight[node] / claims[above]
        result = np.zeros(len(open_))
        home = self.node_of_job[jobs]
        by_order = np.where(self.order[jobs] == earliest[home], 1.0, 0.0)
        by_weight = self.job_weight[jobs] / claims[home]
        result[jobs] = share[home] * np.where(self.fifo[home], by_order, by_weight)
        return result
