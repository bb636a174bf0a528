"""The price solver: one configuration per job within the slots of every GPU type, with a proof of how good it is.

Given a price per slot of each type, every job picks for itself the configuration that is worth most after paying:
the Lagrangian is separable. What remains is to find the prices, of which there are as many as types (and one per
group of jobs that has a limit of its own). They minimise the dual, λ·capacity + Σ_j max(0, max_c U_jc − λ·slots_c),
a convex function whose gradient is what is left of each capacity.

The dual has kinks, so we follow the minimum of a smoothed one (the soft maximum at a temperature that falls) with
Newton steps: the Hessian is as small as the number of prices. A basic optimum of the linear program splits at most as
many jobs as there are prices, so that taking everybody's best choice is almost feasible and almost optimal: a repair
moves the jobs that lose least off what is over-full, and what is left free is given to whom it helps. Any prices
whatsoever bound the optimum from above, so (dual − primal)/dual is a certificate that needs no trust in the above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from geminid.solve.lp import minimise

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Stands for −∞ in utilities: nobody chooses it, and it can be multiplied by zero.
IMPOSSIBLE = -1e30

#: The temperature falls from this share of a job's mean best utility …
FIRST_TEMPERATURE = 0.2
#: … (or from this one where the prices are known from the last decision) …
WARM_TEMPERATURE = 0.005
#: … by this factor at a time: larger ones save steps but lose the path along which Newton converges in one or two.
COOLING = 0.2
#: … until the linear program is solved to a tenth of the tolerance, cooling further does not lower the dual, or this
#: many steps were made,
MOST_STEPS = 60
#: at most so many (and their shortened repetitions) at one temperature: a colder one will mend what is left.
STEPS_PER_TEMPERATURE = 3

#: Where there are many jobs, the prices of a sample of them, with as large a share of the capacity, are found first:
#: one in eight, but not fewer than leave prices of some use, nor more than any use.
SAMPLE_SHARE, LEAST_SAMPLE, MOST_SAMPLE = 8, 256, 4096

#: With this many slots or more, a certificate above this is not left at that: there it means a search that went wrong,
#: and not that a slot is a large part of the whole.
LARGE_SLOTS, LARGE_GAP = 2000, 1e-3

#: Utilities computed on at a time.
BLOCK_ELEMENTS = 1 << 17

#: Multiplications of a matrix product up to which OpenBLAS does it on one core.
MOST_ON_ONE_CORE = 1 << 18

#: Candidates for free slots that are kept in order between two looks at all of them.
MOST_FILLS = 4096

#: Configurations that may be left open for an integer program to decide.
MOST_LEFT_OPEN = 2000

#: Pairs of changes are tried on what is left to gain if there are at most so many single changes.
MOST_EXCHANGES = 400


@dataclass(frozen=True, slots=True)
class Choices:
    """What is to be decided.

    ``utility`` is jobs × configurations, anything at or below ``IMPOSSIBLE`` (−inf too) where a job cannot use a
    configuration; having none is worth nothing. ``slots`` and ``resource`` say how many slots of which type a
    configuration takes, ``capacity`` how many there are of each type. Where ``group`` is given (an index per job, −1
    for none), the jobs of group g may together take ``group_capacity[g]`` at most, counted by ``group_use`` per
    configuration (its slots, where left out: a quota; its price per hour: a budget).
    """

    utility: Array
    slots: Array
    resource: IntArray
    capacity: Array
    group: IntArray | None = None
    group_capacity: Array | None = None
    group_use: Array | None = None

    @property
    def groups(self) -> int:
        """How many groups have a limit."""
        return 0 if self.group_capacity is None else len(self.group_capacity)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a slot of each type is worth now, and what membership in a group costs per unit of its use on top."""

    types: Array
    groups: Array


