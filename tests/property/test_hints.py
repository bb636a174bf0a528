"""Suggestions are true: whatever is proposed to the owner of a job is done here, and does what was promised."""

from __future__ import annotations

import copy
from math import inf

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.cluster import Cluster
from geminid.engine.explain import Explanation, Quota, explain
from geminid.engine.hints import MAX_PRIORITY, Hint, Levers, fewer_slots, more_slots, raise_priority
from geminid.job import JobSpec
from geminid.nodes import NodeGroup
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.cordons import kept_slots
from geminid.serve.deadlines import judged
from geminid.serve.documents import quota_documents
from geminid.serve.levers import Competition, levers_of
from geminid.serve.planner import Planner
from geminid.serve.state import ServiceState
from geminid.testing.clock import ManualClock

CLUSTER = Cluster.of_groups(
    [NodeGroup(gpu_type="a100", slots=3, name="a"), NodeGroup(gpu_type="t4", slots=2, name="b")]
)


class World:
    """A planner whose plans are carried out at once."""

    def __init__(self, policy: str) -> None:
        self.state, self.clock, self.policy = ServiceState(), ManualClock(), make_policy(policy)
        types = {"gpu_types_by_node": {node.name: node.gpu_type for node in CLUSTER.nodes}}
        slots = {node.name: node.slots for node in CLUSTER.nodes}
        started = r.ServiceStarted(epoch=1, version="0", policy="", cluster={**types, "slots": slots})
        self.state.apply(1, 0.0, started)
        self.planner = Planner(CLUSTER, self.policy, "", self.state, self.clock)

    def other(self) -> World:
        """A world that is like this one, and goes its own way."""
        world = copy.copy(self)
        world.state, world.clock, world.policy = self.state.copy(), ManualClock(), make_policy(self.policy.name)
        world.clock.at_s = self.clock.at_s
        world.planner = Planner(CLUSTER, world.policy, "", world.state, world.clock)
        return world

    def tell(self, *records: r.Record) -> None:
        for record in records:
            self.state.apply(self.state.seq + 1, self.clock.at_s, record)
            self.planner.notice(record)
            self.planner.sync(r.jobs_of(record))

    def decide(self) -> None:
        self.clock.at_s += 100.0
        self.planner.sync([])
        for record in self.planner.decide():
            self.tell(record)
            if not isinstance(record, r.Planned):
                continue
            for job_id, place in record.targets.items():
                if place is None and self.state.jobs[job_id].state.placement is not None:
                    self.tell(r.JobStopping(job_id=job_id, reason=""), r.JobEnded(job_id=job_id, how="stopped"))
            for job_id, place in record.targets.items():
                if place is not None:
                    if self.state.jobs[job_id].state.placement is None:
                        self.tell(r.JobStarting(job_id=job_id, placement=place))
                    self.tell(r.JobFormed(job_id=job_id, placement=place, pause_s=None, restored=False))

    def explained(self, job_id: str) -> Explanation:
        job = self.state.jobs[job_id]
        quotas = [
            Quota(f"{row['of']} {row['name']}", row["slots"], row["used"], row["borrow"])
            for row in quota_documents(self.state)
            if (row["of"], row["name"]) in (("queue", job.spec.queue), ("owner", job.spec.owner))
        ]
        view, shown_for = self.planner.view_with(job_id)
        told = explain(
            view,
            job_id,
            quotas=quotas,
            decided=self.planner.reasons.get(shown_for),
            cordoned={one: len(slots) for one, slots in kept_slots(self.state, CLUSTER).items()},
            levers=levers_of(job, self.state, CLUSTER, self.policy),
        )
        assert told is not None
        return told

    def usable(self) -> int:
        return sum(self.planner.engine.view().usable_slots)

    def free(self, job_id: str) -> int:
        """The free slots of the type that has most of them for a job."""
        types, view = self.state.jobs[job_id].spec.gpu_types.names, self.planner.engine.view()
        counts = [
            sum(max(view.free_slots[node], 0) for node in nodes)
            for gpu_type, nodes in CLUSTER.nodes_of_type.items()
            if not types or gpu_type in types
        ]
        return max(counts, default=0)

    def slots(self, job_id: str) -> int:
        target = self.state.jobs[job_id].target
        return 0 if target is None else target.num_slots

    def served(self, job_id: str, turns: int = 12) -> int:
        """After how many ends of jobs that hold slots it could use, the first submitted first, a job has some."""
        for turn in range(turns):
            self.decide()
            if self.state.jobs[job_id].target is not None:
                return turn
            if in_its_way := self.holders(job_id):
                self.tell(r.JobEnded(job_id=in_its_way[0], how="succeeded"))
        return turns

    def holders(self, job_id: str) -> list[str]:
        """The jobs on GPU types that a job may use."""
        types = self.state.jobs[job_id].spec.gpu_types.names or tuple(CLUSTER.type_index)
        running = [job for job in self.state.jobs.values() if job.target is not None and job.id != job_id]
        return [job.id for job in running if self.state.gpu_types[job.target.node_names[0]] in types]


