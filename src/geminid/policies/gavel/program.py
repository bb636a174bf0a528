"""The linear program that the policies over time fractions share, and the one way to raise everyone's level in it.

Columns are the groups' times (see ``groups.py``); rows say that no job runs for more than all of the time and no type
has more in use than it has. Most policies then raise one *level* z as far as possible, where every job i needs a
throughput y_i(z) that grows with z and is convex in it: fairness (y proportional to z), makespan (y = steps left × z),
finish-time fairness (z = −ρ), water filling (y = what it has + weight × z).

Members of a group may need different amounts. With X_c the time of a group at rate r_c, its m members can all be
served exactly if, for every rate θ ≥ 0,

    Σ_c X_c·max(r_c − θ, 0)  ≥  Σ_i max(y_i(z) − θ, 0)      and      Σ_c X_c ≤ m.

(The neediest k members together need at most what k units of the fastest time make, for every k; written for the
slope θ of that concave curve.) The left side is linear in X, the right convex in z, and θ matters only at the rates
r_c and 0. So tangents of the right side, added where they are violated, lead to the exact optimum in a few warm
starts of a program whose size does not depend on the number of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from scipy.sparse import coo_array

from geminid.policies.gavel.groups import Groups
from geminid.policies.gavel.problem import Array
from geminid.solve.lp import LinearProgram

#: Which of several optimal solutions: a vertex, the middle of them, or one of largest total normalised throughput.
Choice = Literal["vertex", "centre", "total"]

#: A requirement counts as violated beyond this, relative to what is required.
TOLERANCE = 1e-7

#: More rounds of tangents than this have never been needed.
MAX_ROUNDS = 200


class Requirement(Protocol):
    """What every job needs at a level, in multiples of its reference throughput."""

    def highest(self, best: Array) -> float:
        """The level at which some job needs the best rate it can have all the time: no higher one is possible."""

    def at(self, level: float) -> tuple[Array, Array]:
        """Every job's need at a level, and how fast it grows with it."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Needs of base + slope × level."""

    base: Array
    slope: Array

    def highest(self, best: Array) -> float:
        """The lowest level at which a growing need reaches the best rate."""
        grows = self.slope > 0
        return float(((best - self.base)[grows] / self.slope[grows]).min(initial=np.inf))

    def at(self, level: float) -> tuple[Array, Array]:
        """Every job's need, and its slope."""
        return self.base + self.slope * level, self.slope


@dataclass(frozen=True, slots=True)
class Raised:
    """The highest level, the groups' times that reach it, and every job's need there."""

    level: float
    values: Array
    need: Array


