"""What goes wrong with workers, and what takes long without being wrong: real processes, and every sample once."""

import contextlib
import os
import select
import signal
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest
from elastic import PATIENCE, Job, exactly_once

from geminid.process.launch import MEMORY, Launch, LimitedLauncher, PlainLauncher
from geminid.process.zygote import Zygote
from geminid.supervise import inputs
from geminid.supervise.channel import ADDRESS, CONTROL, JOB, TOKEN, WORKER, Address
from geminid.supervise.events import CheckpointWritten, CouldNotGrow, GroupFormed, JobEnded, JobPhase, WorkerEnded
from geminid.supervise.failures import FailureLog
from geminid.supervise.handover import Handover
from waiting import until


@pytest.fixture(scope="module")
def launcher():
    with Zygote(preload="geminid.train.preload") as zygote:
        yield zygote


def reasons(job):
    """Why workers ended that were not meant to."""
    return [ended.reason for ended in job.of_kind(WorkerEnded) if not ended.expected]


def test_a_stray_with_the_name_of_a_worker_ends_at_once(tmp_path, launcher):
    """Whoever started it did not live to tell: it has the name of a worker and a token that nobody knows."""
    options = ("--samples", 200, "--epochs", 20, "--pause", 0.05, "--until", tmp_path / "hurry")
    with Job(tmp_path, "counting.py", *options, launcher=launcher) as job:
        job.resized("ab")
        for worker in ("w2", "w7"):
            own = {CONTROL: f"unix:{tmp_path}/job/control", TOKEN: "old", WORKER: worker, JOB: job.spec.name}
            environment = {**job.spec.environment, **own}
            stray = launcher.start(Launch(job.spec.command, environment, tmp_path, tmp_path / f"{worker}.log"))
            stray.begin()
            assert select.select([stray.fileno()], [], [], 60)[0]
            assert stray.exit_code() == -signal.SIGKILL
            assert "another has replaced it" in (tmp_path / f"{worker}.log").read_text()
            stray.close()
        (tmp_path / "hurry").touch()
        assert job.ended() == "finished"
    assert exactly_once(job, 200, 20)
    assert reasons(job) == []


def test_a_job_whose_checkpoints_on_storage_are_gone_does_not_begin_from_zero(tmp_path, launcher):
    places = {"checkpoints": f"file://{tmp_path}/storage", "saved_samples": 1234}
    with Job(tmp_path, "counting.py", "--samples", 20, "--epochs", 1, launcher=launcher, **places) as job:
        job.resize(["a"])
        assert job.ended() == "failed"
    (ended,) = job.of_kind(JobEnded)
    assert ended.hold
    assert "its checkpoints are gone, and 1,234 samples with them" in ended.reason


def test_a_worker_that_nobody_tells_to_begin_never_runs(tmp_path):
    """It ends with the warm process, which ends with whoever asked for it."""
    script = tmp_path / "runs.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with Zygote(preload="geminid.train.preload") as own:
        begins, waits = (
            own.start(Launch((sys.executable, str(script)), os.environ, tmp_path, tmp_path / "log")) for _ in range(2)
        )
        begins.begin()
        assert select.select([begins.fileno()], [], [], 60)[0]
        assert begins.exit_code() == 0
        (tmp_path / "ran").unlink()
        assert waits.exit_code() is None
    assert select.select([waits.fileno()], [], [], 60)[0]
    assert not (tmp_path / "ran").exists()
    for process in (begins, waits):
        process.close()


def test_a_limit_of_memory_is_there_before_a_worker_begins(tmp_path, launcher):
    """A worker that is quick to ask for more than it may have is told so, however slow its supervisor is."""
    script = tmp_path / "asks.py"
    script.write_text("bytearray(8 << 30)")
    environment = {**os.environ, MEMORY: str(3 << 30)}
    limited = LimitedLauncher(launcher)
    process = limited.start(Launch((sys.executable, str(script)), environment, tmp_path, tmp_path / "log"))
    process.begin()
    assert select.select([process.fileno()], [], [], 60)[0]
    assert process.exit_code() == 1
    assert "MemoryError" in (tmp_path / "log").read_text()
    process.close()


