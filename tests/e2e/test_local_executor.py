"""The executor of one machine: what happens if it cannot do what it is asked for."""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase, JobState
from geminid.node.machine import NODE, Device, machine
from geminid.process.descendants import MARK
from geminid.process.shim import PROCESS
from geminid.serve import records as r
from geminid.serve.documents import late_s, status_document
from geminid.serve.executors import executor as executor_module
from geminid.serve.executors.elasticjob import ElasticJob, Surroundings
from geminid.serve.executors.executor import AgentExecutor
from geminid.serve.executors.folders import JobFolders
from geminid.serve.executors.jobrecords import Refusals
from geminid.serve.executors.local import LocalAgents, local_executor
from geminid.serve.executors.plain import SHIM, PlainCommand, exit_of, live_pid
from geminid.serve.executors.slotnames import SlotNames
from geminid.serve.executors.starts import SupervisorEvent
from geminid.serve.livejob import LiveJob
from geminid.serve.service import Published
from geminid.serve.state import ServiceState
from geminid.supervise import events as j
from geminid.supervise.handover import Handover
from geminid.supervise.protocol import Plan, Progress
from waiting import until

PLACE = Placement.of({NODE: [0]})


def job(*command: str, elastic: bool = False) -> LiveJob:
    spec = JobSpec(name="x", command=command or ("true",), working_dir="/")
    return LiveJob(state=JobState.submitted(job_id="j1", spec=spec, at_s=0.0), elastic=elastic)


def executor(folder: Path, heard: list[object]) -> AgentExecutor:
    made = local_executor(folder, machine(2), warm=False)
    assert made.open(heard.append, []) == []
    return made


def surroundings(folder: Path) -> Surroundings:
    """The two slots of a machine, for a job that is not to run."""
    return Surroundings(SlotNames(folder, machine(2)), machine(2), Refusals(), wanted=None, now_s=0.0)


def test_a_worker_that_was_started_and_not_written_down_ends_when_the_next_service_starts(tmp_path):
    marks = {name: f"{tmp_path}/jobs/j1/{name}.00" for name in ("w1", "w2")}
    strays = [subprocess.Popen(["sleep", "600"], env={MARK: mark}) for mark in marks.values()]
    other = subprocess.Popen(["sleep", "600"], env={MARK: f"{tmp_path}x/jobs/j1/w1.00"})
    executor(tmp_path, [])
    assert [stray.wait(30) for stray in strays] == [-signal.SIGKILL, -signal.SIGKILL]
    assert other.poll() is None
    other.kill()
    other.wait()


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
        assert not made.jobs.running


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
    assert "it could not be started" in crash(made.handle(happening))
    assert not made.jobs.running


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


#: Says that it is there, and takes being told to end well.
POLITE = ("sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done")


def ready(folder: Path) -> bool:
    log = folder / "jobs" / "j1" / "logs" / "out.log"
    return log.exists() and "ready" in log.read_text()


def outcome(made: AgentExecutor, heard: queue.Queue[object]) -> str:
    while True:
        for record in made.handle(heard.get(timeout=20.0)):
            if isinstance(record, r.JobEnded):
                return record.how


def test_a_command_that_ends_well_because_it_was_told_to_has_not_succeeded(tmp_path):
    heard: queue.Queue[object] = queue.Queue()
    made = local_executor(tmp_path, machine(2), warm=False)
    made.open(heard.put, [])
    polite = job(*POLITE)
    made.run(polite, PLACE)
    made.flush()
    until(lambda: ready(tmp_path))
    made.stop(polite, "paused")
    assert outcome(made, heard) == "stopped"
    ended = exit_of(tmp_path / "jobs" / "j1")
    assert ended is not None
    assert (ended.code, ended.asked) == (0, True)

    # A service that comes back learns the same; and of one that was not to stop, that it succeeded.
    state = polite.state.move(JobPhase.STARTING, at_s=1.0, placement=PLACE)
    running = replace(polite, state=state.move(JobPhase.RUNNING, at_s=2.0, placement=PLACE), target=PLACE)
    stopping = replace(running, state=running.state.move(JobPhase.STOPPING, at_s=3.0, reason="paused"))
    for before, how in (
        (running, "succeeded"),
        (stopping, "stopped"),
        (replace(running, wish="pause"), "stopped"),
        (replace(running, target=None), "stopped"),
    ):
        (told,) = local_executor(tmp_path, machine(2), warm=False).open(heard.put, [before])
        assert isinstance(told, r.JobEnded)
        assert told.how == how