def follow(world: World, hint: Hint) -> World:
    """The world in which somebody has done what was suggested."""
    assert hint.change is not None
    what, whose, value = hint.change
    done = world.other()
    if what == "quota":
        of, _, name = whose.partition(" ")
        done.tell(r.QuotaSet(of=of, name=name, slots=value, by="op"))
    elif what == "reopen":
        _, verb, where, _ = whose.split()
        node, _, slot = where.partition("/")
        if verb == "drain":
            done.tell(r.NodeDrained(node=where, drained=False, by="op"))
        else:
            done.tell(r.SlotCordoned(node=node, slot=int(slot), cordoned=False, by="op"))
    else:
        done.tell(r.JobChanged(job_id=whose, by="op", **{what: value}))
    return done


def check(world: World, job_id: str, told: Explanation, hint: Hint) -> None:
    """That a suggestion does what it promises."""
    if hint.change is None:
        return
    done, job = follow(world, hint), world.state.jobs[job_id]
    what, _, value = hint.change
    if what == "priority":
        assert world.policy.regards_priority
        assert job.spec.priority < value <= MAX_PRIORITY
        assert not told.reason.startswith("the quota of")
        others = [other for other in world.state.jobs.values() if other.id != job_id and other.wants_slots]
        waiting = [other.spec for other in others if other.target is None]
        narrow = all(job.spec.min_slots <= spec.min_slots for spec in waiting)  # wide ones wait for their turn, too
        if job.target is None and narrow and all(spec.priority < MAX_PRIORITY for spec in waiting):
            first = follow(world, Hint("", ("priority", job_id, MAX_PRIORITY)))
            assert first.served(job_id) <= len(world.holders(job_id)), hint  # nobody who waits now goes before it
        before, after = (one.planner.engine.jobs[job_id].facts.weight for one in (world, done))
        assert after > before, hint
    elif what == "min_slots":
        assert 1 <= value < job.spec.min_slots
        assert job.elastic
        if job.target is None and told.reason.startswith(("all but", "the only slot")):
            done.decide()
            assert done.state.jobs[job_id].target is not None, hint
        else:
            assert done.explained(job_id).reason != told.reason, hint
    elif what == "max_slots":
        before, after = (one.planner.engine.jobs[job_id].facts.max_slots for one in (world, done))
        assert after > before, hint
    elif what == "quota":
        assert world.state.quotas[tuple(hint.change[1].split(" ", 1))] < value <= CLUSTER.total_slots  # type: ignore[index]
        blocked = [one for one in told.hints if one.change and one.change[0] == "quota"]
        for one in blocked:
            done = follow(done, one)
        reason = done.explained(job_id).reason
        if "cannot start" in told.reason and world.free(job_id) < job.spec.min_slots:
            assert "cannot start" not in reason, hint  # and what it waits for now is slots
            assert "quota" not in reason or "; besides, " in reason, hint
        else:
            assert "quota" not in reason, hint
    elif what == "reopen":
        assert done.usable() > world.usable(), hint