@dataclass(frozen=True, slots=True)
class Priced:
    """A feasible decision (a configuration per job, −1 for none), what it is worth, and an upper bound for any."""

    choice: IntArray
    value: float
    bound: float
    prices: Prices
    steps: int

    @property
    def gap(self) -> float:
        """At most this share of the optimum is lost."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


def solve(
    problem: Choices, *, start: Prices | None = None, tolerance: float = 3e-4, finish_above: float | None = 0.01
) -> Priced:
    """Find prices, and a feasible decision that is optimal up to the certificate it comes with.

    ``start`` are prices of an earlier, similar problem. ``tolerance`` is how exactly the prices are found, relative to
    the optimum; the certificate also holds what rounding lost. Where a handful of jobs leaves a certificate above
    ``finish_above`` (None: never mind), an integer program of what is still open closes it.
    """
    jobs, configurations = problem.utility.shape
    if not jobs or not configurations:
        nobody = np.full(jobs, -1, dtype=np.intp)
        return Priced(nobody, 0.0, 0.0, Prices(np.zeros(len(problem.capacity)), np.zeros(problem.groups)), 0)
    steps, temperature = 0, WARM_TEMPERATURE
    size = min(max(jobs // SAMPLE_SHARE, LEAST_SAMPLE), MOST_SAMPLE)
    if start is None and jobs > 2 * size:
        sample = np.random.default_rng(0).choice(jobs, size, replace=False)
        # The dual of a sample is off by about one part in its size: no use in finding its minimum more exactly.
        enough = max(tolerance, 1.0 / size)
        start, steps, temperature = _descend(_Dual.of(problem, sample), None, temperature, enough)
    dual = _Dual.of(problem)
    prices, more, _ = _descend(dual, start, temperature, tolerance)
    found = _round(problem, prices, steps + more, tolerance, finish_above)
    if found.gap <= LARGE_GAP or float(problem.capacity.sum()) < LARGE_SLOTS:
        return found
    # Now and then the descent settles where it seems flat, or rounding was unlucky.
    prices, more, _ = _descend(dual, found.prices, temperature, 0.1 * tolerance)
    again = _round(problem, prices, found.steps + more, 0.1 * tolerance, finish_above, thorough=True)
    best = again if again.value > found.value else found
    return replace(best, bound=min(found.bound, again.bound), steps=again.steps)


# --- The dual ---


@dataclass(frozen=True, slots=True)
class _Dual:
    """The smoothed dual: (jobs, configurations) utilities, and what a configuration takes of every resource."""

    utility: NDArray[Any]
    slots: NDArray[Any]
    resource: IntArray
    takes: NDArray[Any]
    group: IntArray | None
    group_use: NDArray[Any]
    capacity: Array
    scale: float

    @classmethod
    def of(cls, problem: Choices, sample: IntArray | None = None) -> _Dual:
        rows = problem.utility if sample is None else problem.utility[sample]
        group = problem.group if sample is None or problem.group is None else problem.group[sample]
        share = len(rows) / len(problem.utility)
        # Single precision is enough to find prices, and twice as fast; the bound that counts is computed in double.
        precision = np.float32 if rows.size > 1 << 16 else np.float64
        best = rows.max(axis=1)
        served = best > 0
        scale = float(best[served].mean()) if served.any() else 0.0
        utility = np.maximum(rows, -1e4 * max(scale, 1e-12)).astype(precision)
        types = len(problem.capacity)
        takes = np.zeros((len(problem.slots), 2 * types), dtype=precision)
        columns = np.arange(len(problem.slots))
        takes[columns, problem.resource] = problem.slots
        takes[columns, types + problem.resource] = problem.slots**2
        capacity = share * np.concatenate([problem.capacity, _group_capacity(problem)])
        return cls(
            utility,
            problem.slots.astype(precision),
            problem.resource,
            takes,
            group if problem.groups else None,
            _group_use(problem).astype(precision),
            capacity,
            scale,
        )

    def evaluate(self, prices: Array, temperature: float) -> _Evaluated:
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
            weights = np.exp(rest)
            nothing = np.exp(-best)
            total = weights.sum(axis=1) + nothing
            spread = np.einsum("jc,jc->j", weights, rest) - nothing * best
            moments = _product(weights, self.takes) / total[:, None]
            demand = moments[:, :types]
            used[:types] += demand.sum(axis=0)
            varies = -(demand.T @ demand)
            varies.flat[:: types + 1] += moments[:, types:].sum(axis=0)
            hessian[:types, :types] += varies
            if self.group is not None:
                self._add_groups(self.group[block], weights / total[:, None], demand, used, hessian)
            sums += best.sum(), np.log(total).sum(), (spread / total).sum()
        paid = float(prices @ self.capacity)
        bound = paid + temperature * float(sums[0])
        slack = self.capacity - used
        lost = -temperature * float(sums[2]) + float(prices @ slack)
        return _Evaluated(bound + temperature * float(sums[1]), bound, lost, slack, hessian / temperature)

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
class _Evaluated:
    """``value`` is of the smoothed dual, ``bound`` of the true one; ``lost`` what the soft choices lose against it."""

    value: float
    bound: float
    lost: float
    slack: Array
    hessian: Array


def _reduced(
    utility: NDArray[Any],
    slots: NDArray[Any],
    resource: IntArray,
    group: IntArray | None,
    group_use: NDArray[Any],
    prices: Array,
    types: int,
) -> NDArray[Any]:
    """Utilities after paying."""
    rest: NDArray[Any] = utility - (prices[resource] * slots).astype(utility.dtype)
    if group is not None and len(prices) > types:
        price = np.append(prices[types:], 0.0)[group].astype(utility.dtype)
        rest -= price[:, None] * group_use
    return rest


def _descend(dual: _Dual, start: Prices | None, warm_temperature: float, tolerance: float) -> tuple[Prices, int, float]:
    """Minimise the dual by Newton steps while the temperature falls; also how many, and where it ended."""
    types, count = dual.takes.shape[1] // 2, len(dual.capacity)
    if dual.scale == 0.0:
        return Prices(np.zeros(types), np.zeros(count - types)), 0, warm_temperature
    warm = start is not None and len(start.types) == types and len(start.groups) == count - types
    if warm and start is not None:
        prices, temperature = np.concatenate([start.types, start.groups]), warm_temperature * dual.scale
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
            exact = abs(here.lost) <= 0.1 * tolerance * here.bound
            settled = abs(before - here.bound) <= 0.3 * tolerance * here.bound
            done = exact or (settled and abs(here.lost) <= 10.0 * tolerance * here.bound)
            unsettled = float(np.abs(_projected(prices, here.slack)) @ np.maximum(prices, 1e-3 * dual.scale))
            if done or unsettled <= 0.2 * abs(here.lost) or not tried:
                break
        if not done:
            temperature *= COOLING
    return Prices(best[:types], best[types:]), steps, temperature / dual.scale


def _projected(prices: Array, slack: Array) -> Array:
    """The gradient along directions in which prices may go: not below zero."""
    return np.where((prices <= 0.0) & (slack > 0.0), 0.0, slack)


def _newton_step(dual: _Dual, prices: Array, here: _Evaluated, temperature: float) -> tuple[Array, _Evaluated, int]:
    """One step of the smoothed dual with prices kept above zero, shortened until the dual falls."""
    gradient = _projected(prices, here.slack)
    free = gradient != 0.0
    if not free.any():
        return prices, here, 0
    hessian = here.hessian[np.ix_(free, free)]
    # Where nobody is undecided the Hessian vanishes; this keeps a price from moving by more than its own size.
    floor = np.abs(gradient[free]) / np.maximum(prices[free], 1e-2 * dual.scale)
    step = np.zeros(len(prices))
    step[free] = -np.linalg.solve(hessian + np.diag(1e-3 * np.diag(hessian) + 0.05 * floor), gradient[free])
    noise = 1e-6 * abs(here.value) if dual.utility.dtype == np.float32 else 0.0
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


def _group_capacity(problem: Choices) -> Array:
    return np.zeros(0) if problem.group_capacity is None else problem.group_capacity


def _group_use(problem: Choices) -> Array:
    return problem.slots if problem.group_use is None else problem.group_use


# --- From prices to a decision ---


class _Rounding:
    """A decision on its way to being feasible and full."""

    def __init__(self, problem: Choices, prices: Array) -> None:
        types = len(problem.capacity)
        self.problem = problem
        self.types = types
        self.slots = np.append(problem.slots, 0.0)
        self.resource = np.append(problem.resource, 0)
        self.use = np.append(_group_use(problem), 0.0)
        self.group = np.full(len(problem.utility), -1) if problem.group is None else problem.group
        self.limits = np.concatenate([problem.capacity, _group_capacity(problem), [np.inf]])
        self.prices = prices
        utility = np.maximum(problem.utility, IMPOSSIBLE)
        paid = _reduced(utility, problem.slots, problem.resource, problem.group, _group_use(problem), prices, types)
        self.choice = np.argmax(paid, axis=1)
        self.best = paid[np.arange(len(paid)), self.choice]
        self.choice[self.best <= 0.0] = -1
        self.best = np.maximum(self.best, 0.0)
        self.paid = paid
        self.used = np.zeros(len(self.limits))
        np.add.at(self.used, self.resource[self.choice], self.slots[self.choice])
        np.add.at(self.used, self._group_row(self.group), self.use[self.choice])
        self.used[-1] = 0.0

    def _group_row(self, group: IntArray) -> IntArray:
        """The row of limits of a group; the last row, without a limit, for jobs that have none."""
        rows: IntArray = np.where(group >= 0, self.types + group, len(self.limits) - 1)
        return rows

    @property
    def bound(self) -> float:
        """The dual at these prices."""
        return float(self.prices @ self.limits[:-1]) + float(self.best.sum())

    @property
    def value(self) -> float:
        """What the decision is worth."""
        served = np.flatnonzero(self.choice >= 0)
        return float(self.problem.utility[served, self.choice[served]].sum())

    def move(self, job: int, to: int) -> None:
        """Give one job another configuration."""
        row = int(self._group_row(self.group[job : job + 1])[0])
        for column, sign in ((int(self.choice[job]), -1.0), (to, 1.0)):
            self.used[self.resource[column]] += sign * self.slots[column]
            self.used[row] += sign * self.use[column]
        self.used[-1] = 0.0
        self.choice[job] = to

    def _paid_now(self, jobs: IntArray) -> Array:
        now: Array = np.where(self.choice[jobs] >= 0, self.paid[jobs, self.choice[jobs]], 0.0)
        return now

    def repair(self) -> None:
        """Move the jobs that lose least, per slot that they free, off what is over-full.

        They go to other types only where there is room; after a few rounds only down, so that it comes to an end.
        """
        for attempt in range(12 + len(self.limits) * len(self.slots)):
            over = self.used - self.limits
            worst = int(np.argmax(over[:-1]))
            if over[worst] <= 1e-9:
                return
            self._relieve(worst, float(over[worst]), elsewhere=attempt < 12)
        raise AssertionError("repair did not end")  # every attempt of the second half relieves a resource for good

    def _relieve(self, row: int, excess: float, *, elsewhere: bool) -> None:
        if row < self.types:
            jobs = np.flatnonzero((self.choice >= 0) & (self.resource[self.choice] == row))
            here = self.problem.resource == row
            takes = np.where(here, self.problem.slots, 0.0)
        else:
            jobs = np.flatnonzero((self.choice >= 0) & (self.group == row - self.types))
            takes = self.use[:-1]
        now = takes[self.choice[jobs]]
        freed = now[:, None] - takes
        fits = freed > 0
        free = self.limits - self.used
        same = self.problem.resource == self.resource[self.choice[jobs]][:, None]
        extra = self.problem.slots - np.where(same, self.slots[self.choice[jobs]][:, None], 0.0)
        fits &= (extra <= 0) | (elsewhere & (extra <= free[self.problem.resource]))
        if row < self.types:
            more = self.use[:-1] - self.use[self.choice[jobs]][:, None]
            fits &= (more <= 0) | (elsewhere & (more <= free[self._group_row(self.group[jobs])][:, None]))
        options = np.where(fits, self.paid[jobs], -np.inf)
        target = np.argmax(options, axis=1)
        after = options[np.arange(len(jobs)), target]
        target[after <= 0.0] = -1
        after = np.maximum(after, 0.0)
        gone = now - np.append(takes, 0.0)[target]
        loss = self._paid_now(jobs) - after
        order = np.argsort(loss / gone, kind="stable")
        enough = int(np.searchsorted(np.cumsum(gone[order]), excess - 1e-9)) + 1
        chosen = order[:enough]
        # The last one often frees more than is missing: one job of the rest may do it for less.
        missing = excess - float(gone[chosen[:-1]].sum())
        rest = order[enough - 1 :]
        able = rest[gone[rest] >= missing - 1e-9]
        if len(able):
            chosen = np.append(chosen[:-1], able[np.argmin(loss[able])])
        for index in chosen:
            if target[index] < 0 or self._has_room(int(jobs[index]), int(target[index])):
                self.move(int(jobs[index]), int(target[index]))

    def _has_room(self, job: int, to: int) -> bool:
        before = int(self.choice[job])
        free = self.limits - self.used
        same = before >= 0 and self.resource[before] == self.resource[to]
        extra = self.slots[to] - (self.slots[before] if same else 0.0)
        row = int(self._group_row(self.group[job : job + 1])[0])
        more = self.use[to] - self.use[before]
        return bool((extra <= 0 or extra <= free[self.resource[to]] + 1e-9) and (more <= 0 or more <= free[row] + 1e-9))

    def fill(self) -> None:
        """Give what is free to whom it helps: the change that loses least at these prices for its gain first.

        A change cannot gain if it loses more than the slots that it takes are worth; those that lose a small share of
        it are tried first, since there are enough of them where there are many jobs.
        """
        for share in (0.02, 1.0, 1.0, 1.0):
            free = self.limits - self.used
            if not (free[: self.types] >= 1.0).any():
                return
            self._fill(free, share)

    def _fill(self, free: Array, share: float) -> None:
        resource, slots = self.problem.resource, self.problem.slots
        worth = np.maximum(self.prices[resource], 1e-12) * np.minimum(slots, free[resource])
        columns = np.flatnonzero(free[resource] >= 1.0)
        now = self._paid_now(np.arange(len(self.choice)))
        job, nth = np.nonzero(self.paid[:, columns] > now[:, None] - share * worth[columns])
        column, before = columns[nth], self.choice[job]
        more = slots[column] - np.where(self._same_type(before, column), self.slots[before], 0.0)
        gain = self._utility(job, column) - self._utility(job, before)
        helps = np.flatnonzero((gain > 1e-12) & (more <= free[resource[column]] + 1e-9))
        loss = now[job[helps]] - self.paid[job[helps], column[helps]]
        helps = helps[np.argsort(loss / gain[helps], kind="stable")[:MOST_FILLS]]
        job, column = job[helps], column[helps]
        extra = self._extra(job, column)
        left = np.flatnonzero(np.all(extra <= free + 1e-9, axis=1))
        while len(left):
            first = left[0]
            self.move(int(job[first]), int(column[first]))
            room = self.limits - self.used + 1e-9
            left = left[(job[left] != job[first]) & np.all(extra[left] <= room, axis=1)]

    def _same_type(self, before: IntArray, column: IntArray) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (before >= 0) & (self.resource[before] == self.resource[column])
        return same

    def _utility(self, job: IntArray, column: IntArray) -> Array:
        value: Array = np.where(column >= 0, self.problem.utility[job, column], 0.0)
        return value

    def _extra(self, job: IntArray, column: IntArray) -> Array:
        """What each change takes more (or less) of every limit."""
        each, row, before = np.arange(len(job)), self._group_row(self.group[job]), self.choice[job]
        delta = np.zeros((len(job), len(self.limits)))
        delta[each, self.resource[column]] += self.slots[column]
        delta[each, self.resource[before]] -= self.slots[before]
        delta[each, row] += self.use[column] - self.use[before]
        return delta

    def exchange(self, tolerance: float, *, thorough: bool = False) -> bool:
        """Try pairs of changes: one job gives up what another gains more from. Whether any was made.

        A better decision loses nowhere more than what this one loses in total, which leaves few changes to try. Where
        they are many, those that lose least are, if it is to be ``thorough``.
        """
        for attempt in range(20):
            gap = self.bound - self.value
            if gap <= tolerance * self.bound:
                return attempt > 0
            job, column = np.nonzero(self.paid > (self.best - gap)[:, None])
            idle = np.flatnonzero(self.best < gap)
            job, column = np.concatenate([job, idle]), np.concatenate([column, np.full(len(idle), -1)])
            other = column != self.choice[job]
            job, column = job[other], column[other]
            if thorough and len(job) > MOST_EXCHANGES:
                loss = self.best[job] - np.where(column >= 0, self.paid[job, column], 0.0)
                least = np.argpartition(loss, MOST_EXCHANGES)[:MOST_EXCHANGES]
                job, column = job[least], column[least]
            if not len(job) or len(job) > MOST_EXCHANGES or not self._exchange_once(job, column):
                return attempt > 0
        return True

    def _exchange_once(self, job: IntArray, column: IntArray) -> bool:
        gain = self._utility(job, column) - self._utility(job, self.choice[job])
        extra = self._extra(job, column)
        together = gain[:, None] + gain
        together[job[:, None] == job] = -np.inf
        np.fill_diagonal(together, gain)
        first, second = np.nonzero(together > 1e-12)
        twice = (first != second).astype(float)[:, None]
        possible = np.all(extra[first] + twice * extra[second] <= self.limits - self.used + 1e-9, axis=1)
        if not possible.any():
            return False
        found = np.flatnonzero(possible)
        best = found[np.argmax(together[first[found], second[found]])]
        for index in {int(first[best]), int(second[best])}:
            self.move(int(job[index]), int(column[index]))
        return True

    def finish(self) -> float:
        """Hand what is left open to HiGHS; the bound that it proves.

        Whatever loses more than the gap at these prices is in no better decision, which leaves a small program.
        """
        gap = self.bound - self.value
        job, column = np.nonzero((self.paid >= (self.best - gap)[:, None]) & (self.paid > IMPOSSIBLE / 2))
        if not len(job) or len(job) > MOST_LEFT_OPEN:
            return self.bound
        rows, each = len(self.choice), np.arange(len(job))
        uses_group = self.group[job] >= 0
        row = np.concatenate([job, rows + self.resource[column], rows + self._group_row(self.group[job[uses_group]])])
        entry = np.concatenate([np.ones(len(job)), self.slots[column], self.use[column[uses_group]]])
        matrix = csc_array(
            (entry, (row, np.concatenate([each, each, each[uses_group]]))), shape=(rows + len(self.limits), len(job))
        )
        upper = np.concatenate([np.ones(rows), self.limits])
        worth = self.problem.utility[job, column]
        found = minimise(-worth, np.ones(len(job)), matrix, np.full(len(upper), -np.inf), upper, integer=True)
        if found is None:
            return self.bound
        if -found.cost > self.value:
            for at in np.flatnonzero(self.choice >= 0):
                self.move(int(at), -1)
            for variable in np.flatnonzero(found.values > 0.5):
                self.move(int(job[variable]), int(column[variable]))
        return min(self.bound, max(-found.bound, self.value))


def _round(
    problem: Choices,
    prices: Prices,
    steps: int,
    tolerance: float,
    finish_above: float | None,
    *,
    thorough: bool = False,
) -> Priced:
    """Everybody's best choice, made feasible and full."""
    rounding = _Rounding(problem, np.concatenate([prices.types, prices.groups]))
    rounding.repair()
    rounding.fill()
    if rounding.exchange(tolerance, thorough=thorough):
        rounding.fill()
    bound = rounding.bound
    if finish_above is not None and bound - rounding.value > finish_above * bound:
        bound = rounding.finish()
    return Priced(rounding.choice, rounding.value, bound, prices, steps)
