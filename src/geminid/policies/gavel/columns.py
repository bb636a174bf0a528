"""Which columns of a large program matter: pairs of jobs that are all different are many, and few of them are used.

An optimal solution at a vertex uses no more columns than there are rows. So begin with every job alone (and the pairs
of the last solve), solve, and let the dual values tell which of the other columns would be worth something: what their
throughputs bring, less the time and the slots they take. Add the best of them for every job and solve again, from the
last basis, until none is worth anything: the optimum is that of all columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from geminid.policies.gavel.groups import Groups, Ints
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import Array
from geminid.policies.gavel.requirement import Cut

#: Fewer columns than this are all taken.
MANY = 4_000

#: Columns that a job gets at a time.
MORE = 4

#: A column is worth nothing up to this part of what the largest gain is, or of a level.
WORTH = 1e-7


def first_columns(groups: Groups, memory: Memory | None = None) -> Ints:
    """The columns to begin with: all of them where there are few, and else jobs alone and what the last solve used."""
    if len(groups.first) <= MANY:
        return np.arange(len(groups.first))
    alone = np.flatnonzero(groups.second < 0)
    return alone if memory is None or not memory.basic else np.concatenate([alone, _named(groups, memory)])


def only(groups: Groups, columns: Ints) -> Groups:
    """The same groups with some of their columns, in this order."""
    if len(columns) == len(groups.first):
        return groups
    position = np.full(len(groups.first), -1)
    position[columns] = np.arange(len(columns))
    uses = np.flatnonzero(position[groups.use_column] >= 0)
    limits = []
    for limited, most in groups.limits:
        kept = position[limited]
        limits.append((kept[kept >= 0], most))
    return replace(
        groups,
        first=groups.first[columns],
        second=groups.second[columns],
        pool=groups.pool[columns],
        use_group=groups.use_group[uses],
        use_column=position[groups.use_column[uses]],
        use_time=groups.use_time[uses],
        use_rate=groups.use_rate[uses],
        limits=tuple(limits),
    )


def worth_of(groups: Groups, duals: Array, cuts: Sequence[Cut]) -> Array:
    """What a unit of each column would bring, by the dual values of the rows: groups, pools, limits, cuts.

    What it makes for those who need it, less the time and the slots that it takes.
    """
    duals = np.abs(duals)
    count, pools = len(groups.members), len(groups.pools)
    fixed = count + pools + len(groups.limits)
    plain = np.zeros(count)
    steps: dict[int, list[tuple[float, float]]] = {}
    for cut, dual in zip(cuts, duals[fixed:].tolist(), strict=True):
        if cut.theta == 0:
            plain[cut.group] += dual
        elif dual > 0:
            steps.setdefault(cut.group, []).append((cut.theta, dual))
    made = plain[groups.use_group] * groups.use_rate
    for g, of_group in steps.items():
        mine = np.flatnonzero(groups.use_group == g)
        for theta, dual in of_group:
            made[mine] += dual * np.maximum(groups.use_rate[mine] - theta, 0.0)
    net = groups.use_time * (made - duals[:count][groups.use_group])
    worth = np.bincount(groups.use_column, net, minlength=len(groups.first)).astype(float)
    worth -= groups.gang[groups.first] * duals[count : count + pools][groups.capacity_row[groups.pool]]
    for (columns, _), dual in zip(groups.limits, duals[count + pools : fixed].tolist(), strict=True):
        worth[columns] -= dual
    return np.asarray(worth)


def best_columns(groups: Groups, columns: Ints, worth: Array) -> Ints:
    """Of some columns, for every group those that are worth most."""
    chosen = []
    for member in (groups.first, groups.second):
        owner = member[columns]
        order = np.lexsort((-worth, owner))
        starts = np.flatnonzero(np.diff(owner[order], prepend=-2))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        chosen.append(columns[order[rank < MORE]])
    return np.unique(np.concatenate(chosen))


def column_names(groups: Groups) -> list[Hashable]:
    """Names of the columns, the same in another program over the same kinds of jobs."""
    pools = [tuple(types.tolist()) for types in groups.pools]
    return [
        (groups.names[g], groups.names[h] if h >= 0 else None, pools[p])
        for g, h, p in zip(groups.first.tolist(), groups.second.tolist(), groups.pool.tolist(), strict=True)
    ]


def _named(groups: Groups, memory: Memory) -> Ints:
    """The pairs that were basic in the last solve, as far as there are such groups now."""
    group = {name: g for g, name in enumerate(groups.names)}
    pool = {tuple(types.tolist()): p for p, types in enumerate(groups.pools)}
    wide = len(groups.members) + 1
    wanted = []
    for name in memory.basic:
        if isinstance(name, tuple) and len(name) == 3 and name[0] in group and name[1] in group and name[2] in pool:
            ends = sorted((group[name[0]], group[name[1]]))
            wanted.append((ends[0] * wide + ends[1]) * len(pool) + pool[name[2]])
    pairs = np.flatnonzero(groups.second >= 0)
    codes = (groups.first[pairs] * wide + groups.second[pairs]) * len(pool) + groups.pool[pairs]
    return pairs[np.isin(codes, np.array(wanted, dtype=np.int64))]
