"""Estimate g² and v from the norms that training computes anyway. Pure numerics: norms go in, estimates come out.

A step at total batch size M that averages c micro-gradients (replicas × accumulation passes) lets two norms be
compared: ``local``, the mean of the micro-gradients' squared norms, and ``total``, the squared norm of their mean.
Noise averages out in the mean and the signal does not, which separates them:

    g² = (c·total − local)/(c − 1),     v = (local − total)·S/(c − 1),     S = M/M0

With one micro-gradient per step, two consecutive steps stand in for two replicas (the differenced estimator). That
is biased, because the true gradient moves between steps, so its averages are dropped as soon as c ≥ 2, and taken up
again only when the last estimate from real micro-gradients is old.

Everything is kept per parameter group: learning-rate rules want it that way. Single estimates may be negative, as an
unbiased estimate of something small must be; values are clamped only when read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geminid.goodput.efficiency import SMALLEST_VARIANCE, GradientStats, gain

Array = NDArray[np.float64]

#: Weight that an average keeps over a step at M0; at S times the batch size a step counts S times.
DECAY_PER_INITIAL_STEP = 0.999

#: After this many steps' worth at M0 without micro-gradients to compare, consecutive gradients have to do.
STALE_AFTER_INITIAL_STEPS = 1000.0


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """Running estimates of g² and v per parameter group: exponential averages, corrected for their start.

    ``sqr_sum`` and ``var_sum`` are divided by ``weight`` when read; ``differenced`` tells which estimator fed them.
    """

    sqr_sum: tuple[float, ...]
    var_sum: tuple[float, ...]
    weight: float = 0.0
    differenced: bool = False
    initial_steps_without_comparison: float = 0.0

    @classmethod
    def empty(cls, groups: int = 1) -> NoiseEstimate:
        """Nothing measured yet, for a model with this many parameter groups."""
        return cls((0.0,) * groups, (0.0,) * groups)

    def observe(
        self, local: ArrayLike, total: ArrayLike, *, micro_gradients: int, scale: float, steps: float = 1.0
    ) -> NoiseEstimate:
        """Fold in one step that averaged ``micro_gradients`` ≥ 2 gradients at ``scale`` = M/M0.

        It stands for ``steps`` steps, where only some steps are measured. ``local`` and ``total`` hold one squared
        norm per parameter group. A step with non-finite norms (an overflow under mixed precision) changes nothing.
        """
        if micro_gradients < 2:
            raise ValueError(f"micro_gradients is {micro_gradients}: comparing norms needs at least 2")
        start = NoiseEstimate.empty(len(self.sqr_sum)) if self.differenced else self
        return start._fold(local, total, micro_gradients, scale, steps)

    def observe_pair(
        self, previous: ArrayLike, current: ArrayLike, mean: ArrayLike, *, scale: float, steps: float = 1.0
    ) -> NoiseEstimate:
        """Fold in two consecutive single-gradient steps: |g'|², |g|² and |(g' + g)/2|² per parameter group.

        Ignored while there is a recent estimate from real micro-gradients.
        """
        if self.weight > 0.0 and not self.differenced:
            waited = self.initial_steps_without_comparison + scale * steps
            if not waited >= STALE_AFTER_INITIAL_STEPS:
                return replace(self, initial_steps_without_comparison=waited) if math.isfinite(waited) else self
            return NoiseEstimate.empty(len(self.sqr_sum)).observe_pair(
                previous, current, mean, scale=scale, steps=steps
            )
        local = (np.atleast_1d(np.asarray(previous, dtype=float)) + np.atleast_1d(current)) / 2.0
        return replace(self._fold(local, mean, 2, 2.0 * scale, steps), differenced=True)

    def _fold(self, local: ArrayLike, total: ArrayLike, count: int, scale: float, steps: float) -> NoiseEstimate:
        local_, total_ = (
            np.atleast_1d(np.asarray(local, dtype=float)),
            np.atleast_1d(np.asarray(total, dtype=float)),
        )
        if local_.shape != (len(self.sqr_sum),) or total_.shape != local_.shape:
            raise ValueError(
                f"norms of {local_.size} and {total_.size} parameter groups were given, {len(self.sqr_sum)} expected"
            )
        if not (np.isfinite(local_).all() and np.isfinite(total_).all() and math.isfinite(scale) and scale > 0.0):
            return self
        sqr = (count * total_ - local_) / (count - 1)
        var = (local_ - total_) * scale / (count - 1)
        keep = DECAY_PER_INITIAL_STEP ** (scale * steps)
        sqr_sum = keep * np.array(self.sqr_sum) + (1.0 - keep) * sqr
        var_sum = keep * np.array(self.var_sum) + (1.0 - keep) * var
        return replace(
            self,
            sqr_sum=tuple(sqr_sum.tolist()),
            var_sum=tuple(var_sum.tolist()),
            weight=keep * self.weight + (1.0 - keep),
            initial_steps_without_comparison=0.0,
        )

    @property
    def known(self) -> bool:
        """Whether anything has been measured."""
        return self.weight > 0.0

    @property
    def squared_gradients(self) -> Array:
        """g² per parameter group, unclamped."""
        return np.array(self.sqr_sum) / max(self.weight, 1e-300)

    @property
    def variances(self) -> Array:
        """The variances v per parameter group, unclamped."""
        return np.array(self.var_sum) / max(self.weight, 1e-300)

    def stats(self) -> GradientStats:
        """The whole model's g² and v: summed over the groups, then clamped."""
        if not self.known:
            return GradientStats()
        return GradientStats.clamped(float(self.squared_gradients.sum()), float(self.variances.sum()))

    def group_gains(self, scale: float) -> Array:
        """gain(S) of each parameter group: what AdaScale multiplies its learning rate by.

        Before any measurement it is that of a noise scale equal to M0, as everywhere.
        """
        if not self.known:
            return gain(np.ones(len(self.sqr_sum)), np.ones(len(self.sqr_sum)), scale)
        return gain(self.squared_gradients, np.maximum(self.variances, SMALLEST_VARIANCE), scale)
