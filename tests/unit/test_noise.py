from __future__ import annotations

import math

import numpy as np
import pytest

from geminid.goodput.noise import DECAY_PER_INITIAL_STEP, STALE_AFTER_INITIAL_STEPS, NoiseEstimate

INITIAL_BATCH = 16


def observe_quadratic(steps: int, replicas: int, per_replica: int, seed: int) -> tuple[NoiseEstimate, float, float]:
    """Train on noise of a known kind: per-sample gradients are the true one plus independent Gaussian noise."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0.0, 0.3, 40)
    deviation = rng.uniform(0.5, 2.0, 40)
    estimate = NoiseEstimate.empty()
    scale = replicas * per_replica / INITIAL_BATCH
    for _ in range(steps):
        gradients = truth + rng.normal(0.0, deviation / math.sqrt(per_replica), (replicas, 40))
        local, total = float((gradients**2).sum(axis=1).mean()), float((gradients.mean(axis=0) ** 2).sum())
        estimate = estimate.observe(local, total, micro_gradients=replicas, scale=scale)
    return estimate, float((truth**2).sum()), float((deviation**2).sum()) / INITIAL_BATCH


@pytest.mark.parametrize(("replicas", "per_replica"), [(2, 8), (4, 8), (8, 16)])
def test_the_estimators_are_unbiased(replicas: int, per_replica: int) -> None:
    """Relative to the truth (every run has its own), averages over runs lie within four standard errors of one."""
    runs = [observe_quadratic(200, replicas, per_replica, seed) for seed in range(30)]
    sqr = np.array([r[0].stats().squared_gradient / r[1] for r in runs])
    var = np.array([r[0].stats().variance / r[2] for r in runs])
    for values in (sqr, var):
        error = values.std(ddof=1) / math.sqrt(len(values))
        assert abs(values.mean() - 1.0) < 4 * error


def test_the_variance_refers_to_the_initial_batch_size_whatever_batch_it_was_measured_at() -> None:
    small = observe_quadratic(4000, 2, 8, 3)[0].stats().variance
    large = observe_quadratic(4000, 8, 32, 3)[0].stats().variance
    assert small == pytest.approx(large, rel=0.05)


def test_the_first_observation_counts_fully() -> None:
    estimate = NoiseEstimate.empty().observe(3.0, 2.0, micro_gradients=2, scale=1.0)
    assert estimate.squared_gradients == pytest.approx([2 * 2.0 - 3.0])
    assert estimate.variances == pytest.approx([1.0])


def test_a_step_at_a_large_batch_weighs_as_much_as_the_small_steps_it_replaces() -> None:
    start = NoiseEstimate.empty().observe(3.0, 2.0, micro_gradients=2, scale=1.0)
    after = start.observe(30.0, 20.0, micro_gradients=2, scale=10.0)
    keep = DECAY_PER_INITIAL_STEP**10
    first = 1.0 - DECAY_PER_INITIAL_STEP
    expected = (keep * first * 1.0 + (1.0 - keep) * 10.0) / (keep * first + (1.0 - keep))
    assert after.squared_gradients == pytest.approx([expected])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_overflown_step_changes_nothing(bad: float) -> None:
    before = NoiseEstimate.empty().observe(3.0, 2.0, micro_gradients=2, scale=1.0)
    assert before.observe(bad, 2.0, micro_gradients=2, scale=1.0) == before
    assert before.observe(3.0, bad, micro_gradients=2, scale=1.0) == before


def test_consecutive_gradients_stand_in_for_replicas_until_there_are_some() -> None:
    alone = NoiseEstimate.empty().observe_pair(4.0, 2.0, 2.5, scale=1.0)
    assert alone.differenced
    assert alone.squared_gradients == pytest.approx([2 * 2.5 - 3.0])
    assert alone.variances == pytest.approx([(3.0 - 2.5) * 2.0])
    together = alone.observe(3.0, 2.0, micro_gradients=2, scale=1.0)
    assert not together.differenced
    assert together == NoiseEstimate.empty().observe(3.0, 2.0, micro_gradients=2, scale=1.0)
    later = together.observe_pair(4.0, 2.0, 2.5, scale=1.0)
    assert (later.stats(), later.differenced) == (together.stats(), False)


def test_consecutive_gradients_take_over_again_when_micro_gradients_are_long_gone() -> None:
    """A job that shrank to one slot must not train on with the noise of its youth."""
    estimate = NoiseEstimate.empty().observe(3.0, 2.0, micro_gradients=2, scale=1.0)
    for _ in range(int(STALE_AFTER_INITIAL_STEPS / 4)):
        assert not estimate.differenced
        estimate = estimate.observe_pair(40.0, 20.0, 25.0, scale=4.0)
    assert estimate.differenced
    assert estimate.squared_gradients == pytest.approx([2 * 25.0 - 30.0])


def test_the_differenced_estimator_finds_the_noise_of_a_still_gradient() -> None:
    rng = np.random.default_rng(0)
    estimate, previous = NoiseEstimate.empty(), rng.normal(0.2, 1.0, 400)
    for _ in range(500):
        current = rng.normal(0.2, 1.0, 400)
        mean = ((previous + current) / 2) ** 2
        estimate = estimate.observe_pair((previous**2).sum(), (current**2).sum(), mean.sum(), scale=1.0)
        previous = current
    stats = estimate.stats()
    assert stats.squared_gradient == pytest.approx(400 * 0.04, rel=0.25)
    assert stats.variance == pytest.approx(400.0, rel=0.05)


def test_groups_are_summed_before_they_are_clamped() -> None:
    estimate = NoiseEstimate.empty(2).observe([5.0, 2.0], [2.0, 4.0], micro_gradients=2, scale=1.0)
    assert estimate.squared_gradients == pytest.approx([-1.0, 6.0])
    assert estimate.stats().squared_gradient == pytest.approx(5.0)
    assert estimate.group_gains(4.0)[0] == pytest.approx(4.0)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        NoiseEstimate.empty().observe(1.0, 1.0, micro_gradients=1, scale=1.0)
    with pytest.raises(ValueError, match="parameter groups"):
        NoiseEstimate.empty(2).observe(1.0, 1.0, micro_gradients=2, scale=1.0)
