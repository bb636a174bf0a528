"""The dual of choosing one configuration per job: what prices of slots bound any decision by, and the least such bound.

λ·capacity + Σ_j max(0, max_c U_jc − λ·slots_c) is a convex function of the prices λ whose gradient is what is left of
each capacity. It has kinks, so we follow the minimum of a smoothed one (the soft maximum at a temperature that falls)
with Newton steps: the Hessian is as small as the number of prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminid.solve.choices import Array, Choices, IntArray, Prices

#: The temperature falls from this share of a job's mean best utility …
FIRST_TEMPERATURE = 0.2
#: … (or from this one where the prices are known from the last decision) …
WARM_TEMPERATURE = 0.005
#: … by this factor at a time: larger ones save steps but lose the path along which Newton converges in one or two.
COOLING = 0.2
#: … until the linear program is solved to a tenth of the tolerance, cooling further does not lower the dual, or this
#: many steps were made,
MOST_STEPS = 60
#: at most this many (and their shortened repetitions) at one temperature: a colder one corrects the rest.
STEPS_PER_TEMPERATURE = 3

#: Multiple of the median job's best value above which a job does not make prices be found more exactly.
MOST_UNUSUAL = 30.0

#: What is worth so much less than the best, in temperatures, has no share; any less would have a denormal one, with
#: which processors take twenty times as long. (A typed constant: a wider one would make results wider.)
LEAST_EXPONENT = np.float32(-80.0)

#: Utilities computed on at a time.
BLOCK_ELEMENTS = 1 << 17

#: Multiplications of a matrix product up to which OpenBLAS does it on one core.
MOST_ON_ONE_CORE = 1 << 18


@dataclass(frozen=True, slots=True)
class Dual:
    """The smoothed dual: (jobs, configurations) utilities, and what a configuration takes of every resource."""

    utility: NDArray[Any]
    slots: NDArray[Any]
    resource: IntArray
    takes: NDArray[Any]
    group: IntArray | None
    group_use: NDArray[Any]
    capacity: Array
    scale: float
    contested: float

    @classmethod
    def of(cls, problem: Choices, sample: IntArray | None = None) -> Dual:
        """The dual of a problem, or of a sample of its jobs with as large a share of the capacity."""
        rows = problem.utility if sample is None else problem.utility[sample]
        group = problem.group if sample is None or problem.group is None else problem.group[sample]
        share = len(rows) / len(problem.utility)
        # Single precision is enough to find prices, and twice as fast; the bound that counts is computed in double.
        precision = np.float32 if rows.size > 1 << 14 else np.float64
        best = rows.max(axis=1)
        best = best[best > 0]
        # A few jobs may count far more than all others together; what is decided among the others must not drown in it.
        usual = np.minimum(best, MOST_UNUSUAL * np.median(best)) if len(best) else best
        scale = float(usual.mean()) if len(best) else 0.0
        utility = np.maximum(rows, -1e4 * max(scale, 1e-12)).astype(precision)
        types = len(problem.capacity)
        takes = np.zeros((len(problem.slots), 2 * types), dtype=precision)
        columns = np.arange(len(problem.slots))
        takes[columns, problem.resource] = problem.slots
        takes[columns, types + problem.resource] = problem.slots**2
        capacity = share * problem.limits
        return cls(
            utility,
            problem.slots.astype(precision),
            problem.resource,
            takes,
            group if problem.groups else None,
            problem.use.astype(precision),
            capacity,
            scale,
            float(usual.sum()),
        )

    def evaluate(self, prices: Array, temperature: float) -> Evaluated:
        """The smoothed dual at these prices, with gradient and Hessian, and the true one.

        Blocks of jobs are small enough to stay in the processor's cache from one pass to the next.
        """
        types, count = self.takes.shape[1] // 2, len(prices)
        cost = (prices[self.resource] * self.slots).astype(self.utility.dtype)
        inverse = self.utility.dtype.type(1.0 / temperature)
        group_prices = np.append(prices[types:], 0.0).astype(self.utility.dtype)
        used, hessian, sums = np.zeros(count), np.zeros((count, count)), np.zeros(3)
        size = max(1, BLOCK_ELEMENTS // self.utility.shape[1])
        for begin in range(0, len(self.utility), size):
            block = slice(begin, begin + size)
            rest = self.utility[block] - cost
            if self.group is not None:
                rest -= group_prices[self.group[block], None] * self.group_use
            best = np.maximum(rest.max(axis=1), 0.0)
            rest -= best[:, None]
            rest *= inverse
            best *= inverse
            np.maximum(rest, LEAST_EXPONENT, out=rest)
            shares = np.exp(rest)
            nothing = np.exp(-np.minimum(best, -LEAST_EXPONENT))
            total = shares.sum(axis=1) + nothing
            shares /= total[:, None]
            spread = np.vdot(shares, rest) - np.vdot(nothing / total, best)
            moments = _product(shares, self.takes)
            demand = moments[:, :types]
            used[:types] += demand.sum(axis=0)
            varies = -(demand.T @ demand)
            varies.flat[:: types + 1] += moments[:, types:].sum(axis=0)
            hessian[:types, :types] += varies
            if self.group is not None:
                self._add_groups(self.group[block], shares, demand, used, hessian)
            sums += best.sum(dtype=np.float64), np.log(total).sum(dtype=np.float64), spread
        paid = float(prices @ self.capacity)
        bound = paid + temperature * float(sums[0])
        slack = self.capacity - used
        lost = -temperature * float(sums[2]) + abs(float(prices @ slack))
        return Evaluated(bound + temperature * float(sums[1]), bound, lost, slack, hessian / temperature)

    def _add_groups(
        self, group: IntArray, shares: NDArray[Any], demand: NDArray[Any], used: Array, hessian: Array
    ) -> None:
        """Add what the jobs of a block use of their groups' limits, and how that varies."""
        types, member = demand.shape[1], group >= 0
        groups, group, shares = len(used) - types, group[member], shares[member]
        use = self.group_use
        mean, square = shares @ use, shares @ use**2
        used[types:] += np.bincount(group, mean, groups)
        diagonal = np.arange(types, types + groups)
        hessian[diagonal, diagonal] += np.bincount(group, square - mean**2, groups)
        for t in range(types):
            both = shares @ (use * self.takes[:, t])
            cross = np.bincount(group, both - mean * demand[member, t], groups)
            hessian[t, types:] += cross
            hessian[types:, t] += cross


