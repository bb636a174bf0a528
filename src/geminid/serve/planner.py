"""Who gets what, and when to ask: the engine and its policy on the service's side.

The planner hears of every record, tells the engine what it means, and knows when the next decision is due: when
something has changed, soon; when there is nothing but measurements, later; and never so often that deciding takes more
than its share of the time. A decision becomes a :class:`~geminid.serve.records.Planned` record, which the service
writes; a planner whose plan could not be written forgets it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.engine import events as e
from geminid.engine.engine import Engine
from geminid.engine.explain import LastDecision, expected_speed
from geminid.engine.models import ModelKeeper
from geminid.jobstate import JobPhase
from geminid.policies.base import ClusterView, JobFacts, JobView, Policy
from geminid.serve import records as r
from geminid.serve.cordons import kept_slots
from geminid.serve.crowds import Crowds, crowd_of, ranks_of
from geminid.serve.equals import Lines, equality_of, is_new, most_at_once
from geminid.serve.guard import Guard, Timed
from geminid.serve.histograms import DECISIONS
from geminid.serve.livejob import ENDS, LiveJob, observation_of
from geminid.serve.minimumrun import Runs
from geminid.serve.reasons import Causes, Change
from geminid.serve.reservations import PATIENCE_S
from geminid.serve.state import ServiceState, Slot
from geminid.serve.translation import facts_of, fits, name_slots, recall_usage, view_of

log = logging.getLogger("geminid.serve")

#: Minimum time between two decisions.
GAP_S = 0.1

#: … when only measurements have changed.
NEWS_S = 5.0

#: Deciding takes at most this share of the time; the rest is for answering.
SHARE_OF_TIME = 0.2

#: A job whose slots have just changed keeps them for so long, or for so many of its pauses.
SETTLE_S, SETTLE_PAUSES = 3.0, 3.0

#: A job that is being started or resized keeps its slots for so long.
STARTING_S = 60.0

#: A policy that has not answered by then is given up on.
POLICY_LIMIT_S = 10.0


def settled_s(view: JobView) -> float:
    """When a job that has changed its slots may change them again: a while after it has begun to work on them."""
    return max(view.since_s, view.paused_until_s) + max(SETTLE_S, SETTLE_PAUSES * view.facts.rescale_s)


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
            rested_s=lambda job_id: state.jobs[job_id].rested_s,
            kept_until_s=lambda view: self._runs.kept_until_s(state.jobs[view.id]),
            patience_s=patience_s,
        )
        self._runs = Runs()
        self._wanted, self._news = True, False
        self._causes = Causes()
        self._decided_at_s, self._wake_at_s, self._next_round_s = float("-inf"), float("inf"), float("-inf")
        self._last_rejection, self._is_rejected = "", False
        self._desired_nodes: Mapping[str, int] = {}
        self.reasons: Mapping[str, str] = {}
        self.decisions = self.rejected = 0
        self.decision_ms, self.decision_times = 0.0, DECISIONS
        recall_usage(policy, state.jobs.values(), clock.now_s())
        self._kept: Mapping[str, frozenset[Slot]] = {}
        self._quotas = dict(state.quotas)
        self._named: dict[str, frozenset[Slot]] = {}
        self._staying: set[str] = set()  # jobs that are not to grow for now
        self._retried: set[str] = set()  # jobs that are not to start for now
        self._behind_is_known = False
        self._placed: set[str] = set()  # jobs that have slots, or are to have some
        self._needed: dict[str, tuple[str, int]] = {}  # GPU type and slots that waiting jobs need at least
        self._needs: Counter[str] = Counter()  # all of those, by GPU type
        self._new_engine()

    def follow(self, cluster: Cluster) -> None:
        """The cluster is another one: nodes have come or gone."""
        self.cluster = cluster
        self.start_over()

    def start_over(self) -> None:
        """Forget everything that the state does not know."""
        self._new_engine()
        self._wanted = True

    def notice(self, record: r.Record) -> None:
        """Tell the engine what a record says that the state of its job does not."""
        now_s = max(self._clock.now_s(), self.engine.now_s)
        for job_id in r.jobs_of(record):
            self._index(job_id, self._state.jobs.get(job_id))
        match record:
            case r.JobProgressed() if record.job_id in self.engine.jobs:
                job = self._state.jobs[record.job_id]
                seen = observation_of(record) if job.state.num_slots == record.slots else None
                loss = record.metrics.get("loss")
                report = e.Reported(
                    now_s,
                    record.job_id,
                    seen,
                    job.gradient,
                    job.done_samples,
                    loss if isinstance(loss, int | float) else None,
                )
                self.engine.take(report)
                self._news = True
            case r.JobFormed() if record.job_id in self.engine.jobs:
                # Whoever decided while it was on its way has put it off for as long as that might take.
                self._wake_at_s = min(self._wake_at_s, self._protected_until_s(self.engine.jobs[record.job_id]))
            case r.Planned():
                self._remember_slots(record.targets)
            case r.NodeDrained() | r.NodeLeaving() if record.node in self.cluster.node_index:
                node = self.cluster.node_index[record.node]
                if record.node in self._state.emptied:
                    self.engine.take(e.NodeDrained(now_s, node))
                elif record.node not in self._state.down:
                    self.engine.take(e.NodeUp(now_s, node))
                    self._causes.freed(now_s, self._slots_of(record.node), f"node {record.node} takes work again")
                self._wanted = True
            case r.SlotCordoned() if record.node in self.cluster.node_index:
                self._count_cordons(self.engine)
                if not record.cordoned:
                    slot = record.node, record.slot
                    self._causes.freed(now_s, [slot], f"slot {record.node}/{record.slot} takes work again")
                self._wanted = True
            case r.SlotsTaken() if record.node in self.cluster.node_index:
                self._count_cordons(self.engine)
                self._wanted = True
            case r.QuotaSet():
                slots = "was lifted" if record.slots is None else f"became {record.slots}"
                of, name = record.of, record.name
                before, after = (inf if n is None else n for n in (self._quotas.get((of, name)), record.slots))
                self._quotas = dict(self._state.quotas)
                told = f"the quota of {of} {name} {slots}"
                self._causes.asked(
                    now_s,
                    told,
                    lambda job: name == (job.spec.queue if of == "queue" else job.spec.owner),
                    None if after == before else after > before,
                )
                if (before == inf) != (after == inf):
                    self.start_over()  # jobs are in other crowds now
                self._wanted = True
            case r.NodeJoined():
                joined = [(record.node, slot) for slot in range(record.slots)]
                self._causes.freed(now_s, joined, f"node {record.node} joined")
                self._wanted = True
            case r.NodeLeft():
                self._wanted = True
            case r.JobChanged():
                self._notice_change(now_s, record)
            case r.JobHeld():
                self.start_over()

    def _notice_change(self, now_s: float, record: r.JobChanged) -> None:
        """Somebody changed what a job asks for: it may have more slots for it, or fewer."""
        view, job_id = self.engine.jobs.get(record.job_id), record.job_id
        job = self._state.jobs.get(job_id)
        if view is None or job is None:
            return
        facts = self._facts(job)
        grows = [
            after > before
            for before, after in ((view.facts.weight, facts.weight), (view.facts.max_slots, facts.max_slots))
            if after != before
        ]
        either = facts.min_slots != view.facts.min_slots or len(set(grows)) > 1
        changed = {"priority": record.priority, "min_slots": record.min_slots, "max_slots": record.max_slots}
        values = ", ".join(f"{name} = {value}" for name, value in changed.items() if value is not None)
        told = f"{record.by} set {values} of {job_id}"
        self._causes.asked(now_s, told, lambda job: job.id == job_id, None if either or not grows else grows[0])

    def _slots_of(self, node: str) -> list[Slot]:
        return [(node, slot) for slot in range(self.cluster.node(node).slots)]

    def _remember_slots(self, targets: Mapping[str, Placement | None]) -> None:
        """The slots of jobs have names, which are gone from the state when the jobs are."""
        for job_id, place in targets.items():
            self._named[job_id] = _slots(place)
            self._causes.planned(self._named[job_id])

    def sync(self, touched: Iterable[str]) -> None:
        """Tell the engine what has become of the jobs that records were about, and of those that may be tried again."""
        engine = self.engine
        for job_id in {*touched, *self._released()}:
            job, view = self._state.jobs.get(job_id), engine.jobs.get(job_id)
            self._index(job_id, job)
            if job is None:
                continue
            now_s = max(self._clock.now_s(), engine.now_s)
            if job.phase.is_terminal:
                self._leave_queue(job_id)
                if view is not None:
                    done = job.phase is JobPhase.SUCCEEDED
                    progress = job.state.progress_samples
                    over = e.Completed(now_s, job_id, progress) if done else e.Failed(now_s, job_id, "", final=True)
                    engine.take(over)
                    self._freed(job_id, ENDS[job.phase])
            elif not self._can_run(job) or job.held_until_s > now_s:
                self._leave_queue(job_id)
                if view is not None:
                    engine.take(e.Withdrawn(now_s, job_id))
                    stopped = "was paused" if job.wish == "pause" else "was cancelled"
                    self._freed(job_id, "crashed" if job.wants_slots else stopped)
                elif job.wants_slots:
                    self._wanted = True  # what it waits for is to be wished for
            elif view is None:
                self._enter(job)
                self._wanted = True
            else:
                if job.target is None and view.allocation:
                    engine.take(e.Failed(now_s, job_id, job.state.reason))
                    self._freed(job_id, "lost its slots")
                facts = self._facts(job)
                self._line_up(job, facts)
                if facts.limits and not view.facts.limits and not job.samples:
                    self._tell_models(engine, job, facts)
                if facts != view.facts and job_id in engine.jobs:
                    asks_otherwise = facts.min_slots != view.facts.min_slots or facts.max_slots != view.facts.max_slots
                    self._wanted |= asks_otherwise or facts.weight != view.facts.weight
                    engine.take(e.Revised(now_s, facts))
        self._show_first()
        self._count_cordons(engine)

    def _index(self, job_id: str, job: LiveJob | None) -> None:
        """Remember who has slots, who needs some and who is to be tried again, so that nobody has to look at all."""
        placed = job is not None and (job.target is not None or job.state.placement is not None)
        (self._placed.add if placed else self._placed.discard)(job_id)
        self._runs.update(job_id, job)
        retried = job is not None and bool(job.held_until_s) and job.wants_slots
        (self._retried.add if retried else self._retried.discard)(job_id)
        gpu_type, slots = self._needed.pop(job_id, ("", 0))
        self._needs[gpu_type] -= slots
        if job is not None and job.target is None and job.wants_slots:
            gpu_type = (*job.spec.gpu_types.names, *self.cluster.type_index)[0]
            self._needed[job_id] = gpu_type, job.spec.min_slots
            self._needs[gpu_type] += job.spec.min_slots

    def _enter(self, job: LiveJob) -> None:
        """Have the engine know of a job: now, or when those that go before it have started."""
        if not self._line_up(job, self._facts(job)):
            self._show(job.id)

    def _line_up(self, job: LiveJob, facts: JobFacts) -> bool:
        """Whether a job has its place in the queue; if so, it is shown to the policy when it could start."""
        if self.guard.needs_every_job or not is_new(job):
            self._leave_queue(job.id)
            return False
        equality, at_once = equality_of(job, facts), most_at_once(facts, self.cluster)
        if equality is None:
            self._lines.discard(job.id)
            self._join_crowd(job.id)
        else:
            self._lines.put(job.id, equality, facts.submitted_s, at_once)
            if self._lines.hides(job.id):
                self._leave_crowd(job.id)
        return True

    def _leave_queue(self, job_id: str) -> None:
        self._lines.discard(job_id)
        self._crowds.discard(job_id)

    def _join_crowd(self, job_id: str) -> None:
        """A job is the first of those that are equal to it, or has no equals."""
        facts = self._facts(self._state.jobs[job_id])
        crowd = crowd_of(facts, self._state.quotas_of(job_id), by_owner=self.guard.regards_owners)
        self._crowds.put(job_id, crowd, ranks_of(facts), most_at_once(facts, self.cluster))

    def _leave_crowd(self, job_id: str) -> None:
        if self._crowds.discard(job_id):
            self._hide(job_id)

    def _show_first(self) -> None:
        """Let the engine know which waiting jobs could be next."""
        self._crowds.refresh()
        self._behind_is_known = False

    def _count_behind(self) -> None:
        """Let the engine know who waits behind the jobs that it knows."""
        if self._behind_is_known:
            return
        self._behind_is_known = True
        behind: dict[str, list[float]] = {}
        for job_id, times_s in self._lines.behind.items():
            behind.setdefault(self._crowds.shown_for(job_id), []).extend(times_s)
        for _, submitted_s, shown_for in self._crowds.hidden():
            behind.setdefault(shown_for, []).append(submitted_s)
        self.engine.behind = {job_id: tuple(sorted(times_s)) for job_id, times_s in behind.items()}

    def shown_for(self, job_id: str) -> str:
        """The job that the policy sees in place of this one: itself, unless it waits behind others."""
        return self._crowds.shown_for(self._lines.shown_for(job_id))

    def view_with(self, job_id: str) -> tuple[ClusterView, str]:
        """What the policy would see now, with a job even if it waits behind others; and the job shown for it."""
        self._count_behind()
        view, job = self.engine.view(), self._state.jobs.get(job_id)
        if job is None or not (self._lines.hides(job_id) or self._crowds.hides(job_id)):
            return view, job_id
        hidden = replace(view_of(job, self.cluster, self.engine.now_s), facts=self._facts(job))
        shown_for = self.shown_for(job_id)
        others = tuple(at_s for at_s in view.behind[shown_for] if at_s != hidden.facts.submitted_s)
        jobs = sorted((*view.jobs, hidden), key=lambda job: job.facts.submitted_s)
        return replace(view, jobs=tuple(jobs), behind={**view.behind, shown_for: others}), shown_for

    def _show(self, job_id: str) -> None:
        if not self.engine.knows(job_id):
            self._restore(self.engine, self._state.jobs[job_id], max(self._clock.now_s(), self.engine.now_s))

    def _hide(self, job_id: str) -> None:
        self.engine.take(e.Withdrawn(max(self._clock.now_s(), self.engine.now_s), job_id))

    def _freed(self, job_id: str, what: str) -> None:
        """Have a decision made soon, because something became of a job, whose slots are free now."""
        self._causes.freed(self._clock.now_s(), self._named.pop(job_id, ()), f"{job_id} {what}")
        self._wanted = True

    def wishes(self) -> dict[str, int]:
        """How many slots of each type there is work for: those that jobs have, and the least that the others need.

        A job that may run on several types wishes for the first that it names, or that there is. A policy that wishes
        for nodes of a type gets what it wishes for, if that is more.
        """
        wishes = Counter(self._needs)
        for job_id in self._placed:
            target = self._state.jobs[job_id].target
            for node, slots in () if target is None else target.slots_by_node:
                wishes[self._state.gpu_types.get(node, "gpu")] += len(slots)
        for gpu_type, nodes in self._desired_nodes.items():
            wishes[gpu_type] = max(wishes[gpu_type], nodes * self.cluster.largest_node_slots.get(gpu_type, 1))
        return {gpu_type: slots for gpu_type, slots in wishes.items() if slots}

    def due_s(self) -> float:
        """When the next decision is due: so that deciding never takes more than its share of the time."""
        earliest_s = self._decided_at_s + max(self._gap_s, 1e-3 * self.decision_ms / SHARE_OF_TIME)
        if self.engine.policy.interval_s is not None and not self.engine.jobs:
            return earliest_s if self._wanted else inf
        if self.engine.policy.interval_s is not None:
            return max(self._next_round_s, earliest_s)
        staying = [job for job_id in self._staying if (job := self._state.jobs.get(job_id)) is not None]
        due = [self._wake_at_s, *(job.stays_until_s for job in staying)]
        if self._wanted:
            due.append(earliest_s)
        if self._news:
            due.append(self._decided_at_s + NEWS_S)
        return max(min(due), earliest_s)

    def last_decision(self) -> LastDecision:
        """What became of the last decision, and when the next one is due."""
        due_in_s = self.due_s() - self._clock.now_s()
        rejection = self._last_rejection if self._is_rejected else ""
        return LastDecision(
            policy=self.policy_text or self.guard.policy.name,
            pending=self._wanted or self._decided_at_s == float("-inf"),
            due_in_s=max(due_in_s, 0.0),
            rejection=rejection,
        )

    def decide(self) -> list[r.Record]:
        """Ask the engine for a plan; what is to be written of it, all at once."""
        engine, started = self.engine, time.perf_counter()
        now_s = max(self._clock.now_s(), engine.now_s)
        engine.take(e.Tick(now_s))
        self._count_behind()
        before = dict(engine.jobs)
        outcome = engine.decide()
        self.decision_ms = 1e3 * (time.perf_counter() - started)
        if outcome.decided:
            self.decision_times = self.decision_times.plus(self.decision_ms / 1e3)
        had_news = self._news
        self._decided_at_s, self._wanted, self._news, self._is_rejected = now_s, False, False, False
        if outcome.decided:  # without jobs there is nothing to decide: whoever comes first does not wait for a round
            self._next_round_s = now_s + (engine.policy.interval_s or 0.0)
        self._wake_at_s = outcome.wake_at_s if outcome.wake_at_s is not None else float("inf")
        self.decisions += outcome.decided
        self._desired_nodes = outcome.desired_nodes or {}
        self.reasons = outcome.reasons if not outcome.rejected else self.reasons
        plan = self._plan(before, outcome.reasons, had_news=had_news)
        if outcome.rejected:
            return [*self._reject(outcome.rejected), *([plan] if plan is not None else [])]
        if plan is not None and (problems := self._state.plan_problems(plan.targets, self._placed)):
            self.start_over()  # the engine is not to believe in it
            return self._reject(problems)
        return [] if plan is None else [plan]

    def _reject(self, problems: Sequence[str]) -> list[r.Record]:
        """Keep the last plan, say so once, and try again a little later."""
        self.rejected += 1
        self._is_rejected = True
        self._wanted, self._wake_at_s = False, self._decided_at_s + NEWS_S
        text = f"a decision of {self.policy_text} was rejected, the last plan stays: {'; '.join(problems)}"
        told: list[r.Record] = [] if text == self._last_rejection else [r.Noted(level="alert", text=text[:1000])]
        self._last_rejection = text
        return told

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

    def _new_engine(self) -> None:
        """Have an engine that knows what the state knows."""
        now_s = max(self._clock.now_s(), self._state.at_s)
        self.engine = engine = Engine(self.cluster, self.guard, ModelKeeper("geminid"), now_s=now_s)
        self._lines = Lines(self._join_crowd, self._leave_crowd)
        self._crowds = Crowds(self._show, self._hide)
        self._placed, self._retried, self._needed, self._needs = set(), set(), {}, Counter()
        for node in self._state.emptied & set(self.cluster.node_index):
            engine.take(e.NodeDrained(now_s, self.cluster.node_index[node]))
        for node in self._state.down & set(self.cluster.node_index):
            engine.take(e.NodeDown(now_s, self.cluster.node_index[node]))
        for job in sorted(self._state.jobs.values(), key=lambda job: job.state.submitted_at_s):
            self._index(job.id, job)
            if self._can_run(job) and job.held_until_s <= now_s:
                self._enter(job)
        self._show_first()
        self._count_cordons(engine)
        self._named = {job.id: _slots(job.target) for job in self._state.jobs.values() if job.target is not None}

    def _can_run(self, job: LiveJob) -> bool:
        """Whether the engine is to know of a job: not of those that need more than there is, until it is there."""
        return job.wants_slots and (job.target is not None or fits(job, self.cluster))

    def _restore(self, engine: Engine, job: LiveJob, now_s: float) -> None:
        facts = self._facts(job)
        self._tell_models(engine, job, facts)
        engine.restore(replace(view_of(job, self.cluster, now_s), facts=facts))

    @staticmethod
    def _tell_models(engine: Engine, job: LiveJob, facts: JobFacts) -> None:
        """Tell the engine what was measured of a job, or of one like it, once it is known how batches can be divided.

        Before that (its kind is not known yet) a model could not say what the job does on any number of slots, and a
        policy would never start it.
        """
        if not facts.limits:
            return
        for gpu_type, profile in job.measured:
            engine.models.add_profile(job.id, gpu_type, profile)
        if job.gradient is not None:
            engine.models.add_gradient(job.id, job.gradient)

    def _facts(self, job: LiveJob) -> JobFacts:
        """What the policy may know of a job: that one which could not grow must not for a while, but may shrink."""
        facts, place = facts_of(job, self.cluster), job.state.placement
        if place is None or job.stays_until_s <= self._clock.now_s():
            return facts
        self._staying.add(job.id)
        return replace(facts, max_slots=min(facts.max_slots, max(place.num_slots, facts.min_slots)))

    def _released(self) -> list[str]:
        """Jobs that may be tried again now, or may grow again."""
        now_s, jobs = self._clock.now_s(), self._state.jobs
        over = {job_id for job_id in self._staying if job_id not in jobs or jobs[job_id].stays_until_s <= now_s}
        self._staying -= over
        tried = {job_id for job_id in self._retried if job_id not in jobs or jobs[job_id].held_until_s <= now_s}
        self._retried -= tried
        return [*over, *tried]

    def _plan(
        self, before: Mapping[str, JobView], given: Mapping[str, str], *, had_news: bool = False
    ) -> r.Planned | None:
        """What the engine's allocations change about who has which slots, and why: as the policy says, or as it is."""
        jobs = self._state.jobs
        wanted = {job_id: view.allocation for job_id, view in self.engine.jobs.items() if view.allocation}
        current = {job_id: jobs[job_id].target for job_id in wanted}
        held = {job_id: place for job_id in self._placed if (place := jobs[job_id].state.placement) is not None}
        out = self._state.out_of_service.difference(*self._kept.values())
        named = name_slots(wanted, current, self.cluster, out, held)
        targets = {
            job_id: named.get(job_id)
            for job_id in self.engine.jobs
            if named.get(job_id) != jobs[job_id].target and not _has_a_size_of_before(jobs[job_id], named.get(job_id))
        }
        if not targets:
            return None
        changes = {
            job_id: Change(_slots(jobs[job_id].target), _slots(place))
            for job_id, place in targets.items()
            if job_id in before
        }
        reasons: dict[str, str] = {}
        for i, (job_id, because) in enumerate(
            self._causes.explain(changes, self._state, self._decided_at_s, given.keys()).items()
        ):
            told = [given.get(job_id, ""), because]
            if not any(told) and before[job_id].allocation:
                told = ["weighed anew with what jobs have measured" if had_news else "weighed anew"]
            if i < MOST_EXPLAINED and self.engine.jobs[job_id].gpu_type == before[job_id].gpu_type:
                weighed = replace(before[job_id], model=self.engine.jobs[job_id].model)  # as the decision knew it
                after = changes[job_id].after
                expected = expected_speed(weighed, len(after), len({node for node, _ in after}))
                told.append("" if expected is None else f"expected speed × {expected:.2f}")
            reasons[job_id] = "; ".join(text for text in told if text)
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
        arrived = job.formed_at_s >= job.target_since_s and job.state.placement == job.target
        if job.phase in (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RESCALING) and not arrived:
            return job.target_since_s + STARTING_S
        started_s = view.started_s if view.started_s is not None else job.target_since_s
        changed = replace(view, since_s=max(job.target_since_s, job.formed_at_s), paused_until_s=0.0)
        lacks = job.target is not None and job.target.num_slots < job.spec.min_slots  # as its owner says by now
        return max(0.0 if lacks else settled_s(changed), started_s + job.spec.min_runtime_s, job.stays_put_until_s)


def _slots(place: Placement | None) -> frozenset[Slot]:
    return frozenset(() if place is None else place.slots())


def _has_a_size_of_before(job: LiveJob, place: Placement | None) -> bool:
    """Whether a job would be moved at a size that its owner does not allow any more: it is left until it may change."""
    if place is None or job.target is None or place.num_slots != job.target.num_slots:
        return False
    most = job.spec.max_slots
    return place.num_slots < job.spec.min_slots or (most is not None and place.num_slots > most)
