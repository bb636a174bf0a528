from __future__ import annotations

import math

import pytest

from geminid.goodput.efficiency import GradientStats, efficiency, gain


def test_at_the_initial_batch_size_a_sample_is_worth_one() -> None:
    assert efficiency(0.3, 2.0, 1.0) == pytest.approx(1.0)


def test_efficiency_is_the_papers_formula() -> None:
    stats, initial, total = GradientStats(0.5, 2.0), 64, 512
    phi = stats.noise_scale(initial)
    assert phi == pytest.approx(64 * 2.0 / 0.5)
    assert stats.efficiency(total / initial) == pytest.approx((phi + initial) / (phi + total))


def test_pure_noise_makes_large_batches_free_and_no_noise_makes_them_useless() -> None:
    assert gain(0.0, 1.0, 8.0) == pytest.approx(8.0)
    assert gain(1.0, 0.0, 8.0) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_nonsensical_report_counts_as_unknown(bad: float) -> None:
    assert GradientStats.clamped(bad, 1.0) == GradientStats()
    assert GradientStats.clamped(1.0, bad) == GradientStats()


def test_negative_estimates_are_clamped() -> None:
    stats = GradientStats.clamped(-3.0, -1.0)
    assert stats.squared_gradient == 0.0
    assert stats.noise_scale(32) == math.inf
    assert stats.efficiency(100.0) == pytest.approx(1.0)