def _product(rows: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """The matrix product, on this core: linear-algebra libraries give larger ones to several, and wait for them."""
    size = max(1, MOST_ON_ONE_CORE // matrix.size)
    if len(rows) <= size:
        return np.asarray(rows @ matrix)
    result = np.empty((len(rows), matrix.shape[1]), dtype=rows.dtype)
    for begin in range(0, len(rows), size):
        np.matmul(rows[begin : begin + size], matrix, out=result[begin : begin + size])
    return result


@dataclass(frozen=True, slots=True)
class Evaluated:
    """``value`` is of the smoothed dual, ``bound`` of the true one.

    ``lost`` is what the soft choices lose against it, and what the capacity that they miss is worth: with their signs,
    the two would cancel where prices are far off.
    """

    value: float
    bound: float
    lost: float
    slack: Array
    hessian: Array


def descend(dual: Dual, start: Prices | None, warm_temperature: float, tolerance: float) -> tuple[Prices, int, float]:
    """Minimise the dual by Newton steps while the temperature falls; also how many, and where it ended."""
    types, count = dual.takes.shape[1] // 2, len(dual.capacity)
    if dual.scale == 0.0:
        return Prices(np.zeros(types), np.zeros(count - types)), 0, warm_temperature
    warm = start is not None and len(start.types) == types and len(start.groups) == count - types
    if warm and start is not None:
        prices, temperature = start.all, warm_temperature * dual.scale
    else:
        typical = dual.scale * len(dual.utility) / max(float(dual.capacity[:types].sum()), 1.0)
        prices = np.zeros(count)
        prices[:types] = min(typical, dual.scale) / 2.0
        temperature = FIRST_TEMPERATURE * dual.scale
    best, lowest, done, steps = prices, np.inf, False, 0
    while not done and steps < MOST_STEPS and temperature > 1e-9 * dual.scale:
        here = dual.evaluate(prices, temperature)
        steps += 1
        for _ in range(STEPS_PER_TEMPERATURE):
            before = here.bound
            prices, here, tried = _newton_step(dual, prices, here, temperature)
            steps += tried
            if here.bound < lowest:
                best, lowest = prices, here.bound
            enough = tolerance * min(here.bound, dual.contested)
            settled = abs(before - here.bound) <= 0.3 * enough
            unsettled = float(np.abs(_projected(prices, here.slack)) @ np.maximum(prices, 1e-3 * dual.scale))
            # Little is lost, too, where prices are so low, or so high, that everybody has decided: that is no minimum.
            near = here.lost <= 0.1 * enough and (settled or unsettled <= enough)
            done = near or (settled and here.lost <= 10.0 * enough)
            if done or unsettled <= 0.2 * here.lost or not tried:
                break
        if not done:
            temperature *= COOLING
    return Prices(best[:types], best[types:]), steps, temperature / dual.scale


def _projected(prices: Array, slack: Array) -> Array:
    """The gradient along directions in which prices may go: not below zero."""
    return np.where((prices <= 0.0) & (slack > 0.0), 0.0, slack)


def _newton_step(dual: Dual, prices: Array, here: Evaluated, temperature: float) -> tuple[Array, Evaluated, int]:
    """One step of the smoothed dual with prices kept above zero, shortened until the dual falls."""
    gradient = _projected(prices, here.slack)
    free = gradient != 0.0
    if not free.any():
        return prices, here, 0
    hessian = here.hessian[np.ix_(free, free)]
    # Where nobody is undecided the Hessian vanishes; this keeps a price from moving by more than its own size.
    floor = np.abs(gradient[free]) / np.maximum(prices[free], 1e-2 * dual.scale)
    step = np.zeros(len(prices))
    damped = hessian + np.diag(1e-3 * np.diag(hessian) + 0.05 * floor)
    try:
        step[free] = -np.linalg.solve(damped, gradient[free])
    except np.linalg.LinAlgError:  # singular for once
        step[free] = -np.linalg.lstsq(damped, gradient[free])[0]
    noise = 1e-6 * min(abs(here.value), dual.contested) if dual.utility.dtype == np.float32 else 0.0
    length, tried = 1.0, 0
    while True:
        tried += 1
        there = np.maximum(prices + length * step, 0.0)
        found = dual.evaluate(there, temperature)
        if found.value <= here.value - 1e-4 * float(gradient @ (prices - there)) + noise:
            return there, found, tried
        if tried >= 6:
            return prices, here, tried
        length *= 0.3
