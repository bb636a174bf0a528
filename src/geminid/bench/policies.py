"""How long one solve of each policy over time fractions takes, beside the published code's.

Inputs are of the published kind: n single-GPU jobs and 3n/4 GPUs, as many of each type. With Gavel's tables at hand
they are the very jobs of the published measurements (models drawn as its generator draws them); without, or with eight
types, kinds of jobs are drawn from a synthetic table. The time covers everything from the problem to every job's
fractions: from scratch, and warm, starting from what a policy has kept of its last solve, a round earlier, when a few
jobs were not there yet, others not yet gone, and everyone had made a little less progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from geminid.bench.gavel import TABLE, figure_8
from geminid.bench.timing import Timed, median_time, timed
from geminid.policies.gavel.allox import allox
from geminid.policies.gavel.auction import themis_auction
from geminid.policies.gavel.finish_time import finish_time_fairness
from geminid.policies.gavel.makespan import min_makespan
from geminid.policies.gavel.maxmin import max_min_fairness
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import AllocationProblem, Array, GangJob, PairThroughputs, TimeFractions
from geminid.policies.gavel.throughput import max_total_throughput
from geminid.policies.gavel.waterfill import Entity, Hierarchy, water_filling
from geminid.sim.profiles.gavel import JobType, ThroughputTable, load_throughputs
from geminid.sim.workload import TraceJob
from geminid.solve.lp import Allowance

SIZES = (32, 128, 256, 512, 1024, 2048, 8192)
GPU_TYPES = ("v100", "p100", "k80")

#: As in the published measurements: there are not enough for everyone.
GPUS_PER_JOB = 0.75

#: Default time limit of a solve in the service, in seconds.
SERVICE_LIMIT_S = 4.0

#: Solved this often; the median counts.
REPETITIONS = 5

#: Time after which measuring stops, in seconds.
LONG_S = 2.0

#: CPU seconds of one solve by the published code (ECOS, one thread, three types), from peers/gavel/results.
PUBLISHED_CPU_S: dict[tuple[str, int], float] = {
    **{("max_min_fairness_perf", n): s for n, s in ((32, 0.010), (128, 0.012), (256, 0.016), (512, 0.024))},
    **{("max_min_fairness_perf", n): s for n, s in ((1024, 0.033), (2048, 0.058))},
    **{("max_min_fairness_packed", n): s for n, s in ((32, 0.07), (128, 0.484), (256, 3.095), (512, 41.818))},
    **{("hierarchical", n): s for n, s in ((32, 0.026), (128, 0.098), (256, 0.458), (512, 3.309), (1024, 0.965))},
    **{("min_total_duration_perf", n): s for n, s in ((32, 0.029), (128, 0.037), (512, 0.08), (2048, 0.22))},
    **{("finish_time_fairness_perf", n): s for n, s in ((32, 0.111), (128, 0.272), (512, 1.091), (1024, 2.436))},
    **{("allox", n): s for n, s in ((32, 0.002), (128, 0.362), (256, 5.379), (512, 88.586))},
}

#: The published code merges nothing: jobs that are all different take it as long.
_SAME_TIME = {
    "max_min_fairness_all_different": "max_min_fairness_perf",
    "max_min_fairness_packed_all_different": "max_min_fairness_packed",
    "finish_time_fairness_all_different": "finish_time_fairness_perf",
}

_TEAMS = 5


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy at one size: time of a solve, of the published code's, and the objective reached."""

    policy: str
    jobs: int
    types: int
    input: str
    cpu_s: float
    wall_s: float
    warm_cpu_s: float | None
    warm_times_faster: float | None
    published_cpu_s: float | None
    times_faster: float | None
    objective: float
    warm_objective: float | None
    notes: list[str]


#: How jobs are made those that a policy is meant for.
Prepare = Callable[[AllocationProblem], AllocationProblem]

#: How a policy solves, given what it keeps between rounds (None: nothing).
Solve = Callable[[AllocationProblem, Memory | None], TimeFractions]


@dataclass(frozen=True, slots=True)
class Case:
    """A policy to measure: how it solves, whether with pairs, the jobs it is meant for, and up to how many of them.

    (On three GPU types; on more, up to fewer.)
    ``keeps`` is off where nothing is kept between rounds.
    """

    name: str
    solve: Solve
    pairs: bool = False
    prepare: Prepare = lambda problem: problem
    largest: int = 1 << 20
    keeps: bool = True


def teams(problem: AllocationProblem) -> AllocationProblem:
    """The jobs dealt out to five teams."""
    jobs = tuple(replace(job, entity=(f"team-{i % _TEAMS}",), arrived_s=float(i)) for i, job in enumerate(problem.jobs))
    return replace(problem, jobs=jobs)


