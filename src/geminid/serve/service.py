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
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from geminid import __version__
from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.explain import LastDecision
from geminid.executionplan import DATA_PARALLEL
from geminid.fields import InvalidInput, Problem, check_integer, check_name, check_optional
from geminid.job import JobKind, JobSpec
from geminid.jobstate import JobPhase
from geminid.policies.base import ClusterView, Policy
from geminid.process.python_command import PYTHONS
from geminid.serve import records as r
from geminid.serve.client import LONGEST_END_S
from geminid.serve.executors.base import Executor, ExecutorEvent
from geminid.serve.guard import Guard
from geminid.serve.histograms import DECISIONS, WAITS, Histogram
from geminid.serve.jobnames import IDENTIFIER
from geminid.serve.livejob import ENDS, LiveJob, StoryLine
from geminid.serve.pacing import DECISION_GAP_S
from geminid.serve.planner import POLICY_LIMIT_S, Planner
from geminid.serve.quarantine import implausible, tried
from geminid.serve.reservations import PATIENCE_S
from geminid.serve.retention import Retention, remove_folders
from geminid.serve.state import ServiceState
from geminid.serve.store import Entry, Store, StoreProblem, StoreTaken
from geminid.serve.translation import view_of

log = logging.getLogger("geminid.serve")

#: The executor is asked to look at its clock so often.
TICK_S = 0.5

#: Jobs that have been over for long enough are looked for so often.
FORGET_EVERY_S = 10.0

#: A part of the service's work that has failed (deciding, a snapshot) is not tried again for this many seconds.
FAILED_PART_PAUSE_S = 5.0

#: So many requests and events are handled in one batch at most.
MOST_IN_BATCH = 500


