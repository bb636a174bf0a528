"""What only a simulator knows about a job: how much work is left, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from geminid.cluster import Cluster
from geminid.sim.agenda import Agenda
from geminid.sim.rates import epoch_gains, epoch_rates
from geminid.sim.simjob import SimJob
from geminid.sim.tuner import for_total


def durations_s(job: SimJob, cluster: Cluster) -> Mapping[str, float]:
    """Seconds that the whole job takes on the slots and batch size it requests, packed, by GPU type that can run it.

    Computed once per job: oracles ask at every decision.
    """
    if job.durations_s is None:
        job.durations_s = dict(_compute_durations_s(job, cluster))
    return job.durations_s


def _compute_durations_s(job: SimJob, cluster: Cluster) -> Iterator[tuple[str, float]]:
    if job.application is None:
        for gpu_type in cluster.nodes_of_type:
            steps_per_s = job.facts.throughputs.get(gpu_type, 0.0) if job.facts.throughputs else 1.0
            if steps_per_s > 0:
                yield gpu_type, job.total / steps_per_s
        return
    steps = np.diff(job.application.value.progress_steps, prepend=0.0)
    for gpu_type in job.facts.limits:
        per_node = cluster.largest_node_slots.get(gpu_type, 0)
        batch = job.fixed_batch(gpu_type, job.facts.requested_slots)
        if batch is not None and per_node:
            full, rest = divmod(job.facts.requested_slots, per_node)
            placement = (per_node,) * full + ((rest,) if rest else ())
            yield gpu_type, float(np.sum(steps / epoch_rates(job.application, gpu_type, placement, batch)))


def mixed_duration_s(job: SimJob, cluster: Cluster) -> float:
    """The duration on all GPU types in turn, each for a time proportional to its number of slots."""
    by_type = durations_s(job, cluster)
    slots = {gpu_type: cluster.slots_per_type[gpu_type] for gpu_type in by_type}
    speed = sum(slots[t] / by_type[t] for t in by_type)
    return sum(slots.values()) / speed if speed > 0 else float("inf")


def remaining_s(job: SimJob, cluster: Cluster) -> float:
    """Seconds of work left on the requested slots and batch size, on the fastest GPU type."""
    return (1.0 - job.progress / job.total) * min(durations_s(job, cluster).values(), default=float("inf"))


@dataclass(slots=True)
class Oracle:
    """True remaining work and step times, for policies whose papers assume that they are known."""

    jobs: Mapping[str, SimJob]
    cluster: Cluster
    agenda: Agenda
    _iteration_s: dict[tuple[str, int | None, tuple[int, ...]], float] = field(default_factory=dict)

    def remaining_iterations(self, job_id: str, *, after_current_epoch: bool = False) -> float:
        """Optimiser steps at the requested batch size to completion, from the start or the end of the current epoch."""
        job = self._up_to_date(job_id)
        if job.application is None:
            return job.total - job.progress
        app, first = job.application.value, job.epoch() + after_current_epoch
        total = job.trace.requested_batch or app.initial_batch
        steps = np.diff(app.progress_steps, prepend=0.0)
        return max(1.0, float(np.sum((steps / epoch_gains(job.application, total))[first:])))

    def remaining_s(self, job_id: str) -> float:
        """Seconds of work left on the requested slots."""
        return remaining_s(self._up_to_date(job_id), self.cluster)

    def iteration_s(self, job_id: str, placement: Sequence[int]) -> float:
        """Seconds per optimiser step at the requested batch size, on the first GPU type that can run it."""
        job = self.jobs[job_id]
        key = (job.trace.application or job_id, job.trace.requested_batch, tuple(placement))
        if key not in self._iteration_s:
            self._iteration_s[key] = _iteration_s(job, tuple(placement))
        return self._iteration_s[key]

    def _up_to_date(self, job_id: str) -> SimJob:
        job = self.jobs[job_id]
        job.advance(self.agenda.now_s)
        return job


def _iteration_s(job: SimJob, placement: tuple[int, ...]) -> float:
    if job.application is None:
        return 1.0
    app = job.application.value
    gpu_type = next(iter(job.facts.limits))
    limits, slots = app.limits[gpu_type], sum(placement)
    total = job.trace.requested_batch or limits.initial
    batch = for_total(limits, slots, total, passes_at_least=2 if slots == 1 else 1)
    if batch is None:
        return float("inf")
    accumulation_s, step_s = app.truth[gpu_type].step_times(placement, batch.per_slot)
    return batch.accumulation * accumulation_s + step_s
