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

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from scipy.sparse import coo_array

from geminid.policies.gavel.groups import Groups, Ints
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import Array, Mask
from geminid.solve.lp import LinearProgram, Optimum

#: Which of several optimal solutions: a vertex, the middle of them, or one of largest total normalised throughput.
Choice = Literal["vertex", "centre", "total"]

#: Name of the last column.
LEVEL = "level"

#: A requirement counts as violated beyond this, relative to what is required.
TOLERANCE = 1e-8

#: Interior points are less exact.
CENTRE_TOLERANCE = 1e-6
CENTRE_ROUNDS = 10

#: More rounds of tangents than this have never been needed.
MAX_ROUNDS = 200


class Requirement(Protocol):
    """What every job needs at a level, in multiples of its reference throughput."""

    def highest(self, best: Array) -> float:
        """The level at which some job needs the best rate it can have all the time: no higher one is possible."""

    def at(self, level: float) -> tuple[Array, Array]:
        """Every job's need at a level, and how fast it grows with it."""

    def bend(self, level: float) -> Array | float:
        """How fast that growth itself grows: the second derivative."""

    def parameters(self) -> Array:
        """A row for each job: jobs with equal rows always need the same."""

    def of(self, jobs: Ints) -> Requirement:
        """The same for some of the jobs only."""


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

    def bend(self, level: float) -> float:
        """None."""
        return 0.0

    def parameters(self) -> Array:
        """Base and slope."""
        return np.column_stack([self.base, self.slope])

    def of(self, jobs: Ints) -> Affine:
        """The same for some of the jobs only."""
        return Affine(self.base[jobs], self.slope[jobs])


@dataclass(frozen=True, slots=True)
class Raised:
    """The highest level, the groups' times that reach it, every job's need there, and which jobs hold it down.

    A job is ``tight`` where it is certain that it cannot have more while all others have what they need.
    """

    level: float
    values: Array
    need: Array
    tight: Mask


@dataclass(frozen=True, slots=True)
class Cut:
    """What some jobs of a group need beyond a rate θ at a level, and how fast that grows with it."""

    group: int
    theta: float
    jobs: Ints
    required: float
    grows: float
    level: float

    def same(self, required: float, grows: float, level: float) -> bool:
        """Whether it comes to the same as another of its group and rate."""
        return self.required == required and self.grows == grows and (self.level == level or grows == 0)


@dataclass(frozen=True, slots=True)
class _Supply:
    """Rates θ of groups, one row each: the rows of group i are start[i] to start[i + 1]."""

    start: Ints
    theta: Array
    job: Ints
    job_row: Ints
    use_column: Ints
    use_row: Ints
    excess: Array


