"""AlloX: the least average completion time on mixed GPU types, as an assignment of jobs to places in line.

A job that is the k-th from the end of the line of a slot delays k jobs, itself included, by its duration p_ij there:
placing it costs k·p_ij. (How long jobs have waited already adds the same to all their places, and so changes nothing.)
Slots of a type are alike, so the places are types × positions with as many seats as the type has slots, and only as
many positions are considered as can be worth it: a further one is opened where the last is full. The jobs that come
first in their lines run now, and keep their slots till they end.

Le et al., "AlloX: compute allocation in hybrid clusters", EuroSys '20. For jobs of one slot; larger gangs are named in
the notes and get what room is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from geminid.policies.gavel.in_order import serve_in_order
from geminid.policies.gavel.level import finish, unrunnable
from geminid.policies.gavel.problem import AllocationProblem, Array, Note, TimeFractions
from geminid.solve.transport import assign

#: A place that a job cannot take costs this many times the dearest that any can.
_FORBIDDEN = 1e4


def allox(problem: AllocationProblem, *, held: Mapping[str, str] | None = None) -> TimeFractions:
    """Jobs to run now; those ``held`` keep their type. The objective is the total time in line and running."""
    types = {gpu_type: j for j, gpu_type in enumerate(problem.gpu_types)}
    free = problem.slots.copy()
    running: dict[str, str] = {}
    for i, job in enumerate(problem.jobs):
        j = types.get((held or {}).get(job.id, ""), -1)
        if j >= 0 and problem.usable[i, j] > 0 and free[j] >= job.gang:
            running[job.id] = problem.gpu_types[j]
            free[j] -= job.gang
    waiting = np.array(
        [i for i, job in enumerate(problem.jobs) if job.id not in running and job.gang == 1 and problem.runs[i]],
        dtype=np.int64,
    )
    duration_s = np.divide(
        problem.steps_left[waiting, None],
        problem.usable[waiting],
        out=np.full((len(waiting), len(free)), np.inf),
        where=problem.usable[waiting] > 0,
    )
    total_s, starts = in_lines(duration_s, np.floor(free))
    for row, j in starts:
        running[problem.jobs[int(waiting[row])].id] = problem.gpu_types[j]
    notes = unrunnable(problem)
    gangs = tuple(job.id for job in problem.jobs if job.gang > 1)
    if gangs:
        notes.append(Note("gang_not_supported", "AlloX places single slots: gangs get what room is left", gangs))
    order = [i for i, job in enumerate(problem.jobs) if job.gang > 1]
    answer = serve_in_order(problem, order, aware=True, held=running, skip=True)
    return finish(problem, answer.combinations, answer.fractions, lambda _: total_s, notes)


def in_lines(duration_s: Array, slots: Array) -> tuple[float, list[tuple[int, int]]]:
    """The least total of completion times of jobs in lines before slots, and who starts where: (job, type)."""
    types = duration_s.shape[1]
    possible = np.isfinite(duration_s) & (slots > 0)
    able = np.flatnonzero(possible.any(axis=1))
    if not len(able):
        return 0.0, []
    duration_s, possible = duration_s[able], possible[able]
    dearest_s = float(duration_s[possible].max()) * len(able)
    depth = np.where(slots > 0, -(-len(able) // max(1, int(slots.sum()))), 0).astype(np.int64)
    while True:
        gpu_type = np.repeat(np.arange(types), depth)
        position = np.concatenate([np.arange(1, d + 1) for d in depth.tolist()])
        capacity = slots[gpu_type].astype(np.int64)
        usable = possible[:, gpu_type]
        cost = np.where(usable, np.where(usable, duration_s[:, gpu_type], 0.0) * position, _FORBIDDEN * dearest_s)
        place = assign(cost, capacity)
        taken = np.bincount(place[place >= 0], minlength=len(capacity))
        last = np.cumsum(depth) - 1
        full = np.array([d > 0 and taken[end] == capacity[end] for d, end in zip(depth, last, strict=True)])
        misplaced = (place < 0).any() or not usable[np.arange(len(able)), place].all()
        if not full.any() or (not misplaced and int(depth.max()) >= len(able)):
            break
        depth = np.where(full, depth + 1, depth)
    starts = []
    for j in range(types):
        mine = np.flatnonzero((gpu_type[place] == j) & usable[np.arange(len(able)), place])
        first = mine[np.argsort(duration_s[mine, j], kind="stable")][: int(slots[j])]
        starts += [(int(able[i]), j) for i in first.tolist()]
    return float(cost[np.arange(len(able)), place].sum()), starts