def under_way(problem: AllocationProblem) -> AllocationProblem:
    """The jobs some way into their work, served until now a little better than on a static share, some more, some less.

    No two are alike, and no single one is so late that it alone decides.
    """
    rng = np.random.default_rng(len(problem.jobs))
    share_s = problem.steps_left / problem.isolated_throughput
    done, luck = rng.uniform(0.0, 0.9, len(share_s)), rng.uniform(0.85, 0.95, len(share_s))
    jobs = tuple(
        replace(job, steps_left=left, elapsed_s=elapsed_s, isolated_s=isolated_s)
        for job, left, elapsed_s, isolated_s in zip(
            problem.jobs,
            (problem.steps_left * (1 - done)).tolist(),
            (share_s * done * luck).tolist(),
            (share_s * done).tolist(),
            strict=True,
        )
    )
    return replace(problem, jobs=jobs)


def batch(problem: AllocationProblem) -> AllocationProblem:
    """Jobs of one to five hours on their fastest type, as in Gavel's trace for makespans."""
    rng = np.random.default_rng(len(problem.jobs))
    steps = 3600 * rng.uniform(1.0, 5.0, len(problem.jobs)) * problem.usable.max(axis=1)
    jobs = tuple(replace(job, steps_left=left) for job, left in zip(problem.jobs, steps.tolist(), strict=True))
    return replace(problem, jobs=jobs)


def with_deadlines(problem: AllocationProblem) -> AllocationProblem:
    """Deadlines of one to three times the fastest duration: there is not room for all of them."""
    rng = np.random.default_rng(len(problem.jobs))
    due_s = problem.steps_left / problem.usable.max(axis=1) * rng.uniform(1.0, 3.0, len(problem.jobs))
    jobs = tuple(replace(job, deadline_s=at) for job, at in zip(problem.jobs, due_s.tolist(), strict=True))
    return replace(problem, jobs=jobs, costs=np.geomspace(4.0, 1.0, len(problem.gpu_types)))


def all_different(problem: AllocationProblem) -> AllocationProblem:
    """The jobs with throughputs of their own, so that none can be merged, beside others as well."""
    rng = np.random.default_rng(len(problem.jobs))
    throughputs = problem.throughputs * rng.lognormal(0.0, 0.1, problem.throughputs.shape)
    if problem.pairs is None:
        return replace(problem, throughputs=throughputs)
    index = problem.pairs.index
    kind = np.array([index[job.kind] for job in problem.jobs])
    alone = problem.throughputs[:, None]
    rates = problem.pairs.rates[kind[:, None], kind]
    kept = np.divide(rates, alone, out=np.zeros_like(rates), where=alone > 0)
    jobs = tuple(replace(job, kind=job.id) for job in problem.jobs)
    pairs = PairThroughputs(tuple(job.id for job in jobs), kept * throughputs[:, None])
    return replace(problem, throughputs=throughputs, jobs=jobs, pairs=pairs)