def test_a_command_that_ended_before_it_was_told_to_has_succeeded(tmp_path):
    heard: queue.Queue[object] = queue.Queue()
    made = local_executor(tmp_path, machine(2), warm=False)
    made.open(heard.put, [])
    quick = job("true")
    made.run(quick, PLACE)
    made.flush()
    until(lambda: exit_of(tmp_path / "jobs" / "j1") is not None)
    made.stop(quick, "paused")
    assert outcome(made, heard) == "succeeded"


def test_a_command_that_is_stopped_before_it_is_started_is_not_started(tmp_path):
    heard: list[object] = []
    made = executor(tmp_path, heard)
    first, second = job(*POLITE), replace(job(*POLITE), state=replace(job(*POLITE).state, job_id="j2"))
    made.run(first, PLACE)
    assert made.run(second, PLACE) == []
    assert made.stop(first, "cancelled", save=False) == [
        r.JobStopping(job_id="j1", reason="cancelled"),
        r.JobEnded(job_id="j1", how="stopped"),
        r.JobStarting(job_id="j2", placement=PLACE),
    ]
    moved = Placement.of({NODE: [1]})
    assert made.run(second, moved)[1:] == [
        r.JobEnded(job_id="j2", how="stopped"),
        r.JobStarting(job_id="j2", placement=moved),
    ]
    made.stop(second, "cancelled")
    made.flush()
    assert not made.jobs.running
    assert heard == []


@pytest.mark.parametrize("session", ["", "setsid"])
def test_a_command_gives_back_its_descriptor_and_takes_what_it_started_with_it(tmp_path, session):
    before = len(os.listdir("/proc/self/fd"))
    over: queue.Queue[PlainCommand] = queue.Queue()
    for number in range(3):
        left = tmp_path / f"left{number}"
        command = ("sh", "-c", f"{session} sleep 1000 & echo $! > {left}")
        made = PlainCommand.start(tmp_path, command, dict(os.environ), tmp_path, over.put)
        assert over.get(timeout=20.0) is made
        until(lambda left=left: not lives(int(left.read_text())))
        made.kill()  # of what is gone, nobody else is hit
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_command_started_ends_with_it_even_if_its_shim_is_killed(tmp_path):
    over: queue.Queue[PlainCommand] = queue.Queue()
    left = tmp_path / "left"
    made = PlainCommand.start(
        tmp_path, ("sh", "-c", f"echo $$ > {left}; sleep 1000"), dict(os.environ), tmp_path, over.put
    )
    until(lambda: left.exists() and left.read_text().endswith("\n"))
    os.kill(made.pids[0], 9)
    assert over.get(timeout=20.0) is made
    until(lambda: not lives(int(left.read_text())))


def left_behind(folder: Path, monkeypatch, jobs: dict[str, dict[str, str]]) -> None:
    """Workers of an earlier service on these slots, which all still run."""
    for job_id, workers in jobs.items():
        (folder / "jobs" / job_id).mkdir(parents=True)
        entries = {worker: {"slot": slot} for worker, slot in workers.items()}
        left = Handover(token="t", address="a", generation=1, members=(), slots=(), workers=entries)
        left.write(folder / "jobs" / job_id)
    monkeypatch.setattr(LocalAgents, "runs", lambda agents, identity: True)
    monkeypatch.setattr(LocalAgents, "end_unknown", lambda agents, jobs, keys: None)


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.STOPPING])
def test_of_a_job_that_is_taken_over_the_slots_without_a_worker_are_free(tmp_path, monkeypatch, phase):
    """The last service was killed when it had started one of two workers: the log must not say that both are there."""
    left_behind(tmp_path, monkeypatch, {"j1": {"w1": "0"}})
    made = local_executor(tmp_path, machine(2), warm=False, make_supervisor=MagicMock())
    state = ServiceState()
    for seq, record in enumerate(
        (
            r.JobSubmitted(job_id="j1", spec=job().spec, elastic=True),
            r.JobStarting(job_id="j1", placement=Placement.of({NODE: [0, 1]})),
            *([r.JobStopping(job_id="j1", reason="")] if phase is JobPhase.STOPPING else []),
        )
    ):
        state.apply(seq, 0.0, record)
    for record in made.open(lambda event: None, list(state.jobs.values())):
        state.apply(9, 1.0, record)
    assert state.jobs["j1"].phase is phase
    assert state.jobs["j1"].state.placement == PLACE


