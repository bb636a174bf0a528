"""When jobs will start and finish: intervals, from simulating the present state forward under the present policy.

Three worlds are simulated: jobs turn out as fast as measured, slower, and faster, by the uncertainty of their
measurements. An interval reaches from the earliest to the latest of the three. It holds for the jobs that are there
now: jobs that come later may change it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import sub
from typing import Any

from geminid.cluster import Cluster
from geminid.policies.base import ClusterView, Decision, JobView
from geminid.serve.cordons import kept_slots
from geminid.serve.guard import AroundAPolicy, Guard
from geminid.serve.livejob import LiveJob, may_be_resized
from geminid.serve.minimumrun import MIN_RUN_S
from geminid.serve.protection import standing_foreseen
from geminid.serve.reservations import PATIENCE_S
from geminid.serve.state import ServiceState
from geminid.serve.translation import fits, recall_usage
from geminid.serve.whatif import WhatIf, forerunners, length_is_known, what_if
from geminid.sim.oracle import remaining_s
from geminid.sim.run import named_policy
from geminid.sim.simulator import NoProgress, Simulator

#: Jobs that are simulated: those that run, and the first of those that wait, by priority and arrival.
MAX_SIMULATED = 100

#: Jobs after them whose start is estimated from the slots × time that all jobs before them need. Later ones have no
#: forecast.
MAX_ESTIMATED = 2000

#: What a job depends on whose start is only estimated.
BEFORE_IT = "the jobs before it"

#: In a forecast, a policy is woken only after this share of the time that was simulated already.
WAKE_SHARE = 0.1

#: The simulated worlds: from as fast to as slow as jobs may turn out.
PACES = (-1.0, 0.0, 1.0)

#: The forecast of a job. ``start_s`` and ``finish_s`` are in seconds from now, each from the earliest to the latest;
#: ``expected_start_s`` is the start if everything is as measured. It is ``guessed`` if something had to be assumed of
#: the job or of others before it; ``unlike`` if no job like it has run; ``unsure`` if its length is not known: it
#: states no work, and its command has not run before. ``unsure_of`` are the other jobs of unknown length that it
#: depends on: if there are any, the earliest times are assumptions, not bounds.
Forecast = dict[str, Any]


@dataclass(slots=True)
class Sparing(AroundAPolicy):
    """Another policy that is woken the less often the longer the simulated time: the far future is not known well.

    ``cordoned`` are slots of every node that take no other job once a job is over, by that job.
    """

    name = "sparing"
    paper = "none"
    objective = "another policy's"

    cordoned: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def decide(self, view: ClusterView) -> Decision:
        """Ask the policy; if nothing happens, it is asked again after a share of the simulated time at the earliest."""
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
    stays: Collection[str] = (),
) -> Guard:
    """A policy for live jobs in a simulation whose time begins now, within the same rules as in the service.

    It keeps to quotas, knows what owners have used, leaves protected jobs alone and holds narrow jobs back for wide
    ones that have waited for long. ``stays`` are jobs that stay on cordoned slots.
    """
    live = {job.id: job for job in jobs}
    likes = forerunners(live.values())
    made = named_policy(policy)
    recall_usage(made, live.values(), now_s, began_s=now_s)

    def protected_until_s(view: JobView) -> float:
        job = live[view.id]
        if view.id in stays:
            return inf
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
    """Whether a job has slots or could get them: the cluster has as many, and its quotas allow them."""
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

    ``cordoned`` are slots of the cluster that take no other job after the one that is on them, by job and node.
    """
    active = [job for job in jobs if job.wants_slots and can_start(job, cluster, quotas(job.id), may_borrow)]
    active.sort(key=lambda job: (job.target is None, -job.spec.priority, job.state.submitted_at_s))
    if not active:
        return {}
    over = [job for job in jobs if not job.wants_slots]
    considered, later = [*over, *active[:MAX_SIMULATED]], active[MAX_SIMULATED : MAX_SIMULATED + MAX_ESTIMATED]
    starts: dict[str, list[float]] = {}
    expected: dict[str, float] = {}
    ends: dict[str, list[float]] = {}
    for pace in PACES:
        world = what_if(considered, cluster, now_s, pace=pace)
        guarded = restrained(policy, jobs, now_s, quotas, may_borrow, patience_s, cordoned or ())
        simulator = world.simulator(cluster, Sparing(guarded, cordoned=cordoned or {}))
        with contextlib.suppress(NoProgress):  # a job can never start: the others are as forecast
            simulator.run()
        for job in simulator.jobs.values():
            if job.stints and job.completed_s is not None:
                starts.setdefault(job.facts.id, []).append(job.stints[0].start_s)
                if pace == 0.0:
                    expected[job.facts.id] = job.stints[0].start_s
                ends.setdefault(job.facts.id, []).append(job.completed_s)
        if later:
            world = what_if([*considered, *later], cluster, now_s, pace=pace)
            for job_id, start_s, end_s in _estimated(later, world, simulator):
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
        """The jobs of unknown length that a job depends on: those that hold slots, or start before it."""
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
    """Whether a running job would finish sooner with slots that other jobs give up."""
    has, most = 0 if job.target is None else job.target.num_slots, job.spec.max_slots
    return may_be_resized(job, like) and (most is None or has < most)


def _estimated(later: Sequence[LiveJob], world: WhatIf, before: Simulator) -> Iterator[tuple[str, float, float]]:
    """When jobs start and end that run one after the other, after those that were simulated.

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


def waiting_order(jobs: Iterable[LiveJob], made: Mapping[str, Forecast]) -> list[str]:
    """The jobs that wait for slots, in the order in which the forecast starts them.

    Jobs without a forecast come last, by priority and then by arrival.
    """
    waiting = [job for job in jobs if job.wants_slots and job.target is None]

    def place(job: LiveJob) -> tuple[float, int, float]:
        found = made.get(job.id)
        expected_s = inf if found is None else found["expected_start_s"]
        return expected_s, -job.spec.priority, job.state.submitted_at_s

    return [job.id for job in sorted(waiting, key=place)]


def in_service(cluster: Cluster, state: ServiceState) -> Cluster | None:
    """The cluster without drained, lost or cordoned slots, except those that jobs stay on; None if none are left."""
    closed = state.out_of_service.difference(*kept_slots(state, cluster).values())
    out = Counter(name for name, _ in closed)
    gone = state.emptied | state.down
    nodes = [
        replace(node, slots=node.slots - out[node.name]) if out[node.name] else node
        for node in cluster.nodes
        if node.name not in gone and node.slots > out[node.name]
    ]
    return replace(cluster, nodes=tuple(nodes)) if nodes else None
