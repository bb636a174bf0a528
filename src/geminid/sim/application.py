"""What a simulated job really does: the truth that schedulers only see through measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit


class StepTimeTruth(ABC):
    """True step times of one application on one GPU type."""

    @abstractmethod
    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> tuple[float, float]:
        """Seconds of an accumulation step and of a synchronising step, for the slots that a job has on each node."""

    @property
    @abstractmethod
    def most_slots(self) -> int:
        """The largest number of slots that the truth covers."""

    @property
    def model(self) -> ThroughputFit | None:
        """The model that it is, if it is one: whoever knows everything need not fit it anew."""
        return None


class GradientTruth(ABC):
    """True gradient statistics of one application over the course of training."""

    @abstractmethod
    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """g² and v (at the initial batch size) during an epoch, when training at this total batch size."""

    def is_measured(self, epoch: int) -> bool:
        """Whether the job itself knows them by then."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A kind of training job: how fast, how noisy and how long it trains.

    ``progress_steps`` holds, for each epoch, the progress at its end in steps at the initial batch size; training is
    over when the last is reached. ``limits`` and ``truth`` are by GPU type. ``rescale_s`` is what a cold restart costs,
    and the first start as well, unless ``start_up_s`` says otherwise.
    ``speed_divisor`` calibrates goodput (Sia's simulator divides by one; a live job trains that much longer than its
    measured steps). A job that ``counts_samples`` ends after so many of them whatever they were worth: an epoch is an
    epoch at any batch size. Where adaptive policies are to
    leave an application alone, ``pinned_slots`` and ``pinned_batch`` say how it runs under them (Pollux runs ncf on one
    slot with a batch of 32,768); policies that run jobs as requested take no notice.
    """

    name: str
    progress_steps: NDArray[np.float64]
    gradient: GradientTruth
    truth: Mapping[str, StepTimeTruth]
    limits: Mapping[str, BatchLimits]
    rescale_s: float
    speed_divisor: float = 1.0
    pinned_slots: int | None = None
    pinned_batch: int | None = None
    start_up_s: float | None = None
    counts_samples: bool = False

    @property
    def initial_batch(self) -> int:
        """M0, the same on every type."""
        return next(iter(self.limits.values())).initial

    @property
    def total_steps(self) -> float:
        """Progress, in steps at M0, at which a job is done."""
        return float(self.progress_steps[-1])
