"""Objectives of Gavel's problems: the published ones, and those of an independent, plain formulation."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from gavel_reference import Reference

from geminid.bench import gavel
from geminid.bench.policies import GPU_TYPES, problem_of, published_input
from geminid.policies.gavel.finish_time import finish_time_fairness
from geminid.policies.gavel.makespan import min_makespan
from geminid.policies.gavel.maxmin import max_min_fairness
from geminid.policies.gavel.problem import AllocationProblem
from geminid.policies.gavel.throughput import max_total_throughput
from geminid.policies.gavel.waterfill import water_filling
from geminid.sim.profiles.gavel import load_throughputs
from requirements import PEERS

pytestmark = pytest.mark.needs_peers(gavel.TABLE)

#: To this, relatively, objectives must agree.
CLOSE = 1e-4
PRICES = np.array([0.74, 0.43, 0.135])


def _published() -> list[tuple[str, int, float]]:
    path = PEERS / "gavel" / "results" / "solve_time.csv"
    if not path.exists():
        return [("none", 0, 0.0)]
    wanted = ("max_min_fairness_perf", "max_min_fairness_packed")
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] in wanted and row["solver"] == "ECOS"]
    return [(row["policy"], int(row["active_jobs"]), float(row["min_norm_tput"])) for row in rows]


@pytest.mark.parametrize(("policy", "jobs", "expected"), _published())
def test_published_optima(policy: str, jobs: int, expected: float) -> None:
    problem = published_input(PEERS, jobs)
    if not policy.endswith("packed"):
        problem = replace(problem, pairs=None)
    assert max_min_fairness(problem).objective == pytest.approx(expected, abs=CLOSE)


def _trace(name: str, first: int, jobs: int, *, pairs: bool) -> AllocationProblem:
    """Jobs of a trace with 1, 2 and 4 GPUs, some way into their work, a sixth of the traces' cluster."""
    trace = gavel.workload_of(PEERS, name).jobs[first : first + jobs]
    problem = problem_of(load_throughputs(PEERS / gavel.TABLE), trace, GPU_TYPES, np.array([4.0, 5.0, 6.0]))
    rng = np.random.default_rng(first)
    made = tuple(
        replace(
            job,
            weight=float(rng.integers(1, 4)),
            elapsed_s=float(rng.uniform(0, 20_000)),
            isolated_s=float(rng.uniform(0, 20_000)),
        )
        for job in problem.jobs
    )
    return replace(problem, jobs=made, costs=PRICES, pairs=problem.pairs if pairs else None)


CASES = [("A", 0, 14), ("A", 40, 14), ("B", 10, 14)]


@pytest.mark.parametrize("pairs", [False, True], ids=["alone", "packed"])
@pytest.mark.parametrize(("trace", "first", "jobs"), CASES)
def test_objectives_equal_a_plain_formulation(trace: str, first: int, jobs: int, pairs: bool) -> None:
    problem = _trace(trace, first, jobs, pairs=pairs)
    reference = Reference(problem)
    assert max_min_fairness(problem).objective == pytest.approx(reference.max_min(), rel=CLOSE)
    assert min_makespan(problem).objective == pytest.approx(reference.makespan_s(), rel=CLOSE)
    assert finish_time_fairness(problem).objective == pytest.approx(reference.finish_time_fairness(), rel=CLOSE)
    assert max_total_throughput(problem).objective == pytest.approx(reference.total(), rel=CLOSE)
    assert max_total_throughput(problem, by_cost=True).objective == pytest.approx(
        reference.total(by_cost=True), rel=CLOSE
    )


@pytest.mark.parametrize("pairs", [False, True], ids=["alone", "packed"])
def test_deadlines_equal_a_plain_formulation(pairs: bool) -> None:
    problem = _trace("A", 0, 12, pairs=pairs)
    # Every third job must be done in twice the time of the fair share.
    fair_s = problem.steps_left / max_min_fairness(problem).effective_throughput(problem)
    made = tuple(
        replace(job, deadline_s=2.0 * float(fair_s[i]) if i % 3 == 0 else None) for i, job in enumerate(problem.jobs)
    )
    problem = replace(problem, jobs=made)
    answer = max_total_throughput(problem, deadlines=True)
    assert answer.notes == ()
    assert answer.objective == pytest.approx(Reference(problem).total(deadlines=True), rel=CLOSE)


@pytest.mark.parametrize("pairs", [False, True], ids=["alone", "packed"])
def test_water_filling_reaches_the_same_throughputs_job_by_job(pairs: bool) -> None:
    # The throughputs (not the fractions) of a max-min fair allocation are unique.
    problem = _trace("A", 20, 9, pairs=pairs)
    reached = water_filling(problem).effective_throughput(problem)
    np.testing.assert_allclose(reached, Reference(problem).water_filling(), rtol=CLOSE)
