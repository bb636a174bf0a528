"""The interior-point method for many small blocks: the general program's optima, the middle of them, and sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from geminid.bench.policies import all_different, batch, synthetic_input, under_way
from geminid.policies.gavel import columns
from geminid.policies.gavel import level as levels
from geminid.policies.gavel.admission import cheapest
from geminid.policies.gavel.auction import _LogValue
from geminid.policies.gavel.finish_time import finish_time_fairness
from geminid.policies.gavel.groups import merge
from geminid.policies.gavel.makespan import min_makespan
from geminid.policies.gavel.maxmin import max_min_fairness
from geminid.policies.gavel.problem import AllocationProblem
from geminid.policies.gavel.program import TimeProgram
from geminid.policies.gavel.requirement import Affine
from geminid.solve.blocks import Blocks
from geminid.solve.raising import raise_level
from geminid.solve.sums import largest_sum
from geminid.solve.tangents import TangentProgram


def several(jobs: int, types: int, seed: int) -> AllocationProblem:
    """Jobs of their own speeds, gangs and weights, some way into their work; some cannot run everywhere."""
    rng = np.random.default_rng(seed)
    problem = all_different(under_way(replace(synthetic_input(jobs, types, seed), pairs=None)))
    made = tuple(
        replace(job, gang=gang, weight=weight)
        for job, gang, weight in zip(
            problem.jobs, rng.choice([1, 2, 4], jobs).tolist(), rng.uniform(0.2, 5.0, jobs).tolist(), strict=True
        )
    )
    barred = rng.random(problem.throughputs.shape) < 0.1
    barred[:, 0] = False
    return replace(problem, jobs=made, throughputs=np.where(barred, 0.0, problem.throughputs))


@pytest.mark.parametrize("solve", [max_min_fairness, min_makespan, finish_time_fairness])
@pytest.mark.parametrize(("jobs", "types", "seed"), [(80, 3, 0), (120, 1, 1), (90, 8, 2)])
def test_the_level_is_that_of_the_general_program(solve: object, jobs: int, types: int, seed: int) -> None:
    assert callable(solve)
    problem = several(jobs, types, seed)
    assert levels.in_the_middle(problem, Affine(np.zeros(jobs), problem.weights / problem.gangs)) is not None
    assert solve(problem, choice="centre").objective == pytest.approx(solve(problem).objective, rel=1e-6)


def test_merging_identical_blocks_does_not_move_the_middle() -> None:
    rng = np.random.default_rng(0)
    rates, count, slots = rng.uniform(0.5, 2.0, (5, 3)), np.array([1, 2, 3, 4, 5]), np.array([2.0, 3.0, 4.0])
    one = raise_level(Blocks(rates, np.ones(5), count.astype(float), slots), Affine(np.zeros(5), np.ones(5)))
    apart = np.repeat(np.arange(5), count)
    all_ = raise_level(Blocks(rates[apart], np.ones(15), np.ones(15), slots), Affine(np.zeros(15), np.ones(15)))
    assert one is not None
    assert all_ is not None
    assert one.level == pytest.approx(all_.level, abs=1e-7)
    np.testing.assert_allclose(one.time[apart], all_.time, atol=1e-4)


def test_without_contention_everyone_has_its_fastest_type() -> None:
    found = raise_level(
        Blocks(np.array([[2.0, 1.0], [1.0, 4.0]]), np.ones(2), np.ones(2), np.array([9.0, 9.0])),
        Affine(np.zeros(2), np.array([1.0, 2.0])),
    )
    assert found is not None
    assert found.level == pytest.approx(2.0, abs=1e-7)
    np.testing.assert_allclose(found.prices, 0.0, atol=1e-6)


def test_the_largest_product_divides_a_slot_equally() -> None:
    value = _LogValue(np.zeros(3), np.array([1.0, 5.0, 25.0]))
    sets = np.array([[True, True, True], [False, True, True], [True, False, False]])
    made = largest_sum(Blocks(np.full((3, 1), 2.0), np.ones(3), np.ones(3), np.ones(1)), value, sets).throughput
    np.testing.assert_allclose(made, [[2 / 3] * 3, [0, 1, 1], [2, 0, 0]], atol=1e-6)


def test_two_types_are_shared_where_each_is_better() -> None:
    """Eisenberg and Gale's market: each buys what is cheapest for it, all money is spent."""
    rates = np.array([[4.0, 1.0], [1.0, 4.0], [2.0, 2.0]])
    value = _LogValue(np.zeros(3), np.ones(3))
    made = largest_sum(Blocks(rates, np.ones(3), np.ones(3), np.ones(2)), value, np.ones((1, 3), dtype=bool)).throughput
    np.testing.assert_allclose(made[0], [8 / 3, 8 / 3, 4 / 3], rtol=1e-6)


