"""Max-min fairness over effective throughput (least attained service, generalised).

Maximise the smallest (s_i/(w_i·P_i))·Σ_j T_ij·x_ij over jobs, where P_i is the throughput of an equal share of all
slots. Unaware of GPU types, all T are alike and every job gets the same time, weighted and per slot.
"""

from __future__ import annotations

import numpy as np

from geminid.policies.gavel.level import solve_level
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import AllocationProblem, Array, Mask, TimeFractions
from geminid.policies.gavel.program import Choice
from geminid.policies.gavel.requirement import Affine
from geminid.solve.lp import Allowance


def max_min_fairness(
    problem: AllocationProblem,
    *,
    choice: Choice = "vertex",
    merged: bool = True,
    memory: Memory | None = None,
    within: Allowance | None = None,
) -> TimeFractions:
    """The fairest fractions; space sharing is used where the problem has pair throughputs."""

    def requirement(runs: Mask) -> Affine:
        return Affine(np.zeros(len(problem.jobs)), np.where(runs, problem.weights / problem.gangs, 0.0))

    return solve_level(
        problem,
        requirement,
        lambda x: smallest_share(problem, x),
        choice=choice,
        merged=merged,
        memory=memory,
        within=within,
    )


def normalised_shares(problem: AllocationProblem, fractions: TimeFractions) -> Array:
    """(s_i/(w_i·P_i))·effective throughput of each job; not a number where no type runs it."""
    reference = problem.reference_throughput
    scale = np.divide(
        problem.gangs, problem.weights * reference, out=np.full(len(reference), np.nan), where=reference > 0
    )
    return np.asarray(scale * fractions.effective_throughput(problem))


def smallest_share(problem: AllocationProblem, fractions: TimeFractions) -> float:
    """The objective: the smallest normalised share of a job that can run."""
    shares = normalised_shares(problem, fractions)
    return float(np.min(shares[np.isfinite(shares)], initial=np.inf))
