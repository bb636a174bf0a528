"""How fast a simulated job progresses in every epoch, computed once for each batch plan and placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.efficiency import gain
from geminid.network import WITHIN_RACK, Path
from geminid.sim.application import Application
from geminid.sim.tuner import Batch

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity:
    """An application as a cache key, compared by identity; a simulation makes one key for each application."""

    value: Application


@lru_cache(maxsize=65536)
def epoch_gradients(application: ByIdentity, total_batch: int) -> tuple[Array, Array]:
    """Squared gradient norm and gradient variance at this total batch, in every epoch."""
    app = application.value
    stats = [app.gradient.at(epoch, total_batch) for epoch in range(len(app.progress_steps))]
    return np.array([s.squared_gradient for s in stats]), np.array([s.variance for s in stats])


def epoch_gains(application: ByIdentity, total_batch: int) -> Array:
    """Progress of one step at this total batch, in steps at the initial batch size M0, in every epoch."""
    app = application.value
    scale = total_batch / app.initial_batch
    if app.counts_samples:
        return np.full(len(app.progress_steps), scale)
    squared, variance = epoch_gradients(application, total_batch)
    gains: Array = gain(squared, variance, scale)
    return gains


@lru_cache(maxsize=65536)
def epoch_rates(
    application: ByIdentity, gpu_type: str, placement: tuple[int, ...], batch: Batch, path: Path = WITHIN_RACK.path
) -> Array:
    """Progress per second, in steps at the initial batch size M0, in every epoch."""
    app = application.value
    accumulation_s, step_s = app.truth[gpu_type].step_times_over(placement, batch.per_slot, path)
    gains = epoch_gains(application, batch.total)
    rates: Array = gains / ((batch.accumulation * accumulation_s + step_s) * app.speed_divisor)
    return rates