@pytest.mark.parametrize(
    ("worker", "where", "free"), [(1, "before", 60.0), (1, "after", 60.0), (0, "forward", 60.0), (0, "after", 3.0)]
)
def test_a_worker_that_hangs_in_its_step_while_others_wait_is_ended(tmp_path, launcher, worker, where, free):
    """Its heartbeats go on: only what it is doing, and for how long, tells. The leader may do more than others."""
    patience = replace(PATIENCE, step=2.0, free=free)
    options = ("--samples", 240, "--epochs", 3, "--hang", where, "--hanging", worker)
    with Job(tmp_path, "counting.py", *options, launcher=launcher, patience=patience) as job:
        job.resized("abc")
        assert job.ended() == "finished"
    assert exactly_once(job, 240, 3)
    limit_s = free if worker == 0 and where == "after" else 2.0
    what = "in the model's forward" if where == "forward" else "in the body of its loop"
    assert reasons(job) == [f"hung: its peers have waited for it for {limit_s:.0f} s ({what})"]
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])


def test_whoever_hears_of_a_jobs_end_may_start_it_anew_in_its_folder(tmp_path, launcher):
    """Then nothing of the last supervisor is left, and it removes nothing any more."""
    options = ("--samples", 200, "--epochs", 20, "--pause", 0.05)
    control, found = tmp_path / "job" / "control", []
    with Job(tmp_path, "counting.py", *options, launcher=launcher) as job:
        job.resized("a")
        assert control.exists()
        job._loop.on_event = lambda event: found.append((type(event), control.exists()))
        job.stop()
        assert job.ended() == "stopped"
    assert found[-1] == (JobEnded, False)


def test_a_worker_that_hangs_before_it_begins_is_replaced(tmp_path, launcher):
    patience = replace(PATIENCE, stall=6.0)
    options = ("--samples", 64, "--epochs", 2, "--stuck")
    with Job(tmp_path, "counting.py", *options, launcher=launcher, patience=patience) as job:
        job.resized("ab")
        assert job.ended() == "finished"
    assert exactly_once(job, 64, 2)
    assert reasons(job) == ["hung: it did not get to geminid.init() in 6 s"]


def reform(job: Job) -> inputs.Event:
    """Have the job's group form again, as if all members waited for each other."""
    job._loop.state._carry_out(job._loop.state.group.reform())
    return inputs.SetMinSlots(1)  # nothing changes by that: what was decided is done


def test_a_group_whose_members_wait_for_each_other_is_formed_anew_from_memory(tmp_path, launcher):
    """What a supervisor does that finds a deadlock: connections are cut under running operations."""
    with Job(tmp_path, "counting.py", "--samples", 240, "--epochs", 3, launcher=launcher) as job:
        job.resized("abc")
        for generation in (2, 3):
            job._loop.inbox.put(lambda: reform(job))
            job.wait(lambda status, generation=generation: status.generation == generation and status.settled)
        pids = {worker.pid for worker in job.status.workers}
        assert job.ended() == "finished"
    assert exactly_once(job, 240, 3)
    assert len(pids) == 3
    assert reasons(job) == []
    assert [len(group.slots) for group in job.of_kind(GroupFormed)] == [3, 3, 3]
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])


def test_rescales_leave_no_descriptors_and_threads_behind(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 400, "--epochs", 100, launcher=launcher) as job:
        held = []
        for slots in ("ab", "abc", "ab", "abc", "ab"):
            job.resized(slots)
            process = Path("/proc", str(job.status.workers[0].pid))
            held.append([len(list((process / kind).iterdir())) for kind in ("fd", "task")])
    for before, after in ((held[2], held[4]), (held[1], held[3])):
        assert all(late <= early + 2 for early, late in zip(before, after, strict=True))  # some come and go


@pytest.mark.parametrize("free", [60.0, 1.5])
def test_a_long_evaluation_by_the_leader_is_nobodys_fault(tmp_path, launcher, free):
    """It takes longer than any patience, but there are signs of life; and the job is resized meanwhile."""
    patience = replace(PATIENCE, step=1.0, free=free, form=2.0)
    options = ("--samples", 64, "--epochs", 2, "--evaluate", 3, *(["--lively"] if free < 60.0 else []))
    with Job(tmp_path, "counting.py", *options, launcher=launcher, patience=patience) as job:
        job.resized("ab")
        job.wait(lambda status: any(worker.phase == "between" for worker in status.workers))
        job.resized("abc")
        job.resized("b")
        assert job.ended() == "finished"
    assert exactly_once(job, 64, 2)
    assert reasons(job) == []
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])


