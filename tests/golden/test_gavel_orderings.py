"""What Gavel's paper says of its policies beside each other, in simulations of profiled jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from geminid.bench import entities
from geminid.cluster import Cluster
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads.generate import built_in_workload

SEEDS = range(3)


def small(seed: int, load: float, *, at_once: bool = False) -> Experiment:
    """A few profiled jobs on a few nodes of three types, that arrive one after the other or all at once."""
    workload = built_in_workload("small", seed=seed, load=load)
    if at_once:
        workload = replace(workload, jobs=tuple(replace(job, submit_s=0.0) for job in workload.jobs))
    return Experiment(
        workload=workload,
        cluster=Cluster.parse("v100:1x4,a100-40gb:1x4,t4:2x4"),
        settings=Settings(rescale_s=1.0, seed=seed),
        seed=seed,
    )


def test_the_papers_orderings_hold_for_profiled_jobs() -> None:
    """Knowing GPU types shortens JCTs on every workload, and on average sharing more so, and tuning more than both."""
    names = (
        "max_min_fairness",
        "max_min_fairness_perf",
        "max_min_fairness_packed",
        "max_min_fairness_perf:adaptive=true",
    )
    jct_s = np.array([[simulate(name, small(seed, 0.3))["avg_jct_s"] for name in names] for seed in SEEDS])
    unaware, aware, packed, adaptive = jct_s.T
    assert (unaware > aware).all()
    assert (aware > adaptive).all()
    assert aware.mean() > packed.mean() > adaptive.mean()


def test_the_makespan_policy_has_the_smallest_makespan_of_jobs_that_come_at_once() -> None:
    """On every workload, with rounds that are short beside it: the last job of one of them ends after 40 minutes."""
    names = ("min_total_duration_perf", "max_min_fairness_perf", "finish_time_fairness_perf", "max_sum_throughput_perf")
    makespan_s = np.array(
        [[simulate(f"{n}:round=60", small(seed, 0.2, at_once=True))["makespan_s"] for n in names] for seed in SEEDS]
    )
    assert (makespan_s[:, :1] <= makespan_s).all()


def test_teams_and_the_people_in_them_have_the_slot_time_that_their_weights_say() -> None:
    rows = entities.run()
    assert sum(row.part for row in rows if "/" not in row.entity) == pytest.approx(1.0)
    assert [row.part for row in rows] == pytest.approx([row.expected for row in rows], abs=0.03)
