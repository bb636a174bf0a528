"""Values that Pollux's published code computes, and the facts its paper states."""

from __future__ import annotations

import numpy as np
import pytest

from geminid.goodput.batchplan import BatchLimits, best_plan
from geminid.goodput.efficiency import GradientStats, gain
from geminid.goodput.fit import ThroughputFit, fit_many, loss_of
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.throughput import MODELS, Shape

PUBLISHED = ThroughputFit("pollux", (0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14), "fitted", 0.0, 1)
GRADIENT = GradientStats(0.00136, 0.000502)
LIMITS = BatchLimits(initial=128, largest=1280, smallest_per_slot=64, largest_per_slot=256)


@pytest.mark.parametrize(("slots", "goodput", "batch"), [(1, 150.936, 128), (4, 299.145, 64)])
def test_best_goodput_and_batch_are_the_published_ones(slots: int, goodput: float, batch: int) -> None:
    plan = best_plan(PUBLISHED, GRADIENT, LIMITS, nodes=1, slots=slots)
    assert plan.goodput == pytest.approx(goodput, abs=5e-4)
    assert plan.per_slot_batch == batch


def test_a_configuration_whose_smallest_batch_is_too_large_has_no_goodput() -> None:
    """The published code returns a total batch above M_max here."""
    assert best_plan(PUBLISHED, GRADIENT, LIMITS, nodes=8, slots=32).goodput == 0.0


@pytest.mark.parametrize(
    ("scale", "gains"), [(2, [2, 2, 2, 1.5]), (10, [10, 10, 10, 2.5]), (0.5, [0.5, 0.5, 0.5, 0.6])]
)
def test_adascale_gains_per_group(scale: float, gains: list[float]) -> None:
    assert gain([-1, 0, -1, 1], [1, 0, 0, 2], scale) == pytest.approx(gains, abs=1e-5)


@pytest.mark.parametrize("noise", [0.001, 0.01])
def test_the_published_fit_test(noise: float) -> None:
    """1,000 points from known parameters: the fitted loss is within 10 % of the true parameters' loss, or lower."""
    truth = np.array([0.1, 0.01, 0.5, 1.0, 1e-6, 1e-6, 1.2])
    rng = np.random.default_rng(0)
    nodes = rng.integers(1, 17, 1000)
    slots = nodes * rng.integers(1, 5, 1000)
    batch = rng.integers(32, 1024, 1000)
    times = MODELS["pollux"].step_times(truth, Shape.of(nodes, slots, batch))
    factor = np.exp(rng.normal(0.0, noise, (2, 1000)))
    profile = Profile.of(
        Observation(
            nodes=int(n),
            slots=int(k),
            busiest_node_slots=int(-(-k // n)),
            per_slot_batch=int(m),
            accumulation_s=float(grad),
            step_s=float(step),
        )
        for n, k, m, grad, step in zip(
            nodes, slots, batch, times.accumulation_s * factor[0], times.step_s * factor[1], strict=True
        )
    )
    fitted = fit_many([profile], "pollux")[0]
    assert fitted.source == "fitted"
    assert loss_of("pollux", fitted.parameters, profile) <= 1.1 * loss_of("pollux", truth.tolist(), profile)