def test_a_newcomer_does_not_come_into_the_middle_of_what_survivors_do_between_epochs(tmp_path, launcher):
    """A worker dies while the leader evaluates and a newcomer waits: only those agree who have trained before."""
    options = ("--samples", 64, "--epochs", 3, "--evaluate", 1.5, "--agree")
    with Job(tmp_path, "counting.py", *options, launcher=launcher, max_failures=1) as job:
        job.resized("ab")
        job.wait(lambda status: any(worker.phase == "between" for worker in status.workers))
        job.resize(["a", "b", "c"])
        job.wait(lambda status: any(worker.phase == "forming" for worker in status.workers))
        os.kill(job.status.workers[1].pid, signal.SIGKILL)
        assert job.ended() == "finished", job.status.reason
    assert exactly_once(job, 64, 3)
    assert reasons(job) == ["was killed (SIGKILL)"]
    assert [len(group.slots) for group in job.of_kind(GroupFormed)] == [2, 1, 3]
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])


@pytest.mark.parametrize("options", [(), ("--stream",)])
def test_a_worker_that_is_stopped_between_epochs_saves_the_beginning_of_the_next(tmp_path, launcher, options):
    """Its peer is gone, and it is told to stop when it wants to agree with it: nobody gets to do the epoch's end."""
    options = ("--samples", 64, "--epochs", 3, "--evaluate", 1.0, "--agree", *options)
    with Job(tmp_path, "counting.py", *options, launcher=launcher, max_failures=1) as job:
        job.resized("ab")
        job.wait(lambda status: any(worker.phase == "between" for worker in status.workers))
        leader, other = job.status.workers
        os.kill(other.pid, signal.SIGKILL)
        os.kill(leader.pid, signal.SIGTERM)
        assert job.ended() == "finished", job.status.reason
    assert exactly_once(job, 64, 3)
    assert reasons(job) == ["was killed (SIGKILL)"]


def test_what_the_leader_does_after_training_may_take_long(tmp_path, launcher):
    patience = replace(PATIENCE, step=1.0, grace=1.0)
    options = ("--samples", 64, "--epochs", 1, "--conclude", 2.5)
    with Job(tmp_path, "counting.py", *options, launcher=launcher, patience=patience) as job:
        job.resized("ab")
        assert job.ended() == "finished"
    assert exactly_once(job, 64, 1)


@pytest.mark.parametrize("options", [("--epochs", 1), ("--epochs", 5, "--leave-after", 0)])
def test_a_resize_that_comes_after_training_disturbs_nobody(tmp_path, launcher, options):
    patience = replace(PATIENCE, form=0.5)
    options = ("--samples", 64, *options, "--conclude", 4)
    with Job(tmp_path, "counting.py", *options, launcher=launcher, patience=patience) as job:
        job.resized("ab")
        job.wait(lambda status: any(worker.phase in ("left", "finished") for worker in status.workers))
        job.resize(["a", "b", "c"])
        assert job.ended() == "finished"
    assert exactly_once(job, 64, 1)
    assert reasons(job) == []


def test_a_leader_that_dies_after_training_is_started_again_to_finish_what_it_did(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 64, "--epochs", 2, "--die", launcher=launcher) as job:
        job.resized("ab")
        assert job.ended() == "finished"
    assert exactly_once(job, 64, 2)
    assert job.of_kind(GroupFormed)[-1].restored


class Slow:
    """A launcher that takes its time, as on a machine that has others to serve."""

    def __init__(self, launcher, seconds):
        self._launcher, self.seconds = launcher, seconds

    def start(self, launch):
        sleep(self.seconds)
        return self._launcher.start(launch)


def test_workers_are_not_silent_while_their_supervisor_is_busy_with_others(tmp_path, launcher):
    slow = Slow(launcher, 0.0)
    options = ("--samples", 800, "--epochs", 3, "--pause", 0.05, "--until", tmp_path / "hurry")
    with Job(tmp_path, "counting.py", *options, launcher=slow) as job:
        job.resized("a")
        slow.seconds = PATIENCE.hang + 1.0
        job.resized("ab")
        (tmp_path / "hurry").touch()
        assert job.ended() == "finished"
    assert exactly_once(job, 800, 3)
    assert reasons(job) == []


def test_workers_that_fail_again_and_again_are_started_later_and_later(tmp_path, launcher, monkeypatch):
    """The first time at once; then after 1, 2 … s, until the job is given up, or stopped meanwhile."""
    script = tmp_path / "fails.py"
    script.write_text(f"print(1, file=open({str(tmp_path / 'starts')!r}, 'a'))\nraise SystemExit(1)")
    delays_s, delay_s = [], FailureLog.start_delay_s

    def noted_delay_s(failures):
        delays_s.append(delay_s(failures))
        return delays_s[-1]

    monkeypatch.setattr(FailureLog, "start_delay_s", noted_delay_s)
    with Job(tmp_path, str(script), launcher=launcher, max_failures=3) as job:
        job.resize(["a"])
        assert job.ended() == "failed"
    assert len((tmp_path / "starts").read_text().splitlines()) == 4
    assert delays_s == [0.0, 0.0, 1.0, 2.0]
    with Job(tmp_path, str(script), launcher=launcher, max_failures=30) as job:
        job.resize(["a"])
        job.wait(lambda status: status.failures >= 4 and not status.workers)  # the next start is 4 s off
        job.resize(["b"])
        job.stop()
        assert job.ended() == "stopped"


