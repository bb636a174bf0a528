"""``geminid bench rescale``, the README's headline: it measures, and says clearly why where it cannot."""

import sys

import pytest
from elastic import Job

from geminid.bench import rescale
from geminid.bench.live_jobs import BenchmarkFailed
from geminid.bench.rescale import _Job
from geminid.process.launch import PlainLauncher
from geminid.supervise.events import JobEnded, JobPhase
from geminid.supervise.spec import WorkerSpec


def test_whoever_waits_for_the_end_of_a_job_has_heard_its_last_event(tmp_path):
    """The status says that the job is over before the last event has been emitted."""
    with Job(tmp_path, "counting.py", "--epochs", 10_000, launcher=PlainLauncher()) as job:
        job.resized("a")
        job.trained(1)
        job.stop()
        ended = job.wait_for_end()
        assert (ended.state, ended.stopped_at_s is not None) == (JobPhase.STOPPED, True)
        assert job.of_kind(JobEnded) == [ended]


def test_a_job_that_fails_is_reported_with_what_was_expected_what_happened_and_where_to_look(tmp_path, monkeypatch):
    failing = {"command": (sys.executable, "-c", "raise SystemExit('no luck')"), "max_failures": 0}
    monkeypatch.setattr(rescale, "WorkerSpec", lambda **spec: WorkerSpec(**{**spec, **failing}))
    with _Job(tmp_path, PlainLauncher()) as job, pytest.raises(BenchmarkFailed) as told:
        job.reach(2)
    sentence = str(told.value)
    assert "expected the benchmark's job to train on 2 slots, but after" in sentence
    assert "it is failed" in sentence
    assert "ended with exit code 1" in sentence
    assert "are: no luck" in sentence
    assert sentence.endswith(f"its logs are in {tmp_path / 'logs'}")
