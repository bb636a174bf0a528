"""The forecast of a service's jobs, computed in a thread of its own when it is requested and old."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from geminid.cluster import Cluster
from geminid.engine.explain import forbidden_by_quota, too_few_in_service
from geminid.engine.hints import NEW, Levers, reopen
from geminid.job import JobKind, JobSpec
from geminid.jobstate import JobState
from geminid.serve.cordons import kept_slots
from geminid.serve.deadlines import Deadline, Missing, Verdict, alone_s, judged
from geminid.serve.documents import market_document, slots_by_type, too_large
from geminid.serve.forecast import MAX_SIMULATED, Forecast, forecast, in_service, waiting_order
from geminid.serve.levers import Competition, levers_of
from geminid.serve.livejob import LiveJob
from geminid.serve.service import Service
from geminid.serve.state import ServiceState
from geminid.serve.whatif import forerunners

log = logging.getLogger("geminid.serve")

#: Least time in seconds between two forecasts.
EVERY_S = 2.0

#: Largest share of a processor that forecasts may take.
SHARE_OF_TIME = 0.1

#: … if jobs have come or changed since the last one.
SHARE_AFTER_CHANGES = 0.4

#: Longest time in seconds that a request waits for a forecast that is being computed.
WAIT_S = 0.3

#: … if the last forecast is late.
LATE_WAIT_S = 0.5

#: A forecast is late when it is this many times as old as the least time between two.
LATE = 2.5

#: Time in seconds between two looks whether a forecast is ready.
LOOK_S = 0.01

#: Why a job that is to run has no forecast: it has come or changed since the last one, …
BEING_COMPUTED = "being computed"

#: … or it could not be computed.
UNKNOWN = "unknown"

#: Why a deadline cannot be judged if there is no forecast and the reason is not known.
NO_FORECAST = "there is no forecast for it"


@dataclass(frozen=True, slots=True)
class Made:
    """A forecast that was made at ``at_s``, in seconds from then, of jobs that stood so (see ``standing``).

    ``bounds`` are those that all jobs were under (see ``bounds_of``).
    ``seq`` is the last record that it knows of. It was ready at ``ready_s`` of the machine's own clock, after
    ``took_s``, of which it computed for ``computed_s``: on a busy machine, far less.
    """

    jobs: Mapping[str, Forecast] = field(default_factory=dict)
    stood: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    bounds: tuple[Any, ...] = ()
    at_s: float = 0.0
    seq: int = -1
    ready_s: float = -inf
    took_s: float = 0.0
    computed_s: float = 0.0

    def is_late(self, now: float) -> bool:
        """Whether it is far older than one that is computed as often as possible."""
        often_s = max(EVERY_S, self.computed_s / SHARE_OF_TIME) + self.took_s
        return not self.jobs or now - self.ready_s > LATE * often_s

    def may_follow(self, *, changed: bool) -> float:
        """When the next one may begin; earlier if jobs have ``changed``."""
        if changed:
            return self.ready_s + self.computed_s / SHARE_AFTER_CHANGES
        return self.ready_s + max(EVERY_S, self.computed_s / SHARE_OF_TIME)

    def is_of(self, job: LiveJob) -> bool:
        """Whether it is a forecast of the job as it is now, with the slots that it has now."""
        return self.stood.get(job.id) == standing(job)


def standing(job: LiveJob) -> tuple[Any, ...]:
    """What a forecast of a job starts from, except its progress: if this changes, the forecast does not hold."""
    return job.target_since_s, job.state.failures, job.spec.min_slots, job.spec.max_slots, job.spec.priority


def bounds_of(state: ServiceState) -> tuple[Any, ...]:
    """What limits all jobs together: when it changes, a job that could not start may start."""
    closed = (state.drained, state.leaving, state.down, state.cordoned, state.taken)
    return *closed, state.quotas, state.borrowers


class Forecaster:
    """Keeps a forecast of a service's jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._last = Made()
        self._busy = False
        self._lock = threading.Lock()
        self._likes: tuple[object, Mapping[Any, LiveJob]] = (None, {})
        self._competition: tuple[object, Competition] | None = None
        self._alone: dict[str, tuple[object, dict[int, float]]] = {}

    async def freshen(self) -> None:
        """Compute the forecast again if it is old or jobs have changed, and wait for it a little.

        The wait is longer if the last forecast is late, because there were no requests for a while. Otherwise there is
        a wait only if the forecast is likely to be ready soon, or jobs have changed since the last one. It ends with a
        forecast of the moment of asking: what changes during the wait is for the next request.
        """
        clock = self._service.clock
        asked_s, late, changed = clock.now_s(), self._last.is_late(clock.monotonic_s()), self._has_changes()
        wait_s = LATE_WAIT_S if late else WAIT_S
        until_s = clock.monotonic_s() + wait_s
        self.begin(changed=changed)
        while (now_s := clock.monotonic_s()) < until_s and (late or changed or self._last.took_s < wait_s):
            if not self._busy:
                if self._last.at_s >= asked_s or not self._has_changes():
                    return
                self.begin(changed=True)
                if self._last.computed_s > until_s - now_s:  # it will be ready for the next request
                    return
            await asyncio.sleep(LOOK_S)

    def knows(self, job: LiveJob) -> bool:
        """Whether the last forecast is of the job as it is now."""
        return self._last.is_of(job)

    def of(self, job: LiveJob, now_s: float) -> Forecast:
        """The ``eta`` of a job: intervals of its start and finish, since the epoch, and the age of the forecast.

        It is None, and ``eta_missing`` says why, if there is no forecast of the job as it is now, or only a late one
        that has turned out wrong. A job that is over or not to run has neither; one that has slots has no start.
        """
        made = self._last
        if not job.wants_slots:
            return {"eta": None, "eta_missing": None}
        if not made.is_of(job):
            return {"eta": None, "eta_missing": BEING_COMPUTED}
        found = made.jobs.get(job.id)
        if found is None:
            return {"eta": None, "eta_missing": UNKNOWN if self._is_missing(job) else BEING_COMPUTED}

        def at_s(times: Sequence[float]) -> list[float]:
            return [max(made.at_s + seconds, now_s) for seconds in times]

        next_s = found["finish_s"] if found["start_s"] is None else found["start_s"]
        if made.at_s + next_s[1] < now_s and made.is_late(self._service.clock.monotonic_s()):
            return {"eta": None, "eta_missing": BEING_COMPUTED}
        eta = {
            "start_at_s": None if found["start_s"] is None or job.phase.holds_slots else at_s(found["start_s"]),
            "finish_at_s": at_s(found["finish_s"]),
            "guessed": found["guessed"],
            "age_s": max(now_s - made.at_s, 0.0),
        }
        return {"eta": eta, "eta_missing": None}

    def _is_missing(self, job: LiveJob) -> bool:
        """Whether the last forecast has no times for a job as it is now, and the next one will have none either."""
        made = self._last
        return made.is_of(job) and job.id not in made.jobs and made.bounds == bounds_of(self._service.published.state)

    def deadline_of(self, job: LiveJob, now_s: float) -> dict[str, Any] | None:
        """Whether a job that is to run can meet its deadline, and what would help; None if it has none."""
        if job.spec.deadline_s is None or not job.wants_slots:
            return None
        made = self._last
        found = made.jobs.get(job.id) if made.is_of(job) else None
        state, missing = self._service.published.state, self._is_missing(job)
        return self._judged(job, state, now_s, found, made.at_s - now_s, missing=missing).to_dict(now_s)

    def risk_of(self, job: LiveJob) -> str:
        """Why a job's deadline may not be met, in a sentence; empty if it can be, or nothing is known yet."""
        if job.spec.deadline_s is None or not job.wants_slots:
            return ""
        self.begin()  # unless somebody else has just asked
        if not self.knows(job):
            return ""
        found = self.deadline_of(job, self._service.clock.now_s())
        if found is None or found["verdict"] in (Verdict.MET.value, Verdict.UNKNOWN.value):
            return ""
        return f"{found['verdict']}: {found['why']}"

    def _judged(
        self,
        job: LiveJob,
        state: ServiceState,
        now_s: float,
        found: Forecast | None,
        shift_s: float = 0.0,
        *,
        missing: bool,
    ) -> Deadline:
        """Judge a job's deadline by its forecast, which was made ``shift_s`` from now, and by its own model.

        The forecast is ``missing`` if there is none and none is being computed.
        """
        service = self._service
        competition = self._competition
        if competition is None or competition[0] is not state:
            competition = self._competition = state, Competition(state, service.cluster)
        likes = self._likes
        if likes[0] is not state:
            likes = self._likes = state, forerunners(state.jobs.values())
        like = likes[1].get((job.spec.name, job.spec.owner))
        known = (
            (job.measured, job.samples, job.elastic, job.spec.min_slots, job.spec.gpu_types),
            None if like is None else (like.id, like.samples, like.elastic),
            service.cluster,
        )
        alone = self._alone.get(job.id)
        if alone is None or alone[0] != known:
            alone = known, alone_s(job, like, service.cluster)
            self._alone = {name: one for name, one in self._alone.items() if name in state.jobs} | {job.id: alone}
        finish_s, start_s = (
            None if found is None or found[name] is None else [max(at_s + shift_s, 0.0) for at_s in found[name]]
            for name in ("finish_s", "start_s")
        )
        levers = levers_of(job, state, service.cluster, service.policy)
        return judged(
            job.state.submitted_at_s + (job.spec.deadline_s or 0.0) - now_s,
            forecast=finish_s,
            starts=start_s,
            known=found is None or not found["unsure"],
            alone=alone[1],
            most_slots=job.spec.max_slots,
            job_id=job.id,
            levers=levers,
            rivals=competition[1].rivals_of(job),
            unsure_of=() if found is None else found["unsure_of"],
            missing=(_never(job, state, service.cluster, levers) or Missing(NO_FORECAST)) if missing else None,
        )

    @property
    def made(self) -> Mapping[str, Forecast]:
        """The last forecast, in seconds from when it was made."""
        return self._last.jobs

    def dry_run(self, spec: JobSpec) -> dict[str, Any]:
        """When a job would start and finish if it were submitted now, and what it would delay."""
        service, now_s = self._service, self._service.clock.now_s()
        state = JobState.submitted(job_id=NEW, spec=spec, at_s=now_s)
        found_kind = service.executor.submissions.kind_of(spec)
        new = LiveJob(
            state=state,
            elastic=found_kind.kind is JobKind.ELASTIC,
            kind=found_kind.kind,
            kind_reason=found_kind.reason,
        )
        now = service.published.state
        then = replace(now, jobs={**now.jobs, NEW: new})
        jobs = list(now.jobs.values())
        made = self._forecast(then, now_s)
        before = self._forecast(now, now_s)
        later = {
            job_id: made[job_id]["finish_s"][1] - found["finish_s"][1]
            for job_id, found in before.items()
            if job_id in made and made[job_id]["finish_s"][1] > found["finish_s"][1] + 1.0
        }
        found = made.get(NEW)
        never = _never(new, then, service.cluster, levers_of(new, then, service.cluster, service.policy))
        waiting = {job.id: job for job in [*jobs, new] if job.wants_slots and job.target is None}
        return {
            "dry_run": True,
            "spec": spec.redacted().to_dict(),
            "elastic": new.elastic,
            "kind": new.kind.value,
            "kind_reason": new.kind_reason,
            "position": 1 + waiting_order(waiting.values(), made).index(NEW),
            "start_s": None if found is None else found["start_s"],
            "finish_s": None if found is None else found["finish_s"],
            "guessed": found is None or found["guessed"],
            "unlike": found is not None and found["unlike"],
            "delays_s": later,
            "never": None if never is None else "; ".join((never.why, *(hint.text for hint in never.hints))),
            "deadline": None
            if spec.deadline_s is None
            else self._judged(new, then, now_s, found, missing=found is None).to_dict(now_s),
        }

    def prices(self) -> dict[str, float]:
        """What a slot of each GPU type is worth in the last decision, if the policy has prices."""
        prices: dict[str, float] = market_document(self._service.market, self._service.cluster)["prices"]
        return prices

    def _has_changes(self) -> bool:
        """Whether jobs have come or changed since the forecast was made; not checked if there are very many."""
        state, made = self._service.published.state, self._last
        if state.seq == made.seq or len(made.jobs) >= MAX_SIMULATED:
            return False
        changed = made.bounds != bounds_of(state)
        return any(job.wants_slots and (changed or not made.is_of(job)) for job in state.jobs.values())

    def begin(self, *, changed: bool = False) -> None:
        """Start to compute the forecast again if it is old; earlier if jobs have ``changed``."""
        with self._lock:
            made = self._last
            is_same = self._service.published.state.seq == made.seq and not made.jobs  # jobs in it grow older
            if self._busy or is_same or self._service.clock.monotonic_s() < made.may_follow(changed=changed):
                return
            self._busy = True
        threading.Thread(target=self._make, name="geminid forecast", daemon=True).start()

    def _make(self) -> None:
        began, computed_s = self._service.clock.monotonic_s(), time.thread_time()
        try:
            state, now_s = self._service.published.state, self._service.clock.now_s()
            made = Made(
                jobs=self._forecast(state, now_s),
                stood={job.id: standing(job) for job in state.jobs.values() if job.wants_slots},
                bounds=bounds_of(state),
                at_s=now_s,
                seq=state.seq,
            )
            ready_s = self._service.clock.monotonic_s()
            self._last = replace(
                made, ready_s=ready_s, took_s=ready_s - began, computed_s=time.thread_time() - computed_s
            )
        finally:
            self._busy = False

    def _forecast(self, state: ServiceState, now_s: float) -> dict[str, Forecast]:
        service = self._service
        cluster = in_service(service.cluster, state)
        try:
            if cluster is None:
                return {}
            cordoned = {
                job_id: [sum(owner == node.name for owner, _ in slots) for node in cluster.nodes]
                for job_id, slots in kept_slots(state, service.cluster).items()
            }
            return forecast(
                list(state.jobs.values()),
                cluster,
                service.policy_text,
                now_s,
                state.quotas_of,
                state.may_borrow,
                service.patience_s,
                cordoned,
            )
        except Exception as problem:  # the service works without a forecast
            log.warning("no forecast: %s: %s", type(problem).__name__, problem)
            return {}


def _never(job: LiveJob, state: ServiceState, cluster: Cluster, levers: Levers) -> Missing | None:
    """Why a job cannot start as things are, however long it waits, and what would change that; None if it can."""
    if large := too_large(job, cluster):
        return Missing(large[0])
    need, types = job.spec.min_slots, job.spec.gpu_types.names
    for name, slots in state.quotas_of(job.id).items():
        if slots < need and not state.may_borrow(name):
            return Missing(forbidden_by_quota(need, name, slots))
    if job.target is not None:
        return None
    offered = {name: slots.in_service for name, slots in slots_by_type(state, cluster).items()}
    there = {name: slots for name, slots in offered.items() if not types or name in types}
    most = max(there, key=lambda name: (there[name], cluster.slots_per_type[name]), default=None)
    if most is None or there[most] >= need:
        return None
    return Missing(too_few_in_service(need, there[most], cluster.slots_per_type[most]), tuple(reopen(levers)))
