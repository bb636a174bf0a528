"""The executor of one machine: what happens if it cannot do what it is asked for."""

from __future__ import annotations

from pathlib import Path

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.serve import records as r
from geminid.serve.executors.local import LocalExecutor
from geminid.serve.executors.machine import NODE, machine
from geminid.serve.state import LiveJob

PLACE = Placement.of({NODE: [0]})


def job(*, elastic: bool) -> LiveJob:
    spec = JobSpec(name="x", command=("true",), working_dir="/")
    return LiveJob(state=JobState.submitted(job_id="j1", spec=spec, at_s=0.0), elastic=elastic)


def executor(folder: Path, heard: list[object]) -> LocalExecutor:
    made = LocalExecutor(folder, machine(2), warm=False)
    assert made.open(heard.append, []) == []
    return made


def crash(records: list[r.Record]) -> str:
    (ended,) = [record for record in records if isinstance(record, r.JobEnded)]
    assert ended.how == "crashed"
    return ended.reason


def test_a_job_whose_folder_cannot_be_made_crashes_alone(tmp_path):
    (tmp_path / "jobs").write_text("in the way")
    for elastic in (True, False):
        made = executor(tmp_path, [])
        started, *rest = made.run(job(elastic=elastic), PLACE)
        assert started == r.JobStarting(job_id="j1", placement=PLACE)
        assert "it could not be started" in crash(rest)
        assert not made.busy


def test_a_socket_whose_path_is_too_long_fails_one_job_and_not_the_service(tmp_path):
    made = executor(tmp_path / ("x" * 100), [])
    assert "longer than" in crash(made.run(job(elastic=True), PLACE))


def test_a_command_that_cannot_be_started_after_it_was_announced_crashes_alone(tmp_path):
    heard: list[object] = []
    made = executor(tmp_path, heard)
    assert made.run(job(elastic=False), PLACE) == [r.JobStarting(job_id="j1", placement=PLACE)]
    (tmp_path / "jobs" / "j1" / "logs").write_text("in the way")
    made.flush()
    (happening,) = heard
    assert "it could not be started" in crash(made.take(happening))
    assert not made.busy
