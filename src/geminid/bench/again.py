"""Whether a policy over time fractions should keep its program from round to round and solve it from the last basis.

A problem is solved; then every job has made some progress, one has twice the weight and half the work left, and it is
solved again: by the same program, with its tangents moved, and by a new one. Both come to the same level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from geminid.bench.policies import published_input, synthetic_input, under_way
from geminid.policies.gavel.finish_time import FinishBy, isolated_duration_s
from geminid.policies.gavel.groups import merge
from geminid.policies.gavel.problem import AllocationProblem
from geminid.policies.gavel.program import Affine, Choice, Requirement, TimeProgram

#: Measured this often; the median counts.
REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class AgainRow:
    """CPU seconds of the second solve by a new program and by the last one, how much faster that is, and the levels."""

    objective: str
    pairs: bool
    choice: Choice
    jobs: int
    new_cpu_s: float
    last_cpu_s: float
    times_faster: float
    level_difference: float


def _fair(problem: AllocationProblem) -> Requirement:
    return Affine(np.zeros(len(problem.jobs)), problem.weights / problem.gangs)


def _finish(problem: AllocationProblem) -> Requirement:
    elapsed_s = np.array([job.elapsed_s for job in problem.jobs])
    return FinishBy(elapsed_s, isolated_duration_s(problem), problem.steps_left / problem.reference_throughput)


OBJECTIVES: dict[str, Callable[[AllocationProblem], Requirement]] = {
    "max-min fairness": _fair,
    "finish-time fairness": _finish,
}


def next_round(problem: AllocationProblem) -> AllocationProblem:
    """The same jobs a round later, one of them with another weight and less work."""
    jobs = [
        replace(job, steps_left=0.99 * job.steps_left, elapsed_s=job.elapsed_s + 360, isolated_s=job.isolated_s + 300)
        for job in problem.jobs
    ]
    jobs[0] = replace(jobs[0], weight=2.0, steps_left=0.5 * jobs[0].steps_left)
    return replace(problem, jobs=tuple(jobs))


def run(*, peers: Path | None = None, sizes: Iterable[int] = (256, 1024), seed: int = 0) -> list[AgainRow]:
    """Measure both ways, for two objectives, with and without pairs, and every choice among optimal solutions."""
    rows = []
    for size in sizes:
        given = under_way(published_input(peers, size) if peers is not None else synthetic_input(size, 3, seed))
        for objective in OBJECTIVES:
            for problem in (replace(given, pairs=None), given):
                rows += [_measure(objective, problem, choice) for choice in get_args(Choice)]
    return rows


def _measure(objective: str, problem: AllocationProblem, choice: Choice) -> AgainRow:
    later = next_round(problem)
    before, after = OBJECTIVES[objective](problem), OBJECTIVES[objective](later)
    new_s, last_s, difference = [], [], 0.0
    for _ in range(REPETITIONS):
        last = TimeProgram(merge(problem))
        first = last.raise_level(before, choice)
        groups = merge(later)
        started = time.process_time()
        anew = TimeProgram(groups).raise_level(after, choice)
        new_s.append(time.process_time() - started)
        started = time.process_time()
        again = last.raise_level(after, choice, near=None if first is None else first.level)
        last_s.append(time.process_time() - started)
        difference = abs(anew.level - again.level) if anew is not None and again is not None else float("nan")
    new, kept = float(np.median(new_s)), float(np.median(last_s))
    pairs = problem.pairs is not None
    return AgainRow(objective, pairs, choice, len(problem.jobs), new, kept, new / kept, difference)
