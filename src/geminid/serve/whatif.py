"""The live state as a workload for the simulator: what every job still has to do, at the speeds that it has measured.

A job becomes an application of its own whose true step times are those of its fitted model and whose noise stays as it
was last reported. Of what cannot be known something has to be assumed, and is marked as a guess: a job that has not run
yet is as fast as the last one of its name and owner; a plain command takes as long as the others of its name took, and
one that has no such forerunner as long again as it has run already.
"""

from __future__ import annotations

import math
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
from geminid.network import WITHIN_RACK, Path
from geminid.policies.base import Allocation, JobFacts, JobView, Policy, slots_of
from geminid.serve.livejob import LiveJob, may_be_resized
from geminid.serve.translation import batch_limits, facts_of, view_of
from geminid.sim.application import Application, GradientTruth, StepTimeTruth
from geminid.sim.simulator import Result, Settings, Simulator
from geminid.sim.workload import TraceJob, Workload

#: Least time in seconds that a command is assumed to take of which nothing is known.
UNKNOWN_S = 60.0

#: Relative error of a job's speed before it has trained.
FIRST_ERROR = 0.2

#: Training time in seconds that counts as much as ``FIRST_ERROR``.
FIRST_ERROR_S = 30.0

#: Least relative error of a job's speed: other processes may slow its machine down.
LEAST_ERROR = 0.05

#: Factor by which a command may take longer or shorter than the last one of its name.
LIKE_FACTOR = 1.5

#: … than is assumed, if none of its name has run. (Of jobs whose lengths have no scale, four in five run on for between
#: a tenth of the time that they have run and ten times that time.)
UNKNOWN_FACTOR = 10.0

#: Training time in seconds after which it counts how much slower a job is than its model.
LEAST_TRAINED_S = 2.0

#: Largest factor by which a job is taken to be slower, or faster, than its model.
MAX_SLOWER = 5.0


@dataclass(frozen=True, slots=True)
class FittedTimes(StepTimeTruth):
    """Step times of a fitted model."""

    fitted: ThroughputFit
    most: int

    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> tuple[float, float]:
        """Seconds of an accumulation step and of a synchronising step."""
        return self.step_times_over(placement, per_slot_batch, WITHIN_RACK.path)

    def step_times_over(self, placement: Sequence[int], per_slot_batch: int, path: Path) -> tuple[float, float]:
        """The same over any path: the model knows links."""
        shape = Shape.of(len(placement), sum(placement), per_slot_batch, max(placement), path.slowdown)
        times = self.fitted.step_times(shape)
        return float(times.accumulation_s), float(times.step_s)

    @property
    def most_slots(self) -> int:
        """As many as the machine has."""
        return self.most

    @property
    def model(self) -> ThroughputFit | None:
        """The fitted model, trusted for as many slots as there are."""
        return replace(self.fitted, most_slots=max(self.most, self.fitted.most_slots))