def test_workers_that_live_but_cannot_reach_each_other_are_told_of_and_not_formed_without_end(tmp_path, launcher):
    """With a network interface that there is none of: a job trains on without newcomers, and grows once it can."""
    healed = tmp_path / "healed"

    def interface(slot):
        return {} if healed.exists() else {"GLOO_SOCKET_IFNAME": "no-such-interface"}

    counting = ("counting.py", "--samples", 400, "--epochs", 30, "--pause", 0.05, "--until", tmp_path / "enough")
    with Job(tmp_path, *counting, launcher=launcher, slot_environment=interface, max_failures=0) as job:
        job.resized("a")
        job.trained(20)
        job.resize(["a", "b"])
        job.wait(lambda status: len(job.of_kind(CouldNotGrow)) >= 2)
        formed = len(job.of_kind(GroupFormed))
        assert formed <= 1 + len(job.of_kind(CouldNotGrow))
        assert all("no-such-interface" in refused.reason for refused in job.of_kind(CouldNotGrow))
        assert (reasons(job), job.status.failures) == ([], 0)  # that it was to grow is nothing that it did
        job.wait(lambda status: status.slots == ("a",))
        job.resized("a")
        job.trained(job.status.progress.samples + 20)
        job.stop()
        assert job.ended() == "stopped"
    with Job(tmp_path, *counting, launcher=launcher, slot_environment=interface, max_failures=2) as job:
        job.resize(["a", "b"])
        assert job.ended() == "failed"
        assert "could not work together" in job.status.reason
        assert "3 failures without progress" in job.status.reason
    healed.touch()
    with Job(tmp_path, *counting, launcher=launcher, slot_environment=interface) as job:
        job.resized("ab")
        (tmp_path / "enough").touch()
        assert job.ended() == "finished"
    assert exactly_once(job, 400, 30)


def test_members_that_died_while_nobody_supervised_are_replaced(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 400, "--epochs", 3, launcher=launcher) as first:
        first.resized("abc")
        victim = first.status.workers[0]
        first.detach()
    os.kill(victim.pid, signal.SIGKILL)
    with Job(tmp_path, "counting.py", "--samples", 400, "--epochs", 3, launcher=launcher, adopt=True) as second:
        second.resized("abc")
        assert second.ended() == "finished"
    assert exactly_once(second, 400, 3)
    assert not any(group.restored for group in second.of_kind(GroupFormed))


def test_a_job_whose_loop_is_left_early_has_finished_and_saved(tmp_path, launcher):
    """Although the leader takes longer after its loop than those who have ended are waited for."""
    patience = replace(PATIENCE, grace=1.0)
    options = ("--samples", 64, "--epochs", 5, "--leave-after", 1, "--conclude", 2.5)
    with Job(tmp_path, "counting.py", *options, launcher=launcher, patience=patience) as job:
        job.resized("ab")
        assert job.ended() == "finished"
    assert exactly_once(job, 64, 2)
    assert job.of_kind(CheckpointWritten)[-1].checkpoint.samples == 128
    with Job(tmp_path, "counting.py", *options, launcher=launcher) as again:  # it goes on with the epoch after that
        again.resized("a")
        assert again.ended() == "finished"
    assert exactly_once(again, 64, 3)


@pytest.mark.parametrize("options", [("--workers", 2), ("--stream",), ("--stream", "--workers", 1)])
def test_loader_processes_and_streams_lose_and_repeat_nothing(tmp_path, launcher, options):
    """A worker with loader processes is killed, and the job resized; streams are resumed by counting."""
    options = ("--samples", 203, "--epochs", 2, "--max-per-slot", 3, *options)
    with Job(tmp_path, "counting.py", *options, launcher=launcher) as job:
        for slots in ("ab", "bcd"):
            job.resized(slots)
        killed_at_s = monotonic()
        leader = next(worker for worker in job.status.workers if worker.slot == "b")  # a may still be leaving
        os.kill(leader.pid, signal.SIGKILL)
        job.wait(lambda status: status.generation >= 3 and status.settled)
        sleep(max(0.0, 0.2 - (monotonic() - killed_at_s)))
        job.resized("a")
        assert job.ended() == "finished"
    assert exactly_once(job, 203, 2)
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])


