"""The service: one thread that owns the state, the planner and the executor.

Requests and what the executor learns arrive in one inbox and are handled in batches. Of each batch, first what happened
is written, then the planner decides (at most once), then the plan is written as a whole, and then the executor is asked
to run each job on its slots. What cannot be written has not happened: requests are refused, and what the executor
reported is kept until it can be written. After each batch an unchanging copy of the state is published, which any
thread may read without waiting.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from geminid import __version__
from geminid.cluster import Cluster
from geminid.engine.explain import LastDecision
from geminid.policies.base import Policy
from geminid.serve import limits
from geminid.serve import records as r
from geminid.serve.attempts import Attempts
from geminid.serve.client import LONGEST_END_S
from geminid.serve.executors.base import Executor, ExecutorEvent
from geminid.serve.followups import follow_up
from geminid.serve.guard import Guard
from geminid.serve.histograms import WAITS, Histogram
from geminid.serve.inbox import End, Inbox, Item, Operation, Posted, Query, Refused
from geminid.serve.journal import Journal
from geminid.serve.livejob import LiveJob
from geminid.serve.operations import Operations
from geminid.serve.pacing import DECISION_GAP_S
from geminid.serve.planner import POLICY_LIMIT_S, DecisionCounts, Planner
from geminid.serve.reservations import PATIENCE_S
from geminid.serve.retention import Retention, remove_folders
from geminid.serve.retrying import judged
from geminid.serve.state import ServiceState
from geminid.serve.store import Entry, Store, StoreProblem
from geminid.serve.translation import view_of

log = logging.getLogger("geminid.serve")

T = TypeVar("T")

#: Time in seconds between two ticks of the executor.
TICK_S = 0.5

#: Time in seconds between two searches for jobs that need not be kept any more.
FORGET_EVERY_S = 10.0

#: The parts of the work that are not tried again at once after they have failed.
DECIDE = "decide"
SNAPSHOT = "write a snapshot"


@dataclass(frozen=True, slots=True)
class Published:
    """The service at a moment, for readers; nothing in it changes.

    ``trouble`` says why the log cannot be written, if it cannot. ``counts`` are of decisions, ``reasons`` those of the
    last one by job, ``waits`` how long jobs waited for their first slots, all since the service started.
    """

    now_s: float
    state: ServiceState
    trouble: str = ""
    counts: DecisionCounts = field(default_factory=DecisionCounts)
    last_decision_ms: float = 0.0
    reasons: Mapping[str, str] = field(default_factory=dict)
    waits: Histogram = WAITS
    last_decision: LastDecision | None = None


class Service:
    """One service. ``operations`` change its jobs and nodes; ``published`` and queries show them."""

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
        self.executor, self.policy, self.policy_text = executor, policy, policy_text
        self.cluster: Cluster = executor.cluster
        self.patience_s = patience_s
        self._journal = Journal(store, lambda job, now_s: view_of(job, self.cluster, now_s))
        self.clock = self._journal.clock
        times = {"gap_s": gap_s, "policy_limit_s": policy_limit_s, "patience_s": patience_s}
        self._planner = Planner(self.cluster, policy, policy_text, self._journal.state, self.clock, **times)
        self._journal.on_entry = self._on_entry
        self._inbox, self._attempts = Inbox(), Attempts(self.clock)
        self.operations = Operations(executor, self._ask)
        self._keep, self._forget_at_s, self._tick_at_s = keep or Retention(), 0.0, 0.0
        self.ending = self._detaches = False
        self._thread = threading.Thread(target=self._run, name="geminid service", daemon=True)
        self._failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.published = Published(self.clock.now_s(), self._journal.state.copy())

    # --- For other threads ---

    def start(self) -> None:
        """Take over what an earlier service has left, and begin with the nodes that there are then."""
        journal = self._journal
        jobs = list(journal.state.jobs.values())
        recovered = self.executor.open(lambda event: self._inbox.put(Posted(event)), jobs)
        self.cluster = self.executor.cluster
        nodes = self.cluster.nodes
        cluster = {
            "gpu_types_by_node": {node.name: node.gpu_type for node in nodes},
            "slots": {node.name: node.slots for node in nodes},
        }
        epoch = journal.store.epoch
        started = r.ServiceStarted(epoch=epoch, version=__version__, policy=self.policy_text, cluster=cluster)
        if not journal.commit([started, *recovered]):
            raise StoreProblem(journal.trouble)
        self._planner.follow(self.cluster)
        journal.touch_active_jobs()
        self._thread.start()

    def end(self, *, detach: bool = False) -> None:
        """End the service: with its jobs, which save what they have done, or leaving them running (``detach``)."""
        self.ending, self._detaches = True, detach
        self._inbox.put(End(detach))
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def market(self) -> Guard:
        """The policy with its prices of slots."""
        return self._planner.guard

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def awaited(self) -> list[str]:
        """The jobs that a service that is ending waits for: their processes have not stopped yet."""
        if not self.ending or self._detaches:
            return []
        return [job.id for job in self.published.state.jobs.values() if job.phase.holds_slots]

    def query(self, compute: Callable[[Planner], T]) -> Future[T]:
        """Compute something in the service's thread, without any change."""
        query = Query(lambda: compute(self._planner))
        if not self.alive:
            raise Refused(503, "the service has ended")
        self._inbox.put(query)
        return query.future

    def _ask(
        self, make: Callable[[ServiceState], Sequence[r.Record]], answer: Callable[[ServiceState], Any]
    ) -> Future[Any]:
        if self.ending or not self.alive:
            raise Refused(503, self._why_refused())
        operation = Operation(make, answer)
        self._inbox.put(operation)
        return operation.future

    def _why_refused(self) -> str:
        names = ", ".join(self.awaited[:5]) if self.alive else ""
        return "the service is ending" + (f": it waits for {names} to stop" if names else "")

    # --- The thread ---

    def _run(self) -> None:
        try:
            end: End | None = None
            while end is None:
                end = self._batch(self._inbox.collect(self._idle_s()))
            self._wind_down(end)
        except BaseException as problem:
            self._failure = problem
            log.exception("the service failed")
            with contextlib.suppress(Exception):
                self.executor.close(detach=True)
            self._inbox.refuse_all(f"the service failed: {type(problem).__name__}: {problem}")
            self.on_failure()

    def _idle_s(self) -> float:
        """How long there is nothing to do, if nothing arrives."""
        tick_s = self._tick_at_s - self.clock.monotonic_s()
        decision_s = TICK_S if self._attempts.has_just_failed(DECIDE) else self._planner.due_s() - self.clock.now_s()
        return max(0.0, min(tick_s, decision_s))

    def _batch(self, items: Sequence[Item]) -> End | None:
        """Handle what has arrived; whether the service is to end."""
        end = next((item for item in items if isinstance(item, End)), None)
        self._take_in(items)
        if end is None:
            follow = partial(follow_up, self._journal, self._planner.free_slots)
            self._attempt("release waiting jobs and make elements of arrays", follow)
        if self._journal.nodes_changed:
            self._follow()
        self._attempt("pass on to the planner what has happened", self._sync)
        is_due = self.clock.now_s() >= self._planner.due_s() and not self._attempts.has_just_failed(DECIDE)
        if end is None and is_due:
            self._attempt(DECIDE, self._decide)
        self._steer()
        self._attempt("forget old jobs", self._forget)
        store, state = self._journal.store, self._journal.state
        if store.snapshot_is_due(state) and not self._attempts.has_just_failed(SNAPSHOT):
            self._attempt(SNAPSHOT, self._snapshot)
        self._publish()
        return end

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        """Do a part of a batch. If it fails, jobs train on, operators are notified, and it is tried again later."""
        if sentence := self._attempts.attempt(what, action):
            self._journal.unwritten.append(r.Noted(level="alert", text=sentence))

    def _on_entry(self, entry: Entry) -> None:
        """A record was written and applied."""
        record = entry.record
        if isinstance(record, r.Planned):
            took_ms, count = round(self._planner.decision_ms, 3), len(record.targets)
            fields = {"seq": entry.seq, "event": r.kind_of(record), "decision_ms": took_ms}
            log.info("decided: the slots of %d job%s change", count, "s"[: count != 1], extra={"fields": fields})
        self._planner.notice(record)

    def _take_in(self, items: Sequence[Item]) -> None:
        """Write what happened and what was asked for, and answer."""
        journal = self._journal
        happened = journal.take_unwritten()
        for item in items:
            if isinstance(item, Posted):
                happened += self._handle(item.event)
        happened += self._tick()
        happened = judged(happened, journal.state.jobs, self.executor.folders.logs_of)
        trial, happened = journal.trial(happened)
        records: list[r.Record] = list(happened)
        asked: list[Operation] = []
        for item in items:
            if isinstance(item, Operation):
                try:
                    made = list(item.make(trial))
                    for record in made:
                        trial.apply_or_raise(trial.seq + 1, self.clock.now_s(), record)
                except Exception as problem:
                    item.future.set_exception(problem)
                    continue
                records += made
                asked.append(item)
        if journal.commit(records, were_tried=True):
            if asked:
                self._publish()  # the caller sees the effect of its request
            for item in asked:
                item.future.set_result(item.answer(journal.state))
        else:
            journal.keep_unwritten([*happened, *journal.unwritten])
            for item in asked:
                item.future.set_exception(Refused(507, journal.trouble))
        for item in items:
            if isinstance(item, Query):
                item.answer()

    def _handle(self, event: ExecutorEvent) -> list[r.Record]:
        """What an event of the executor means for the jobs."""
        try:
            return self.executor.handle(event)
        except Exception as problem:
            log.exception("the executor could not handle %r", event)
            reason = f"{type(event).__name__} cannot be handled: {type(problem).__name__}: {problem}"[:500]
            job_id = getattr(event, "job_id", None)
            if job_id is None:
                return [r.Noted(level="alert", text=reason)]
            return [r.JobQuarantined(job_id=job_id, reason=reason)]

    def _tick(self) -> list[r.Record]:
        """What follows from the time; looked at twice a second however much arrives, since it is about all jobs."""
        if self.clock.monotonic_s() < self._tick_at_s:
            return []
        self._tick_at_s = self.clock.monotonic_s() + TICK_S
        ends = limits.reached(self._journal.state.jobs.values(), self.clock.now_s())
        return [*self.executor.tick(self._planner.requested_slots), *ends]

    def _sync(self) -> None:
        try:
            self._planner.sync(self._journal.touched)
        except Exception:
            self._planner.start_over()  # from what the state says
            raise

    def _decide(self) -> None:
        if not self._journal.commit(self._planner.decide()):
            self._planner.start_over()  # what is not written was not decided

    def _snapshot(self) -> None:
        with contextlib.suppress(StoreProblem):
            self._journal.store.snapshot(self._journal.state)

    def _forget(self) -> None:
        """Forget jobs that have been over for long enough."""
        if self.clock.monotonic_s() < self._forget_at_s:
            return
        self._forget_at_s = self.clock.monotonic_s() + FORGET_EVERY_S
        journal = self._journal
        outdated = self._keep.outdated(journal.state, self.clock.now_s())
        if outdated and journal.commit([r.JobsForgotten(job_ids=outdated)]):
            remove_folders(outdated, self.executor.folders.folder_of)
        self.executor.submissions.keep_code({job.code for job in journal.active_jobs()})

    def _publish(self) -> None:
        planner = self._planner
        self.published = Published(
            self.clock.now_s(),
            self._journal.published_state(),
            self._journal.trouble,
            planner.counts,
            planner.decision_ms,
            planner.reasons,
            self._journal.waits,
            planner.last_decision(),
        )

    def _follow(self) -> None:
        """Nodes have come or gone: plan for those that there are; jobs may have lost slots."""
        self._journal.nodes_changed, self.cluster = False, self.executor.cluster
        self._planner.follow(self.cluster)
        self._journal.touch_active_jobs()

    def _steer(self) -> None:
        """Ask the executor to run, or to stop, the jobs that records were about."""
        journal = self._journal
        touched, journal.touched = journal.touched, set()
        records = journal.take_unwritten()
        for job_id in touched & journal.state.jobs.keys():
            job = journal.state.jobs[job_id]
            try:
                if job.wants_slots and job.target is not None:
                    records += self.executor.run(job, job.target)
                else:
                    records += self.executor.stop(job, _why_stopped(job), save=job.wish != "cancel" or job.time.is_up)
            except Exception as problem:
                log.exception("%s could not be started or stopped", job_id)
                reason = f"it cannot be started or stopped: {type(problem).__name__}: {problem}"
                records.append(r.JobQuarantined(job_id=job_id, reason=reason[:500]))
        if journal.commit(records):
            self._attempt("start what was planned", self.executor.flush)
        else:
            journal.unwritten = records

    def _wind_down(self, end: End) -> None:
        """Have all jobs save and stop, or leave them running; then release everything.

        Until all have stopped, queries are answered, and requests for changes are refused.
        """
        journal = self._journal
        if not end.detach:
            stops: list[r.Record] = []
            for job in journal.active_jobs():  # also those that wait: they must not start now
                stops += self.executor.stop(job, "the service is ending")
            journal.commit(stops)
            self._publish()
            deadline_s = self.clock.monotonic_s() + LONGEST_END_S
            while any(job.phase.holds_slots for job in journal.active_jobs()) and self.clock.monotonic_s() < deadline_s:
                for item in self._inbox.collect(TICK_S, limit=1):
                    if isinstance(item, Posted):
                        records = self._handle(item.event)
                        journal.commit([record for record in records if not isinstance(record, r.JobStarting)])
                    elif isinstance(item, Query):
                        item.answer()
                    elif isinstance(item, Operation):  # it arrived at the last moment
                        item.future.set_exception(Refused(503, self._why_refused()))
                journal.commit(self.executor.tick(dict))
                self._publish()
        self.executor.close(detach=end.detach)
        self._snapshot()
        self._publish()
        self._inbox.refuse_all("the service is ending")


def _why_stopped(job: LiveJob) -> str:
    """Why a job has no slots, for its processes."""
    if job.wish != "run":
        return job.wished
    return job.state.reason if job.phase.is_terminal else job.why or "others go first"
