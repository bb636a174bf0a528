"""Which job gets which slots, and when to decide: the engine and its policy on the side of the service.

The planner passes to the engine what records say, and knows when the next decision is due. The engine's commands become
a :class:`~geminid.serve.records.Planned` record, which names the slots; the service writes it and has the executor
carry it out. A plan that could not be written is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.engine import events as e
from geminid.engine.commands import Command
from geminid.engine.engine import Engine
from geminid.engine.explain import LastDecision
from geminid.policies.base import ClusterView, Policy
from geminid.serve import records as r
from geminid.serve.demand import Demand
from geminid.serve.guard import Guard, Timed
from geminid.serve.histograms import DECISIONS, Histogram
from geminid.serve.live_engine import LiveEngine
from geminid.serve.livejob import ENDS, LiveJob
from geminid.serve.minimumrun import Runs
from geminid.serve.pacing import DECISION_GAP_S, Pace
from geminid.serve.reasons import Causes, Weighed
from geminid.serve.reservations import PATIENCE_S
from geminid.serve.state import ServiceState
from geminid.serve.targets import reconcile
from geminid.serve.translation import recall_usage

#: Time in seconds after which a policy that has not answered is given up on.
POLICY_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """Decisions since the planner was made: how many, how many of them were rejected, and how long they took."""

    made: int = 0
    rejected: int = 0
    times: Histogram = DECISIONS


class Planner:
    """Decides for a service. ``state`` is the service's own, which only the service changes."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        policy_text: str,
        state: ServiceState,
        clock: Clock,
        *,
        gap_s: float = DECISION_GAP_S,
        policy_limit_s: float = POLICY_LIMIT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.policy_text = policy_text
        self.clock, self._state, self._pace = clock, state, Pace(gap_s)
        self.guard = Guard(
            Timed(policy, policy_limit_s),
            protected=lambda view: self.live.protected_until_s(view),
            groups=state.quotas_of,
            may_borrow=state.may_borrow,
            rested_s=lambda job_id: state.jobs[job_id].rested_s,
            kept_until_s=lambda view: self._runs.kept_until_s(state.jobs[view.id]),
            patience_s=patience_s,
        )
        self._runs, self._causes, self._demand = Runs(), Causes(dict(state.quotas)), Demand()
        self._rejection = self._last_rejection = ""  # of the last decision, and of the last one that was rejected
        self._desired_nodes: Mapping[str, int] = {}
        self.reasons: Mapping[str, str] = {}
        self.counts = DecisionCounts()
        self._retried: set[str] = set()  # jobs that must not start for a while
        recall_usage(policy, state.jobs.values(), clock.now_s())
        self.live = LiveEngine(cluster, self.guard, state, clock)
        self._index_all()

    @property
    def cluster(self) -> Cluster:
        """The nodes and slots that plans are made for."""
        return self.live.cluster

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.live.engine

    @property
    def decision_ms(self) -> float:
        """How long the last decision took."""
        return 1e3 * self._pace.took_s

    def follow(self, cluster: Cluster) -> None:
        """Plan for another cluster: nodes have come or gone."""
        self.live.cluster = cluster
        self.start_over()

    def start_over(self) -> None:
        """Forget everything that the state does not know."""
        self.live.start_over()
        self._index_all()
        self._pace.is_wanted = True

    def notice(self, record: r.Record) -> None:
        """Pass on what a record says that the state of its job does not."""
        live, causes, now_s = self.live, self._causes, self.live.now_s()
        if isinstance(record, r.JobProgressed):  # by far the most frequent, and it changes no job's slots
            if record.job_id in live.jobs:
                live.report(record)
                self._pace.has_measurements = True
            return
        node = self.cluster.node_index.get(getattr(record, "node", ""))
        for job_id in r.jobs_of(record):
            self._index(job_id)
        match record:
            case r.JobFormed() if record.job_id in live.jobs:
                # A decision that was made while it was on its way has put it off for as long as that may take.
                self._pace.wake_by(live.protected_until_s(live.jobs[record.job_id]))
            case r.Planned():
                causes.planned(record.targets)
            case r.NodeDrained() | r.NodeLeaving() if node is not None:
                if record.node in self._state.emptied:
                    self.engine.take(e.NodeDrained(now_s, node))
                elif record.node not in self._state.down:
                    self.engine.take(e.NodeUp(now_s, node))
                    slots = [(record.node, slot) for slot in range(self.cluster.nodes[node].slots)]
                    causes.freed(now_s, slots, f"node {record.node} takes work again")
                self._pace.is_wanted = True
            case r.SlotCordoned() if node is not None:
                live.count_closed_slots()
                if not record.cordoned:
                    slot = record.node, record.slot
                    causes.freed(now_s, [slot], f"slot {record.node}/{record.slot} takes work again")
                self._pace.is_wanted = True
            case r.SlotsTaken() if node is not None:
                live.count_closed_slots()
                self._pace.is_wanted = True
            case r.QuotaSet():
                if causes.quota_set(now_s, record):
                    self.start_over()  # jobs are in other crowds now
                self._pace.is_wanted = True
            case r.NodeJoined():
                slots = [(record.node, slot) for slot in range(record.slots)]
                causes.freed(now_s, slots, f"node {record.node} joined")
                self._pace.is_wanted = True
            case r.NodeLeft():
                self._pace.is_wanted = True
            case r.JobChanged() if record.job_id in live.jobs:
                causes.job_changed(now_s, record, live.jobs[record.job_id].facts, live.facts(record.job_id))
            case r.JobHeld():
                self.start_over()

    def sync(self, touched: Iterable[str]) -> None:
        """Pass on what has become of the jobs that records were about, and of those whose delay is over."""
        for job_id in {*touched, *self._released()}:
            self._index(job_id)
            if job_id in self._state.jobs:
                self._sync_job(self._state.jobs[job_id])
        self.live.refresh()

    def _sync_job(self, job: LiveJob) -> None:
        """Pass on what has become of a job; a decision is due soon if that may change the plan."""
        live, now_s = self.live, self.clock.now_s()
        if not live.can_run(job):
            if live.leave(job):
                self._causes.job_left(now_s, job.id, _what_became_of(job))
                self._pace.is_wanted = True
            self._pace.is_wanted |= job.wants_slots  # nodes are to be requested for it
        elif job.id not in live.jobs:
            live.enter(job)
            self._pace.is_wanted = True
        else:
            if job.target is None and live.jobs[job.id].allocation:
                self.engine.take(e.Failed(live.now_s(), job.id, job.state.reason))
                self._causes.job_left(now_s, job.id, "lost its slots")
                self._pace.is_wanted = True
            self._pace.is_wanted |= live.revise(job)

    def _index(self, job_id: str) -> None:
        """Update what is known job by job, so that no decision has to look at all jobs."""
        job = self._state.jobs.get(job_id)
        self._demand.update(job_id, job, self.cluster)
        self._runs.update(job_id, job)
        retried = job is not None and bool(job.held_until_s) and job.wants_slots
        (self._retried.add if retried else self._retried.discard)(job_id)

    def _index_all(self) -> None:
        self._demand, self._retried = Demand(), set()
        for job_id in self._state.jobs:
            self._index(job_id)
        self._causes.planned({job.id: job.target for job in self._state.jobs.values() if job.target}, only=True)

    def _released(self) -> set[str]:
        """Jobs that may be started again now, or may grow again."""
        now_s, jobs, staying = self.clock.now_s(), self._state.jobs, self.live.staying
        grow = {job_id for job_id in staying if job_id not in jobs or jobs[job_id].stays_until_s <= now_s}
        start = {job_id for job_id in self._retried if job_id not in jobs or jobs[job_id].held_until_s <= now_s}
        self.live.staying -= grow
        self._retried -= start
        return grow | start

    def shown_for(self, job_id: str) -> str:
        """The job that the policy sees in place of this one: itself, unless it waits behind others."""
        return self.live.waiting.shown_for(job_id)

    def view_with(self, job_id: str) -> tuple[ClusterView, str]:
        """What the policy would see now, with a job even if it waits behind others; and the job shown for it."""
        return self.live.view_with(job_id)

    def requested_slots(self) -> dict[str, int]:
        """How many slots of each GPU type there is work for: the slots that an autoscaled cluster should have."""
        return self._demand.slots_by_type(self._state, self.cluster, self._desired_nodes)

    def free_slots(self) -> dict[str, int]:
        """How many slots of each GPU type are in service and planned for no job."""
        state, cluster = self._state, self.cluster
        out, closed = state.emptied | state.down, Counter(node for node, _ in state.out_of_service)
        free: Counter[str] = Counter()
        for node in cluster.nodes:
            free[node.gpu_type] += 0 if node.name in out else max(node.slots - closed[node.name], 0)
        for job_id in self._demand.placed:
            target = state.jobs[job_id].target
            for name, slots in () if target is None else target.slots_by_node:
                free[state.gpu_types.get(name, "")] -= len(slots)
        return {name: max(free[name], 0) for name in cluster.type_index}

    def due_s(self) -> float:
        """When the next decision is due."""
        staying = (self._state.jobs[job_id] for job_id in self.live.staying if job_id in self._state.jobs)
        grow_at_s = [job.stays_until_s for job in staying]
        interval_s = self.engine.policy.interval_s
        return self._pace.due_s(interval_s, has_jobs=bool(self.engine.jobs), also_at_s=grow_at_s)

    def last_decision(self) -> LastDecision:
        """What became of the last decision, and when the next one is due."""
        return LastDecision(
            policy=self.policy_text or self.guard.policy.name,
            pending=self._pace.is_wanted or self._pace.decided_at_s == -inf,
            due_in_s=max(self.due_s() - self.clock.now_s(), 0.0),
            rejection=self._rejection,
        )

    def decide(self) -> list[r.Record]:
        """Have the engine decide; the records that its commands become, to be written together."""
        engine, pace, now_s = self.engine, self._pace, self.live.now_s()
        started_s, has_measurements = self.clock.monotonic_s(), pace.has_measurements
        engine.take(e.Tick(now_s))
        engine.behind = self.live.waiting.behind()
        before = dict(engine.jobs)
        outcome = engine.decide()
        took_s = self.clock.monotonic_s() - started_s
        round_s = (engine.policy.interval_s or 0.0) if outcome.decided else None
        pace.decided(now_s, took_s, outcome.wake_at_s, round_s)
        self._rejection, self._desired_nodes = "", outcome.desired_nodes or {}
        if outcome.decided:
            self.counts = replace(self.counts, made=self.counts.made + 1, times=self.counts.times.plus(took_s))
        records: list[r.Record] = []
        if outcome.rejected:
            records = self._reject(outcome.rejected)
        else:
            self.reasons = outcome.reasons
        targets = self._targets(outcome.commands)
        if not targets:
            return records
        if problems := self._state.plan_problems(targets, self._demand.placed):
            self.start_over()  # the engine believes in this plan
            return [*records, *self._reject(problems)]
        weighed = Weighed(before, engine.jobs, outcome.reasons, has_measurements)
        reasons = self._causes.reasons_of(targets, self._state, now_s, weighed)
        return [*records, r.Planned(targets=targets, reasons=reasons)]

    def _targets(self, commands: Sequence[Command]) -> dict[str, Placement | None]:
        """The slots that jobs get or lose by the engine's commands, for those whose slots change."""
        jobs = self._state.jobs
        desired = {job_id: view.allocation for job_id, view in self.engine.jobs.items() if view.allocation}
        actual = {job_id: jobs[job_id].target for job_id in self.engine.jobs}
        held = {job_id: place for job_id in self._demand.placed if (place := jobs[job_id].state.placement) is not None}
        targets = reconcile(commands, desired, actual, self.cluster, closed=self.live.closed_slots(), occupied=held)
        commanded = {command.job_id for command in commands}
        for job_id in [job_id for job_id, place in targets.items() if _keeps_wrong_size(jobs[job_id], place)]:
            if job_id in commanded:  # it starts again with the slots that its owner asks for now
                self.engine.take(e.Failed(self.engine.now_s, job_id, "its owner asks for another number of slots"))
                targets[job_id] = None
            else:  # it leaves the closed slot when it may be resized
                del targets[job_id]
        return targets

    def _reject(self, problems: Sequence[str]) -> list[r.Record]:
        """Keep the last plan, report that once, and try again a little later."""
        self._pace.rejected()
        self.counts = replace(self.counts, rejected=self.counts.rejected + 1)
        text = f"a decision of {self.policy_text} was rejected, the last plan stays: {'; '.join(problems)}"
        is_known = text == self._last_rejection
        self._rejection = self._last_rejection = text
        return [] if is_known else [r.Noted(level="alert", text=text[:1000])]


def _what_became_of(job: LiveJob) -> str:
    """Why a job has no slots any more, in words."""
    if job.phase.is_terminal:
        return ENDS[job.phase]
    if job.wants_slots:
        return "crashed"
    return "was paused" if job.wish == "pause" else "was cancelled"


def _keeps_wrong_size(job: LiveJob, place: Placement | None) -> bool:
    """Whether a job would be moved at a size that its owner does not allow any more."""
    if place is None or job.target is None or place.num_slots != job.target.num_slots:
        return False
    most = job.spec.max_slots
    return place.num_slots < job.spec.min_slots or (most is not None and place.num_slots > most)
