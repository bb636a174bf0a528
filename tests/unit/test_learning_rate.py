from __future__ import annotations

import pytest

from geminid.goodput.learning_rate import RULES, TrainingPoint
from geminid.goodput.noise import NoiseEstimate

NOISE = NoiseEstimate.empty(2).observe([3.0, 1.0], [2.0, 1.0], micro_gradients=2, scale=1.0)  # g² 1, 1; v 1, 0


def factor(rule: str, scale: float, **progress: float) -> list[float]:
    factors: list[float] = RULES[rule](TrainingPoint(scale=scale, noise=NOISE, **progress)).tolist()
    return factors


def test_adascale_multiplies_by_each_groups_gain() -> None:
    assert factor("adascale", 4.0) == pytest.approx([2 / (1 / 4 + 1), 1.0], abs=1e-5)


def test_adamscale_takes_the_square_root_of_the_gain() -> None:
    assert factor("adamscale", 4.0) == pytest.approx([1.6**0.5, 1.0], abs=1e-5)


@pytest.mark.parametrize(("rule", "expected"), [("linear", 4.0), ("square_root", 2.0), ("none", 1.0), ("legw", 2.0)])
def test_closed_forms(rule: str, expected: float) -> None:
    assert factor(rule, 4.0) == pytest.approx([expected] * 2)


def test_legw_warms_up_over_epochs_that_grow_with_the_batch() -> None:
    assert factor("legw", 4.0, base_warmup_epochs=0.5, progress_epochs=1.0) == pytest.approx([1.0] * 2)
    assert factor("legw", 4.0, base_warmup_epochs=0.5, progress_epochs=2.0) == pytest.approx([2.0] * 2)


@pytest.mark.parametrize("rule", list(RULES))
def test_at_the_initial_batch_size_no_rule_changes_anything(rule: str) -> None:
    assert factor(rule, 1.0) == pytest.approx([1.0] * 2)


def test_before_any_measurement_the_noise_scale_is_taken_to_be_the_initial_batch_size() -> None:
    """The same assumption as in the goodput: a batch eight times as large is worth 16/9 steps."""
    unknown = TrainingPoint(scale=8.0, noise=NoiseEstimate.empty(3))
    assert RULES["adascale"](unknown).tolist() == pytest.approx([16 / 9] * 3)
    assert unknown.noise.stats().gain(8.0) == pytest.approx(16 / 9)
