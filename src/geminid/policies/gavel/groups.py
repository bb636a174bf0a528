"""Identical jobs and GPU types merged, so that a program's size depends on how many kinds there are, not how many jobs.

Jobs that train equally fast everywhere form a group, GPU types that are equally fast for everyone a pool. A column of
the program is the total time that a group, or a pair of groups, spends on a type, summed over their members. Whether a
total can be handed out to members that need different throughputs is a question of majorisation, answered exactly in
``program.py``; this module hands it out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geminid.policies.gavel.problem import AllocationProblem, Array, Combination, Mask

Ints = NDArray[np.int64]

#: Time below this counts as none.
NEGLIGIBLE = 1e-9


@dataclass(frozen=True)
class Groups:
    """Groups of jobs, pools of GPU types, and every way a group can spend its time.

    Column c is time of group ``first[c]``, beside ``second[c]`` (−1: alone), on pool ``pool[c]``. One *use* is one
    group's part in one column: per unit of the column it takes ``use_time`` of the group's time (2 where the group is
    paired with itself) at ``use_rate``, in multiples of the jobs' reference throughput. ``names`` say what the jobs of
    each group have in common. Pools may take the slots of others (``takes``), and ``limits`` are columns whose time is
    limited together.
    """

    members: tuple[Ints, ...]
    group_of: Ints
    gang: Array
    pools: tuple[Ints, ...]
    pool_slots: Array
    takes: Ints | None
    first: Ints
    second: Ints
    pool: Ints
    use_group: Ints
    use_column: Ints
    use_time: Array
    use_rate: Array
    names: tuple[Hashable, ...] = ()
    limits: tuple[tuple[Ints, float], ...] = ()

    @property
    def capacity_row(self) -> Ints:
        """For each pool, which pool's slots it takes."""
        return np.arange(len(self.pools)) if self.takes is None else self.takes

    @property
    def sizes(self) -> Array:
        """Jobs in each group."""
        return np.array([len(m) for m in self.members], dtype=float)


def merge(problem: AllocationProblem, *, apart: Sequence[Hashable] | None = None) -> Groups:
    """Group the jobs of a problem and list what they can do.

    Jobs are kept in different groups where ``apart`` differs. Pairs that are no better than taking turns on the same
    type are left out: whatever they reach, turns reach too.
    """
    reference = problem.reference_throughput
    runs = reference > 0
    rates = np.divide(problem.usable, reference[:, None], out=np.zeros_like(problem.usable), where=runs[:, None])
    kinds = problem.pairs.index if problem.pairs is not None else {}
    kind = [kinds.get(job.kind, -1) for job in problem.jobs] if kinds else [-1] * len(problem.jobs)
    keys: dict[Hashable, int] = {}
    group_of = np.empty(len(problem.jobs), dtype=np.int64)
    row_bytes = rates.shape[1] * rates.itemsize
    data = rates.tobytes()
    extra = apart if apart is not None else [None] * len(problem.jobs)
    for i, job in enumerate(problem.jobs):
        alike = job.kind if kind[i] >= 0 else None
        key = (data[i * row_bytes : (i + 1) * row_bytes], job.gang, alike, extra[i])
        group_of[i] = keys.setdefault(key, len(keys))
    order = np.argsort(group_of, kind="stable")
    members = tuple(np.split(order, np.cumsum(np.bincount(group_of, minlength=len(keys)))[:-1])) if keys else ()
    leader = np.array([m[0] for m in members], dtype=np.int64)
    paired = _pair_rates(problem, leader, np.array(kind)[leader] if keys else leader, reference)
    pools = _pools(problem, rates[leader], paired)
    return replace(_columns(problem, group_of, members, leader, rates, paired, pools), names=tuple(keys))


