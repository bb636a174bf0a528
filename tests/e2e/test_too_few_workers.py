"""A job that has lost workers takes no step on fewer slots than it needs."""

import os
import signal

import pytest
from elastic import Job, every_sample_once, samples_in_the_last_version

from geminid.process.zygote import Zygote
from geminid.supervise.events import CheckpointWritten, FirstStepDone, GroupFormed


@pytest.fixture(scope="module")
def launcher():
    with Zygote(preload="geminid.train.preload") as zygote:
        yield zygote


def sizes_that_trained(job):
    """On how many slots the job took steps, generation by generation."""
    size = {formed.generation: len(formed.slots) for formed in job.of_kind(GroupFormed)}
    return [size[first.generation] for first in job.of_kind(FirstStepDone)]


@pytest.mark.parametrize(("fewest", "slots"), [(2, "ab"), (3, "abc"), (2, "abc")])
def test_survivors_that_are_too_few_take_no_step_before_others_have_come(tmp_path, launcher, fewest, slots):
    until = tmp_path / "until"
    options = ("--samples", 300, "--epochs", 4, "--lineage", "--until", until)
    with Job(tmp_path, "counting.py", *options, launcher=launcher, min_slots=fewest) as job:
        job.resized(slots)
        job.trained(50)
        os.kill(job.status.workers[-1].pid, signal.SIGKILL)
        job.wait(lambda status: status.generation >= 3 and status.settled)
        job.wait(lambda status: job.of_kind(FirstStepDone)[-1].generation == status.generation)
        until.touch()
        assert job.ended() == "finished", job.status.reason
    assert [len(group.slots) for group in job.of_kind(GroupFormed)] == [len(slots), len(slots) - 1, len(slots)]
    first, *between, last = sizes_that_trained(job)
    assert first == last == len(slots)
    assert between in ([], [len(slots) - 1])  # they take a step if they are enough, unless the other comes sooner
    assert all(size >= fewest for size in between)
    assert not any(group.restored for group in job.of_kind(GroupFormed)[1:])  # they kept what they had in memory
    assert samples_in_the_last_version(job) == every_sample_once(300, 4)


def test_a_job_that_waits_for_others_can_be_stopped_and_goes_on_later(tmp_path, launcher):
    options = ("--samples", 300, "--epochs", 2, "--lineage")
    with Job(tmp_path, "counting.py", *options, launcher=launcher, min_slots=2) as job:
        job.resized("ab")
        job.trained(50)
        os.kill(job.status.workers[0].pid, signal.SIGKILL)
        job.wait(lambda status: len(job.of_kind(GroupFormed)) >= 2)
        waiting_at = job.of_kind(GroupFormed)[-1].step
        job.stop()
        assert job.ended() == "stopped"
    assert job.of_kind(CheckpointWritten)[-1].checkpoint.step == waiting_at
    with Job(tmp_path, "counting.py", *options, "--attempt", 2, launcher=launcher, min_slots=2) as job:
        job.resized("xy")
        assert job.ended() == "finished"
    assert samples_in_the_last_version(job) == every_sample_once(300, 2)


def test_a_job_that_waits_for_others_goes_on_without_them_when_it_needs_fewer(tmp_path, launcher):
    until = tmp_path / "until"
    options = ("--samples", 300, "--epochs", 3, "--lineage", "--until", until)
    with Job(tmp_path, "counting.py", *options, launcher=launcher, min_slots=2) as job:
        job.resized("ab")
        job.trained(50)
        job.lose(["b"], "its machine is gone")
        job.wait(lambda status: len(job.of_kind(GroupFormed)) >= 2)
        assert sizes_that_trained(job) == [2]
        job.set_min_slots(1)
        job.wait(lambda status: len(job.of_kind(FirstStepDone)) >= 2)
        until.touch()
        assert job.ended() == "finished", job.status.reason
    assert sizes_that_trained(job) == [2, 1]
    assert samples_in_the_last_version(job) == every_sample_once(300, 3)
