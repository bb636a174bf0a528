"""From a requirement on every job to the time fractions that raise it furthest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from geminid.policies.gavel.groups import Groups, Ints, by_type, pools_of
from geminid.policies.gavel.handout import Totals, shared_out
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import (
    OUT_OF_TIME,
    SOLVER_FAILED,
    AllocationProblem,
    Array,
    Mask,
    Note,
    TimeFractions,
    single_fractions,
)
from geminid.policies.gavel.program import Choice, TimeProgram
from geminid.policies.gavel.requirement import Requirement
from geminid.solve.blocks import Blocks
from geminid.solve.lp import Allowance
from geminid.solve.raising import raise_level

#: Up to this part of a job's longest time is what an interior-point method leaves in place of none.
NO_TIME = 1e-7

#: Needs below this are near what programs round to, and are served with this part of an equal share.
SLICE = 1e-6


def solve_level(
    problem: AllocationProblem,
    requirement: Callable[[Mask], Requirement],
    objective: Callable[[TimeFractions], float],
    *,
    choice: Choice = "vertex",
    merged: bool = True,
    memory: Memory | None = None,
    within: Allowance | None = None,
    in_step: bool = False,
) -> TimeFractions:
    """Raise a requirement as far as it goes and hand the result out to the jobs.

    ``requirement`` is given which jobs can run at all (the others must need nothing). With ``merged`` off every job is
    its own group, which is slower and comes to the same. With a ``memory`` it starts from the last solve. Everything
    together takes what ``within`` has left at most, and, if that is not enough, a quarter of all of it more. With
    ``in_step`` jobs that are equally fast have times in proportion to their needs, also in the middle.
    """
    time = Allowance() if within is None else within
    notes = unrunnable(problem)
    runs = problem.runs
    needs = requirement(runs)
    if not runs.any():
        return finish(problem, (), np.zeros((0, len(problem.gpu_types))), objective, notes)
    if choice == "centre" and problem.pairs is None and problem.uses is None and not in_step:
        fractions = in_the_middle(problem, needs, merged=merged, memory=memory, within=time)
        if fractions is not None:
            return finish(problem, tuple((job.id,) for job in problem.jobs), fractions, objective, notes)
    raising = _Raising(needs, choice, memory, time)
    labels: list[Hashable] = [0] * len(problem.jobs) if merged else list(range(len(problem.jobs)))
    found = shared_out(problem, raising.solutions, labels)
    if found is None:
        return next_best(problem, needs, objective, notes, no_optimum(raising.outcome, time), time)
    combinations, fractions, totals = found
    if totals.need is not None:
        combinations, fractions = _none_left_out(problem, combinations, fractions, totals.need)
    return finish(problem, combinations, fractions, objective, notes)


class _Raising:
    """The ways to raise a requirement for some groups: as chosen, and at a vertex."""

    def __init__(self, needs: Requirement, choice: Choice, memory: Memory | None, within: Allowance) -> None:
        self.needs, self.choice, self.memory, self.within = needs, choice, memory, within
        self.outcome = ""

    def solutions(self, groups: Groups) -> Iterator[Totals]:
        """The middle spreads pairs thinly, also over a job and itself; at a vertex that is rare."""
        for choice in (self.choice, "vertex") if self.choice == "centre" else (self.choice,):
            self.choice = choice
            program = TimeProgram(groups, self.memory, self.within)
            raised = program.raise_level(self.needs, choice)
            if raised is None and self.memory is not None and not self.within.over:  # once more from scratch
                self.memory.forget()
                program = TimeProgram(groups, None, self.within)
                raised = program.raise_level(self.needs, choice)
            self.outcome = program.outcome
            if raised is None:
                return
            yield Totals(raised.values, raised.need)


def next_best(
    problem: AllocationProblem,
    needs: Requirement,
    objective: Callable[[TimeFractions], float],
    notes: Sequence[Note],
    why: Note,
    within: Allowance,
) -> TimeFractions:
    """Where no optimum was found: the middle without pairs, which takes no program, or equal static shares.

    It has a little more time.
    """
    if problem.uses is None:
        fractions = in_the_middle(problem, needs, within=within.grace())
        if fractions is not None:
            instead = "the middle of what raises everyone furthest" if problem.pairs is None else "no pairs share slots"
            note = Note(why.reason, f"{why.text}: {instead}")
            return finish(problem, tuple((job.id,) for job in problem.jobs), fractions, objective, [*notes, note])
    return fallback(problem, objective, notes, why)


def _none_left_out(
    problem: AllocationProblem, combinations: tuple[tuple[str, ...], ...], fractions: Array, need: Array
) -> tuple[tuple[tuple[str, ...], ...], Array]:
    """Give jobs that need so little beside others that rounding took it from them a slice of their equal share.

    Everybody else gives up the same slice, so that the limits hold.
    """
    got = TimeFractions(problem.gpu_types, combinations, fractions).effective_throughput(problem)
    wanted = need * problem.reference_throughput
    missing = np.flatnonzero(problem.runs & (need > 0) & (need < SLICE) & (got < (1 - SLICE) * wanted))
    if not len(missing):
        return combinations, fractions
    rows = {combination: row for row, combination in enumerate(combinations)}
    alone = [(problem.jobs[i].id,) for i in missing.tolist()]
    added = tuple(combination for combination in alone if combination not in rows)
    rows |= {combination: len(combinations) + row for row, combination in enumerate(added)}
    result = np.vstack([(1.0 - SLICE) * fractions, np.zeros((len(added), fractions.shape[1]))])
    share = np.where(problem.usable > 0, problem.isolated_fractions, 0.0)[missing]
    result[[rows[combination] for combination in alone]] += SLICE * share
    return (*combinations, *added), result


def in_the_middle(
    problem: AllocationProblem,
    needs: Requirement,
    *,
    merged: bool = True,
    memory: Memory | None = None,
    within: Allowance | None = None,
) -> Array | None:
    """Every job's time on each type, in the middle of those that raise it furthest; None if it is not found.

    Without pairs, only the slots of the types connect the jobs: an interior-point method made for that takes
    milliseconds, also where nothing can be merged. Jobs that are equally fast and need the same are one block, types
    that are equally fast for everyone one type.
    """
    rates = normalised_rates(problem)
    pools = pools_of(problem, rates)
    slots, pooled = np.array([problem.slots[types].sum() for types in pools]), rates[:, [types[0] for types in pools]]
    if merged:
        count, first, block = _distinct(np.column_stack([pooled, problem.gangs, needs.parameters()]))
    else:
        count, first, block = len(rates), np.arange(len(rates)), np.arange(len(rates))
    sizes = np.bincount(block, minlength=count).astype(float)
    blocks, wanted = Blocks(pooled[first], problem.gangs[first], sizes, slots), needs.of(first)
    found = None
    if memory is not None and memory.start is not None:
        last = memory.block_of
        same = np.array([last.get(problem.jobs[i].id, -1) for i in first.tolist()], dtype=np.int64)
        found = raise_level(blocks, wanted, memory.start, same, within) if (same >= 0).any() else None
    found = found or raise_level(blocks, wanted, within=within)
    if found is None:
        return None
    if memory is not None:
        memory.start = found.start
        memory.block_of = {job.id: b for job, b in zip(problem.jobs, block.tolist(), strict=True)}
    little = NO_TIME * found.time.max(axis=1, keepdims=True)
    return by_type(problem, pools, np.where(found.time > little, found.time, 0.0)[block])


def _distinct(rows: Array) -> tuple[int, Ints, Ints]:
    """How many different rows there are, where each is found first, and which of them every row is."""
    data, width = rows.tobytes(), rows.shape[1] * rows.itemsize
    known: dict[bytes, int] = {}
    which = [known.setdefault(data[at : at + width], len(known)) for at in range(0, len(data), width)]
    block = np.array(which, dtype=np.int64)
    return len(known), np.unique(block, return_index=True)[1], block


def normalised_rates(problem: AllocationProblem) -> Array:
    """Throughputs alone in multiples of the reference throughput, 0 where a job cannot run."""
    reference = problem.reference_throughput[:, None]
    return np.divide(problem.usable, reference, out=np.zeros_like(problem.usable), where=reference > 0)


def unrunnable(problem: AllocationProblem) -> list[Note]:
    """Notes on jobs whose speeds are no numbers, and on those that no GPU type can run."""
    notes = []
    odd = tuple(problem.jobs[i].id for i in np.flatnonzero(~np.isfinite(problem.throughputs).all(axis=1)).tolist())
    if odd:
        text = "a throughput must be a finite number, and is not: the job is not run on that GPU type"
        notes.append(Note("bad_speed", text, odd))
    stuck = tuple(problem.jobs[i].id for i in np.flatnonzero(~problem.runs).tolist())
    if stuck:
        notes.append(Note("no_type_runs", "no GPU type has the slots and the memory for the job", stuck))
    return notes


def no_optimum(outcome: str, within: Allowance, text: str = "no optimum was found") -> Note:
    """A note on a program that could not be solved, and why."""
    return Note(OUT_OF_TIME if within.over else SOLVER_FAILED, f"{text} ({outcome})")


def fallback(
    problem: AllocationProblem, objective: Callable[[TimeFractions], float], notes: Sequence[Note], why: Note
) -> TimeFractions:
    """Every job its static equal share of the types it can run on, which is always feasible, and why."""
    fractions = np.where(problem.usable > 0, problem.isolated_fractions, 0.0)
    notes = [*notes, Note(why.reason, f"{why.text}: equal static shares", why.jobs)]
    answer = single_fractions(problem, fractions, 0.0, notes)
    return finish(problem, answer.combinations, fractions, objective, notes)


def finish(
    problem: AllocationProblem,
    combinations: tuple[tuple[str, ...], ...],
    fractions: Array,
    objective: Callable[[TimeFractions], float],
    notes: Sequence[Note],
) -> TimeFractions:
    """Remove what rounding has put beyond a limit, and put the value of the objective in."""
    answer = TimeFractions(problem.gpu_types, combinations, np.clip(fractions, 0.0, 1.0))
    busy = answer.by_job(problem).sum(axis=1)
    used = answer.slots_used(problem)
    full = np.divide(used, problem.slots, out=np.zeros(len(used)), where=problem.slots > 0)
    over = max(float(busy.max(initial=0.0)), float(full.max(initial=0.0)))
    if over > 1.0:
        answer = TimeFractions(problem.gpu_types, combinations, answer.fractions / over)
    return TimeFractions(problem.gpu_types, combinations, answer.fractions, objective(answer), tuple(notes))