@dataclass(frozen=True, slots=True)
class ConstantNoise(GradientTruth):
    """Noise that stays as it is."""

    stats: GradientStats

    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """The same at all times."""
        return self.stats


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A workload with the applications of its jobs, and how they stand: what they may have, have, and have had.

    Times count from now. ``guessed`` are the jobs about whose length something was assumed; ``unlike`` those of them of
    which nothing of the same name and owner is known, either.
    """

    workload: Workload
    applications: Mapping[str, Application]
    guessed: frozenset[str]
    unlike: frozenset[str]
    standing: Mapping[str, JobView]

    @property
    def workload_from_now(self) -> Workload:
        """The workload for a report about results ``from_now``: present jobs arrive now."""
        jobs = (replace(job, submit_s=max(job.submit_s, 0.0)) for job in self.workload.jobs)
        return replace(self.workload, jobs=tuple(jobs))

    def simulator(self, cluster: Cluster, policy: Policy) -> Simulator:
        """A simulation of these jobs under a policy that knows what was measured. No two live jobs share slots."""
        settings = Settings(oracle=True)
        simulator = Simulator(self.workload, self.applications, cluster, policy, settings, standing=self.standing)
        simulator.engine.sharing = None
        return simulator


def what_if(
    jobs: Iterable[LiveJob], cluster: Cluster, now_s: float, *, pace: float = 0.0, rescale_s: float | None = None
) -> WhatIf:
    """What the active jobs have left to do. ``pace`` from −1 to 1: from the fastest to the slowest that is likely.

    ``rescale_s`` is what a change of slots costs elastic jobs; None: what it did cost them.
    """
    jobs = list(jobs)
    before = forerunners(jobs)
    active = sorted((job for job in jobs if job.wants_slots), key=lambda job: job.state.submitted_at_s)
    placed = placed_on(active, cluster)
    traces: list[TraceJob] = []
    applications: dict[str, Application] = {}
    standing: dict[str, JobView] = {}
    guessed: set[str] = set()
    unlike: set[str] = set()
    for job in active:
        like = before.get((job.spec.name, job.spec.owner))
        known = known_of(job, like)
        application = application_of(known, job, cluster, pace, like) if may_be_resized(job, like) else None
        facts = facts_of(job, cluster)
        left_s: float | None = None
        if application is not None:
            applications[job.id] = application
            facts = _with_limits(replace(facts_of(known, cluster), work=job.work_samples), application)
            facts = facts if rescale_s is None else replace(facts, rescale_s=rescale_s)
        else:
            guessed.add(job.id)
            left_s, factor = _guessed_s(job, like, now_s)
            left_s = min(left_s * factor**pace, _until_spent_s(job, now_s))
            if factor == UNKNOWN_FACTOR:
                unlike.add(job.id)
        standing[job.id] = standing_view(job, facts, placed.get(job.id, ()), cluster, now_s)
        traces.append(
            TraceJob(
                name=job.id,
                submit_s=standing[job.id].facts.submitted_s,
                requested_slots=facts.requested_slots,
                application=None if application is None else job.id,
                duration_s=left_s,
                adaptivity=facts.adaptivity,
                weight=facts.weight,
                owner=facts.owner,
            )
        )
    workload = Workload("the live jobs", tuple(traces))
    return WhatIf(workload, applications, frozenset(guessed), frozenset(unlike), standing)


def known_of(job: LiveJob, like: LiveJob | None) -> LiveJob:
    """A job with what is known of its speed and its work, by itself or by one ``like`` it, as it is once it runs."""
    if not job.measured and like is not None:
        return replace(like, state=job.state)
    known = replace(job, elastic=True) if may_be_resized(job, like) else job
    if like is None or like.limits is None or job.limits is None or job.work_samples is not None:
        return known
    if not length_is_known(job, like):
        return known
    work, by_progress = like.limits.work_samples, like.limits.by_progress
    return replace(known, limits=replace(job.limits, work_samples=work, by_progress=by_progress))


def length_is_known(job: LiveJob, like: LiveJob | None) -> bool:
    """Whether it is more than a guess how long a job takes: it states its work, or the same command has run before."""
    return job.work_samples is not None or (like is not None and like.spec.command == job.spec.command)


def with_forerunners(jobs: Iterable[LiveJob]) -> list[LiveJob]:
    """The active jobs, and those that are over from which something is known of them."""
    jobs = list(jobs)
    active = {(job.spec.name, job.spec.owner) for job in jobs if not job.phase.is_terminal}
    needed = {job.id for kind, job in forerunners(jobs).items() if kind in active}
    return [job for job in jobs if job.id in needed or not job.phase.is_terminal]


def forerunners(jobs: Iterable[LiveJob]) -> dict[tuple[str, str | None], LiveJob]:
    """The last job of each name and owner that has trained, or has succeeded in whatever it did."""
    return {
        (job.spec.name, job.spec.owner): job
        for job in jobs
        if (job.measured and job.samples) or job.phase is JobPhase.SUCCEEDED
    }


def from_now(result: Result) -> Result:
    """A result whose times count from now, not from when its jobs were submitted."""
    for job in result.jobs:
        job.facts = replace(job.facts, submitted_s=max(job.facts.submitted_s, 0.0))
    return result


def standing_view(job: LiveJob, facts: JobFacts, allocation: Allocation, cluster: Cluster, now_s: float) -> JobView:
    """A live job as a policy sees it whose time begins now: with its age, its deadline, its service and its slots."""
    view = view_of(job, cluster, now_s)
    since_s = min(job.target_since_s - now_s, 0.0) if allocation else 0.0
    return replace(
        view,
        facts=replace(
            facts,
            submitted_s=facts.submitted_s - now_s,
            deadline_s=None if facts.deadline_s is None else facts.deadline_s - now_s,
        ),
        allocation=allocation,
        slots=slots_of(allocation),
        gpu_type=cluster.nodes[allocation[0][0]].gpu_type if allocation else None,
        started_s=None if view.started_s is None else view.started_s - now_s,
        since_s=since_s,
        executed_before_s=view.executed_before_s + since_s,
        service_before_gpu_s=job.service_gpu_s(now_s) + since_s * slots_of(allocation),
    )


def _with_limits(facts: JobFacts, application: Application) -> JobFacts:
    """What a job may have of what is known of its speed: the GPU types, and the sizes that its batch allows."""
    limits = dict(application.limits)
    if facts.adaptivity is not Adaptivity.ADAPTIVE:
        limits = {name: replace(one, largest=one.initial) for name, one in limits.items()}
    most = max(one.largest // one.smallest_per_slot for one in limits.values())
    return replace(
        facts,
        gpu_types=frozenset(limits),
        limits=limits,
        max_slots=max(min(facts.max_slots, most), facts.min_slots),
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


def application_of(
    known: LiveJob, job: LiveJob, cluster: Cluster, pace: float, like: LiveJob | None = None
) -> Application | None:
    """A job as the simulator runs it; None if too little is known of it.

    Steps take as long as the model that was fitted to its measurements says, and training longer than that by as much
    as it did; one that has not trained yet starts and trains as one that was ``like`` it, with twice the uncertainty. A
    job that counts epochs is done after a number of samples, whatever its batch size.
    """
    limits, work = batch_limits(known), known.work_samples
    profiles = _profiles(known, job, cluster)
    if limits is None or work is None or not profiles:
        return None
    gradient = known.gradient or GradientStats()
    left = max(work - job.done_samples, 1.0)
    trained = known if known.stretches or like is None else like
    fits = {name: _fitted(profile) for name, profile in profiles.items()}
    took = times_of(trained, fits)
    error = uncertainty(took) * (1.0 if known.id == job.id else 2.0)
    truth = {name: FittedTimes(fitted, cluster.total_slots) for name, fitted in fits.items()}
    return Application(
        name=job.id,
        progress_steps=np.array([left / limits.initial]),
        gradient=ConstantNoise(gradient),
        truth=truth,
        limits=dict.fromkeys(truth, limits),
        rescale_s=facts_of(known, cluster).rescale_s,
        start_up_s=start_up_s(trained),
        speed_divisor=slower(took) * (1.0 + error) ** pace,
        counts_samples=not (known.limits is not None and known.limits.by_progress),
    )


def times_of(job: LiveJob, fits: Mapping[str, ThroughputFit]) -> list[tuple[float, float]]:
    """For how long a job trained in each way that it did, and how long its model says that this takes."""
    profiles = dict(job.measured)
    times = []
    for stretch in job.stretches:
        seen, fitted = stretch.observed(profiles.get(stretch.gpu_type)), fits.get(stretch.gpu_type)
        if seen is not None and fitted is not None and stretch.seconds > 0.0 and stretch.steps > 0:
            shape = Shape.of(seen.nodes, seen.slots, seen.per_slot_batch, seen.busiest_node_slots, seen.link_slowdown)
            step_s = float(fitted.step_times(shape).iteration_s(stretch.accumulation_steps))
            times.append((stretch.seconds, stretch.steps * step_s))
    return times


def slower(times: Sequence[tuple[float, float]]) -> float:
    """By what factor a job trained longer than its model says: evaluation, checkpoints, ends of epochs, and misfit."""
    trained_s, model_s = (sum(both) for both in zip(*times, strict=True)) if times else (0.0, 0.0)
    return min(max(trained_s / model_s, 1.0 / MAX_SLOWER), MAX_SLOWER) if model_s >= LEAST_TRAINED_S else 1.0


def uncertainty(times: Sequence[tuple[float, float]]) -> float:
    """By what part a job's speed may differ from what is expected of it.

    It is how differently its model was off in the ways in which it trained, each counting by its time: a job that has
    trained for long, always as its model says, has a narrower forecast.
    """
    trained_s = sum(seconds for seconds, _ in times)
    logs = [(seconds, math.log(seconds / model_s)) for seconds, model_s in times]
    mean = sum(seconds * log for seconds, log in logs) / trained_s if logs else 0.0
    squares = FIRST_ERROR_S * FIRST_ERROR**2 + sum(seconds * (log - mean) ** 2 for seconds, log in logs)
    return max(math.sqrt(squares / (FIRST_ERROR_S + trained_s)), LEAST_ERROR)


def start_up_s(job: LiveJob) -> float | None:
    """How long a job's processes took from their first start to training; None if it has not come so far."""
    began = next((line.at_s for line in job.story if line.text.startswith("starting on")), None)
    trains = next((line.at_s for line in job.story if line.text.startswith("training on")), None)
    return None if began is None or trains is None else max(trains - began, 0.0)


