"""Statistical efficiency: how much a sample teaches at a larger batch size, relative to the user's own.

Training progresses less per sample as the batch grows, and how much less depends on the gradient's noise. With g²
the squared norm of the true gradient and v the trace of the gradient's covariance at the initial batch size M0:

    noise scale φ  = M0 · v / g²
    gain(S)        = (v + g²) / (v/S + g²),  S = M / M0: steps at M0 that one step at M is worth
    efficiency(M)  = gain(S) / S = (φ + M0) / (φ + M)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

#: Variances below this are measurement noise (and keep every quotient defined).
SMALLEST_VARIANCE = 1e-6


def gain(squared_gradient: ArrayLike, variance: ArrayLike, scale: ArrayLike) -> Array:
    """Progress of one step at batch size ``scale``·M0, in steps at M0. Elementwise."""
    g = np.maximum(np.asarray(squared_gradient, dtype=float), 0.0)
    v = np.maximum(np.asarray(variance, dtype=float), SMALLEST_VARIANCE)
    s = np.asarray(scale, dtype=float)
    result: Array = s * (v + g) / (v + s * g)
    return result


def efficiency(squared_gradient: ArrayLike, variance: ArrayLike, scale: ArrayLike) -> Array:
    """Progress per sample at batch size ``scale``·M0, relative to M0: gain(S)/S. Elementwise."""
    g = np.maximum(np.asarray(squared_gradient, dtype=float), 0.0)
    v = np.maximum(np.asarray(variance, dtype=float), SMALLEST_VARIANCE)
    result: Array = (v + g) / (v + np.asarray(scale, dtype=float) * g)
    return result


@dataclass(frozen=True, slots=True)
class GradientStats:
    """Estimates of g² and v (at batch size M0) for one job.

    A job that has measured nothing yet, or reports nonsense, counts as having a noise scale equal to M0 (g² = v):
    neither a licence for huge batches nor a ban on larger ones.
    """

    squared_gradient: float = 1.0
    variance: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.squared_gradient) and math.isfinite(self.variance)):
            raise ValueError(f"gradient statistics must be finite, not {self.squared_gradient} and {self.variance}")

    @classmethod
    def clamped(cls, squared_gradient: float, variance: float) -> GradientStats:
        """Statistics from a report that is not trusted: NaN and infinities become 'unknown'."""
        if not (math.isfinite(squared_gradient) and math.isfinite(variance)):
            return cls()
        return cls(max(squared_gradient, 0.0), max(variance, SMALLEST_VARIANCE))

    def noise_scale(self, initial_batch: float) -> float:
        """φ = M0·v/g² in samples; infinite where the true gradient vanishes."""
        if self.squared_gradient <= 0.0:
            return math.inf
        return initial_batch * max(self.variance, SMALLEST_VARIANCE) / self.squared_gradient

    def gain(self, scale: float) -> float:
        """Steps at M0 that one step at ``scale``·M0 is worth."""
        return float(gain(self.squared_gradient, self.variance, scale))

    def efficiency(self, scale: float) -> float:
        """Progress per sample at ``scale``·M0 relative to M0."""
        return float(efficiency(self.squared_gradient, self.variance, scale))