def a_round_earlier(problem: AllocationProblem) -> AllocationProblem:
    """The same cluster 360 s before: one job in 32 was not there yet, as many others were, which are done by now."""
    count = len(problem.jobs)
    new = max(1, count // 32)
    rows = [*range(count - new), *range(new)]
    jobs = [
        replace(
            problem.jobs[i],
            id=f"done-{i}" if position >= count - new else problem.jobs[i].id,
            steps_left=1.01 * problem.jobs[i].steps_left,
            elapsed_s=max(problem.jobs[i].elapsed_s - 360.0, 0.0),
            isolated_s=max(problem.jobs[i].isolated_s - 360.0, 0.0),
        )
        for position, i in enumerate(rows)
    ]
    return replace(problem, jobs=tuple(jobs), throughputs=problem.throughputs[rows])


TEAM_WEIGHTS = Hierarchy({(f"team-{i}",): Entity(i + 1.0) for i in range(_TEAMS)})

TEAM_LINES = Hierarchy({(f"team-{i}",): Entity(i + 1.0, "fifo") for i in range(_TEAMS)})


def _solved(solve: Callable[..., TimeFractions], **more: object) -> Solve:
    return lambda problem, memory: solve(problem, memory=memory, **more)


def _alone(solve: Callable[[AllocationProblem], TimeFractions]) -> Solve:
    return lambda problem, _: solve(problem)


def _in_time(solve: Callable[..., TimeFractions], **more: object) -> Callable[..., TimeFractions]:
    """As in the service, with its time limit."""
    return lambda problem: solve(problem, within=Allowance(SERVICE_LIMIT_S, time.monotonic), **more)


def _different(prepare: Prepare) -> Prepare:
    return lambda problem: all_different(prepare(problem))


#: As the policies solve by default: in the middle of the optimal fractions where they are not unique, or at a vertex.
_FAIR = _solved(max_min_fairness, choice="centre")
_SHARED = _solved(max_min_fairness)
_FINISH = _solved(finish_time_fairness, choice="centre")
_MAKESPAN = _solved(min_makespan, choice="centre")
_TEAMS_FILL = _solved(water_filling, hierarchy=TEAM_WEIGHTS)
_SLOS = _solved(max_total_throughput, by_cost=True, deadlines=True)

CASES: Sequence[Case] = (
    Case("max_min_fairness_perf", _FAIR),
    Case("max_min_fairness_all_different", _FAIR, prepare=all_different),
    Case("max_min_fairness_packed", _SHARED, pairs=True),
    Case("max_min_fairness_packed:choice=centre", _FAIR, pairs=True),
    Case("max_min_fairness_packed:choice=total", _solved(max_min_fairness, choice="total"), pairs=True),
    Case("max_min_fairness_packed_all_different", _SHARED, pairs=True, prepare=all_different, largest=512),
    Case("max_min_fairness_water_filling_perf", _solved(water_filling)),
    Case(
        "max_min_fairness_water_filling_packed_all_different",
        _solved(water_filling),
        pairs=True,
        prepare=all_different,
        largest=512,
    ),
    Case("hierarchical", _TEAMS_FILL, prepare=teams),
    Case("hierarchical_all_different", _TEAMS_FILL, prepare=_different(teams), largest=2048),
    Case("hierarchical_packed", _TEAMS_FILL, pairs=True, prepare=teams),
    Case("hierarchical_packed_all_different", _TEAMS_FILL, pairs=True, prepare=_different(teams), largest=512),
    Case("hierarchical_fifo", _solved(water_filling, hierarchy=TEAM_LINES), prepare=teams, largest=4096),
    Case(
        "hierarchical_fifo:limit=4",
        _alone(_in_time(water_filling, hierarchy=TEAM_LINES)),
        prepare=teams,
        keeps=False,
    ),
    Case("finish_time_fairness_perf", _FINISH, prepare=under_way),
    Case("finish_time_fairness_all_different", _FINISH, prepare=_different(under_way)),
    Case(
        "finish_time_fairness_packed_all_different",
        _FINISH,
        pairs=True,
        prepare=_different(under_way),
        largest=512,
    ),
    Case("finish_time_fairness_packed", _FINISH, pairs=True, prepare=under_way),
    Case("min_total_duration_perf", _MAKESPAN, prepare=batch),
    Case("min_total_duration_packed", _MAKESPAN, pairs=True, prepare=batch),
    Case("max_sum_throughput_perf", _solved(max_total_throughput)),
    Case("max_sum_throughput_packed", _solved(max_total_throughput), pairs=True),
    Case(
        "max_sum_throughput_packed_all_different",
        _solved(max_total_throughput),
        pairs=True,
        prepare=all_different,
        largest=512,
    ),
    Case("max_sum_throughput_normalized_by_cost_perf_SLOs", _SLOS, prepare=with_deadlines),
    Case("allox", _alone(allox), keeps=False),
    Case("themis", _alone(themis_auction), prepare=under_way, largest=2048, keeps=False),
    Case("themis:limit=4", _alone(_in_time(themis_auction)), prepare=under_way, keeps=False),
)


def run(
    *,
    peers: Path | None = None,
    sizes: Iterable[int] = SIZES,
    types: Iterable[int] = (3, 8),
    policies: Iterable[str] | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[PolicyRow]:
    """Measure every policy at every size and number of types."""
    chosen = [case for case in CASES if policies is None or case.name in set(policies)]
    rows = []
    for count in types:
        for size in sizes:
            published = count == len(GPU_TYPES) and peers is not None
            if published and peers is not None:
                problem = published_input(peers, size)
            else:
                problem = synthetic_input(size, count, seed)
            for case in (case for case in chosen if size * count <= len(GPU_TYPES) * case.largest):
                progress(f"{case.name}, {size} jobs, {count} types …")
                prepared = case.prepare(problem if case.pairs else replace(problem, pairs=None))
                rows.append(_measure(case, prepared, "Gavel's table" if published else "synthetic"))
    return rows


def _measure(case: Case, problem: AllocationProblem, source: str) -> PolicyRow:
    warm_s = warm_objective = None
    if case.keeps:
        kept = Memory()
        case.solve(a_round_earlier(problem), kept)
        cold, warm = _time(problem, lambda fresh: case.solve(fresh, None), lambda fresh: case.solve(fresh, kept.copy()))
        warm_s, warm_objective = warm.cpu_s, warm.result.objective
    else:
        (cold,) = _time(problem, lambda fresh: case.solve(fresh, None))
    jobs, types = len(problem.jobs), len(problem.gpu_types)
    name = _SAME_TIME.get(case.name, case.name)
    published = PUBLISHED_CPU_S.get((name, jobs)) if types == len(GPU_TYPES) else None
    return PolicyRow(
        case.name,
        jobs,
        types,
        source,
        cold.cpu_s,
        cold.wall_s,
        warm_s,
        None if warm_s is None else cold.cpu_s / warm_s,
        published,
        published / cold.cpu_s if published is not None else None,
        cold.result.objective,
        warm_objective,
        [note.reason for note in cold.result.notes],
    )


def _time(
    problem: AllocationProblem, *ways: Callable[[AllocationProblem], TimeFractions]
) -> list[Timed[TimeFractions]]:
    """Medians of some ways to solve a problem, interleaved, so that other load slows all of them alike."""
    runs: list[list[Timed[TimeFractions]]] = [[] for _ in ways]
    for _ in range(REPETITIONS):
        for solve, done in zip(ways, runs, strict=True):
            fresh = replace(problem)  # nothing that was computed from the problem is kept
            done.append(timed(partial(solve, fresh)))
        if sum(run.wall_s for run in runs[0]) > LONG_S:
            break
    return [median_time(done) for done in runs]


def published_input(peers: Path, jobs: int) -> AllocationProblem:
    """The jobs of the published measurements: the first n that Gavel's generator draws."""
    table = load_throughputs(peers / TABLE)
    workload = figure_8(peers, jobs_per_hour=2.0, jobs=jobs)
    return problem_of(table, workload.jobs, GPU_TYPES, np.full(len(GPU_TYPES), GPUS_PER_JOB * jobs / len(GPU_TYPES)))


def problem_of(
    table: ThroughputTable, jobs: Sequence[TraceJob], gpu_types: Sequence[str], slots: Array
) -> AllocationProblem:
    """The problem of some jobs of a trace that are all there at once, with the throughputs of a table."""
    job_types: list[JobType] = [(job.application or "", job.requested_slots) for job in jobs]
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(job_types))}
    alone = np.array([[table.alone(kind, gpu_type) for gpu_type in gpu_types] for kind in kinds])
    rates = np.zeros((len(kinds), len(kinds), len(gpu_types)))
    for j, gpu_type in enumerate(gpu_types):
        for (first, second), (mine, theirs) in table.by_type[gpu_type].pairs.items():
            if first in kinds and second in kinds:
                rates[kinds[first], kinds[second], j] = mine
                rates[kinds[second], kinds[first], j] = theirs
    made = tuple(
        GangJob(
            id=job.name,
            gang=job.requested_slots,
            kind=kind,
            weight=job.weight,
            arrived_s=job.submit_s,
            steps_left=float(job.steps or 1),
        )
        for job, kind in zip(jobs, job_types, strict=True)
    )
    rows = alone[[kinds[kind] for kind in job_types]]
    return AllocationProblem(tuple(gpu_types), slots, made, rows, PairThroughputs(tuple(kinds), rates))


