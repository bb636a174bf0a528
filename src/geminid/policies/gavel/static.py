"""Shares that nobody optimises: isolated and proportional."""

from __future__ import annotations

import numpy as np

from geminid.policies.gavel.level import finish, unrunnable
from geminid.policies.gavel.maxmin import smallest_share
from geminid.policies.gavel.problem import AllocationProblem, Array, TimeFractions


def isolated(problem: AllocationProblem) -> TimeFractions:
    """Every job its n-th part of every type, as if the cluster were cut up: N_j/(m·s_i), at most all of the time."""
    return _static(problem, problem.isolated_fractions)


def proportional(problem: AllocationProblem) -> TimeFractions:
    """Every job the same time, spread over the types as the slots are."""
    total, asked = float(problem.slots.sum()), float(problem.gangs[problem.runs].sum())
    time = min(1.0, total / asked) if asked > 0 else 0.0
    return _static(problem, np.tile(problem.slots / max(total, 1e-300) * time, (len(problem.jobs), 1)))


def _static(problem: AllocationProblem, fractions: Array) -> TimeFractions:
    """What lies on types that cannot run the job stays unused."""
    return finish(
        problem,
        tuple((job.id,) for job in problem.jobs),
        np.where(problem.usable > 0, fractions, 0.0),
        lambda x: smallest_share(problem, x),
        unrunnable(problem),
    )
