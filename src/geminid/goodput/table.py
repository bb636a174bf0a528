"""Goodput of every job on every configuration, each at its best batch plan.

This is what policies read. It is the definition of ``batchplan.py`` computed for thousands of jobs × dozens of
configurations × fifty batch sizes with numpy, in blocks that stay in the processor's cache, and recomputed only for
the jobs whose model has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    def in_single(self) -> _Columns:
        """The same in single precision."""
        vectors = (self.nodes, self.slots, self.busiest, self.slowdown)
        rounded: list[Any] = [vector.astype(np.float32) for vector in vectors]
        return _Columns(self.keys, self.key_index, *rounded)


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

    def in_single(self) -> _Models:
        """The same in single precision, but for the limits: rounding batch sizes needs all digits.

        Absurd reports make for fits beyond its range, which are as absurd at its end.
        """
        rounded = {name: getattr(self, name).clip(-_LARGEST, _LARGEST).astype(np.float32) for name in _ROUNDED}
        return replace(self, **rounded)


_LARGEST = float(np.finfo(np.float32).max)

_ROUNDED = ("parameters", "squared_gradient", "variance", "correction_log_batch", "correction_log")


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
        best_batch, passes = np.empty(len(fit)), np.empty(len(fit))
        rounded_models, rounded_cols = models.in_single(), cols.in_single()
        for block in _blocks(len(fit), BLOCK_ELEMENTS // GRID_POINTS):
            entries = _Entries.of(rounded_models, fit[block], rounded_cols, column[block])
            best_batch[block], passes[block] = _best_of_block(MODELS[name], entries)
        for block in _blocks(len(fit), BLOCK_ELEMENTS):
            entries = _Entries.of(models, fit[block], cols, column[block])
            reached = entries.goodput(MODELS[name], best_batch[block], passes[block])
            where = (models.job[fit[block]], column[block])
            goodput[where] = reached
            batch[where] = best_batch[block] * (reached > 0)
            steps[where] = (passes[block] - 1) * (reached > 0)
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
_SIZES = attrgetter("corrections.batch_sizes")
_FACTORS = attrgetter("corrections.log_factors")


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
    """A block of (fit, configuration) pairs as vectors over entries, in single or double precision (not the limits)."""

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
    def of(cls, models: _Models, fit: NDArray[np.intp], cols: _Columns, column: NDArray[np.intp]) -> _Entries:
        by_fit = (
            models.limits,
            models.parameters,
            models.squared_gradient,
            models.variance,
            models.correction_log_batch,
            models.correction_log,
        )
        by_column = (cols.nodes, cols.slots, cols.busiest, cols.slowdown)
        return cls(*(array[..., fit] for array in by_fit), *(array[column] for array in by_column))

    def relative_goodput(self, model: ThroughputModel, batch: Array, passes: Array | None) -> Array:
        """Throughput × efficiency of each entry (last axis) at these plans, up to a factor of the entry's own.

        Zero where a plan breaks the limits. ``passes`` is one more than the accumulation steps, None for one.
        """
        precision = self.slots.dtype
        initial, largest, smallest_per_slot, _ = self.limits.astype(precision)
        batch = batch.astype(precision)
        log_factor: Array | float = 0.0
        if self.correction_log.any():
            log_factor = _log_correction(batch, self.correction_log_batch, self.correction_log)
        shape = Shape(self.nodes, self.slots, batch, self.busiest, self.slowdown)
        parameters = np.moveaxis(self.parameters, 0, -1)
        if passes is None:
            result = model.step_s(parameters, shape, log_factor)
            total = np.multiply(batch, self.slots, out=batch)
        else:
            times = model.step_times(parameters, shape, log_factor)
            result = times.step_s
            total = passes.astype(precision)
            result += (total - 1.0) * times.accumulation_s
            total *= self.slots
            result[total * smallest_per_slot > largest] = np.inf
            total *= batch
        np.minimum(total, largest, out=total)
        worth = total * (self.squared_gradient / initial)
        worth += self.variance
        result *= worth
        return np.divide(total, result, out=result)

    def goodput(self, model: ThroughputModel, batch: Array, passes: Array) -> Array:
        """Throughput × efficiency of each entry at these plans; zero where a plan breaks the limits."""
        return self.relative_goodput(model, batch, passes) * (self.squared_gradient + self.variance)


def _may_accumulate(limits: Array, slots: Array) -> NDArray[np.bool_]:
    """Whether any candidate of an entry needs more than one pass."""
    initial, largest, _, largest_per_slot = limits
    result: NDArray[np.bool_] = (largest / slots > largest_per_slot * (1.0 + ROUNDING)) | (
        (slots == 1) & (largest > initial)
    )
    return result


def _best_of_block(model: ThroughputModel, entries: _Entries) -> tuple[Array, Array]:
    """Per-slot batch and passes of each entry's best candidate: ``best_plan``, (grid points, entries)."""
    initial, largest, smallest_per_slot, largest_per_slot = entries.limits
    slots = entries.slots.astype(np.float64)
    smallest = np.maximum(initial, smallest_per_slot * slots)
    per_slot = _geometric(smallest / slots, np.maximum(largest / smallest, 1.0))
    passes = None
    if np.any(_may_accumulate(entries.limits, slots)):
        passes = per_slot * (1.0 / largest_per_slot)
        passes -= ROUNDING
        np.ceil(passes, out=passes)
        alone = np.flatnonzero(slots == 1)
        if alone.size:
            above_initial = per_slot[:, alone] > initial[alone] * (1.0 + ROUNDING)
            passes[:, alone] = np.maximum(passes[:, alone], 1.0 + above_initial)
        per_slot /= passes
    batch = np.subtract(per_slot, ROUNDING, out=per_slot)
    np.ceil(batch, out=batch)
    np.maximum(batch, smallest_per_slot, out=batch)
    np.minimum(batch, largest_per_slot, out=batch)
    best = np.argmax(entries.relative_goodput(model, batch, passes), axis=0)
    entry = np.arange(len(slots))
    return batch[best, entry], np.ones(len(slots)) if passes is None else passes[best, entry]


def _geometric(first: Array, ratio: Array) -> Array:
    """Grids from ``first`` to ``first * ratio``, (grid points, entries), by doubling the part that is there."""
    grid = np.empty((GRID_POINTS, len(first)))
    grid[0] = first
    factor, done = ratio ** (1.0 / (GRID_POINTS - 1)), 1
    while done < GRID_POINTS:
        further = min(done, GRID_POINTS - done)
        np.multiply(grid[:further], factor, out=grid[done : done + further])
        factor = factor * factor
        done += further
    return grid


def _log_correction(batch: Array, known_log_batch: Array, log_factor: Array) -> Array:
    """``Corrections.log_factor`` for arrays: (..., B) batch sizes, (R, B) corrections, zero where padded."""
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
    return total
