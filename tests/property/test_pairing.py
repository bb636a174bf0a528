"""Decisions with pairs against trying everything: feasible, no worse than without, and within their certificate."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from effort import examples
from geminid.policies.pairing import LEAST_TOGETHER, Paired, Worth, pair_up
from geminid.solve.choices import Choices, Prices
from geminid.solve.prices import Priced, solve

Array = NDArray[np.float64]


def random_problem(rng: np.random.Generator, jobs: int) -> tuple[Choices, Worth, Array]:
    """A few jobs for fewer slots, some of them sharing already, and their speeds together on every configuration."""
    types = int(rng.integers(1, 3))
    slots, resource = np.tile([1.0, 2.0], types), np.repeat(np.arange(types), 2)
    staying = rng.uniform(0.5, 2.0, (jobs, 1)) * np.sqrt(slots) * rng.uniform(0.8, 1.2, (jobs, 2 * types))
    staying[rng.random(staying.shape) < 0.2] = -np.inf
    moving = np.where(rng.random(staying.shape) < 0.3, 0.9 * staying, staying)
    partner = np.full(jobs, -1, dtype=np.intp)
    if rng.random() < 0.5:
        partner[:2] = 1, 0
    worth = Worth(staying, moving, partner)
    speeds = rng.choice([0.0, 0.45, 0.6, 0.8, 0.95], (2 * types, jobs, jobs))
    group = rng.integers(-1, 1, jobs) if rng.random() < 0.3 else None
    limit = None if group is None else rng.integers(0, 4, 1).astype(float)
    capacity = rng.integers(0, jobs + 1, types).astype(float)
    return Choices(worth.alone(), slots, resource, capacity, group, limit), worth, speeds


def paired(problem: Choices, worth: Worth, speeds: Array, may_share: NDArray[np.bool_]) -> tuple[Priced, Paired]:
    def solver(choices: Choices, start: Prices | None) -> Priced:
        return solve(choices, start=start, finish_above=None)

    found = solver(problem, None)
    together = pair_up(problem, found, worth, may_share, lambda rows, c: speeds[c][np.ix_(rows, rows)], 0.5, solver)
    return found, together


def pair_worth(worth: Worth, speeds: Array, j: int, k: int, column: int) -> float:
    one, other = speeds[column, j, k], speeds[column, k, j]
    if min(one, other) <= 0 or one + other <= LEAST_TOGETHER or not np.isfinite(worth.staying[[j, k], column]).all():
        return -np.inf
    a, b = np.sqrt(one), np.sqrt(other)
    stay, move = worth.staying[:, column], worth.moving[:, column]
    if worth.partner[j] == k:
        return float(a * stay[j] + b * stay[k])
    return float(max(a * stay[j] + b * move[k], a * move[j] + b * stay[k]))


def best_of_all(problem: Choices, worth: Worth, speeds: Array) -> float:
    """The most that any decision with pairs is worth."""
    columns, group = range(len(problem.slots)), problem.group
    limit = np.zeros(0) if problem.group_capacity is None else problem.group_capacity

    def best(left: tuple[int, ...], free: tuple[float, ...]) -> float:
        if not left:
            return 0.0
        j, rest = left[0], left[1:]
        value = best(rest, free)
        for c in columns:
            room = list(free)
            room[problem.resource[c]] -= problem.slots[c]
            if group is not None and group[j] >= 0:
                room[len(problem.capacity) + group[j]] -= problem.slots[c]
            if min(room) < 0:
                continue
            if np.isfinite(problem.utility[j, c]):
                value = max(value, float(problem.utility[j, c]) + best(rest, tuple(room)))
            for k in rest:
                if group is None or group[j] == group[k]:
                    shared = pair_worth(worth, speeds, j, k, c)
                    if np.isfinite(shared):
                        value = max(value, shared + best(tuple(x for x in rest if x != k), tuple(room)))
        return value

    return best(tuple(range(len(problem.utility))), (*problem.capacity.tolist(), *limit.tolist()))


def test_the_best_decision_with_pairs_lies_within_the_certificate() -> None:
    rng = np.random.default_rng(0)
    lost, shared = [], 0
    for _ in range(examples(200)):
        jobs = int(rng.integers(2, 5))
        problem, worth, speeds = random_problem(rng, jobs)
        found, together = paired(problem, worth, speeds, np.ones(jobs, dtype=bool))
        solution, best = together.solution, best_of_all(problem, worth, speeds)
        assert found.value - 1e-9 <= solution.value <= best + 1e-9 <= solution.bound + 2e-9
        _assert_carried_out(problem, worth, speeds, together)
        lost.append(1.0 - solution.value / best if best > 0 else 0.0)
        shared += len(together.pairs)
    assert shared > 0.3 * len(lost)
    assert float(np.mean(lost)) < 0.03


def _assert_carried_out(problem: Choices, worth: Worth, speeds: Array, together: Paired) -> None:
    """The decision is worth what it says, within the slots that there are, and nobody is in two pairs."""
    choice, value = together.solution.choice, 0.0
    used, by_group = np.zeros(len(problem.capacity)), np.zeros(problem.groups)
    members = [row for host, guest, *_ in together.pairs for row in (host, guest)]
    assert len(set(members)) == len(members)
    takes = [(row, None) for row in np.flatnonzero(choice >= 0) if row not in members]
    for j, k in [*takes, *((host, guest) for host, guest, *_ in together.pairs)]:
        column = choice[j]
        used[problem.resource[column]] += problem.slots[column]
        if problem.group is not None and problem.group[j] >= 0:
            by_group[problem.group[j]] += problem.slots[column]
        if k is not None:
            assert choice[k] == column
            assert problem.group is None or problem.group[j] == problem.group[k]
        value += problem.utility[j, column] if k is None else pair_worth(worth, speeds, j, k, column)
    assert (used <= problem.capacity + 1e-9).all()
    assert problem.group_capacity is None or (by_group <= problem.group_capacity + 1e-9).all()
    assert value == pytest.approx(together.solution.value)


def test_where_sharing_does_not_pay_nothing_changes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(examples(50)):
        problem, worth, speeds = random_problem(rng, 4)
        everybody, nobody = np.ones(4, dtype=bool), np.zeros(4, dtype=bool)
        for slow, who in ((np.full_like(speeds, 0.5), everybody), (0.0 * speeds, everybody), (speeds, nobody)):
            found, together = paired(problem, worth, slow, who)
            assert together.solution is found
            assert not together.pairs


def test_where_there_is_room_nobody_shares() -> None:
    rng = np.random.default_rng(2)
    problem, worth, speeds = random_problem(rng, 4)
    roomy = Choices(problem.utility, problem.slots, problem.resource, np.full(len(problem.capacity), 100.0))
    assert not paired(roomy, worth, speeds, np.ones(4, dtype=bool))[1].pairs
