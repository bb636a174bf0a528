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
starts of a program whose size does not depend on the number of jobs. Of very many columns (``columns.py``) only those
are in it that are worth something, added in the same way.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.sparse import coo_array

from geminid.policies.gavel.columns import WORTH, best_columns, column_names, first_columns, only, worth_of
from geminid.policies.gavel.groups import Groups, Ints
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import Array, Mask
from geminid.policies.gavel.requirement import Affine, Cut, Requirement
from geminid.solve.lp import Allowance, LinearProgram, Optimum

#: Which of several optimal solutions: a vertex, the middle of them, or one of largest total normalised throughput.
Choice = Literal["vertex", "centre", "total"]

#: Name of the level's column.
LEVEL = "level"

#: A requirement counts as violated beyond this, relative to what is required.
TOLERANCE = 1e-8

#: What is required counts as this at least, there.
SMALLEST = 1e-6

#: Levels further than this from zero, where rounding would count, are counted from one that is near.
FAR = 100.0

#: Interior points are less exact.
CENTRE_TOLERANCE = 1e-6
CENTRE_ROUNDS = 10

#: More rounds of tangents and columns than this have never been needed.
MAX_ROUNDS = 300


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
    """The shared program over the columns of some groups, and a column for the level, after those it begins with.

    ``columns`` are those of the groups that are in it so far; solutions are in terms of all of them. All its solves
    take of ``within``.
    """

    def __init__(
        self,
        groups: Groups,
        memory: Memory | None = None,
        within: Allowance | None = None,
        columns: Ints | None = None,
    ) -> None:
        self.groups = groups
        self.columns = first_columns(groups, memory) if columns is None else columns
        self._memory, self._remembered = memory, False
        count = len(groups.members)
        best = np.zeros(count)
        np.maximum.at(best, groups.use_group, groups.use_rate)
        self.best = best[groups.group_of]
        self._several = [g for g, members in enumerate(groups.members) if len(members) > 1 and best[g] > 0]
        if self._several:
            self._member = np.concatenate([groups.members[g] for g in self._several])
            self._member_start = np.cumsum([0] + [len(groups.members[g]) for g in self._several[:-1]])
        self._rows = count + len(groups.pools) + len(groups.limits)
        self._cuts: list[Cut] = []
        self._origin = 0.0
        self._level_at = len(self.columns)
        self._take(self.columns)
        upper = np.concatenate([groups.sizes, groups.pool_slots, [most for _, most in groups.limits]])
        lower = np.zeros(1 + len(self.columns))
        lower[self._level_at] = -np.inf
        self._gain = np.zeros(len(groups.first))
        rows, at, values = self._entries(self._few, np.arange(len(self.columns)))
        matrix = coo_array((values, (rows, self._place[at])), shape=(self._rows, 1 + len(self.columns))).tocsc()
        no_gain = np.zeros(1 + len(self.columns))
        self._lp = LinearProgram(no_gain, matrix, np.full(len(upper), -np.inf), upper, lower=lower, within=within)

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
        has no use for the one, and tangents that do not matter would move the middle. Where the middle or the largest
        total is not found, a vertex is returned.
        """
        recalls = self._memory is not None and choice != "centre"
        bound = requirement.highest(self.best)
        if bound == np.inf:  # nobody needs anything
            nothing = np.zeros(len(self.best))
            return Raised(0.0, np.zeros(len(self.groups.first)), nothing, nothing > 0)
        if not np.isfinite(bound):
            return None
        if near is None and recalls and self._memory is not None and not self._cuts:
            near = self._memory.level
        begin = bound if near is None else min(near, bound)
        self._aim(np.zeros(len(self.groups.first)), level=1.0)
        if self._cuts:
            self._move_tangents(requirement, begin)
        else:
            self._origin = _origin(begin)
            values = np.zeros(1 + len(self.columns))
            values[self._level_at] = begin - self._origin
            self._add_tangents(requirement, values)
            if recalls:
                self._recall(requirement, begin)
        self._lp.set_bounds(self._level_at, -np.inf, bound - self._origin)
        complete = len(self.columns) == len(self.groups.first)  # of columns that were chosen there is no middle
        central = choice == "centre" and complete and not self._uneven(requirement.at(begin)[0]).any()
        found = self._settle(requirement, centre=True) if central else None
        central = found is not None
        found = found if central else self._settle(requirement)
        if found is None:
            return None
        level = self._level(found.values)
        need, slope = requirement.at(level)
        tight = self._tight(found, slope)
        if recalls:
            self._remember(level)
        if level >= bound - 1e-9 * abs(bound):
            tight |= (slope > 0) & (need >= self.best * (1 - 1e-9))
        if choice == "centre" and not central and complete:  # many tangents are found faster at vertices
            found = self._settle(requirement, centre=True) or found
        elif choice == "total":
            lowest = level - 1e-9 * abs(level)
            self._lp.set_bounds(self._level_at, lowest - self._origin, level - self._origin)
            total = np.bincount(
                self.groups.use_column, self.groups.use_time * self.groups.use_rate, minlength=len(self.groups.first)
            )
            self._aim(total.astype(float))
            found = self._settle(requirement) or found
        need, _ = requirement.at(self._level(found.values))  # which may be lower by what rounding needs
        return Raised(level, self._of_all(found), need, tight)

    def maximise(self, gain: Array, need: Array) -> Array | None:
        """The groups' times of largest gain that meet some needs, or None if they cannot be met."""
        requirement = Affine(need, np.zeros(len(need)))
        self._origin = 0.0 if not self._cuts else self._origin
        self._lp.set_bounds(self._level_at, 0.0, 0.0)
        self._aim(gain)
        if not self._cuts:
            self._recall(requirement, 0.0)
        found = self._settle(requirement)
        if found is None and len(self.columns) < len(self.groups.first) and need.any():
            # The columns that make it possible may be missing: those are the ones that raise all needs by a factor.
            if self.raise_level(Affine(np.zeros(len(need)), need), near=1.0) is None:
                return None
            self._lp.set_bounds(self._level_at, 0.0, 0.0)
            self._aim(gain)
            self._move_tangents(requirement, 0.0)
            found = self._settle(requirement)
        if found is None:
            return None
        self._remember(0.0)
        return self._of_all(found)

    # --- Columns ---

    def _take(self, columns: Ints) -> None:
        """Work with these columns."""
        self.columns = columns
        self._place = np.arange(len(columns))
        self._place[self._level_at :] += 1
        self._few = few = only(self.groups, columns)
        by_group = np.argsort(few.use_group, kind="stable")
        bounds = np.searchsorted(few.use_group[by_group], np.arange(len(few.members) + 1))
        self._uses = [by_group[bounds[g] : bounds[g + 1]] for g in range(len(few.members))]
        self.__dict__.pop("_supply", None)

    def _entries(self, few: Groups, which: Ints) -> tuple[Ints, Ints, Array]:
        """Rows, positions in ``which`` and values of some columns in the rows of time, slots and limits."""
        count = len(few.members)
        position = np.full(len(few.first), -1)
        position[which] = np.arange(len(which))
        mine = np.flatnonzero(position[few.use_column] >= 0)
        rows = [few.use_group[mine], count + few.capacity_row[few.pool[which]]]
        columns = [position[few.use_column[mine]], np.arange(len(which))]
        values = [few.use_time[mine], few.gang[few.first[which]]]
        for i, (limited, _) in enumerate(few.limits):
            at = position[limited]
            columns.append(at[at >= 0])
            rows.append(np.full(len(columns[-1]), count + len(few.pools) + i))
            values.append(np.ones(len(columns[-1])))
        return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)

    def _add_columns(self, duals: Array) -> bool:
        """Take up the columns that are worth most at some dual values; whether there were any."""
        groups = self.groups
        if len(self.columns) == len(groups.first):
            return False
        worth = self._gain + worth_of(groups, duals, self._cuts)
        worth[self.columns] = 0.0
        left = np.flatnonzero(worth > WORTH * max(1.0, float(self._gain.max())))
        if not len(left):
            return False
        before = len(self.columns)
        self._take(np.concatenate([self.columns, best_columns(groups, left, worth[left])]))
        new = np.arange(before, len(self.columns))
        rows, at, values = ([part] for part in self._entries(self._few, new))
        if self._cuts:
            position = np.full(len(self.columns), -1)
            position[new] = np.arange(len(new))
            uses = np.concatenate([self._uses[cut.group] for cut in self._cuts])
            counts = [len(self._uses[cut.group]) for cut in self._cuts]
            fresh = np.flatnonzero(position[self._few.use_column[uses]] >= 0)
            theta = np.repeat([cut.theta for cut in self._cuts], counts)[fresh]
            rows.append(self._rows + np.repeat(np.arange(len(self._cuts)), counts)[fresh])
            at.append(position[self._few.use_column[uses[fresh]]])
            values.append(self._few.use_time[uses[fresh]] * np.maximum(self._few.use_rate[uses[fresh]] - theta, 0.0))
        data, where = np.concatenate(values), (np.concatenate(rows), np.concatenate(at))
        matrix = coo_array((data, where), shape=(self._rows + len(self._cuts), len(new))).tocsc()
        self._lp.add_columns(self._gain[self.columns[new]], matrix)
        return True

    def _level(self, values: Array) -> float:
        """The level of a solution: the program counts it from one that is near, so that rounding matters little."""
        return self._origin + float(values[self._level_at])

    def _aim(self, gain: Array, level: float = 0.0) -> None:
        """Maximise the gain of the columns plus this weight times the level."""
        self._gain = gain
        self._lp.set_gain(np.insert(gain[self.columns], self._level_at, level))

    def _of_all(self, found: Optimum) -> Array:
        """A solution in terms of all columns."""
        values = np.zeros(len(self.groups.first))
        values[self.columns] = found.values[self._place]
        return values

    # --- From one problem to the next ---

    def _names(self) -> tuple[list[Hashable], list[Hashable]]:
        """Names of the columns and rows, the same in another program over the same kinds of jobs."""
        groups = self._few
        rows: list[Hashable] = [*groups.names, *(tuple(types.tolist()) for types in groups.pools)]
        rows += [("limit", i) for i in range(len(groups.limits))]
        rows += [(groups.names[cut.group], cut.theta) for cut in self._cuts]
        columns = column_names(groups)
        return [*columns[: self._level_at], LEVEL, *columns[self._level_at :]], rows

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
        """Solve, and add violated tangents and worthy columns until there are none.

        Interior points are not looked for long, and not among more columns.
        """
        tolerance, rounds = (CENTRE_TOLERANCE, CENTRE_ROUNDS) if centre else (TOLERANCE, MAX_ROUNDS)
        for _ in range(rounds):
            found = self._lp.solve(centre=centre)
            if found is None:
                return None
            if self._add_tangents(requirement, found.values, tolerance):
                continue
            if centre or not self._add_columns(found.row_duals):
                return found
        return None

    def _tight(self, found: Optimum, slope: Array) -> Mask:
        """Jobs in requirements whose dual value shows that they are tight in every optimal solution."""
        tight = np.zeros(len(slope), dtype=bool)
        worth = np.abs(found.row_duals[self._rows :])
        for row in np.flatnonzero(worth * [cut.grows for cut in self._cuts] > 1e-7).tolist():
            tight[self._cuts[row].jobs] = True
        return tight & (slope > 0)

    def _add_tangents(self, requirement: Requirement, values: Array, tolerance: float = TOLERANCE) -> bool:
        """Add the requirements that a point violates; whether there were any."""
        groups, level = self._few, self._level(values)
        need, slope = requirement.at(level)
        made = groups.use_time * groups.use_rate * values[self._place[groups.use_column]]
        count = len(groups.members)
        reached = np.bincount(groups.use_group, made, minlength=count)
        positive = need > 0
        required = np.bincount(groups.group_of[positive], need[positive], minlength=count)
        grows = np.bincount(groups.group_of[positive], slope[positive], minlength=count)
        short = np.flatnonzero(reached < required - tolerance * np.maximum(SMALLEST, required))
        cuts = []
        for g in short.tolist():
            members = groups.members[g]
            cuts.append(Cut(g, 0.0, members[positive[members]], float(required[g]), float(grows[g]), level))
        cuts += self._steepest(values, need, slope, tolerance)
        known = {(cut.group, cut.theta, cut.required, cut.grows, cut.level) for cut in self._cuts} if cuts else ()
        cuts = [cut for cut in cuts if (cut.group, cut.theta, cut.required, cut.grows, cut.level) not in known]
        if cuts:  # what is there already is violated by rounding only
            self._add(cuts)
        return bool(cuts)

    def _move_tangents(self, requirement: Requirement, level: float) -> None:
        """Make the tangents there are, which belong to another requirement, those of this one at a level."""
        need, slope = requirement.at(level)
        moved, self._origin = _origin(level) != self._origin, _origin(level)
        first: dict[tuple[int, float], int] = {}
        for row, cut in enumerate(self._cuts):
            if first.setdefault((cut.group, cut.theta), row) != row and len(cut.jobs):  # one of each is enough
                self._set(row, Cut(cut.group, cut.theta, cut.jobs[:0], 0.0, 0.0, level))
        rows = np.array(list(first.values()), dtype=np.int64)
        theta = np.array([cut_theta for _, cut_theta in first])
        members = [self.groups.members[g] for g, _ in first]
        at = np.repeat(np.arange(len(rows)), [len(m) for m in members])
        job = np.concatenate(members)
        beyond = need[job] - theta[at]
        above = beyond > 0
        required = np.bincount(at, np.where(above, beyond, 0.0), minlength=len(rows))
        grows = np.bincount(at, np.where(above, slope[job], 0.0), minlength=len(rows))
        ends = np.cumsum([len(m) for m in members])
        old = np.array([(cut.required, cut.grows, cut.level) for cut in (self._cuts[row] for row in rows.tolist())])
        same = (old[:, 0] == required) & (old[:, 1] == grows) & ((old[:, 2] == level) & (not moved) | (grows == 0))
        for i in np.flatnonzero(~same).tolist():
            cut = self._cuts[rows[i]]
            jobs = members[i][above[ends[i] - len(members[i]) : ends[i]]]
            self._set(int(rows[i]), Cut(cut.group, cut.theta, jobs, float(required[i]), float(grows[i]), level))

    def _set(self, row: int, cut: Cut) -> None:
        """Put another tangent of the same group and rate in the place of one."""
        self._cuts[row] = cut
        self._lp.set_row(self._rows + row, self._level_at, -cut.grows, cut.lower(self._origin))

    def _steepest(self, values: Array, need: Array, slope: Array, tolerance: float) -> list[Cut]:
        """For each group with members of different need, the rate θ > 0 at which it is violated most, if any."""
        if not self._uneven(need).any():
            return []
        supply = self._supply
        beyond = np.maximum(need[supply.job] - supply.theta[supply.job_row], 0.0)
        required = np.bincount(supply.job_row, beyond, minlength=len(supply.theta))
        made = supply.excess * values[self._place[supply.use_column]]
        reached = np.bincount(supply.use_row, made, minlength=len(supply.theta))
        theirs = np.bincount(supply.job_row, np.where(beyond > 0, need[supply.job], 0.0), minlength=len(supply.theta))
        short = required - reached - tolerance * np.maximum(SMALLEST, theirs)
        cuts = []
        for i in np.flatnonzero(np.maximum.reduceat(short, supply.start[:-1]) > 0).tolist():
            row = int(supply.start[i] + short[supply.start[i] : supply.start[i + 1]].argmax())
            members = self.groups.members[self._several[i]]
            jobs = members[need[members] > supply.theta[row]]
            theta, grows = float(supply.theta[row]), float(slope[jobs].sum())
            cuts.append(Cut(self._several[i], theta, jobs, float(required[row]), grows, self._level(values)))
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
        groups = self._few
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
        """Σ_c time·max(r_c − θ, 0)·X_c − grows·z ≥ required − grows·level for every cut, levels from the origin."""
        groups = self._few
        uses = np.concatenate([self._uses[cut.group] for cut in cuts])
        counts = [len(self._uses[cut.group]) for cut in cuts]
        row = np.repeat(np.arange(len(cuts)), counts)
        made = np.maximum(groups.use_rate[uses] - np.repeat([cut.theta for cut in cuts], counts), 0.0)
        data = np.concatenate([groups.use_time[uses] * made, [-cut.grows for cut in cuts]])
        columns = np.concatenate([self._place[groups.use_column[uses]], np.full(len(cuts), self._level_at)])
        rows = np.concatenate([row, np.arange(len(cuts))])
        matrix = coo_array((data, (rows, columns)), shape=(len(cuts), 1 + len(self.columns))).tocsr()
        lower = np.array([cut.lower(self._origin) for cut in cuts])
        self._lp.add_rows(matrix, lower, np.full(len(cuts), np.inf))
        self._cuts += cuts


def _origin(level: float) -> float:
    """The level from which a program counts where a level is near."""
    return level if abs(level) > FAR else 0.0