def test_a_job_that_is_taken_over_while_it_forms_has_not_crashed(tmp_path):
    """Its leader reports before its other worker has told that they began, from a checkpoint, a moment ago."""
    around = surroundings(tmp_path)
    supervisor = SimpleNamespace(status=SimpleNamespace(slots=("0", "1"), ready=None))
    running = ElasticJob("j1", supervisor, workers={"w1": "0", "w2": "1"}, target=("0", "1"))
    told = running.handle(progress(), around).records
    formed = j.GroupFormed(
        generation=2, slots=("0", "1"), step=0, pause_s=None, restored=True, stopped_at_s=None, resumed_at_s=0.0
    )
    told += running.handle(formed, around).records
    assert [record.restored for record in told if isinstance(record, r.JobFormed)] == [False, False]
    for worker, slot in (("w1", "0"), ("w2", "1")):
        running.handle(j.WorkerEnded(worker=worker, slot=slot, reason="was killed", expected=False), around)
    again = running.handle(formed, around).records
    assert [record.restored for record in again if isinstance(record, r.JobFormed)] == [True]


@pytest.mark.parametrize(
    ("number", "how"), [(errno.EMFILE, "unstarted"), (errno.ENOSPC, "unstarted"), (errno.EACCES, "crashed")]
)
def test_a_shortage_of_the_machine_does_not_count_against_a_job(tmp_path, monkeypatch, number, how):
    heard: list[object] = []
    made = executor(tmp_path, heard)
    made.run(job(), PLACE)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(PlainCommand, "start", fail)
    made.flush()
    (ended,) = made.handle(heard[0])
    assert isinstance(ended, r.JobEnded)
    assert ended.how == how


def test_a_start_that_was_taken_back_runs_nothing(tmp_path):
    """The service was killed right after it started the shim: whoever comes back has it, or it runs nothing."""
    ran = tmp_path / "ran"
    (tmp_path / PROCESS).write_text('{"start": "one"}')
    assert live_pid(tmp_path) is None
    shim = [sys.executable, "-I", "-S", *SHIM[3:], str(tmp_path), "one", "touch", str(ran)]
    assert subprocess.run(shim, start_new_session=True, check=False).returncode == 0
    assert not ran.exists()
    assert exit_of(tmp_path) is None


def test_a_command_is_known_by_what_its_shim_wrote_down(tmp_path):
    (tmp_path / PROCESS).write_text('{"start": "one"}')
    shim = [sys.executable, "-I", "-S", *SHIM[3:], str(tmp_path), "one", "sleep", "1000"]
    with subprocess.Popen(shim, start_new_session=True) as process:
        until(lambda: "pid" in (tmp_path / PROCESS).read_text())
        over: queue.Queue[PlainCommand] = queue.Queue()
        adopted = PlainCommand.adopt(tmp_path, over.put)
        assert adopted is not None
        assert adopted.pids == [process.pid]
        adopted.stop(20.0)
        assert over.get(timeout=20.0) is adopted


def test_only_what_belongs_to_no_running_job_is_ended(tmp_path):
    """What a command started is marked by its job's folder, and what a worker started by a name within it."""
    (tmp_path / "jobs").mkdir()
    agents = LocalAgents(JobFolders(tmp_path), warm=False)
    marks = [tmp_path / "jobs" / name for name in ("j1", "j1/w1.0", "j2", "j2/w1.0", "j11")]
    started = [subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(mark)}) for mark in marks]
    agents.end_unknown({"j1"}, set())
    assert [child.wait(timeout=20.0) for child in started[2:]] == [-9, -9, -9]
    assert [child.poll() for child in started[:2]] == [None, None]
    for child in started[:2]:
        child.kill()
        child.wait()


