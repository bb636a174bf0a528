"""Time limits and retry rules: when a job is warned, ended, queued again or given up."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from geminid.configuration import Placement
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.process.launch import how_it_ended
from geminid.process.logfiles import RESTARTED
from geminid.retryrule import RetryAction, RetryRule, matching
from geminid.serve import limits
from geminid.serve import records as r
from geminid.serve.lifecycle import MAX_RULE_RETRY_S
from geminid.serve.livejob import job_from_dict, job_to_dict
from geminid.serve.retrying import exit_code_in, judged
from geminid.serve.state import ServiceState

PLACE = Placement.of({"n": [0]})


def running(**fields) -> ServiceState:
    """A state with job j1, which runs since 100 s."""
    state = ServiceState()
    spec = JobSpec.from_dict({"name": "x", "command": ["true"], "owner": "ann", **fields})
    for at_s, record in (
        (0.0, r.JobSubmitted(job_id="j1", spec=spec, elastic=False, job_kind="plain")),
        (100.0, r.Planned(targets={"j1": PLACE})),
        (100.0, r.JobStarting(job_id="j1", placement=PLACE)),
        (100.0, r.JobFormed(job_id="j1", placement=PLACE)),
    ):
        state.apply_or_raise(state.seq + 1, at_s, record)
    return state


def at(state: ServiceState, now_s: float) -> list[r.Record]:
    """What follows from limits at a time, applied."""
    records = limits.reached(state.jobs.values(), now_s)
    for record in records:
        state.apply_or_raise(state.seq + 1, now_s, record)
    return records


def test_a_job_is_warned_once_and_ends_as_failed_when_its_time_is_over():
    state = running(time_limit="100s", max_retries=3)
    assert at(state, 150.0) == []
    assert at(state, 191.0) == [r.TimeLimitNear(job_id="j1", left_s=9.0)]
    assert at(state, 192.0) == []
    assert at(state, 200.0) == [r.TimeLimitReached(job_id="j1", requeue=False)]
    job = state.jobs["j1"]
    assert (job.target, job.wish, job.time.is_up) == (None, "cancel", True)
    assert at(state, 201.0) == []
    state.apply_or_raise(state.seq + 1, 202.0, r.JobEnded(job_id="j1", how="stopped"))
    job = state.jobs["j1"]
    assert (job.phase, job.state.reason) == (JobPhase.FAILED, "its time limit of 1m40s is over")
    assert job_from_dict(job_to_dict(job)) == job


def test_time_counts_only_while_a_job_has_slots_and_begins_again_after_a_requeue():
    state = running(time_limit="100s", requeue=True)
    for now_s, record in (
        (150.0, r.JobEnded(job_id="j1", how="lost")),
        (500.0, r.Planned(targets={"j1": PLACE})),
        (500.0, r.JobStarting(job_id="j1", placement=PLACE)),
    ):
        state.apply_or_raise(state.seq + 1, now_s, record)
    assert at(state, 530.0) == []
    assert limits.time_left_s(state.jobs["j1"], 530.0) == pytest.approx(20.0)
    assert at(state, 550.0) == [r.TimeLimitReached(job_id="j1", requeue=True)]
    job = state.jobs["j1"]
    assert (job.wish, job.target, job.held_until_s > 550.0) == ("run", None, True)
    state.apply_or_raise(state.seq + 1, 551.0, r.JobEnded(job_id="j1", how="stopped"))
    assert state.jobs["j1"].phase is JobPhase.PENDING
    assert limits.time_left_s(state.jobs["j1"], 600.0) == pytest.approx(100.0)


def test_a_budget_ends_a_job_as_before():
    state = running(gpu_time_budget="50s")
    assert at(state, 149.0) == []
    (record,) = at(state, 150.0)
    assert isinstance(record, r.JobWished)
    assert record.over_budget


def test_a_requeue_needs_a_time_limit():
    with pytest.raises(InvalidInput, match="requeue is true, but needs time_limit as well"):
        JobSpec(name="x", command=("true",), requeue=True)


def test_rules_are_read_from_files_and_command_lines():
    rules = [
        {"exit_codes": [2], "then": "stop"},
        {"log": "NCCL*timeout", "exit_codes": [1], "then": "retry", "wait": "5m"},
    ]
    spec = JobSpec.from_dict({"name": "x", "command": ["true"], "retry": rules})
    assert spec.to_dict()["retry"] == rules
    assert RetryRule.parse("exit=75,137:retry:5m") == RetryRule(
        exit_codes=(75, 137), then=RetryAction.RETRY, wait_s=300.0
    )
    assert RetryRule.parse("log=error: out:stop") == RetryRule(log="error: out", then=RetryAction.STOP)
    for wrong in ("exit=x:stop", "exit=2", "what=2:stop", "log=:stop", "exit=2:stop:now", "exit=2:stop:5m", ""):
        with pytest.raises(InvalidInput):
            RetryRule.parse(wrong)
    with pytest.raises(InvalidInput, match=r"retry\[0\].then"):
        JobSpec.from_dict({"name": "x", "command": ["true"], "retry": [{"exit_codes": [2], "then": "maybe"}]})
    with pytest.raises(InvalidInput, match="must say when"):
        RetryRule(then=RetryAction.STOP, log="*")


def test_the_first_rule_that_matches_applies():
    memory = RetryRule(log="out of*memory", then=RetryAction.STOP)
    busy = RetryRule(exit_codes=(75,), then=RetryAction.RETRY, wait_s=60.0)
    both = RetryRule(exit_codes=(1,), log="NCCL", then=RetryAction.RETRY)
    rules = (memory, busy, both)
    assert matching(rules, 75, ["CUDA out of all memory"]) is memory
    assert matching(rules, 75, ["fine"]) is busy
    assert matching(rules, 1, ["an NCCL error"]) is both
    assert matching(rules, 1, ["memory, out of"]) is None
    assert matching(rules, None, []) is None


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (255, 255), (-signal.SIGKILL, 137), (-signal.SIGSEGV, 139)])
def test_the_exit_code_is_found_in_what_is_said_of_a_failure(code, expected):
    assert exit_code_in(f"it {how_it_ended(code)}") == expected


def test_a_failure_is_judged_by_its_exit_code_and_by_what_was_printed_since_the_last_start(tmp_path):
    (tmp_path / "out.log").write_text(f"out of memory\n{RESTARTED}2026-01-01 00:00:00 <==\nbusy\n")
    state = running(
        retry=[{"log": "out of memory", "then": "stop"}, {"exit_codes": [75], "then": "retry", "wait": "5m"}],
        max_retries=5,
    )
    crash = r.JobEnded(job_id="j1", how="crashed", reason="it ended with exit code 75")
    (waits,) = judged([crash], state.jobs, lambda job_id: tmp_path)
    assert waits == replace(crash, retry_s=300.0)
    state.apply_or_raise(state.seq + 1, 200.0, waits)
    assert state.jobs["j1"].held_until_s == 500.0
    assert MAX_RULE_RETRY_S > 300.0
    (tmp_path / "out.log").write_text("RuntimeError: CUDA out of memory\n")
    (stops,) = judged([crash], state.jobs, lambda job_id: tmp_path)
    assert isinstance(stops, r.JobEnded)
    assert (stops.how, "not tried again: a line with 'out of memory'" in stops.reason) == ("failed", True)
    other = r.JobEnded(job_id="j1", how="lost")
    assert judged([other, r.Noted(level="info", text="x")], state.jobs, lambda job_id: tmp_path)[0] is other


def test_a_rule_ends_an_elastic_job_when_one_of_its_workers_fails(tmp_path):
    (tmp_path / "w1.log").write_text("fine\n")
    (tmp_path / "w2.log").write_text("assertion failed\n")
    state = running(retry=[{"log": "assertion", "then": "stop"}])
    lost = r.WorkerLost(job_id="j1", worker="w2", slot="n/0", reason="ended with exit code 1")
    found = judged([lost], state.jobs, lambda job_id: tmp_path)
    assert found[0] is lost
    for record in found:
        state.apply_or_raise(state.seq + 1, 200.0, record)
    assert state.jobs["j1"].phase is JobPhase.FAILED
    assert judged([replace(lost, worker="w1")], state.jobs, lambda job_id: tmp_path) == [replace(lost, worker="w1")]
