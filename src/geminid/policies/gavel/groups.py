"""Identical jobs and GPU types merged, so that a program's size depends on how many kinds there are, not how many jobs.

Jobs that train equally fast everywhere form a group, GPU types that are equally fast for everyone a pool. A column of
the program is the total time that a group, or a pair of groups, spends on a type, summed over their members. Whether a
total can be handed out to members that need different throughputs is a question of majorisation, answered exactly in
``program.py``; ``handout.py`` hands it out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geminid.policies.gavel.problem import AllocationProblem, Array

Ints = NDArray[np.int64]


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
    pools = pools_of(problem, rates[leader], paired)
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


def pools_of(problem: AllocationProblem, rates: Array, paired: Array | None = None) -> tuple[Ints, ...]:
    """GPU types that are equally fast for everyone and cost the same, together."""
    found: dict[Hashable, list[int]] = {}
    for j in range(len(problem.gpu_types)):
        shared = paired[:, :, j].tobytes() if paired is not None else b""
        apart = j if problem.uses is not None else -1
        key = (rates[:, j].tobytes(), shared, problem.costs[j] if problem.costs is not None else 0.0, apart)
        found.setdefault(key, []).append(j)
    return tuple(np.array(types, dtype=np.int64) for types in found.values())


def by_type(problem: AllocationProblem, pools: tuple[Ints, ...], by_pool: Array) -> Array:
    """Time on each GPU type: within a pool, in proportion to the types' slots."""
    result = np.zeros((len(by_pool), len(problem.gpu_types)))
    for pool, types in enumerate(pools):
        slots = problem.slots[types]
        if slots.sum() > 0:
            result[:, types] = by_pool[:, [pool]] * (slots / slots.sum())
    return result


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
