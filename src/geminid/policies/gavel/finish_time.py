"""Finish-time fairness (Themis' objective): minimise the largest ρ_i over jobs.

ρ_i = (t_i + R_i/Σ_j T_ij·x_ij) / (C_i + R_i/T_iso,i): how long the job will have taken in all, against a static equal
share. A bound ρ asks of job i a throughput of R_i/(ρ·D_i − t_i), D_i the denominator, which is convex in ρ: tangents
and a linear program find the exact optimum. (The published code hands the ratios to a general conic solver.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geminid.policies.gavel.groups import Ints
from geminid.policies.gavel.level import solve_level
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import AllocationProblem, Array, Mask, TimeFractions
from geminid.policies.gavel.program import Choice
from geminid.solve.lp import Allowance


@dataclass(frozen=True, slots=True)
class FinishBy:
    """Needs at level −ρ: finish within ρ times the isolated duration. Times are in units of ``work_s``.

    ``work_s`` is what is left at the reference throughput; jobs without work left need nothing.
    """

    elapsed_s: Array
    isolated_s: Array
    work_s: Array

    def highest(self, best: Array) -> float:
        """−ρ of the job that cannot be helped, were it to run at its best all the time."""
        left = self.work_s > 0
        soonest_s = self.elapsed_s[left] + self.work_s[left] / best[left]
        return -float((soonest_s / self.isolated_s[left]).max(initial=-np.inf))

    def at(self, level: float) -> tuple[Array, Array]:
        """The throughput with which each job just makes it."""
        left = self.work_s > 0
        isolated_s = np.where(left, self.isolated_s, 1.0)
        time_s = np.where(left, -level * isolated_s - self.elapsed_s, 1.0)
        need = self.work_s / time_s
        return need, need * isolated_s / time_s

    def bend(self, level: float) -> Array:
        """Needs are hyperbolas in ρ."""
        left = self.work_s > 0
        isolated_s = np.where(left, self.isolated_s, 1.0)
        time_s = np.where(left, -level * isolated_s - self.elapsed_s, 1.0)
        return np.asarray(2.0 * self.work_s * isolated_s**2 / time_s**3)

    def parameters(self) -> Array:
        """The three times of each job."""
        return np.column_stack([self.elapsed_s, self.isolated_s, self.work_s])

    def of(self, jobs: Ints) -> FinishBy:
        """The same for some of the jobs only."""
        return FinishBy(self.elapsed_s[jobs], self.isolated_s[jobs], self.work_s[jobs])


def finish_time_fairness(
    problem: AllocationProblem,
    *,
    choice: Choice = "vertex",
    merged: bool = True,
    memory: Memory | None = None,
    within: Allowance | None = None,
) -> TimeFractions:
    """Fractions with the smallest largest ρ."""

    def requirement(runs: Mask) -> FinishBy:
        work_s = np.divide(
            problem.steps_left, problem.reference_throughput, out=np.zeros(len(problem.jobs)), where=runs
        )
        return FinishBy(_elapsed(problem), isolated_duration_s(problem), work_s)

    return solve_level(
        problem,
        requirement,
        lambda x: worst_rho(problem, x),
        choice=choice,
        merged=merged,
        memory=memory,
        within=within,
    )


def isolated_duration_s(problem: AllocationProblem) -> Array:
    """How long each job takes in all on a static equal share; infinite where no type runs it."""
    speed = problem.isolated_throughput
    left_s = np.divide(problem.steps_left, speed, out=np.full(len(speed), np.inf), where=speed > 0)
    return np.asarray([job.isolated_s for job in problem.jobs] + left_s)


def rhos(problem: AllocationProblem, fractions: TimeFractions) -> Array:
    """ρ of each job; not a number where no type runs it or nothing is left to do."""
    speed = fractions.effective_throughput(problem)
    left_s = np.divide(problem.steps_left, speed, out=np.full(len(speed), np.inf), where=speed > 0)
    left = problem.runs & (problem.steps_left > 0)
    result = np.full(len(speed), np.nan)
    result[left] = (_elapsed(problem) + left_s)[left] / isolated_duration_s(problem)[left]
    return result


def worst_rho(problem: AllocationProblem, fractions: TimeFractions) -> float:
    """The objective: the largest ρ."""
    values = rhos(problem, fractions)
    return float(np.max(values[~np.isnan(values)], initial=0.0))


def _elapsed(problem: AllocationProblem) -> Array:
    return np.array([job.elapsed_s for job in problem.jobs])
