"""The highest level at which every block has what it needs there, by the Newton steps of ``blocks.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geminid.solve.blocks import (
    ACCEPTABLE,
    DAMPING,
    MOST_STEPS,
    PRECISION,
    Array,
    Blocks,
    Mask,
    Newton,
    Point,
    Space,
    Step,
    longest,
)
from geminid.solve.lp import Allowance

#: From where the gap is this part of the level it is best to begin with another problem.
EARLY = 0.3


class Need(Protocol):
    """What every block needs at a level."""

    def highest(self, best: Array) -> float:
        """The level at which some block needs the best rate it can have all the time."""

    def at(self, level: float) -> tuple[Array, Array]:
        """Every block's need at a level, and how fast it grows with it."""

    def bend(self, level: float) -> Array | float:
        """How fast that growth itself grows: the second derivative."""


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


def raise_level(
    blocks: Blocks,
    need: Need,
    start: Start | None = None,
    same: NDArray[np.int64] | None = None,
    within: Allowance | None = None,
) -> Interior | None:
    """The highest level and times that reach it; None where it does not converge, or not in time.

    ``start`` belongs to a problem like this one; ``same`` says which of its blocks each of these is (−1: none).
    """
    space = Space(blocks, np.ones((1, len(blocks.rates)), dtype=bool))
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
            if within is not None and within.late:
                break
            try:
                raising.advance()
            except np.linalg.LinAlgError:
                break
    return best if lowest < ACCEPTABLE else None


@dataclass(frozen=True, slots=True)
class _Rise:
    """A step, and with it the changes of what is beyond the needs (q), of the room above the level (h), and duals."""

    step: Step
    q: Array
    u: Array
    h: float
    v: float


@dataclass(slots=True)
class _Raising:
    """The state of :func:`raise_level`: a point, the level z, and the rows of needs and of the highest level."""

    space: Space
    need: Need
    point: Point
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
    def start(cls, space: Space, need: Need) -> _Raising | None:
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
        self.point = Point(x[None], t[None], start.c[None], lam[None], tau[None], start.pi[None])
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
        newton = Newton(space, point, beta, self.grows, np.array([corner]))
        off_x = np.where(space.usable, space.slope(point) - self.u[:, None] * space.rate, 0.0)
        mu = self.gap / float(space.products[0] + self.weight.sum() + 1.0)
        rise = self._rise(newton, beta, off_x, 0.0, None)
        primal, dual = self._lengths(rise, 1.0)
        left = float(point.after(rise.step, primal, dual).gap()[0])
        left += float(((self.q + primal * rise.q) * (self.u + dual * rise.u)).sum())
        left += float((self.h + primal[0] * rise.h) * (self.v + dual[0] * rise.v))
        rise = self._rise(newton, beta, off_x, (left / self.gap) ** 3 * mu, rise)
        primal, dual = self._lengths(rise, DAMPING)
        self.point = point.after(rise.step, primal, dual)
        self.q, self.u = self.q + primal * rise.q, self.u + dual * rise.u
        self.h, self.v = self.h + float(primal[0]) * rise.h, self.v + float(dual[0]) * rise.v
        self.z += float(primal[0] * rise.step.level[0])

    def _rise(self, newton: Newton, beta: Array, off_x: Array, target: float, twice: _Rise | None) -> _Rise:
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
        primal = longest(
            1,
            (point.x, step.x),
            (point.t, step.t),
            (point.c, step.c),
            (self.q, rise.q),
            (room, np.array([[rise.h]])),
        )
        dual = longest(
            1,
            (point.lam, step.lam),
            (point.tau, step.tau),
            (point.pi, step.pi),
            (self.u, rise.u),
            (dual_room, np.array([[rise.v]])),
        )
        return np.minimum(1.0, damping * primal), np.minimum(1.0, damping * dual)
