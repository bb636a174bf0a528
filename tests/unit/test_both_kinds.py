"""Plain commands and elastic jobs side by side: neither kind lives at the other's expense."""

from __future__ import annotations

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


@dataclass
class Day:
    """Jobs that come at their times, run at once where the planner says, and are as fast as they have slots."""

    slots: int
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

    def slowdowns(self, kind: str) -> list[float]:
        """How many times as long as alone the jobs of a kind took, from submission to end."""
        jobs = [job for job in self.state.jobs.values() if job.id.startswith(kind)]
        return [(self.ended_s[job.id] - job.state.submitted_at_s) / self.alone_s[job.id] for job in jobs]


def day(slots: int, least: int, most: int, plain_s: float, every_s: float, count: int, **asks: object) -> Day:
    """An elastic job of four minutes, and a stream of plain commands beside it."""
    made = Day(slots)
    size = {"slots": least} if least == most else {"min_slots": least, "max_slots": most}
    made.submit("e1", elastic=True, work_slot_s=240.0 * most, **size, **asks)
    while len(made.ended_s) < count + 1:
        number = len(made.state.jobs)
        if number <= count and made.clock.at_s >= 1.0 + every_s * (number - 1):
            made.submit(f"p{number}", elastic=False, work_slot_s=plain_s, slots=1)
        made.step()
        assert made.clock.at_s < 5000.0, made.left
    return made


STREAMS = [
    pytest.param((2, 1, 2, 10.0, 6.0, 60), id="as small as can be beside one command"),
    pytest.param((1, 1, 1, 10.0, 15.0, 30), id="one slot for all"),
    pytest.param((2, 1, 2, 5.0, 4.0, 90), id="very short commands"),
    pytest.param((4, 2, 4, 10.0, 6.0, 60), id="room for both"),
]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_of_commands_stops_an_elastic_job_rarely_and_never_soon_after_it_has_started(stream):
    seen = day(*stream)
    stops = seen.stopped_after_s.get("e1", [])
    assert all(ran_s >= MIN_RUN_S for ran_s in stops)
    assert len(stops) <= seen.ended_s["e1"] / MIN_RUN_S
    assert not [job_id for job_id in seen.stopped_after_s if job_id.startswith("p")]


@pytest.mark.parametrize("stream", STREAMS)
def test_neither_kind_is_slowed_down_much_more_than_the_other(stream):
    seen = day(*stream)
    elastic, plain = mean(seen.slowdowns("e")), mean(seen.slowdowns("p"))
    assert max(elastic, plain) < 3.0 * min(elastic, plain), (elastic, plain)


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
    made.submit("p4", elastic=False, work_slot_s=10.0, slots=1)
    made.step()
    assert made.state.jobs["e1"].state.num_slots == 1
    assert "e1 has just started" in made.planner.reasons["p4"]


def test_a_job_of_higher_priority_need_not_wait():
    made = Day(1)
    made.submit("e1", elastic=True, work_slot_s=1e6, slots=1)
    for _ in range(40):
        made.step()
    made.submit("p1", elastic=False, work_slot_s=1e6, slots=1, priority=200)
    for _ in range(40):
        made.step()
    assert {job.id: job.state.num_slots for job in made.state.jobs.values()} == {"e1": 0, "p1": 1}