def on(place: Placement, *command: str, elastic: bool = False, job_id: str = "j1") -> LiveJob:
    """A job that a service had running, by its log."""
    spec = JobSpec(name="x", command=command or ("true",), working_dir="/")
    state = JobState.submitted(job_id=job_id, spec=spec, at_s=0.0)
    state = state.move(JobPhase.STARTING, at_s=1.0, placement=place).move(JobPhase.RUNNING, at_s=2.0, placement=place)
    return LiveJob(state=state, elastic=elastic, target=place)


def machine_of(*uuids: str) -> dict[str, object]:
    devices = [Device(uuid[-1], uuid, "NVIDIA H200") for uuid in uuids]
    return {
        "cluster": machine(devices=devices),
        "devices": [device.index for device in devices],
        "device_ids": list(uuids),
    }


@pytest.mark.parametrize(
    ("before", "after", "stays", "told"),
    [
        ({"cluster": machine(2)}, {"cluster": machine(1)}, None, ["local/1"]),
        (machine_of("GPU-0", "GPU-1"), machine_of("GPU-0"), None, ["local/1"]),
        (machine_of("GPU-0", "GPU-1"), machine_of("GPU-0", "GPU-2"), None, ["local/1"]),
        (machine_of("GPU-0", "GPU-1"), machine_of("GPU-1"), 0, ["local/0"]),
        (machine_of("GPU-0", "GPU-1"), machine_of("GPU-2", "GPU-0", "GPU-1"), 2, []),
    ],
)
def test_a_command_stays_where_its_device_is_and_is_queued_if_that_is_gone(tmp_path, before, after, stays, told):
    heard: queue.Queue[object] = queue.Queue()
    second = Placement.of({NODE: [1]})
    first = local_executor(tmp_path, warm=False, **before)
    first.open(heard.put, [])
    first.run(job(*POLITE), second)
    first.flush()
    until(lambda: ready(tmp_path))
    (pid,) = first.jobs.running["j1"].pids

    running = on(second, *POLITE)
    made = local_executor(tmp_path, warm=False, **after)
    state = ServiceState(jobs={"j1": running})
    records = made.open(heard.put, [running])
    for record in records:
        state.apply(state.seq + 1, 3.0, record)
    notes = [record.text for record in records if isinstance(record, r.Noted)]
    assert len(notes) == bool(told)
    assert all(name in notes[0] for name in told)
    known = state.jobs["j1"]
    assert made.jobs.running["j1"].pids == [pid]
    if stays is not None:
        assert known.target == known.state.placement == Placement.of({NODE: [stays]})
        assert made.run(known, known.target) == []
        made.close(detach=False)
        return
    assert known.target is None
    assert "slot local/1 is gone" in known.why
    # Whoever comes next does not wait for a slot that is gone, and never shares one that is here.
    place = Placement.of({NODE: [after["cluster"].total_slots - 1]})
    other = replace(on(place, "true"), state=JobState.submitted(job_id="j2", spec=running.spec, at_s=0.0))
    assert [type(record) for record in made.run(other, place)] == [r.JobStarting]
    assert [type(record) for record in made.stop(known, known.why)] == [r.JobStopping]
    assert outcome(made, heard) == "stopped"
    made.close(detach=False)


def test_an_elastic_job_leaves_a_slot_that_is_gone_and_keeps_the_others(tmp_path, monkeypatch):
    local_executor(tmp_path, machine(3), warm=False).open(lambda event: None, [])
    workers = {"j1": {"w1": "0", "w2": "1"}, "j2": {"w1": "2"}}
    left_behind(tmp_path, monkeypatch, workers)
    supervisors = {job_id: MagicMock() for job_id in workers}
    made = local_executor(
        tmp_path, machine(1), warm=False, make_supervisor=lambda spec, **options: supervisors[spec.name]
    )
    jobs = {
        "j1": on(Placement.of({NODE: [0, 1]}), elastic=True),
        "j2": on(Placement.of({NODE: [2]}), elastic=True, job_id="j2"),
    }
    state = ServiceState(jobs=dict(jobs))
    for record in made.open(lambda event: None, list(jobs.values())):
        state.apply(state.seq + 1, 3.0, record)
    assert state.jobs["j1"].target == PLACE
    assert "slot local/1 is gone" in state.jobs["j1"].why
    assert state.jobs["j2"].target is None
    (gone,) = supervisors["j1"].drop_slots.call_args.args
    assert [gone(slot) for slot in ("0", "1")] == [False, True]
    assert made.run(state.jobs["j1"], PLACE) == []  # it is on its way already
    assert made.jobs.running["j1"].holds == {"0", "1"}  # until its worker has left
    made.stop(state.jobs["j2"], "gone")
    supervisors["j2"].stop.assert_called_once_with(save=True)  # nothing of it is lost


