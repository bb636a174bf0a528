"""Shockwave: a window of rounds is planned for progress, the longest time left and finish-time fairness."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.cluster import Cluster
from geminid.policies.base import ClusterView, JobFacts, JobView
from geminid.policies.shockwave import BENDS, LOG_AT_BENDS, FairFinish, Outlook, Shockwave, plan_window
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload


def outlook(slots: list[int], done_s: list[float], left_s: list[float]) -> Outlook:
    count = len(slots)
    return Outlook(np.array(slots), np.array(done_s), np.array(left_s), np.ones(count), np.zeros(count, dtype=np.int64))


def worth(jobs: Outlook, rounds: tuple[int, ...], window: int, round_s: float, k: float) -> float:
    run_s = np.minimum(np.array(rounds) * round_s, jobs.left_s)
    logs = np.interp((jobs.done_s + run_s) / (jobs.done_s + jobs.left_s), BENDS, LOG_AT_BENDS)
    return float(logs.sum()) / (len(rounds) * window) - k * float((jobs.left_s - run_s).max())


@settings(max_examples=examples(60))
@given(data=st.data(), window=st.integers(1, 4), k=st.sampled_from([0.0, 1e-5, 1e-3]))
def test_plans_keep_within_the_slots_and_come_near_the_best_there_is(
    data: st.DataObject, window: int, k: float
) -> None:
    count = data.draw(st.integers(1, 4))
    total = data.draw(st.integers(2, 6))
    jobs = outlook(
        data.draw(st.lists(st.integers(1, 2), min_size=count, max_size=count)),
        data.draw(st.lists(st.floats(0.0, 500.0), min_size=count, max_size=count)),
        data.draw(st.lists(st.floats(1.0, 900.0), min_size=count, max_size=count)),
    )
    planned = plan_window(jobs, total, window, 120.0, k)
    assert (planned >= 0).all()
    assert (planned <= window).all()
    assert planned @ jobs.slots <= window * total
    allowed = [y for y in product(range(window + 1), repeat=count) if np.array(y) @ jobs.slots <= window * total]
    values = [worth(jobs, y, window, 120.0, k) for y in allowed]
    got, best, worst = worth(jobs, tuple(planned.tolist()), window, 120.0, k), max(values), min(values)
    assert got >= best - 0.15 * (best - worst) - 1e-9


def test_the_longest_job_runs_in_every_round_when_the_makespan_counts() -> None:
    jobs = outlook([1, 1, 1], [0.0, 0.0, 0.0], [10_000.0, 600.0, 600.0])
    assert plan_window(jobs, 1, 10, 120.0, 1.0)[0] == 10
    assert plan_window(jobs, 1, 10, 120.0, 0.0)[0] < 10


def test_those_who_have_got_less_far_go_first_when_it_does_not() -> None:
    jobs = outlook([1, 1], [900.0, 0.0], [1000.0, 1000.0])
    behind, ahead = plan_window(jobs, 1, 4, 120.0, 0.0)[::-1]
    assert behind > ahead


def test_late_jobs_run_before_others() -> None:
    """A job that has waited for its whole fair time is boosted over newcomers of the same length."""
    early = TraceJob(name="old", submit_s=0.0, requested_slots=2, duration_s=1200.0)
    crowd = [
        TraceJob(name=f"n{i}", submit_s=2000.0 + i, requested_slots=1, duration_s=1200.0, owner="crowd")
        for i in range(6)
    ]
    first = [TraceJob(name=f"f{i}", submit_s=0.0, requested_slots=1, duration_s=2400.0) for i in range(2)]
    world = Simulator(
        Workload("w", (early, *first, *crowd)), {}, Cluster.parse("v100:1x2"), Shockwave(), Settings(debug=True)
    )
    ends = {job.facts.id: job.completed_s or np.inf for job in world.run().jobs}
    assert ends["old"] < max(ends[f"n{i}"] for i in range(6))


def rounds_planned(age_s: float, **options: float) -> dict[str, int]:
    """Rounds of 120 s in a window of four on one slot: an old job that has done 520 of 1,000 s, and a new long one.

    On half of the slot the old job would take 2,000 s.
    """
    old = JobFacts(id="old", submitted_s=5000.0 - age_s, requested_slots=1, max_slots=1)
    new = JobFacts(id="new", submitted_s=5000.0, requested_slots=1, max_slots=1)
    jobs = (JobView(facts=old, executed_before_s=520.0), JobView(facts=new))
    policy = Shockwave(window=4, k=0.0, **options)  # type: ignore[arg-type]
    view = ClusterView(5000.0, Cluster.parse("v100:1x1"), jobs, (1,), (1,))
    policy._plan(view, np.array([480.0, 2000.0]))
    return policy._rounds_left


def test_a_job_gets_the_rounds_that_it_needs_to_finish_in_fair_time() -> None:
    """With 520 s to spare after the window it needs two of four rounds, though the new job's progress counts more."""
    assert rounds_planned(age_s=1000.0) == {"old": 2, "new": 2}
    assert rounds_planned(age_s=1000.0, rhomax=2.0) == {"old": 0, "new": 4}


def test_a_job_that_cannot_finish_in_fair_time_counts_more_by_a_power_of_how_late_it_is() -> None:
    assert rounds_planned(age_s=2500.0) == {"old": 4, "new": 0}
    assert rounds_planned(age_s=2500.0, boost=0.0)["new"] > 0


def test_the_fair_time_is_the_mean_of_what_it_was_over_time() -> None:
    fair = FairFinish()
    fair.estimate(0.0, 100.0)
    fair.estimate(50.0, 300.0)
    assert fair.expected_s(100.0) == pytest.approx(0.9 * 200.0 + 0.1 * 300.0)


def test_a_plan_is_followed_until_somebody_comes_or_goes() -> None:
    planned = []

    class Watched(Shockwave):
        def _plan(self, *arguments: object) -> None:  # type: ignore[override]
            planned.append(1)
            super()._plan(*arguments)  # type: ignore[arg-type]

    jobs = tuple(TraceJob(name=f"j{i}", submit_s=0.0, requested_slots=1, duration_s=1800.0) for i in range(3))
    Simulator(Workload("w", jobs), {}, Cluster.parse("v100:1x2"), Watched(), Settings(debug=True)).run()
    assert len(planned) <= 4


@pytest.mark.parametrize("window", [1, 20])
def test_everybody_is_finished(window: int) -> None:
    jobs = tuple(
        TraceJob(name=f"j{i}", submit_s=37.0 * i, requested_slots=1 + i % 4, duration_s=100.0 + 400.0 * (i % 7))
        for i in range(30)
    )
    policy = Shockwave(window=window)
    result = Simulator(Workload("w", jobs), {}, Cluster.parse("v100:2x4"), policy, Settings(debug=True)).run()
    assert all(job.completed_s is not None for job in result.jobs)
    assert not result.rejected
