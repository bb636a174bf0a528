"""Themis' auction over time fractions.

Slots are offered to the jobs that are worst off by finish-time fairness. Their bids say which ρ they would reach with
which time on which types; the winning allocation maximises the product of all 1/ρ. So that nobody gains by bidding
wrongly, each winner keeps only the fraction c_i of its time by which its presence shrinks the others' product:
c_i = Π_{k≠i} v_k(with i) / Π_{k≠i} v_k(without i). What that leaves is given to the jobs that were not asked, as fairly
as possible.

Mahajan et al., "Themis: fair and efficient GPU cluster scheduling", NSDI '20. From notes and memory of the paper, not
its code: who is asked (the worst 1 − f of the jobs, f = 0.8), the product, and what winners keep. Bids there are on
whole GPUs; here they are on time fractions of gangs, for which the product is a concave program: log(1/ρ) depends on
one throughput per job, and jobs meet only in the slots of the types, which is what ``solve/blocks.py`` is made for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from geminid.policies.gavel.finish_time import isolated_duration_s, worst_rho
from geminid.policies.gavel.groups import Ints
from geminid.policies.gavel.level import next_best, no_optimum, solve_level, unrunnable
from geminid.policies.gavel.problem import AllocationProblem, Array, Mask, Note, TimeFractions
from geminid.policies.gavel.requirement import Affine
from geminid.solve.blocks import Blocks
from geminid.solve.lp import Allowance
from geminid.solve.sums import Sums, largest_sum
from geminid.solve.tangents import TangentProgram

#: What winners keep is asked for less this part, so that rounding cannot make it impossible.
ROUNDING = 1e-6

#: The part of the time that the auction may take; the rest is for who shares what it leaves.
AUCTION = 0.5


@dataclass(frozen=True, slots=True)
class Award:
    """What the bidders win: normalised throughputs at the largest product, and the fraction of them they keep.

    Of this many bidders the latter is ``estimated``.
    """

    bidders: Ints
    throughput: Array
    kept: Array
    estimated: int = 0


def themis_auction(
    problem: AllocationProblem, *, fairness_knob: float = 0.8, within: Allowance | None = None
) -> TimeFractions:
    """Offer all slots to the worst-off 1 − f of the jobs, and what they do not keep to the others."""
    time = Allowance() if within is None else within
    bidding = time.part(AUCTION)
    award = hold_auction(problem, bidders_of(problem, fairness_knob), bidding)
    if award is None:
        why = no_optimum("the solver gave up", bidding, "no winning allocation was found")
        fair = Affine(np.zeros(len(problem.jobs)), np.where(problem.runs, problem.weights / problem.gangs, 0.0))
        alone = replace(problem, pairs=None)
        return next_best(alone, fair, lambda x: worst_rho(problem, x), unrunnable(problem), why, time)
    base = np.zeros(len(problem.jobs))
    base[award.bidders] = award.throughput * award.kept

    def requirement(runs: Mask) -> Affine:
        others = runs.copy()
        others[award.bidders] = False
        raised = others if others.any() else runs
        return Affine(base * (1 - ROUNDING), np.where(raised, problem.weights / problem.gangs, 0.0))

    without_pairs = replace(problem, pairs=None)
    answer = solve_level(without_pairs, requirement, lambda x: worst_rho(problem, x), choice="total", within=time)
    if not award.estimated:
        return answer
    text = f"what {award.estimated} of {len(award.bidders)} winners keep is estimated from the prices of the slots"
    return replace(answer, notes=(*answer.notes, Note("estimated_payments", text)))


def bidders_of(problem: AllocationProblem, fairness_knob: float) -> Ints:
    """The worst-off 1 − f of the jobs that can run (at least one): by ρ, were they to go on with an equal share."""
    duration_s = isolated_duration_s(problem)
    elapsed_s = np.array([job.elapsed_s for job in problem.jobs])
    behind_s = np.array([job.isolated_s for job in problem.jobs])
    able = np.flatnonzero(problem.runs & (problem.steps_left > 0))
    rho = (elapsed_s + duration_s - behind_s)[able] / duration_s[able]
    count = max(1, int(np.ceil((1 - fairness_knob) * len(able) - 1e-9)))
    return np.asarray(np.sort(able[np.argsort(-rho, kind="stable")[:count]]))


def hold_auction(problem: AllocationProblem, bidders: Ints, within: Allowance | None = None) -> Award | None:
    """The largest product of 1/ρ among some jobs, and what each keeps; None if the solver fails.

    What the others would have without a job is one problem for each. When there is no time for all of them, the prices
    of the slots at the largest product tell the rest: what a winner has is worth that much to the others, to first
    order, so that their product would grow by that. The more bidders there are, the less each moves the prices.
    """
    if not len(bidders):
        return Award(bidders, np.zeros(0), np.zeros(0))
    chosen = bidders.tolist()
    smaller = replace(
        problem,
        jobs=tuple(problem.jobs[i] for i in chosen),
        throughputs=problem.throughputs[bidders],
        pairs=None,
        reference=problem.reference_throughput[bidders],
    )
    reference = smaller.reference_throughput
    rates = smaller.usable / reference[:, None]
    elapsed_s = np.array([job.elapsed_s for job in smaller.jobs])
    value = _LogValue(elapsed_s, smaller.steps_left / reference)
    count = len(chosen)
    present = np.vstack([np.ones((1, count), dtype=bool), ~np.eye(count, dtype=bool)])
    found = _largest(Blocks(rates, smaller.gangs, np.ones(count), smaller.slots), value, present, within)
    best, without = found.throughput[0], found.throughput[1:]
    gained = np.where(np.eye(count, dtype=bool), 0.0, value.at(best) - value.at(without)).sum(axis=1)
    missing = np.isnan(gained)
    gained = np.where(missing, -found.worth[0], gained)
    if np.isnan(best).any() or np.isnan(gained).any():
        return None
    return Award(bidders, best, np.minimum(1.0, np.exp(gained)), int(missing.sum()))


def _largest(blocks: Blocks, value: _LogValue, present: Mask, within: Allowance | None) -> Sums:
    """The largest sums, by set, that of everyone first; where the fast way fails, by tangents while there is time."""
    everyone = largest_sum(blocks, value, present[:1], within)
    others = largest_sum(blocks, value, present[1:], within)
    found = Sums(np.vstack([everyone.throughput, others.throughput]), np.vstack([everyone.worth, others.worth]))
    program: TangentProgram | None = None
    for row in np.flatnonzero(np.isnan(found.throughput).any(axis=1)).tolist():
        if within is not None and within.over:
            break
        program = program or TangentProgram(blocks, value, within)
        made = program.solve(present[row])
        if made is None:
            break
        found.throughput[row] = made
    return found


@dataclass(frozen=True, slots=True)
class _LogValue:
    """log of 1/ρ up to a constant: log n − log(t·n + W) for a normalised throughput n."""

    elapsed_s: Array
    work_s: Array

    def at(self, throughput: Array) -> Array:
        """The value."""
        n = np.maximum(throughput, 1e-12)
        return np.asarray(np.log(n) - np.log(self.elapsed_s * n + self.work_s))

    def derivatives(self, throughput: Array) -> tuple[Array, Array]:
        """Its slope, and how fast that falls."""
        n = np.maximum(throughput, 1e-12)
        late = self.elapsed_s * n + self.work_s
        return self.work_s / (n * late), (self.elapsed_s / late) ** 2 - 1.0 / n**2