def _pair_rates(problem: AllocationProblem, leader: Ints, kind: Ints, reference: Array) -> Array | None:
    """Rates of each group beside each other one on each type, 0 where a pair is impossible or no better than turns."""
    if problem.pairs is None or not len(leader):
        return None
    gang, alone = problem.gangs[leader], problem.usable[leader]
    beside = problem.pairs.rates[np.maximum(kind, 0)[:, None], np.maximum(kind, 0)[None, :]]
    possible = (kind >= 0)[:, None] & (kind >= 0)[None, :] & (gang[:, None] == gang[None, :])
    usable = alone > 0
    both = possible[:, :, None] & usable[:, None, :] & usable[None, :, :]
    both &= (beside > 0) & (beside.transpose(1, 0, 2) > 0)
    kept = np.divide(beside, alone[:, None, :], out=np.zeros_like(beside), where=both)
    both &= kept + kept.transpose(1, 0, 2) > 1.0 + 1e-12
    return np.where(both, beside / np.maximum(reference[leader], 1e-300)[:, None, None], 0.0)


def _pools(problem: AllocationProblem, rates: Array, paired: Array | None) -> tuple[Ints, ...]:
    """GPU types that are equally fast for everyone and cost the same, together."""
    found: dict[Hashable, list[int]] = {}
    for j in range(len(problem.gpu_types)):
        shared = paired[:, :, j].tobytes() if paired is not None else b""
        apart = j if problem.uses is not None else -1
        key = (rates[:, j].tobytes(), shared, problem.costs[j] if problem.costs is not None else 0.0, apart)
        found.setdefault(key, []).append(j)
    return tuple(np.array(types, dtype=np.int64) for types in found.values())


def _columns(
    problem: AllocationProblem,
    group_of: Ints,
    members: tuple[Ints, ...],
    leader: Ints,
    rates: Array,
    paired: Array | None,
    pools: tuple[Ints, ...],
) -> Groups:
    first_type = np.array([types[0] for types in pools], dtype=np.int64)
    alone = rates[leader][:, first_type]
    first, pool = np.nonzero(alone > 0)
    singles = len(first)
    rate = alone[first, pool]
    second = np.full(singles, -1, dtype=np.int64)
    use_group, use_column, use_time, use_rate = [first], [np.arange(singles)], [np.ones(singles)], [rate]
    if paired is not None:
        beside = paired[:, :, first_type]
        g, h, p = np.nonzero(beside > 0)
        sizes = np.array([len(m) for m in members])
        chosen = (g < h) | ((g == h) & (sizes[g] > 1))
        g, h, p = g[chosen], h[chosen], p[chosen]
        column = singles + np.arange(len(g))
        other = g != h
        first, second, pool = np.concatenate([first, g]), np.concatenate([second, h]), np.concatenate([pool, p])
        use_group += [g, h[other]]
        use_column += [column, column[other]]
        use_time += [np.where(other, 1.0, 2.0), np.ones(int(other.sum()))]
        use_rate += [beside[g, h, p], beside[h, g, p][other]]
    return Groups(
        members=members,
        group_of=group_of,
        gang=problem.gangs[leader],
        pools=pools,
        pool_slots=np.array([problem.slots[types].sum() for types in pools]),
        takes=None if problem.uses is None else np.array(problem.uses, dtype=np.int64),
        limits=tuple(
            (np.flatnonzero((pool == limit.column) & (problem.gangs[leader][first] == limit.gang)), limit.most)
            for limit in problem.limits
        ),
        first=first,
        second=second,
        pool=pool,
        use_group=np.concatenate(use_group),
        use_column=np.concatenate(use_column),
        use_time=np.concatenate(use_time),
        use_rate=np.concatenate(use_rate),
    )


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
    return tuple(combinations), _by_type(problem, groups, np.concatenate(by_pool))


def _by_type(problem: AllocationProblem, groups: Groups, by_pool: Array) -> Array:
    """Time on each GPU type: within a pool, in proportion to the types' slots."""
    result = np.zeros((len(by_pool), len(problem.gpu_types)))
    for pool, types in enumerate(groups.pools):
        slots = problem.slots[types]
        if slots.sum() > 0:
            result[:, types] = by_pool[:, [pool]] * (slots / slots.sum())
    return result


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
