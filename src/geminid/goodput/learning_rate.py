"""Learning-rate rules: the factor on the user's learning rate when training at S times the initial batch size.

A factor per parameter group. Schedules themselves advance with progress (useful samples), never with steps, so a
schedule means the same on one slot and on sixty-four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.noise import NoiseEstimate

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPoint:
    """What a rule may look at: the scale S = M/M0, the gradient noise, and the epochs of progress made so far."""

    scale: float
    noise: NoiseEstimate
    progress_epochs: float = 0.0
    base_warmup_epochs: float = 0.0


def adascale(point: TrainingPoint) -> Array:
    """gain(S) of each group: as many steps' worth of learning rate as the step is worth (SGD)."""
    return point.noise.group_gains(point.scale)


def adamscale(point: TrainingPoint) -> Array:
    """The square root of the gain, for Adam, AdamW and RMSProp."""
    return np.sqrt(point.noise.group_gains(point.scale))


def linear(point: TrainingPoint) -> Array:
    """S."""
    return np.full(len(point.noise.sqr_sum), point.scale)


def square_root(point: TrainingPoint) -> Array:
    """√S."""
    return np.full(len(point.noise.sqr_sum), np.sqrt(point.scale))


def legw(point: TrainingPoint) -> Array:
    """√S after a linear warm-up over base_warmup_epochs·S epochs of progress."""
    warmup_epochs = point.base_warmup_epochs * point.scale
    warmed_up = min(point.progress_epochs / warmup_epochs, 1.0) if warmup_epochs > 0 else 1.0
    return square_root(point) * warmed_up


def constant(point: TrainingPoint) -> Array:
    """1: the learning rate stays as the user set it."""
    return np.ones(len(point.noise.sqr_sum))


RULES: dict[str, Callable[[TrainingPoint], Array]] = {
    "adascale": adascale,
    "adamscale": adamscale,
    "linear": linear,
    "square_root": square_root,
    "legw": legw,
    "none": constant,
}
