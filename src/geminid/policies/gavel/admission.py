"""Which deadlines can be met together, taken in the order of arrival.

Whether a set of needs can be met is one program: raise all of them by a common factor, which comes to at least one. If
it does not, the prices of the types at its optimum say why: at any prices, what is needed cannot be worth more than all
slots are. Prices found once show at a glance of most later jobs that there is no room for them beside those admitted,
so that few programs are solved, however many deadlines are hopeless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from geminid.policies.gavel.groups import Groups, Ints
from geminid.policies.gavel.level import normalised_rates
from geminid.policies.gavel.problem import AllocationProblem, Array, Mask
from geminid.policies.gavel.program import TimeProgram
from geminid.policies.gavel.requirement import Affine
from geminid.solve.blocks import Blocks
from geminid.solve.lp import Allowance
from geminid.solve.raising import raise_level

#: A common factor this near to one is looked at by the exact program.
_UNCERTAIN = 1e-4

#: What the exact program may fall short of one by.
_ROUNDING = 1e-9


def admit(problem: AllocationProblem, groups: Groups, required: Array, within: Allowance) -> tuple[Array, list[int]]:
    """The needs of the deadlines that can be met together, earlier arrivals first, and the jobs whose cannot.

    When the time is over those of which it is not known yet are in neither.
    """
    exact = TimeProgram(groups, None, within)
    hopeless = required > exact.best * (1 + 1e-9)
    wanted = np.flatnonzero((required > 0) & ~hopeless)
    arrived = np.array([problem.jobs[i].arrived_s for i in wanted.tolist()])
    left = wanted[np.argsort(arrived, kind="stable")]
    kept = np.zeros(len(required))
    dropped = np.flatnonzero(hopeless).tolist()
    required = np.where(hopeless, 0.0, required)  # it may be infinite, and has no price
    budgets = _Budgets(problem, required)
    test = _tester(problem, exact, required, budgets, within)
    while len(left) and not within.over:
        candidates = left[budgets.afford(left)]
        admitted, refused = _longest_prefix(candidates, test)
        kept[admitted] = required[admitted]
        budgets.spend(admitted)
        end = len(left) if refused is None else int(np.flatnonzero(left == refused)[0]) + 1
        dropped += [i for i in left[:end].tolist() if kept[i] == 0]
        left = left[end:]
    return kept, dropped


def _longest_prefix(jobs: Ints, possible: Callable[[Ints], bool]) -> tuple[Ints, int | None]:
    """The longest beginning that is possible, and the job after it, if there is one."""
    if not len(jobs) or possible(jobs):
        return jobs, None
    low, high = 0, len(jobs)  # the first ``low`` are possible, the first ``high`` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if possible(jobs[:middle]) else (low, middle)
    return jobs[:low], int(jobs[low])


@dataclass(slots=True)
class _Budgets:
    """Prices under which something was too dear: what each job's need is worth, and what is left of all slots' worth.

    Only jobs that run alone are priced: beside others a need may cost less.
    """

    problem: AllocationProblem
    required: Array
    admitted: list[int] = field(default_factory=list)
    _worth: list[Array] = field(default_factory=list)
    _left: list[float] = field(default_factory=list)

    def add(self, prices: Array) -> None:
        """Remember some prices."""
        worth = cheapest(normalised_rates(self.problem), self.problem.gangs[:, None] * prices, self.required)
        total = float(prices @ self.problem.slots)
        self._worth.append(worth * (1 - 1e-7))
        self._left.append(total - float(self._worth[-1][self.admitted].sum()))

    def spend(self, jobs: Ints) -> None:
        """Some more jobs have been admitted."""
        self.admitted += jobs.tolist()
        self._left = [left - float(worth[jobs].sum()) for worth, left in zip(self._worth, self._left, strict=True)]

    def afford(self, jobs: Ints) -> Mask:
        """Which of some jobs, in this order, all prices have room for beside those before them."""
        result = np.ones(len(jobs), dtype=bool)
        if not self._worth:
            return result
        worth = np.array(self._worth)[:, jobs].T
        left = np.array(self._left)
        for position, row in enumerate(worth):
            if (row > left).any():
                result[position] = False
            else:
                left = left - row
        return result


def cheapest(rates: Array, costs: Array, needs: Array) -> Array:
    """The least that each job's need costs, its time being one at most: jobs × types of rates and costs.

    That is the lower convex hull of the points (rate, cost) and (0, 0) at the need: the largest u·need less what is
    beyond the cost at slope u, over the slopes between any two points.
    """
    zero = np.zeros((len(rates), 1))
    r, c = np.hstack([zero, rates]), np.hstack([zero, np.where(rates > 0, costs, 0.0)])
    best = np.zeros(len(rates))
    for j in range(r.shape[1]):
        for k in range(j + 1, r.shape[1]):
            wide = np.abs(r[:, k] - r[:, j])
            slope = np.divide(c[:, k] - c[:, j], r[:, k] - r[:, j], out=np.zeros(len(r)), where=wide > 1e-12)
            slope = np.maximum(slope, 0.0)
            best = np.maximum(best, slope * needs - (slope[:, None] * r - c).max(axis=1))
    return best


def _tester(
    problem: AllocationProblem, exact: TimeProgram, required: Array, budgets: _Budgets, within: Allowance
) -> Callable[[Ints], bool]:
    """Whether the needs of some jobs can be met beside those admitted; prices that say no are remembered."""
    rates = normalised_rates(problem)

    def possible(more: Ints) -> bool:
        jobs = np.concatenate([np.array(budgets.admitted, dtype=np.int64), more])
        needs = np.zeros(len(required))
        needs[jobs] = required[jobs]
        if problem.pairs is None and problem.uses is None:
            blocks = Blocks(rates[jobs], problem.gangs[jobs], np.ones(len(jobs)), problem.slots)
            found = raise_level(blocks, Affine(np.zeros(len(jobs)), required[jobs]), within=within)
            if found is not None and abs(found.level - 1.0) > _UNCERTAIN:
                if found.level < 1.0:
                    budgets.add(found.prices)
                return found.level > 1.0
        raised = exact.raise_level(Affine(np.zeros(len(needs)), needs), near=1.0)
        return raised is not None and raised.level >= 1.0 - _ROUNDING

    return possible
