from __future__ import annotations

import pytest

from geminid.goodput.batchplan import (
    BatchLimits,
    best_plan,
    candidate_plans,
    evaluate,
    untuned_plan,
    worth_retuning,
)
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit

FIT = ThroughputFit("pollux", (0.1, 0.001, 0.1, 0.01, 0.02, 0.002, 2.0), "fitted", 0.0, 8)
NOISY = GradientStats(0.01, 1.0)
LIMITS = BatchLimits(initial=32, largest=4096, smallest_per_slot=8, largest_per_slot=128)


def test_one_slot_accumulates_above_the_initial_batch_so_that_noise_can_be_measured() -> None:
    plans = list(candidate_plans(LIMITS, 1))
    assert plans[0] == (32, 0)
    assert all(steps >= 1 for batch, steps in plans if batch * (steps + 1) > 32)


def test_a_batch_too_large_for_memory_is_split_into_passes() -> None:
    batch, steps = list(candidate_plans(LIMITS, 4))[-1]
    assert (batch, steps) == (128, 7)


def test_a_job_with_a_fixed_batch_size_has_one_plan() -> None:
    fixed = BatchLimits(initial=256, largest=256, smallest_per_slot=8, largest_per_slot=64)
    assert set(candidate_plans(fixed, 2)) == {(64, 1)}
    assert set(candidate_plans(fixed, 1)) == {(64, 3)}
    assert not list(candidate_plans(fixed, 64))


@pytest.mark.parametrize(("initial", "slots"), [(128, 3), (15, 8), (7, 4), (12, 8), (101, 1)])
def test_a_fixed_batch_that_does_not_divide_evenly_stays_fixed(initial: int, slots: int) -> None:
    """Some passes are a sample short; the batch is neither exceeded nor undercut, so no sample counts for more."""
    fixed = BatchLimits(initial=initial, largest=initial, smallest_per_slot=1, largest_per_slot=64)
    plan = best_plan(FIT, GradientStats(1.0, 1e-3), fixed, nodes=1, slots=slots)
    assert plan.total_batch == initial
    assert plan.efficiency == 1.0
    assert slots * (plan.per_slot_batch - 1) * (plan.accumulation_steps + 1) < initial


@pytest.mark.parametrize("wrong", [{"initial": 0}, {"initial": 200}, {"smallest_per_slot": 0}, {"largest_per_slot": 4}])
def test_limits_that_contradict_each_other_are_refused(wrong: dict[str, int]) -> None:
    right = {"initial": 32, "largest": 128, "smallest_per_slot": 8, "largest_per_slot": 64}
    with pytest.raises(ValueError, match="must lie between"):
        BatchLimits(**(right | wrong))


def test_a_slower_link_lowers_the_goodput_of_jobs_that_cross_it() -> None:
    ours = (0.05, 0.001, 3.0, 0.05, 0.01, 0.2, 0.01, 1.0, 1e-8, 1e-10, 0.1, 0.5, 1.5)
    fitted = ThroughputFit("geminid", ours, "fitted", 0.0, 8)
    near = best_plan(fitted, NOISY, LIMITS, nodes=4, slots=4)
    far = best_plan(fitted, NOISY, LIMITS, nodes=4, slots=4, link_slowdown=4.0)
    assert far.goodput < near.goodput
    assert far.total_batch >= near.total_batch


def test_a_fit_is_not_needed_to_start() -> None:
    assert untuned_plan(LIMITS, 1) == (32, 0)
    assert untuned_plan(LIMITS, 16) == (8, 0)
    assert untuned_plan(LIMITS, 1024) is None


def test_a_running_job_is_retuned_when_that_gains_five_percent() -> None:
    best = best_plan(FIT, NOISY, LIMITS, nodes=1, slots=4)
    initial = evaluate(FIT, NOISY, LIMITS, nodes=1, slots=4, per_slot_batch=8, accumulation_steps=0)
    assert best.goodput == pytest.approx(best.throughput * best.efficiency)
    assert worth_retuning(initial, best)
    assert not worth_retuning(best, best)
