"""From the totals of groups to the time fractions of their jobs.

Members of a group share its time equally, or each by its need. Two jobs of one group may share slots, a job and itself
may not: where a solution comes to that, another is asked for, with the jobs in question in groups of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from geminid.policies.gavel.groups import Groups, Ints, by_type, merge
from geminid.policies.gavel.problem import AllocationProblem, Array, Combination, Mask

#: Time below this counts as none.
NEGLIGIBLE = 1e-9

#: Solved at most this often to keep jobs from being paired with themselves; the last answer is taken as it is.
ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class Totals:
    """Time of every column of some groups; what their jobs need of it, if that differs."""

    values: Array
    need: Array | None = None


def shared_out(
    problem: AllocationProblem,
    solve: Callable[[Groups], Iterator[Totals]],
    apart: Sequence[Hashable],
) -> tuple[tuple[Combination, ...], Array, Totals] | None:
    """Solve for groups of jobs and hand the totals out; None where there is no solution.

    ``solve`` yields solutions, the best first: the next is asked for if the last would pair a job with itself. If all
    do, such jobs get groups of their own. Jobs are merged only where ``apart`` is the same.
    """
    labels = list(apart)
    for attempt in range(ATTEMPTS):
        groups = merge(problem, apart=labels)
        selves: list[int] = []
        for totals in solve(groups):
            try:
                strict = attempt < ATTEMPTS - 1
                return *hand_out(problem, groups, totals.values, totals.need, strict=strict), totals
            except PairedWithThemselves as found:
                selves = found.jobs
        if not selves:
            return None
        labels = apart_from_others(labels, selves)
    return None


class PairedWithThemselves(Exception):
    """Some jobs would have to share slots with themselves: they must be taken out of their groups."""

    def __init__(self, jobs: list[int]) -> None:
        super().__init__(f"jobs {jobs} would be paired with themselves")
        self.jobs = jobs


def apart_from_others(labels: Sequence[Hashable], jobs: Sequence[int]) -> list[Hashable]:
    """Labels for ``merge`` that also keep each of some jobs apart from all others."""
    alone = set(jobs)
    return [("alone", i) if i in alone else label for i, label in enumerate(labels)]


def hand_out(
    problem: AllocationProblem, groups: Groups, values: Array, need: Array | None = None, *, strict: bool = True
) -> tuple[tuple[Combination, ...], Array]:
    """Combinations of jobs and their time fractions, from the totals of the groups.

    Members of a group share equally, or, where their ``need`` (in multiples of their reference throughput) differs,
    so that each gets its own. Raises PairedWithThemselves where that would pair a job with itself, or, if not
    ``strict``, lets it run alone then, which may come to a little less.
    """
    values = np.where(values > NEGLIGIBLE, values, 0.0)
    shares = _shares(groups, values, need)
    jobs, pools = len(problem.jobs), len(groups.pools)
    alone = np.zeros((jobs, pools))
    left, right, pair_pool, amount = [], [], [], []
    selves: list[int] = []
    for column in np.flatnonzero(values).tolist():
        g, h, pool = int(groups.first[column]), int(groups.second[column]), int(groups.pool[column])
        mine = shares[g, column]
        if h < 0:
            alone[groups.members[g], pool] += mine
            continue
        if h == g:
            selves += groups.members[g][mine > values[column] * (1 + 1e-9)].tolist()
            ends = np.cumsum(mine)
            a, b, time = _join(ends, ends - values[column], values[column])
            itself = a == b
            np.add.at(alone, (groups.members[g][a[itself]], pool), time[itself])
            a, b, time = a[~itself], b[~itself], time[~itself]
        else:
            a, b, time = _join(np.cumsum(mine), np.cumsum(shares[h, column]), values[column])
        left.append(groups.members[g][a])
        right.append(groups.members[h][b])
        pair_pool.append(np.full(len(time), pool))
        amount.append(time)
    if selves and strict:
        raise PairedWithThemselves(selves)
    rows = np.flatnonzero(alone.sum(axis=1) > 0)
    ids = [job.id for job in problem.jobs]
    combinations: list[Combination] = [(ids[i],) for i in rows.tolist()]
    by_pool = [alone[rows]]
    if left:
        a, b = np.concatenate(left), np.concatenate(right)
        pairs, position = np.unique(np.minimum(a, b) * jobs + np.maximum(a, b), return_inverse=True)
        shared = np.zeros((len(pairs), pools))
        np.add.at(shared, (position, np.concatenate(pair_pool)), np.concatenate(amount))
        combinations += [
            (ids[a], ids[b]) for a, b in zip((pairs // jobs).tolist(), (pairs % jobs).tolist(), strict=True)
        ]
        by_pool.append(shared)
    return tuple(combinations), by_type(problem, groups.pools, np.concatenate(by_pool))


def _shares(groups: Groups, values: Array, need: Array | None) -> dict[tuple[int, int], Array]:
    """Time of each member of a group in each column that the group has a part in."""
    result: dict[tuple[int, int], Array] = {}
    active = np.flatnonzero(values[groups.use_column] > 0)
    active = active[np.argsort(groups.use_group[active], kind="stable")]
    bounds = np.searchsorted(groups.use_group[active], np.arange(len(groups.members) + 1))
    for g, members in enumerate(groups.members):
        uses = active[bounds[g] : bounds[g + 1]]
        columns = groups.use_column[uses]
        totals = groups.use_time[uses] * values[columns]
        if need is None or not len(uses) or _even(need[members]):
            for column, total in zip(columns.tolist(), totals.tolist(), strict=True):
                result[g, column] = np.full(len(members), total / len(members))
        else:
            with_self = (groups.first[columns] == g) & (groups.second[columns] == g)
            by_member = _by_need_in_pairs(groups.use_rate[uses], totals, need[members], with_self)
            for position, column in enumerate(columns.tolist()):
                result[g, column] = by_member[:, position]
    return result


def _even(need: Array) -> bool:
    return bool(np.ptp(need) <= 1e-12 * max(1.0, float(need.max(initial=0.0))))


def _by_need_in_pairs(rates: Array, totals: Array, need: Array, with_self: Mask) -> Array:
    """By need; where a job would get more than half of a column of pairs within the group, these are shared equally.

    (Half of it is what there are partners for.) Equal shares may leave too little freedom for the rest: then it is as
    if nothing had been tried.
    """
    result = by_need(rates, totals, need)
    if not (result[:, with_self] > totals[with_self] / 2 * (1 + 1e-9)).any():
        return result
    equal = totals[with_self] / len(need)
    left = 1.0 - float(equal.sum())
    rest = np.maximum(need - float(equal @ rates[with_self]), 0.0)
    if left <= NEGLIGIBLE:
        return result
    others = ~with_self
    if common_factor(rates[others], totals[others] / left, rest / left) < 1.0 - 1e-7:
        return result
    result = np.zeros_like(result)
    result[:, with_self] = equal
    result[:, others] = left * by_need(rates[others], totals[others] / left, rest / left)
    return result


def by_need(rates: Array, totals: Array, need: Array) -> Array:
    """Hand out time at different rates to members, none for longer than one unit, in proportion to what they need.

    Lay the time out by falling rate, idle time last. The neediest member takes the stretch of length one that makes
    exactly its need (the last one, if that makes more); the rest closes up. That never takes away what the others need
    (the argument of Gonzalez and Sahni for preemptive schedules on machines of different speed). Members that need the
    same take a longer stretch together and share it equally.
    """
    result = np.zeros((len(need), len(rates)))
    order = np.argsort(-rates, kind="stable")
    need = need * common_factor(rates, totals, need)
    idle = max(0.0, len(need) - float(totals.sum()))
    speed, length = [*rates[order].tolist(), 0.0], [*totals[order].tolist(), idle]
    by_need = np.argsort(-need, kind="stable")
    falling = need[by_need]
    blocks = np.flatnonzero(np.diff(falling, prepend=np.inf) < -1e-12 * max(1.0, float(falling[0])))
    taken = np.zeros((len(blocks), len(rates)))
    sizes = np.diff(np.append(blocks, len(need)))
    for block, (value, size) in enumerate(zip(falling[blocks].tolist(), sizes.tolist(), strict=True)):
        start = _window(speed, length, value * size, float(size))
        at, room = 0.0, float(size)
        for piece, here in enumerate(length):
            mine = min(at + here - max(at, start), room)
            at += here
            if mine > 0:
                room -= mine
                length[piece] -= mine
                if piece < len(order):
                    taken[block, order[piece]] = mine / size
    result[by_need] = np.repeat(taken, sizes, axis=0)
    return result


def common_factor(rates: Array, totals: Array, need: Array) -> float:
    """The largest multiple of their needs that all members can have at once of some time at some rates.

    Newton's method from above on the largest violation: see the condition in ``program.py``.
    """
    falling = np.sort(need)[::-1]
    sums = np.concatenate([[0.0], np.cumsum(falling)])
    theta = np.concatenate([[0.0], np.unique(rates)])
    supply = np.maximum(rates - theta[:, None], 0.0) @ totals
    factor = np.inf
    above = np.full(len(theta), len(need))
    while True:
        total = sums[above]
        limits = np.divide(supply + above * theta, total, out=np.full(len(theta), np.inf), where=total > 0)
        lowest = float(limits.min())
        if not lowest < factor * (1 - 1e-15) or not np.isfinite(lowest):
            return factor if np.isfinite(factor) else 1.0
        factor = lowest
        above = np.searchsorted(-falling * factor, -theta, side="left")


def _window(speed: list[float], length: list[float], need: float, width: float) -> float:
    """Where the stretch of some width begins that makes ``need``; the last one, if even that makes more.

    What a stretch makes falls with its start, by the difference of the speeds at its two ends.
    """
    last = sum(length) - width
    if last <= 0:
        return 0.0
    low, low_end = 0, length[0]
    high, high_end = 0, length[0]
    made, start = speed[0] * min(length[0], width), 0.0
    while high_end < width:
        high += 1
        made += speed[high] * min(length[high], width - high_end)
        high_end += length[high]
    while start < last and made > need:
        if low_end <= start:
            low += 1
            low_end += length[low]
        elif high_end <= start + width and high < len(length) - 1:
            high += 1
            high_end += length[high]
        else:
            ends = high_end - width if high < len(length) - 1 else last
            to = min(low_end, max(ends, start), last)
            fall = speed[low] - speed[high]
            if made - fall * (to - start) < need:
                return start + (made - need) / fall
            made -= fall * (to - start)
            if to <= start and high < len(length) - 1:  # by rounding, the far end is past its corner already
                high += 1
                high_end += length[high]
            start = to
    return start


def _join(left_ends: Array, right_ends: Array, total: float) -> tuple[Ints, Ints, Array]:
    """Pair two ways of dividing the stretch from 0 to ``total``: who meets whom, and for how long."""
    cuts = np.concatenate([left_ends, right_ends])
    cuts = np.unique(np.concatenate([[0.0], cuts[(cuts > 0) & (cuts < total)], [total]]))
    time = np.diff(cuts)
    middle = cuts[:-1] + time / 2
    a = np.minimum(np.searchsorted(left_ends, middle), len(left_ends) - 1)
    b = np.minimum(np.searchsorted(right_ends, middle), len(right_ends) - 1)
    keep = time > NEGLIGIBLE
    return a[keep], b[keep], time[keep]
