"""Many small bounded non-linear least-squares problems, solved at once.

A cluster refits thousands of jobs, each with a dozen parameters and a few dozen observations. One problem at a time
the interpreter's overhead dominates; here each iteration is a handful of numpy calls over all problems together
(Levenberg–Marquardt with an active set for the bounds), and problems leave the batch as they converge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

#: No variable moves further than this in one iteration (variables are logarithms or of order one).
LARGEST_MOVE = 2.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Value, gradient and Gauss–Newton curvature of some problems: shapes (B,), (B, P) and (B, P, P)."""

    loss: Array
    gradient: Array
    curvature: Array


@dataclass(frozen=True, slots=True)
class Solution:
    """The best variables found for every problem, with their loss."""

    variables: Array
    loss: Array
    iterations: int


#: Evaluates the problems named by the second argument at the variables given by the first, shape (len(rows), P).
Objective = Callable[[Array, Rows], Evaluation]


def minimise(
    objective: Objective,
    start: Array,
    lower: Array,
    upper: Array,
    *,
    free: NDArray[np.bool_],
    max_iterations: int = 100,
    tolerance: float = 1e-6,
) -> Solution:
    """Minimise every problem of a batch within its bounds, from ``start`` of shape (B, P).

    Variables where ``free`` is False keep their starting value. A problem stops when two accepted steps in a row
    improve it by less than ``tolerance`` relatively, or when no shorter step improves it. The loss never rises above
    that of the start.
    """
    variables = np.clip(start, lower, upper)
    variables = np.where(free, variables, start)
    count, size = variables.shape
    rows = np.arange(count)
    current = objective(variables, rows)
    loss, gradient, curvature = current.loss.copy(), current.gradient.copy(), current.curvature.copy()
    damping = np.full(count, 1e-2)
    small_steps = np.zeros(count, dtype=int)
    diagonal = np.arange(size)
    iteration = 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007  (reported below)
        at, grad = variables[rows], gradient[rows]
        low, high = lower[rows], upper[rows]
        stuck = ~free[rows] | ((at <= low) & (grad > 0)) | ((at >= high) & (grad < 0))
        grad = np.where(stuck, 0.0, grad)
        hessian = np.where(stuck[:, :, None] | stuck[:, None, :], 0.0, curvature[rows])
        scale = hessian[:, diagonal, diagonal]
        hessian[:, diagonal, diagonal] = scale + damping[rows, None] * (scale + 1e-6) + 1e-12 + stuck
        move = -np.linalg.solve(hessian, grad[:, :, None])[:, :, 0]
        move = np.minimum(np.maximum(move, -LARGEST_MOVE), LARGEST_MOVE)
        trial = np.minimum(np.maximum(at + move, low), high)
        trial = np.where(stuck, at, trial)
        seen = objective(trial, rows)

        better = seen.loss < loss[rows]
        gain = np.where(better, (loss[rows] - seen.loss) / np.maximum(np.abs(loss[rows]), 1e-12), 0.0)
        accepted = rows[better]
        variables[accepted], loss[accepted] = trial[better], seen.loss[better]
        gradient[accepted], curvature[accepted] = seen.gradient[better], seen.curvature[better]
        damping[rows] = np.where(better, np.maximum(damping[rows] / 5.0, 1e-9), damping[rows] * 8.0)
        small_steps[rows] = np.where(better & (gain < tolerance), small_steps[rows] + 1, small_steps[rows] * ~better)
        rows = rows[(small_steps[rows] < 2) & (damping[rows] < 1e8)]
        if not rows.size:
            break
    return Solution(variables, loss, iteration)