JOB = st.fixed_dictionaries(
    {"owner": st.sampled_from(["ann", "bob"]), "priority": st.sampled_from([0, 0, -50, 1000])},
    optional={"gpu_types": st.sampled_from([["a100"], ["t4"]])},
)
SIZE = st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans())


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A service with some jobs, under some quotas, with some slots out of service."""
    quota = st.sampled_from([("owner", "ann"), ("queue", "default")])
    quotas = draw(st.dictionaries(quota, st.integers(0, 3), max_size=2))
    cordoned = draw(st.sets(st.sampled_from([("a", 0), ("a", 2), ("b", 1)]), max_size=2))
    drained, jobs = draw(st.booleans()), draw(st.lists(st.tuples(JOB, SIZE), min_size=1, max_size=7))
    world = World(draw(st.sampled_from(["geminid", "fifo"])))
    for (of, name), slots in quotas.items():
        world.tell(r.QuotaSet(of=of, name=name, slots=slots, by="op"))
    for node, slot in cordoned:
        world.tell(r.SlotCordoned(node=node, slot=slot, cordoned=True, by="op"))
    if drained:
        world.tell(r.NodeDrained(node="b", drained=True, by="op"))
    for i, (asks, (least, more, elastic)) in enumerate(jobs):
        sizes = {"min_slots": least, "max_slots": least + more} if elastic else {"slots": least}
        spec = JobSpec.from_dict({"name": "x", "command": ["x"], **asks, **sizes})
        world.clock.at_s += 1.0
        world.tell(r.JobSubmitted(job_id=f"j{i + 1}", spec=spec, elastic=elastic))
        world.decide()
    world.decide()
    return world


PATIENT = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@given(world=worlds())
@PATIENT
def test_every_suggestion_does_what_it_promises(world):
    hints = [
        (job_id, told, hint)
        for job_id in world.planner.engine.jobs
        for told in [world.explained(job_id)]
        for hint in told.hints
    ]
    assume(hints)
    for job_id, told, hint in hints:
        check(world, job_id, told, hint)


def cancelled(world: World, job_ids: list[str]) -> World:
    """The world in which somebody has cancelled some jobs."""
    done = world.other()
    for job_id in job_ids:
        held = done.state.jobs[job_id].state.placement is not None
        done.tell(r.JobWished(job_id=job_id, wish="cancel", by="op"))
        if held:
            done.tell(r.JobEnded(job_id=job_id, how="stopped"))
    done.decide()
    return done


@given(world=worlds())
@PATIENT
def test_every_suggestion_about_a_deadline_does_what_it_promises(world):
    """Those of a job that will not be done in time beside the others, and would be if it were alone."""
    competition, some = Competition(world.state, CLUSTER), False
    for job_id, told in [(one, world.explained(one)) for one in world.planner.engine.jobs]:
        job = world.state.jobs[job_id]
        others = [other.id for other in world.state.jobs.values() if other.id != job_id and other.wants_slots]
        deadline = judged(
            10.0,
            forecast=[90.0, 900.0],
            starts=None if job.target else [85.0, 850.0],
            known=True,
            alone={slots: 9.0 / slots for slots in range(1, 6)} if job.elastic else {},
            most_slots=job.spec.max_slots,
            job_id=job_id,
            levers=levers_of(job, world.state, CLUSTER, world.policy),
            rivals=competition.rivals_of(job),
        )
        fixed = job.target is not None and not job.elastic  # whatever the others do
        assert ("the others" in deadline.why) == (bool(others) and not fixed)
        for hint in deadline.hints:
            some |= hint.change is not None or "fewer jobs" in hint.text
            check(world, job_id, told, hint)
            if hint.change is not None:
                assert "quota" not in told.reason or hint.change[0] != "priority", hint
                assert others or hint.change[0] != "priority", hint
            elif hint.text.startswith("have fewer jobs before it"):
                done = cancelled(world, others)
                more = done.slots(job_id) > world.slots(job_id)
                assert more or (job.target is not None and done.free(job_id) > world.free(job_id)), hint
            elif hint.text.startswith("have fewer jobs of "):
                of = hint.text.removeprefix("have fewer jobs of ").split(":")[0].split(" and of ")
                theirs = [one for one in others if not world.state.quotas_of(one).keys().isdisjoint(of)]
                done = cancelled(world, theirs)
                assert done.slots(job_id) > world.slots(job_id) or "quota" not in done.explained(job_id).reason, hint
            else:
                assert "later deadline" in hint.text
    assume(some)


@given(
    need=st.integers(1, 8),
    there_are=st.integers(-1, 8),
    priority=st.integers(-MAX_PRIORITY, MAX_PRIORITY),
    limit=st.integers(-MAX_PRIORITY, MAX_PRIORITY),
    elastic=st.booleans(),
    counts=st.booleans(),
)
def test_nothing_is_suggested_that_cannot_be_done(need, there_are, priority, limit, elastic, counts):
    levers = Levers(elastic=elastic, priority=priority, priority_limit=limit, priority_counts=counts)
    for hint in fewer_slots("j1", need, there_are, levers):
        assert 1 <= there_are < need  # never where one slot is needed, nor where there is none
        assert (hint.change is not None) == elastic  # the size of a plain command cannot be set
    for hint in raise_priority("j1", levers):
        assert counts
        assert hint.change is not None
        assert priority < hint.change[2] <= MAX_PRIORITY
        assert ("admin" in hint.text) == (priority >= limit)
        assert "admin" in hint.text or hint.change[2] <= limit  # its owner would be refused
    if more_slots("j1", need, there_are, Levers(elastic=elastic, asked_max_slots=need)):
        assert elastic
        assert there_are > need
    assert more_slots("j1", need, 100, levers) == []  # nothing but the cluster limits it
    assert min((hint.change[2] for hint in raise_priority("j1", levers) if hint.change), default=inf) > priority
