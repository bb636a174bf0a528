"""When jobs will start and finish: intervals, from simulating the present state forward under the present policy.

Three worlds are simulated: jobs turn out as fast as measured, slower, and faster, by what the measurements leave open.
The interval reaches from the earliest to the latest of the three. It holds for the jobs that are there now: those that
come later may change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import sub
from typing import Any

from geminid.cluster import Cluster
from geminid.engine.explain import forbidden_by_quota, too_few_in_service
from geminid.engine.hints import NEW, Levers, reopen
from geminid.job import JobKind, JobSpec
from geminid.jobstate import JobState
from geminid.policies.base import ClusterView, Decision, JobView
from geminid.serve.cordons import kept_slots
from geminid.serve.deadlines import Deadline, Missing, alone_s, judged
from geminid.serve.documents import market_document, slots_by_type, too_large
from geminid.serve.guard import AroundAPolicy, Guard
from geminid.serve.levers import Competition, levers_of
from geminid.serve.livejob import LiveJob, may_be_resized
from geminid.serve.minimumrun import MIN_RUN_S
from geminid.serve.protection import standing_foreseen
from geminid.serve.reservations import PATIENCE_S
from geminid.serve.service import Service
from geminid.serve.state import ServiceState
from geminid.serve.translation import fits, recall_usage
from geminid.serve.whatif import WhatIf, forerunners, length_is_known, what_if
from geminid.sim.oracle import remaining_s
from geminid.sim.run import named_policy
from geminid.sim.simulator import NoProgress, Simulator

log = logging.getLogger("geminid.serve")

#: A forecast is made anew at most so often, and takes at most this share of a processor; or this one, where jobs have
#: come or changed since.
EVERY_S, SHARE_OF_TIME, SHARE_WITH_NEWS = 2.0, 0.1, 0.4

#: Whoever asks waits so long for a forecast that is being made, or so long if the last one is late: so many times as
#: old as it may become when somebody asks all the time. It is looked for so often.
PATIENCE_FOR_IT_S, LONG_PATIENCE_S, LATE, LOOK_S = 0.3, 0.5, 2.5, 0.01

#: Why a job that is to run has no forecast: it has come or changed since the last one; or there is none of it.
BEING_COMPUTED, UNKNOWN = "being computed", "unknown"

#: So many jobs are simulated, those that run and those of the highest priority that came first; of so many after them
#: it is told roughly when their turn comes, by the slots × time that all before need. Later ones have no forecast.
MOST_JOBS, MOST_ROUGHLY = 100, 2000

#: What is said of a job that has none for a reason that is not known.
NO_FORECAST = "there is no forecast for it"

#: What a job depends on of which the forecast is rough.
BEFORE_IT = "the jobs before it"

#: In a forecast, a policy is woken only after this share of the time that it has looked ahead already.
WAKE_SHARE = 0.1

PACES = (-1.0, 0.0, 1.0)

#: Start and finish of a job in seconds from now, each from the earliest to the latest; when it starts if everything is
#: as measured (for its place in the queue); whether a guess is involved, about it or about others before it; whether it
#: is ``unlike`` all that has run before; whether its length is ``unsure``: it states no work, and the same command has
#: not run before; and which others it depends on of which that is so (``unsure_of``): then the earliest times are
#: assumptions and no bounds.
Forecast = dict[str, Any]


@dataclass(slots=True)
class Sparing(AroundAPolicy):
    """Another policy that is woken the less often the further off it is: what is far off is not known that well.

    ``cordoned`` are slots of every node that are nobody's any more once a job is over.
    """

    name = "sparing"
    paper = "none"
    objective = "another policy's"

    cordoned: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def decide(self, view: ClusterView) -> Decision:
        """Ask the policy; where nothing happens, it is not asked again before a share of the time since now is over."""
        for job_id in self.cordoned.keys() - {job.id for job in view.jobs}:
            usable, free = (
                tuple(map(sub, slots, self.cordoned[job_id])) for slots in (view.usable_slots, view.free_slots)
            )
            view = replace(view, usable_slots=usable, free_slots=free)
        decision = self.policy.decide(view)
        if decision.wake_at_s is None:
            return decision
        return replace(decision, wake_at_s=max(decision.wake_at_s, (1.0 + WAKE_SHARE) * view.now_s))


def restrained(
    policy: str,
    jobs: Iterable[LiveJob],
    now_s: float,
    quotas: Callable[[str], Mapping[str, int]] = lambda job_id: {},
    may_borrow: Callable[[str], bool] = lambda name: False,
    patience_s: float = PATIENCE_S,
) -> Guard:
    """A policy for live jobs whose time begins now, restrained as in the service.

    It keeps to quotas and remembers who has used what; plain commands that run are left alone, and so are jobs that
    have just changed; who has waited for long has its turn.
    """
    live = {job.id: job for job in jobs}
    likes = forerunners(live.values())
    made = named_policy(policy)
    recall_usage(made, live.values(), now_s, began_s=now_s)

    def protected_until_s(view: JobView) -> float:
        job = live[view.id]
        resizable = may_be_resized(job, likes.get((job.spec.name, job.spec.owner)))
        return standing_foreseen(job, view, now_s, resizable=resizable).protected_until_s

    return Guard(
        made,
        protected=protected_until_s,
        groups=quotas,
        may_borrow=may_borrow,
        rested_s=lambda job_id: live[job_id].rested_s,
        kept_until_s=lambda view: view.since_s + max(MIN_RUN_S, live[view.id].spec.min_runtime_s),
        patience_s=patience_s,
    )


def can_start(job: LiveJob, cluster: Cluster, quotas: Mapping[str, int], may_borrow: Callable[[str], bool]) -> bool:
    """Whether a job has slots, or could have them some day: the cluster has as many, and its quotas allow them."""
    least = min((slots for name, slots in quotas.items() if not may_borrow(name)), default=inf)
    return job.target is not None or (fits(job, cluster) and least >= job.spec.min_slots)


def forecast(
    jobs: Sequence[LiveJob],
    cluster: Cluster,
    policy: str,
    now_s: float,
    quotas: Callable[[str], Mapping[str, int]] = lambda job_id: {},
    may_borrow: Callable[[str], bool] = lambda name: False,
    patience_s: float = PATIENCE_S,
    cordoned: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Forecast]:
    """Intervals for the start and the finish of every active job that can start, in seconds from now.

    ``cordoned`` are those of the cluster's slots that are gone with a job that is still on them, by job and node.
    """
    active = [job for job in jobs if job.wants_slots and can_start(job, cluster, quotas(job.id), may_borrow)]
    active.sort(key=lambda job: (job.target is None, -job.spec.priority, job.state.submitted_at_s))
    if not active:
        return {}
    over = [job for job in jobs if not job.wants_slots]
    considered, later = [*over, *active[:MOST_JOBS]], active[MOST_JOBS : MOST_JOBS + MOST_ROUGHLY]
    starts: dict[str, list[float]] = {}
    expected: dict[str, float] = {}
    ends: dict[str, list[float]] = {}
    for pace in PACES:
        world = what_if(considered, cluster, now_s, pace=pace)
        guarded = restrained(policy, jobs, now_s, quotas, may_borrow, patience_s)
        simulator = world.simulator(cluster, Sparing(guarded, cordoned=cordoned or {}))
        with contextlib.suppress(NoProgress):  # somebody can never start: the others are as forecast
            simulator.run()
        for job in simulator.jobs.values():
            if job.stints and job.completed_s is not None:
                starts.setdefault(job.facts.id, []).append(job.stints[0].start_s)
                if pace == 0.0:
                    expected[job.facts.id] = job.stints[0].start_s
                ends.setdefault(job.facts.id, []).append(job.completed_s)
        if later:
            world = what_if([*considered, *later], cluster, now_s, pace=pace)
            for job_id, start_s, end_s in _roughly(later, world, simulator):
                starts.setdefault(job_id, []).append(start_s)
                ends.setdefault(job_id, []).append(end_s)
                if pace == 0.0:
                    expected[job_id] = start_s
    running = {job.id for job in active if job.target is not None}
    guessed = world.guessed | {job.id for job in later}
    forerunner = forerunners(jobs)
    likes = {job.id: forerunner.get((job.spec.name, job.spec.owner)) for job in active}
    may_grow = {job.id for job in active if _may_grow(job, likes[job.id])}
    rough = {job.id for job in later}
    unsure = world.unlike | {job.id for job in active if not length_is_known(job, likes[job.id])}

    def unsure_of(job_id: str) -> list[str]:
        """The jobs of unknown length that one depends on: those that hold slots, or start before it."""
        if job_id in rough:
            return [BEFORE_IT]
        if job_id in running and job_id not in may_grow:
            return []
        start_s = expected.get(job_id, inf)
        others = (other for other in unsure if other != job_id)
        return sorted(other for other in others if other in running or expected.get(other, inf) < start_s)

    return {
        job_id: {
            "start_s": None if job_id in running else [min(starts[job_id]), max(starts[job_id])],
            "finish_s": [min(ends[job_id]), max(ends[job_id])],
            "expected_start_s": expected.get(job_id, max(starts[job_id])),
            "guessed": job_id in guessed or (bool(guessed) and job_id not in running),
            "unlike": job_id in world.unlike,
            "unsure": job_id in unsure,
            "unsure_of": unsure_of(job_id),
        }
        for job_id in ends
    }


def _may_grow(job: LiveJob, like: LiveJob | None) -> bool:
    """Whether a job that runs would be done sooner if others left it their slots."""
    has, most = 0 if job.target is None else job.target.num_slots, job.spec.max_slots
    return may_be_resized(job, like) and (most is None or has < most)


def _roughly(later: Sequence[LiveJob], world: WhatIf, before: Simulator) -> Iterator[tuple[str, float, float]]:
    """When jobs start and end if they have their turn one after the other, once those that were simulated have had it.

    All slots are taken to be alike and busy, and every job to have the fewest slots that it runs on.
    """
    cluster = before.cluster
    used_gpu_s = sum(
        ((before.now_s if stint.end_s is None else stint.end_s) - stint.start_s) * sum(stint.placement)
        for job in before.jobs.values()
        for stint in job.stints
    )
    last_s = max((job.stints[0].start_s for job in before.jobs.values() if job.stints), default=0.0)
    jobs = world.simulator(cluster, before.policy).jobs
    for one in later:
        job = jobs[one.id]
        start_s, alone_s = max(used_gpu_s / cluster.total_slots, last_s), remaining_s(job, cluster)
        yield one.id, start_s, start_s + alone_s
        used_gpu_s += alone_s * job.facts.requested_slots


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
        """Whether it is far older than one is that is made as often as may be."""
        often_s = max(EVERY_S, self.computed_s / SHARE_OF_TIME) + self.took_s
        return not self.jobs or now - self.ready_s > LATE * often_s

    def may_follow(self, *, news: bool) -> float:
        """When the next one may be begun."""
        if news:
            return self.ready_s + self.computed_s / SHARE_WITH_NEWS
        return self.ready_s + max(EVERY_S, self.computed_s / SHARE_OF_TIME)

    def is_of(self, job: LiveJob) -> bool:
        """Whether it is of the job as it is: one that has been given other slots since is another one to it."""
        return self.stood.get(job.id) == standing(job)


def standing(job: LiveJob) -> tuple[Any, ...]:
    """What a forecast of a job starts from, but for its progress, which it foretells: other slots make it untrue."""
    return job.target_since_s, job.state.failures, job.spec.min_slots, job.spec.max_slots, job.spec.priority


def bounds_of(state: ServiceState) -> tuple[Any, ...]:
    """What all jobs together may have: whoever could not start for it may when it changes."""
    closed = (state.drained, state.leaving, state.down, state.cordoned, state.taken)  # asked for every job: as they are
    return *closed, state.quotas, state.borrowers


class Forecaster:
    """Keeps a forecast of a service's jobs, made in a thread of its own when somebody looks and it is old."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._last = Made()
        self._busy = False
        self._lock = threading.Lock()
        self._likes: tuple[object, Mapping[Any, LiveJob]] = (None, {})
        self._competition: tuple[object, Competition] | None = None
        self._alone: dict[str, tuple[object, dict[int, float]]] = {}

    async def freshen(self) -> None:
        """Have the forecast made anew if it is old or jobs have changed, and wait for it a little.

        One that is late because nobody has looked for a while is waited for longer; one that others wait for, or that
        has been made as often as may be, only if it is likely to be ready soon, or lacks jobs as they are now. It is
        one of the moment of asking that is waited for: what changes meanwhile is for whoever asks next.
        """
        asked_s, late, news = self._service.clock.now_s(), self._last.is_late(time.monotonic()), self._has_news()
        patience_s = LONG_PATIENCE_S if late else PATIENCE_FOR_IT_S
        until = time.monotonic() + patience_s
        self.begin(news=news)
        while (now := time.monotonic()) < until and (late or news or self._last.took_s < patience_s):
            if not self._busy:
                if self._last.at_s >= asked_s or not self._has_news():
                    return
                self.begin(news=True)
                if self._last.computed_s > until - now:  # for whoever asks next
                    return
            await asyncio.sleep(LOOK_S)

    def knows(self, job: LiveJob) -> bool:
        """Whether the last forecast is of the job as it is now."""
        return self._last.is_of(job)

    def of(self, job: LiveJob, now_s: float) -> Forecast:
        """The ``eta`` of a job: from when to when it will start and finish, since the epoch, and how old that is.

        It is None, and ``eta_missing`` says why, if there is none of the job as it is now; or only one that is late,
        and has turned out wrong. One that is over or not to run has neither; one that has slots has no time to start.
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
        if made.at_s + next_s[1] < now_s and made.is_late(time.monotonic()):
            return {"eta": None, "eta_missing": BEING_COMPUTED}
        told = {
            "start_at_s": None if found["start_s"] is None or job.phase.holds_slots else at_s(found["start_s"]),
            "finish_at_s": at_s(found["finish_s"]),
            "guessed": found["guessed"],
            "age_s": max(now_s - made.at_s, 0.0),
        }
        return {"eta": told, "eta_missing": None}

    def _is_missing(self, job: LiveJob) -> bool:
        """Whether the last forecast has none of a job as it is, and the next one will have none either."""
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
        """What would become of a job if it were submitted now."""
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

    def _has_news(self) -> bool:
        """Whether jobs have come or changed since the forecast was made; of very many, that is not looked at."""
        state, made = self._service.published.state, self._last
        if state.seq == made.seq or len(made.jobs) >= MOST_JOBS:
            return False
        changed = made.bounds != bounds_of(state)
        return any(job.wants_slots and (changed or not made.is_of(job)) for job in state.jobs.values())

    def begin(self, *, news: bool = False) -> None:
        """Have the forecast made anew if it is old, earlier if there is ``news``; somebody will ask for it soon."""
        with self._lock:
            made = self._last
            nothing_new = (
                self._service.published.state.seq == made.seq and not made.jobs
            )  # jobs grow older also where nothing happens
            if self._busy or nothing_new or time.monotonic() < made.may_follow(news=news):
                return
            self._busy = True
        threading.Thread(target=self._make, name="geminid forecast", daemon=True).start()

    def _make(self) -> None:
        began, computed_s = time.monotonic(), time.thread_time()
        try:
            state, now_s = self._service.published.state, self._service.clock.now_s()
            made = Made(
                jobs=self._forecast(state, now_s),
                stood={job.id: standing(job) for job in state.jobs.values() if job.wants_slots},
                bounds=bounds_of(state),
                at_s=now_s,
                seq=state.seq,
            )
            ready_s = time.monotonic()
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
        except Exception as problem:  # a forecast is nice to have; whatever is wrong with it, the service goes on
            log.warning("no forecast: %s: %s", type(problem).__name__, problem)
            return {}


def _never(job: LiveJob, state: ServiceState, cluster: Cluster, levers: Levers) -> Missing | None:
    """Why a job could not start as things are, however long it waited, and what would change that; None if it could."""
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


def waiting_order(jobs: Iterable[LiveJob], made: Mapping[str, Forecast]) -> list[str]:
    """The jobs that wait for slots, in the order in which the forecast has them start.

    Those that it leaves out come last: by priority, then by arrival.
    """
    waiting = [job for job in jobs if job.wants_slots and job.target is None]

    def place(job: LiveJob) -> tuple[float, int, float]:
        found = made.get(job.id)
        expected_s = inf if found is None else found["expected_start_s"]
        return expected_s, -job.spec.priority, job.state.submitted_at_s

    return [job.id for job in sorted(waiting, key=place)]


def in_service(cluster: Cluster, state: ServiceState) -> Cluster | None:
    """The cluster without what is drained, gone or cordoned, but for what jobs stay on; None if nothing is left."""
    closed = state.out_of_service.difference(*kept_slots(state, cluster).values())
    out = Counter(name for name, _ in closed)
    gone = state.emptied | state.down
    nodes = [
        replace(node, slots=node.slots - out[node.name]) if out[node.name] else node
        for node in cluster.nodes
        if node.name not in gone and node.slots > out[node.name]
    ]
    return replace(cluster, nodes=tuple(nodes)) if nodes else None
