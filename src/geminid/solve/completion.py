"""Filling in the rows of a matrix that are known in part, from rows that are known in full.

Rows are taken to be drawn from one normal distribution whose mean and covariance the full rows give, plus independent
noise; what is unknown of a row is expected given what is known of it. With few full rows the covariance has low rank,
so this is a matrix factorisation whose factors of the columns are known, in closed form: no rank to choose and no
iteration. With nothing known it is the mean of each column.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def complete(full: Array, partial: Array, noise: float = 0.1) -> Array:
    """Rows of ``partial`` with their unknown entries (not a number) filled in; ``noise`` is a standard deviation."""
    if not len(full):
        return np.where(np.isnan(partial), 0.0, partial)
    mean = full.mean(axis=0)
    spread = full - mean
    result = partial.copy()
    for row in result:
        known = ~np.isnan(row)
        # (S + n·σ²·I)⁻¹ in the space of the full rows, which is smaller than that of the columns.
        seen = spread[:, known]
        weights = np.linalg.solve(
            seen @ seen.T + len(full) * noise**2 * np.eye(len(full)), seen @ (row[known] - mean[known])
        )
        row[~known] = mean[~known] + weights @ spread[:, ~known]
    return result
