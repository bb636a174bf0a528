"""What policies over time fractions read: steps per second of every job's gang on every GPU type, and of pairs.

A job that brings its throughputs is taken at its word. Of any other, the fitted model tells how many optimiser steps of
the requested batch size the requested slots make in a second; if the job may tune itself, its goodput at the best batch
plan counts instead, in steps of the requested batch size that would come to the same.

Where a job has not been measured on a type, its speed there is estimated from the other active jobs, and so is what a
pair keeps of its speed where nobody has measured the two together (:mod:`geminid.policies.gavel.estimation`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.goodput.batchplan import BatchLimits, TunedPlan, evaluate
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.table import GoodputTable, JobModel
from geminid.job import Adaptivity
from geminid.policies.base import JobView, SharingModel
from geminid.policies.gavel.estimation import estimate_alone, estimate_pairs
from geminid.policies.gavel.problem import Array, PairThroughputs

#: The part of the kinds of jobs that has been measured in all pairs, where not everything is.
_REFERENCES = 0.5

#: Most jobs of different speeds from which estimates are made: the cost grows with the cube of this number.
MOST_REFERENCES = 64

#: Most pairs that are remembered of kinds without a current job; pairs of current kinds are always kept.
MOST_PAIRS = 10_000


@dataclass(slots=True)
class SpeedReader:
    """Reads jobs' speeds, and remembers them as long as their models stay the same.

    With ``profiled`` below 1 not all pairs of kinds have been measured: half of the kinds, drawn at random, are
    references, measured beside each other; any other kind has been beside that part of the others only. What two jobs
    keep that have run together is known from then on.
    """

    adaptive: bool = False
    profiled: float = 1.0
    seed: int = 0
    _tried: set[frozenset[object]] = field(default_factory=set)
    _known: dict[str, tuple[JobModel | None, dict[str, float]]] = field(default_factory=dict)
    _pairs: dict[tuple[object, object, str], tuple[float, float]] = field(default_factory=dict)
    _table: GoodputTable | None = None

    def speeds(self, cluster: Cluster, jobs: Sequence[JobView]) -> dict[str, Mapping[str, float]]:
        """Steps per second of every job on the types that can run it; the same on all where nobody's are known."""
        result: dict[str, Mapping[str, float]] = {}
        news: list[JobView] = []
        for job in jobs:
            if job.facts.throughputs:
                result[job.id] = job.facts.throughputs
            elif not job.facts.limits:
                allowed = job.facts.gpu_types
                result[job.id] = {t: 1.0 for t in cluster.type_index if allowed is None or t in allowed}
            else:
                known = self._known.get(job.id)
                if known is None or known[0] is not job.model:
                    news.append(job)
                result[job.id] = known[1] if known is not None else {}
        if news:
            goodputs = self._goodputs(cluster, jobs) if self.adaptive else {}
            for job in news:
                speeds = self._modelled(cluster, job, goodputs.get(job.id, {}))
                self._known[job.id] = job.model, speeds
                result[job.id] = speeds
        for gone in self._known.keys() - result.keys():
            del self._known[gone]
        self._forget_pairs(jobs)
        return _estimated(result, [job.id for job in jobs if job.facts.throughputs or job.facts.limits])

    def _forget_pairs(self, jobs: Sequence[JobView]) -> None:
        """Of kinds that are gone keep what they keep beside others only while it is little: kinds come again."""
        if len(self._pairs) + len(self._tried) > MOST_PAIRS:
            names = {_name(job) for job in jobs}
            self._pairs = {key: kept for key, kept in self._pairs.items() if key[0] in names and key[1] in names}
            self._tried = {pair for pair in self._tried if pair <= names}

    def relative_when_spread(self, cluster: Cluster, job: JobView, gpu_type: str) -> float:
        """Speed of a gang on one node more than it needs, relative to that on the fewest; 1 where nothing is known."""
        facts = job.facts
        slots = facts.requested_slots
        if slots == 1:
            return 1.0
        if facts.throughputs:
            alone = facts.throughputs.get(gpu_type, 0.0)
            return min(facts.spread_throughputs.get(gpu_type, alone) / alone, 1.0) if alone > 0 else 1.0
        limits, model = facts.limits.get(gpu_type), job.model
        fitted = model.fits.get(gpu_type) if model is not None else None
        nodes = _packed(cluster, gpu_type, slots).nodes
        if limits is None or model is None or fitted is None or fitted.source == "prior" or nodes >= slots:
            return 1.0
        whole, spread = (_as_requested(job, model, fitted, limits, n).goodput for n in (nodes, nodes + 1))
        return min(spread / whole, 1.0) if whole > 0 else 1.0

    def _goodputs(self, cluster: Cluster, jobs: Sequence[JobView]) -> dict[str, dict[str, float]]:
        """Useful samples per second of jobs that tune themselves, on the requested slots of each type."""
        able = [job for job in jobs if job.model is not None and job.facts.adaptivity is Adaptivity.ADAPTIVE]
        columns = {
            (gpu_type, slots): _packed(cluster, gpu_type, slots)
            for slots in sorted({job.facts.requested_slots for job in able})
            for gpu_type in cluster.type_index
        }
        configurations = tuple(columns.values())
        if self._table is None or self._table.configurations != configurations:
            self._table = GoodputTable.empty(configurations)
        self._table = self._table.refresh({job.id: job.model for job in able if job.model is not None})
        where = {key: column for column, key in enumerate(columns)}
        return {
            job.id: {t: float(row[where[t, job.facts.requested_slots]]) for t in cluster.type_index}
            for job, row in zip(able, self._table.goodput, strict=True)
        }

    def _modelled(self, cluster: Cluster, job: JobView, goodputs: Mapping[str, float]) -> dict[str, float]:
        """Speeds by the job's model; not a number on types on which it may run and has not been measured."""
        model = job.model
        speeds = {}
        for gpu_type, limits in job.facts.limits.items():
            fitted = model.fits.get(gpu_type) if model is not None else None
            if model is None or fitted is None or fitted.source == "prior":
                speeds[gpu_type] = np.nan
                continue
            nodes = _packed(cluster, gpu_type, job.facts.requested_slots).nodes
            total = job.facts.requested_batch or limits.initial
            requested = _as_requested(job, model, fitted, limits, nodes)
            best = max(requested.goodput, goodputs.get(gpu_type, 0.0))
            if best > 0:
                speeds[gpu_type] = best / (total * requested.efficiency)
        return speeds

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
        names: dict[tuple[object, ...], tuple[int, JobView]] = {}
        for job in jobs:
            kinds.setdefault(kind_of(job, speeds), job)
            names.setdefault(_name(job), (len(names), job))
        relative = np.zeros((len(names), len(names), len(gpu_types)))
        for a, first in names.values():
            for b, second in names.values():
                if a <= b and first.facts.requested_slots == second.facts.requested_slots:
                    for j, gpu_type in enumerate(gpu_types):
                        left = self._relative(first, second, gpu_type, sharing)
                        relative[a, b, j], relative[b, a, j] = left
        gangs = np.array([job.facts.requested_slots for _, job in names.values()])
        for gang in np.unique(gangs[np.isnan(relative).any(axis=(1, 2))]).tolist():
            alike = np.ix_(gangs == gang, gangs == gang)
            relative[alike] = _estimated_pairs(relative[alike])
        name = np.array([names[_name(job)][0] for job in kinds.values()], dtype=np.int64)
        alone = np.array([[speeds[job.id].get(t, 0.0) for t in gpu_types] for job in kinds.values()])
        alone = alone.reshape(len(kinds), len(gpu_types))
        kept = relative[np.ix_(name, name)]
        if self.adaptive and self.profiled >= 1:
            tuned = self._at_their_batches(gpu_types, list(kinds.values()), sharing)
            kept = np.where(np.isnan(tuned), kept, np.where(kept > 0, tuned, 0.0))
        return PairThroughputs(tuple(kinds), kept * np.where(alone[None] > 0, alone[:, None], 0.0))

    def _at_their_batches(self, gpu_types: Sequence[str], jobs: Sequence[JobView], sharing: SharingModel) -> Array:
        """What jobs keep beside each other at the batches that they choose, which keep slots busier than requested."""
        table, batch = self._table, np.zeros((len(jobs), len(gpu_types)), dtype=np.int64)
        if table is not None:
            rows = {job_id: row for row, job_id in enumerate(table.job_ids)}
            columns = {(c.gpu_type, c.slots): column for column, c in enumerate(table.configurations)}
            for i, job in enumerate(jobs):
                if job.id in rows:
                    at = [columns[gpu_type, job.facts.requested_slots] for gpu_type in gpu_types]
                    batch[i] = table.per_slot_batch[rows[job.id], at]
        facts = [job.facts for job in jobs]
        return np.stack([sharing.speeds_together(facts, t, batch[:, j].tolist()) for j, t in enumerate(gpu_types)], 2)

    def try_out(self, first: JobView, second: JobView) -> bool:
        """Two jobs have run on the same slots: what they keep is known. Whether it was not before."""
        pair = frozenset((_name(first), _name(second)))
        news = not self._measured(first, second)
        self._tried.add(pair)
        return news

    def _measured(self, first: JobView, second: JobView) -> bool:
        """Whether it is known what two jobs keep beside each other."""
        if self.profiled >= 1 or frozenset((_name(first), _name(second))) in self._tried:
            return True
        a, b = sorted(repr(_name(job)) for job in (first, second))
        references = all(self._draw(name) < _REFERENCES for name in (a, b))
        return references or self._draw(f"{a} {b}") < self.profiled

    def _draw(self, text: str) -> float:
        """A number from 0 to 1 that depends on the text and the seed only."""
        return zlib.crc32(f"{self.seed} {text}".encode()) / 2**32

    def _relative(self, first: JobView, second: JobView, gpu_type: str, sharing: SharingModel) -> tuple[float, float]:
        if not self._measured(first, second):
            return np.nan, np.nan
        key = (_name(first), _name(second), gpu_type)
        if key not in self._pairs:
            speeds = sharing.relative_speeds(first.facts, second.facts, gpu_type)
            if np.isnan(speeds).any():  # somebody may yet measure it
                return np.nan, np.nan
            self._pairs[key] = speeds
        return self._pairs[key]


