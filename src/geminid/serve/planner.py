"""Who gets what, and when to ask: the engine and its policy on the service's side.

The planner hears of every record, tells the engine what it means, and knows when the next decision is due: when
something has changed, soon; when there is nothing but measurements, later; and never so often that deciding takes more
than its share of the time. A decision becomes a :class:`~geminid.serve.records.Planned` record, which the service
writes; a planner whose plan could not be written forgets it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from geminid.cluster import Cluster
from geminid.engine import events as e
from geminid.engine.commands import Rescale, Start, Stop
from geminid.engine.engine import Engine
from geminid.engine.explain import why_resized
from geminid.engine.models import ModelKeeper
from geminid.jobstate import JobPhase
from geminid.policies.base import JobView, Policy
from geminid.serve import records as r
from geminid.serve.clock import Clock
from geminid.serve.cordons import Slot, kept_slots
from geminid.serve.guard import Guard, Timed
from geminid.serve.state import LiveJob, ServiceState, observation_of
from geminid.serve.translation import facts_of, fits, name_slots, recall_usage, view_of
from geminid.serve.turns import PATIENCE_S

log = logging.getLogger("geminid.serve")

#: Two decisions are at least so far apart; without anything but measurements, so far.
GAP_S, NEWS_S = 0.25, 5.0

#: Deciding takes at most this share of the time; the rest is for answering.
SHARE_OF_TIME = 0.2

#: A job whose slots have just changed keeps them for so long, or for so many of its pauses.
SETTLE_S, SETTLE_PAUSES = 3.0, 3.0

#: A job that is being started or resized keeps its slots for so long.
STARTING_S = 60.0

#: So much of what has happened is told as the reason of a change.
MOST_CAUSES = 8

#: What happened so long before a decision may have been the reason for it.
RECENT_S = 3.0

#: A policy that has not answered by then is given up on.
POLICY_LIMIT_S = 10.0


def settled_s(view: JobView) -> float:
    """When a job that has changed its slots may change them again: a while after it has begun to work on them."""
    return max(view.since_s, view.paused_until_s) + max(SETTLE_S, SETTLE_PAUSES * view.facts.rescale_s)


@dataclass(frozen=True, slots=True)
class _Cause:
    """Something that happened, which frees slots or needs some; None for either."""

    at_s: float
    text: str
    frees: bool | None

    def explains(self, job_id: str, change: int) -> bool:
        """Whether a job may have more slots, or less, because of it."""
        fits = self.frees is None or (change >= 0 if self.frees else change <= 0)
        return fits and not self.text.startswith(f"{job_id} ")


#: So many of a plan's changes are explained in full: what a job's model expects takes its time to compute.
MOST_EXPLAINED = 100


class Planner:
    """The engine of a service. ``state`` is the service's own, which only the service changes."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        policy_text: str,
        state: ServiceState,
        clock: Clock,
        *,
        gap_s: float = GAP_S,
        policy_limit_s: float = POLICY_LIMIT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.cluster, self.policy_text = cluster, policy_text
        self._state, self._clock, self._gap_s = state, clock, gap_s
        self.guard = Guard(
            Timed(policy, policy_limit_s),
            protected=self._protected_until_s,
            groups=state.quotas_of,
            may_borrow=state.may_borrow,
            patience_s=patience_s,
        )
        self._wanted, self._news = True, False
        self._causes: deque[_Cause] = deque(maxlen=MOST_CAUSES)
        self._decided_at_s, self._wake_at_s, self._next_round_s = float("-inf"), float("inf"), float("-inf")
        self._last_rejection = ""
        self._desired_nodes: Mapping[str, int] = {}
        self.reasons: Mapping[str, str] = {}
        self.decisions = self.rejected = 0
        self.decision_ms = 0.0
        recall_usage(policy, state.jobs.values(), clock.now_s())
        self._kept: Mapping[str, frozenset[Slot]] = {}
        self.engine = self._new_engine()

    def follow(self, cluster: Cluster) -> None:
        """The cluster is another one: nodes have come or gone."""
        self.cluster = cluster
        self.start_over()

    def start_over(self) -> None:
        """Forget everything that the state does not know."""
        self.engine = self._new_engine()
        self._wanted = True

    def notice(self, record: r.Record) -> None:
        """Tell the engine what a record says that the state of its job does not."""
        now_s = max(self._clock.now_s(), self.engine.now_s)
        match record:
            case r.JobProgressed() if record.job_id in self.engine.jobs:
                job = self._state.jobs[record.job_id]
                seen = observation_of(record) if job.state.num_slots == record.slots else None
                report = e.Reported(now_s, record.job_id, seen, job.gradient, job.done_samples)
                self.engine.take(report)
                self._news = True
            case r.NodeDrained() if record.node in self.cluster.node_index:
                node = self.cluster.node_index[record.node]
                self.engine.take(e.NodeDrained(now_s, node) if record.drained else e.NodeUp(now_s, node))
                told = "was drained" if record.drained else "takes work again"
                self._ask(f"node {record.node} {told}", frees=not record.drained)
            case r.SlotCordoned() | r.SlotsTaken() if record.node in self.cluster.node_index:
                self._count_cordons(self.engine)
                frees = isinstance(record, r.SlotCordoned) and not record.cordoned
                self._ask(_told(record), frees=frees)
            case r.QuotaSet():
                slots = "none" if record.slots is None else str(record.slots)
                self._ask(f"the quota of {record.of} {record.name} became {slots}")
            case r.NodeJoined():
                self._ask(f"node {record.node} joined", frees=True)
            case r.NodeLeft():
                self._ask(f"node {record.node} is gone", frees=False)
            case r.JobChanged():
                self._ask(f"{record.by} changed what {record.job_id} asks for", wanted=False)

    def sync(self, touched: Iterable[str]) -> None:
        """Tell the engine what has become of the jobs that records were about, and of those that may be tried again."""
        engine = self.engine
        for job_id in {*touched, *self._released()}:
            job, view = self._state.jobs.get(job_id), engine.jobs.get(job_id)
            if job is None:
                continue
            now_s = max(self._clock.now_s(), engine.now_s)
            if job.phase.is_terminal:
                if view is not None:
                    done = job.phase is JobPhase.SUCCEEDED
                    progress = job.state.progress_samples
                    over = e.Completed(now_s, job_id, progress) if done else e.Failed(now_s, job_id, "", final=True)
                    engine.take(over)
                    self._ask(f"{job_id} {'is done' if done else 'is over'}", frees=True)
            elif not self._can_run(job) or job.held_until_s > now_s:
                if view is not None:
                    engine.take(e.Withdrawn(now_s, job_id))
                    self._ask(f"{job_id} {'crashed' if job.wants_slots else 'is to stop'}", frees=True)
                elif job.wants_slots:
                    self._wanted = True  # what it waits for is to be wished for
            elif view is None:
                self._restore(engine, job, now_s)
                again = bool(job.restarts or job.state.failures)
                self._ask(f"{job_id} {'waits again' if again else 'arrived'}", frees=False)
            else:
                if job.target is None and view.allocation:
                    engine.take(e.Failed(now_s, job_id, job.state.reason))
                    self._ask(f"{job_id} lost its slots", frees=True)
                facts = facts_of(job, self.cluster)
                if facts != view.facts:
                    asks_otherwise = facts.min_slots != view.facts.min_slots or facts.max_slots != view.facts.max_slots
                    self._wanted |= asks_otherwise or facts.weight != view.facts.weight
                    engine.take(e.Revised(now_s, facts))
        self._count_cordons(engine)

    def _ask(self, cause: str, *, frees: bool | None = None, wanted: bool = True) -> None:
        """Have a decision made soon, because of something that happened: it frees slots, or needs some, or either."""
        self._wanted |= wanted
        self._causes.append(_Cause(self._clock.now_s(), cause, frees))

    def wishes(self) -> dict[str, int]:
        """How many slots of each type there is work for: those that jobs have, and the least that the others need.

        A job that may run on several types wishes for the first that it names, or that there is. A policy that wishes
        for nodes of a type gets what it wishes for, if that is more.
        """
        wishes: Counter[str] = Counter()
        for job in self._state.jobs.values():
            if job.target is not None:
                for node, slots in job.target.slots_by_node:
                    wishes[self._state.gpu_types.get(node, "gpu")] += len(slots)
            elif job.wants_slots:
                wishes[(*job.spec.gpu_types.names, *self.cluster.type_index)[0]] += job.spec.min_slots
        for gpu_type, nodes in self._desired_nodes.items():
            wishes[gpu_type] = max(wishes[gpu_type], nodes * self.cluster.largest_node_slots.get(gpu_type, 1))
        return {gpu_type: slots for gpu_type, slots in wishes.items() if slots}

    def due_s(self) -> float:
        """When the next decision is due: so that deciding never takes more than its share of the time."""
        earliest_s = self._decided_at_s + max(self._gap_s, 1e-3 * self.decision_ms / SHARE_OF_TIME)
        if self.engine.policy.interval_s is not None:
            return max(self._next_round_s, earliest_s)
        due = [self._wake_at_s]
        if self._wanted:
            due.append(earliest_s)
        if self._news:
            due.append(self._decided_at_s + NEWS_S)
        return max(min(due), earliest_s)

    def decide(self) -> list[r.Record]:
        """Ask the engine for a plan; what is to be written of it, all at once."""
        engine, started = self.engine, time.perf_counter()
        now_s = max(self._clock.now_s(), engine.now_s)
        engine.take(e.Tick(now_s))
        before = dict(engine.jobs)
        outcome = engine.decide()
        self.decision_ms = 1e3 * (time.perf_counter() - started)
        self._decided_at_s, self._wanted, self._news = now_s, False, False
        self._next_round_s = now_s + (engine.policy.interval_s or 0.0)
        self._wake_at_s = outcome.wake_at_s if outcome.wake_at_s is not None else float("inf")
        self.decisions += outcome.decided
        self._desired_nodes = outcome.desired_nodes or {}
        self.reasons = outcome.reasons if not outcome.rejected else self.reasons
        records: list[r.Record] = []
        if outcome.rejected:
            self.rejected += 1
            text = f"a decision of {self.policy_text} was rejected, the last plan stays: {'; '.join(outcome.rejected)}"
            if text != self._last_rejection:
                records.append(r.Noted(level="alert", text=text[:1000]))
            self._last_rejection = text
            self._wake_at_s = now_s + NEWS_S
        plan = self._plan(
            before,
            {c.job_id: c.reason for c in outcome.commands if isinstance(c, Start | Rescale | Stop) and c.reason},
        )
        if plan is not None:
            records.append(plan)
        return records

    def _count_cordons(self, engine: Engine) -> None:
        """Tell the engine how many slots of each node are out of service: not those that jobs stay on."""
        now_s = max(self._clock.now_s(), engine.now_s)

        def least(job: LiveJob) -> int:
            view = engine.jobs.get(job.id)
            fixed = view is not None and self._left_alone_until_s(view) > now_s
            return job.target.num_slots if fixed and job.target is not None else job.spec.min_slots

        self._kept = kept_slots(self._state, self.cluster, least)
        out = self._state.out_of_service.difference(*self._kept.values())
        counts = Counter(self.cluster.node_index[node] for node, _ in out if node in self.cluster.node_index)
        for node in range(len(self.cluster.nodes)):
            if counts[node] != engine.cordoned(node):
                engine.take(e.SlotsCordoned(now_s, node, counts[node]))

    def _new_engine(self) -> Engine:
        """An engine that knows what the state knows."""
        now_s = max(self._clock.now_s(), self._state.at_s)
        engine = Engine(self.cluster, self.guard, ModelKeeper("geminid"), now_s=now_s)
        for node in self._state.drained & set(self.cluster.node_index):
            engine.take(e.NodeDrained(now_s, self.cluster.node_index[node]))
        for node in self._state.down & set(self.cluster.node_index):
            engine.take(e.NodeDown(now_s, self.cluster.node_index[node]))
        for job in self._state.jobs.values():
            if self._can_run(job):
                self._restore(engine, job, now_s)
        self._count_cordons(engine)
        return engine

    def _can_run(self, job: LiveJob) -> bool:
        """Whether the engine is to know of a job: not of those that need more than there is, until it is there."""
        return job.wants_slots and (job.target is not None or fits(job, self.cluster))

    def _restore(self, engine: Engine, job: LiveJob, now_s: float) -> None:
        for gpu_type, profile in job.measured:
            engine.models.add_profile(job.id, gpu_type, profile)
        if job.gradient is not None:
            engine.models.add_gradient(job.id, job.gradient)
        engine.restore(view_of(job, self.cluster, now_s))

    def _released(self) -> list[str]:
        """Jobs that may be tried again now."""
        now_s = self._clock.now_s()
        return [
            job.id
            for job in self._state.jobs.values()
            if job.held_until_s and job.held_until_s <= now_s and job.wants_slots and job.id not in self.engine.jobs
        ]

    def _plan(self, before: Mapping[str, JobView], given: Mapping[str, str]) -> r.Planned | None:
        """What the engine's allocations change about who has which slots, and why: as the policy says, or as it is."""
        jobs = self._state.jobs
        wanted = {job_id: view.allocation for job_id, view in self.engine.jobs.items() if view.allocation}
        current = {job_id: jobs[job_id].target for job_id in wanted}
        held = {job.id: job.state.placement for job in jobs.values() if job.state.placement is not None}
        out = self._state.out_of_service.difference(*self._kept.values())
        named = name_slots(wanted, current, self.cluster, out, held)
        targets = {job_id: named.get(job_id) for job_id in self.engine.jobs if named.get(job_id) != jobs[job_id].target}
        if not targets:
            return None
        changes = {
            job_id: (0 if place is None else place.num_slots) - before[job_id].slots
            for job_id, place in targets.items()
            if job_id in before
        }
        recent = [cause for cause in self._causes if cause.at_s >= self._decided_at_s - RECENT_S]
        self._causes.clear()
        reasons: dict[str, str] = {}
        for job_id, change in changes.items():
            job, view = before[job_id], self.engine.jobs[job_id]
            because = [c.text for c in recent if c.explains(job_id, change)]
            if not because and job.allocation:
                because = ["what jobs have measured"]
            reason = "; ".join(because)
            if len(reasons) < MOST_EXPLAINED:
                others = {name: other for name, other in changes.items() if name != job_id}
                reason = why_resized(job, job.slots + change, view.gpu_type, because, others)
            reasons[job_id] = "; ".join(text for text in (given.get(job_id), reason) if text)
        return r.Planned(targets=targets, reasons={job_id: reason for job_id, reason in reasons.items() if reason})

    def _protected_until_s(self, view: JobView) -> float:
        """Until when a running job keeps its slots whatever the policy says."""
        return float("inf") if view.id in self._kept else self._left_alone_until_s(view)

    def _left_alone_until_s(self, view: JobView) -> float:
        """The same, wherever its slots are."""
        job = self._state.jobs.get(view.id)
        if job is None:
            return 0.0
        if not job.elastic:
            return float("inf")  # it would lose all that it has done
        if job.phase in (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RESCALING):  # it has not even begun
            return job.target_since_s + STARTING_S
        started_s = view.started_s if view.started_s is not None else job.target_since_s
        changed = replace(view, since_s=max(job.target_since_s, job.formed_at_s), paused_until_s=0.0)
        return max(settled_s(changed), started_s + job.spec.min_runtime_s)


def _told(record: r.SlotCordoned | r.SlotsTaken) -> str:
    if isinstance(record, r.SlotsTaken):
        count = len(record.slots)
        used = "no slot" if count == 0 else "1 slot" if count == 1 else f"{count} slots"
        return f"others use {used} of {record.node}"
    what = "was taken out of service" if record.cordoned else "takes work again"
    return f"slot {record.node}/{record.slot} {what}"
