"""Newton steps of an interior-point method for many small blocks that share a few capacities.

Block i is one job (or ``count`` identical ones): it may spend time x_ij on each type j, at most 1 in all, and makes
n_i = Σ_j r_ij·x_ij there. Together they use Σ_i count_i·gang_i·x_ij ≤ slots_j. Given the prices of the types everyone's
choice is separate, so a Newton step costs a few vectorised operations on jobs × types and one system of the size of the
number of types: no general factorisation, no sparse arrays. Two objectives use them:

- the highest level z at which every n_i ≥ need_i(z), convex in z (``raising.py``);
- the largest Σ_i f_i(n_i) for concave f_i, for several sets of blocks at once (``sums.py``).

Like any primal-dual method without a crossover it ends in the middle of the optimal solutions, not at a vertex. Blocks
weigh in the barrier as many times as they count, so that merging identical ones does not change what is found.
Mehrotra's predictor and corrector steps; the start need not be feasible. Arrays are sets × types × blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Relative duality gap and residuals at which it ends, and those with which it is content where rounding stops it.
PRECISION = 5e-8
ACCEPTABLE = 1e-6
MOST_STEPS = 80

#: How much of the way to the boundary a step may go.
DAMPING = 0.995

#: Rounding must not make anything zero.
_TINY = 1e-150


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rates (blocks × types, 0: cannot run there), gangs, how many jobs a block stands for, and slots of the types."""

    rates: Array
    gang: Array
    count: Array
    slots: Array


