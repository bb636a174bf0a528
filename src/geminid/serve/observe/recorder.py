"""Records curves and stints while the service runs: a thread that looks at the published state once a second.

It writes to disk every few seconds. If the process is killed, at most the points since then are lost; the log of the
service, which decides what happens, is not concerned.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

from geminid.engine.explain import predicted_goodput
from geminid.policies.base import JobView
from geminid.serve.livejob import LiveJob
from geminid.serve.observe.curves import Curve, point_of
from geminid.serve.observe.stints import Held, Slot, holders, turnover
from geminid.serve.observe.store import Fault, HistoryStore, Measured
from geminid.serve.service import Published, Service

#: Time between two looks at the published state.
LOOK_EVERY_S = 1.0

#: Time between two writes of curves.
SAVE_EVERY_S = 5.0

#: Time between two predictions of all jobs' goodput.
PREDICT_EVERY_S = 5.0

#: Time between two looks for jobs that the service has forgotten.
FORGET_EVERY_S = 600.0

#: How lines of a job's history begin that report a fault.
FAULTS = ("worker ", "failed", "crashed")

#: Time that the service's thread may take to hand over the engine's jobs.
ASK_TIMEOUT_S = 5.0

log = logging.getLogger("geminid.serve")


@dataclass(slots=True)
class Recording:
    """What is recorded, given the published state again and again; no clock and no thread.

    ``seen`` are the jobs as they were at the last look: frozen values, so that a job that has not changed is the same
    object. ``unsaved`` are the jobs whose curves have changed since they were written.
    """

    store: HistoryStore
    seen: dict[str, LiveJob] = field(default_factory=dict)
    held: dict[Slot, Held] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    unsaved: set[str] = field(default_factory=set)
    save_at_s: float = -inf
    forget_at_s: float = -inf

    def look(self, published: Published, predicted: Mapping[str, float] | None = None) -> None:
        """Record what has changed since the last look."""
        jobs, now_s = published.state.jobs, published.now_s
        if not self.seen:
            self.held = self.store.open_stints()
        changed = [job for job in jobs.values() if self.seen.get(job.id) is not job]
        self._follow_slots(holders(jobs), jobs, now_s)
        for job in changed:
            self._extend(job, now_s, (predicted or {}).get(job.id))
        self.store.add_faults(fault for job in changed for fault in new_faults(self.seen.get(job.id), job))
        self.seen = dict(jobs)
        if now_s >= self.save_at_s:
            self.save()
            self.save_at_s = now_s + SAVE_EVERY_S
        if now_s >= self.forget_at_s:
            self._forget(published)
            self.forget_at_s = now_s + FORGET_EVERY_S

    def curve(self, job_id: str) -> Curve:
        """The curve of a job up to the last look."""
        return self.curves.get(job_id) or self.store.curve(job_id)

    def measured(self, job_id: str, job_slots: int) -> Measured:
        """The batch and the goodput of a job on the slots that it has had since its last resize."""
        return self.curve(job_id).measured(job_slots)

    def save(self) -> None:
        """Write the curves that have changed, and drop those of jobs that are over from memory."""
        if self.unsaved:
            self.store.save_curves({job_id: self.curves[job_id] for job_id in self.unsaved})
            self.unsaved = set()
        over = [job_id for job_id in self.curves if (job := self.seen.get(job_id)) is None or job.phase.is_terminal]
        for job_id in over:
            del self.curves[job_id]

    def _extend(self, job: LiveJob, now_s: float, predicted: float | None) -> None:
        """Add a point to the curve of a job that holds slots, or did at the last look."""
        before = self.seen.get(job.id)
        if not job.phase.holds_slots and (before is None or not before.phase.holds_slots):
            return
        curve = self.curve(job.id)
        last = curve.points[-1] if curve.points else None
        if last is not None and last.at_s >= now_s:
            return
        self.curves[job.id] = curve.plus(point_of(job, now_s, last, predicted))
        self.unsaved.add(job.id)

    def _follow_slots(self, held: dict[Slot, Held], jobs: Mapping[str, LiveJob], now_s: float) -> None:
        changes = turnover(self.held, held)
        if changes.ended:
            sizes = {held.job_id: held.job_slots for held in changes.ended.values()}
            self.store.end_stints(changes.ended, now_s, {one: self.measured(one, sizes[one]) for one in sizes})
        if changes.begun:
            begun = [(slot, one, jobs[one.job_id].spec.owner or "") for slot, one in changes.begun.items()]
            self.store.begin_stints(begun, now_s)
        self.held = held

    def _forget(self, published: Published) -> None:
        """Drop what is kept of jobs that are not retained any more."""
        if gone := self.store.known_jobs() - published.state.jobs.keys():
            self.store.forget(gone)


def new_faults(before: LiveJob | None, job: LiveJob) -> list[Fault]:
    """The faults in a job's history since it was ``before``."""
    since_s = before.story[-1].at_s if before is not None and before.story else -inf
    return [
        Fault(line.at_s, job.id, line.text)
        for line in job.story
        if line.at_s >= since_s and line.text.startswith(FAULTS)
    ]


class Recorder:
    """The thread that records."""

    def __init__(self, service: Service, store: HistoryStore) -> None:
        self._service, self.store = service, store
        self._recording = Recording(store)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="geminid recorder", daemon=True)
        self._predicted: dict[str, float] = {}
        self._predict_at_s = -inf

    def start(self) -> None:
        """Begin to record."""
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._recording.look(self._service.published)
            self._recording.save()
        self.store.close()

    def curve(self, job_id: str) -> Curve:
        """The curve of a job up to about a second ago."""
        with self._lock:
            return self._recording.curve(job_id)

    def measured(self, sizes: Mapping[str, int]) -> dict[str, Measured]:
        """What jobs measure now, given the slots that each of them has: batch, and useful samples per second."""
        with self._lock:
            return {job_id: self._recording.measured(job_id, slots) for job_id, slots in sizes.items()}

    def _run(self) -> None:
        failing = ""
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                self._predict()
                with self._lock:
                    self._recording.look(self._service.published, self._predicted)
                failing = ""
            except Exception as problem:  # a full disk, or a job that nobody expected: recording must end no service
                if failing != str(problem):
                    failing = str(problem)
                    log.warning("curves and slots of jobs cannot be recorded: %s: %s", type(problem).__name__, problem)

    def _predict(self) -> None:
        """Ask the models of running jobs what they expect."""
        now_s = self._service.published.now_s
        if now_s < self._predict_at_s or not self._service.alive:
            return
        self._predict_at_s = now_s + PREDICT_EVERY_S
        running: Future[list[JobView]] = self._service.query(
            lambda planner: [view for view in planner.engine.jobs.values() if view.slots and view.model]
        )
        views = running.result(ASK_TIMEOUT_S)
        predicted = {view.id: predicted_goodput(view, view.slots, len(view.allocation)) for view in views}
        self._predicted = {job_id: value for job_id, value in predicted.items() if value}