def spread_out(seed: int) -> tuple[Blocks, _LogValue]:
    """Bidders from a second to a million seconds old, with seconds or weeks of work: values that are almost flat."""
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    rates = 10.0 ** rng.uniform(-0.5, 0.5, (jobs, types)) * (rng.random((jobs, types)) > 0.2)
    slots = rng.integers(4, 12, types).astype(float)
    value = _LogValue(10.0 ** rng.uniform(0, 6, jobs), 10.0 ** rng.uniform(1, 6, jobs))
    return Blocks(rates, rng.choice([1.0, 2.0, 4.0], jobs), np.ones(jobs), slots), value


def test_tangents_find_what_newtons_steps_find_and_what_they_do_not() -> None:
    failed = 0
    for seed in range(40):
        blocks, value = spread_out(seed)
        count = len(blocks.rates)
        sets = np.vstack([np.ones((1, count), dtype=bool), ~np.eye(count, dtype=bool)])
        program = TangentProgram(blocks, value)
        for present, made in zip(sets, largest_sum(blocks, value, sets).throughput, strict=True):
            found = program.solve(present)
            assert found is not None
            assert (found <= blocks.rates.max(axis=1) + 1e-7).all()
            if np.isnan(made).any():
                failed += 1
                continue
            assert value.at(found).sum() == pytest.approx(value.at(made).sum(), abs=1e-6 * count)
    assert failed  # or this tests nothing


@pytest.mark.parametrize("seed", [207, 302, 358, 392])
def test_nobody_gets_more_than_all_of_the_time_at_the_largest_sum(seed: int) -> None:
    """Rounding takes the iteration beyond the limits here."""
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(8, 16))
    value = _LogValue(10.0 ** rng.uniform(0, 6, jobs), 10.0 ** rng.uniform(1, 6, jobs))
    blocks = Blocks(np.ones((jobs, 1)), rng.choice([1.0, 2.0, 8.0], jobs), np.ones(jobs), np.array([10.0]))
    assert not (largest_sum(blocks, value, np.ones((1, jobs), dtype=bool)).throughput > 1 + 1e-5).any()


def test_the_cheapest_way_to_a_need_mixes_two_types_or_idles() -> None:
    rates, costs = np.array([[1.0, 2.0, 3.0]] * 4), np.array([[1.0, 1.5, 6.0]] * 4)
    found = cheapest(rates, costs, np.array([0.5, 2.0, 2.5, 3.0]))
    np.testing.assert_allclose(found, [0.375, 1.5, 3.75, 6.0])


@pytest.mark.parametrize("solve", [max_min_fairness, min_makespan])
def test_few_columns_come_to_the_optimum_of_all(solve: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of jobs that are all different: columns that the dual values ask for are enough."""
    assert callable(solve)
    problem = batch(all_different(synthetic_input(40, 3, 0)))
    everything = solve(problem).objective
    monkeypatch.setattr(columns, "MANY", 0)
    program = TimeProgram(merge(problem))
    assert program.raise_level(Affine(np.zeros(40), np.ones(40))) is not None
    assert len(program.columns) < len(program.groups.first)
    for choice in ("vertex", "centre"):
        assert solve(problem, choice=choice).objective == pytest.approx(everything, rel=1e-6)
