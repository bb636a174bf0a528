"""Prices that make the Lagrangian large: those of a coarse linear program, improved step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csc_array

from geminid.solve.bound.lagrangian import Prices, lagrangian
from geminid.solve.bound.problem import Array, Indices, Instance, JobKind
from geminid.solve.lp import Allowance, LinearProgram

#: Intervals of the linear program, and of the prices that are found in the end.
COARSE_INTERVALS = 64
FINE_INTERVALS = 400

#: The part of the fine intervals that begin where jobs arrive; the others are equally long.
AT_ARRIVALS = 0.6

#: Modes of each GPU type in the linear program.
COARSE_MODES = 6

#: Seconds that the linear program may take; without its prices the search begins from none.
COARSE_S = 10.0

#: Steps of the search, and without progress after which it ends.
STEPS = 160
PATIENCE = 40

#: The first step, relative to the mean price, and how much of the last direction and of past squares is kept (Adam).
FIRST_STEP = 0.15
KEEP_DIRECTION, KEEP_SQUARES = 0.8, 0.98

#: An excess of demand counts at most this many times the capacity.
MOST_EXCESS = 4.0

#: Price levels from which jobs' charges are taken: during the search, and for the final value.
SEARCH_LEVELS, FINAL_LEVELS = 24, 64

#: Levels lie between these parts of the highest price.
LOWEST_LEVEL, HIGHEST_LEVEL = 0.01, 1.2


def good_prices(instance: Instance, horizon_s: float, steps: int = STEPS) -> Prices:
    """The best prices found, on intervals up to a horizon; slots are free after it."""
    edges_s = _fine_edges(instance, horizon_s)
    prices = _coarse_prices(instance, horizon_s, edges_s)
    capacity_s = instance.capacity[:, None] * np.diff(edges_s)
    best, best_value_s, best_step = prices, -np.inf, 0
    direction, squares = np.zeros_like(prices), np.zeros_like(prices)
    size = FIRST_STEP * max(float(prices.mean()), 1.0 / float(instance.capacity.sum()) / len(instance.kind))
    for step in range(steps):
        found = lagrangian(instance, Prices(edges_s, prices), levels(prices, SEARCH_LEVELS))
        if found.value_s > best_value_s:
            if found.value_s > best_value_s * (1.0 + 1e-4):
                best_step = step
            best, best_value_s = prices, found.value_s
        if step - best_step > PATIENCE:
            break
        excess = np.minimum(found.used_slot_s / np.maximum(capacity_s, 1e-9) - 1.0, MOST_EXCESS)
        direction = KEEP_DIRECTION * direction + (1.0 - KEEP_DIRECTION) * excess
        squares = KEEP_SQUARES * squares + (1.0 - KEEP_SQUARES) * excess**2
        mean = direction / (1.0 - KEEP_DIRECTION ** (step + 1))
        spread = np.sqrt(squares / (1.0 - KEEP_SQUARES ** (step + 1)) + 0.01)
        prices = np.maximum(prices + size * (1.0 - step / steps) * mean / spread, 0.0)
    return Prices(edges_s, best)


def levels(prices: Array, count: int) -> Array:
    """Constant prices of every magnitude that occurs, in the usual proportion of the types; the first is zero."""
    usual = prices.mean(axis=1)
    if usual.max(initial=0.0) <= 0.0:
        return np.zeros((1, len(prices)))
    highest = (prices / np.maximum(usual, 1e-3 * usual.max())[:, None]).max()
    heights = np.concatenate([[0.0], highest * np.geomspace(LOWEST_LEVEL, HIGHEST_LEVEL, count)])
    result: Array = heights[:, None] * usual
    return result


def final_levels(prices: Array) -> Array:
    """The same, more finely, and the prices of some intervals themselves."""
    chosen = np.unique(np.linspace(0, prices.shape[1] - 1, FINAL_LEVELS).astype(int))
    return np.concatenate([levels(prices, FINAL_LEVELS), prices[:, chosen].T])


def _fine_edges(instance: Instance, horizon_s: float) -> Array:
    many = int(AT_ARRIVALS * FINE_INTERVALS)
    arrivals = np.unique(instance.arrival_s + instance.start_up_s)
    arrivals = np.quantile(arrivals, np.linspace(0.0, 1.0, many)) if len(arrivals) > many else arrivals
    even = np.linspace(0.0, horizon_s, FINE_INTERVALS - many + 1)
    edges = np.unique(np.concatenate([[0.0], arrivals[arrivals < horizon_s], even]))
    keep = np.concatenate([[True], np.diff(edges) > 1e-4 * horizon_s])
    kept: Array = edges[keep]
    return kept


def _coarse_prices(instance: Instance, horizon_s: float, edges_s: Array) -> Array:
    """Prices of a linear program in which jobs of a kind that arrive in one interval are one, on the fine intervals."""
    coarse = np.linspace(0.0, horizon_s, COARSE_INTERVALS + 1)
    duals = _Coarse(instance, coarse).prices()
    middle = 0.5 * (edges_s[1:] + edges_s[:-1])
    return duals[:, np.clip(np.searchsorted(coarse, middle) - 1, 0, COARSE_INTERVALS - 1)]


class _Coarse:
    """Minimise the sum of mean busy times: seconds that groups of jobs spend in each mode in each interval."""

    def __init__(self, instance: Instance, edges_s: Array) -> None:
        self.instance, self.edges_s = instance, edges_s
        self.middles_s, self.lengths_s = 0.5 * (edges_s[1:] + edges_s[:-1]), np.diff(edges_s)

    def prices(self) -> Array:
        """What one more second of a slot would save, by type and interval; zero if the program could not be solved."""
        capacity_s = (self.instance.capacity[:, None] * self.lengths_s).ravel()
        parts = list(self._groups())
        sizes = [len(part.cost) for part in parts]
        columns = np.arange(sum(sizes))
        group = np.repeat(np.arange(len(parts)), sizes)
        first_time_row = len(capacity_s) + len(parts)
        starts = first_time_row + np.concatenate([[0], np.cumsum([len(part.available_s) for part in parts])[:-1]])
        time_row = np.concatenate([start + part.interval for start, part in zip(starts, parts, strict=True)])
        matrix = coo_array(
            (
                np.concatenate(
                    [*(part.slots for part in parts), *(part.rate for part in parts), np.ones(len(columns))]
                ),
                (
                    np.concatenate([*(part.slot_row for part in parts), len(capacity_s) + group, time_row]),
                    np.tile(columns, 3),
                ),
            ),
            shape=(first_time_row + sum(len(part.available_s) for part in parts), len(columns)),
        )
        work_s = np.array([part.work_s for part in parts])
        upper = np.concatenate([capacity_s, work_s, *(part.available_s for part in parts)])
        lower = np.full(len(upper), -np.inf)
        lower[len(capacity_s) : first_time_row] = work_s
        gain = -np.concatenate([part.cost for part in parts])
        program = LinearProgram(gain, csc_array(matrix), lower, upper, within=Allowance(COARSE_S))
        optimum = program.solve()
        shape = len(self.instance.capacity), len(self.lengths_s)
        if optimum is None:
            return np.zeros(shape)
        return np.maximum(optimum.row_duals[: len(capacity_s)], 0.0).reshape(shape)

    def _groups(self) -> Iterator[_Group]:
        """Jobs of one kind that can begin in one interval; after the last one there is as much time as they like."""
        intervals = len(self.lengths_s)
        begin_s = self.instance.arrival_s + self.instance.start_up_s
        arrived = np.clip(np.searchsorted(self.edges_s, begin_s, side="right") - 1, 0, intervals - 1)
        for index, kind in enumerate(self.instance.kinds):
            modes, rates = _few_modes(kind)
            for bucket in range(intervals):
                jobs = np.flatnonzero((self.instance.kind == index) & (arrived == bucket))
                if not len(jobs):
                    continue
                work_s = float(self.instance.isolated_s[jobs].sum())
                interval = np.repeat(np.arange(intervals - bucket), len(modes))
                mode = np.tile(np.arange(len(modes)), intervals - bucket)
                overflow = self.edges_s[-1] + work_s / len(jobs)
                yield _Group(
                    cost=np.append(self.middles_s[bucket + interval] * rates[mode], overflow) * len(jobs) / work_s,
                    rate=np.append(rates[mode], 1.0),
                    slots=np.append(kind.slots[modes][mode], 0.0),
                    slot_row=np.append(kind.gpu_type[modes][mode] * intervals + bucket + interval, 0),
                    interval=np.append(interval, intervals - bucket),
                    work_s=work_s,
                    available_s=np.append(len(jobs) * self.lengths_s[bucket:], np.inf),
                )


@dataclass(frozen=True, slots=True)
class _Group:
    """Columns of the linear program for a group of jobs, and how much time all of them have in each interval."""

    cost: Array
    rate: Array
    slots: Array
    slot_row: Indices
    interval: Indices
    work_s: float
    available_s: Array


def _few_modes(kind: JobKind) -> tuple[Indices, Array]:
    """Some modes of each GPU type, from the smallest to the fastest, with their mean rates over all phases."""
    with np.errstate(divide="ignore"):
        rates = 1.0 / (kind.shares @ (1.0 / kind.rates))
    chosen: list[int] = []
    for gpu_type in np.unique(kind.gpu_type):
        of_type = np.flatnonzero((kind.gpu_type == gpu_type) & (rates > 0))
        of_type = of_type[np.argsort(kind.slots[of_type])]
        if len(of_type):
            picked = np.geomspace(1, len(of_type), COARSE_MODES).round().astype(int) - 1
            chosen += of_type[np.unique(picked)].tolist()
    modes = np.array(chosen, dtype=np.int64)
    return modes, rates[modes]
