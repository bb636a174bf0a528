"""Tiresias: the Gittins index, and where it makes a difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.cluster import Cluster
from geminid.policies.tiresias import ServiceDistribution
from geminid.sim.run import Experiment, simulate
from geminid.sim.workload import TraceJob, Workload

services = st.lists(st.floats(0.1, 1e6), max_size=20)


def test_the_example_of_the_paper() -> None:
    """Three in four jobs need 1, the others 9: a new job is likely to end soon, one that has had 1 is not."""
    seen = ServiceDistribution([1.0, 1.0, 1.0, 9.0])
    assert seen.gittins_index(0.0, 1.0) == pytest.approx(0.75)
    assert seen.gittins_index(1.0, 9.0) == pytest.approx(0.125)


@given(services, st.floats(0.0, 1e6), st.one_of(st.floats(0.1, 1e6), st.just(float("inf"))))
def test_the_index_is_its_definition(services: list[float], attained: float, limit: float) -> None:
    remaining = [service - attained for service in services if service > attained]
    expected = 0.0
    if remaining and limit > attained:
        quantum = limit - attained
        finished = sum(service <= limit for service in services if service > attained)
        expected = finished / sum(min(left, quantum) for left in remaining)
    assert ServiceDistribution(services).gittins_index(attained, limit) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_with_gittins_a_job_that_is_likely_to_end_soon_goes_before_one_that_has_run_for_long() -> None:
    """On one slot, after short jobs were seen, a newcomer overtakes a job that outlived them; first come stays first
    under plain 2D-LAS, whose only queue is endless here.
    """
    jobs = [("a", 0, 100.0), ("b", 100, 100.0), ("c", 200, 100.0), ("long", 300, 5000.0), ("new", 1000, 100.0)]
    workload = Workload(
        name="few",
        jobs=tuple(
            TraceJob(name=name, submit_s=float(at_s), requested_slots=1, duration_s=duration_s)
            for name, at_s, duration_s in jobs
        ),
    )
    experiment = Experiment(workload=workload, cluster=Cluster.parse("v100:1x1"))

    def jct_of_new(index: str) -> float:
        result = simulate(f"tiresias:limits=1e9,index={index}", experiment)
        return next(float(job["jct_s"]) for job in result["per_job"] if job["name"] == "new")

    assert jct_of_new("gittins") == pytest.approx(100.0)
    assert jct_of_new("las") > 4000.0
