"""The service: one thread that owns the state, the engine and the executor, and everything else asks it.

Requests, and what the executor hears, come in through one queue and are handled in batches. Of each batch, first what
happened is written down, then the engine decides (at most once a batch), then the plan is written down, whole or not at
all, and then the executor is led towards it. Whatever cannot be written has not happened: requests are refused,
and what the executor told is kept until it can be. After each batch an unchanging copy of the state is published, which
any thread may read without waiting.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from geminid import __version__
from geminid.cluster import Cluster
from geminid.engine import events as e
from geminid.engine.commands import Stop
from geminid.engine.engine import Engine
from geminid.engine.models import ModelKeeper
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.policies.base import ClusterView, JobView, Policy
from geminid.serve import records as r
from geminid.serve.executors.base import Executor, Happening
from geminid.serve.guard import Guard, Timed
from geminid.serve.state import LiveJob, ServiceState, observation_of
from geminid.serve.store import Store, StoreProblem
from geminid.serve.translation import facts_of, name_slots, rescale_s, view_of

log = logging.getLogger("geminid.serve")

#: The executor is asked to look at its clock so often.
TICK_S = 0.5

#: Two decisions are at least so far apart; without anything but measurements, so far.
GAP_S, NEWS_S = 0.25, 5.0

#: Deciding takes at most this share of the time; the rest is for answering.
SHARE_OF_TIME = 0.2

#: A job whose slots have just changed keeps them for so long, or for so many of its pauses.
SETTLE_S, SETTLE_PAUSES = 3.0, 3.0

#: A job that is being started keeps its slots for so long.
STARTING_S = 60.0

#: A policy that has not answered by then is given up on.
POLICY_LIMIT_S = 30.0

#: So many requests and happenings are handled in one batch at most.
MOST_IN_BATCH = 500


class Refused(Exception):
    """A request that cannot be met; one sentence says why, and a status code what kind of mistake it is."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Clock:
    """Seconds since the epoch that never go back: set by the wall clock once, then driven by a monotonic one."""

    def __init__(self, at_least_s: float = 0.0) -> None:
        self._offset_s = max(time.time(), at_least_s) - time.monotonic()

    def now_s(self) -> float:
        """The time."""
        return time.monotonic() + self._offset_s


@dataclass(frozen=True, slots=True)
class Published:
    """The service at a moment, for readers; nothing in it changes."""

    now_s: float
    state: ServiceState
    trouble: str = ""
    decisions: int = 0
    rejected: int = 0
    last_decision_ms: float = 0.0
    batches: int = 0


@dataclass(slots=True)
class _Request:
    """Something that somebody asks for: which records it makes, and what is answered when they are written."""

    make: Callable[[ServiceState], Sequence[r.Record]]
    answer: Callable[[ServiceState], Any]
    future: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class _Look:
    """Something that is to be computed in the service's thread, without any change."""

    look: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)


@dataclass(slots=True)
class _End:
    """The service is to end."""

    detach: bool


