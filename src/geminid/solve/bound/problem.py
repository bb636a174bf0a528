"""The problem that is bounded: kinds of jobs with what they can do, and jobs with arrivals and sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JobKind:
    """What jobs of one kind can do: modes of so many ``slots`` of a GPU type (an index), and ``rates`` in each phase.

    ``rates`` are by phase and mode, relative to the best of the phase: the largest of each row is 1. ``shares`` are the
    parts of a job's isolated time (all its work at the best rates) that belong to each phase.
    """

    slots: Array
    gpu_type: Indices
    rates: Array
    shares: Array

    def multipliers(self, prices: Array) -> Array:
        """What a second of isolated time costs at each of these price vectors (rows), by phase, delay included."""
        cost = 1.0 + prices[:, self.gpu_type] * self.slots
        with np.errstate(divide="ignore"):
            cheapest: Array = np.min(cost[:, None, :] / self.rates[None, :, :], axis=2)
        return cheapest

    def rent(self, prices: Array) -> float:
        """What a second of isolated time costs at least in rent alone, over all phases."""
        with np.errstate(divide="ignore"):
            return float(self.shares @ (prices[self.gpu_type] * self.slots / self.rates).min(axis=1))


@dataclass(frozen=True, slots=True)
class Instance:
    """Slots of each GPU type, kinds of jobs, and for every job its kind, arrival, first pause and isolated time."""

    capacity: Array
    kinds: tuple[JobKind, ...]
    kind: Indices
    arrival_s: Array
    start_up_s: Array
    isolated_s: Array

    @property
    def alone_s(self) -> Array:
        """How long every job takes at least, on a cluster of its own."""
        return self.start_up_s + self.isolated_s
