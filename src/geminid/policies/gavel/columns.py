"""Which columns of a large program matter: pairs of jobs that are all different are many, and few of them are used.

An optimal solution at a vertex uses no more columns than there are rows. So begin with every job alone and beside its
best partners, solve, and let the dual values tell which of the other columns would raise the level: they are worth what
their throughputs are, less the time and the slots they take. Add the best of them for every job and solve again, from
the last basis, until none is worth anything: the optimum is that of all columns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from geminid.policies.gavel.groups import Groups, Ints
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import Array, Mask
from geminid.policies.gavel.program import Requirement, TimeProgram

#: Fewer columns than this are all taken.
MANY = 4_000

#: Partners that a job begins with on each type, and columns that it gets at a time.
_FIRST = 2
_MORE = 3

#: A column is worth nothing up to this.
_WORTH = 1e-7
_ROUNDS = 60


def relevant(groups: Groups, needs: Requirement) -> Groups:
    """The groups with the columns that can matter for the highest level; all of them where there are few."""
    if len(groups.first) <= MANY:
        return groups
    pairs = np.flatnonzero(groups.second >= 0)
    keep = groups.second < 0
    keep[_best(groups, pairs, _kept(groups)[pairs], _FIRST, by_pool=True)] = True
    memory = Memory()
    for _ in range(_ROUNDS):
        few = only(groups, keep)
        program = TimeProgram(few, memory)
        if program.raise_level(needs) is None:
            return groups
        worth = program.worth_of(groups)
        left = np.flatnonzero(~keep & (worth > _WORTH))
        if not len(left):
            return few
        keep[_best(groups, left, worth[left], _MORE)] = True
    return groups


def only(groups: Groups, keep: Mask) -> Groups:
    """The same groups with some of their columns."""
    position = np.cumsum(keep) - 1
    uses = keep[groups.use_column]
    return replace(
        groups,
        first=groups.first[keep],
        second=groups.second[keep],
        pool=groups.pool[keep],
        use_group=groups.use_group[uses],
        use_column=position[groups.use_column[uses]],
        use_time=groups.use_time[uses],
        use_rate=groups.use_rate[uses],
        limits=tuple((position[columns[keep[columns]]], most) for columns, most in groups.limits),
    )


def _kept(groups: Groups) -> Array:
    """How much of their best rates the jobs of each column have together."""
    best = np.zeros(len(groups.members))
    np.maximum.at(best, groups.use_group, groups.use_rate)
    part = groups.use_time * groups.use_rate / best[groups.use_group]
    return np.asarray(np.bincount(groups.use_column, part, minlength=len(groups.first)))


def _best(groups: Groups, columns: Ints, worth: Array, most: int, *, by_pool: bool = False) -> Ints:
    """Of some columns, for every group (on every pool) those that are worth most."""
    chosen = []
    for member in (groups.first, groups.second):
        owner = member[columns] * (len(groups.pools) if by_pool else 1) + (groups.pool[columns] if by_pool else 0)
        order = np.lexsort((-worth, owner))
        starts = np.flatnonzero(np.diff(owner[order], prepend=-(1 << 40)))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        chosen.append(columns[order[rank < most]])
    return np.unique(np.concatenate(chosen))