def test_what_is_cordoned_and_not_there_takes_no_slot_away():
    state = ServiceState(cordoned=frozenset({(NODE, 1)}))
    for slots, out in ((1, frozenset()), (2, frozenset({(NODE, 1)}))):
        cluster = {"gpu_types_by_node": {NODE: "cpu"}, "slots": {NODE: slots}}
        state.apply(1, 0.0, r.ServiceStarted(epoch=1, version="1", policy="fifo", cluster=cluster))
        assert state.out_of_service == out
        assert ServiceState.from_dict(state.to_dict()).out_of_service == out


def test_a_slot_where_a_worker_may_still_be_started_is_not_given_to_another(tmp_path, monkeypatch):
    """Supervisors are slow at times: one that is to start a worker may be about to when it is told not to."""
    both, second = Placement.of({NODE: [0, 1]}), Placement.of({NODE: [1]})
    left_behind(tmp_path, monkeypatch, {"j1": {"w1": "0"}})
    supervisor = MagicMock()
    made = local_executor(tmp_path, machine(2), warm=False, make_supervisor=lambda spec, **options: supervisor)
    elastic, other = on(PLACE, elastic=True), job()
    other = replace(other, state=replace(other.state, job_id="j2"))
    made.open(lambda event: None, [elastic])
    made.run(elastic, both)
    made.flush()
    made.run(elastic, PLACE)
    made.flush()
    assert made.run(other, second) == []

    def hear(event: j.JobEvent) -> list[r.Record]:
        return made.handle(SupervisorEvent("j1", supervisor, event))

    assert hear(j.WorkerStarted("w2", "1", 0)) == []
    assert hear(j.Resized(("0", "1"))) == []
    assert hear(j.Resized(("0",))) == []
    left, started = hear(j.WorkerEnded("w2", "1", "was not needed any more", expected=True))
    assert left == r.JobRescaling(job_id="j1", placement=PLACE)
    assert started == r.JobStarting(job_id="j2", placement=second)


def test_a_reason_names_the_file_that_is_not_there(tmp_path):
    heard: queue.Queue[object] = queue.Queue()
    made = local_executor(tmp_path, machine(1), warm=False)
    made.open(heard.put, [])
    made.run(job("./gone.sh"), PLACE)
    made.flush()
    told = [record for _ in range(2) for record in made.handle(heard.get(timeout=20.0))]
    assert crash(told) == "it could not be started: ./gone.sh: No such file or directory"
    nowhere = job("true")
    nowhere = replace(nowhere, state=replace(nowhere.state, spec=replace(nowhere.spec, working_dir="/not/there")))
    made.run(nowhere, PLACE)
    made.flush()
    told = made.handle(heard.get(timeout=20.0))
    assert crash(told) == "it could not be started: /not/there: No such file or directory"


def test_a_job_that_fails_for_its_workers_has_as_many_failures_as_its_reason_says(tmp_path):
    running = ElasticJob("j1", MagicMock(), target=("0",))
    failed = j.JobEnded(j.JobPhase.FAILED, "4 failures without progress in between", failures=4)
    told = running.handle(failed, surroundings(tmp_path)).records
    state = ServiceState(jobs={"j1": on(PLACE, elastic=True)})
    for record in told:
        state.apply(1, 3.0, record)
    assert (state.jobs["j1"].phase, state.jobs["j1"].state.failures) == (JobPhase.FAILED, 4)


