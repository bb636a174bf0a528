"""Whatever is submitted, asked for and taken away, under whatever policy: plans keep to sizes and quotas."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effort import examples
from geminid.cluster import Cluster
from geminid.job import JobSpec
from geminid.nodes import NodeGroup
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.planner import Planner
from geminid.serve.state import ServiceState
from geminid.serve.translation import allocation_of
from geminid.testing.clock import ManualClock

SLOTS = 6
CLUSTER = Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=SLOTS, name="here")])
POLICIES = ("geminid:gap=0", "geminid:gap=0,fill=true", "fifo", "sia", "tiresias")


class Users(RuleBasedStateMachine):
    """A planner, its log, and people who change their minds."""

    @initialize(policy=st.sampled_from(POLICIES), pace_s=st.sampled_from([0.0, 1.0, 100.0]), prompt=st.booleans())
    def begin(self, policy: str, pace_s: float, prompt: bool) -> None:
        self.pace_s, self.prompt = pace_s, prompt
        self.state, self.clock, self.count = ServiceState(), ManualClock(), 0
        started = {"gpu_types_by_node": {"here": "cpu"}}
        self.state.apply(1, 0.0, r.ServiceStarted(epoch=1, version="0", policy=policy, cluster=started))
        self.planner = Planner(CLUSTER, make_policy(policy), policy, self.state, self.clock)

    def tell(self, record: r.Record) -> None:
        used = self.used()
        self.state.apply(self.state.seq + 1, self.clock.at_s, record)
        if isinstance(record, r.Planned):
            self.check_plan(record, used)
        self.planner.notice(record)
        self.planner.sync([job_id] if (job_id := getattr(record, "job_id", None)) else [])

    def used(self) -> Counter[tuple[str, str]]:
        """Slots that are planned for every owner and every queue."""
        used: Counter[tuple[str, str]] = Counter()
        for job in self.state.jobs.values():
            for name in (("owner", job.spec.owner or ""), ("queue", job.spec.queue)):
                used[name] += job.target.num_slots if job.target else 0
        return used

    def check_plan(self, record: r.Planned, used: Counter[tuple[str, str]]) -> None:
        """What was written keeps to sizes, quotas and what is out of service: counted here, not by the service."""
        for name, slots in self.used().items():
            limit = self.state.quotas.get(name)
            assert limit is None or name in self.state.borrowers or slots <= max(limit, used[name]), (name, slots)
        for job_id in record.targets:
            job = self.state.jobs[job_id]
            if job.target is not None:
                size, most = job.target.num_slots, job.spec.max_slots
                assert size >= job.spec.min_slots, (job_id, size)
                assert most is None or size <= most, (job_id, size)
                assert "here" not in self.state.drained, job_id

    def happen(self, record: r.Record) -> None:
        """Something happens, and a plan is made, which processes that are prompt follow at once."""
        self.tell(record)
        self.clock.at_s += self.pace_s
        for planned in self.planner.decide():
            assert not isinstance(planned, r.Noted), planned
            self.tell(planned)
        if self.prompt:
            self.follow()

    @rule()
    def follow(self) -> None:
        """Processes get where they are planned to be: those that have to go first, then those that come."""
        for job in list(self.state.jobs.values()):
            if not job.phase.is_terminal and job.target is None and job.state.placement is not None:
                self.tell(r.JobStopping(job_id=job.id, reason="planned"))
                self.tell(r.JobEnded(job_id=job.id, how="stopped"))
        for job in list(self.state.jobs.values()):
            if job.target is not None and job.target != job.state.placement:
                if job.state.placement is None:
                    self.tell(r.JobStarting(job_id=job.id, placement=job.target))
                self.tell(r.JobFormed(job_id=job.id, placement=job.target, pause_s=None, restored=False))

    def one(self, which: int, *, planned: bool = False) -> str | None:
        jobs = [j.id for j in self.state.jobs.values() if not j.phase.is_terminal and (j.target or not planned)]
        return jobs[which % len(jobs)] if jobs else None

    @rule(
        sizes=st.tuples(st.integers(1, 4), st.integers(0, 4)),
        fixed=st.booleans(),
        elastic=st.booleans(),
        owner=st.sampled_from(["ann", "bob"]),
        queue=st.sampled_from(["day", "night"]),
    )
    def submit(self, sizes: tuple[int, int], fixed: bool, elastic: bool, owner: str, queue: str) -> None:
        self.count += 1
        least, more = sizes
        asked = {"slots": least} if fixed or not elastic else {"min_slots": least, "max_slots": least + more}
        spec = JobSpec.from_dict({"name": "x", "command": ["x"], "owner": owner, "queue": queue, **asked})
        self.happen(r.JobSubmitted(job_id=f"j{self.count}", spec=spec, elastic=elastic))

    @rule(
        name=st.sampled_from([("owner", "ann"), ("owner", "bob"), ("queue", "day"), ("queue", "night")]),
        slots=st.none() | st.integers(0, SLOTS),
        borrow=st.booleans(),
    )
    def set_quota(self, name: tuple[str, str], slots: int | None, borrow: bool) -> None:
        self.happen(r.QuotaSet(of=name[0], name=name[1], slots=slots, by="op", borrow=borrow and slots is not None))

    @rule(which=st.integers(0, 20), least=st.integers(1, 4), more=st.integers(0, 4))
    def change_size(self, which: int, least: int, more: int) -> None:
        job_id = self.one(which)
        if job_id is not None and self.state.jobs[job_id].elastic:
            self.happen(r.JobChanged(job_id=job_id, by="ann", min_slots=least, max_slots=least + more))

    @rule(slot=st.integers(0, SLOTS - 1), cordoned=st.booleans())
    def cordon(self, slot: int, cordoned: bool) -> None:
        self.happen(r.SlotCordoned(node="here", slot=slot, cordoned=cordoned, by="op"))

    @rule(which=st.integers(0, 20), how=st.sampled_from(["succeeded", "failed", "crashed", "lost"]))
    def end(self, which: int, how: str) -> None:
        job_id = self.one(which, planned=True)
        if job_id is not None:
            self.happen(r.JobEnded(job_id=job_id, how=how))

    @rule(which=st.integers(0, 20), wish=st.sampled_from(["pause", "run", "cancel"]))
    def wish(self, which: int, wish: str) -> None:
        job_id = self.one(which)
        if job_id is not None and self.state.jobs[job_id].wish not in ("cancel", wish):
            self.happen(r.JobWished(job_id=job_id, wish=wish, by="ann"))

    @rule(drained=st.booleans())
    def drain(self, drained: bool) -> None:
        if ("here" in self.state.drained) != drained:
            self.happen(r.NodeDrained(node="here", drained=drained, by="op"))

    @rule()
    def be_killed(self) -> None:
        """The planner is gone; another one knows what the log says."""
        self.planner.start_over()

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        if hasattr(self, "state"):
            self.state.check()

    @invariant()
    def the_targets_are_the_plan_of_the_engine(self) -> None:
        """The service has jobs where the engine's commands have put them, and nowhere else."""
        if hasattr(self, "state"):
            for job_id, view in self.planner.engine.jobs.items():
                target = self.state.jobs[job_id].target
                assert view.allocation == (() if target is None else allocation_of(target, CLUSTER)), job_id


TestPlans = Users.TestCase
TestPlans.settings = settings(max_examples=examples(100), stateful_step_count=25)


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_job_is_not_moved_at_a_size_that_is_not_allowed_any_more(first: int, then: int, slot: int) -> None:
    """It starts, and must not be resized yet, when its size changes and then one of its slots is cordoned."""
    users = Users()
    users.begin(policy="geminid:gap=0", pace_s=0.0, prompt=False)
    users.submit(elastic=True, fixed=False, owner="ann", queue="day", sizes=(first, 0))
    users.change_size(least=then, more=0, which=0)
    users.cordon(cordoned=True, slot=slot)
