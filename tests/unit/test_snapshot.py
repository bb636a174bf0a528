"""Snapshots of a service: what is simulated of them, with which policy, and how long that may take."""

from __future__ import annotations

import json

import pytest

from geminid.cluster import Cluster
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.policies.base import Decision, Policy
from geminid.serve.livejob import LiveJob
from geminid.serve.snapshot import EXTRA_JOB, Coarse, ExtraJob, Snapshot, notes
from geminid.serve.whatif import UNKNOWN_S
from geminid.serve.whatif_process import Change

CLUSTER = Cluster.parse("cpu:1x4")


def waiting(job_id: str, slots: int) -> LiveJob:
    spec = JobSpec(name=job_id, command=("x",), min_slots=slots, max_slots=slots)
    return LiveJob(state=JobState.submitted(job_id=job_id, spec=spec, at_s=0.0), elastic=False)


def snapshot(*jobs: LiveJob, **rules: object) -> Snapshot:
    known = {"quotas": {}, "may_borrow": frozenset(), "patience_s": 600.0, "policy_text": "fifo", "cluster": CLUSTER}
    return Snapshot(now_s=100.0, jobs=jobs, **{**known, **rules})


def test_jobs_that_can_never_run_are_left_out_and_named():
    live = snapshot(waiting("j1", 2), waiting("j2", 8), waiting("j3", 2), quotas={"j3": {"owner ann": 1}})
    assert live.never(CLUSTER) == {"j2", "j3"}
    assert live.never(Cluster.parse("cpu:2x8")) == {"j3"}
    world = live.world(CLUSTER)
    assert [job.name for job in world.workload.jobs] == ["j1"]
    assert notes(live, CLUSTER, world) == [
        "left out, because they need more slots than they can have: j2, j3",
        "how long these take is a guess: j1",
    ]


def test_one_job_more_takes_as_long_as_is_said():
    live = snapshot(waiting("j1", 4)).plus(ExtraJob.parse("2x30m"))
    world = live.world(CLUSTER)
    assert {job.name: job.duration_s for job in world.workload.jobs} == {"j1": UNKNOWN_S, EXTRA_JOB: 1800.0}
    assert world.guessed == {"j1"}
    result = world.simulator(CLUSTER, live.policy("fifo")).run()
    ends = {job.facts.id: job.completed_s for job in result.jobs}
    assert ends[EXTRA_JOB] == pytest.approx(UNKNOWN_S + 1800.0, rel=0.05)


@pytest.mark.parametrize("text", ["2", "x30m", "2x", "ax30m", "0x30m", "2x0s", "2x-1s", "1000000x1h"])
def test_other_jobs_are_refused(text):
    with pytest.raises(ValueError, match=r"must|is not"):
        ExtraJob.parse(text)


def test_the_short_form_of_a_job_is_read_back():
    assert ExtraJob.parse("2x1h30m").short_form == "2x1h30m"


@pytest.mark.parametrize(
    "given",
    [
        {},
        [],
        {"surprise": 1},
        {"policy": ["fifo"]},
        {"policy": "x" * 1000},
        {"policy": ""},
        {"cluster": "nonsense"},
        {"cluster": "cpu:9999x9999"},
        {"job": 3},
        {"job": {"slots": 1}},
        {"job": {"slots": True, "seconds": 5}},
        {"job": {"slots": 1, "seconds": float("nan")}},
        {"job": {"slots": 1, "seconds": 5, "command": ["x"]}},
    ],
)
def test_changes_that_make_no_sense_are_refused_before_anything_is_simulated(given):
    with pytest.raises(Exception, match=r"must|can be changed"):
        Change.of(given)


def test_a_snapshot_is_read_as_the_interface_describes_it():
    plain = {
        "now_s": 5.0,
        "cluster": CLUSTER.to_dict(),
        "policy": "fifo",
        "patience_s": 60.0,
        "quotas": {"j1": {"owner ann": 2}},
        "may_borrow": ["owner ann"],
        "jobs": [],
    }
    read = Snapshot.from_dict(json.loads(json.dumps(plain)))
    assert (read.cluster, read.policy_text, read.may_borrow) == (CLUSTER, "fifo", frozenset({"owner ann"}))


class Counting(Policy):
    """Starts everything, and counts how often it is asked."""

    name = "counting"
    paper = "none"
    objective = "none"

    def __init__(self, interval_s: float | None) -> None:
        self.interval_s, self.asked = interval_s, 0

    def decide(self, view):
        self.asked += 1
        chosen = {job.id: job.allocation or ((0, job.facts.min_slots),) for job in view.jobs}
        return Decision(chosen, wake_at_s=view.now_s + 5.0)


@pytest.mark.parametrize("interval_s", [None, 60.0])
def test_a_policy_is_asked_less_and_less_often_in_a_long_simulation(interval_s):
    month_s = 30 * 86_400.0
    live = snapshot().plus(ExtraJob(1, month_s))
    policy = Counting(interval_s)
    live.world(CLUSTER).simulator(CLUSTER, Coarse(policy)).run()
    assert 0 < policy.asked < 300  # and not 518,400 or 43,200 times