def test_a_job_whose_workers_cannot_reach_each_other_has_failed_only_if_it_never_trained(tmp_path):
    apart = j.JobEnded(j.JobPhase.FAILED, "worker w1 failed: no route", failures=4, was_split=True)
    waits_s = []
    around = surroundings(tmp_path)
    for samples in (0, 100, 100):
        around = replace(around, wanted=replace(job(elastic=True), samples=samples))
        told = ElasticJob("j1", MagicMock()).handle(apart, around).records
        (ended,) = [record for record in told if isinstance(record, r.JobEnded)]
        assert ended.how == ("unstarted" if samples else "failed")
        waits_s += [record.for_s for record in told if isinstance(record, r.JobHeld)]
    assert waits_s == [30.0, 60.0]
    ElasticJob("j1", MagicMock(), formed=("0", "1")).handle(j.FirstStepDone(1, 0.0), around)
    assert "j1" not in around.refusals


def test_a_job_on_its_way_to_slots_that_cannot_be_used_stays_where_it_trains():
    workers = {"w1": "a/0", "w2": "b/0"}
    moving = ElasticJob("j1", MagicMock(), workers=workers, target=("b/0", "b/1"), formed=("a/0",), leaving={"a/0"})
    moving.supervisor.status.slots = ("a/0",)
    moving.do_without({"b/1"}, "gone")
    assert moving.target == ("b/0",)
    moving.supervisor.resize.assert_not_called()
    moving.do_without({"b/0"}, "gone")
    moving.supervisor.resize.assert_called_once_with(("a/0",))
    assert (moving.target, moving.leaving, moving.pending_resizes) == (("a/0",), set(), 1)
    moving.supervisor.kill.assert_not_called()
    del moving.workers["w2"]
    moving.do_without({"a/0"}, "gone, too")
    moving.supervisor.kill.assert_called_once()
    assert moving.reason == "gone, too"


def test_what_is_no_python_script_has_one_size(tmp_path):
    made = executor(tmp_path, [])
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    (tmp_path / "train.sh").chmod(0o700)
    for command, refused in (
        (("sleep", "1"), True),
        (("./train.sh",), False),
        (("sh", "train.sh"), False),
        (("sh", "-c", "exec python train.py"), False),
    ):
        ranged = JobSpec(name="x", command=command, working_dir=str(tmp_path), min_slots=1, max_slots=2)
        assert [problem.field for problem in made.submissions.check(ranged)] == (["max_slots"] if refused else [])
        assert made.submissions.check(replace(ranged, max_slots=1)) == []


def test_status_tells_what_is_out_of_service_and_a_job_how_late_it_is():
    late = on(PLACE)
    late = replace(late, state=replace(late.state, spec=replace(late.spec, deadline_s=5.0)))
    assert [late_s(late, now_s) for now_s in (5.0, 7.0)] == [None, 2.0]
    state = ServiceState(drained=frozenset({NODE, "gone"}), cordoned=frozenset({(NODE, 1), (NODE, 7)}), slots={NODE: 2})
    told = status_document(Published(0.0, state), machine(2), "fifo", {})
    assert (told["drained"], told["cordoned"]) == ([NODE], [f"{NODE}/1"])


@pytest.mark.needs_mounts
def test_how_a_command_ended_is_written_down_though_the_disk_is_full_by_then(tmp_path, small_file_system):
    """There is room for it, kept before the command was started: it is not run again for want of room."""
    folder = tmp_path / "j1"
    folder.mkdir()
    small_file_system(folder, "256k")
    ended = queue.Queue()
    fill = f"yes > {folder}/ballast; echo full > {tmp_path}/said"
    PlainCommand.start(folder, ("sh", "-c", fill), dict(os.environ), tmp_path, ended.put)
    ended.get(timeout=60)
    assert (tmp_path / "said").exists()
    found = exit_of(folder)
    assert found is not None
    assert found.code == 0


def elastic_on(slots: list[int], job_id: str) -> LiveJob:
    place = Placement.of({NODE: slots})
    spec = JobSpec(name="x", command=("true",), working_dir="/", max_slots=4)
    return LiveJob(state=JobState.submitted(job_id=job_id, spec=spec, at_s=0.0), elastic=True, target=place)


