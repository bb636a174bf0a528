"""First in, first out, and shortest job first: whole jobs, one after the other, on what is free.

Every job in turn gets its gang all of the time or not at all. Unaware of speeds a type is drawn at random among those
with room, aware the fastest one is taken. With pairs, jobs that are left over then join a running one where the two
together are worth more than ``worth`` jobs alone. (In the published code the drawn type is not used: here it is.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from geminid.policies.gavel.level import finish, unrunnable
from geminid.policies.gavel.problem import AllocationProblem, Array, Combination, PairThroughputs, TimeFractions

#: A pair must be worth this many jobs alone before one that waits joins one that runs.
WORTH = 1.5


def first_in_first_out(
    problem: AllocationProblem,
    *,
    aware: bool = True,
    held: Mapping[str, str] | None = None,
    skip: bool = False,
    seed: int = 0,
    worth: float = WORTH,
) -> TimeFractions:
    """In the order of arrival. Jobs that are ``held`` keep their type; ``skip`` goes on past a job without room."""
    order = sorted(range(len(problem.jobs)), key=lambda i: (problem.jobs[i].arrived_s, i))
    return serve_in_order(problem, order, aware=aware, held=held, skip=skip, seed=seed, worth=worth)


def shortest_job_first(problem: AllocationProblem, *, skip: bool = False, worth: float = WORTH) -> TimeFractions:
    """By the time that is left on each job's fastest type."""
    fastest = problem.usable.max(axis=1, initial=0.0)
    left_s = np.divide(problem.steps_left, fastest, out=np.full(len(fastest), np.inf), where=fastest > 0)
    return serve_in_order(problem, np.argsort(left_s, kind="stable").tolist(), aware=True, skip=skip, worth=worth)


def serve_in_order(
    problem: AllocationProblem,
    order: Sequence[int],
    *,
    aware: bool,
    held: Mapping[str, str] | None = None,
    skip: bool = False,
    seed: int = 0,
    worth: float = WORTH,
) -> TimeFractions:
    """Serve jobs in an order while there is room; the objective is how many run."""
    rng = np.random.default_rng(seed)
    types = {gpu_type: j for j, gpu_type in enumerate(problem.gpu_types)}
    free = problem.slots.copy()
    chosen: dict[int, int] = {}
    for i, job in enumerate(problem.jobs):
        j = types.get((held or {}).get(job.id, ""), -1)
        if j >= 0 and problem.usable[i, j] > 0 and free[j] >= job.gang:
            chosen[i] = j
            free[j] -= job.gang
    queue = [i for i in order if i not in chosen and problem.runs[i]]
    waiting: list[int] = []
    for position, i in enumerate(queue):
        room = np.flatnonzero((free >= problem.jobs[i].gang) & (problem.usable[i] > 0))
        if room.size:
            j = int(room[np.argmax(problem.usable[i, room])] if aware else rng.choice(room))
            chosen[i] = j
            free[j] -= problem.jobs[i].gang
        elif skip:
            waiting.append(i)
        else:
            waiting = queue[position:]
            break
    partner = _join(problem, problem.pairs, chosen, waiting, worth, skip=skip) if problem.pairs is not None else {}
    combinations: list[Combination] = []
    fractions: Array = np.zeros((len(chosen), len(types)))
    for row, (i, j) in enumerate(chosen.items()):
        other = (problem.jobs[partner[i]].id,) if i in partner else ()
        combinations.append((problem.jobs[i].id, *other))
        fractions[row, j] = 1.0
    running = len(chosen) + len(partner)
    return finish(problem, tuple(combinations), fractions, lambda _: float(running), unrunnable(problem))


def _join(
    problem: AllocationProblem,
    pairs: PairThroughputs,
    chosen: Mapping[int, int],
    waiting: Sequence[int],
    worth: float,
    *,
    skip: bool,
) -> dict[int, int]:
    """Who that waits joins whom that runs."""
    kinds = pairs.index
    partner: dict[int, int] = {}
    for i in waiting:
        kind = kinds.get(problem.jobs[i].kind, -1)
        best, value = -1, worth
        for host, j in chosen.items():
            beside = kinds.get(problem.jobs[host].kind, -1)
            if host in partner or min(kind, beside) < 0 or problem.jobs[host].gang != problem.jobs[i].gang:
                continue
            mine, theirs = pairs.rates[kind, beside, j], pairs.rates[beside, kind, j]
            if mine > 0 and theirs > 0 and problem.usable[i, j] > 0:
                together = float(mine / problem.usable[i, j] + theirs / problem.usable[host, j])
                if together > value:
                    best, value = host, together
        if best >= 0:
            partner[best] = i
        elif not skip:
            break
    return partner
