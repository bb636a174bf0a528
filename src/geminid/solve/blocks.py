"""An interior-point method for many small blocks that share a few capacities.

Block i is one job (or ``count`` identical ones): it may spend time x_ij on each type j, at most 1 in all, and makes
n_i = Σ_j r_ij·x_ij there. Together they use Σ_i count_i·gang_i·x_ij ≤ slots_j. Given the prices of the types everyone's
choice is separate, so a Newton step costs a few vectorised operations on jobs × types and one system of the size of the
number of types: no general factorisation, no sparse arrays. Two objectives:

- the highest level z at which every n_i ≥ need_i(z), convex in z (:func:`raise_level`);
- the largest Σ_i f_i(n_i) for concave f_i (:func:`largest_sum`), for several sets of blocks at once.

Like any primal-dual method without a crossover it ends in the middle of the optimal solutions, not at a vertex. Blocks
weigh in the barrier as many times as they count, so that merging identical ones does not change what is found.
Mehrotra's predictor and corrector steps; the start need not be feasible. Arrays are sets × types × blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Relative duality gap and residuals at which it ends, and those with which it is content where rounding stops it.
PRECISION = 5e-8
ACCEPTABLE = 1e-6
MOST_STEPS = 80

#: From where the gap is this part of the level it is best to begin with another problem.
EARLY = 0.3

#: How much of the way to the boundary a step may go.
_DAMPING = 0.995

#: Rounding must not make anything zero.
_TINY = 1e-150

#: Sets are solved together as long as their arrays have so many entries at most.
_MOST_ENTRIES = 1 << 17


class Need(Protocol):
    """What every block needs at a level."""

    def highest(self, best: Array) -> float:
        """The level at which some block needs the best rate it can have all the time."""

    def at(self, level: float) -> tuple[Array, Array]:
        """Every block's need at a level, and how fast it grows with it."""

    def bend(self, level: float) -> Array | float:
        """How fast that growth itself grows: the second derivative."""


class Value(Protocol):
    """What throughputs are worth: a concave function of each."""

    def at(self, throughput: Array) -> Array:
        """The value, for arrays whose last axis is the blocks."""

    def derivatives(self, throughput: Array) -> tuple[Array, Array]:
        """First and second derivatives, for arrays whose last axis is the blocks."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rates (blocks × types, 0: cannot run there), gangs, how many jobs a block stands for, and slots of the types."""

    rates: Array
    gang: Array
    count: Array
    slots: Array


@dataclass(frozen=True, slots=True)
class Start:
    """A point on the way to an optimum, still far from all limits: where to begin with a problem that differs little.

    ``x`` and ``lam`` are types × blocks, the next four by block, ``c`` and ``pi`` by type.
    """

    x: Array
    lam: Array
    t: Array
    tau: Array
    q: Array
    u: Array
    c: Array
    pi: Array
    level: float
    room: float


@dataclass(frozen=True, slots=True)
class Interior:
    """Time of each block on each type, the level reached, and the prices of the types' slots there.

    ``start`` is a point on the way, ``steps`` how many it took.
    """

    level: float
    time: Array
    prices: Array
    steps: int
    start: Start | None


