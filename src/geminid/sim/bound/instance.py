"""From the jobs of a simulation to a problem whose optimum no schedule can beat, and to the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.job import Adaptivity
from geminid.sim.bound.rates import Modes, Rates, least_busy
from geminid.sim.profiles.gavel import ThroughputTable
from geminid.sim.sharing import ApplicationSharing
from geminid.sim.simjob import SimJob
from geminid.sim.simulator import Simulator
from geminid.solve.bound import Instance, JobKind, jct_bound, makespan_bound

Array = NDArray[np.float64]

#: Epochs whose best speeds grow by slots alike, within this part, are taken together.
ALIKE = 0.06


@dataclass(frozen=True, slots=True)
class Bound:
    """What no schedule of a workload can be better than; with ``sharing``, not even if two jobs share slots."""

    avg_jct_s: float
    makespan_s: float
    sharing: bool


def bound(simulator: Simulator, *, sharing: bool) -> Bound:
    """The bound for the workload of a simulator, before or after it has run."""
    if simulator.standing:
        raise InvalidInput([Problem("bound", NOT_SHOWN, "is for workloads that begin with no job running")])
    problem = instance(simulator, sharing=sharing)
    jobs = len(problem.arrival_s)
    return Bound(jct_bound(problem) / jobs, makespan_bound(problem), sharing)


def instance(simulator: Simulator, *, sharing: bool) -> Instance:
    """The relaxed problem: every kind of job with its modes, every job with its arrival and size."""
    cluster = simulator.cluster
    groups: dict[object, list[SimJob]] = {}
    for job in simulator.jobs.values():
        groups.setdefault(_key(job), []).append(job)
    with_app = [jobs for jobs in groups.values() if jobs[0].application is not None]
    model = simulator.engine.sharing if sharing else None
    app_sharing = model if isinstance(model, ApplicationSharing) else None
    busy = {} if app_sharing is None else least_busy(with_app, cluster, app_sharing)
    rates = Rates(cluster, app_sharing, busy)
    everybody = [jobs[0] for jobs in groups.values()]
    kinds, members = [], []
    for jobs in groups.values():
        first = jobs[0]
        modes = (
            _opaque_modes(first, simulator, everybody if sharing else ())
            if first.application is None
            else rates.modes(jobs)
        )
        work = np.array([first.total]) if first.application is None else _epoch_work(first)
        kind, isolated_s = _kind(modes, work)
        kinds.append(kind)
        members.append([(job, isolated_s * job.total / first.total) for job in jobs])
    flat = [(index, job, size_s) for index, group in enumerate(members) for job, size_s in group]
    return Instance(
        capacity=np.array([cluster.slots_per_type[name] for name in cluster.type_index], dtype=float),
        kinds=tuple(kinds),
        kind=np.array([index for index, _, _ in flat], dtype=np.int64),
        arrival_s=np.array([job.facts.submitted_s for _, job, _ in flat]),
        start_up_s=np.array([_start_up_s(job) for _, job, _ in flat]),
        isolated_s=np.array([size_s for _, _, size_s in flat]),
    )


def _key(job: SimJob) -> object:
    """What jobs have in common that are equally fast on anything."""
    facts = job.facts
    if job.application is None:
        return (facts.requested_slots, facts.gpu_types, facts.kind, tuple(sorted(facts.throughputs.items())))
    adaptive = facts.adaptivity is Adaptivity.ADAPTIVE
    batch = None if adaptive else facts.requested_batch
    return (id(job.application), facts.adaptivity, batch, facts.min_slots, facts.max_slots)


def _start_up_s(job: SimJob) -> float:
    """What the first start costs."""
    start_up_s = job.start_up_s if job.application is None else job.application.value.start_up_s
    return job.facts.rescale_s if start_up_s is None else start_up_s


def _epoch_work(job: SimJob) -> Array:
    assert job.application is not None
    return np.diff(job.application.value.progress_steps, prepend=0.0)


def _opaque_modes(job: SimJob, simulator: Simulator, partners: Sequence[SimJob]) -> Modes:
    """A job without an application runs on the slots that it asks for, alone or beside any of these partners."""
    facts, cluster = job.facts, simulator.cluster
    table = simulator.engine.sharing if isinstance(simulator.engine.sharing, ThroughputTable) else None
    slots, types, rates = [], [], []
    for gpu_type, index in cluster.type_index.items():
        if cluster.slots_per_type[gpu_type] < facts.requested_slots:
            continue
        if facts.gpu_types is not None and gpu_type not in facts.gpu_types:
            continue
        steps_per_s = 1.0
        if job.trace.steps is not None and facts.throughputs:
            steps_per_s = max(facts.throughputs[gpu_type], facts.spread_throughputs.get(gpu_type, 0.0))
        beside = [table.relative_speeds(facts, other.facts, gpu_type)[0] for other in partners] if table else []
        for used, speed in ((1.0, 1.0), (0.5, max(beside, default=0.0))):
            if speed > 0:
                slots.append(used * facts.requested_slots)
                types.append(index)
                rates.append(steps_per_s * speed)
    return Modes(np.array(slots), np.array(types, dtype=np.int64), np.array(rates)[None, :])


def _kind(modes: Modes, work: Array) -> tuple[JobKind, float]:
    """Modes relative to the best of each epoch, epochs that are alike as one, and the isolated time of all work.

    Work is counted in seconds at the best rate. In a group of epochs every mode counts as in the epoch where it is
    relatively fastest: no job is slower for it.
    """
    best = modes.rates.max(axis=1)
    relative = modes.rates / best[:, None]
    seconds = work / best
    group = _groups(relative)
    phases = np.array([relative[group == index].max(axis=0) for index in range(group.max() + 1)])
    shares = np.array([seconds[group == index].sum() for index in range(group.max() + 1)])
    used = _on_some_hull(modes, phases)
    isolated_s = float(seconds.sum())
    return JobKind(modes.slots[used], modes.gpu_type[used], phases[:, used], shares / isolated_s), isolated_s


def _groups(relative: Array) -> NDArray[np.int64]:
    """Epochs in groups within which no mode's relative rate differs by more than a little."""
    logs = np.log(np.maximum(relative, 1e-9))
    order = np.argsort(logs.mean(axis=1))
    group = np.zeros(len(relative), dtype=np.int64)
    current, low, high = 0, logs[order[0]].copy(), logs[order[0]].copy()
    for epoch in order:
        new_low, new_high = np.minimum(low, logs[epoch]), np.maximum(high, logs[epoch])
        if (new_high - new_low).max() > ALIKE:
            current += 1
            new_low, new_high = logs[epoch].copy(), logs[epoch].copy()
        low, high = new_low, new_high
        group[epoch] = current
    return group


def _on_some_hull(modes: Modes, phases: Array) -> NDArray[np.int64]:
    """Modes that no mixture over time of others on the same type, or of nothing, beats in every phase."""
    kept = set()
    for gpu_type in np.unique(modes.gpu_type):
        of_type = np.flatnonzero(modes.gpu_type == gpu_type)
        of_type = of_type[np.argsort(modes.slots[of_type], kind="stable")]
        for rates in phases:
            hull: list[tuple[float, float, int]] = [(0.0, 0.0, -1)]
            for index in of_type:
                slots, rate = float(modes.slots[index]), float(rates[index])
                if rate <= hull[-1][1]:
                    continue
                while len(hull) > 1 and (rate - hull[-2][1]) * (hull[-1][0] - hull[-2][0]) >= (
                    hull[-1][1] - hull[-2][1]
                ) * (slots - hull[-2][0]):
                    hull.pop()
                if hull[-1][0] == slots:
                    hull.pop()
                hull.append((slots, rate, int(index)))
            kept |= {index for _, _, index in hull[1:]}
    return np.array(sorted(kept), dtype=np.int64)