def _estimated(speeds: dict[str, Mapping[str, float]], references: Sequence[str]) -> dict[str, Mapping[str, float]]:
    """The same with estimates in place of what is not a number, from ``references`` known on all types in question.

    Without any, a job is taken to be as fast there as where it is known; wholly unknown ones make a step a second.
    """
    partial = {job_id: row for job_id, row in speeds.items() if any(map(math.isnan, row.values()))}
    if not partial:
        return speeds
    full = [speeds[job_id] for job_id in references if job_id not in partial]
    by_types: dict[tuple[str, ...], Array] = {}
    done: dict[tuple[tuple[str, ...], tuple[float, ...]], dict[str, float]] = {}
    result = dict(speeds)
    for job_id, row in partial.items():
        types = tuple(row)
        if types not in by_types:
            rows = dict.fromkeys(tuple(other.get(t, 0.0) for t in types) for other in full)
            usable = [values for values in rows if min(values) > 0]
            by_types[types] = np.array(usable[:MOST_REFERENCES]).reshape(-1, len(types))
        key = types, tuple(0.0 if np.isnan(v) else v for v in row.values())
        if key not in done:
            values = np.array(list(row.values()))
            known = values[values > 0]
            if len(by_types[types]):
                values = estimate_alone(values[None], by_types[types])[0]
            else:
                values[np.isnan(values)] = np.exp(np.log(known).mean()) if len(known) else 1.0
            done[key] = dict(zip(types, values.tolist(), strict=True))
        result[job_id] = done[key]
    return result


