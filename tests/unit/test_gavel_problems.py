"""Small problems whose best time fractions are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from geminid.policies.gavel.maxmin import max_min_fairness, normalised_shares
from geminid.policies.gavel.problem import AllocationProblem, GangJob, PairThroughputs, agnostic


def _problem(throughputs: list[list[float]], slots: list[float], **jobs: list[float]) -> AllocationProblem:
    values = np.array(throughputs, dtype=float)
    made = tuple(
        GangJob(id="abcdefgh"[i], kind=i, **{name: column[i] for name, column in jobs.items()})
        for i in range(len(values))
    )
    return AllocationProblem(tuple(f"type-{j}" for j in range(len(slots))), np.array(slots, dtype=float), made, values)


def test_weighted_fairness_of_two_jobs_on_two_types() -> None:
    # Job a makes 6 or 1 steps/s, job b (twice the weight) 2 or 1; one slot of each type. Both run all the time, a on
    # the fast type for u of it: (6u + 1 − u)/3.5 = (2 − u)/(2·1.5) gives u = 8/37, and shares of 22/37.
    problem = _problem([[6, 1], [2, 1]], [1, 1], weight=[1, 2])
    answer = max_min_fairness(problem)
    u = 8 / 37
    np.testing.assert_allclose(answer.by_job(problem), [[u, 1 - u], [1 - u, u]], atol=1e-6)
    assert answer.objective == pytest.approx(22 / 37)


def test_gangs_share_slots_not_jobs() -> None:
    # One type of 2 slots; a wants both at a time, b and c one each. Equal slot-time: 2/3 of a slot for each.
    problem = _problem([[1], [1], [1]], [2], gang=[2, 1, 1])
    answer = max_min_fairness(problem)
    np.testing.assert_allclose(answer.by_job(problem)[:, 0], [1 / 3, 2 / 3, 2 / 3], atol=1e-6)


def test_agnostic_fairness_spreads_every_job_over_the_types() -> None:
    # 3 slots for four equal jobs: 3/4 of the time each, two thirds of it on the type that has two of the slots.
    problem = _problem([[9, 1], [2, 1], [5, 4], [1, 1]], [2, 1], weight=[1, 1, 1, 1])
    answer = max_min_fairness(agnostic(problem))
    np.testing.assert_allclose(answer.by_job(problem), np.tile([0.5, 0.25], (4, 1)), atol=1e-6)


def test_a_pair_that_loses_little_shares_all_the_time() -> None:
    # One slot; together each runs at 80 %, taking turns at 50 %.
    rates = np.zeros((2, 2, 1))
    rates[0, 1], rates[1, 0] = 0.8 * 4, 0.8 * 2
    alone = _problem([[4], [2]], [1])
    problem = AllocationProblem(
        alone.gpu_types, alone.slots, alone.jobs, alone.throughputs, PairThroughputs((0, 1), rates)
    )
    answer = max_min_fairness(problem)
    assert answer.combinations == (("a", "b"),)
    np.testing.assert_allclose(answer.fractions, [[1.0]], atol=1e-6)
    np.testing.assert_allclose(normalised_shares(problem, answer), 0.8, atol=1e-6)


def test_a_job_that_nothing_can_run_is_named_and_harms_nobody() -> None:
    problem = _problem([[0, 0], [1, 1]], [1, 1])
    answer = max_min_fairness(problem)
    assert [(note.reason, note.jobs) for note in answer.notes] == [("no_type_runs", ("a",))]
    assert answer.objective == pytest.approx(1.0)
