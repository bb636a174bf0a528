"""Batch plans of simulated jobs: what the training library would choose, quickly and often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.batchplan import ROUNDING, WORTH_RETUNING, BatchLimits, candidate_plans
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.throughput import Shape

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Per-slot batch and accumulation steps, with the total that follows."""

    per_slot: int
    accumulation: int
    total: int


@lru_cache(maxsize=4096)
def candidates(limits: BatchLimits, slots: int) -> tuple[Array, Array, Array] | None:
    """Per-slot batches, accumulation steps and totals that a job tries; None if no plan is possible."""
    plans = sorted(set(candidate_plans(limits, slots)), key=lambda plan: plan[0] * (plan[1] + 1))
    if not plans:
        return None
    batch, steps = np.array(plans, dtype=float).T
    return batch, steps, np.minimum(slots * batch * (steps + 1.0), limits.largest)


@dataclass(slots=True)
class Tuner:
    """Chooses the best plan of one job on one placement under one fit; re-used while only the noise changes."""

    fitted: ThroughputFit
    limits: BatchLimits
    placement: tuple[int, ...]
    link_slowdown: float = 1.0
    _throughput: Array | None = None

    def best(self, gradient: GradientStats, current: Batch | None = None) -> Batch | None:
        """The plan with the best predicted goodput, None if no plan is possible.

        A ``current`` plan stays unless another is so much better that the training library would change it.
        """
        slots = sum(self.placement)
        plans = candidates(self.limits, slots)
        if plans is None:
            return None
        batch, steps, total = plans
        if self._throughput is None:
            self._throughput = self._throughputs(batch, steps, total)
        g, v = gradient.squared_gradient, gradient.variance
        goodput = self._throughput / (v + total * (g / self.limits.initial))
        i = int(np.argmax(goodput))
        if current is not None:
            here = self._throughputs(
                *(np.array([x], dtype=float) for x in (current.per_slot, current.accumulation, current.total))
            )
            if goodput[i] <= (1.0 + WORTH_RETUNING) * here[0] / (v + current.total * (g / self.limits.initial)):
                return current
        return Batch(int(batch[i]), int(steps[i]), int(total[i]))

    def _throughputs(self, batch: Array, steps: Array, total: Array) -> Array:
        shape = Shape.of(len(self.placement), sum(self.placement), batch, max(self.placement), self.link_slowdown)
        throughputs: Array = total / self.fitted.step_times(shape).iteration_s(steps)
        return throughputs


def untuned(limits: BatchLimits, slots: int) -> Batch | None:
    """The plan before anything is known: M = max(M0, m_min·K)."""
    return for_total(limits, slots, max(limits.initial, limits.smallest_per_slot * slots))


def for_total(limits: BatchLimits, slots: int, total: int, passes_at_least: int = 1) -> Batch | None:
    """The plan that realises a given total batch size: rounded up, or down where that would exceed M_max.

    That is what the published simulators do, and their figures depend on it; the goodput model lets some passes be a
    sample short instead.
    """
    per_slot = math.ceil(total / slots - ROUNDING)
    steps = math.ceil(per_slot / limits.largest_per_slot - ROUNDING) - 1
    if slots == 1 and total > limits.initial:
        passes_at_least = max(passes_at_least, 2)
    steps = max(steps, passes_at_least - 1)
    batch = math.ceil(per_slot / (steps + 1) - ROUNDING)
    batch = min(batch, limits.largest // (slots * (steps + 1)))
    return Batch(batch, steps, slots * batch * (steps + 1)) if batch >= 1 else None