@dataclass(slots=True)
class _Point:
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

    def after(self, step: _Step, primal: Array, dual: Array) -> _Point:
        """A step further."""
        one, two = primal[:, None], primal[:, None, None]
        dual_one, dual_two = dual[:, None], dual[:, None, None]
        return _Point(
            np.where(self.x > 0, np.maximum(self.x + two * step.x, _TINY), 0.0),
            np.maximum(self.t + one * step.t, _TINY),
            np.maximum(self.c + one * step.c, _TINY),
            np.where(self.lam > 0, np.maximum(self.lam + dual_two * step.lam, _TINY), 0.0),
            np.maximum(self.tau + dual_one * step.tau, _TINY),
            np.maximum(self.pi + dual_one * step.pi, _TINY),
        )

    def unless(self, done: Mask, other: _Point) -> _Point:
        """Another point, but in sets that are done."""
        one, two = done[:, None], done[:, None, None]
        return _Point(
            np.where(two, self.x, other.x),
            np.where(one, self.t, other.t),
            np.where(one, self.c, other.c),
            np.where(two, self.lam, other.lam),
            np.where(one, self.tau, other.tau),
            np.where(one, self.pi, other.pi),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of a point; ``by_need`` is what the rows of need, or the values, take of it, ``level`` that of z."""

    x: Array
    t: Array
    c: Array
    lam: Array
    tau: Array
    pi: Array
    by_need: Array
    level: Array


class _Newton:
    """Newton steps at one point.

    With each block's K = diag(λ/x) + (τ/t)·11ᵀ + β·rrᵀ (inverted in closed form) they solve
    K·dx + load·dπ − β·grows·r·dz = …, and the rows of the capacities and of the level.
    """

    def __init__(self, space: _Space, point: _Point, beta: Array, grows: Array, corner: Array) -> None:
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

    def step(self, target: Array, twice: _Step | None, off_x: Array, pull: Array, off_level: Array) -> _Step:
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
        return _Step(
            x=self._inverse * rest,
            t=(to_t - d_tau) / self._alpha,
            c=(to_c - d_pi) / self._gamma,
            lam=np.where(space.usable, to_x - rest, 0.0),
            tau=d_tau,
            pi=d_pi,
            by_need=by_need,
            level=d_level,
        )


class _Space:
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

    def beyond(self, point: _Point) -> Array:
        """How far times and slots are from what the limits leave of them, by set: rounding may take them beyond."""
        times = np.abs(1.0 - point.x.sum(axis=1) - point.t).max(axis=1, initial=0.0)
        return np.asarray(times + np.abs((self.slots - self.used(point.x) - point.c) / self.slots).max(axis=1))

    def start(self) -> Array:
        """Half of an equal split."""
        split = np.where(self.usable, 1.0 / np.maximum(self.usable.sum(axis=1), 1)[:, None], 0.0)
        room = np.minimum(1.0, self.slots / np.maximum(self.used(split), 1e-300))
        return np.asarray(0.5 * split * room[..., None])

    def point(self, x: Array, mu: Array) -> _Point:
        """A point with dual values for some complementarity."""
        t, c = 1.0 - x.sum(axis=1), self.slots - self.used(x)
        lam = np.where(self.usable, mu[:, None, None] * self.weight_x / np.where(self.usable, x, 1.0), 0.0)
        return _Point(x, t, c, lam, mu[:, None] * self.weight / t, mu[:, None] / c)

    def slope(self, point: _Point) -> Array:
        """The gradient in x of everything but what throughputs are good for."""
        return np.asarray(
            point.tau[:, None] - point.lam + np.where(self.usable, self.load[:, None] * point.pi[..., None], 0.0)
        )


def _longest(sets: int, *moves: tuple[Array, Array]) -> Array:
    """How far each set can go along its moves before something reaches zero (what is zero already stays so)."""
    lowest = np.full(sets, -1e-300)
    for values, change in moves:
        lowest = np.fmin(lowest, np.fmin.reduce((change / values).reshape(sets, -1), axis=1))
    return np.asarray(-1.0 / lowest)


def raise_level(
    blocks: Blocks, need: Need, start: Start | None = None, same: NDArray[np.int64] | None = None
) -> Interior | None:
    """The highest level and times that reach it; None where it does not converge.

    ``start`` belongs to a problem like this one; ``same`` says which of its blocks each of these is (−1: none).
    """
    space = _Space(blocks, np.ones((1, len(blocks.rates)), dtype=bool))
    raising = _Raising.start(space, need)
    if raising is None:
        return None
    if start is not None and same is not None:
        raising.resume(start, same)
    lowest, best, early = np.inf, None, None
    with np.errstate(all="ignore"):
        for steps in range(MOST_STEPS):
            error = raising.look()
            if early is None and raising.gap < EARLY * max(1.0, abs(raising.z)):
                early = raising.where()
            if error < lowest:
                lowest, best = error, raising.found(steps, early)
            if lowest < PRECISION or not error < 1e3 * lowest:  # done, or as far as rounding lets it come
                break
            try:
                raising.advance()
            except np.linalg.LinAlgError:
                break
    return best if lowest < ACCEPTABLE else None


@dataclass(frozen=True, slots=True)
class _Rise:
    """A step, and with it the changes of what is beyond the needs (q), of the room above the level (h), and duals."""

    step: _Step
    q: Array
    u: Array
    h: float
    v: float


@dataclass(slots=True)
class _Raising:
    """The state of :func:`raise_level`: a point, the level z, and the rows of needs and of the highest level."""

    space: _Space
    need: Need
    point: _Point
    z: float
    bound: float
    active: Mask
    weight: Array
    q: Array
    u: Array
    h: float
    v: float
    grows: Array
    rest_q: Array
    gap: float = np.inf

    @classmethod
    def start(cls, space: _Space, need: Need) -> _Raising | None:
        """Within all limits but, possibly, the needs."""
        x = space.start()
        made = space.made(x)
        bound = need.highest(space.rate[0].max(axis=0))
        z = need.highest(0.5 * made[0])
        if not (np.isfinite(z) and np.isfinite(bound)):
            return None
        required, grows = need.at(z)
        active = (required > 0) | (grows > 0)
        weight = np.where(active, space.weight, 0.0)
        q = np.where(active, np.maximum(made - required, 0.05 * np.maximum(made, 1e-3)), 1.0)
        u = weight / max(float((weight * grows).sum()), 1e-300)
        mu = float((u * q).sum() / weight.sum())
        h = max(bound - z, 1e-3)
        point = space.point(x, np.array([mu]))
        return cls(space, need, point, z, bound, active, weight, q, u, h, mu / h, grows[None], np.zeros_like(q))

    def look(self) -> float:
        """Work out what the needs are here; how far this is from an optimum."""
        space, point = self.space, self.point
        required, grows = self.need.at(self.z)
        self.grows = np.where(self.active, grows, 0.0)[None]
        self.rest_q = np.where(self.active, space.made(point.x) - required - self.q, 0.0)
        self.gap = float(point.gap()[0] + (self.u * self.q).sum() + self.v * self.h)
        return max(
            float(np.abs(self.rest_q / np.maximum(1.0, required)).max()),
            float(np.abs((space.slots - space.used(point.x) - point.c) / space.slots).max()),
            float(np.abs(1.0 - point.x.sum(axis=1) - point.t).max()),
            abs(float((self.grows * self.u).sum()) + self.v - 1.0),
            self.gap / max(1.0, abs(self.z)),
        )

    def found(self, steps: int, early: Start | None) -> Interior:
        """What there is so far."""
        return Interior(self.z, self.point.x[0].T, self.point.pi[0], steps, early)

    def where(self) -> Start:
        """The point, to begin there with another problem."""
        at = self.point
        return Start(
            at.x[0], at.lam[0], at.t[0], at.tau[0], self.q[0], self.u[0], at.c[0], at.pi[0], self.z, self.h * self.v
        )

    def resume(self, start: Start, same: NDArray[np.int64]) -> None:
        """Go to a point that belongs to another problem, as far as the blocks and types are the same."""
        if len(start.c) != len(self.space.slots):
            return
        known = same >= 0
        old = np.where(known, same, 0)
        space = self.space
        self.z = min(start.level, self.bound - 1e-3 * max(1.0, abs(self.bound)))
        self.h = max(self.bound - self.z, 1e-3)
        self.v = start.room / self.h
        usable = known & space.usable[0] & (start.x[:, old] > 0)
        # Blocks that are new begin with what the others have on average, as far from all limits as they are.
        products = float((start.lam * start.x).sum() + start.tau @ start.t + start.pi @ start.c + start.u @ start.q)
        mu = products / (np.count_nonzero(start.x) + 2 * len(start.t) + len(start.c))
        typical = start.x[:, old[known]].mean(axis=1)[:, None]
        weight = space.weight[0]
        x = np.where(usable, start.x[:, old], np.where(space.usable[0], np.maximum(typical, 1e-4), 0.0))
        x = np.where(known, x, x * np.minimum(1.0, 0.95 / np.maximum(x.sum(axis=0), 1e-300)))
        lam = np.where(usable, start.lam[:, old], np.where(x > 0, mu * weight / np.where(x > 0, x, 1.0), 0.0))
        t = np.where(known, start.t[old], 1.0 - x.sum(axis=0))
        tau = np.where(known, start.tau[old], mu * weight / t)
        self.point = _Point(x[None], t[None], start.c[None], lam[None], tau[None], start.pi[None])
        required, _ = self.need.at(self.z)
        q = np.maximum(space.made(x[None])[0] - required, 0.05 * np.maximum(required, 1e-3))
        able = known & self.active & (start.u[old] > 0)
        self.q = np.where(self.active, np.where(able, start.q[old], q), 1.0)[None]
        self.u = np.where(self.active, np.where(able, start.u[old], mu * weight / self.q[0]), 0.0)[None]

    def advance(self) -> None:
        """A predictor step to see how far one can go, and one that corrects it."""
        space, point = self.space, self.point
        beta = np.where(self.active, self.u / self.q, 0.0)
        corner = self.v / self.h + float((self.u * self.need.bend(self.z)).sum())
        newton = _Newton(space, point, beta, self.grows, np.array([corner]))
        off_x = np.where(space.usable, space.slope(point) - self.u[:, None] * space.rate, 0.0)
        mu = self.gap / float(space.products[0] + self.weight.sum() + 1.0)
        rise = self._rise(newton, beta, off_x, 0.0, None)
        primal, dual = self._lengths(rise, 1.0)
        left = float(point.after(rise.step, primal, dual).gap()[0])
        left += float(((self.q + primal * rise.q) * (self.u + dual * rise.u)).sum())
        left += float((self.h + primal[0] * rise.h) * (self.v + dual[0] * rise.v))
        rise = self._rise(newton, beta, off_x, (left / self.gap) ** 3 * mu, rise)
        primal, dual = self._lengths(rise, _DAMPING)
        self.point = point.after(rise.step, primal, dual)
        self.q, self.u = self.q + primal * rise.q, self.u + dual * rise.u
        self.h, self.v = self.h + float(primal[0]) * rise.h, self.v + float(dual[0]) * rise.v
        self.z += float(primal[0] * rise.step.level[0])

    def _rise(self, newton: _Newton, beta: Array, off_x: Array, target: float, twice: _Rise | None) -> _Rise:
        aim_q, aim_h = target * self.weight, target
        if twice is not None:
            aim_q, aim_h = aim_q - twice.q * twice.u, aim_h - twice.h * twice.v
        to_q, to_h = np.where(self.active, aim_q / self.q - self.u, 0.0), aim_h / self.h - self.v
        rest_h = self.bound - self.z - self.h
        pull, eta = to_q - beta * self.rest_q, self.v / self.h
        off_z = 1.0 - float((self.grows * (self.u + pull)).sum()) - self.v - (to_h - eta * rest_h)
        step = newton.step(np.array([target]), twice.step if twice else None, off_x, pull, np.array([off_z]))
        du = np.where(self.active, pull + step.by_need, 0.0)
        dq = np.where(self.active, (to_q - du) / np.where(self.active, beta, 1.0), 0.0)
        dh = rest_h - float(step.level[0])
        return _Rise(step, dq, du, dh, to_h - eta * dh)

    def _lengths(self, rise: _Rise, damping: float) -> tuple[Array, Array]:
        """How far primal and dual values can go."""
        point, step = self.point, rise.step
        room, dual_room = (np.array([[value]]) for value in (self.h, self.v))
        primal = _longest(
            1,
            (point.x, step.x),
            (point.t, step.t),
            (point.c, step.c),
            (self.q, rise.q),
            (room, np.array([[rise.h]])),
        )
        dual = _longest(
            1,
            (point.lam, step.lam),
            (point.tau, step.tau),
            (point.pi, step.pi),
            (self.u, rise.u),
            (dual_room, np.array([[rise.v]])),
        )
        return np.minimum(1.0, damping * primal), np.minimum(1.0, damping * dual)


def largest_sum(blocks: Blocks, value: Value, present: Mask) -> Array:
    """Throughputs at the largest sum of values, one row for each row of ``present`` (sets × blocks).

    Where it does not converge the row is NaN: ``tangents.py`` is for those.
    """
    sets = max(1, _MOST_ENTRIES // max(1, blocks.rates.size))
    with np.errstate(all="ignore"):
        parts = [_largest_sum(blocks, value, present[i : i + sets]) for i in range(0, len(present), sets)]
    return np.concatenate(parts)


def _largest_sum(blocks: Blocks, value: Value, present: Mask) -> Array:
    space = _Space(blocks, present)
    x = space.start()
    counted = space.rate.max(axis=1) > 0
    weight = np.where(counted, blocks.count, 0.0)
    first, _ = value.derivatives(space.made(x))
    worth = (weight * first * space.made(x)).sum(axis=1)
    point = space.point(x, worth / space.products)
    scale = np.maximum(1.0, weight.sum(axis=1))
    nothing = np.zeros(len(present))
    lowest, best, done = np.full(len(present), np.inf), space.made(x), nothing > 0
    for _ in range(MOST_STEPS):
        made = space.made(point.x)
        first, second = value.derivatives(np.where(counted, made, 1.0))
        first, beta = np.where(counted, weight * first, 0.0), np.where(counted, -weight * second, 0.0)
        off_x = np.where(space.usable, space.slope(point) - first[:, None] * space.rate, 0.0)
        gap = point.gap()
        error = gap / scale + np.abs(off_x * point.x).sum(axis=(1, 2)) / scale + space.beyond(point)
        better = error < lowest
        lowest, best = np.where(better, error, lowest), np.where(better[:, None], made, best)
        done |= (lowest < PRECISION) | ~(error < 1e3 * lowest)
        if done.all():
            break
        newton = _Newton(space, point, beta, np.zeros_like(beta), np.ones(len(present)))
        pull = np.zeros_like(beta)
        try:
            predictor = newton.step(nothing, None, off_x, pull, nothing)
            length = np.minimum(1.0, _both(point, predictor))
            sigma = (point.after(predictor, length, length).gap() / gap) ** 3
            corrector = newton.step(sigma * gap / space.products, predictor, off_x, pull, nothing)
        except np.linalg.LinAlgError:
            break
        length = np.minimum(1.0, _DAMPING * _both(point, corrector))
        moved = point.after(corrector, length, length)
        point = point.unless(done, moved)  # sets that are done wait for the others
    return np.where((lowest < ACCEPTABLE)[:, None], best, np.nan)


def _both(point: _Point, step: _Step) -> Array:
    """How far primal and dual values can go together."""
    return _longest(
        len(point.x),
        (point.x, step.x),
        (point.t, step.t),
        (point.c, step.c),
        (point.lam, step.lam),
        (point.tau, step.tau),
        (point.pi, step.pi),
    )
