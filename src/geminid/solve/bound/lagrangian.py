"""The Lagrangian: what all jobs would pay at least for delay and slots, less the prices of all slots.

It is a lower bound on the sum of completion times for any prices that are not negative, and concave in them. After
the last interval slots are free and unlimited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from geminid.solve.bound.problem import Array, Indices, Instance, JobKind

#: Numbers computed on at a time.
BLOCK_ELEMENTS = 1 << 20

#: Intervals after a job's earliest completion that are looked at first; more where that does not settle it.
FIRST_WINDOW = 24


@dataclass(frozen=True, slots=True)
class Prices:
    """A price for a second of a slot of each type (rows) in each interval (columns), by the edges of the intervals."""

    edges_s: Array
    per_slot_s: Array

    @property
    def lengths_s(self) -> Array:
        """How long the intervals are."""
        return np.diff(self.edges_s)

    def all_slots(self, capacity: Array) -> float:
        """What all slots cost at all times."""
        return float((self.per_slot_s * capacity[:, None] * self.lengths_s).sum())


@dataclass(frozen=True, slots=True)
class Priced:
    """The value of the Lagrangian at some prices, and the slot-seconds that the cheapest schedules use."""

    value_s: float
    used_slot_s: Array


def lagrangian(instance: Instance, prices: Prices, levels: Array) -> Priced:
    """The value at these prices. ``levels`` are constant price vectors (rows), the first of them zero.

    They suggest what to charge jobs for work that is left undone: any charges give a bound, good ones a better one.
    """
    value_s = -prices.all_slots(instance.capacity)
    used = np.zeros_like(prices.per_slot_s)
    for index, kind in enumerate(instance.kinds):
        view = _KindAtPrices(kind, prices, kind.multipliers(levels))
        jobs = np.flatnonzero(instance.kind == index)
        for block in _blocks(jobs, BLOCK_ELEMENTS // (len(levels) * FIRST_WINDOW) + 1):
            cheapest = view.cheapest(instance, block)
            value_s += float(cheapest.cost_s.sum())
            used += view.used(instance, block, cheapest)
    return Priced(value_s, used)


def _blocks(jobs: Indices, size: int) -> Iterator[Indices]:
    for first in range(0, len(jobs), size):
        yield jobs[first : first + size]


@dataclass(frozen=True, slots=True)
class _Cheapest:
    """A bound on what every job pays, the charges that prove it (an index), and the completion time it is for."""

    cost_s: Array
    charges: Indices
    completion_s: Array


class _KindAtPrices:
    """Jobs of one kind at given prices, for several charges.

    With charges μ for each phase's work, a job that completes at C pays at least
    C − arrival + Σ μ·work − ∫ max over phases and modes of (μ·rate − rent)⁺ from its first possible work to C.
    Between two edges that is linear in C.
    """

    def __init__(self, kind: JobKind, prices: Prices, charges: Array) -> None:
        self.kind, self.prices = kind, prices
        self.per_size = charges @ kind.shares
        self.patient = np.flatnonzero(charges.max(axis=1) <= 1.0)
        rent = prices.per_slot_s[kind.gpu_type] * kind.slots[:, None]
        self.profit = np.zeros((len(charges), rent.shape[1]))
        self.mode = np.full(self.profit.shape, -1, dtype=np.int64)
        for phase, rates in enumerate(kind.rates):
            useful = np.flatnonzero(rates > 0)
            gains = charges[:, phase, None, None] * rates[None, useful, None] - rent[None, useful]
            best = gains.argmax(axis=1)
            gain = np.take_along_axis(gains, best[:, None], axis=1)[:, 0]
            better = gain > self.profit
            self.profit[better] = gain[better]
            self.mode[better] = useful[best[better]]
        self.earned = np.zeros((len(charges), rent.shape[1] + 1))
        np.cumsum(self.profit * prices.lengths_s, axis=1, out=self.earned[:, 1:])

    def _earned_until(self, time_s: Array, interval: Indices) -> Array:
        return self.earned[:, interval] + self.profit[:, interval] * (time_s - self.prices.edges_s[interval])

    def cheapest(self, instance: Instance, jobs: Indices) -> _Cheapest:
        """A lower bound on what each of these jobs pays, whenever it completes."""
        edges, last = self.prices.edges_s, len(self.prices.edges_s) - 2
        arrival_s, alone_s = instance.arrival_s[jobs], instance.alone_s[jobs]
        begin_s = np.minimum(arrival_s + instance.start_up_s[jobs], edges[-1])
        earliest_s = arrival_s + alone_s
        at = np.clip(np.searchsorted(edges, begin_s, side="right") - 1, 0, last)
        base = self.per_size[:, None] * instance.isolated_s[jobs] - arrival_s + self._earned_until(begin_s, at)
        # After the last edge slots are free: with charges of at most 1 a later completion is never cheaper.
        tail = edges[-1] + base[self.patient] - self.earned[self.patient, -1:]
        cost_s = np.maximum(tail.max(axis=0), alone_s)
        charges, completion_s = self.patient[tail.argmax(axis=0)], np.full(len(jobs), edges[-1])
        first = np.clip(np.searchsorted(edges, earliest_s, side="right") - 1, 0, last)
        open_jobs, window = np.flatnonzero(earliest_s < edges[-1]), FIRST_WINDOW
        while len(open_jobs):
            for block in _blocks(open_jobs, BLOCK_ELEMENTS // (len(base) * window) + 1):
                found = self._within(base[:, block], earliest_s[block], first[block], window)
                cheaper = found.cost_s < cost_s[block]
                at_block = block[cheaper]
                cost_s[at_block], charges[at_block] = found.cost_s[cheaper], found.charges[cheaper]
                completion_s[at_block] = found.completion_s[cheaper]
            # A job that completes after the window pays for that delay alone.
            beyond = first[open_jobs] + window
            seen_s = edges[np.minimum(beyond, last + 1)] - arrival_s[open_jobs]
            open_jobs = open_jobs[(beyond <= last) & (seen_s < cost_s[open_jobs])]
            window *= 4
        return _Cheapest(np.maximum(cost_s, alone_s), charges, completion_s)

    def _within(self, base: Array, earliest_s: Array, first: Indices, window: int) -> _Cheapest:
        """The least cost of completions in so many intervals from the first possible one on."""
        edges, last = self.prices.edges_s, len(self.prices.edges_s) - 2
        jobs = np.arange(len(first))
        intervals = first[:, None] + np.arange(window)
        outside = intervals > last
        intervals = np.minimum(intervals, last)
        starts_s = np.maximum(edges[intervals], earliest_s[:, None])
        ends_s = edges[intervals + 1]
        profit = self.profit[:, intervals]
        at_end = ends_s - self.earned[:, intervals + 1] + base[:, :, None]
        at_start = at_end - (ends_s - starts_s) * (1.0 - profit)
        lower = np.minimum(at_start, at_end)
        charges = lower.argmax(axis=0)
        cost = np.take_along_axis(lower, charges[None], axis=0)[0]
        cost[outside] = np.inf
        best = cost.argmin(axis=1)
        chosen = charges[jobs, best]
        at_the_start = at_start[chosen, jobs, best] <= at_end[chosen, jobs, best]
        completion_s = np.where(at_the_start, starts_s[jobs, best], ends_s[jobs, best])
        return _Cheapest(cost[jobs, best], chosen, completion_s)

    def used(self, instance: Instance, jobs: Indices, cheapest: _Cheapest) -> Array:
        """Slot-seconds by type and interval in these jobs' cheapest schedules: a direction in which to move prices."""
        edges = self.prices.edges_s
        begin_s = instance.arrival_s[jobs] + instance.start_up_s[jobs]
        worked_s = np.minimum(cheapest.completion_s[:, None], edges[1:]) - np.maximum(begin_s[:, None], edges[:-1])
        by_charges = np.zeros(self.profit.shape)
        np.add.at(by_charges, cheapest.charges, np.maximum(worked_s, 0.0))
        slot_s = by_charges * np.where(self.mode >= 0, self.kind.slots[self.mode], 0.0)
        types = self.kind.gpu_type[self.mode]
        used: Array = np.array([(slot_s * (types == index)).sum(axis=0) for index in range(len(instance.capacity))])
        return used
