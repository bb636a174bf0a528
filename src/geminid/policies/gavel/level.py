"""From a requirement on every job to the time fractions that raise it furthest."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from geminid.policies.gavel.columns import relevant
from geminid.policies.gavel.groups import Ints, PairedWithThemselves, apart_from_others, hand_out, merge
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import (
    SOLVER_FAILED,
    AllocationProblem,
    Array,
    Mask,
    Note,
    TimeFractions,
    single_fractions,
)
from geminid.policies.gavel.program import Choice, Requirement, TimeProgram
from geminid.solve.blocks import Blocks, raise_level

#: Up to this part of a job's longest time is what an interior-point method leaves in place of none.
NO_TIME = 1e-7

#: Needs below this are near what programs round to, and are served with this part of an equal share.
SLICE = 1e-6

#: So many groups of jobs at most are few.
FEW = 64

#: Solved at most this often to keep jobs from being paired with themselves; the last answer is taken as it is.
ATTEMPTS = 6


def solve_level(
    problem: AllocationProblem,
    requirement: Callable[[Mask], Requirement],
    objective: Callable[[TimeFractions], float],
    *,
    choice: Choice = "vertex",
    merged: bool = True,
    memory: Memory | None = None,
    in_step: bool = False,
) -> TimeFractions:
    """Raise a requirement as far as it goes and hand the result out to the jobs.

    ``requirement`` is given which jobs can run at all (the others must need nothing). With ``merged`` off every job is
    its own group, which is slower and comes to the same. With a ``memory`` it starts from the last solve.
    With ``in_step`` jobs that are equally fast have times in proportion to their needs, also in the middle.
    """
    notes = unrunnable(problem)
    runs = problem.runs
    labels: list[Hashable] = [0] * len(problem.jobs) if merged else list(range(len(problem.jobs)))
    needs = requirement(runs)
    if choice == "centre" and problem.pairs is None and problem.uses is None and runs.any():
        fractions = in_the_middle(problem, needs, merged=merged, memory=memory, in_step=in_step)
        if fractions is not None:
            return finish(problem, tuple((job.id,) for job in problem.jobs), fractions, objective, notes)
    for attempt in range(ATTEMPTS if runs.any() else 0):
        groups = merge(problem, apart=labels)
        if choice != "total":  # which looks for more than the highest level
            groups = relevant(groups, needs)
        program = TimeProgram(groups, memory)
        raised = program.raise_level(needs, choice)
        if raised is None and memory is not None:  # once more from scratch
            memory.forget()
            program = TimeProgram(groups)
            raised = program.raise_level(needs, choice)
        if raised is None:
            return fallback(problem, objective, [*notes, no_optimum(program)])
        try:
            strict = attempt < ATTEMPTS - 1
            combinations, fractions = hand_out(problem, groups, raised.values, raised.need, strict=strict)
        except PairedWithThemselves as found:
            if choice == "centre":  # spreads pairs thinly; at a vertex it is rare
                choice = "vertex"
            else:
                labels = apart_from_others(labels, found.jobs)
            continue
        combinations, fractions = _none_left_out(problem, combinations, fractions, raised.need)
        return finish(problem, combinations, fractions, objective, notes)
    return finish(problem, (), np.zeros((0, len(problem.gpu_types))), objective, notes)


def _none_left_out(
    problem: AllocationProblem, combinations: tuple[tuple[str, ...], ...], fractions: Array, need: Array
) -> tuple[tuple[tuple[str, ...], ...], Array]:
    """Give jobs that need so little beside others that rounding took it from them a slice of their equal share.

    Everybody else gives up the same slice, so that the limits hold.
    """
    got = TimeFractions(problem.gpu_types, combinations, fractions).effective_throughput(problem)
    wanted = need * problem.reference_throughput
    missing = np.flatnonzero(problem.runs & (need > 0) & (need < SLICE) & (got < 0.5 * wanted))
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
    in_step: bool = False,
) -> Array | None:
    """Every job's time on each type, in the middle of those that raise it furthest; None if it is not found.

    Without pairs, only the slots of the types connect the jobs: an interior-point method made for that takes
    milliseconds where nothing can be merged. Jobs that are equally fast and need the same are one block. A few groups
    of jobs that all need the same are left to the general program, which is as fast for them, and so are jobs that
    shall stay ``in_step`` with others.
    """
    rates = normalised_rates(problem)
    kinds = _distinct(np.column_stack([rates, problem.gangs]))[0]
    if merged:
        count, first, block = _distinct(np.column_stack([rates, problem.gangs, needs.parameters()]))
    else:
        count, first, block = len(rates), np.arange(len(rates)), np.arange(len(rates))
    if (count == kinds and count <= FEW) or (count > kinds and in_step):
        return None
    sizes = np.bincount(block, minlength=count).astype(float)
    blocks, wanted = Blocks(rates[first], problem.gangs[first], sizes, problem.slots), needs.of(first)
    found = None
    if memory is not None and memory.start is not None:
        last = memory.block_of
        same = np.array([last.get(problem.jobs[i].id, -1) for i in first.tolist()], dtype=np.int64)
        found = raise_level(blocks, wanted, memory.start, same) if (same >= 0).any() else None
    found = found or raise_level(blocks, wanted)
    if found is None:
        return None
    if memory is not None:
        memory.start = found.start
        memory.block_of = {job.id: b for job, b in zip(problem.jobs, block.tolist(), strict=True)}
    little = NO_TIME * found.time.max(axis=1, keepdims=True)
    return np.asarray(np.where(found.time > little, found.time, 0.0)[block])


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
    """A note on the jobs that no GPU type can run."""
    stuck = tuple(problem.jobs[i].id for i in np.flatnonzero(~problem.runs).tolist())
    return [Note("no_type_runs", "no GPU type has the slots and the memory for the job", stuck)] if stuck else []


def no_optimum(program: TimeProgram) -> Note:
    """A note on a program that could not be solved, and why."""
    return Note(SOLVER_FAILED, f"no optimum was found ({program.outcome}): equal static shares")


def fallback(
    problem: AllocationProblem, objective: Callable[[TimeFractions], float], notes: Sequence[Note]
) -> TimeFractions:
    """Every job its static equal share of the types it can run on: always feasible."""
    fractions = np.where(problem.usable > 0, problem.isolated_fractions, 0.0)
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
