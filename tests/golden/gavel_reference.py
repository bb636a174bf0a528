"""The problems of Gavel's policies, written down as plainly as possible: a variable for each job or pair, and type.

Independent of the solvers under test: dense rows, no merging, scipy's ``linprog``, bisection where it is not linear.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from geminid.policies.gavel.problem import AllocationProblem

Array = NDArray[np.float64]


class Reference:
    """Rows of a problem: throughput and time of every job, slots of every type, as matrices over the variables."""

    def __init__(self, problem: AllocationProblem) -> None:
        jobs, types = len(problem.jobs), len(problem.gpu_types)
        self.problem = problem
        columns: list[tuple[list[tuple[int, float]], int]] = [
            ([(i, problem.throughputs[i, j])], j) for i in range(jobs) for j in range(types)
        ]
        if problem.pairs is not None:
            kinds, rates = problem.pairs.index, problem.pairs.rates
            for i, k in combinations(range(jobs), 2):
                if problem.jobs[i].gang == problem.jobs[k].gang:
                    a, b = kinds[problem.jobs[i].kind], kinds[problem.jobs[k].kind]
                    columns += [([(i, rates[a, b, j]), (k, rates[b, a, j])], j) for j in range(types)]
        self.throughput = np.zeros((jobs, len(columns)))
        self.time = np.zeros((jobs, len(columns)))
        self.slots = np.zeros((types, len(columns)))
        for column, (members, j) in enumerate(columns):
            for i, rate in members:
                self.throughput[i, column] = rate
                self.time[i, column] = 1.0
            self.slots[j, column] = problem.jobs[members[0][0]].gang
        self.price = np.ones(len(columns))
        if problem.costs is not None:
            self.price = np.array([problem.costs[j] for _, j in columns])

    def solve(
        self, gain: Array, at_least: Array | None = None, level: Array | None = None
    ) -> tuple[float, Array] | None:
        """Maximise gain·x + z with throughput ≥ at_least + level·z (z only with a level)."""
        rows = [np.hstack([m, np.zeros((len(m), 1))]) for m in (self.time, self.slots)]
        bounds = [np.ones(len(self.time)), self.problem.slots]
        if at_least is not None or level is not None:
            grows = np.zeros(len(self.time)) if level is None else level
            rows.append(np.hstack([-self.throughput, grows[:, None]]))
            bounds.append(-(np.zeros(len(grows)) if at_least is None else at_least))
        z = 0.0 if level is None else 1.0
        found = linprog(
            -np.append(gain, z),
            np.vstack(rows),
            np.concatenate(bounds),
            bounds=[(0, None)] * len(gain) + [(None if z else 0, None if z else 0)],
            method="highs",
        )
        return (-float(found.fun), found.x[:-1]) if found.status == 0 else None

    def max_min(self) -> float:
        """Max-min fairness: throughput of job i at least (w_i·P_i/s_i)·z."""
        problem = self.problem
        share = problem.throughputs @ problem.slots / problem.slots.sum()
        found = self.solve(np.zeros(self.throughput.shape[1]), level=problem.weights * share / problem.gangs)
        assert found is not None
        return found[0]

    def makespan_s(self) -> float:
        """Steps left over the level."""
        scale = float(self.problem.steps_left.max())
        found = self.solve(np.zeros(self.throughput.shape[1]), level=self.problem.steps_left / scale)
        assert found is not None
        return scale / found[0]

    def finish_time_fairness(self) -> float:
        """The smallest ρ for which everyone can finish within ρ times the isolated duration, by bisection."""
        problem = self.problem
        shares = problem.slots / (len(problem.jobs) * problem.gangs[:, None])
        shares /= np.maximum(1.0, shares.sum(axis=1, keepdims=True))
        isolated = (problem.throughputs * shares).sum(axis=1)
        duration = np.array([job.isolated_s for job in problem.jobs]) + problem.steps_left / isolated
        elapsed = np.array([job.elapsed_s for job in problem.jobs])

        def feasible(rho: float) -> bool:
            left = rho * duration - elapsed
            if (left <= 0).any():
                return False
            return self.solve(np.zeros(self.throughput.shape[1]), at_least=problem.steps_left / left) is not None

        return bisect(feasible, 0.0, 64.0)

    def total(self, *, by_cost: bool = False, deadlines: bool = False) -> float:
        """The largest total throughput."""
        gain = self.throughput.sum(axis=0) / (self.price if by_cost else 1.0)
        needs = np.zeros(len(self.problem.jobs))
        if deadlines:
            for i, job in enumerate(self.problem.jobs):
                needs[i] = job.steps_left / job.deadline_s if job.deadline_s is not None else 0.0
        found = self.solve(gain, at_least=needs)
        assert found is not None
        return found[0]

    def water_filling(self) -> Array:
        """Throughputs that are max-min fair all the way: raise, then ask of every job by itself if it can have more."""
        problem = self.problem
        share = problem.throughputs @ problem.slots / problem.slots.sum()
        unit = problem.weights * share / problem.gangs
        floor = np.zeros(len(unit))
        open_ = np.ones(len(unit), dtype=bool)
        nothing = np.zeros(self.throughput.shape[1])
        while open_.any():
            found = self.solve(nothing, at_least=np.where(open_, 0.0, floor), level=np.where(open_, unit, 0.0))
            assert found is not None
            floor = np.where(open_, unit * found[0], floor) * (1 - 1e-9)
            for i in np.flatnonzero(open_):
                most = self.solve(self.throughput[i], at_least=floor)
                assert most is not None
                if most[0] <= floor[i] + 1e-6 * unit[i]:
                    open_[i] = False
        return floor


def bisect(feasible: Callable[[float], bool], low: float, high: float) -> float:
    """Where it begins to be feasible."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high