class TimeProgram:
    """The shared program over the columns of some groups, and a last column for the level."""

    def __init__(self, groups: Groups, memory: Memory | None = None) -> None:
        self.groups = groups
        self._memory, self._remembered = memory, False
        self.level = len(groups.first)
        count = len(groups.members)
        time = (groups.use_time, (groups.use_group, groups.use_column))
        columns = np.arange(self.level)
        limited = [np.full(len(c), count + len(groups.pools) + i) for i, (c, _) in enumerate(groups.limits)]
        matrix = coo_array(
            (
                np.concatenate([time[0], groups.gang[groups.first], *(np.ones(len(c)) for c, _ in groups.limits)]),
                (
                    np.concatenate([time[1][0], count + groups.capacity_row[groups.pool], *limited]),
                    np.concatenate([time[1][1], columns, *(c for c, _ in groups.limits)]),
                ),
            ),
            shape=(count + len(groups.pools) + len(groups.limits), self.level + 1),
        ).tocsc()
        upper = np.concatenate([groups.sizes, groups.pool_slots, [most for _, most in groups.limits]])
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
        self._several = [g for g, members in enumerate(groups.members) if len(members) > 1 and len(self._uses[g])]
        if self._several:
            self._member = np.concatenate([groups.members[g] for g in self._several])
            self._member_start = np.cumsum([0] + [len(groups.members[g]) for g in self._several[:-1]])
        self._rows = len(upper)
        self._cuts: list[Cut] = []
        self._duals = np.zeros(len(upper))

    @property
    def tangents(self) -> int:
        """How many tangents have been added."""
        return len(self._cuts)

    @property
    def outcome(self) -> str:
        """How the last solve ended."""
        return self._lp.outcome

    def raise_level(
        self, requirement: Requirement, choice: Choice = "vertex", near: float | None = None
    ) -> Raised | None:
        """The highest level at which every need is met, or None if there is none or the solver fails.

        Can be called again with another requirement: it then starts from the last solution. Tangents begin at ``near``,
        a level that may be close to the highest, or at the highest that any one job could reach by itself. With a
        memory it starts from the last problem's basis and tangents, but for the ``centre``: an interior-point method
        has no use for the one, and tangents that do not matter would move the middle.
        """
        recalls = self._memory is not None and choice != "centre"
        bound = requirement.highest(self.best)
        if bound == np.inf:  # nobody needs anything
            nothing = np.zeros(len(self.best))
            return Raised(0.0, np.zeros(self.level), nothing, nothing > 0)
        if not np.isfinite(bound):
            return None
        self._lp.set_gain(self._gain)
        self._lp.set_bounds(self.level, -np.inf, bound)
        if near is None and recalls and self._memory is not None and not self._cuts:
            near = self._memory.level
        begin = bound if near is None else min(near, bound)
        if self._cuts:
            self._move_tangents(requirement, begin)
        else:
            self._add_tangents(requirement, np.append(np.zeros(self.level), begin))
            if recalls:
                self._recall(requirement, begin)
        central = choice == "centre" and not self._uneven(requirement.at(begin)[0]).any()
        found = self._settle(requirement, centre=True) if central else None
        central = found is not None
        found = found if central else self._settle(requirement)
        if found is None:
            return None
        level = float(found.values[-1])
        need, slope = requirement.at(level)
        tight = self._tight(found, slope)
        self._duals = found.row_duals
        if recalls:
            self._remember(level)
        if level >= bound - 1e-9 * abs(bound):
            tight |= (slope > 0) & (need >= self.best * (1 - 1e-9))
        if choice == "centre" and not central:  # many tangents are found faster at vertices
            found = self._settle(requirement, centre=True) or found
        elif choice == "total":
            self._lp.set_bounds(self.level, level - 1e-9 * max(1.0, abs(level)), level)
            self._lp.set_gain(np.append(self._total_gain(), 0.0))
            found = self._settle(requirement)
        if found is None:
            return None
        return Raised(level, found.values[:-1], need, tight)

    def maximise(self, gain: Array, requirement: Requirement) -> Array | None:
        """The groups' times of largest gain that meet the needs at level 0, or None if they cannot be met."""
        self._lp.set_bounds(self.level, 0.0, 0.0)
        self._lp.set_gain(np.append(gain, 0.0))
        if not self._cuts:
            self._recall(requirement, 0.0)
        found = self._settle(requirement)
        if found is not None:
            self._remember(0.0)
        return found.values[:-1] if found is not None else None

    def worth_of(self, groups: Groups) -> Array:
        """What a unit of each column of ``groups`` would raise the level by; these are the groups of this program too.

        By the dual values of the last solve: what it makes, less the time and the slots that it takes.
        """
        duals = np.abs(self._duals)
        count, pools = len(groups.members), len(groups.pools)
        gain = np.zeros(len(groups.use_group))
        by_group: dict[int, list[tuple[float, float]]] = {}
        plain = np.zeros(count)
        for cut, dual in zip(self._cuts, duals[self._rows :].tolist(), strict=True):
            if cut.theta == 0:
                plain[cut.group] += dual
            elif dual > 0:
                by_group.setdefault(cut.group, []).append((cut.theta, dual))
        gain += plain[groups.use_group] * groups.use_rate
        for g, steps in by_group.items():
            mine = np.flatnonzero(groups.use_group == g)
            for theta, dual in steps:
                gain[mine] += dual * np.maximum(groups.use_rate[mine] - theta, 0.0)
        net = groups.use_time * (gain - duals[:count][groups.use_group])
        worth = np.bincount(groups.use_column, net, minlength=len(groups.first)).astype(float)
        worth = worth - groups.gang[groups.first] * duals[count : count + pools][groups.capacity_row[groups.pool]]
        for (columns, _), dual in zip(groups.limits, duals[count + pools : self._rows].tolist(), strict=True):
            worth[columns] -= dual
        return np.asarray(worth)

    # --- From one problem to the next ---

    def _names(self) -> tuple[list[Hashable], list[Hashable]]:
        """Names of the columns and rows, the same in another program over the same kinds of jobs."""
        groups = self.groups
        pools = [tuple(types.tolist()) for types in groups.pools]
        columns: list[Hashable] = [
            (groups.names[g], groups.names[h] if h >= 0 else None, pools[p])
            for g, h, p in zip(groups.first.tolist(), groups.second.tolist(), groups.pool.tolist(), strict=True)
        ]
        rows: list[Hashable] = [*groups.names, *pools, *(("limit", i) for i in range(len(groups.limits)))]
        rows += [(groups.names[cut.group], cut.theta) for cut in self._cuts]
        return [*columns, LEVEL], rows

    def _remember(self, level: float) -> None:
        """Keep the basis of the first solve, the rates at which tangents were tight, and the level."""
        if self._memory is None or self._remembered:
            return
        self._remembered = True
        columns, rows = self._names()
        basic_columns, basic_rows = self._lp.basis()
        if len(basic_columns) != len(columns) or len(basic_rows) != len(rows):
            return
        basic = {columns[i] for i in np.flatnonzero(basic_columns).tolist()}
        basic |= {rows[i] for i in np.flatnonzero(basic_rows).tolist()}
        self._memory.basic = frozenset(basic)
        self._memory.nonbasic_rows = frozenset(rows[i] for i in np.flatnonzero(~basic_rows).tolist())
        rates: dict[Hashable, set[float]] = {}
        for cut in (self._cuts[i] for i in np.flatnonzero(~basic_rows[self._rows :]).tolist()):
            if cut.theta > 0:
                rates.setdefault(self.groups.names[cut.group], set()).add(cut.theta)
        self._memory.rates = {name: tuple(sorted(values)) for name, values in rates.items()}
        self._memory.level = level

    def _recall(self, requirement: Requirement, level: float) -> None:
        """Begin with the tangents and the basis of the last problem, as far as they fit."""
        memory = self._memory
        if memory is None or not memory.basic:
            return
        need, slope = requirement.at(level)
        cuts = []
        for g, name in enumerate(self.groups.names):
            members = self.groups.members[g]
            for theta in memory.rates.get(name, ()) if len(members) > 1 else ():
                jobs = members[need[members] > theta]
                if len(jobs):
                    required = float((need[jobs] - theta).sum())
                    cuts.append(Cut(g, theta, jobs, required, float(slope[jobs].sum()), level))
        if cuts:
            self._add(cuts)
        columns, rows = self._names()
        basic = memory.basic
        upper = np.arange(len(rows)) < self._rows
        self._lp.set_basis(
            np.array([name in basic for name in columns], dtype=bool),
            np.array([name not in memory.nonbasic_rows for name in rows], dtype=bool),
            upper,
        )

    # --- Tangents ---

    def _settle(self, requirement: Requirement, *, centre: bool = False) -> Optimum | None:
        """Solve, and add violated tangents until there are none. Interior points are not looked for long."""
        tolerance, rounds = (CENTRE_TOLERANCE, CENTRE_ROUNDS) if centre else (TOLERANCE, MAX_ROUNDS)
        for _ in range(rounds):
            found = self._lp.solve(centre=centre)
            if found is None or not self._add_tangents(requirement, found.values, tolerance):
                return found
        return None

    def _tight(self, found: Optimum, slope: Array) -> Mask:
        """Jobs in requirements whose dual value shows that they are tight in every optimal solution."""
        tight = np.zeros(len(slope), dtype=bool)
        worth = np.abs(found.row_duals[self._rows :])
        for row in np.flatnonzero(worth * [cut.grows for cut in self._cuts] > 1e-7).tolist():
            tight[self._cuts[row].jobs] = True
        return tight & (slope > 0)

    def _total_gain(self) -> Array:
        gain = np.zeros(self.level)
        np.add.at(gain, self.groups.use_column, self.groups.use_time * self.groups.use_rate)
        return gain

    def _add_tangents(self, requirement: Requirement, values: Array, tolerance: float = TOLERANCE) -> bool:
        """Add the requirements that a point violates; whether there were any."""
        groups, level = self.groups, float(values[-1])
        need, slope = requirement.at(level)
        made = groups.use_time * groups.use_rate * values[groups.use_column]
        count = len(groups.members)
        reached = np.bincount(groups.use_group, made, minlength=count)
        positive = need > 0
        required = np.bincount(groups.group_of[positive], need[positive], minlength=count)
        grows = np.bincount(groups.group_of[positive], slope[positive], minlength=count)
        short = np.flatnonzero(reached < required - tolerance * np.maximum(1.0, required))
        cuts = []
        for g in short.tolist():
            members = groups.members[g]
            cuts.append(Cut(g, 0.0, members[positive[members]], float(required[g]), float(grows[g]), level))
        cuts += self._steepest(values, need, slope, tolerance)
        if cuts:
            self._add(cuts)
        return bool(cuts)

    def _move_tangents(self, requirement: Requirement, level: float) -> None:
        """Make the tangents there are, which belong to another requirement, those of this one at a level."""
        need, slope = requirement.at(level)
        by_group: dict[int, dict[float, int]] = {}
        for row, cut in enumerate(self._cuts):
            first = by_group.setdefault(cut.group, {}).setdefault(cut.theta, row)
            if first != row and len(cut.jobs):  # one of each is enough
                self._cuts[row] = Cut(cut.group, cut.theta, cut.jobs[:0], 0.0, 0.0, level)
                self._lp.set_row(self._rows + row, self.level, 0.0, -np.inf)
        for g, rows in by_group.items():
            members, theta = self.groups.members[g], np.array(list(rows))
            beyond = need[members] - theta[:, None]
            above = beyond > 0
            required, grows = np.where(above, beyond, 0.0).sum(axis=1).tolist(), (above @ slope[members]).tolist()
            for i, row in enumerate(rows.values()):
                if self._cuts[row].same(required[i], grows[i], level):
                    continue
                self._cuts[row] = Cut(g, self._cuts[row].theta, members[above[i]], required[i], grows[i], level)
                lower = required[i] - grows[i] * level if required[i] > 0 else -np.inf
                self._lp.set_row(self._rows + row, self.level, -grows[i], lower)

    def _steepest(self, values: Array, need: Array, slope: Array, tolerance: float) -> list[Cut]:
        """For each group with members of different need, the rate θ > 0 at which it is violated most, if any."""
        if not self._uneven(need).any():
            return []
        by_member = need[self._member]
        supply = self._supply
        beyond = np.maximum(need[supply.job] - supply.theta[supply.job_row], 0.0)
        required = np.bincount(supply.job_row, beyond, minlength=len(supply.theta))
        reached = np.bincount(supply.use_row, supply.excess * values[supply.use_column], minlength=len(supply.theta))
        short = required - reached
        limit = tolerance * np.maximum(1.0, np.add.reduceat(by_member, self._member_start))
        cuts = []
        for i in np.flatnonzero(np.maximum.reduceat(short, supply.start[:-1]) > limit).tolist():
            row = int(supply.start[i] + short[supply.start[i] : supply.start[i + 1]].argmax())
            members = self.groups.members[self._several[i]]
            jobs = members[need[members] > supply.theta[row]]
            theta, grows = float(supply.theta[row]), float(slope[jobs].sum())
            cuts.append(Cut(self._several[i], theta, jobs, float(required[row]), grows, float(values[-1])))
        return cuts

    def _uneven(self, need: Array) -> Mask:
        """Which of the groups with several members have some of different need."""
        if not self._several:
            return np.zeros(0, dtype=bool)
        by_member = need[self._member]
        lowest, highest = (f.reduceat(by_member, self._member_start) for f in (np.minimum, np.maximum))
        return np.asarray(highest - lowest > 1e-12)

    @cached_property
    def _supply(self) -> _Supply:
        """Every rate θ of every group with several members, what jobs need and columns make beyond it."""
        groups = self.groups
        uses = [self._uses[g] for g in self._several]
        thetas = [np.unique(groups.use_rate[u]) for u in uses]
        start = np.concatenate([[0], np.cumsum([len(t) for t in thetas])])
        theta = np.concatenate(thetas)
        job, job_row, use_column, use_row, excess = [], [], [], [], []
        for g, mine, first, rates in zip(self._several, uses, start.tolist(), thetas, strict=False):
            rows, members = np.arange(first, first + len(rates)), groups.members[g]
            job.append(np.tile(members, len(rates)))
            job_row.append(np.repeat(rows, len(members)))
            beyond = groups.use_rate[mine] - rates[:, None]
            at, which = np.nonzero(beyond > 0)
            use_row.append(rows[at])
            use_column.append(groups.use_column[mine][which])
            excess.append(beyond[at, which] * groups.use_time[mine][which])
        return _Supply(
            start=start,
            theta=theta,
            job=np.concatenate(job),
            job_row=np.concatenate(job_row),
            use_column=np.concatenate(use_column),
            use_row=np.concatenate(use_row),
            excess=np.concatenate(excess),
        )

    def _add(self, cuts: list[Cut]) -> None:
        """Σ_c time·max(r_c − θ, 0)·X_c − grows·z ≥ required − grows·level, for every cut."""
        groups = self.groups
        uses = np.concatenate([self._uses[cut.group] for cut in cuts])
        counts = [len(self._uses[cut.group]) for cut in cuts]
        row = np.repeat(np.arange(len(cuts)), counts)
        made = np.maximum(groups.use_rate[uses] - np.repeat([cut.theta for cut in cuts], counts), 0.0)
        data = np.concatenate([groups.use_time[uses] * made, [-cut.grows for cut in cuts]])
        columns = np.concatenate([groups.use_column[uses], np.full(len(cuts), self.level)])
        rows = np.concatenate([row, np.arange(len(cuts))])
        matrix = coo_array((data, (rows, columns)), shape=(len(cuts), self.level + 1)).tocsr()
        lower = np.array([cut.required - cut.grows * cut.level for cut in cuts])
        self._lp.add_rows(matrix, lower, np.full(len(cuts), np.inf))
        self._cuts += cuts
