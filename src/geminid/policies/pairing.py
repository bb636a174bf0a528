"""Space sharing: two jobs on the same slots as one more thing to choose, where the interference model says it pays.

A pair of jobs on one configuration takes its slots once, and each member gets done what is left of its speed beside
the other. There are far too many pairs to offer them all to the solver, so they are found by their prices, as columns
are in column generation:

1. The problem is solved without pairs. At its prices, half the price of a configuration is what sharing it can cost;
   jobs for which nothing would be worth it even without any interference are left out. Where nobody is left, nothing
   is shared and nothing was lost.
2. Prices fall where jobs share. They are found by solving the problem with one more configuration for every one that
   there is, of half the slots, worth what a job gets done beside its best partner.
3. At these prices every pair has a gain over its members' best choices apart from each other. The most gainful pairs
   are kept, nobody in two of them, and the problem is solved again with each pair in the place of its members: it may
   take any configuration together, or leave it to either of the two. Prices that have fallen this far find few pairs,
   since not everybody gets its best partner, and those of the first step too many: those half-way are tried as well.

The best decision counts, the one without pairs included. With prices λ, and g_jk the gain of a pair,
λ·capacity + Σ_j best_j + Σ_j max(0, max_k g_jk)/2 bounds every decision with pairs from above: each member of a pair
carries at least half of its gain. That is the certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geminid.policies.base import ClusterView, JobView
from geminid.solve.choices import IMPOSSIBLE, Choices, Prices
from geminid.solve.prices import Priced

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Pairs × configurations that are looked at: the jobs that can gain most from sharing come first.
MOST_ELEMENTS = 1 << 18

#: How far prices are taken to fall because jobs share, as shares of what they would if everybody had its best partner.
FALLS = (1.0, 0.5, 0.0)

#: How much more a pair gains than another for lasting already: breaking it up costs somebody a pause.
LASTING = 1.5

#: Two jobs share only if together they get more than this many jobs' work done: less gain than this may be an error of
#: the interference model, which is off by 4 % of a job's speed on average.
LEAST_TOGETHER = 1.1


@dataclass(frozen=True, slots=True)
class Worth:
    """What each configuration is worth to each job (jobs × configurations), impossible ones at most ``IMPOSSIBLE``.

    ``moving`` is the same for jobs that have to give up the slots they have, ``partner`` the row of the job that each
    shares its slots with now, −1 for none.
    """

    staying: Array
    moving: Array
    partner: IntArray

    def alone(self) -> Array:
        """What configurations are worth without sharing: of two that part, one has to move."""
        guest = (self.partner >= 0) & (self.partner < np.arange(len(self.partner)))
        return np.where(guest[:, None], self.moving, self.staying)


#: The rows of two jobs that share, the one that stays first, and what is left of the speed of either.
Pair = tuple[int, int, float, float]


@dataclass(frozen=True, slots=True)
class Paired:
    """A decision, and who shares."""

    solution: Priced
    pairs: tuple[Pair, ...] = ()


#: What is left of the speeds of jobs (given by their rows) beside each other, on a configuration: the speed of each
#: (row) beside each (column), zero where they cannot share.
Speeds = Callable[[IntArray, int], Array]
#: Solves a problem, starting from prices.
Solver = Callable[[Choices, Prices], Priced]


def pair_up(
    problem: Choices,
    found: Priced,
    worth: Worth,
    may_share: NDArray[np.bool_],
    speeds: Speeds,
    speed_power: float,
    solver: Solver,
) -> Paired:
    """Improve a decision without pairs, of which ``problem`` was solved, by pairs of those who may share.

    ``speed_power`` is the power of a job's speed that its worth grows with.
    """
    sharers = _promising(problem, found.prices, worth, may_share)
    if len(sharers) < 2:
        return Paired(found)
    offers = _Offers.of(problem, worth, sharers, speeds, speed_power)
    if not (offers.gains(problem, found.prices) > 0).any():
        return Paired(found)
    fallen = solver(offers.with_halves(problem, worth), found.prices).prices
    bound, best = min(offers.bound(problem, found.prices), offers.bound(problem, fallen)), Paired(found)
    tried: set[bytes] = set()
    for fall in FALLS:
        prices = _between(found.prices, fallen, fall)
        gains = offers.gains(problem, prices)
        pairs = _matched(np.where(offers.lasting, LASTING * gains, gains))
        if not len(pairs) or pairs.tobytes() in tried:
            continue
        tried.add(pairs.tobytes())
        merged = offers.merged(problem, pairs)
        together = solver(merged.problem, prices)
        bound = min(bound, offers.bound(problem, together.prices))
        decision = merged.decision(offers, together)
        if decision.solution.value > best.solution.value * (1.0 + 1e-9):
            best = decision
    return replace(best, solution=replace(best.solution, bound=max(bound, best.solution.value)))


def _between(one: Prices, other: Prices, share: float) -> Prices:
    return Prices(one.types + share * (other.types - one.types), one.groups + share * (other.groups - one.groups))


def _costs(problem: Choices, prices: Prices) -> Array:
    """What every job would pay for every configuration."""
    cost = prices.types[problem.resource] * problem.slots
    if problem.group is None or not problem.groups:
        return np.broadcast_to(cost, problem.utility.shape)
    use = problem.slots if problem.group_use is None else problem.group_use
    return cost + np.append(prices.groups, 0.0)[problem.group][:, None] * use


def _best(problem: Choices, costs: Array) -> Array:
    """What each job's best choice apart from others leaves it after paying."""
    return np.asarray(np.maximum((problem.utility - costs).max(axis=1), 0.0))


