"""What policies over time fractions read: steps per second of every job's gang on every GPU type, and of pairs.

A job that brings its throughputs is taken at its word. Of any other, the fitted model tells how many optimiser steps of
the requested batch size the requested slots make in a second; if the job may tune itself, its goodput at the best batch
plan counts instead, in steps of the requested batch size that would come to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from geminid.cluster import Cluster
from geminid.goodput.batchplan import BatchLimits, best_plan, evaluate
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.table import JobModel
from geminid.job import Adaptivity
from geminid.policies.base import JobView, SharingModel
from geminid.policies.gavel.problem import PairThroughputs


@dataclass(slots=True)
class SpeedReader:
    """Reads jobs' speeds, and remembers them as long as their models stay the same."""

    adaptive: bool = False
    _known: dict[str, tuple[JobModel | None, dict[str, float]]] = field(default_factory=dict)
    _pairs: dict[tuple[object, object, str], tuple[float, float]] = field(default_factory=dict)

    def speeds(self, cluster: Cluster, jobs: Sequence[JobView]) -> dict[str, Mapping[str, float]]:
        """Steps per second of every job on the types that can run it; the same on all for jobs of unknown speed."""
        result: dict[str, Mapping[str, float]] = {}
        for job in jobs:
            if job.facts.throughputs:
                result[job.id] = job.facts.throughputs
            elif not job.facts.limits:
                allowed = job.facts.gpu_types
                result[job.id] = {t: 1.0 for t in cluster.type_index if allowed is None or t in allowed}
            else:
                known = self._known.get(job.id)
                if known is None or known[0] is not job.model:
                    known = self._known[job.id] = (job.model, self._modelled(cluster, job))
                result[job.id] = known[1]
        for gone in self._known.keys() - result.keys():
            del self._known[gone]
        return result

    def _modelled(self, cluster: Cluster, job: JobView) -> dict[str, float]:
        model, slots = job.model, job.facts.requested_slots
        speeds = {}
        for gpu_type, limits in job.facts.limits.items():
            fitted = model.fits.get(gpu_type) if model is not None else None
            if model is None or fitted is None:
                speeds[gpu_type] = 1.0
                continue
            per_node = int(cluster.node_slots[cluster.node_type == cluster.type_index[gpu_type]].max())
            nodes = -(-slots // per_node)
            speed = self._steps_per_s(job, model, fitted, limits, nodes)
            if speed > 0:
                speeds[gpu_type] = speed
        return speeds

    def _steps_per_s(
        self, job: JobView, model: JobModel, fitted: ThroughputFit, limits: BatchLimits, nodes: int
    ) -> float:
        slots, gradient = job.facts.requested_slots, model.gradient
        total = job.facts.requested_batch or limits.initial
        passes = -(-total // (slots * limits.largest_per_slot))
        requested = evaluate(
            fitted,
            gradient,
            limits,
            nodes=nodes,
            slots=slots,
            per_slot_batch=max(1, -(-total // (slots * passes))),
            accumulation_steps=passes - 1,
        )
        if self.adaptive and job.facts.adaptivity is Adaptivity.ADAPTIVE:
            best = best_plan(fitted, gradient, limits, nodes=nodes, slots=slots)
            return max(best.goodput, requested.goodput) / (total * requested.efficiency)
        return requested.throughput / total

    def pairs(
        self,
        gpu_types: Sequence[str],
        jobs: Sequence[JobView],
        speeds: Mapping[str, Mapping[str, float]],
        sharing: SharingModel,
    ) -> PairThroughputs:
        """Steps per second of every kind of job beside every other of equal gang.

        Jobs are of one kind where they have the same name for it, the same gang and the same speeds.
        """
        kinds: dict[object, JobView] = {}
        for job in jobs:
            kinds.setdefault(kind_of(job, speeds), job)
        rates = np.zeros((len(kinds), len(kinds), len(gpu_types)))
        for a, first in enumerate(kinds.values()):
            for b, second in enumerate(kinds.values()):
                if b < a or first.facts.requested_slots != second.facts.requested_slots:
                    continue
                for j, gpu_type in enumerate(gpu_types):
                    mine, other = speeds[first.id].get(gpu_type, 0.0), speeds[second.id].get(gpu_type, 0.0)
                    if mine > 0 and other > 0:
                        left = self._relative(first, second, gpu_type, sharing)
                        rates[a, b, j], rates[b, a, j] = left[0] * mine, left[1] * other
        return PairThroughputs(tuple(kinds), rates)

    def _relative(self, first: JobView, second: JobView, gpu_type: str, sharing: SharingModel) -> tuple[float, float]:
        key = (_name(first), _name(second), gpu_type)
        if key not in self._pairs:
            self._pairs[key] = sharing.relative_speeds(first.facts, second.facts, gpu_type)
        return self._pairs[key]


def kind_of(job: JobView, speeds: Mapping[str, Mapping[str, float]]) -> object:
    """What jobs have in common that are equally fast everywhere, alone and beside others."""
    return (*_name(job), tuple(speeds[job.id].items()))


def _name(job: JobView) -> tuple[object, ...]:
    return job.facts.kind, job.facts.requested_slots, job.facts.requested_batch