class Refused(Exception):
    """A request that cannot be met; one sentence says why, and a status code what kind of mistake it is."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Published:
    """The service at a moment, for readers; nothing in it changes.

    ``reasons`` are those that the last decision gave, by job; ``decision_times`` and ``waits`` what decisions have
    taken and how long jobs have waited for their first slots, since the service started; ``last_decision`` what became
    of the last one.
    """

    now_s: float
    state: ServiceState
    trouble: str = ""
    decisions: int = 0
    rejected: int = 0
    last_decision_ms: float = 0.0
    batches: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)
    decision_times: Histogram = DECISIONS
    waits: Histogram = WAITS
    last_decision: LastDecision | None = None


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

    def answer(self) -> None:
        """Compute it."""
        try:
            self.future.set_result(self.look())
        except Exception as problem:
            self.future.set_exception(problem)


@dataclass(slots=True)
class _End:
    """The service is to end."""

    detach: bool


class Service:
    """See the module."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        policy: Policy,
        policy_text: str,
        *,
        gap_s: float = DECISION_GAP_S,
        policy_limit_s: float = POLICY_LIMIT_S,
        patience_s: float = PATIENCE_S,
        keep: Retention | None = None,
    ) -> None:
        self.store, self.executor, self.policy, self.policy_text = store, executor, policy, policy_text
        self.cluster: Cluster = executor.cluster
        self._state = store.load()
        self.clock = Clock(self._state.at_s)
        self._quarantine_implausible()
        self._inbox: queue.SimpleQueue[_Request | _Look | _End | tuple[ExecutorEvent]] = queue.SimpleQueue()
        self.patience_s = patience_s
        self._planner = Planner(
            self.cluster,
            policy,
            policy_text,
            self._state,
            self.clock,
            gap_s=gap_s,
            policy_limit_s=policy_limit_s,
            patience_s=patience_s,
        )
        self._keep, self._forget_at_s = keep or Retention(), 0.0
        self._tick_at_s = 0.0
        self._unsaved: list[r.Record] = []
        self._touched: set[str] = set()
        self._nodes_changed = False
        self._trouble = ""
        self._failing: dict[str, str] = {}  # what could not be done last time, and why
        self._failed_at_s: dict[str, float] = {}
        self._batches = 0
        self.ending = self._detaches = False
        self._thread = threading.Thread(target=self._run, name="geminid service", daemon=True)
        self._in_hand: list[Any] = []
        self._failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._waits = WAITS
        self.published = Published(self.clock.now_s(), self._state.copy())

    def _quarantine_implausible(self) -> None:
        """Put jobs of the log into quarantine that nothing can be planned with."""
        trial, now_s = self._state.copy(), self.clock.now_s()
        active = [job for job in self._state.jobs.values() if not job.phase.is_terminal]
        if found := implausible(trial, now_s, active, self._probe):
            for entry in self.store.append(now_s, found, self._state.seq):
                self._state.apply(entry.seq, entry.at_s, entry.record)

    # ------------------------------------------------------------------------------------------- for everybody

    def start(self) -> None:
        """Take over what is there, and begin."""
        nodes = {node.name: node.gpu_type for node in self.cluster.nodes}
        cluster = {"gpu_types_by_node": nodes, "slots": {node.name: node.slots for node in self.cluster.nodes}}
        started = r.ServiceStarted(
            epoch=self.store.epoch, version=__version__, policy=self.policy_text, cluster=cluster
        )
        recovered = self.executor.open(lambda event: self._inbox.put((event,)), list(self._state.jobs.values()))
        if not self._commit([started, *recovered]):
            raise StoreProblem(self._trouble)
        self._planner.start_over()
        self._touched = {job.id for job in self._state.jobs.values() if not job.phase.is_terminal}
        self._thread.start()

    def end(self, *, detach: bool = False) -> None:
        """End the service: with its jobs, which save what they have done, or leaving them running (``detach``)."""
        self.ending, self._detaches = True, detach
        self._inbox.put(_End(detach))
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def market(self) -> Guard:
        """Whoever knows what slots are worth."""
        return self._planner.guard

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(
        self, spec: JobSpec, owner: str, *, request: str | None = None, digest: str = "", checked: bool = False
    ) -> Future[LiveJob]:
        """Submit a job. A request of the same name as an earlier one gets the earlier one's job.

        ``digest`` stands for what is asked for: a name that is used again for something else is refused. The job's code
        may have to be read here and now.

        Raises:
            InvalidInput: it can never run here.
        """
        spec = self.accepted(spec, owner) if not checked else spec
        code = self.executor.submissions.store_code(spec)
        found = self.executor.submissions.kind_of(spec)
        given: list[str] = []

        def make(state: ServiceState) -> list[r.Record]:
            if request is not None and request in state.requests:
                given.append(state.requests[request])
                known = state.jobs[given[0]].digest
                if known and digest and known != digest:
                    told = f"its Idempotency-Key was used for another job before, {given[0]}: use a key only once"
                    raise Refused(422, told)
                return []
            given.append(f"j{state.submitted + 1}")
            return [
                r.JobSubmitted(
                    job_id=given[0],
                    spec=spec,
                    elastic=found.kind is JobKind.ELASTIC,
                    request=request,
                    digest=digest,
                    code=code,
                    job_kind=found.kind.value,
                    kind_reason=found.reason,
                )
            ]

        return self._ask(make, lambda state: state.jobs[given[0]])

    def accepted(
        self, spec: JobSpec, owner: str, python: str | None = None, environment: Mapping[str, str] | None = None
    ) -> JobSpec:
        """The job as it will be run: with its owner, and of a fixed size if its script cannot be resized.

        ``python`` is the interpreter of whoever submits it, and ``environment`` some of their environment.

        Raises:
            InvalidInput: it can never run here.
        """
        if python is not None and spec.command[0] in PYTHONS:
            python = self.executor.submissions.interpreter(python) or spec.command[0]
            spec = replace(spec, command=(python, *spec.command[1:]))
        if environment:
            inherited = self.executor.submissions.inherited(environment)
            spec = replace(spec, env=tuple({**inherited, **dict(spec.env)}.items()))
        problems = self.executor.submissions.check(spec)
        if IDENTIFIER.fullmatch(spec.name):
            problems.append(Problem("name", spec.name, "must not look like a job's identifier: choose another one"))
        plain = self.executor.submissions.kind_of(spec).kind is JobKind.PLAIN
        if plain and spec.max_slots is not None and not spec.has_fixed_size:
            told = f"must be {spec.min_slots}, as min_slots: a plain command has a fixed size"
            problems.append(Problem("max_slots", spec.max_slots, told, involves=("min_slots",)))
        if not plain and spec.slots_per_replica > 1:
            told = "must be 1, or kind must be plain: a worker of an elastic job has one slot and the whole model on it"
            problems.append(Problem("slots_per_replica", spec.slots_per_replica, told))
        others = [plan.name for plan in spec.execution_plans if plan != DATA_PARALLEL]
        if others:
            told = f"must be left out, or be {DATA_PARALLEL.name} alone: a live script runs in the way it was written"
            problems.append(Problem("execution_plans", ", ".join(others), told))
        if problems:
            raise InvalidInput(problems)
        spec = replace(spec, owner=owner)
        if spec.max_slots is None and plain:
            spec = replace(spec, max_slots=spec.min_slots)
        return spec

    def wish(self, job_id: str, wish: str, by: str) -> Future[LiveJob]:
        """Have a job ``run``, ``pause`` or ``cancel``."""

        def make(state: ServiceState) -> list[r.Record]:
            job = _existing(state, job_id)
            if job.phase.is_terminal:
                if wish == "cancel" and job.phase is JobPhase.CANCELLED:
                    return []
                raise Refused(409, f"job {job_id} is over: it {ENDS[job.phase]}")
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
                raise Refused(409, f"job {job_id} is over: it {ENDS[job.phase]}")
            if not given:
                raise Refused(422, "nothing was given to change: priority, min_slots or max_slots")
            if job.kind is JobKind.PLAIN and (min_slots is not None or max_slots is not None):
                raise Refused(409, f"job {job_id} is a plain command, whose size cannot change")
            changed = replace(job.spec, **given)  # checks the values
            found = self.executor.submissions.check(changed)
            if problems := [problem for problem in found if {problem.field, *problem.involves} & given.keys()]:
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

    def set_quota(self, of: str, name: str, slots: int | None, by: str, *, borrow: bool = False) -> Future[None]:
        """Limit the slots of a queue's or an owner's jobs together; None lifts the limit.

        With ``borrow``, they may have more for as long as nobody else can use it.
        """
        if of not in ("queue", "owner"):
            raise Refused(422, f"a quota is of a queue or of an owner, not of {of[:100]!r}")
        if slots is not None and (problems := check_name(of, name)):
            raise InvalidInput(problems)
        record = r.QuotaSet(of=of, name=name, slots=slots, by=by, borrow=borrow)
        return self._ask(lambda state: [record], lambda state: None)

    def set_queue(
        self,
        queue: str,
        by: str,
        *,
        max_priority: int | None = None,
        add: Set[str] = frozenset(),
        remove: Set[str] = frozenset(),
        everybody: bool = False,
    ) -> Future[None]:
        """Set up to which priority users may go in a queue, and add or remove members, or open it to ``everybody``.

        Raises:
            InvalidInput: a name is none, or the priority.
        """
        problems = [*check_name("queue", queue), *(bad for user in sorted(add) for bad in check_name("member", user))]
        problems += check_optional(check_integer, "max_priority", max_priority, at_least=-1000, at_most=1000)
        if problems:
            raise InvalidInput(problems)

        def make(state: ServiceState) -> list[r.Record]:
            before = state.rules_of(queue)
            if absent := sorted(remove - before.members):
                raise Refused(404, f"{', '.join(absent)[:200]} is not a member of queue {queue}")
            rules = before.changed(max_priority=max_priority, add=add, remove=remove, everybody=everybody)
            same = rules == before
            return [] if same else [r.QueueRulesSet(queue=queue, by=by, **rules.to_dict())]

        return self._ask(make, lambda state: None)

    def note(self, level: str, text: str) -> None:
        """Leave a note for operators."""
        self._ask(lambda state: [r.Noted(level=level, text=text)], lambda state: None)

    def look(self, look: Callable[[Engine, ServiceState], Any]) -> Future[Any]:
        """Compute something from the engine and the state, in the service's thread."""
        question = _Look(lambda: look(self._planner.engine, self._state))
        if not self._thread.is_alive():
            raise Refused(503, "the service has ended")
        self._inbox.put(question)
        return question.future

    def _ask(
        self, make: Callable[[ServiceState], Sequence[r.Record]], answer: Callable[[ServiceState], Any]
    ) -> Future[Any]:
        request = _Request(make, answer)
        if self.ending or not self._thread.is_alive():
            raise Refused(503, self._why_turned_away())
        self._inbox.put(request)
        return request.future

    @property
    def awaited(self) -> list[str]:
        """The jobs that a service that is ending waits for: their processes have not stopped yet."""
        if not self.ending or self._detaches:
            return []
        return [job.id for job in self.published.state.jobs.values() if job.phase.holds_slots]

    def _why_turned_away(self) -> str:
        names = ", ".join(self.awaited[:5]) if self.alive else ""
        return "the service is ending" + (f": it waits for {names} to stop" if names else "")

    # ------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            ending: _End | None = None
            while ending is None:
                self._in_hand = self._wait()
                ending = self._batch(self._in_hand)
            self._wind_down(ending)
        except BaseException as problem:
            self._failure = problem
            log.exception("the service failed")
            with contextlib.suppress(Exception):
                self.executor.close(detach=True)
            self._turn_away(f"the service failed: {type(problem).__name__}: {problem}")
            self.on_failure()

    def _wait(self) -> list[Any]:
        """What came in; at least one thing, or nothing if it is time to look at the clock."""
        due_s = max(0.0, min(self._tick_at_s - time.monotonic(), self._decision_due_s() - self.clock.now_s()))
        items: list[Any] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._inbox.get(timeout=due_s) if due_s > 0 else self._inbox.get_nowait())
            while len(items) < MOST_IN_BATCH:
                items.append(self._inbox.get_nowait())
        return items

    def _batch(self, items: Sequence[Any]) -> _End | None:
        ending = next((item for item in items if isinstance(item, _End)), None)
        self._take_in(items)
        if self._nodes_changed:
            self._follow()
        self._guarded("tell the planner what has happened", self._sync)
        if ending is None and self.clock.now_s() >= self._decision_due_s():
            self._guarded("decide", self._decide)
        self._steer()
        self._guarded("forget old jobs", self._forget)
        if self.store.snapshot_is_due(self._state) and not self._has_just_failed("write a snapshot"):
            self._guarded("write a snapshot", self._snapshot)
        self._publish()
        return ending

    def _sync(self) -> None:
        try:
            self._planner.sync(self._touched)
        except Exception:
            self._planner.start_over()  # from what the state says
            raise

    def _decision_due_s(self) -> float:
        """When to decide next; a planner that has just failed is left alone for a while."""
        pause_s = FAILED_PART_PAUSE_S if self._has_just_failed("decide") else 0.0
        return self.clock.now_s() + pause_s if pause_s else self._planner.due_s()

    def _has_just_failed(self, what: str) -> bool:
        return time.monotonic() < self._failed_at_s.get(what, -math.inf) + FAILED_PART_PAUSE_S

    def _decide(self) -> None:
        if not self._commit(self._planner.decide()):
            self._planner.start_over()  # what is not written was not decided

    def _snapshot(self) -> None:
        with contextlib.suppress(StoreProblem):
            self.store.snapshot(self._state)

    def _guarded(self, what: str, action: Callable[[], None]) -> None:
        """Do a part of what a batch needs. What goes wrong there is reported, and must not end the service.

        Jobs train on without it, and it is tried again with the next batch.
        """
        try:
            action()
            self._failing.pop(what, None)
        except StoreTaken:
            raise  # this service is none any more: nothing that it does counts
        except Exception as problem:
            reason = f"{type(problem).__name__}: {problem}"[:500]
            self._failed_at_s[what] = time.monotonic()
            if self._failing.get(what) != reason:
                self._failing[what] = reason
                log.exception("the service could not %s", what)
                self._unsaved.append(r.Noted(level="alert", text=f"the service could not {what}: {reason}"))

    def _take(self, event: ExecutorEvent) -> list[r.Record]:
        """What something that the executor has heard means for the jobs."""
        try:
            return self.executor.handle(event)
        except Exception as problem:
            log.exception("the executor could not handle %r", event)
            told = f"{type(event).__name__} cannot be handled: {type(problem).__name__}: {problem}"[:500]
            job_id = getattr(event, "job_id", None)
            if job_id is None:
                return [r.Noted(level="alert", text=told)]
            return [r.JobQuarantined(job_id=job_id, reason=told)]

    def _take_in(self, items: Sequence[Any]) -> None:
        """Write down what happened and what was asked for, and answer."""
        happened = self._unsaved
        for item in items:
            if isinstance(item, tuple):
                happened += self._take(item[0])
        happened += self._tick()
        self._unsaved = []
        trial, now_s = self._state.copy(), self.clock.now_s()
        happened = tried(trial, now_s, happened, self._probe)
        records: list[r.Record] = list(happened)
        asked: list[_Request] = []
        for item in items:
            if isinstance(item, _Request):
                try:
                    made = list(item.make(trial))
                    for record in made:
                        trial.apply_or_raise(trial.seq + 1, now_s, record)
                except Exception as problem:
                    item.future.set_exception(problem)
                    continue
                records += made
                asked.append(item)
        if self._commit(records, were_tried=True):
            if asked:
                self._publish()  # whoever asked sees what came of it
            for item in asked:
                item.future.set_result(item.answer(self._state))
        else:
            self._unsaved = _thinned([*happened, *self._unsaved])
            for item in asked:
                item.future.set_exception(Refused(507, self._trouble))
        for item in items:
            if isinstance(item, _Look):
                item.answer()

    def _forget(self) -> None:
        """Let go of jobs that have been over for long enough."""
        if time.monotonic() < self._forget_at_s:
            return
        self._forget_at_s = time.monotonic() + FORGET_EVERY_S
        outdated = self._keep.outdated(self._state, self.clock.now_s())
        if outdated and self._commit([r.JobsForgotten(job_ids=outdated)]):
            remove_folders(outdated, self.executor.folders.folder_of)
        needed = {job.code for job in self._state.jobs.values() if not job.phase.is_terminal}
        self.executor.submissions.keep_code(needed)

    def _tick(self) -> list[r.Record]:
        """What time brings; looked at twice a second, however often something comes in: it is about all jobs."""
        if time.monotonic() < self._tick_at_s:
            return []
        self._tick_at_s = time.monotonic() + TICK_S
        return [*self.executor.tick(self._planner.requested_slots), *self._spent()]

    def _spent(self) -> list[r.Record]:
        """Jobs that have used all of the GPU time that they may."""
        now_s = self.clock.now_s()
        return [
            r.JobWished(job_id=job.id, wish="cancel", by="geminid", over_budget=True)
            for job in self._state.jobs.values()
            if job.spec.budget_gpu_s is not None
            and job.wish == "run"
            and job.phase.holds_slots
            and job.service_gpu_s(now_s) >= job.spec.budget_gpu_s
        ]

    def _probe(self, job: LiveJob) -> None:
        """Make sure that everything which looks at a job can do so: raise what they would raise."""
        view_of(job, self.cluster, self.clock.now_s())

    def _commit(self, records: Sequence[r.Record], *, were_tried: bool = False) -> bool:
        """Write records and take them into the state; whether that worked.

        They are applied to a copy of the state before they are written, unless they ``were_tried`` already.
        """
        if not records:
            return True
        now_s = self.clock.now_s()
        if not were_tried:
            records = tried(self._state.copy(), now_s, records, self._probe)
        try:
            entries = self.store.append(now_s, records, self._state.seq)
        except StoreTaken:
            raise  # this service is none any more: nothing that it does counts
        except StoreProblem as problem:
            if self._trouble != str(problem):
                log.error("%s", problem)
            self._trouble = str(problem)
            return False
        self._trouble = ""
        for entry in entries:
            self._count_wait(entry)
            about = r.jobs_of(entry.record)
            before = {job_id: _last_line(self._state, job_id) for job_id in about}
            self._state.apply(entry.seq, entry.at_s, entry.record)
            self._log_story(entry, before)
            self._touched |= about
            if isinstance(entry.record, r.JobHeld):  # others may have been planned for the slots that it stays on
                self._touched |= {job.id for job in self._state.jobs.values() if not job.phase.is_terminal}
            self._planner.notice(entry.record)
            self._nodes_changed |= isinstance(entry.record, r.NodeJoined | r.NodeLeft | r.NodeForgotten)
            if isinstance(entry.record, r.Noted):
                log.log(logging.WARNING if entry.record.level != "info" else logging.INFO, "%s", entry.record.text)
        return True

    def _log_story(self, entry: Entry, before: Mapping[str, StoryLine | None]) -> None:
        """Log what a record has added to the stories of jobs, and decisions."""
        kind = type(entry.record).__name__
        if isinstance(entry.record, r.Planned):
            fields = {"seq": entry.seq, "event": kind, "decision_ms": round(self._planner.decision_ms, 3)}
            changed = len(entry.record.targets)
            log.info(
                "decided: the slots of %d job%s change", changed, "" if changed == 1 else "s", extra={"fields": fields}
            )
        for job_id, last in before.items():
            line = _last_line(self._state, job_id)
            if line is not None and line is not last:
                told = {"seq": entry.seq, "event": kind, "job": job_id, "slots": line.slots, "pause_s": line.pause_s}
                log.info("%s: %s", job_id, line.text, extra={"fields": told})

    def _count_wait(self, entry: Entry) -> None:
        """How long a job has waited that is about to start for the first time."""
        if isinstance(entry.record, r.JobStarting):
            job = self._state.jobs.get(entry.record.job_id)
            if job is not None and job.state.first_started_at_s is None:
                self._waits = self._waits.plus(entry.at_s - job.state.submitted_at_s - job.rested_s)

    def _publish(self) -> None:
        self._batches += 1
        state = self._state.copy()
        for record in self._unsaved:  # it has happened all the same: whoever asks for a change is answered by it, too
            state.apply(state.seq + 1, self.clock.now_s(), record)
        self.published = Published(
            self.clock.now_s(),
            state,
            self._trouble,
            self._planner.counts.made,
            self._planner.counts.rejected,
            self._planner.decision_ms,
            self._batches,
            self._planner.reasons,
            self._planner.counts.times,
            self._waits,
            self._planner.last_decision(),
        )

    # ------------------------------------------------------------------------------------------- the executor

    def _follow(self) -> None:
        """Nodes have come or gone: plans are made for those that there are, and jobs may have lost slots."""
        self._nodes_changed, self.cluster = False, self.executor.cluster
        self._planner.follow(self.cluster)
        self._touched |= {job.id for job in self._state.jobs.values() if not job.phase.is_terminal}

    def _steer(self) -> None:
        """Lead the executor towards what the state says of the jobs that were touched."""
        touched, self._touched = self._touched, set()
        told: list[r.Record] = list(self._unsaved)
        for job_id in touched:
            job = self._state.jobs.get(job_id)
            if job is None:
                continue
            try:
                told += self._steer_one(job)
            except Exception as problem:
                log.exception("%s could not be started or stopped", job_id)
                reason = f"it cannot be started or stopped: {type(problem).__name__}: {problem}"
                told.append(r.JobQuarantined(job_id=job_id, reason=reason[:500]))
        self._unsaved = []
        if self._commit(told):
            self._guarded("start what was planned", self.executor.flush)
        else:
            self._unsaved = told

    def _steer_one(self, job: LiveJob) -> list[r.Record]:
        if job.wants_slots and job.target is not None:
            return self.executor.run(job, job.target)
        return self.executor.stop(job, _why_stopped(job), save=job.wish != "cancel")

    def _wind_down(self, ending: _End) -> None:
        """Have all jobs save and stop, or leave them running; then let go of everything.

        Until all have stopped, whoever asks sees who has not; whoever asks for a change is turned away.
        """
        if not ending.detach:
            stops: list[r.Record] = []
            for job in self._state.jobs.values():
                if not job.phase.is_terminal:  # those that wait for slots to become free are not to start now
                    stops += self.executor.stop(job, "the service is ending")
            self._commit(stops)
            self._publish()
            deadline_s = time.monotonic() + LONGEST_END_S
            while any(job.phase.holds_slots for job in self._state.jobs.values()) and time.monotonic() < deadline_s:
                with contextlib.suppress(queue.Empty):
                    item = self._inbox.get(timeout=TICK_S)
                    if isinstance(item, tuple):
                        told = self._take(item[0])
                        self._commit([record for record in told if not isinstance(record, r.JobStarting)])
                    elif isinstance(item, _Look):
                        item.answer()
                    elif isinstance(item, _Request):  # it came at the last moment
                        item.future.set_exception(Refused(503, self._why_turned_away()))
                self._commit(self.executor.tick(dict))
                self._publish()
        self.executor.close(detach=ending.detach)
        with contextlib.suppress(StoreProblem):
            self.store.snapshot(self._state)
        self._publish()
        self._turn_away("the service is ending")

    def _turn_away(self, why: str) -> None:
        """Answer whoever still waits."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._in_hand.append(self._inbox.get_nowait())
        for item in self._in_hand:
            if isinstance(item, _Request | _Look) and not item.future.done():
                item.future.set_exception(Refused(503, why))

    def view_with(self, job_id: str) -> Future[tuple[ClusterView, str]]:
        """What the policy would see now, and a job with it; and the job that the policy sees in its place."""
        return self.look(lambda engine, state: self._planner.view_with(job_id))


def _thinned(records: Sequence[r.Record]) -> list[r.Record]:
    """What cannot be written yet, with only the last report of each job: it may take long."""
    last = {record.job_id: record for record in records if isinstance(record, r.JobProgressed)}
    return [record for record in records if not isinstance(record, r.JobProgressed) or last[record.job_id] is record]


def _last_line(state: ServiceState, job_id: str) -> StoryLine | None:
    job = state.jobs.get(job_id)
    return job.story[-1] if job is not None and job.story else None


def _existing(state: ServiceState, job_id: str) -> LiveJob:
    if job_id not in state.jobs:
        raise Refused(404, f"there is no job {job_id}")
    return state.jobs[job_id]


def _why_stopped(job: LiveJob) -> str:
    if job.wish != "run":
        return job.wished
    return job.state.reason if job.phase.is_terminal else job.why or "others go first"
