"""Fits of training losses, many jobs at once: where will each loss be after so much more work?

Two families, as in SLAQ: 1/(a·k² + b·k + c) + d, how losses of plain gradient descent fall, and μ^(k−b) + c, an
exponential. For a given floor (d or c) both are linear in the rest, up to a transformation of the loss, so every job is
fitted for a few floors by weighted least squares, all jobs at the same time; recent points weigh more. The fit with the
smallest weighted error in the loss itself is kept.

Losses are noisy, and both transformations bend noise: a point far below the curve would count for nothing, one above
it for much. So they are linearised around a curve rather than at the points: first around the falling sequence that is
nearest to the points (isotonic regression), then around the fit itself. The range of losses is that of this sequence
too, since the lowest and the highest of noisy points are further apart than the curve falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Points of (progress, loss) that a fit takes into account: the latest.
POINTS = 20

#: Fewer points say nothing about a curve.
LEAST_POINTS = 4

#: What a point weighs, of the next later one.
RECENCY = 0.9

#: Floors that are tried: distances below the lowest loss seen, in units of the range of losses seen.
FLOORS = np.geomspace(0.002, 5.0, 18)

#: How often the loss is linearised: around the nearest falling sequence, then around the fit before.
PASSES = 3

#: The least height above the floor around which losses are linearised, in units of the range of losses seen.
LEAST_HEIGHT = 0.001

#: Keeps systems of equations solvable where points hardly differ.
RIDGE = 1e-9


@dataclass(frozen=True, slots=True)
class LossFits:
    """Fitted curves, one row per job: 1/(a·x² + b·x + c) − floor, or exp(−(b·x + c)) − floor if ``exponential``.

    x is progress in units of that at the last point, the loss is counted from ``lowest`` in units of ``width``: the
    lowest loss seen and the range, both without noise. Jobs with too few points, or whose loss does not fall, are not
    ``known``.
    """

    known: NDArray[np.bool_]
    exponential: NDArray[np.bool_]
    coefficients: Array
    floor: Array
    progress: Array
    lowest: Array
    width: Array

    def falls_by(self, more: Array) -> Array:
        """By how much each job's loss falls in the next ``more`` units of work (jobs × any), of the range seen."""
        start = np.ones((len(self.known), 1))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            drop = self._at(start) - self._at(start + more / np.maximum(self.progress, 1e-300)[:, None])
        return np.where(self.known[:, None] & np.isfinite(drop), np.maximum(drop, 0.0), 0.0)

    def row(self, index: int) -> LossFits:
        """The fit of one job."""
        return LossFits(*(getattr(self, each.name)[index : index + 1] for each in fields(self)))

    @staticmethod
    def joined(fits: Sequence[LossFits]) -> LossFits:
        """The rows of several, in order; at least one."""
        return LossFits(*(np.concatenate([getattr(fit, each.name) for fit in fits]) for each in fields(LossFits)))

    def _at(self, x: Array) -> Array:
        a, b, c = (self.coefficients[:, i, None] for i in range(3))
        inner = (a * x + b) * x + c
        return np.where(self.exponential[:, None], np.exp(-inner), 1.0 / inner) - self.floor[:, None]


def fit_losses(histories: Sequence[Sequence[tuple[float, float]]]) -> LossFits:
    """Fit every job's points (progress, loss), oldest first."""
    jobs = len(histories)
    x, loss, weight = np.zeros((jobs, POINTS)), np.zeros((jobs, POINTS)), np.zeros((jobs, POINTS))
    for row, history in enumerate(histories):
        latest = history[-POINTS:]
        if len(latest) >= LEAST_POINTS:
            x[row, : len(latest)], loss[row, : len(latest)] = np.array(latest).T
            weight[row, : len(latest)] = RECENCY ** np.arange(len(latest) - 1, -1, -1)
    there = weight > 0
    progress = x.max(axis=1)
    smooth = falling(loss, weight)
    lowest = np.where(there, smooth, np.inf).min(axis=1)
    width = np.where(there, smooth, -np.inf).max(axis=1) - lowest
    usable = there.any(axis=1) & (progress > 0) & (width > 0)
    x = np.where(there, x / np.where(usable, progress, 1.0)[:, None], 0.0)
    y, curve = (
        np.where(there & usable[:, None], (each - lowest[:, None]) / np.where(usable, width, 1.0)[:, None], 0.0)
        for each in (loss, smooth)
    )
    families = ((False, True), (False, False), (True, False))
    noisy = (np.abs(curve - y) > LEAST_HEIGHT).any(axis=1)
    fits = [_fitted(x, y, curve, weight, noisy, exponential=e, squared=q) for e, q in families]
    error = np.concatenate([found.error for found in fits], axis=1)
    best = error.argmin(axis=1)
    family, at = np.divmod(best, len(FLOORS))
    rows = np.arange(jobs)
    coefficients = np.stack([found.coefficients for found in fits])[family, rows, at]
    return LossFits(
        usable & np.isfinite(error[rows, best]),
        np.array([False, False, True])[family],
        coefficients,
        FLOORS[at],
        progress,
        np.where(usable, lowest, 0.0),
        np.where(usable, width, 0.0),
    )


