"""How fast the goodput table is, against computing it job by job.

Two baselines, both timed in the same run on a sample of the jobs: the definition in ``goodput/batchplan.py`` called in
a plain loop over jobs and configurations, and the way AdaptDL does it, numpy over the grid of batch sizes for one job
and configuration at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geminid.bench.timing import median_of, timed
from geminid.configuration import Configuration
from geminid.goodput.batchplan import GRID_POINTS, BatchLimits, best_plan, candidate_plans
from geminid.goodput.efficiency import GradientStats, efficiency
from geminid.goodput.fit import Corrections, ThroughputFit
from geminid.goodput.table import GoodputTable, JobModel
from geminid.goodput.throughput import Shape

#: The most by which a goodput may differ from the definition's, relatively.
LARGEST_DIFFERENCE = 1e-6

#: The table is at least this many times as fast as a plain loop.
TIMES_FASTER = 100.0

#: Timed this often; the median counts.
REPETITIONS = 5

#: Jobs have run on, and so have corrections of their own for, this many of the GPU types.
TYPES_RUN_ON = 2


@dataclass(frozen=True, slots=True)
class TableRow:
    """Time to compute the table, and the same by the baselines, extrapolated from the sampled jobs."""

    model: str
    jobs: int
    configurations: int
    batch_sizes: int
    seconds: float
    cpu_s: float
    plain_loop_s: float
    grid_loop_s: float
    times_faster_than_plain_loop: float
    times_faster_than_grid_loop: float
    refresh_one_percent_s: float
    largest_difference: float


def run(*, jobs: int = 10_000, gpu_types: int = 8, sampled_jobs: int = 6, seed: int = 0) -> list[TableRow]:
    """Time both models' tables for ``jobs`` jobs on eight sizes of each GPU type."""
    types = [f"type-{i}" for i in range(gpu_types)]
    sizes = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16), (4, 32), (8, 64), (16, 128)]
    configurations = [Configuration(gpu_type=t, nodes=n, slots=k) for t in types for n, k in sizes]
    return [_measure(model, jobs, types, configurations, sampled_jobs, seed) for model in ("pollux", "geminid")]


def _measure(
    model: str, jobs: int, types: list[str], configurations: list[Configuration], sampled: int, seed: int
) -> TableRow:
    rng = np.random.default_rng(seed)
    models = {f"job-{i}": random_job(model, types, rng) for i in range(jobs)}
    seconds, cpu_seconds, table = median_of(lambda: GoodputTable.of(configurations, models), REPETITIONS)
    sample = list(models.values())[:sampled]
    plain_sample_s, _, plain = timed(lambda: [[_plain(job, c) for c in configurations] for job in sample])
    grid = median_of(lambda: [_grid(job, c) for job in sample for c in configurations], REPETITIONS)
    plain_s, grid_s = plain_sample_s * jobs / sampled, grid.wall_s * jobs / sampled
    reached, expected = table.goodput[:sampled], np.array(plain)
    difference = float(np.max(np.abs(reached - expected) / np.maximum(expected, 1e-12)))

    changed = dict(models)
    for job_id in list(changed)[:: max(1, jobs // max(1, jobs // 100))]:
        changed[job_id] = random_job(model, types, rng)
    refresh_s = timed(lambda: table.refresh(changed)).wall_s
    return TableRow(
        model,
        jobs,
        len(configurations),
        GRID_POINTS,
        seconds,
        cpu_seconds,
        plain_s,
        grid_s,
        plain_s / seconds,
        grid_s / seconds,
        refresh_s,
        difference,
    )


def random_job(model: str, types: list[str], rng: np.random.Generator) -> JobModel:
    """A job with plausible step times on every type, batch limits that differ by the type's memory, and noise."""
    fits, limits = {}, {}
    initial = int(rng.integers(16, 256))
    for i, gpu_type in enumerate(types):
        speed = float(np.exp(rng.normal(0.0, 0.5)))
        gamma = float(rng.uniform(1.0, 4.0))
        values = [0.1 * speed, 0.005 * speed]
        if model == "pollux":
            values += [0.02 * speed, 0.006 * speed, 0.01 * speed, 0.003 * speed, gamma]
        else:
            values += [3.0, 0.01 * speed, 0.002 * speed, 0.02 * speed, 0.002 * speed, 1.2]
            values += [0.001 * speed, 0.0001 * speed, 0.1, 0.5, gamma]
        corrections = Corrections()
        if model == "geminid" and i < TYPES_RUN_ON:
            sizes = sorted({float(x) for x in rng.integers(8, 4 * initial, 6)})
            corrections = Corrections(tuple(sizes), tuple(rng.normal(0.0, 0.1, len(sizes)).tolist()))
        fits[gpu_type] = ThroughputFit(model, tuple(values), "fitted", 0.0, 8, corrections)
        limits[gpu_type] = BatchLimits(
            initial=initial,
            largest=32 * initial,
            smallest_per_slot=max(1, initial // 8),
            largest_per_slot=initial * int(rng.integers(1, 5)),
        )
    gradient = GradientStats(float(rng.lognormal()), float(rng.lognormal(2.0)))
    return JobModel(fits, limits, gradient)


def _plain(job: JobModel, c: Configuration) -> float:
    plan = best_plan(job.fits[c.gpu_type], job.gradient, job.limits[c.gpu_type], nodes=c.nodes, slots=c.slots)
    return plan.goodput


def _grid(job: JobModel, c: Configuration) -> float:
    """One job and configuration, numpy over the batch sizes."""
    limits = job.limits[c.gpu_type]
    candidates = list(candidate_plans(limits, c.slots))
    if not candidates:
        return 0.0
    batch, steps = np.array(candidates, dtype=float).T
    total = c.slots * batch * (steps + 1.0)
    iteration_s = job.fits[c.gpu_type].step_times(Shape.of(c.nodes, c.slots, batch)).iteration_s(steps)
    worth = efficiency(job.gradient.squared_gradient, job.gradient.variance, total / limits.initial)
    return float(np.max(total / iteration_s * worth))