def synthetic_input(jobs: int, types: int, seed: int, kinds: int = 26) -> AllocationProblem:
    """Kinds of jobs that gain more or less from faster types, and lose more or less beside others."""
    rng = np.random.default_rng(seed)
    speed = np.geomspace(1.0, 8.0, types)
    alone = rng.lognormal(1.0, 1.0, (kinds, 1)) * speed ** rng.uniform(0.2, 1.2, (kinds, 1))
    alone *= rng.lognormal(0.0, 0.1, alone.shape)
    appetite = rng.uniform(0.2, 0.9, (kinds, types))
    kept = np.clip(1.3 - appetite[:, None] * 0.5 - appetite[None, :], 0.0, 1.0)
    kept[appetite[:, None] + appetite[None, :] > 1.5] = 0.0  # not enough memory for both
    drawn = rng.integers(0, kinds, jobs)
    hours = np.where(rng.random(jobs) < 0.8, rng.uniform(1.5, 3, jobs), rng.uniform(3, 4, jobs))
    steps = 60 * 10**hours * alone[drawn].max(axis=1)
    made = tuple(
        GangJob(id=f"job-{i}", kind=kind, arrived_s=float(i), steps_left=left)
        for i, (kind, left) in enumerate(zip(drawn.tolist(), steps.tolist(), strict=True))
    )
    pairs = PairThroughputs(tuple(range(kinds)), alone[:, None] * kept)
    return AllocationProblem(
        tuple(f"type-{j}" for j in range(types)), np.full(types, GPUS_PER_JOB * jobs / types), made, alone[drawn], pairs
    )
