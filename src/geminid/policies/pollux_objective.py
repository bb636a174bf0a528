"""What Pollux maximises: a power mean of speed-ups, in which changes count less. See ``pollux.py`` for the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminid.solve.genetic import Cells, Space
from geminid.solve.pareto import Array
from geminid.solve.shapes import Costs

IntArray = NDArray[np.int64]

#: Keeps the power mean of jobs without slots finite.
EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class Objective:
    """The two values of a matrix. ``speedup`` is by job, nodes and slots, relative to the fair share.

    ``factor`` is what a job's speed-up counts if its row differs from ``current``; jobs that ``must_move`` cannot keep
    their row, because a node of theirs is gone. ``scale`` makes one node's worth of fair speed-up count as one.
    """

    speedup: Array
    current: IntArray
    factor: Array
    must_move: NDArray[np.bool_]
    capacity: IntArray
    scale: float
    p: float

    def __call__(self, cells: Cells) -> Array:
        """Fitness and utility of every matrix."""
        nodes, slots = cells.per_row(), cells.per_row(cells.slots)
        jobs, most_nodes, most_slots = self.speedup.shape
        offset = np.arange(jobs) * (most_nodes * most_slots)
        speedup = self.speedup.reshape(-1)[offset + nodes * most_slots + slots]
        same = cells.per_row(cells.slots == self.current[cells.job, cells.node])
        stays = (same == nodes) & (same == np.count_nonzero(self.current, axis=1)) & ~self.must_move
        counted = speedup * np.where(stays, self.scale, self.scale * self.factor)
        fitness = power_mean(counted + EPSILON, self.p)
        in_use = (cells.per_column() > 0) @ self.capacity
        return np.stack([fitness, speedup.sum(axis=1) / np.maximum(in_use, 1)], axis=1)

    def costs(self, space: Space) -> Costs:
        """The same fitness as a sum over jobs that is to be minimised."""
        nodes, slots = np.count_nonzero(self.current, axis=1), self.current.sum(axis=1)
        discounted = self.speedup * self.factor[:, None, None]
        staying = cost_of(self.speedup[np.arange(len(slots)), nodes, slots] * self.scale, self.p)
        within = (slots >= space.min_slots) & (slots <= space.max_slots)
        stands = (slots > 0) & ~self.must_move & (within | space.pinned)
        return Costs(
            moving=np.where(discounted > 0, cost_of(discounted * self.scale, self.p), np.inf),
            staying=np.where(stands, staying, np.inf),
            idle=cost_of(np.zeros(len(slots)), self.p),
        )


def power_mean(values: Array, p: float) -> Array:
    """The power mean over the last axis: harmonic for p = −1, geometric for 0, arithmetic for 1."""
    if p == 0:
        return np.asarray(np.exp(np.log(values).mean(axis=-1)))
    powers = 1.0 / values if p == -1 else values**p
    return np.asarray(powers.mean(axis=-1) ** (1.0 / p))


def cost_of(speedup: Array, p: float) -> Array:
    """A job's part in a sum that is least where the power mean is largest."""
    values = speedup + EPSILON
    return np.asarray(-np.log(values) if p == 0 else -np.sign(p) * values**p)


def mean_of_cost(cost: float, p: float) -> float:
    """The power mean that belongs to an average cost."""
    if p == 0:
        return float(np.exp(-cost))
    power = -np.sign(p) * cost
    return float(power ** (1.0 / p)) if power > 0 else float("inf" if p < 0 else 0.0)