class Crowd:
    """An executor of four slots whose supervisors do nothing, and which jobs it has tried to lead to their slots."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.supervisors: dict[str, MagicMock] = {}
        self.led: list[str] = []

        def supervisor(spec, **options: object) -> MagicMock:
            return self.supervisors.setdefault(spec.name, self.one())

        def reconcile(desired, actual):
            self.led.extend(job.job_id for job in desired)
            return decide(desired, actual)

        decide = executor_module.reconcile
        monkeypatch.setattr(executor_module, "reconcile", reconcile)
        self.made = local_executor(folder, machine(4), warm=False, make_supervisor=supervisor)
        self.made.open(lambda event: None, [])

    @staticmethod
    def one() -> MagicMock:
        return MagicMock(status=SimpleNamespace(ready=None, slots=(), reason=""), has_ended=False)

    def run(self, job_id: str, *slots: int) -> list[r.Record]:
        job = elastic_on(list(slots), job_id)
        told = self.made.run(job, job.target)
        self.made.flush()
        return told

    def hear(self, job_id: str, event: j.JobEvent) -> list[r.Record]:
        self.led.clear()
        return self.made.handle(SupervisorEvent(job_id, self.supervisors[job_id], event))

    def start(self, job_id: str, *slots: int) -> None:
        assert [type(record) for record in self.run(job_id, *slots)] == [r.JobStarting]
        for slot in slots:
            self.hear(job_id, j.WorkerStarted(f"w{slot}", str(slot), 0))
        self.hear(job_id, j.Resized(tuple(map(str, slots))))


def progress() -> Progress:
    return Progress(
        generation=1, step=0, epoch=0, samples=0, progress=0.0, size=2, plan=Plan(per_slot_batch=1), total_batch=2
    )


def test_whoever_waits_for_a_slot_is_led_when_it_becomes_free_and_nobody_else_is(tmp_path, monkeypatch):
    crowd = Crowd(tmp_path, monkeypatch)
    crowd.start("j1", 0, 1)
    crowd.start("j2", 2)
    crowd.start("j3", 3)
    assert crowd.run("j4", 1) == []
    assert crowd.run("j5", 2) == []

    crowd.hear("j1", progress())
    assert crowd.led == []  # as all do every second: it is nobody's business
    crowd.hear("j3", j.WorkerStarted("w9", "3", 0))
    assert crowd.led == ["j3"]

    assert [type(record) for record in crowd.run("j1", 0)] == [r.JobRescaling]
    assert crowd.hear("j1", j.Resized(("0",))) == []  # its worker is there still
    left, started = crowd.hear("j1", j.WorkerEnded("w1", "1", "was not needed any more", expected=True))
    assert left == r.JobRescaling(job_id="j1", placement=Placement.of({NODE: [0]}))
    assert started == r.JobStarting(job_id="j4", placement=Placement.of({NODE: [1]}))
    assert crowd.led == ["j1", "j4"]

    told = crowd.hear("j2", j.JobEnded(j.JobPhase.FINISHED, ""))
    assert [(type(record), record.job_id) for record in told] == [(r.JobEnded, "j2"), (r.JobStarting, "j5")]
    held = [running.holds for running in crowd.made.jobs.running.values()]
    assert sum(map(len, held)) == len(set().union(*held)) == 4


def test_whoever_can_start_beside_one_that_is_told_to_stop_does_not_wait_for_it(tmp_path, monkeypatch):
    crowd = Crowd(tmp_path, monkeypatch)
    crowd.start("j1", 0)
    assert crowd.run("j2", 0, 1) == []
    assert crowd.made.tick(dict) == []
    assert [type(record) for record in crowd.made.stop(elastic_on([0], "j1"), "paused")] == [r.JobStopping]
    assert crowd.made.tick(dict) == [r.JobStarting(job_id="j2", placement=Placement.of({NODE: [1]}))]
    crowd.made.flush()
    grown = crowd.hear("j1", j.JobEnded(j.JobPhase.STOPPED, ""))[-1]
    assert grown == r.JobRescaling(job_id="j2", placement=Placement.of({NODE: [0, 1]}))


def test_logs_of_many_jobs_are_looked_at_in_turn(tmp_path, monkeypatch):
    looked: list[str] = []
    monkeypatch.setattr("geminid.serve.executors.executor.MAX_LOGS", 2)
    monkeypatch.setattr("geminid.serve.executors.executor.rotate", lambda logs: looked.append(logs.parent.name))
    crowd = Crowd(tmp_path, monkeypatch)
    for number in range(3):
        crowd.start(f"j{number}", number)
    for _ in range(3):
        crowd.made.logs.look(crowd.made.jobs.running)
    assert looked == ["j0", "j1", "j2", "j0", "j1"]
