"""A long queue of equal jobs: what is decided is what would be if the policy saw every one of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.cluster import Cluster
from geminid.job import JobSpec
from geminid.nodes import NodeGroup
from geminid.policies.base import ClusterView, Decision, Policy
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.guard import AroundAPolicy
from geminid.serve.planner import Planner
from geminid.serve.state import ServiceState
from geminid.testing.clock import ManualClock

MIXED = Cluster.of_groups([NodeGroup(gpu_type="a100", slots=4, name="a"), NodeGroup(gpu_type="t4", slots=2, name="b")])
#: To the geminid policy, types are all the same to jobs of which nothing is known: any may be chosen.
PLAIN = Cluster.of_groups(
    [NodeGroup(gpu_type="a100", slots=3, name="a"), NodeGroup(gpu_type="a100", slots=2, name="b")]
)
POLICIES = {
    "fifo": MIXED,
    "las:interval=none": MIXED,
    "geminid:gap=0": PLAIN,
    "geminid:gap=2,fill=true,half_life=3600": PLAIN,
}


@dataclass(slots=True)
class Everybody(AroundAPolicy):
    """The same policy, which is shown every job."""

    name = "everybody"
    paper = "none"
    objective = "another policy's"

    @property
    def needs_every_job(self) -> bool:
        return True

    def decide(self, view: ClusterView) -> Decision:
        assert not view.behind
        return self.policy.decide(view)


class Service:
    """A planner with its state; plans are carried out at once."""

    def __init__(self, policy: Policy, cluster: Cluster) -> None:
        self.state, self.clock, self.count = ServiceState(), ManualClock(), 0
        types = {"gpu_types_by_node": {node.name: node.gpu_type for node in cluster.nodes}}
        self.state.apply(1, 0.0, r.ServiceStarted(epoch=1, version="0", policy="", cluster=types))
        self.planner = Planner(cluster, policy, "", self.state, self.clock)
        self.most_shown = 0

    def tell(self, *records: r.Record) -> None:
        for record in records:
            self.state.apply(self.state.seq + 1, self.clock.at_s, record)
            self.planner.notice(record)
            self.planner.sync(r.jobs_of(record))

    def submit(self, count: int, asks: dict[str, object]) -> None:
        spec = JobSpec.from_dict({"name": "x", "command": ["x"], **asks})
        for _ in range(count):
            self.count += 1
            self.clock.at_s += 0.01
            self.tell(r.JobSubmitted(job_id=f"j{self.count}", spec=spec, elastic=spec.max_slots != spec.min_slots))

    def end(self, which: int, how: str) -> None:
        running = [job.id for job in self.state.jobs.values() if job.target is not None]
        if running:
            self.tell(r.JobEnded(job_id=running[which % len(running)], how=how))

    def cancel(self, which: int) -> None:
        waiting = [job.id for job in self.state.jobs.values() if job.wants_slots and job.target is None]
        if waiting:
            self.tell(r.JobWished(job_id=waiting[which % len(waiting)], wish="cancel", by="ann"))

    def raise_priority(self, which: int, priority: int) -> None:
        waiting = [job.id for job in self.state.jobs.values() if job.wants_slots and job.target is None]
        if waiting:
            self.tell(r.JobChanged(job_id=waiting[which % len(waiting)], by="ann", priority=priority))

    def quota(self, owner: str, slots: int | None) -> None:
        self.tell(r.QuotaSet(of="owner", name=owner, slots=slots, by="op"))

    def decide(self, after_s: float) -> dict[str, int]:
        self.clock.at_s += after_s
        self.planner.sync([])
        self.most_shown = max(self.most_shown, len(self.planner.engine.jobs))
        for record in self.planner.decide():
            assert isinstance(record, r.Planned), record
            self.tell(record)
            for job_id, place in record.targets.items():
                job = self.state.jobs[job_id]
                if place is None and job.state.placement is not None:
                    self.tell(r.JobStopping(job_id=job_id, reason=""), r.JobEnded(job_id=job_id, how="stopped"))
            for job_id, place in record.targets.items():
                if place is not None:
                    if self.state.jobs[job_id].state.placement is None:
                        self.tell(r.JobStarting(job_id=job_id, placement=place))
                    self.tell(r.JobFormed(job_id=job_id, placement=place, pause_s=None, restored=False))
        return {job.id: job.target.num_slots for job in self.state.jobs.values() if job.target is not None}


ASKS = st.fixed_dictionaries(
    {"owner": st.sampled_from(["ann", "bob"])},
    optional={
        "slots": st.sampled_from([1, 1, 2]),
        "priority": st.sampled_from([0, 0, 30]),
        "gpu_types": st.just(["a100"]),
        "name": st.sampled_from(["one", "other"]),
    },
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 12), ASKS),
        st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(["succeeded", "crashed", "lost"])),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("raise_priority"), st.integers(0, 30), st.sampled_from([0, 30])),
        st.tuples(st.just("quota"), st.sampled_from(["ann", "bob"]), st.sampled_from([None, 1, 2])),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("policy", POLICIES)
@given(steps=STEPS, after_s=st.sampled_from([0.3, 5.0, 40.0]))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_the_decision_is_that_of_a_policy_that_sees_every_job(policy, steps, after_s):
    cluster = POLICIES[policy]
    short, full = Service(make_policy(policy), cluster), Service(Everybody(make_policy(policy)), cluster)
    for name, *arguments in steps:
        for service in (short, full):
            getattr(service, name)(*arguments)
        assert short.decide(after_s) == full.decide(after_s), name
        short.end(0, "succeeded")
        full.end(0, "succeeded")
        assert short.decide(after_s) == full.decide(after_s), f"after {name}"
    assert short.most_shown <= full.most_shown
