"""Plain commands and elastic jobs side by side: neither kind lives at the other's expense."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from statistics import mean

import pytest

from geminid.cluster import Cluster
from geminid.job import JobSpec
from geminid.nodes import NodeGroup
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.minimumrun import MIN_RUN_S
from geminid.serve.planner import Planner
from geminid.serve.server import DEFAULT_POLICY
from geminid.serve.state import ServiceState
from geminid.testing.clock import ManualClock

STEP_S = 0.25
REPORT_S = 2.0


@dataclass
class Day:
    """Jobs that come at their times, run at once where the planner says, and are as fast as they have slots.

    With ``reports`` elastic jobs say how much work they are, and report every two seconds how far they have come.
    """

    slots: int
    reports: bool = False
    state: ServiceState = field(default_factory=ServiceState)
    clock: ManualClock = field(default_factory=ManualClock)
    left: dict[str, float] = field(default_factory=dict)
    alone_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    began_s: dict[str, float] = field(default_factory=dict)
    stopped_after_s: dict[str, list[float]] = field(default_factory=dict)
    shrunk: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        cluster = Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=self.slots, name="here")])
        types = {"gpu_types_by_node": {"here": "cpu"}}
        self.state.apply(1, 0.0, r.ServiceStarted(epoch=1, version="0", policy="", cluster=types))
        self.planner = Planner(cluster, make_policy(DEFAULT_POLICY), "", self.state, self.clock)

    def tell(self, *records: r.Record) -> None:
        for record in records:
            self.state.apply(self.state.seq + 1, self.clock.at_s, record)
            self.planner.notice(record)
            self.planner.sync(r.jobs_of(record))

    def submit(self, job_id: str, *, elastic: bool, work_slot_s: float, **asks: object) -> None:
        spec = JobSpec.from_dict({"name": job_id[0], "command": ["x"], "owner": job_id[0], **asks})
        self.left[job_id], self.alone_s[job_id] = work_slot_s, work_slot_s / (spec.max_slots or self.slots)
        self.tell(r.JobSubmitted(job_id=job_id, spec=spec, elastic=elastic))

    def step(self) -> None:
        self.planner.sync([])
        if self.clock.at_s >= self.planner.due_s():
            for record in self.planner.decide():
                assert isinstance(record, r.Planned), record
                self.follow(record)
        self.clock.at_s += STEP_S
        for job in list(self.state.jobs.values()):
            if job.state.placement is not None:
                self.left[job.id] -= STEP_S * job.state.num_slots
                if self.reports and job.elastic and self.clock.at_s % REPORT_S == 0:
                    self.report(job.id, job.state.num_slots)
                if self.left[job.id] <= 0:
                    self.ended_s[job.id] = self.clock.at_s
                    self.tell(r.JobEnded(job_id=job.id, how="succeeded"))

    def follow(self, plan: r.Planned) -> None:
        before = {job_id: self.state.jobs[job_id].state.num_slots for job_id in plan.targets}
        self.tell(plan)
        for job_id, place in plan.targets.items():
            if place is None:
                ran_s = self.clock.at_s - self.began_s[job_id]
                self.stopped_after_s.setdefault(job_id, []).append(ran_s)
                self.tell(r.JobStopping(job_id=job_id, reason=""), r.JobEnded(job_id=job_id, how="stopped"))
        for job_id, place in plan.targets.items():
            if place is not None:
                self.shrunk[job_id] += place.num_slots < before[job_id]
                if not before[job_id]:
                    self.began_s[job_id] = self.clock.at_s
                    self.tell(r.JobStarting(job_id=job_id, placement=place))
                self.tell(r.JobFormed(job_id=job_id, placement=place, pause_s=None, restored=False))

    def report(self, job_id: str, slots: int) -> None:
        """A step takes a second at any number of slots, and consumes 10 samples per slot."""
        work = self.alone_s[job_id] * (self.state.jobs[job_id].spec.max_slots or self.slots)
        done = 10 * int(work - self.left[job_id])
        if self.state.jobs[job_id].limits is None:
            sizes = {"initial_batch": 10, "largest_batch": 10 * self.slots}
            self.tell(
                r.JobReady(
                    job_id=job_id,
                    **sizes,
                    smallest_per_slot=10,
                    largest_per_slot=10,
                    parameter_count=1000,
                    work_samples=int(10 * work),
                )
            )
        self.tell(
            r.JobProgressed(
                job_id=job_id,
                progress=float(done),
                samples=done,
                step=done // 10,
                epoch=0,
                slots=slots,
                nodes=1,
                per_slot_batch=10,
                accumulation_steps=0,
                accumulation_s=1.0,
                step_s=1.0,
                squared_gradient=1.0,
                variance=1e6,
            )
        )

    def shares(self) -> dict[tuple[str, str], float]:
        """What the policy has charged to each queue and owner, in slots × seconds."""
        policy = self.planner.guard.policy.policy
        return dict(policy._shares._used)

    def slowdowns(self, kind: str) -> list[float]:
        """How many times as long as alone the jobs of a kind took, from submission to end."""
        jobs = [job for job in self.state.jobs.values() if job.id.startswith(kind)]
        return [(self.ended_s[job.id] - job.state.submitted_at_s) / self.alone_s[job.id] for job in jobs]


def day(
    slots: int,
    least: int,
    most: int,
    plain_s: float,
    every_s: float,
    count: int,
    *,
    reports: bool = False,
    owner: str = "p",
    elastic: bool = True,
    **asks: object,
) -> Day:
    """An elastic job of four minutes (or a command that takes as long), and a stream of plain commands beside it."""
    made = Day(slots, reports)
    size = {"slots": least} if least == most else {"min_slots": least, "max_slots": most}
    made.submit("e1", elastic=elastic, work_slot_s=240.0 * most, **size, **asks)
    while len(made.ended_s) < count + 1:
        number = len(made.state.jobs)
        if number <= count and made.clock.at_s >= 1.0 + every_s * (number - 1):
            made.submit(f"p{number}", elastic=False, work_slot_s=plain_s, slots=1, owner=owner)
        made.step()
        assert made.clock.at_s < 9000.0, made.left
    return made


seen_day = functools.cache(day)  # for tests that only look

STREAMS = [
    pytest.param((2, 1, 2, 10.0, 6.0, 60), id="as small as can be beside one command"),
    pytest.param((1, 1, 1, 10.0, 15.0, 30), id="one slot for all"),
    pytest.param((2, 1, 2, 5.0, 4.0, 90), id="very short commands"),
    pytest.param((4, 2, 4, 10.0, 6.0, 60), id="room for both"),
    pytest.param((1, 1, 1, 30.0, 31.0, 100), id="commands that fill the only slot"),
    pytest.param((1, 1, 1, 30.0, 60.0, 60), id="commands that take half of the only slot"),
    pytest.param((1, 1, 1, 300.0, 400.0, 10), id="commands longer than the job"),
    pytest.param((2, 2, 2, 30.0, 31.0, 100), id="a job that needs all slots"),
    pytest.param((2, 1, 2, 60.0, 31.0, 60), id="commands that fill both slots"),
]

BOTH_WAYS = pytest.mark.parametrize("reports", [False, True], ids=["silent", "reporting"])


@BOTH_WAYS
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_of_commands_stops_an_elastic_job_rarely_and_never_soon_after_it_has_started(stream, reports):
    seen = seen_day(*stream, reports=reports)
    stops = seen.stopped_after_s.get("e1", [])
    assert all(ran_s >= MIN_RUN_S for ran_s in stops)
    assert len(stops) <= seen.ended_s["e1"] / MIN_RUN_S
    assert not [job_id for job_id in seen.stopped_after_s if job_id.startswith("p")]


@BOTH_WAYS
@pytest.mark.parametrize("stream", STREAMS)
def test_neither_kind_is_slowed_down_much_more_than_the_other(stream, reports):
    seen = seen_day(*stream, reports=reports)
    elastic, plain = mean(seen.slowdowns("e")), mean(seen.slowdowns("p"))
    assert max(elastic, plain) < 3.0 * min(elastic, plain), (elastic, plain)


@pytest.mark.parametrize("stream", STREAMS)
def test_of_one_owner_the_elastic_job_is_not_slowed_down_much_more_and_counts_no_more_than_a_command(stream):
    """Nothing is known of how long the first jobs are: the first one runs, of whatever kind it is."""
    seen = day(*stream, reports=True, owner="e")
    elastic, plain = mean(seen.slowdowns("e")), mean(seen.slowdowns("p"))
    assert elastic < 3.0 * plain, (elastic, plain)
    beside_a_command = day(*stream, owner="e", elastic=False)
    assert plain < max(3.0 * elastic, 1.1 * mean(beside_a_command.slowdowns("p")))


def test_slots_that_plain_commands_have_are_charged_to_their_owner():
    made = Day(2)
    made.submit("p1", elastic=False, work_slot_s=40.0, slots=1)
    made.submit("q1", elastic=False, work_slot_s=200.0, slots=1)
    for _ in range(int(100.0 / STEP_S)):
        made.step()
    made.submit("e1", elastic=True, work_slot_s=100.0, slots=2)  # somebody to decide about
    for _ in range(int(10.0 / STEP_S)):
        made.step()
    used = {owner: gpu_s for (_, owner), gpu_s in made.shares().items()}
    assert used["p"] == pytest.approx(40.0, abs=1.0)
    assert used["q"] > 90.0


def test_its_own_minimum_running_time_is_kept_as_well():
    seen = day(2, 1, 2, 10.0, 6.0, 40, min_runtime="200s")
    assert all(ran_s >= 200.0 for ran_s in seen.stopped_after_s.get("e1", []))


def test_an_elastic_job_shrinks_for_newcomers_before_anybody_would_stop_it():
    made = Day(4)
    made.submit("e1", elastic=True, work_slot_s=1e6, min_slots=1, max_slots=4)
    for number in range(1, 4):
        made.submit(f"p{number}", elastic=False, work_slot_s=1e6, slots=1)
    for _ in range(int(MIN_RUN_S / STEP_S) - 10):
        made.step()
    assert {job.id: job.state.num_slots for job in made.state.jobs.values()} == {"e1": 1, "p1": 1, "p2": 1, "p3": 1}
    made.submit("q1", elastic=False, work_slot_s=10.0, slots=1)
    made.step()
    assert made.state.jobs["e1"].state.num_slots == 1
    assert "e1 has just started" in made.planner.reasons["q1"]


def test_a_job_of_higher_priority_need_not_wait():
    made = Day(1)
    made.submit("e1", elastic=True, work_slot_s=1e6, slots=1)
    for _ in range(40):
        made.step()
    made.submit("p1", elastic=False, work_slot_s=1e6, slots=1, priority=200)
    for _ in range(40):
        made.step()
    assert {job.id: job.state.num_slots for job in made.state.jobs.values()} == {"e1": 0, "p1": 1}
