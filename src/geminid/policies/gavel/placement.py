"""Placement sensitivity: gangs that stand on as few nodes as possible, and gangs that do not.

A gang that is spread over more nodes than it needs may train more slowly. As in the paper, every GPU type then has two
columns: time on as few nodes as possible, and time spread, at a throughput of its own; both take the same slots. That
alone would never choose the second. But not everyone can stand whole at once: of three slots on nodes of four, one gang
fits a node and a slot is left over. So the first column has room for no more gangs of a size than the nodes have. The
second columns exist only where that limit is below the slots and spreading costs something; the rounds see the sum.

(The published code has tables for spread gangs and never reads them.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from geminid.policies.gavel.problem import AllocationProblem, Array, Limit, PairThroughputs, TimeFractions


def whole_gangs(node_slots: Sequence[int], gang: int) -> int:
    """How many gangs of a size can stand on as few nodes as possible each, at once."""
    largest = max(node_slots, default=0)
    if gang <= largest:
        return sum(slots // gang for slots in node_slots)
    nodes = -(-gang // max(largest, 1))
    full = sum(slots == largest for slots in node_slots)
    return full // nodes


def with_spread(
    problem: AllocationProblem, spread: Array, node_slots: Mapping[str, Sequence[int]]
) -> AllocationProblem:
    """The problem with columns for spread gangs, where they matter; ``spread`` are throughputs (jobs × types)."""
    types = len(problem.gpu_types)
    slower = (problem.usable > 0) & (spread > 0) & (spread < problem.usable * (1 - 1e-9))
    limits = []
    for j, gpu_type in enumerate(problem.gpu_types):
        for gang in np.unique(problem.gangs[slower[:, j]]).astype(int).tolist():
            most = whole_gangs(node_slots[gpu_type], gang)
            if (most + 1) * gang <= problem.slots[j]:
                limits.append(Limit(j, gang, float(most)))
    if not limits:
        return problem
    limited = np.zeros(problem.usable.shape, dtype=bool)
    for limit in limits:
        limited[problem.gangs == limit.gang, limit.column] = True
    again = np.where(limited, np.where(spread > 0, np.minimum(spread, problem.usable), problem.usable), 0.0)
    pairs = problem.pairs
    if pairs is not None:  # what a pair loses by sharing it loses on any nodes; spread pairs are not considered
        pairs = PairThroughputs(pairs.kinds, np.concatenate([pairs.rates, np.zeros_like(pairs.rates)], axis=2))
    return replace(
        problem,
        gpu_types=(*problem.gpu_types, *(f"{gpu_type}, spread" for gpu_type in problem.gpu_types)),
        slots=np.tile(problem.slots, 2),
        throughputs=np.hstack([problem.throughputs, again]),
        pairs=pairs,
        costs=None if problem.costs is None else np.tile(problem.costs, 2),
        reference=problem.reference_throughput,
        uses=(*range(types), *range(types)),
        limits=tuple(limits),
    )


def folded(problem: AllocationProblem, fractions: TimeFractions) -> TimeFractions:
    """Time on each type, whole or spread."""
    if problem.uses is None:
        return fractions
    types = max(problem.uses) + 1
    time = fractions.fractions[:, :types] + fractions.fractions[:, types:]
    return replace(fractions, gpu_types=fractions.gpu_types[:types], fractions=time)
