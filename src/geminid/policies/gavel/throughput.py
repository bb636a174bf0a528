"""Largest total throughput, or throughput per price, with or without deadlines.

Maximise Σ_ij (T_ij/c_j)·x_ij, in steps per second summed over jobs as they are (a job of small steps counts for more),
or, normalised, in multiples of each job's reference throughput. A deadline asks for Σ_j T_ij·x_ij ≥ R_i/(time left).
Where not all deadlines can be met, jobs that arrived earlier keep theirs and the others are named in the notes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from geminid.policies.gavel.admission import admit
from geminid.policies.gavel.groups import Groups
from geminid.policies.gavel.handout import Totals, shared_out
from geminid.policies.gavel.level import fallback, finish, no_optimum, normalised_rates, unrunnable
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import AllocationProblem, Array, Note, TimeFractions
from geminid.policies.gavel.program import TimeProgram
from geminid.solve.lp import Allowance

#: Needs that just fit may not, by rounding: then they are asked for less this part.
SLACKS = (1e-8, 1e-6)

#: A type that costs nothing counts as costing this part of the cheapest that costs something.
FREE = 1e-3


def max_total_throughput(
    problem: AllocationProblem,
    *,
    by_cost: bool = False,
    deadlines: bool = False,
    normalised: bool = False,
    merged: bool = True,
    memory: Memory | None = None,
    within: Allowance | None = None,
) -> TimeFractions:
    """Fractions of the largest total throughput; ``by_cost`` divides it by the price of each type's slots."""
    prices = _prices(problem.costs) if by_cost and problem.costs is not None else np.ones(len(problem.gpu_types))

    def objective(fractions: TimeFractions) -> float:
        return _total(problem, fractions, prices, normalised=normalised)

    notes = unrunnable(problem)
    if by_cost and problem.costs is None:
        notes.append(Note("no_prices", "no prices are known: every type counts as equally expensive"))
    counts = np.ones(len(problem.jobs)) if normalised else problem.reference_throughput
    labels: list[Hashable] = [(value, 0 if merged else i) for i, value in enumerate(counts.tolist())]
    required = _deadline_needs(problem) if deadlines else np.zeros(len(problem.jobs))
    time = Allowance() if within is None else within
    outcome = ""
    dropped: list[int] = []

    def solutions(groups: Groups) -> Iterator[Totals]:
        nonlocal outcome
        kept, late = admit(problem, groups, required, time)
        dropped[:] = late
        gain = _gain(groups, counts, prices)
        program = TimeProgram(groups, memory, time)
        values = program.maximise(gain, kept)
        for slack in (0.0, *SLACKS) if memory is not None else SLACKS:
            if values is not None or time.over:
                break
            if memory is not None:  # from scratch
                memory.forget()
            program, kept = TimeProgram(groups, None, time), kept * (1 - slack)
            values = program.maximise(gain, kept)
        outcome = program.outcome
        if values is not None:
            yield Totals(values, kept if kept.any() else None)

    found = shared_out(problem, solutions, labels)
    notes += _not_held(problem, required, dropped)
    if found is None:
        return fallback(problem, objective, notes, no_optimum(outcome, time))
    combinations, fractions, _ = found
    return finish(problem, combinations, fractions, objective, notes)


def _prices(costs: Array) -> Array:
    """Prices to divide by: a type that costs nothing counts as far cheaper than any that costs something."""
    paid = costs[costs > 0]
    return np.where(costs > 0, costs, FREE * paid.min() if len(paid) else 1.0)


def _not_held(problem: AllocationProblem, required: Array, dropped: Sequence[int]) -> list[Note]:
    """Notes on deadlines that are not held, by why."""
    best = normalised_rates(problem).max(axis=1, initial=0.0)
    by_reason: dict[str, list[str]] = {}
    for i in dropped:
        if np.isinf(required[i]):
            why = "the deadline has passed"
        elif required[i] > best[i]:
            why = "the deadline cannot be met even if the job has its fastest GPU type all the time"
        else:
            why = "the deadline cannot be met beside those of jobs that arrived earlier"
        by_reason.setdefault(why, []).append(problem.jobs[i].id)
    return [Note("infeasible_slo", f"{why}, and is not held", tuple(jobs)) for why, jobs in by_reason.items()]


def _gain(groups: Groups, counts: Array, prices: Array) -> Array:
    """What one unit of each column is worth."""
    leader = np.array([members[0] for members in groups.members], dtype=np.int64)
    price = np.array([prices[types[0]] for types in groups.pools])
    gain = np.zeros(len(groups.first))
    worth = groups.use_time * groups.use_rate * counts[leader][groups.use_group]
    np.add.at(gain, groups.use_column, worth / price[groups.pool[groups.use_column]])
    return gain


def _total(problem: AllocationProblem, fractions: TimeFractions, prices: Array, *, normalised: bool) -> float:
    """The objective: total of throughput over price."""
    total = 0.0
    reference = problem.reference_throughput if normalised else np.ones(len(problem.jobs))
    scale = np.divide(1.0, reference, out=np.zeros(len(reference)), where=reference > 0)
    for j in range(len(problem.gpu_types)):
        only = np.zeros_like(fractions.fractions)
        only[:, j] = fractions.fractions[:, j]
        part = TimeFractions(fractions.gpu_types, fractions.combinations, only)
        total += float(scale @ part.effective_throughput(problem)) / float(prices[j])
    return total


def _deadline_needs(problem: AllocationProblem) -> Array:
    """Throughput that just meets each deadline, in multiples of the reference; infinite where it has passed."""
    need = np.zeros(len(problem.jobs))
    reference = problem.reference_throughput
    for i, job in enumerate(problem.jobs):
        if job.deadline_s is not None and job.steps_left > 0 and reference[i] > 0:
            need[i] = job.steps_left / job.deadline_s / reference[i] if job.deadline_s > 0 else np.inf
    return need