def falling(loss: Array, weight: Array) -> Array:
    """The sequence that never rises and is nearest to each row of points, by weighted least squares.

    Points without weight come last and count for nothing. At every point it is the least, over where a block may
    begin, of the highest mean, over where the block may end.
    """
    total = np.cumsum(weight * loss, axis=1)
    weights = np.cumsum(weight, axis=1)
    before, weight_before = total - weight * loss, weights - weight
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (total[:, None, :] - before[:, :, None]) / (weights[:, None, :] - weight_before[:, :, None])
    count = loss.shape[1]
    block = np.tri(count, dtype=bool).T & (weight > 0)[:, None, :]  # from the row's point to the column's
    mean = np.where(block, mean, -np.inf)
    highest = np.maximum.accumulate(mean[:, :, ::-1], axis=2)[:, :, ::-1]  # over ends at or after the column
    highest = np.where(np.tri(count, dtype=bool).T, highest, np.inf)
    return np.where(weight > 0, highest.min(axis=1), loss)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Coefficients (jobs × floors × 3) of one family, and how much each errs; infinite where a loss does not fall."""

    coefficients: Array
    error: Array


def _fitted(
    x: Array, y: Array, curve: Array, weight: Array, noisy: NDArray[np.bool_], *, exponential: bool, squared: bool
) -> _Fitted:
    """One family at all floors: least squares in a transformed loss, weighted so that errors count as in the loss.

    ``curve`` is where the loss is linearised first; for ``noisy`` jobs it is then linearised around the fit. Arrays are
    jobs × floors × points.
    """
    columns = np.stack([x**2, x, np.ones_like(x)][0 if squared else 1 :], axis=2)
    width = columns.shape[2]
    products = (columns[:, :, :, None] * columns[:, :, None, :]).reshape(*x.shape, width * width)
    there = weight[:, None] > 0
    above = np.maximum(curve[:, None] + FLOORS[:, None], LEAST_HEIGHT)
    best = np.zeros((*above.shape[:2], width))
    least_error = np.full(above.shape[:2], np.inf)
    for again in range(PASSES):
        if again and not noisy.any():
            break
        missed = y[:, None] + FLOORS[:, None] - above
        target = -np.log(above) - missed / above if exponential else 1.0 / above - missed / above**2
        weighed = weight[:, None] * (above**2 if exponential else above**4)
        normal = (weighed @ products).reshape(*weighed.shape[:2], width, width)
        scale = np.maximum(np.trace(normal, axis1=2, axis2=3), 1e-30)
        normal += RIDGE * np.eye(width) * scale[:, :, None, None]
        found = np.linalg.solve(normal, ((weighed * target) @ columns)[..., None])[..., 0]
        inner = found @ columns.transpose(0, 2, 1)
        falls = (found[:, :, : width - 1] >= 0).all(axis=2)
        falls &= exponential | (np.where(there, inner, 1.0) > 0).all(axis=2)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            predicted = np.exp(-inner) if exponential else 1.0 / inner
            squares = weight[:, None] * (predicted - FLOORS[:, None] - y[:, None]) ** 2
            error = np.where(there, squares, 0.0).sum(axis=2)
        error = np.where(falls & np.isfinite(error), error, np.inf)
        better = (error < least_error) & (noisy[:, None] if again else True)
        best, least_error = np.where(better[..., None], found, best), np.where(better, error, least_error)
        around = np.where(there, predicted, above)
        above = np.where(np.isfinite(error)[..., None], np.maximum(around, LEAST_HEIGHT), above)
    coefficients = best if squared else np.concatenate([np.zeros((*best.shape[:2], 1)), best], axis=2)
    return _Fitted(coefficients, least_error)
