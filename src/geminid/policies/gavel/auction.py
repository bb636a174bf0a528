"""Themis' auction over time fractions.

Slots are offered to the jobs that are worst off by finish-time fairness. Their bids say which ρ they would reach with
which time on which types; the winning allocation maximises the product of all 1/ρ. So that nobody gains by bidding
wrongly, each winner keeps only the fraction c_i of its time by which its presence shrinks the others' product:
c_i = Π_{k≠i} v_k(with i) / Π_{k≠i} v_k(without i). What that leaves is given to the jobs that were not asked, as fairly
as possible.

Mahajan et al., "Themis: fair and efficient GPU cluster scheduling", NSDI '20. From notes and memory of the paper, not
its code: who is asked (the worst 1 − f of the jobs, f = 0.8), the product, and what winners keep. Bids there are on
whole GPUs; here they are on time fractions of gangs, for which the product is a concave program. It is solved by
tangents to log(1/ρ), which depends on one throughput per job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import coo_array

from geminid.policies.gavel.finish_time import isolated_duration_s, worst_rho
from geminid.policies.gavel.groups import Groups, Ints, merge
from geminid.policies.gavel.level import fallback, solve_level, unrunnable
from geminid.policies.gavel.problem import SOLVER_FAILED, AllocationProblem, Array, Mask, Note, TimeFractions
from geminid.policies.gavel.program import Affine
from geminid.solve.lp import LinearProgram

#: The sum of logarithms is found to within this, per job.
_PRECISION = 1e-9
_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Award:
    """What the bidders win: normalised throughputs at the largest product, and the fraction of them they keep."""

    bidders: Ints
    throughput: Array
    kept: Array


def themis_auction(problem: AllocationProblem, *, fairness_knob: float = 0.8) -> TimeFractions:
    """Offer all slots to the worst-off 1 − f of the jobs, and what they do not keep to the others."""
    award = hold_auction(problem, bidders_of(problem, fairness_knob))
    if award is None:
        notes = [*unrunnable(problem), Note(SOLVER_FAILED, "no winning allocation was found")]
        return fallback(problem, lambda x: worst_rho(problem, x), notes)
    base = np.zeros(len(problem.jobs))
    base[award.bidders] = award.throughput * award.kept

    def requirement(runs: Mask) -> Affine:
        others = runs.copy()
        others[award.bidders] = False
        raised = others if others.any() else runs
        return Affine(base * (1 - 1e-9), np.where(raised, problem.weights / problem.gangs, 0.0))

    without_pairs = replace(problem, pairs=None)
    return solve_level(without_pairs, requirement, lambda x: worst_rho(problem, x), choice="total")


def bidders_of(problem: AllocationProblem, fairness_knob: float) -> Ints:
    """The worst-off 1 − f of the jobs that can run (at least one): by ρ, were they to go on with an equal share."""
    duration_s = isolated_duration_s(problem)
    elapsed_s = np.array([job.elapsed_s for job in problem.jobs])
    behind_s = np.array([job.isolated_s for job in problem.jobs])
    able = np.flatnonzero(problem.runs & (problem.steps_left > 0))
    rho = (elapsed_s + duration_s - behind_s)[able] / duration_s[able]
    count = max(1, int(np.ceil((1 - fairness_knob) * len(able) - 1e-9)))
    return np.asarray(np.sort(able[np.argsort(-rho, kind="stable")[:count]]))


def hold_auction(problem: AllocationProblem, bidders: Ints) -> Award | None:
    """The largest product of 1/ρ among some jobs, and what each keeps; None if the solver fails."""
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
    groups = merge(smaller, apart=list(range(len(chosen))))
    elapsed_s = np.array([job.elapsed_s for job in smaller.jobs])
    value = _LogValue(elapsed_s, smaller.steps_left / smaller.reference_throughput)
    everyone = np.ones(len(chosen), dtype=bool)
    best = _largest_product(groups, value, everyone)
    if best is None:
        return None
    logs = value.at(best)[0]
    kept = np.ones(len(chosen))
    for i in range(len(chosen)):
        others = everyone.copy()
        others[i] = False
        without = _largest_product(groups, value, others)
        if without is None:
            return None
        kept[i] = min(1.0, float(np.exp((logs - value.at(without)[0])[others].sum())))
    return Award(bidders, best, kept)


@dataclass(frozen=True, slots=True)
class _LogValue:
    """log of 1/ρ up to a constant: log n − log(t·n + W) for a normalised throughput n."""

    elapsed_s: Array
    work_s: Array

    def at(self, throughput: Array) -> tuple[Array, Array]:
        """Value and slope."""
        n = np.maximum(throughput, 1e-12)
        late = self.elapsed_s * n + self.work_s
        return np.log(n) - np.log(late), self.work_s / (n * late)


def _largest_product(groups: Groups, value: _LogValue, present: Mask) -> Array | None:
    """Normalised throughputs at the largest sum of logarithms over the bidders that are present (one a group)."""
    jobs, columns, pools = len(groups.members), len(groups.first), len(groups.pools)
    uses = present[groups.use_group]
    group, column, rate = groups.use_group[uses], groups.use_column[uses], groups.use_rate[uses]
    rows = np.concatenate([group, jobs + groups.pool[column]])
    data = np.concatenate([np.ones(len(group)), groups.gang[group]])
    matrix = coo_array((data, (rows, np.concatenate([column, column]))), shape=(jobs + pools, columns + jobs)).tocsc()
    upper = np.concatenate([np.ones(jobs), groups.pool_slots])
    lower = np.concatenate([np.zeros(columns), np.full(jobs, -np.inf)])
    gain = np.concatenate([np.zeros(columns), present.astype(float)])
    program = LinearProgram(gain, matrix, np.full(len(upper), -np.inf), upper, lower=lower)
    bidding = np.flatnonzero(present)

    def add_tangents(at: Array, where: Ints) -> None:
        """Beneath the tangents to the logarithms at a point: log − slope·Σ rate·X ≤ value − slope·at."""
        log, slope = value.at(at)
        row = np.full(jobs, -1)
        row[where] = np.arange(len(where))
        mine = row[group] >= 0
        tangent = coo_array(
            (
                np.concatenate([-slope[group[mine]] * rate[mine], np.ones(len(where))]),
                (np.concatenate([row[group[mine]], row[where]]), np.concatenate([column[mine], columns + where])),
            ),
            shape=(len(where), columns + jobs),
        )
        program.add_rows(tangent.tocsr(), np.full(len(where), -np.inf), (log - slope * at)[where])

    best = np.zeros(jobs)
    np.maximum.at(best, group, rate)
    for fraction in np.geomspace(1e-4, 1.0, 14):
        add_tangents(best * fraction, bidding)
    reached: Array = np.zeros(jobs)
    for _ in range(_ROUNDS):
        found = program.solve()
        if found is None:
            return None
        reached = np.asarray(np.bincount(group, rate * found.values[column], minlength=jobs), dtype=np.float64)
        over = found.values[columns:] - value.at(reached)[0]
        wrong = bidding[over[bidding] > _PRECISION]
        if not len(wrong):
            break
        add_tangents(reached, wrong)
    return reached