def _promising(problem: Choices, prices: Prices, worth: Worth, may_share: NDArray[np.bool_]) -> IntArray:
    """Rows that would gain from sharing if nobody were slowed down by it, those that would gain most first."""
    costs = _costs(problem, prices)
    reach = (worth.staying - costs / 2.0).max(axis=1) - _best(problem, costs)
    rows = np.flatnonzero(may_share & (reach > IMPOSSIBLE / 2))
    rows = rows[np.argsort(-reach[rows], kind="stable")]
    if len(rows) < 2:
        return rows
    rows = rows[reach[rows] + reach[rows[0]] > 0]
    most = max(int((MOST_ELEMENTS / problem.utility.shape[1]) ** 0.5), 2)
    return np.asarray(rows[:most])


@dataclass(frozen=True, slots=True)
class _Offers:
    """What sharing has to offer: per configuration and two of the ``rows``, what they are worth together.

    ``speed`` is what is left of the first one's speed, ``counts`` of what its worth is; ``stays`` whether it is better
    that the first one stays than that the second does, ``lasting`` whether they share now.
    """

    rows: IntArray
    together: Array
    speed: Array
    counts: Array
    stays: NDArray[np.bool_]
    lasting: NDArray[np.bool_]

    @classmethod
    def of(cls, problem: Choices, worth: Worth, rows: IntArray, speeds: Speeds, speed_power: float) -> _Offers:
        columns, n = problem.utility.shape[1], len(rows)
        staying, moving = worth.staying[rows].T, worth.moving[rows].T
        possible = staying > IMPOSSIBLE / 2
        speed = np.zeros((columns, n, n))
        for column in np.flatnonzero(possible.sum(axis=1) >= 2):
            speed[column] = np.nan_to_num(speeds(rows, int(column)))
        speed *= (possible[:, :, None] & possible[:, None, :]) & (speed > 0) & (speed.transpose(0, 2, 1) > 0)
        speed[:, np.arange(n), np.arange(n)] = 0.0
        speed *= speed + speed.transpose(0, 2, 1) > LEAST_TOGETHER
        if problem.group is not None:
            speed *= problem.group[rows][:, None] == problem.group[rows]
        staying, moving = np.where(possible, staying, 0.0), np.where(possible, moving, 0.0)
        counts = speed**speed_power
        one_stays = staying[:, :, None] * counts + moving[:, None, :] * counts.transpose(0, 2, 1)
        stays = one_stays >= one_stays.transpose(0, 2, 1)
        together = np.maximum(one_stays, one_stays.transpose(0, 2, 1))
        place = {int(row): at for at, row in enumerate(rows)}
        lasting = np.zeros((n, n), dtype=bool)
        for at, row in enumerate(rows):
            other = place.get(int(worth.partner[row]))
            if other is not None:
                lasting[at, other] = True
                together[:, at, other] = (
                    staying[:, at] * counts[:, at, other] + staying[:, other] * counts[:, other, at]
                )
        together[speed <= 0] = IMPOSSIBLE
        return cls(rows, together, speed, counts, stays, lasting)

    def gains(self, problem: Choices, prices: Prices) -> Array:
        """By how much each two of the rows do better together than apart."""
        costs = _costs(problem, prices)
        best = _best(problem, costs)[self.rows]
        shared = (self.together - costs[self.rows].T[:, :, None]).max(axis=0)
        return np.asarray(shared - best[:, None] - best)

    def bound(self, problem: Choices, prices: Prices) -> float:
        """No decision with pairs of these rows is worth more."""
        groups = 0.0 if problem.group_capacity is None else float(prices.groups @ problem.group_capacity)
        apart = float(prices.types @ problem.capacity) + groups + float(_best(problem, _costs(problem, prices)).sum())
        return apart + 0.5 * float(np.maximum(self.gains(problem, prices).max(axis=1), 0.0).sum())

    def with_halves(self, problem: Choices, worth: Worth) -> Choices:
        """The problem with a configuration of half the slots for every one, shared with the best partner."""
        halves = np.full(problem.utility.shape, -np.inf)
        beside = self.counts.max(axis=2).T
        halves[self.rows] = np.where(beside > 0, np.maximum(worth.staying[self.rows], IMPOSSIBLE) * beside, -np.inf)
        use = problem.group_use
        return replace(
            problem,
            utility=np.hstack([problem.utility, halves]),
            slots=np.append(problem.slots, problem.slots / 2.0),
            resource=np.append(problem.resource, problem.resource),
            group_use=None if use is None else np.append(use, use / 2.0),
        )

    def merged(self, problem: Choices, pairs: IntArray) -> _Merged:
        """The problem with each pair (places in ``rows``) in the place of its members."""
        first, second = self.rows[pairs[:, 0]], self.rows[pairs[:, 1]]
        single = np.setdiff1d(np.arange(len(problem.utility)), np.concatenate([first, second]))
        either = np.maximum(problem.utility[first], problem.utility[second])
        utility = np.maximum(either, self.together[:, pairs[:, 0], pairs[:, 1]].T)
        group = problem.group
        if group is not None:
            group = np.concatenate([group[single], group[first]])
        return _Merged(
            replace(problem, utility=np.vstack([problem.utility[single], utility]), group=group), problem, single, pairs
        )