class TimeProgram:
    """The shared program over the columns of some groups, and a last column for the level."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.level = len(groups.first)
        count = len(groups.members)
        time = (groups.use_time, (groups.use_group, groups.use_column))
        columns = np.arange(self.level)
        matrix = coo_array(
            (
                np.concatenate([time[0], groups.gang[groups.first]]),
                (np.concatenate([time[1][0], count + groups.pool]), np.concatenate([time[1][1], columns])),
            ),
            shape=(count + len(groups.pools), self.level + 1),
        ).tocsc()
        upper = np.concatenate([groups.sizes, groups.pool_slots])
        lower = np.zeros(self.level + 1)
        lower[-1] = -np.inf
        gain = np.zeros(self.level + 1)
        gain[-1] = 1.0
        self._gain = gain
        self._lp = LinearProgram(gain, matrix, np.full(len(upper), -np.inf), upper, lower=lower)
        best = np.zeros(count)
        np.maximum.at(best, groups.use_group, groups.use_rate)
        self.best = best[groups.group_of]
        by_group = np.argsort(groups.use_group, kind="stable")
        bounds = np.searchsorted(groups.use_group[by_group], np.arange(count + 1))
        self._uses = [by_group[bounds[g] : bounds[g + 1]] for g in range(count)]

    def raise_level(self, requirement: Requirement, choice: Choice = "vertex") -> Raised | None:
        """The highest level at which every need is met, or None if there is none or the solver fails."""
        level = requirement.highest(self.best)
        if not np.isfinite(level):
            return None
        self._lp.set_bounds(self.level, -np.inf, level)
        values = self._settle(requirement, np.concatenate([np.zeros(self.level), [level]]), centre=False)
        if values is None:
            return None
        level = float(values[-1])
        if choice == "centre":
            values = self._settle(requirement, None, centre=True)
        elif choice == "total":
            self._lp.set_bounds(self.level, level - 1e-9 * max(1.0, abs(level)), level)
            self._lp.set_gain(np.concatenate([self._total_gain(), [0.0]]))
            values = self._settle(requirement, None, centre=False)
            self._lp.set_gain(self._gain)
        if values is None:
            return None
        return Raised(float(values[-1]), values[:-1], requirement.at(float(values[-1]))[0])

    def maximise(self, gain: Array, requirement: Requirement) -> Array | None:
        """The groups' times of largest gain that meet the needs at level 0, or None if they cannot be met."""
        self._lp.set_bounds(self.level, 0.0, 0.0)
        self._lp.set_gain(np.append(gain, 0.0))
        values = self._settle(requirement, None, centre=False)
        return values[:-1] if values is not None else None

    def _settle(self, requirement: Requirement, values: Array | None, *, centre: bool) -> Array | None:
        """Solve, and add violated tangents until there are none; ``values`` is a point to begin at."""
        for _ in range(MAX_ROUNDS):
            if values is None:
                found = self._lp.solve(centre=centre)
                if found is None:
                    return None
                values = found.values
            if not self._add_tangents(requirement, values):
                return values
            values = None
        return None

    def _total_gain(self) -> Array:
        gain = np.zeros(self.level)
        np.add.at(gain, self.groups.use_column, self.groups.use_time * self.groups.use_rate)
        return gain

    def _add_tangents(self, requirement: Requirement, values: Array) -> bool:
        """Add the requirements that a point violates; whether there were any."""
        groups, level = self.groups, float(values[-1])
        need, slope = requirement.at(level)
        made = groups.use_time * groups.use_rate * values[groups.use_column]
        count = len(groups.members)
        reached = np.bincount(groups.use_group, made, minlength=count)
        positive = need > 0
        required = np.bincount(groups.group_of[positive], need[positive], minlength=count)
        grows = np.bincount(groups.group_of[positive], slope[positive], minlength=count)
        short = np.flatnonzero(reached < required - TOLERANCE * np.maximum(1.0, required))
        cuts = [(int(g), 0.0, required[g], grows[g]) for g in short.tolist()]
        for g, members in enumerate(groups.members):
            if len(members) > 1 and np.ptp(need[members]) > 1e-12:
                cuts += self._steepest(g, values, need[members], slope[members])
        if cuts:
            self._add(cuts, level)
        return bool(cuts)

    def _steepest(self, g: int, values: Array, need: Array, slope: Array) -> list[tuple[int, float, float, float]]:
        """The rate θ > 0 at which a group's requirement is violated most, if any."""
        groups, uses = self.groups, self._uses[g]
        rates, time = groups.use_rate[uses], groups.use_time[uses] * values[groups.use_column[uses]]
        theta = np.unique(rates)
        reached = np.maximum(rates - theta[:, None], 0.0) @ time
        above = need > theta[:, None]
        required = np.where(above, need - theta[:, None], 0.0).sum(axis=1)
        worst = int(np.argmax(required - reached))
        if required[worst] - reached[worst] <= TOLERANCE * max(1.0, float(need.sum())):
            return []
        return [(g, float(theta[worst]), float(required[worst]), float(slope @ above[worst]))]

    def _add(self, cuts: list[tuple[int, float, float, float]], level: float) -> None:
        """Σ_c time·max(r_c − θ, 0)·X_c − grows·z ≥ required − grows·level, for every cut."""
        groups = self.groups
        rows, columns, data = [], [], []
        for row, (g, theta, _, grows) in enumerate(cuts):
            uses = self._uses[g]
            rows.append(np.full(len(uses) + 1, row))
            columns.append(np.append(groups.use_column[uses], self.level))
            data.append(np.append(groups.use_time[uses] * np.maximum(groups.use_rate[uses] - theta, 0.0), -grows))
        matrix = coo_array(
            (np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))), shape=(len(cuts), self.level + 1)
        ).tocsr()
        lower = np.array([required - grows * level for _, _, required, grows in cuts])
        self._lp.add_rows(matrix, lower, np.full(len(cuts), np.inf))
