"""Minimum makespan: the shortest time T in which all jobs can end, Σ_j T_ij·x_ij ≥ R_i/T.

One program, maximising 1/T, is exact; the published code bisects T to within 5 %, and takes what its solver meets
first of the fractions that are feasible there, with which jobs end more or less together. So do jobs that are equally
fast here: their total time is in the middle of the optimal ones, and theirs in proportion to what they need.
"""

from __future__ import annotations

import numpy as np

from geminid.policies.gavel.level import solve_level
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import AllocationProblem, Mask, TimeFractions
from geminid.policies.gavel.program import Choice
from geminid.policies.gavel.requirement import Affine
from geminid.solve.lp import Allowance


def min_makespan(
    problem: AllocationProblem,
    *,
    choice: Choice = "vertex",
    merged: bool = True,
    memory: Memory | None = None,
    within: Allowance | None = None,
) -> TimeFractions:
    """Fractions with which the last job ends as early as possible, if none arrives."""

    def requirement(runs: Mask) -> Affine:
        work_s = np.divide(
            problem.steps_left, problem.reference_throughput, out=np.zeros(len(problem.jobs)), where=runs
        )
        longest_s = float(work_s.max(initial=0.0))
        return Affine(np.zeros(len(work_s)), work_s / longest_s if longest_s > 0 else work_s)

    return solve_level(
        problem,
        requirement,
        lambda x: makespan_s(problem, x),
        choice=choice,
        merged=merged,
        memory=memory,
        within=within,
        in_step=True,
    )


def makespan_s(problem: AllocationProblem, fractions: TimeFractions) -> float:
    """The objective: when the last job that can run would end."""
    speed = fractions.effective_throughput(problem)
    left = problem.runs & (problem.steps_left > 0)
    return float(
        np.divide(
            problem.steps_left[left], speed[left], out=np.full(int(left.sum()), np.inf), where=speed[left] > 0
        ).max(initial=0.0)
    )
