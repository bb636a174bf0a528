"""The study: what is judged was never shown, and a model that is right is found to be right."""

import numpy as np
import pytest

from geminid.goodput.noise import NoiseEstimate
from geminid.goodput.throughput import MODELS, Shape
from geminid.train.measure import Measurement, Point, Recording
from geminid.train.study import LIMITS, Design, study

POLLUX = np.array([0.003, 0.0008, 1e-8, 1e-8, 0.006, 0.002, 1.0])


def recorded(design: Design) -> Recording:
    """A machine that behaves exactly as Pollux's formulas say, and a noise scale of 64 samples."""
    measurements = []
    for point in design.points:
        times = MODELS["pollux"].step_times(POLLUX, Shape.of(1, point.slots, point.per_slot_batch))
        measurements.append(Measurement(point, (float(times.accumulation_s),) * 3, (float(times.step_s),) * 3))
    g2, v = 1.0, 64 / LIMITS.initial  # at M0, two micro-gradients have twice the variance each
    noise = NoiseEstimate.empty().observe(g2 + 2 * v, g2 + v, micro_gradients=2, scale=1.0)
    return Recording(tuple(measurements), noise, 1, (2.3, 1.1), (32, 32))


@pytest.mark.parametrize("slots", range(2, 18))
def test_nothing_is_both_fitted_and_held_out(slots):
    design = Design.of(slots)
    assert not set(design.fitted) & set(design.held_out)
    assert design.held_out
    assert max(point.slots for point in design.points) == slots
    assert len(set(design.points)) == len(design.points)


def test_between_powers_of_two_whole_slot_counts_are_held_out():
    design = Design.of(4)
    assert {point.slots for point in design.fitted} == {1, 2, 4}
    assert 3 in {point.slots for point in design.held_out}


def test_the_true_model_predicts_what_it_was_not_shown():
    design = Design.of(4)
    result = study(design, recorded(design))
    assert result.held_out_error("pollux") < 0.02
    assert result.held_out_error("geminid") < 0.15
    assert result.held_out_spread == 0.0
    shown = {row.measured.point for row in result.comparisons if not row.held_out}
    assert shown == set(design.fitted)
    assert result.fits["geminid"].observations == len(design.fitted)


def test_the_outlook_follows_from_the_fit_and_the_noise_scale():
    design = Design.of(4)
    result = study(design, recorded(design))
    assert result.noise_scale == pytest.approx(64.0)
    assert [seen.slots for seen in result.outlooks] == [1, 2, 3, 4, 8]
    assert [seen.measured for seen in result.outlooks] == [True, True, True, True, False]
    assert result.outlooks[0].speedup == 1.0
    for seen in result.outlooks:
        assert seen.plan.efficiency == pytest.approx((64 + LIMITS.initial) / (64 + seen.plan.total_batch))
        assert seen.plan.goodput <= result.best.plan.goodput


def test_errors_have_a_sign():
    design = Design.of(2)
    row = study(design, recorded(design)).comparisons[0]
    slow = Measurement(Point(1, 2), (1.0,) * 3, (10 * row.predicted_s["pollux"],) * 3)
    assert type(row)(slow, False, row.predicted_s).error("pollux") == pytest.approx(-0.9)