class Service:
    """See the module."""

    def __init__(
        self, store: Store, executor: Executor, policy: Policy, policy_text: str, *, gap_s: float = GAP_S
    ) -> None:
        self.store, self.executor, self.policy, self.policy_text = store, executor, policy, policy_text
        self.cluster: Cluster = executor.cluster
        self._gap_s = gap_s
        self._state = store.load()
        self.clock = Clock(self._state.at_s)
        self._inbox: queue.SimpleQueue[_Request | _Look | _End | tuple[Happening]] = queue.SimpleQueue()
        self._engine = self._new_engine()
        self._unsaved: list[r.Record] = []
        self._touched: set[str] = set()
        self._trouble = ""
        self._decide_wanted, self._news = True, False
        self._decided_at_s, self._wake_at_s = float("-inf"), float("inf")
        self._next_round_s = float("-inf")
        self._decisions = self._rejected = self._batches = 0
        self._decision_ms = 0.0
        self._last_rejection = ""
        self._thread = threading.Thread(target=self._run, name="geminid service", daemon=True)
        self._failure: BaseException | None = None
        self.published = Published(self.clock.now_s(), self._state.copy())

    # ------------------------------------------------------------------------------------------- for everybody

    def start(self) -> None:
        """Take over what is there, and begin."""
        nodes = {node.name: node.gpu_type for node in self.cluster.nodes}
        cluster = {"gpu_types_by_node": nodes, "slots": {node.name: node.slots for node in self.cluster.nodes}}
        started = r.ServiceStarted(
            epoch=self.store.epoch, version=__version__, policy=self.policy_text, cluster=cluster
        )
        recovered = self.executor.open(lambda happening: self._inbox.put((happening,)), list(self._state.jobs.values()))
        if not self._commit([started, *recovered]):
            raise StoreProblem(self._trouble)
        self._engine = self._new_engine()
        self._touched = {job.id for job in self._state.jobs.values() if not job.phase.is_terminal}
        self._thread.start()

    def end(self, *, detach: bool = False) -> None:
        """End the service: with its jobs, which save what they have done, or leaving them running (``detach``)."""
        self._inbox.put(_End(detach))
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(
        self, spec: JobSpec, owner: str, *, request: str | None = None, checked: bool = False
    ) -> Future[LiveJob]:
        """Submit a job. A request of the same name as an earlier one gets the earlier one's job."""
        spec = self.accepted(spec, owner) if not checked else spec
        elastic = self.executor.is_elastic(spec)
        given: list[str] = []

        def make(state: ServiceState) -> list[r.Record]:
            if request is not None and request in state.requests:
                given.append(state.requests[request])
                return []
            given.append(f"j{state.submitted + 1}")
            return [r.JobSubmitted(job_id=given[0], spec=spec, elastic=elastic, request=request)]

        return self._ask(make, lambda state: state.jobs[given[0]])

    def accepted(self, spec: JobSpec, owner: str) -> JobSpec:
        """The job as it will be run: with its owner, and of a fixed size if its script cannot be resized.

        Raises:
            InvalidInput: it can never run here.
        """
        problems = self.executor.check(spec)
        if problems:
            raise InvalidInput(problems)
        spec = replace(spec, owner=owner)
        if spec.max_slots is None and not self.executor.is_elastic(spec):
            spec = replace(spec, max_slots=spec.min_slots)
        return spec

    def wish(self, job_id: str, wish: str, by: str) -> Future[LiveJob]:
        """Have a job ``run``, ``pause`` or ``cancel``."""

        def make(state: ServiceState) -> list[r.Record]:
            job = _existing(state, job_id)
            if job.phase.is_terminal:
                if wish == "cancel" and job.phase is JobPhase.CANCELLED:
                    return []
                raise Refused(409, f"job {job_id} is over: it is {job.phase}")
            if job.wish == "cancel" and wish != "cancel":
                raise Refused(409, f"job {job_id} is being cancelled")
            return [] if job.wish == wish else [r.JobWished(job_id=job_id, wish=wish, by=by)]

        return self._ask(make, lambda state: state.jobs[job_id])

    def change(
        self, job_id: str, by: str, *, priority: int | None, min_slots: int | None, max_slots: int | None
    ) -> Future[LiveJob]:
        """Change what a job asks for."""
        changes = {"priority": priority, "min_slots": min_slots, "max_slots": max_slots}
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}

        def make(state: ServiceState) -> list[r.Record]:
            job = _existing(state, job_id)
            if job.phase.is_terminal:
                raise Refused(409, f"job {job_id} is over: it is {job.phase}")
            if not given:
                raise Refused(422, "nothing was given to change: priority, min_slots or max_slots")
            if not job.elastic and (min_slots is not None or max_slots is not None):
                raise Refused(409, f"job {job_id} is a plain command, whose size cannot change")
            changed = replace(job.spec, **given)  # checks the values
            if problems := self.executor.check(changed):
                raise InvalidInput(problems)
            return [r.JobChanged(job_id=job_id, by=by, priority=priority, min_slots=min_slots, max_slots=max_slots)]

        return self._ask(make, lambda state: state.jobs[job_id])

    def drain(self, node: str, drained: bool, by: str) -> Future[None]:
        """Have a node take no more work, or again."""
        if node not in self.cluster.node_index:
            raise Refused(404, f"there is no node {node!r}; there is {', '.join(self.cluster.node_index)}")
        record = r.NodeDrained(node=node, drained=drained, by=by)
        return self._ask(lambda state: [record] if (node in state.drained) != drained else [], lambda state: None)

    def cordon(self, node: str, slot: int, cordoned: bool, by: str) -> Future[None]:
        """Have a slot take no more work, or again."""
        if node not in self.cluster.node_index or not 0 <= slot < self.cluster.node(node).slots:
            raise Refused(404, f"there is no slot {slot} on a node {node!r}")
        record = r.SlotCordoned(node=node, slot=slot, cordoned=cordoned, by=by)
        return self._ask(
            lambda state: [record] if ((node, slot) in state.cordoned) != cordoned else [], lambda state: None
        )

    def set_quota(self, of: str, name: str, slots: int | None, by: str) -> Future[None]:
        """Limit the slots of a queue's or an owner's jobs together; None lifts the limit."""
        if of not in ("queue", "owner"):
            raise Refused(422, f"a quota is of a queue or of an owner, not of {of!r}")
        return self._ask(lambda state: [r.QuotaSet(of=of, name=name, slots=slots, by=by)], lambda state: None)

    def note(self, level: str, text: str) -> None:
        """Leave a note for operators."""
        self._ask(lambda state: [r.Noted(level=level, text=text)], lambda state: None)

    def look(self, look: Callable[[Engine, ServiceState], Any]) -> Future[Any]:
        """Compute something from the engine and the state, in the service's thread."""
        question = _Look(lambda: look(self._engine, self._state))
        self._inbox.put(question)
        return question.future

    def _ask(
        self, make: Callable[[ServiceState], Sequence[r.Record]], answer: Callable[[ServiceState], Any]
    ) -> Future[Any]:
        request = _Request(make, answer)
        if not self._thread.is_alive():
            raise Refused(503, "the service is ending")
        self._inbox.put(request)
        return request.future

    # ------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            ending: _End | None = None
            while ending is None:
                ending = self._batch(self._wait())
            self._wind_down(ending)
        except BaseException as problem:
            self._failure = problem
            log.exception("the service failed")
            with contextlib.suppress(Exception):
                self.executor.close(detach=True)

    def _wait(self) -> list[Any]:
        """What came in; at least one thing, or nothing if it is time to look at the clock."""
        due_s = min(TICK_S, max(0.0, self._due_s() - self.clock.now_s()))
        items: list[Any] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._inbox.get(timeout=due_s) if due_s > 0 else self._inbox.get_nowait())
            while len(items) < MOST_IN_BATCH:
                items.append(self._inbox.get_nowait())
        return items

    def _batch(self, items: Sequence[Any]) -> _End | None:
        ending = next((item for item in items if isinstance(item, _End)), None)
        self._take_in(items)
        for job_id in self._released():
            self._touched.add(job_id)
        self._sync_engine()
        if ending is None and self._is_time():
            self._decide()
        self._steer()
        if self.store.snapshot_is_due():
            with contextlib.suppress(StoreProblem):
                self.store.snapshot(self._state)
        self._publish()
        return ending

    def _take_in(self, items: Sequence[Any]) -> None:
        """Write down what happened and what was asked for, and answer."""
        happened = self._unsaved
        for item in items:
            if isinstance(item, tuple):
                happened += self.executor.take(item[0])
        happened += self.executor.tick()
        happened += self._spent()
        self._unsaved = []
        trial = self._state.copy()
        records: list[r.Record] = list(happened)
        for record in happened:
            trial.apply(trial.seq + 1, self.clock.now_s(), record)
        asked: list[_Request] = []
        for item in items:
            if isinstance(item, _Request):
                try:
                    made = list(item.make(trial))
                except Exception as problem:
                    item.future.set_exception(problem)
                    continue
                for record in made:
                    trial.apply(trial.seq + 1, self.clock.now_s(), record)
                records += made
                asked.append(item)
        if self._commit(records):
            if asked:
                self._publish()  # whoever asked sees what came of it
            for item in asked:
                item.future.set_result(item.answer(self._state))
        else:
            self._unsaved = [*happened, *self._unsaved]
            for item in asked:
                item.future.set_exception(Refused(507, self._trouble))
        for item in items:
            if isinstance(item, _Look):
                try:
                    item.future.set_result(item.look())
                except Exception as problem:
                    item.future.set_exception(problem)

    def _spent(self) -> list[r.Record]:
        """Jobs that have used all of the GPU time that they may."""
        now_s = self.clock.now_s()
        return [
            r.JobWished(job_id=job.id, wish="cancel", by=f"its budget of {job.spec.budget_gpu_s:g} slot-seconds")
            for job in self._state.jobs.values()
            if job.spec.budget_gpu_s is not None
            and job.wish == "run"
            and job.phase.holds_slots
            and job.service_gpu_s(now_s) >= job.spec.budget_gpu_s
        ]

    def _commit(self, records: Sequence[r.Record]) -> bool:
        """Write records and take them into the state; whether that worked."""
        if not records:
            return True
        now_s = self.clock.now_s()
        try:
            entries = self.store.append(now_s, records, self._state.seq)
        except StoreProblem as problem:
            if self._trouble != str(problem):
                log.error("%s", problem)
            self._trouble = str(problem)
            return False
        self._trouble = ""
        for entry in entries:
            self._state.apply(entry.seq, entry.at_s, entry.record)
            self._notice(entry.record)
        return True

    def _notice(self, record: r.Record) -> None:
        """Remember whom a record is about, and tell the engine what only it says."""
        job_id = r.job_of(record)
        if job_id is not None:
            self._touched.add(job_id)
        now_s = max(self.clock.now_s(), self._engine.now_s)
        match record:
            case r.Planned():
                self._touched |= set(record.targets)
            case r.JobProgressed() if record.job_id in self._engine.jobs:
                job = self._state.jobs[record.job_id]
                seen = observation_of(record) if job.state.num_slots == record.slots else None
                report = e.Reported(now_s, record.job_id, seen, job.gradient, job.state.progress_samples)
                self._engine.take(report)
                self._news = True
            case r.NodeDrained():
                node = self.cluster.node_index[record.node]
                self._engine.take(e.NodeDrained(now_s, node) if record.drained else e.NodeUp(now_s, node))
                self._decide_wanted = True
            case r.SlotCordoned():
                self._engine.take(self._cordons(now_s, record.node))
                self._decide_wanted = True
            case r.QuotaSet():
                self._decide_wanted = True
            case r.Noted():
                log.log(logging.WARNING if record.level != "info" else logging.INFO, "%s", record.text)

    def _cordons(self, now_s: float, node: str) -> e.SlotsCordoned:
        out = sum(owner == node for owner, _ in self._state.cordoned)
        return e.SlotsCordoned(now_s, self.cluster.node_index[node], out)

    def _publish(self) -> None:
        self._batches += 1
        self.published = Published(
            self.clock.now_s(),
            self._state.copy(),
            self._trouble,
            self._decisions,
            self._rejected,
            self._decision_ms,
            self._batches,
        )

    # ------------------------------------------------------------------------------------------- the engine

    def _new_engine(self) -> Engine:
        """An engine that knows what the state knows."""
        guard = Guard(Timed(self.policy, POLICY_LIMIT_S), protected=self._protected_until_s, groups=self._quotas_of)
        now_s = max(self.clock.now_s(), self._state.at_s)
        engine = Engine(self.cluster, guard, ModelKeeper("geminid"), now_s=now_s)
        for node in self._state.drained & set(self.cluster.node_index):
            engine.take(e.NodeDrained(now_s, self.cluster.node_index[node]))
        for node in {node for node, _ in self._state.cordoned} & set(self.cluster.node_index):
            engine.take(self._cordons(now_s, node))
        for job in self._state.jobs.values():
            if job.wants_slots:
                self._restore(engine, job, now_s)
        return engine

    def _restore(self, engine: Engine, job: LiveJob, now_s: float) -> None:
        for gpu_type, profile in job.measured:
            engine.models.add_profile(job.id, gpu_type, profile)
        if job.gradient is not None:
            engine.models.add_gradient(job.id, job.gradient)
        engine.restore(view_of(job, self.cluster, now_s))

    def _released(self) -> list[str]:
        """Jobs that may be tried again now."""
        now_s = self.clock.now_s()
        return [
            job.id
            for job in self._state.jobs.values()
            if job.held_until_s and job.held_until_s <= now_s and job.wants_slots and job.id not in self._engine.jobs
        ]

    def _sync_engine(self) -> None:
        """Tell the engine what has become of the jobs that records were about."""
        engine = self._engine
        for job_id in self._touched:
            job, view = self._state.jobs.get(job_id), engine.jobs.get(job_id)
            if job is None:
                continue
            now_s = max(self.clock.now_s(), engine.now_s)
            if job.phase.is_terminal:
                if view is not None:
                    done = job.phase is JobPhase.SUCCEEDED
                    progress = job.state.progress_samples
                    over = e.Completed(now_s, job_id, progress) if done else e.Failed(now_s, job_id, "", final=True)
                    engine.take(over)
                    self._decide_wanted = True
            elif not job.wants_slots or job.held_until_s > now_s:
                if view is not None:
                    engine.take(e.Withdrawn(now_s, job_id))
                    self._decide_wanted = True
            elif view is None:
                self._restore(engine, job, now_s)
                self._decide_wanted = True
            else:
                if job.target is None and view.allocation:
                    engine.take(e.Failed(now_s, job_id, job.state.reason))
                    self._decide_wanted = True
                facts = facts_of(job, self.cluster)
                if facts != view.facts:
                    asks_otherwise = facts.min_slots != view.facts.min_slots or facts.max_slots != view.facts.max_slots
                    self._decide_wanted |= asks_otherwise or facts.weight != view.facts.weight
                    engine.take(e.Revised(now_s, facts))

    def _due_s(self) -> float:
        """When the next decision is due: so that deciding never takes more than its share of the time."""
        earliest_s = self._decided_at_s + max(self._gap_s, 1e-3 * self._decision_ms / SHARE_OF_TIME)
        if self._engine.policy.interval_s is not None:
            return max(self._next_round_s, earliest_s)
        due = [self._wake_at_s]
        if self._decide_wanted:
            due.append(earliest_s)
        if self._news:
            due.append(self._decided_at_s + NEWS_S)
        return max(min(due), earliest_s)

    def _is_time(self) -> bool:
        return self.clock.now_s() >= self._due_s()

    def _decide(self) -> None:
        """Ask the engine for a plan and write it down, whole or not at all."""
        engine, started = self._engine, time.perf_counter()
        now_s = max(self.clock.now_s(), engine.now_s)
        engine.take(e.Tick(now_s))
        outcome = engine.decide()
        self._decision_ms = 1e3 * (time.perf_counter() - started)
        self._decided_at_s, self._decide_wanted, self._news = now_s, False, False
        self._next_round_s = now_s + (engine.policy.interval_s or 0.0)
        self._wake_at_s = outcome.wake_at_s if outcome.wake_at_s is not None else float("inf")
        self._decisions += outcome.decided
        records: list[r.Record] = []
        if outcome.rejected:
            self._rejected += 1
            text = f"a decision of {self.policy_text} was rejected, the last plan stays: {'; '.join(outcome.rejected)}"
            if text != self._last_rejection:
                records.append(r.Noted(level="alert", text=text[:1000]))
            self._last_rejection = text
            self._wake_at_s = now_s + NEWS_S
        plan = self._plan({c.job_id: c.reason for c in outcome.commands if isinstance(c, Stop)})
        if plan is not None:
            records.append(plan)
        if not self._commit(records):
            self._engine = self._new_engine()
            self._decide_wanted = True

    def _plan(self, reasons: Mapping[str, str]) -> r.Planned | None:
        """What the engine's allocations change about who has which slots."""
        jobs = self._state.jobs
        wanted = {job_id: view.allocation for job_id, view in self._engine.jobs.items() if view.allocation}
        current = {job_id: jobs[job_id].target for job_id in wanted}
        named = name_slots(wanted, current, self.cluster, self._state.cordoned)
        targets = {
            job_id: named.get(job_id) for job_id in self._engine.jobs if named.get(job_id) != jobs[job_id].target
        }
        if not targets:
            return None
        return r.Planned(targets=targets, reasons={job_id: reasons[job_id] for job_id in targets if job_id in reasons})

    def _protected_until_s(self, view: JobView) -> float:
        """Until when a running job keeps its slots whatever the policy says."""
        job = self._state.jobs.get(view.id)
        if job is None:
            return 0.0
        if not job.elastic:
            return float("inf")  # it would lose all that it has done
        if job.phase in (JobPhase.PENDING, JobPhase.STARTING):  # it has not even begun
            return view.since_s + STARTING_S
        started_s = view.started_s if view.started_s is not None else view.since_s
        settled_s = view.since_s + max(SETTLE_S, SETTLE_PAUSES * rescale_s(job))
        return max(settled_s, started_s + job.spec.min_runtime_s)

    def _quotas_of(self, job_id: str) -> Mapping[str, int]:
        job = self._state.jobs.get(job_id)
        if job is None or not self._state.quotas:
            return {}
        names = (("queue", job.spec.queue), ("owner", job.spec.owner or ""))
        return {f"{of} {name}": self._state.quotas[of, name] for of, name in names if (of, name) in self._state.quotas}

    # ------------------------------------------------------------------------------------------- the executor

    def _steer(self) -> None:
        """Lead the executor towards what the state says of the jobs that were touched."""
        touched, self._touched = self._touched, set()
        told: list[r.Record] = list(self._unsaved)
        for job_id in touched:
            job = self._state.jobs.get(job_id)
            if job is None:
                continue
            if job.wants_slots and job.target is not None:
                told += self.executor.run(job, job.target)
            else:
                told += self.executor.stop(job, _why_stopped(job), save=job.wish != "cancel")
        self._unsaved = []
        if self._commit(told):
            self.executor.flush()
        else:
            self._unsaved = told

    def _wind_down(self, ending: _End) -> None:
        """Have all jobs save and stop, or leave them running; then let go of everything."""
        if not ending.detach:
            stops: list[r.Record] = []
            for job in self._state.jobs.values():
                if job.phase.holds_slots:
                    stops += self.executor.stop(job, "the service is ending")
            self._commit(stops)
            deadline_s = time.monotonic() + 60.0
            while self.executor.busy and time.monotonic() < deadline_s:
                with contextlib.suppress(queue.Empty):
                    item = self._inbox.get(timeout=TICK_S)
                    if isinstance(item, tuple):
                        told = self.executor.take(item[0])
                        self._commit([record for record in told if not isinstance(record, r.JobStarting)])
                self._commit(self.executor.tick())
        self.executor.close(detach=ending.detach)
        with contextlib.suppress(StoreProblem):
            self.store.snapshot(self._state)
        self._publish()
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, _Request | _Look):
                    item.future.set_exception(Refused(503, "the service is ending"))

    def view(self) -> Future[ClusterView]:
        """What the policy would see now."""
        return self.look(lambda engine, state: engine.view())


def _existing(state: ServiceState, job_id: str) -> LiveJob:
    if job_id not in state.jobs:
        raise Refused(404, f"there is no job {job_id}")
    return state.jobs[job_id]


def _why_stopped(job: LiveJob) -> str:
    if job.wish == "cancel":
        return "cancelled"
    if job.wish == "pause":
        return "paused"
    return job.state.reason if job.phase.is_terminal else "others go first"