@dataclass(frozen=True, slots=True)
class _Merged:
    """A problem whose last rows are pairs, and the one that it was made from."""

    problem: Choices
    apart: Choices
    single: IntArray
    pairs: IntArray

    def decision(self, offers: _Offers, found: Priced) -> Paired:
        """What a solution means for the jobs."""
        apart = self.apart.utility
        choice = np.full(len(apart), -1, dtype=np.intp)
        choice[self.single] = found.choice[: len(self.single)]
        sharing = []
        for (one, other), column in zip(self.pairs.tolist(), found.choice[len(self.single) :].tolist(), strict=True):
            if column >= 0:
                host, guest = (one, other) if offers.stays[column, one, other] else (other, one)
                a, b = int(offers.rows[host]), int(offers.rows[guest])
                worth = float(offers.together[column, host, guest])
                if worth >= max(apart[a, column], apart[b, column]):
                    choice[a] = choice[b] = column
                    speed = offers.speed[column]
                    sharing.append((worth, (a, b, float(speed[host, guest]), float(speed[guest, host]))))
                else:
                    choice[a if apart[a, column] >= apart[b, column] else b] = column
        pairs, gained = _parted(self.apart, choice, sharing)
        return Paired(replace(found, choice=choice, value=found.value + gained), pairs)


def _parted(problem: Choices, choice: IntArray, sharing: list[tuple[float, Pair]]) -> tuple[tuple[Pair, ...], float]:
    """Give members of pairs (with their worth) what is left over, in ``choice``, where they then do better apart.

    Returns the pairs that remain, and what is gained.
    """
    takers = choice >= 0
    takers[[guest for _, (_, guest, *_) in sharing]] = False
    taken, types = choice[takers], len(problem.capacity)
    free = problem.capacity - np.bincount(problem.resource[taken], problem.slots[taken], types)
    use = problem.slots if problem.group_use is None else problem.group_use
    group = np.full(len(choice), -1) if problem.group is None or not problem.groups else problem.group
    group_free = np.append(np.zeros(0) if problem.group_capacity is None else problem.group_capacity, np.inf)
    np.subtract.at(group_free, group[takers], use[taken])
    pairs, gained = [], 0.0
    for worth, pair in sharing:
        host, guest, *_ = pair
        column = int(choice[host])
        fits = (problem.slots <= free[problem.resource] + 1e-9) & (use <= group_free[group[host]] + 1e-9)
        options = []
        for stays, goes in ((host, guest), (guest, host)):
            to = int(np.argmax(np.where(fits, problem.utility[goes], -np.inf)))
            gain = problem.utility[stays, column] + problem.utility[goes, to] - worth if fits[to] else -np.inf
            options.append((float(gain), goes, to))
        gain, goes, to = max(options)
        if gain <= 0:
            pairs.append(pair)
            continue
        choice[goes] = to
        free[problem.resource[to]] -= problem.slots[to]
        group_free[group[goes]] -= use[to]
        gained += gain
    return tuple(pairs), gained


def _matched(gains: Array) -> IntArray:
    """Pairs of places, the most gainful first, nobody in two of them."""
    one, other = np.nonzero(np.triu(gains, 1) > 0)
    order = np.argsort(-gains[one, other], kind="stable")
    taken: set[int] = set()
    pairs = []
    for a, b in zip(one[order].tolist(), other[order].tolist(), strict=True):
        if a not in taken and b not in taken:
            taken |= {a, b}
            pairs.append((a, b))
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)


def partner_rows(jobs: Sequence[JobView]) -> NDArray[np.intp]:
    """The rows of the jobs that others share their slots with, −1 for none."""
    partner = np.full(len(jobs), -1, dtype=np.intp)
    if any(job.partner for job in jobs):
        rows = {job.id: row for row, job in enumerate(jobs)}
        partner[:] = [rows.get(job.partner or "", -1) for job in jobs]
    return partner


def sharing_reasons(view: ClusterView, found: Paired) -> dict[str, str]:
    """Why jobs share."""
    reasons = {}
    for host, guest, one, other in found.pairs:
        for row, partner, speed in ((host, guest, one), (guest, host, other)):
            reasons[view.jobs[row].id] = (
                f"shares its slots with {view.jobs[partner].id}: both together get {one + other:.2f} jobs' work done, "
                f"this one {100 * speed:.0f} % of what it would alone"
            )
    return reasons
