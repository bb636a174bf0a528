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


def test_a_fixed_batch_that_does_not_divide_evenly_is_never_exceeded() -> None:
    fixed = BatchLimits(initial=128, largest=128, smallest_per_slot=8, largest_per_slot=64)
    assert set(candidate_plans(fixed, 3)) == {(42, 0)}


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
