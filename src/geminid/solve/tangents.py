"""The largest sum of concave values through HiGHS, where Newton's steps do not converge.

Values that are flat almost everywhere and steep near zero, like log n − log(t·n + W) for t·n far above W, mislead steps
that trust their curvature. A linear program bounds every value by tangents instead, and is given more of them where its
answer is: slower, and as exact as need be, since what it promises is never less than the optimum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from geminid.solve.blocks import ACCEPTABLE, PRECISION, Blocks
from geminid.solve.lp import Allowance, LinearProgram
from geminid.solve.sums import Value

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Number of first tangents: at a block's best throughput, at half of it, at a quarter, and so on.
FIRST_TANGENTS = 8

#: How much nearer to zero than any before the next tangent may be.
NEARER = 1 / 16

#: More rounds of tangents than this come to nothing.
MOST_ROUNDS = 100


class TangentProgram:
    """One program for all sets of blocks: what is learnt of the values in one holds in all."""

    def __init__(self, blocks: Blocks, value: Value, within: Allowance | None = None) -> None:
        self._blocks, self._value = blocks, value
        self._able = (blocks.rates > 0) & (blocks.slots > 0)
        self._rates = np.where(self._able, blocks.rates, 0.0)
        self._best = self._rates.max(axis=1, initial=0.0)
        self._runs = self._best > 0
        count, types = blocks.rates.shape
        self._times = count * types
        self._zero = value.at(np.where(self._runs, self._best, 1.0))  # values are counted from the best there can be
        self._lowest = self._best.copy()
        block, of_type = (index.ravel() for index in np.indices((count, types)))
        column = np.arange(self._times)
        rows = np.concatenate([block, count + of_type])
        used = np.concatenate([np.ones(self._times), (blocks.gang * blocks.count)[block]])
        matrix = coo_array((used, (rows, np.tile(column, 2))), shape=(count + types, self._times + count)).tocsc()
        upper = np.concatenate([np.ones(count), blocks.slots])
        lower = np.concatenate([np.zeros(self._times), np.full(count, -np.inf)])
        nothing = np.zeros(self._times + count)
        self._program = LinearProgram(nothing, matrix, np.full(len(upper), -np.inf), upper, lower=lower, within=within)
        for halvings in range(FIRST_TANGENTS):
            self._add_tangents(np.flatnonzero(self._runs), self._best * 0.5**halvings)

    def solve(self, present: Mask) -> Array | None:
        """Throughputs at the largest sum of the values of some blocks; None if it is not found."""
        counted = present & self._runs
        weight = np.where(counted, self._blocks.count, 0.0)
        scale = max(1.0, float(weight.sum()))
        longest = np.where(self._able & present[:, None], 1.0, 0.0).ravel()
        for column, most in enumerate(longest.tolist()):
            self._program.set_bounds(column, 0.0, most)
        self._program.set_gain(np.concatenate([np.zeros(self._times), weight]))
        lowest, best = np.inf, None
        for _ in range(MOST_ROUNDS):
            found = self._program.solve()
            if found is None:
                break
            made = (self._rates * np.maximum(found.values[: self._times], 0.0).reshape(self._rates.shape)).sum(axis=1)
            promised = found.values[self._times :]
            point = np.maximum(made, self._lowest * NEARER)
            beyond = np.where(counted, promised - self._value.at(np.where(counted, made, 1.0)) + self._zero, 0.0)
            gap = float(weight @ beyond) / scale
            if gap < lowest:
                lowest, best = gap, np.where(counted, made, 0.0)
            wrong = np.flatnonzero(counted & (beyond > 0.1 * PRECISION))
            if gap < PRECISION or not len(wrong):
                break
            self._add_tangents(wrong, point)
        return best if lowest < ACCEPTABLE else None

    def _add_tangents(self, which: NDArray[np.int64], at: Array) -> None:
        """Let no block promise more than its tangent at a throughput does."""
        point = np.where(self._runs, at, 1.0)
        slope = self._value.derivatives(point)[0][which]
        base = (self._value.at(point) - self._zero)[which] - slope * point[which]
        self._lowest[which] = np.minimum(self._lowest[which], point[which])
        types = self._rates.shape[1]
        row = np.arange(len(which))
        rows = np.concatenate([np.repeat(row, types), row])
        columns = np.concatenate([(which[:, None] * types + np.arange(types)).ravel(), self._times + which])
        values = np.concatenate([(-slope[:, None] * self._rates[which]).ravel(), np.ones(len(which))])
        matrix = csr_array(coo_array((values, (rows, columns)), shape=(len(which), self._times + len(self._best))))
        self._program.add_rows(matrix, np.full(len(which), -np.inf), base)
