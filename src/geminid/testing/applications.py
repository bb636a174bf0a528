"""A made-up application for simulations whose results a test can compute by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.sim.application import Application, GradientTruth, StepTimeTruth


class LinearStepTimes(StepTimeTruth):
    """A pass takes 0.1 s and 1 ms per sample; synchronising several slots takes 0.1 s, wherever they are."""

    most_slots = 64

    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> tuple[float, float]:
        """Seconds of a pass and of a whole step."""
        pass_s = 0.1 + 0.001 * per_slot_batch
        return pass_s, pass_s + (0.1 if sum(placement) > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class SteadyNoise(GradientTruth):
    """Gradients whose squared norm is 1 and whose variance is 1, plus ``growth`` per epoch."""

    growth: float = 0.0

    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """The statistics in an epoch, at any batch size."""
        return GradientStats(1.0, 1.0 + self.growth * epoch)


def toy_application(
    gpu_types: Sequence[str] = ("v100",), *, rescale_s: float = 0.0, noise_growth: float = 0.0
) -> Application:
    """Two epochs of 1,000 steps with an initial batch of 100, equally fast on all of these GPU types."""
    limits = BatchLimits(initial=100, largest=3200, smallest_per_slot=10, largest_per_slot=200)
    return Application(
        name="toy",
        progress_steps=np.array([1000.0, 2000.0]),
        gradient=SteadyNoise(noise_growth),
        truth=dict.fromkeys(gpu_types, LinearStepTimes()),
        limits=dict.fromkeys(gpu_types, limits),
        rescale_s=rescale_s,
    )