def _estimated_pairs(kept: Array) -> Array:
    """What kinds of one gang keep beside each other, unknown entries estimated; nothing where nothing is known.

    References are kinds all of whose pairs among themselves are known: greedily, those known in most pairs first.
    """
    unknown = np.asarray(np.isnan(kept).any(axis=2))
    references: list[int] = []
    for a in np.argsort(unknown.sum(axis=1), kind="stable").tolist():
        if not unknown[a, [*references, a]].any() and len(references) < MOST_REFERENCES:
            references.append(a)
    return estimate_pairs(kept, sorted(references)) if references else np.nan_to_num(kept)


def _packed(cluster: Cluster, gpu_type: str, slots: int) -> Configuration:
    """This many slots of a type on as few nodes as possible."""
    return Configuration(gpu_type=gpu_type, nodes=-(-slots // cluster.largest_node_slots[gpu_type]), slots=slots)


def _as_requested(job: JobView, model: JobModel, fitted: ThroughputFit, limits: BatchLimits, nodes: int) -> TunedPlan:
    """What the requested slots and batch size come to."""
    slots, total = job.facts.requested_slots, job.facts.requested_batch or limits.initial
    passes = -(-total // (slots * limits.largest_per_slot))
    return evaluate(
        fitted,
        model.gradient,
        limits,
        nodes=nodes,
        slots=slots,
        per_slot_batch=-(-total // (slots * passes)),
        accumulation_steps=passes - 1,
    )


def kind_of(job: JobView, speeds: Mapping[str, Mapping[str, float]]) -> object:
    """What jobs have in common that are equally fast everywhere, alone and beside others."""
    return (*_name(job), tuple(speeds[job.id].items()))


def _name(job: JobView) -> tuple[object, ...]:
    return job.facts.kind, job.facts.requested_slots, job.facts.requested_batch
