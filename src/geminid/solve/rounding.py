"""From prices to a decision: everybody's best choice, made feasible, full, and as good as a few exchanges make it.

A basic optimum of the linear program splits at most as many jobs as there are prices, so that taking everybody's best
choice is almost feasible and almost optimal: a repair moves the jobs that lose least off what is over-full, and what is
left free is given to whom it helps. With few jobs that each take a large part of the whole, that is not enough; then
the few choices that the prices leave open make a small integer program.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from geminid.solve.choices import IMPOSSIBLE, Array, Choices, IntArray
from geminid.solve.lp import minimise

#: Candidates for free slots that are kept in order between two looks at all of them.
MOST_FILLS = 4096

#: Most single changes for which pairs of changes are tried as well.
MOST_EXCHANGES = 400

#: Configurations other than their jobs' best that one integer program after the other may decide on, …
MOST_LEFT_OPEN = (500, 1500, 4500)
#: … and the nodes of its tree: a limit in seconds would make decisions depend on the machine.
MOST_TREE_NODES = 100


class Rounding:
    """A decision on its way to being feasible and full."""

    def __init__(self, problem: Choices, prices: Array) -> None:
        types = len(problem.capacity)
        self.problem = problem
        self.types = types
        self.slots = np.append(problem.slots, 0.0)
        self.resource = np.append(problem.resource, 0)
        self.use = np.append(problem.use, 0.0)
        self.group = np.full(len(problem.utility), -1) if problem.group is None else problem.group
        self.limits = np.append(problem.limits, np.inf)
        self.prices = prices
        paid = np.maximum(problem.utility, IMPOSSIBLE) - prices[problem.resource] * problem.slots
        if problem.groups:
            paid -= np.append(prices[types:], 0.0)[self.group][:, None] * problem.use
        self.choice = np.argmax(paid, axis=1)
        self.best = paid[np.arange(len(paid)), self.choice]
        self.choice[self.best <= 0.0] = -1
        self.best = np.maximum(self.best, 0.0)
        self.paid = paid
        self.take(self.choice)

    def take(self, choice: IntArray) -> None:
        """Go on from this decision."""
        self.choice = choice
        self.used = np.zeros(len(self.limits))
        np.add.at(self.used, self.resource[self.choice], self.slots[self.choice])
        np.add.at(self.used, self._group_row(self.group), self.use[self.choice])
        self.used[-1] = 0.0

    def _group_row(self, group: IntArray) -> IntArray:
        """The row of limits of a group; the last row, without a limit, for jobs that have none."""
        rows: IntArray = np.where(group >= 0, self.types + group, len(self.limits) - 1)
        return rows

    @property
    def bound(self) -> float:
        """The dual at these prices."""
        return float(self.prices @ self.limits[:-1]) + float(self.best.sum())

    @property
    def value(self) -> float:
        """What the decision is worth."""
        served = np.flatnonzero(self.choice >= 0)
        return float(self.problem.utility[served, self.choice[served]].sum())

    def move(self, job: int, to: int) -> None:
        """Give one job another configuration."""
        row = int(self._group_row(self.group[job : job + 1])[0])
        for column, sign in ((int(self.choice[job]), -1.0), (to, 1.0)):
            self.used[self.resource[column]] += sign * self.slots[column]
            self.used[row] += sign * self.use[column]
        self.used[-1] = 0.0
        self.choice[job] = to

    def _paid_now(self, jobs: IntArray) -> Array:
        now: Array = np.where(self.choice[jobs] >= 0, self.paid[jobs, self.choice[jobs]], 0.0)
        return now

    def repair(self) -> None:
        """Move the jobs that lose least, per slot that they free, off what is over-full.

        They go to other types only where there is room; after a few rounds only down, so that it comes to an end.
        """
        for attempt in range(12 + len(self.limits) * len(self.slots)):
            over = self.used - self.limits
            worst = int(np.argmax(over[:-1]))
            if over[worst] <= 1e-9:
                return
            self._relieve(worst, float(over[worst]), elsewhere=attempt < 12)
        raise AssertionError("repair did not end")  # every attempt of the second half relieves a resource for good

    def _relieve(self, row: int, excess: float, *, elsewhere: bool) -> None:
        if row < self.types:
            jobs = np.flatnonzero((self.choice >= 0) & (self.resource[self.choice] == row))
            here = self.problem.resource == row
            takes = np.where(here, self.problem.slots, 0.0)
        else:
            jobs = np.flatnonzero((self.choice >= 0) & (self.group == row - self.types))
            takes = self.use[:-1]
        now = takes[self.choice[jobs]]
        freed = now[:, None] - takes
        fits = freed > 0
        free = self.limits - self.used
        same = self.problem.resource == self.resource[self.choice[jobs]][:, None]
        extra = self.problem.slots - np.where(same, self.slots[self.choice[jobs]][:, None], 0.0)
        fits &= (extra <= 0) | (elsewhere & (extra <= free[self.problem.resource]))
        if row < self.types:
            more = self.use[:-1] - self.use[self.choice[jobs]][:, None]
            fits &= (more <= 0) | (elsewhere & (more <= free[self._group_row(self.group[jobs])][:, None]))
        options = np.where(fits, self.paid[jobs], -np.inf)
        target = np.argmax(options, axis=1)
        after = options[np.arange(len(jobs)), target]
        target[after <= 0.0] = -1
        after = np.maximum(after, 0.0)
        gone = now - np.append(takes, 0.0)[target]
        loss = self._paid_now(jobs) - after
        if float(gone.sum()) < excess and (target >= 0).any():
            # One step down by everybody is not enough: those that have a step take it, nobody goes without already.
            jobs, target, gone, loss = jobs[target >= 0], target[target >= 0], gone[target >= 0], loss[target >= 0]
        order = np.argsort(loss / gone, kind="stable")
        enough = int(np.searchsorted(np.cumsum(gone[order]), excess - 1e-9)) + 1
        chosen = order[:enough]
        # The last one often frees more than is missing: one job of the rest may do it for less.
        missing = excess - float(gone[chosen[:-1]].sum())
        rest = order[enough - 1 :]
        able = rest[gone[rest] >= missing - 1e-9]
        if len(able):
            chosen = np.append(chosen[:-1], able[np.argmin(loss[able])])
        for index in chosen:
            if target[index] < 0 or self._has_room(int(jobs[index]), int(target[index])):
                self.move(int(jobs[index]), int(target[index]))

    def _has_room(self, job: int, to: int) -> bool:
        before = int(self.choice[job])
        free = self.limits - self.used
        same = before >= 0 and self.resource[before] == self.resource[to]
        extra = self.slots[to] - (self.slots[before] if same else 0.0)
        row = int(self._group_row(self.group[job : job + 1])[0])
        more = self.use[to] - self.use[before]
        return bool((extra <= 0 or extra <= free[self.resource[to]] + 1e-9) and (more <= 0 or more <= free[row] + 1e-9))

    def fill(self) -> None:
        """Give what is free to whom it helps: the change that loses least at these prices for its gain first.

        A change cannot gain if it loses more than the slots that it takes are worth; those that lose a small share of
        it are tried first, since there are enough of them where there are many jobs.
        """
        for share in (0.02, 1.0, 1.0, 1.0):
            free = self.limits - self.used
            if not (free[: self.types] >= 1.0).any():
                return
            self._fill(free, share)

    def improve(self, tolerance: float, *, thorough: bool) -> None:
        """Fill what is free, exchange what is better elsewhere, and fill what that has left."""
        self.fill()
        if self.exchange(tolerance, thorough=thorough):
            self.fill()

    def _fill(self, free: Array, share: float) -> None:
        resource, slots = self.problem.resource, self.problem.slots
        worth = np.maximum(self.prices[resource], 1e-12) * np.minimum(slots, free[resource])
        columns = np.flatnonzero(free[resource] >= 1.0)
        now = self._paid_now(np.arange(len(self.choice)))
        job, nth = np.nonzero(self.paid[:, columns] > now[:, None] - share * worth[columns])
        column, before = columns[nth], self.choice[job]
        more = slots[column] - np.where(self._same_type(before, column), self.slots[before], 0.0)
        gain = self._utility(job, column) - self._utility(job, before)
        helps = np.flatnonzero((gain > 1e-12) & (more <= free[resource[column]] + 1e-9))
        loss = now[job[helps]] - self.paid[job[helps], column[helps]]
        helps = helps[np.argsort(loss / gain[helps], kind="stable")[:MOST_FILLS]]
        job, column = job[helps], column[helps]
        extra = self._extra(job, column)
        left = np.flatnonzero(np.all(extra <= free + 1e-9, axis=1))
        while len(left):
            first = left[0]
            self.move(int(job[first]), int(column[first]))
            room = self.limits - self.used + 1e-9
            left = left[(job[left] != job[first]) & np.all(extra[left] <= room, axis=1)]

    def _same_type(self, before: IntArray, column: IntArray) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (before >= 0) & (self.resource[before] == self.resource[column])
        return same

    def _utility(self, job: IntArray, column: IntArray) -> Array:
        value: Array = np.where(column >= 0, self.problem.utility[job, column], 0.0)
        return value

    def _extra(self, job: IntArray, column: IntArray) -> Array:
        """What each change takes more (or less) of every limit."""
        each, row, before = np.arange(len(job)), self._group_row(self.group[job]), self.choice[job]
        delta = np.zeros((len(job), len(self.limits)))
        delta[each, self.resource[column]] += self.slots[column]
        delta[each, self.resource[before]] -= self.slots[before]
        delta[each, row] += self.use[column] - self.use[before]
        return delta

    def exchange(self, tolerance: float, *, thorough: bool) -> bool:
        """Try pairs of changes: one job gives up what another gains more from. Whether any was made.

        A better decision loses nowhere more than what this one loses in total, which leaves few changes to try. Where
        they are many, those that lose least are, if it is to be ``thorough``.
        """
        for attempt in range(20):
            gap = self.bound - self.value
            if gap <= tolerance * self.bound:
                return attempt > 0
            job, column = np.nonzero(self.paid > (self.best - gap)[:, None])
            idle = np.flatnonzero(self.best < gap)
            job, column = np.concatenate([job, idle]), np.concatenate([column, np.full(len(idle), -1)])
            other = column != self.choice[job]
            job, column = job[other], column[other]
            if thorough and len(job) > MOST_EXCHANGES:
                loss = self.best[job] - np.where(column >= 0, self.paid[job, column], 0.0)
                least = np.argpartition(loss, MOST_EXCHANGES)[:MOST_EXCHANGES]
                job, column = job[least], column[least]
            if not len(job) or len(job) > MOST_EXCHANGES or not self._exchange_once(job, column):
                return attempt > 0
        return True

    def _exchange_once(self, job: IntArray, column: IntArray) -> bool:
        gain = self._utility(job, column) - self._utility(job, self.choice[job])
        together = gain[:, None] + gain
        together[job[:, None] == job] = -np.inf
        np.fill_diagonal(together, gain)
        first, second = np.nonzero(together > 1e-12)
        found = np.flatnonzero(self._fit(job, column, first, second))
        if not len(found):
            return False
        best = found[np.argmax(together[first[found], second[found]])]
        for index in {int(first[best]), int(second[best])}:
            self.move(int(job[index]), int(column[index]))
        return True

    def _fit(self, job: IntArray, column: IntArray, first: IntArray, second: IntArray) -> NDArray[np.bool_]:
        """Whether there is room for pairs of these changes, or for a single one where both are the same.

        A change concerns one group only, so there is no need to look at all groups for every pair.
        """
        room = self.limits - self.used + 1e-9
        types, twice = self._extra(job, column)[:, : self.types], first != second
        fits: NDArray[np.bool_] = np.all(types[first] + twice[:, None] * types[second] <= room[: self.types], axis=1)
        if self.problem.groups:
            row, more = self._group_row(self.group[job]), self.use[column] - self.use[self.choice[job]]
            same = twice & (row[first] == row[second])
            fits &= more[first] + same * more[second] <= room[row[first]]
            fits &= same | (more[second] <= room[row[second]])
        return fits

    def finish(self, enough: float) -> float:
        """Let integer programs decide what is left open, until the certificate is ``enough``; the bound they prove.

        Every program that finds a better decision leaves less to the next one, which may look at more.
        """
        bound = self.bound
        for most_open in MOST_LEFT_OPEN:
            bound = min(bound, self._finish_once(0.5 * enough, most_open))
            if bound - self.value <= enough * bound:
                break
        return bound

    def _finish_once(self, enough: float, most_open: int) -> float:
        """Whatever loses more than the gap at these prices against its job's best is in no better decision.

        Of the rest, what loses least is left open, and jobs with none of it keep their best. A decision with anything
        else is worth at most the dual less the least that anything else loses.
        """
        gap, jobs = self.bound - self.value, np.arange(len(self.choice))
        paid = np.column_stack([self.paid, np.zeros(len(jobs))])  # the last configuration is to have nothing
        first = np.argmax(paid, axis=1)
        loss = self.best[:, None] - paid
        loss[jobs, first] = np.inf
        job, column = np.nonzero(loss <= gap)
        order = np.argsort(loss[job, column], kind="stable")
        elsewhere = self.bound - float(loss[job, column][order[most_open]]) if len(job) > most_open else 0.0
        job, column = job[order[:most_open]], column[order[:most_open]]
        undecided = np.unique(job)
        decided = np.setdiff1d(jobs, undecided)
        found = self._program(
            np.concatenate([undecided, job]),
            np.concatenate([first[undecided], column]),
            (decided, first[decided]),
            enough,
        )
        if found is None:
            return self.bound
        choice, bound = found
        if float(self._utility(jobs, choice).sum()) > self.value:
            for at in np.flatnonzero(choice != self.choice):
                self.move(int(at), int(choice[at]))
        return min(self.bound, max(bound, elsewhere, self.value))

    def _program(
        self, job: IntArray, column: IntArray, decided: tuple[IntArray, IntArray], enough: float
    ) -> tuple[IntArray, float] | None:
        """The best choice of one of these configurations per job of theirs, beside others' that are decided."""
        nothing = len(self.slots) - 1
        limits = self.limits.copy()
        np.subtract.at(limits, self.resource[decided[1]], self.slots[decided[1]])
        np.subtract.at(limits, self._group_row(self.group[decided[0]]), self.use[decided[1]])
        _, row = np.unique(job, return_inverse=True)
        rows, each = int(row.max(initial=-1)) + 1, np.arange(len(job))
        matrix = csc_array(
            (
                np.concatenate([np.ones(len(job)), self.slots[column], self.use[column]]),
                (
                    np.concatenate([row, rows + self.resource[column], rows + self._group_row(self.group[job])]),
                    np.tile(each, 3),
                ),
            ),
            shape=(rows + len(limits), len(job)),
        )
        worth = self._utility(job, np.where(column < nothing, column, -1))
        found = minimise(
            -worth,
            np.ones(len(job)),
            matrix,
            np.concatenate([np.ones(rows), np.full(len(limits), -np.inf)]),
            np.concatenate([np.ones(rows), limits]),
            integer=True,
            gap=enough,
            tree_nodes=MOST_TREE_NODES,
        )
        if found is None:
            return None
        choice = np.full(len(self.choice), -1, dtype=np.intp)
        choice[decided[0]] = decided[1]
        taken = found.values > 0.5
        choice[job[taken]] = column[taken]
        choice[choice == nothing] = -1
        kept = float(self._utility(decided[0], choice[decided[0]]).sum())
        return choice, kept - found.bound