def test_a_newcomer_that_is_lost_with_its_slot_disturbs_nobody_and_the_job_goes_back(tmp_path, launcher):
    options = ("--samples", 400, "--epochs", 40, "--pause", 0.05, "--until", tmp_path / "enough", "--stuck")
    with Job(tmp_path, "counting.py", *options, launcher=launcher) as job:
        job.resized("a")
        job.resize(["b"])
        job.wait(lambda status: len(status.workers) == 2)
        job.lose({"b"}, "its machine is gone")
        job.wait(lambda status: len(status.workers) == 1)
        assert job.status.phase is JobPhase.RUNNING  # it is not to recover from anything
        job.resize(["a"])
        job.wait(lambda status: status.settled)
        (tmp_path / "enough").touch()
        assert job.ended() == "finished"
    assert exactly_once(job, 400, 40)
    assert len(job.of_kind(GroupFormed)) == 1


def test_workers_on_several_hosts_talk_and_meet_over_tcp(tmp_path, launcher):
    """The addresses 127.0.0.3 and so on stand for hosts of their own; the leader, who serves the meeting, is killed."""
    hosts = {slot: f"127.0.0.{number}" for number, slot in enumerate("abcd", start=3)}
    with Job(
        tmp_path,
        "counting.py",
        *("--samples", 403, "--epochs", 3),
        launcher=launcher,
        address=Address(host="127.0.0.2"),
        slot_environment=lambda slot: {ADDRESS: hosts[slot]},
    ) as job:
        for slots in ("ab", "abcd", "bd"):
            job.resized(slots)
        leader = next(worker for worker in job.status.workers if worker.slot == "b")  # others may still be leaving
        os.kill(leader.pid, signal.SIGKILL)
        job.wait(lambda status: status.generation >= 4 and status.settled)
        assert job.ended() == "finished"
    assert exactly_once(job, 403, 3)
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])
    assert not (tmp_path / "job/control").exists()
    assert not job._loop.meetings.exists()


def test_another_supervisor_takes_over_at_the_same_port(tmp_path, launcher):
    more = {"address": Address(host="127.0.0.2"), "slot_environment": lambda slot: {ADDRESS: "127.0.0.3"}}
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, launcher=launcher, **more) as first:
        first.resized("ab")
        pids = {worker.pid for worker in first.status.workers}
        first.detach()
    adopting = {"launcher": launcher, "adopt": True, **more}
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, **adopting) as second:
        second.wait(lambda status: status.progress is not None)
        assert {worker.pid for worker in second.status.workers} == pids
        second.resized("abc")
        assert second.ended() == "finished"
    assert exactly_once(second, 300, 3)


@pytest.fixture
def small_disk(tmp_path, small_file_system):
    """A folder for a job on a file system of its own of 1 MiB, and what fills it."""
    folder = tmp_path / "job"
    folder.mkdir()
    small_file_system(folder, "1m")
    return folder / "ballast"


@pytest.mark.needs_mounts
@pytest.mark.parametrize("afresh", [False, True])
def test_jobs_train_on_through_resizes_and_failures_on_a_full_disk(tmp_path, launcher, small_disk, afresh):
    """Nobody can write down who the workers are, nor print, nor save; every sample is trained with once nonetheless."""
    hurry = tmp_path / "hurry"
    options = ("--samples", 200, "--epochs", 40, "--every", 1, "--pause", 0.02, "--until", hurry, "--talk")
    started = PlainLauncher() if afresh else launcher
    with Job(tmp_path, "counting.py", *options, launcher=started) as job:
        job.resized("a")
        job.trained(40)
        with contextlib.suppress(OSError), small_disk.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        job.resized("ab")
        before = job.status.generation
        os.kill(job.status.workers[0].pid, signal.SIGKILL)
        job.wait(lambda status: status.generation >= before + 2 and status.settled)
        job.resized("b")
        job.trained(job.status.progress.samples + 40)
        assert job.status.phase == "running", (job.status.reason, job.logs[-2000:])
        small_disk.unlink()
        until(
            lambda: set(Handover.read(tmp_path / "job").workers) == {one.worker for one in job.status.workers},
            seen=lambda: (Handover.read(tmp_path / "job").workers, job.status.workers),
        )
        hurry.touch()
        assert job.ended() == "finished"
    assert exactly_once(job, 200, 40)
    assert reasons(job) == ["was killed (SIGKILL)"]
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])
