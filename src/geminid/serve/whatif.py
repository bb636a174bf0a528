"""The live state as a workload for the simulator: what every job still has to do, at the speeds that it has measured.

A job becomes an application of its own whose true step times are those of its fitted model and whose noise stays as it
was last reported. Of what cannot be known something has to be assumed, and is marked as a guess: a job that has not run
yet is as fast as the last one of its name and owner; a plain command takes as long as the others of its name took, and
one that has no such forerunner as long again as it has run already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from geminid.cluster import Cluster
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit, fit
from geminid.goodput.profile import Profile
from geminid.goodput.throughput import Shape
from geminid.job import Adaptivity
from geminid.jobstate import JobPhase
from geminid.policies.base import Allocation
from geminid.serve.state import LiveJob
from geminid.serve.translation import batch_limits, facts_of
from geminid.sim.application import Application, GradientTruth, StepTimeTruth
from geminid.sim.workload import TraceJob, Workload

#: A command of which nothing is known is taken to need so long at least.
UNKNOWN_S = 60.0

#: By how much measured speeds may be off, and how much longer or shorter a guess may turn out.
MEASURED_ERROR, GUESSED_FACTOR = 0.15, 3.0


@dataclass(frozen=True, slots=True)
class FittedTimes(StepTimeTruth):
    """Step times of a fitted model, slower by a factor."""

    fitted: ThroughputFit
    slower: float
    most: int

    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> tuple[float, float]:
        """Seconds of an accumulation step and of a synchronising step."""
        shape = Shape.of(len(placement), sum(placement), per_slot_batch, max(placement))
        times = self.fitted.step_times(shape)
        return self.slower * float(times.accumulation_s), self.slower * float(times.step_s)

    @property
    def most_slots(self) -> int:
        """As many as the machine has."""
        return self.most


@dataclass(frozen=True, slots=True)
class ConstantNoise(GradientTruth):
    """Noise that stays as it is."""

    stats: GradientStats

    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """The same at all times."""
        return self.stats


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A workload with the applications of its jobs, and where those stand that run.

    ``guessed`` are the jobs about which something was assumed. Jobs that run go on without a pause where they stand.
    """

    workload: Workload
    applications: Mapping[str, Application]
    guessed: frozenset[str]
    placed: Mapping[str, Allocation]


def what_if(jobs: Iterable[LiveJob], cluster: Cluster, now_s: float, *, pace: float = 0.0) -> WhatIf:
    """What the active jobs have left to do. ``pace`` from −1 to 1: from as fast to as slow as it may turn out."""
    jobs = list(jobs)
    forerunners = {
        (job.spec.name, job.spec.owner): job for job in jobs if job.measured or job.phase is JobPhase.SUCCEEDED
    }
    active = [job for job in jobs if job.wants_slots]
    active.sort(key=lambda job: (job.target is None, job.state.submitted_at_s))
    traces: list[TraceJob] = []
    applications: dict[str, Application] = {}
    guessed: set[str] = set()
    for job in active:
        like = forerunners.get((job.spec.name, job.spec.owner))
        known = job if job.measured or like is None else replace(like, state=job.state)
        application = application_of(known, job, cluster, pace) if job.elastic else None
        facts = facts_of(job, cluster)
        trace = TraceJob(
            name=job.id,
            submit_s=0.0,
            requested_slots=facts.requested_slots,
            weight=facts.weight,
            owner=facts.owner,
            adaptivity=facts.adaptivity,
        )
        if application is not None:
            applications[job.id] = application
            traces.append(replace(trace, application=job.id))
        else:
            left_s = _guessed_s(job, like, now_s) * GUESSED_FACTOR**pace
            traces.append(replace(trace, duration_s=left_s, adaptivity=Adaptivity.RIGID))
            guessed.add(job.id)
    return WhatIf(
        Workload("the live jobs", tuple(traces)), applications, frozenset(guessed), placed_on(active, cluster)
    )


def placed_on(jobs: Iterable[LiveJob], cluster: Cluster) -> dict[str, Allocation]:
    """The slots that jobs have of a cluster, as far as it has them."""
    free = {node.name: node.slots for node in cluster.nodes}
    placed: dict[str, Allocation] = {}
    for job in jobs:
        wanted = () if job.target is None else job.target.slots_by_node
        if wanted and all(free.get(name, 0) >= len(slots) for name, slots in wanted):
            for name, slots in wanted:
                free[name] -= len(slots)
            placed[job.id] = tuple(sorted((cluster.node_index[name], len(slots)) for name, slots in wanted))
    return placed


def application_of(known: LiveJob, job: LiveJob, cluster: Cluster, pace: float) -> Application | None:
    """A job as the simulator runs it; None if too little is known of it.

    Steps take as long as the model that was fitted to its measurements says, and training longer than its steps by as
    much as it did. A job that counts samples makes less progress with them where its batch is large: what it has left
    counts at the efficiency that it has now.
    """
    limits, work = batch_limits(known), known.work_samples
    profiles = [(name, profile) for name, profile in known.measured if name in cluster.type_index]
    if limits is None or work is None or not profiles:
        return None
    error = MEASURED_ERROR if known.id == job.id else MEASURED_ERROR * 2.0
    gradient = known.gradient or GradientStats()
    left = max(work - job.done_samples, 1.0)
    if job.state.batch_plan is not None and job.state.num_slots and not (job.limits and job.limits.by_progress):
        left *= gradient.efficiency(job.state.batch_plan.total_batch(job.state.num_slots) / limits.initial)
    slower = known.slower * (1.0 + error) ** pace
    truth = {name: FittedTimes(_fitted(profile), slower, cluster.total_slots) for name, profile in profiles}
    return Application(
        name=job.id,
        progress_steps=np.array([left / limits.initial]),
        gradient=ConstantNoise(gradient),
        truth=truth,
        limits=dict.fromkeys(truth, limits),
        rescale_s=facts_of(known, cluster).rescale_s,
        start_up_s=0.0 if job.target is not None else None,
    )


_fits: dict[Profile, ThroughputFit] = {}


def _fitted(profile: Profile) -> ThroughputFit:
    """The model of a profile; fitted once."""
    if profile not in _fits:
        if len(_fits) > 1000:
            _fits.clear()
        _fits[profile] = fit(profile)
    return _fits[profile]


def _guessed_s(job: LiveJob, like: LiveJob | None, now_s: float) -> float:
    """How long a job of unknown work may take from now on."""
    executed_s = job.executed_s(now_s)
    if like is not None and like.phase is JobPhase.SUCCEEDED and like.executed_before_s > 0:
        return max(like.executed_before_s - executed_s, 0.25 * executed_s, 1.0)
    return max(executed_s, UNKNOWN_S)
