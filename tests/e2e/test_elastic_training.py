"""Training on a changing number of workers: real processes, and every sample exactly once."""

import os
import signal
from time import sleep

import pytest

pytest.importorskip("torch")

from elastic import Job

from geminid.train.jobevents import CheckpointWritten, GroupFormed, WorkerEnded, WorkerStarted
from geminid.train.zygote import Zygote


@pytest.fixture(scope="module")
def launcher():
    with Zygote() as zygote:
        yield zygote


def exactly_once(job: Job, samples: int, epochs: int) -> bool:
    low, high, total, *_ = map(float, job.out.read_text().split())
    return (low, high, total) == (-epochs, -epochs, -samples * epochs)


def test_a_job_grows_shrinks_and_moves_without_losing_or_repeating_a_sample(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 403, "--epochs", 3, launcher=launcher) as job:
        for slots in ("a", "ab", "abcd", "bc", "d"):
            job.resized(slots)
        assert job.ended() == "finished"
    assert exactly_once(job, 403, 3)
    formed = job.of_kind(GroupFormed)
    assert [len(group.slots) for group in formed] == [1, 2, 4, 2, 3, 1]
    assert all(group.pause_s is not None for group in formed[1:])
    started = job.of_kind(WorkerStarted)
    assert [worker.slot for worker in started] == ["a", "b", "c", "d", "d"]  # whoever stayed kept its process
    assert all(ended.expected for ended in job.of_kind(WorkerEnded))


def test_survivors_of_a_killed_worker_go_on_from_memory(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 4, launcher=launcher) as job:
        job.resized("abc")
        victim = next(worker for worker in job.status.workers if worker.slot == "a")  # the leader
        os.kill(victim.pid, signal.SIGKILL)
        job.wait(lambda status: status.generation >= 3 and status.settled)
        assert job.ended() == "finished"
    assert exactly_once(job, 300, 4)
    formed = job.of_kind(GroupFormed)
    assert [len(group.slots) for group in formed] == [3, 2, 3]
    assert not any(group.restored for group in formed[1:])


def test_a_worker_that_hangs_is_ended_and_the_others_go_on(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 200, "--epochs", 3, launcher=launcher) as job:
        job.resized("ab")
        os.kill(job.status.workers[1].pid, signal.SIGSTOP)
        assert job.ended() == "finished"
    assert exactly_once(job, 200, 3)
    assert any("silent for 3 s" in ended.reason for ended in job.of_kind(WorkerEnded))


def test_when_all_die_the_last_intact_checkpoint_is_used(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, "--every", 0.2, launcher=launcher) as job:
        job.resized("ab")
        job.wait(lambda status: len(job.of_kind(CheckpointWritten)) >= 3)
        for worker in job.status.workers:
            os.kill(worker.pid, signal.SIGSTOP)
        newest = max((tmp_path / "job/checkpoints").glob("*.safetensors"))
        newest.write_bytes(newest.read_bytes()[:-10])
        for worker in job.status.workers:
            os.kill(worker.pid, signal.SIGKILL)
        assert job.ended() == "finished"
    assert exactly_once(job, 300, 3)
    assert job.of_kind(GroupFormed)[1].restored
    assert job.of_kind(GroupFormed)[1].step > 0
    assert "is not used" in job.logs


def test_a_stopped_job_goes_on_elsewhere_on_another_number_of_workers(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 2, launcher=launcher) as job:
        job.resized("ab")
        sleep(0.3)
        job.stop()
        assert job.ended() == "stopped"
    stopped_at = job.of_kind(CheckpointWritten)[-1].checkpoint.step
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 2, launcher=launcher) as job:
        job.resized("xyz")
        assert job.ended() == "finished"
    assert job.of_kind(GroupFormed)[0].step == stopped_at > 0
    assert exactly_once(job, 300, 2)


def test_another_supervisor_takes_over_running_workers(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, launcher=launcher) as first:
        first.resized("ab")
        pids = {worker.pid for worker in first.status.workers}
        first.detach()
    with Job(tmp_path, "counting.py", "--samples", 300, "--epochs", 3, launcher=launcher, adopt=True) as second:
        second.wait(lambda status: status.progress is not None)
        assert {worker.pid for worker in second.status.workers} == pids
        second.resized("abc")
        assert second.ended() == "finished"
    assert exactly_once(second, 300, 3)


def test_a_script_that_always_fails_fails_the_job_with_its_reason(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--batch", 0, launcher=launcher, most_failures=1) as job:
        job.resize(["a"])
        assert job.ended() == "failed"
    assert "worker w2 on a failed: ValueError: batch_size" in job.status.reason


def test_more_slots_than_samples_in_a_batch_are_refused(tmp_path, launcher):
    with Job(tmp_path, "counting.py", "--batch", 3, "--epochs", 50, launcher=launcher) as job:
        job.resized("a")
        with pytest.raises(ValueError, match="4 slots are too many: each needs at least 1 samples of a batch"):
            job.resize(list("abcd"))
        with pytest.raises(ValueError, match="stop it instead"):
            job.resize([])
