"""What is read from a service's log about its jobs on a Ray cluster."""

from __future__ import annotations

import pytest

from geminid.bench.ray_service import _measure, small_jobs
from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.store import Entry

ONE, TWO, ACROSS = (Placement.of(of) for of in ({"a": [0]}, {"a": [0, 1]}, {"a": [0, 1], "b": [0]}))


def formed(placement: Placement, pause_s: float | None = None) -> r.Record:
    return r.JobFormed(job_id="j1", placement=placement, pause_s=pause_s)


def test_times_pauses_and_latencies_are_those_of_the_log():
    spec = JobSpec(name="x", command=("true",))
    told = [
        (0.0, r.JobSubmitted(job_id="j1", spec=spec, elastic=True)),
        (1.0, r.Planned(targets={"j1": ONE})),
        (1.5, formed(ONE)),
        (4.0, r.Planned(targets={"j1": ACROSS})),
        (4.25, formed(TWO, 0.25)),  # on its way
        (6.0, formed(ACROSS, 0.5)),
        (7.0, formed(ACROSS, 0.75)),  # a worker was lost and is back: nobody planned that
        (10.0, r.JobEnded(job_id="j1", how="succeeded")),
    ]
    found = _measure("mine", [Entry(seq, at_s, record) for seq, (at_s, record) in enumerate(told)])
    assert (found.avg_jct_s, found.makespan_s) == (10.0, 10.0)
    assert (found.start_latency_s, found.rescale_latency_s, found.rescales) == (0.5, 2.0, 1)
    assert found.pauses_within_s == (0.25,)
    assert found.pauses_across_s == (0.5, 0.75)


def test_jobs_come_one_after_the_other_and_are_the_same_each_time():
    jobs = small_jobs(12, 1.0)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert jobs == small_jobs(12, 1.0)
    assert sum(job.epochs for job in small_jobs(12, 3.0)) == pytest.approx(3 * sum(job.epochs for job in jobs), rel=0.1)
