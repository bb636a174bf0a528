"""The price solver: one configuration per job within the slots of every GPU type, with a proof of how good it is.

Given a price per slot of each type, every job picks for itself the configuration that is worth most after paying:
the Lagrangian is separable. What remains is to find the prices, of which there are as many as types (and one per
group of jobs that has a limit of its own): those that minimise the dual (``dual.py``). Everybody's best choice at
these prices is then made feasible (``rounding.py``). Where there are few kinds of jobs, counting them is better
(``alike.py``). Any prices whatsoever bound the optimum from above, so
(dual − primal)/dual is a certificate that needs no trust in either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from geminid.solve.alike import Kinds, Programs
from geminid.solve.choices import Choices, IntArray, Prices
from geminid.solve.dual import WARM_TEMPERATURE, Dual, descend
from geminid.solve.rounding import Rounding

#: Where there are many jobs, the prices of a sample of them, with as large a share of the capacity, are found first:
#: one job in this many.
SAMPLE_SHARE = 8

#: Fewest jobs in the sample: with fewer, its prices are of no use.
LEAST_SAMPLE = 256

#: Most jobs in the sample: with more, its prices are no better.
MOST_SAMPLE = 4096

#: What a decision may lose in small problems, where a slot is a large part of the whole.
FINISH_ABOVE = 0.01

#: Number of slots from which a large gap means that the search went wrong, and not that one slot matters much.
LARGE_SLOTS = 1500

#: Relative gap above which the search is then repeated.
LARGE_GAP = 1e-3


@dataclass(frozen=True, slots=True)
class Priced:
    """A feasible decision (a configuration per job, −1 for none), what it is worth, and an upper bound for any."""

    choice: IntArray
    value: float
    bound: float
    prices: Prices
    steps: int

    @property
    def gap(self) -> float:
        """At most this share of the optimum is lost."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


def solve(
    problem: Choices, *, start: Prices | None = None, tolerance: float = 3e-4, finish_above: float | None = FINISH_ABOVE
) -> Priced:
    """Find prices, and a feasible decision that is optimal up to the certificate it comes with.

    ``start`` are prices of an earlier, similar problem. ``tolerance`` is how exactly the prices are found, relative to
    the optimum; the certificate also holds what rounding lost. Where a handful of jobs leaves a certificate above
    ``finish_above`` (None: never mind), an integer program of what is still open closes it. (Where there are few kinds
    of jobs, neither is needed: prices and all come from small programs.)
    """
    jobs, configurations = problem.utility.shape
    if not jobs or not configurations:
        nobody = np.full(jobs, -1, dtype=np.intp)
        return Priced(nobody, 0.0, 0.0, Prices(np.zeros(len(problem.capacity)), np.zeros(problem.groups)), 0)
    kinds = Kinds.of(problem)
    found = _by_kinds(problem, kinds, tolerance) if kinds is not None else None
    if found is not None:
        return found
    steps, temperature = 0, WARM_TEMPERATURE
    size = min(max(jobs // SAMPLE_SHARE, LEAST_SAMPLE), MOST_SAMPLE)
    if start is None and jobs > 2 * size:
        sample = np.random.default_rng(0).choice(jobs, size, replace=False)
        # The dual of a sample is off by about one part in its size: no use in finding its minimum more exactly.
        enough = max(tolerance, 1.0 / size)
        start, steps, temperature = descend(Dual.of(problem, sample), None, temperature, enough)
    dual = Dual.of(problem)
    prices, more, _ = descend(dual, start, temperature, tolerance)
    found = _round(problem, prices, steps + more, tolerance, finish_above)
    if found.gap <= LARGE_GAP or float(problem.capacity.sum()) < LARGE_SLOTS:
        return found
    # Now and then the descent settles where it seems flat.
    prices, more, _ = descend(dual, found.prices, temperature, 0.1 * tolerance)
    finish_above = None if finish_above is None else LARGE_GAP
    return _better(found, _round(problem, prices, found.steps + more, 0.1 * tolerance, finish_above, thorough=True))


def _by_kinds(problem: Choices, kinds: Kinds, tolerance: float) -> Priced | None:
    """The decision where there are few kinds of jobs, many of each; None if the solver gave up."""
    programs = Programs(problem, kinds)
    relaxed = programs.prices()
    if relaxed is None:
        return None
    prices, choice = relaxed
    rounding = Rounding(problem, prices.all)
    rounding.take(choice)
    rounding.improve(tolerance, thorough=True)
    bound = rounding.bound
    enough = LARGE_GAP if float(problem.capacity.sum()) >= LARGE_SLOTS else FINISH_ABOVE
    if bound - rounding.value > enough * bound:
        mended = programs.best(0.5 * enough)
        if mended is not None:
            bound = min(bound, mended[1])
            best = Rounding(problem, prices.all)
            best.take(mended[0])
            best.fill()
            rounding = max(rounding, best, key=lambda each: each.value)
    return Priced(rounding.choice, rounding.value, max(bound, rounding.value), prices, 0)


def _better(one: Priced, other: Priced) -> Priced:
    """The better decision, with the lower bound."""
    best = other if other.value > one.value else one
    return replace(best, bound=min(one.bound, other.bound), steps=other.steps)


def _round(
    problem: Choices,
    prices: Prices,
    steps: int,
    tolerance: float,
    finish_above: float | None,
    *,
    thorough: bool = False,
) -> Priced:
    """Everybody's best choice, made feasible and full."""
    rounding = Rounding(problem, prices.all)
    rounding.repair()
    rounding.improve(tolerance, thorough=thorough)
    bound = rounding.bound
    if finish_above is not None and bound - rounding.value > finish_above * bound:
        bound = rounding.finish(finish_above)
    return Priced(rounding.choice, rounding.value, bound, prices, steps)
