"""Goodput of every job on every configuration, each at its best batch plan.

This is what policies read. It is the definition of ``batchplan.py`` computed for thousands of jobs × dozens of
configurations × fifty batch sizes with numpy, in blocks that stay in the processor's cache, and recomputed only for
the jobs whose model has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminid.configuration import Configuration
from geminid.executionplan import DATA_PARALLEL
from geminid.goodput.batchplan import GRID_POINTS, ROUNDING, BatchLimits
from geminid.goodput.efficiency import SMALLEST_VARIANCE, GradientStats
from geminid.goodput.fit import CORRECTION_REACH, ThroughputFit
from geminid.goodput.throughput import MODELS, Array, Shape, ThroughputModel

IntArray = NDArray[np.int64]

#: Candidates computed at a time: large enough to amortise numpy's overhead, small enough for the cache.
BLOCK_ELEMENTS = 1 << 16

#: Where padding in lists of corrections lies on the axis of log batch sizes: out of everybody's reach.
FAR_AWAY = -100.0


@dataclass(frozen=True, slots=True)
class JobModel:
    """What is known of a job: throughput fits and batch limits by :func:`model_key`, and its gradient noise.

    Configurations whose key is missing have goodput zero: the job cannot use them.
    """

    fits: Mapping[str, ThroughputFit]
    limits: Mapping[str, BatchLimits]
    gradient: GradientStats = field(default_factory=GradientStats)


def model_key(configuration: Configuration) -> str:
    """What a fit belongs to: the GPU type, and the execution plan where it is not plain data-parallel."""
    plan = configuration.plan
    return configuration.gpu_type if plan == DATA_PARALLEL.name else f"{configuration.gpu_type}:{plan}"


@dataclass(frozen=True, slots=True)
class GoodputTable:
    """Goodput and best batch plan for jobs (rows) × configurations (columns); zero where impossible."""

    configurations: tuple[Configuration, ...]
    job_ids: tuple[str, ...]
    goodput: Array
    per_slot_batch: IntArray
    accumulation_steps: IntArray
    models: Mapping[str, JobModel]
    recomputed: int
    link_slowdowns: tuple[float, ...]

    @classmethod
    def empty(
        cls, configurations: Sequence[Configuration], link_slowdowns: Sequence[float] | None = None
    ) -> GoodputTable:
        """A table without jobs.

        ``link_slowdowns`` says, per configuration, how much slower than within a rack the links are that its placements
        will cross (``topology.py``); one everywhere if left out.
        """
        nothing, whole = np.zeros((0, len(configurations))), np.zeros((0, len(configurations)), np.int64)
        slowdowns = tuple(link_slowdowns) if link_slowdowns is not None else (1.0,) * len(configurations)
        return cls(tuple(configurations), (), nothing, whole, whole, {}, 0, slowdowns)

    @classmethod
    def of(
        cls,
        configurations: Sequence[Configuration],
        jobs: Mapping[str, JobModel],
        link_slowdowns: Sequence[float] | None = None,
    ) -> GoodputTable:
        """Compute the table of all jobs."""
        return cls.empty(configurations, link_slowdowns).refresh(jobs)

    def refresh(self, jobs: Mapping[str, JobModel]) -> GoodputTable:
        """The table of ``jobs``, in their order; rows of jobs whose model is the same as before are carried over.

        A model is the same if it is the very object given before, or equal to it.
        """
        known = {job_id: row for row, job_id in enumerate(self.job_ids)}
        ids = tuple(jobs)
        source = np.full(len(ids), -1)
        for row, (job_id, model) in enumerate(jobs.items()):
            if job_id in known and (self.models[job_id] is model or self.models[job_id] == model):
                source[row] = known[job_id]
        carried, new = source >= 0, np.flatnonzero(source < 0)
        shape = (len(ids), len(self.configurations))
        goodput, batch, steps = np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        goodput[carried] = self.goodput[source[carried]]
        batch[carried] = self.per_slot_batch[source[carried]]
        steps[carried] = self.accumulation_steps[source[carried]]
        if new.size:
            goodput[new], batch[new], steps[new] = _compute(
                [jobs[ids[row]] for row in new], self.configurations, self.link_slowdowns
            )
        return GoodputTable(self.configurations, ids, goodput, batch, steps, dict(jobs), len(new), self.link_slowdowns)

    def row(self, job_id: str) -> Array:
        """Goodput of one job on every configuration."""
        row: Array = self.goodput[self.job_ids.index(job_id)]
        return row


@dataclass(frozen=True, slots=True)
class _Columns:
    """The configurations as vectors; slots are spread evenly over the nodes."""

    keys: list[str]
    key_index: NDArray[np.intp]
    nodes: Array
    slots: Array
    busiest: Array
    slowdown: Array

    @classmethod
    def of(cls, configurations: Sequence[Configuration], link_slowdowns: Sequence[float]) -> _Columns:
        keys = list(dict.fromkeys(model_key(c) for c in configurations))
        nodes = np.array([c.nodes for c in configurations], dtype=float)
        slots = np.array([c.slots for c in configurations], dtype=float)
        key_index = np.array([keys.index(model_key(c)) for c in configurations], dtype=np.intp)
        return cls(keys, key_index, nodes, slots, np.ceil(slots / nodes), np.array(link_slowdowns, dtype=float))


@dataclass(frozen=True, slots=True)
class _Models:
    """Fits of one model family, one per (job, key) that has one: vectors over F fits, (P, F) parameters."""

    job: NDArray[np.intp]
    key: NDArray[np.intp]
    parameters: Array
    limits: Array
    squared_gradient: Array
    variance: Array
    correction_log_batch: Array
    correction_log: Array


def _compute(
    jobs: Sequence[JobModel], configurations: Sequence[Configuration], link_slowdowns: Sequence[float]
) -> tuple[Array, IntArray, IntArray]:
    """Best goodput and plan of every job and configuration."""
    cols = _Columns.of(configurations, link_slowdowns)
    shape = (len(jobs), len(configurations))
    goodput, batch, steps = np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    columns_of_key = [np.flatnonzero(cols.key_index == k) for k in range(len(cols.keys))]
    for name, models in _pack(jobs, cols.keys).items():
        # Every (fit, configuration that it covers) is one entry. The best candidate is picked in single precision,
        # which is twice as fast; its goodput is then computed in double.
        widths = np.array([len(c) for c in columns_of_key])[models.key]
        fit = np.repeat(np.arange(len(widths)), widths)
        column = np.concatenate([columns_of_key[k] for k in models.key])
        _, largest, smallest_per_slot, _ = models.limits[:, fit]
        possible = np.flatnonzero(smallest_per_slot * cols.slots[column] <= largest)
        # In an order in which whole blocks need no corrections, or no accumulation.
        corrected = np.any(models.correction_log, axis=0, keepdims=True)[0, fit[possible]]
        accumulates = _may_accumulate(models.limits[:, fit[possible]], cols.slots[column[possible]])
        order = possible[np.lexsort((corrected, accumulates))]
        fit, column = fit[order], column[order]
        best_batch, best_steps = np.empty(len(fit)), np.empty(len(fit))
        for block in _blocks(len(fit), BLOCK_ELEMENTS // GRID_POINTS):
            entries = _Entries.of(models, fit[block], cols, column[block], np.float32)
            best_batch[block], best_steps[block] = _best_of_block(MODELS[name], entries)
        for block in _blocks(len(fit), BLOCK_ELEMENTS):
            entries = _Entries.of(models, fit[block], cols, column[block], np.float64)
            reached = entries.goodput(MODELS[name], best_batch[block], best_steps[block])
            where = (models.job[fit[block]], column[block])
            goodput[where] = reached
            batch[where] = best_batch[block] * (reached > 0)
            steps[where] = best_steps[block] * (reached > 0)
    return goodput, batch, steps


def _blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def _pack(jobs: Sequence[JobModel], keys: Sequence[str]) -> dict[str, _Models]:
    """Collect the fits of all jobs into arrays, by model family.

    The loops run in C where they can (``map`` over attribute getters): for ten thousand jobs they would otherwise take
    as long as the arithmetic.
    """
    found: dict[str, tuple[list[int], list[int], list[ThroughputFit], list[BatchLimits]]]
    found = {name: ([], [], [], []) for name in MODELS}
    for key_index, key in enumerate(keys):
        fits_of_key, limits_of_key = [job.fits.get(key) for job in jobs], [job.limits.get(key) for job in jobs]
        for row, (fitted, limit) in enumerate(zip(fits_of_key, limits_of_key, strict=True)):
            if fitted is not None and limit is not None:
                rows, key_indices, fits, limits = found[fitted.model]
                rows.append(row)
                key_indices.append(key_index)
                fits.append(fitted)
                limits.append(limit)
    squared_gradient = np.maximum([job.gradient.squared_gradient for job in jobs], 0.0)
    variance = np.maximum([job.gradient.variance for job in jobs], SMALLEST_VARIANCE)
    packed = {}
    for name, (rows, key_indices, fits, limits) in found.items():
        if rows:
            log_batch, log_factor = _pack_corrections(fits)
            job_row = np.array(rows, dtype=np.intp)
            packed[name] = _Models(
                job=job_row,
                key=np.array(key_indices, dtype=np.intp),
                parameters=_transposed(map(_PARAMETERS, fits), len(fits)),
                limits=_transposed(map(_LIMITS, limits), len(fits)),
                squared_gradient=squared_gradient[job_row],
                variance=variance[job_row],
                correction_log_batch=log_batch,
                correction_log=log_factor,
            )
    return packed


_PARAMETERS = attrgetter("parameters")
_LIMITS = attrgetter("initial", "largest", "smallest_per_slot", "largest_per_slot")
_SIZES, _FACTORS = attrgetter("corrections.batch_sizes"), attrgetter("corrections.log_factors")


def _transposed(rows: Iterable[Sequence[float]], count: int) -> Array:
    """Equally long rows as a contiguous array with one row per field."""
    flat = np.fromiter(chain.from_iterable(rows), dtype=float)
    return np.ascontiguousarray(flat.reshape(count, -1).T)


def _pack_corrections(fits: Sequence[ThroughputFit]) -> tuple[Array, Array]:
    """Log batch sizes and log factors of all corrections, (most corrections of a fit, fits); padding is far away."""
    counts = np.fromiter(map(len, map(_SIZES, fits)), dtype=np.intp, count=len(fits))
    shape = (int(counts.max()), len(fits))
    log_batch, log_factor = np.full(shape, FAR_AWAY), np.zeros(shape)
    of_fit = np.repeat(np.arange(len(fits)), counts)
    nth = np.arange(len(of_fit)) - np.repeat(np.cumsum(counts) - counts, counts)
    log_batch[nth, of_fit] = np.log(np.fromiter(chain.from_iterable(map(_SIZES, fits)), dtype=float))
    log_factor[nth, of_fit] = np.fromiter(chain.from_iterable(map(_FACTORS, fits)), dtype=float)
    return log_batch, log_factor


@dataclass(frozen=True, slots=True)
class _Entries:
    """A block of (fit, configuration) pairs as vectors over entries, in single or double precision."""

    limits: Array
    parameters: Array
    squared_gradient: Array
    variance: Array
    correction_log_batch: Array
    correction_log: Array
    nodes: Array
    slots: Array
    busiest: Array
    slowdown: Array

    @classmethod
    def of(
        cls,
        models: _Models,
        fit: NDArray[np.intp],
        cols: _Columns,
        column: NDArray[np.intp],
        precision: type[np.floating[Any]],
    ) -> _Entries:
        by_fit = (
            models.parameters,
            models.squared_gradient,
            models.variance,
            models.correction_log_batch,
            models.correction_log,
        )
        by_column = (cols.nodes, cols.slots, cols.busiest, cols.slowdown)
        return cls(
            models.limits[:, fit],
            *(array[..., fit].astype(precision) for array in by_fit),
            *(array[column].astype(precision) for array in by_column),
        )

    def goodput(self, model: ThroughputModel, batch: Array, accumulation: Array | None) -> Array:
        """Throughput × efficiency of each entry (last axis) at these plans; zero where a plan breaks the limits."""
        precision = self.slots.dtype
        initial, largest, smallest_per_slot, _ = self.limits.astype(precision)
        batch = batch.astype(precision)
        factor: Array | float = 1.0
        if self.correction_log.any():
            factor = _correction_factor(batch, self.correction_log_batch, self.correction_log)
        shape = Shape(self.nodes, self.slots, batch, self.busiest, self.slowdown)
        parameters = np.moveaxis(self.parameters, 0, -1)
        if accumulation is None:
            result = model.step_s(parameters, shape, factor)
            total = batch * self.slots
        else:
            accumulation = accumulation.astype(precision)
            times = model.step_times(parameters, shape, factor)
            result = accumulation * times.accumulation_s
            result += times.step_s
            total = (accumulation + 1.0) * self.slots
            result[total * smallest_per_slot > largest] = np.inf
            total *= batch
        np.minimum(total, largest, out=total)
        g, v = self.squared_gradient, self.variance
        result *= v + total * (g / initial)
        np.divide(total, result, out=result)
        result *= v + g
        return result


def _may_accumulate(limits: Array, slots: Array) -> NDArray[np.bool_]:
    """Whether any candidate of an entry needs more than one pass."""
    initial, largest, _, largest_per_slot = limits
    result: NDArray[np.bool_] = (largest / slots > largest_per_slot * (1.0 + ROUNDING)) | (
        (slots == 1) & (largest > initial)
    )
    return result


def _best_of_block(model: ThroughputModel, entries: _Entries) -> tuple[Array, Array]:
    """Per-slot batch and accumulation steps of each entry's best candidate: ``best_plan``, (grid points, entries)."""
    initial, largest, smallest_per_slot, largest_per_slot = entries.limits
    slots = entries.slots.astype(np.float64)
    smallest = np.maximum(initial, smallest_per_slot * slots)
    per_slot = np.log(np.maximum(largest / smallest, 1.0)) * _GRID
    np.exp(per_slot, out=per_slot)
    per_slot *= smallest / slots
    accumulation = None
    if np.any(_may_accumulate(entries.limits, slots)):
        accumulation = per_slot * (1.0 / largest_per_slot)
        accumulation -= ROUNDING
        np.ceil(accumulation, out=accumulation)
        accumulation -= 1.0
        alone = np.flatnonzero(slots == 1)
        if alone.size:
            above_initial = per_slot[:, alone] > initial[alone] * (1.0 + ROUNDING)
            accumulation[:, alone] = np.maximum(accumulation[:, alone], above_initial)
        per_slot /= accumulation + 1.0
    batch = np.subtract(per_slot, ROUNDING, out=per_slot)
    np.ceil(batch, out=batch)
    np.maximum(batch, smallest_per_slot, out=batch)
    np.minimum(batch, largest_per_slot, out=batch)
    best = np.argmax(entries.goodput(model, batch, accumulation), axis=0)
    entry = np.arange(len(slots))
    steps = np.zeros(len(slots)) if accumulation is None else accumulation[best, entry]
    return batch[best, entry], steps


_GRID = (np.arange(GRID_POINTS) / (GRID_POINTS - 1))[:, None]


def _correction_factor(batch: Array, known_log_batch: Array, log_factor: Array) -> Array:
    """``Corrections.factor`` for arrays: (..., B) batch sizes, (R, B) corrections (those that are padding are zero)."""
    log_batch = np.log(batch)
    log_batch *= 1.0 / CORRECTION_REACH
    total, weight = np.zeros_like(log_batch), np.zeros_like(log_batch)
    for known, log_correction in zip(known_log_batch * (1.0 / CORRECTION_REACH), log_factor, strict=True):
        near = log_batch - known
        np.abs(near, out=near)
        np.subtract(1.0, near, out=near)
        np.maximum(near, 0.0, out=near)
        weight += near
        near *= log_correction
        total += near
    np.maximum(weight, 1.0, out=weight)
    total /= weight
    return np.exp(total, out=total)