@dataclass(slots=True)
class Point:
    """Where an iteration stands: time, its complement, free slots, and their dual values."""

    x: Array
    t: Array
    c: Array
    lam: Array
    tau: Array
    pi: Array

    def gap(self) -> Array:
        """Complementarity that is left, by set."""
        sets = len(self.x)
        return np.asarray(
            np.einsum("ij,ij->i", self.lam.reshape(sets, -1), self.x.reshape(sets, -1))
            + np.einsum("ij,ij->i", self.tau, self.t)
            + np.einsum("ij,ij->i", self.pi, self.c)
        )

    def after(self, step: Step, primal: Array, dual: Array) -> Point:
        """A step further."""
        one, two = primal[:, None], primal[:, None, None]
        dual_one, dual_two = dual[:, None], dual[:, None, None]
        return Point(
            np.where(self.x > 0, np.maximum(self.x + two * step.x, _TINY), 0.0),
            np.maximum(self.t + one * step.t, _TINY),
            np.maximum(self.c + one * step.c, _TINY),
            np.where(self.lam > 0, np.maximum(self.lam + dual_two * step.lam, _TINY), 0.0),
            np.maximum(self.tau + dual_one * step.tau, _TINY),
            np.maximum(self.pi + dual_one * step.pi, _TINY),
        )

    def unless(self, done: Mask, other: Point) -> Point:
        """Another point, but in sets that are done."""
        one, two = done[:, None], done[:, None, None]
        return Point(
            np.where(two, self.x, other.x),
            np.where(one, self.t, other.t),
            np.where(one, self.c, other.c),
            np.where(two, self.lam, other.lam),
            np.where(one, self.tau, other.tau),
            np.where(one, self.pi, other.pi),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a point; ``by_need`` is what the rows of need, or the values, take of it, ``level`` that of z."""

    x: Array
    t: Array
    c: Array
    lam: Array
    tau: Array
    pi: Array
    by_need: Array
    level: Array


class Newton:
    """Newton steps at one point.

    With each block's K = diag(λ/x) + (τ/t)·11ᵀ + β·rrᵀ (inverted in closed form) they solve
    K·dx + load·dπ − β·grows·r·dz = …, and the rows of the capacities and of the level.
    """

    def __init__(self, space: Space, point: Point, beta: Array, grows: Array, corner: Array) -> None:
        self._space, self._point, self._grows = space, point, grows
        rate, load = space.rate, space.load
        self._per_x = 1.0 / np.where(space.usable, point.x, 1.0)
        self._inverse = inverse = np.where(space.usable, point.x / np.where(space.usable, point.lam, 1.0), 0.0)
        self._alpha, self._gamma = point.tau / point.t, point.pi / point.c
        total = inverse.sum(axis=1)
        by_rate = (inverse * rate).sum(axis=1)
        mean = by_rate / np.where(total > 0, total, 1.0)
        spread = (inverse * (rate - mean[:, None]) ** 2).sum(axis=1)
        shrink = 1.0 / (1.0 + self._alpha * total)
        self._alpha_part = self._alpha * shrink
        self._toward = inverse * (rate - (by_rate * self._alpha_part)[:, None])
        self._beta_part = beta / (1.0 + beta * (spread + by_rate * mean * shrink))
        self._grow_part = self._beta_part * grows
        square = load**2
        types = inverse.shape[1]
        system = np.zeros((len(inverse), types + 1, types + 1))
        system[:, :types, :types] = -(inverse * (square * self._alpha_part)[:, None]) @ inverse.swapaxes(1, 2)
        system[:, :types, :types] -= (self._toward * (square * self._beta_part)[:, None]) @ self._toward.swapaxes(1, 2)
        diagonal = np.arange(types)
        system[:, diagonal, diagonal] += (square[:, None] * inverse).sum(axis=2) + 1.0 / self._gamma
        border = (self._toward * (load * self._grow_part)[:, None]).sum(axis=2)
        system[:, :types, types], system[:, types, :types] = -border, border
        system[:, types, types] = corner + (grows * self._grow_part).sum(axis=1)
        diagonal = np.arange(types + 1)  # rounding must not make it singular
        system[:, diagonal, diagonal] *= 1.0 + 1e-13
        system[:, diagonal, diagonal] += 1e-300
        self._system = system

    def step(self, target: Array, twice: Step | None, off_x: Array, pull: Array, off_level: Array) -> Step:
        """The step to a complementarity of ``target``.

        ``twice`` is the predictor, whose second-order terms are corrected; ``off_x`` the gradient that is to vanish,
        ``pull`` what the rows of need bring to it beyond β times their change, ``off_level`` the right-hand side of the
        level's row.
        """
        space, point = self._space, self._point
        rate, load = space.rate, space.load
        aim_x, aim_t, aim_c = target[:, None, None] * space.weight_x, target[:, None] * space.weight, target[:, None]
        if twice is not None:
            aim_x, aim_t, aim_c = aim_x - twice.lam * twice.x, aim_t - twice.tau * twice.t, aim_c - twice.pi * twice.c
        to_x, to_t, to_c = aim_x * self._per_x - point.lam, aim_t / point.t - point.tau, aim_c / point.c - point.pi
        rest_t, rest_c = 1.0 - point.x.sum(axis=1) - point.t, space.slots - space.used(point.x) - point.c
        time_part = to_t - self._alpha * rest_t
        right = to_x - off_x - time_part[:, None] + rate * pull[:, None]
        # K⁻¹·right, for the right-hand sides of the small system
        scaled = self._inverse * right
        along = (self._toward * right).sum(axis=1)
        scaled -= self._inverse * (scaled.sum(axis=1) * self._alpha_part)[:, None]
        scaled -= self._toward * (along * self._beta_part)[:, None]
        sides = np.empty((len(right), len(space.slots) + 1))
        sides[:, :-1] = space.used(scaled) - rest_c + to_c / self._gamma
        sides[:, -1] = off_level + (self._grow_part * along).sum(axis=1)
        found = np.asarray(np.linalg.solve(self._system, sides[..., None])[..., 0], dtype=np.float64)
        d_pi, d_level = found[:, :-1], found[:, -1]
        # The dual changes are worked out without passing through dx, whose rounding they would blow up.
        rest = right - load[:, None] * d_pi[..., None]
        by_need = -self._beta_part * ((self._toward * rest).sum(axis=1) - self._grows * d_level[:, None])
        rest += rate * by_need[:, None]
        by_time = self._alpha_part * (self._inverse * rest).sum(axis=1)
        rest -= by_time[:, None]
        d_tau = time_part + by_time
        return Step(
            x=self._inverse * rest,
            t=(to_t - d_tau) / self._alpha,
            c=(to_c - d_pi) / self._gamma,
            lam=np.where(space.usable, to_x - rest, 0.0),
            tau=d_tau,
            pi=d_pi,
            by_need=by_need,
            level=d_level,
        )


class Space:
    """Blocks as sets × types × blocks, and a point well within all limits to start from."""

    def __init__(self, blocks: Blocks, present: Mask) -> None:
        able = (blocks.rates > 0) & (blocks.slots > 0)
        self.slots = np.where(blocks.slots > 0, blocks.slots, 1.0)
        self.usable = able.T & present[:, None]
        self.rate = np.where(self.usable, blocks.rates.T, 0.0)
        self.load = np.where(present, blocks.gang * blocks.count, 0.0)
        self.weight = np.where(present, blocks.count, 1.0)
        self.weight_x = np.where(self.usable, self.weight[:, None], 0.0)
        self.products = self.weight.sum(axis=1) + self.weight_x.sum(axis=(1, 2)) + len(self.slots)

    def used(self, x: Array) -> Array:
        """Slots of each type."""
        return np.asarray((x @ self.load[..., None])[..., 0])

    def made(self, x: Array) -> Array:
        """Throughput of each block."""
        return np.asarray((self.rate * x).sum(axis=1))

    def beyond(self, point: Point) -> Array:
        """How far times and slots are from what the limits leave of them, by set: rounding may take them beyond."""
        times = np.abs(1.0 - point.x.sum(axis=1) - point.t).max(axis=1, initial=0.0)
        return np.asarray(times + np.abs((self.slots - self.used(point.x) - point.c) / self.slots).max(axis=1))

    def start(self) -> Array:
        """Half of an equal split."""
        split = np.where(self.usable, 1.0 / np.maximum(self.usable.sum(axis=1), 1)[:, None], 0.0)
        room = np.minimum(1.0, self.slots / np.maximum(self.used(split), 1e-300))
        return np.asarray(0.5 * split * room[..., None])

    def point(self, x: Array, mu: Array) -> Point:
        """A point with dual values for some complementarity."""
        t, c = 1.0 - x.sum(axis=1), self.slots - self.used(x)
        lam = np.where(self.usable, mu[:, None, None] * self.weight_x / np.where(self.usable, x, 1.0), 0.0)
        return Point(x, t, c, lam, mu[:, None] * self.weight / t, mu[:, None] / c)

    def slope(self, point: Point) -> Array:
        """The gradient in x of everything but what throughputs are good for."""
        return np.asarray(
            point.tau[:, None] - point.lam + np.where(self.usable, self.load[:, None] * point.pi[..., None], 0.0)
        )


def longest(sets: int, *moves: tuple[Array, Array]) -> Array:
    """How far each set can go along its moves before something reaches zero (what is zero already stays so)."""
    lowest = np.full(sets, -1e-300)
    for values, change in moves:
        lowest = np.fmin(lowest, np.fmin.reduce((change / values).reshape(sets, -1), axis=1))
    return np.asarray(-1.0 / lowest)