def _profiles(known: LiveJob, job: LiveJob, cluster: Cluster) -> dict[str, Profile]:
    """What is known of a job's speed on the GPU types that it may have, and on the one that it has.

    Where nothing is known of any of them it is taken to be as fast there as where it was measured.
    """
    names = job.spec.gpu_types.names
    allowed = [name for name in cluster.type_index if not names or name in names]
    measured = dict(known.measured)
    profiles = {name: measured[name] for name in allowed if name in measured}
    nodes = [] if job.target is None else [name for name, _ in job.target.slots_by_node if name in cluster.node_index]
    if measured:
        other = next(iter(profiles.values()), next(iter(measured.values())))
        for name in {cluster.nodes[cluster.node_index[node]].gpu_type for node in nodes}:
            profiles.setdefault(name, other)
        if not profiles:
            profiles = dict.fromkeys(allowed, other)
    return profiles


def fits_of(job: LiveJob) -> dict[str, ThroughputFit]:
    """The models of a job's measurements, by GPU type."""
    return {name: _fitted(profile) for name, profile in job.measured}


_fits: dict[Profile, ThroughputFit] = {}


def _fitted(profile: Profile) -> ThroughputFit:
    """The model of a profile; fitted once."""
    if profile not in _fits:
        if len(_fits) > 1000:
            _fits.clear()
        _fits[profile] = fit(profile)
    return _fits[profile]


def _until_spent_s(job: LiveJob, now_s: float) -> float:
    """How long a plain command has until all the slots × time that it may use is used up, and it is ended."""
    if job.elastic or job.spec.budget_gpu_s is None:
        return math.inf
    return max(job.spec.budget_gpu_s - job.service_gpu_s(now_s), 0.1) / job.spec.min_slots


def _guessed_s(job: LiveJob, like: LiveJob | None, now_s: float) -> tuple[float, float]:
    """How long a job of unknown work may take from now on, and by what factor that may be wrong."""
    executed_s = job.executed_s(now_s)
    if like is not None and like.phase is JobPhase.SUCCEEDED and like.executed_before_s > 0:
        return max(like.executed_before_s - executed_s, 0.25 * executed_s, 1.0), LIKE_FACTOR
    return max(executed_s, UNKNOWN_S), UNKNOWN_FACTOR
