"""A job that reports something absurd is put into quarantine; the service and all other jobs go on."""

from __future__ import annotations

import math

import pytest
from test_service_loop import Running

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.serve import records as r
from geminid.serve.livejob import job_to_dict
from geminid.serve.state import ServiceState
from geminid.serve.store import last_entries
from geminid.testing.executor import PretendExecutor

PLACE = Placement.of({"cpu-0": [0]})
LIMITS = {"initial_batch": 8, "largest_batch": 8, "smallest_per_slot": 1, "largest_per_slot": 8, "parameter_count": 1}
PROGRESS = {"progress": 1.0, "samples": 8, "step": 1, "epoch": 0, "slots": 1, "nodes": 1}
PLAN = {"per_slot_batch": 8, "accumulation_steps": 0}


def ready(**changes) -> r.JobReady:
    return r.JobReady(**{"job_id": "j1", **LIMITS, **changes})


def progressed(**changes) -> r.JobProgressed:
    return r.JobProgressed(**{"job_id": "j1", **PROGRESS, **PLAN, **changes})


ABSURD = [
    ready(work_samples=10**320),
    ready(smallest_per_slot=0),
    ready(largest_per_slot=-5),
    ready(parameter_count=10**400),
    progressed(samples=10**320),
    progressed(step=-(10**5000)),
    progressed(progress=math.nan),
    progressed(learning_rate_factor=math.inf),
    progressed(metrics={"loss": math.nan}),
    progressed(slots=0, nodes=0, step_s=1.0),
    r.JobCheckpointed(job_id="j1", samples=10**320),
    r.JobCheckpointed(job_id="j1", samples=1, seconds=math.nan),
    r.JobFormed(job_id="j1", placement=PLACE, restored=True, samples=10**400),
    r.JobHeld(job_id="j1", for_s=math.inf, reason="never"),
]


@pytest.mark.parametrize("record", ABSURD, ids=lambda record: type(record).__name__)
def test_a_job_that_reports_something_absurd_fails_alone_and_says_why(tmp_path, record):
    with Running(tmp_path) as running:
        liar, honest = running.submit(max_slots=1), running.submit(max_slots=1)
        running.until(lambda jobs: all(jobs[job].phase is JobPhase.RUNNING for job in (liar, honest)))
        running.executor.report(record)
        after = running.until(lambda jobs: jobs[liar].phase is JobPhase.FAILED)
        assert after[liar].state.reason.startswith("quarantined: its ")
        assert after[honest].phase is JobPhase.RUNNING
        assert running.service.alive
        assert list(running.executor.running) == [honest]  # the liar's processes were stopped
        later = running.submit(max_slots=1)  # and others are still given slots
        running.until(lambda jobs: jobs[later].phase is JobPhase.RUNNING)
    kinds = [r.kind_of(entry.record) for entry in last_entries(tmp_path, -1, 0) if r.job_of(entry.record) == liar]
    assert r.kind_of(record) not in kinds[kinds.index("JobFormed") + 1 :], "what is absurd is not written"


def test_an_executor_that_fails_for_one_job_costs_that_job_only(tmp_path):
    class Fragile(PretendExecutor):
        def run(self, job, placement):
            if job.spec.name == "poison":
                raise OverflowError("int too large to convert to float")
            return super().run(job, placement)

    with Running(tmp_path, executor=Fragile()) as running:
        poison, honest = running.submit(name="poison", max_slots=1), running.submit(max_slots=1)
        jobs = running.until(lambda jobs: jobs[honest].phase is JobPhase.RUNNING and jobs[poison].phase.is_terminal)
        assert "it cannot be started or stopped: OverflowError" in jobs[poison].state.reason


def test_a_planner_that_fails_stops_deciding_and_not_the_service(tmp_path):
    with Running(tmp_path) as running:
        first = running.submit(max_slots=1)
        running.until(lambda jobs: jobs[first].phase is JobPhase.RUNNING)
        running.service._planner.decide = lambda: 1 / 0
        running.service.operations.submit(JobSpec(name="x", command=("true",)), "ann").result(10)
        running.until(lambda jobs: any("could not decide" in note[2] for note in running.service.published.state.notes))
        assert running.service.alive
        running.executor.report(r.JobEnded(job_id=first, how="succeeded"))
        running.until(lambda jobs: jobs[first].phase is JobPhase.SUCCEEDED)


def poisoned(state: ServiceState, *records: r.Record) -> None:
    for record in records:
        state.apply(state.seq + 1, state.at_s + 1.0, record)


def one_running(job_id: str = "j1") -> list[r.Record]:
    return [
        r.JobSubmitted(job_id=job_id, spec=JobSpec(name="x", command=("x",), max_slots=1), elastic=True),
        r.Planned(targets={job_id: PLACE}),
        r.JobStarting(job_id=job_id, placement=PLACE),
        r.JobFormed(job_id=job_id, placement=PLACE),
    ]


def test_a_snapshot_of_an_earlier_version_with_something_absurd_is_read():
    state = ServiceState()
    poisoned(state, *one_running())
    plain = state.to_dict()
    plain["jobs"] = [{**job_to_dict(state.jobs["j1"]), "samples": 10**320, "limits": {**LIMITS, "work_samples": -1}}]
    plain["jobs"][0]["limits"]["smallest_per_slot"] = 0
    read = ServiceState.from_dict(plain)
    assert read.jobs["j1"].phase is JobPhase.FAILED
    assert "quarantined: what is kept of it cannot be used" in read.jobs["j1"].state.reason
    assert ServiceState.from_dict(read.to_dict()).to_dict() == read.to_dict()
