"""The largest sum of concave values of blocks, by the Newton steps of ``blocks.py``, for several sets at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from geminid.solve.blocks import (
    ACCEPTABLE,
    DAMPING,
    MOST_STEPS,
    PRECISION,
    Array,
    Blocks,
    Mask,
    Newton,
    Point,
    Space,
    Step,
    longest,
)
from geminid.solve.lp import Allowance

#: Most entries of the arrays of sets that are solved together.
_MOST_ENTRIES = 1 << 17


class Value(Protocol):
    """What throughputs are worth: a concave function of each."""

    def at(self, throughput: Array) -> Array:
        """The value, for arrays whose last axis is the blocks."""

    def derivatives(self, throughput: Array) -> tuple[Array, Array]:
        """First and second derivatives, for arrays whose last axis is the blocks."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Throughputs at the largest sum, and what the slots of each block are worth to the others there: sets × blocks.

    Rows are NaN where it did not converge, for which there is ``tangents.py``, or there was no time for them.
    """

    throughput: Array
    worth: Array


def largest_sum(blocks: Blocks, value: Value, present: Mask, within: Allowance | None = None) -> Sums:
    """The largest sum of values, one row for each row of ``present`` (sets × blocks)."""
    sets = max(1, _MOST_ENTRIES // max(1, blocks.rates.size))
    result = Sums(np.full(present.shape, np.nan), np.full(present.shape, np.nan))
    with np.errstate(all="ignore"):
        for i in range(0, len(present), sets):
            if within is not None and within.late:
                break
            part = slice(i, i + sets)
            result.throughput[part], result.worth[part] = _largest_sum(blocks, value, present[part], within)
    return result


def _largest_sum(blocks: Blocks, value: Value, present: Mask, within: Allowance | None) -> tuple[Array, Array]:
    space = Space(blocks, present)
    x = space.start()
    counted = space.rate.max(axis=1) > 0
    weight = np.where(counted, blocks.count, 0.0)
    first, _ = value.derivatives(space.made(x))
    worth = (weight * first * space.made(x)).sum(axis=1)
    point = space.point(x, worth / space.products)
    scale = np.maximum(1.0, weight.sum(axis=1))
    nothing = np.zeros(len(present))
    lowest, best, done = np.full(len(present), np.inf), space.made(x), nothing > 0
    worth_of = np.zeros_like(best)
    for _ in range(MOST_STEPS):
        made = space.made(point.x)
        first, second = value.derivatives(np.where(counted, made, 1.0))
        first, beta = np.where(counted, weight * first, 0.0), np.where(counted, -weight * second, 0.0)
        off_x = np.where(space.usable, space.slope(point) - first[:, None] * space.rate, 0.0)
        gap = point.gap()
        error = gap / scale + np.abs(off_x * point.x).sum(axis=(1, 2)) / scale + space.beyond(point)
        better = error < lowest
        lowest, best = np.where(better, error, lowest), np.where(better[:, None], made, best)
        worth_of = np.where(better[:, None], blocks.gang * (point.pi[:, :, None] * point.x).sum(axis=1), worth_of)
        done |= (lowest < PRECISION) | ~(error < 1e3 * lowest)
        if done.all() or (within is not None and within.late):
            break
        newton = Newton(space, point, beta, np.zeros_like(beta), np.ones(len(present)))
        pull = np.zeros_like(beta)
        try:
            predictor = newton.step(nothing, None, off_x, pull, nothing)
            length = np.minimum(1.0, _both(point, predictor))
            sigma = (point.after(predictor, length, length).gap() / gap) ** 3
            corrector = newton.step(sigma * gap / space.products, predictor, off_x, pull, nothing)
        except np.linalg.LinAlgError:
            break
        length = np.minimum(1.0, DAMPING * _both(point, corrector))
        moved = point.after(corrector, length, length)
        point = point.unless(done, moved)  # sets that are done wait for the others
    good = (lowest < ACCEPTABLE)[:, None]
    return np.where(good, best, np.nan), np.where(good, worth_of, np.nan)


def _both(point: Point, step: Step) -> Array:
    """How far primal and dual values can go together."""
    return longest(
        len(point.x),
        (point.x, step.x),
        (point.t, step.t),
        (point.c, step.c),
        (point.lam, step.lam),
        (point.tau, step.tau),
        (point.pi, step.pi),
    )
