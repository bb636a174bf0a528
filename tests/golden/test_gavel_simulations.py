"""Gavel's policies on its own traces, beside what its published simulator gives; more in ``geminid bench fidelity``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from geminid.bench import gavel
from geminid.cluster import Cluster
from geminid.sim.run import Experiment, simulate
from requirements import PEERS

pytestmark = pytest.mark.needs_peers("gavel/results", "gavel/traces")

#: On traces A and B; of trace C the quick ones. The others, and Figure 8, are for ``geminid bench fidelity``.
POLICIES = (
    "fifo_perf",
    "isolated",
    "max_min_fairness",
    "max_min_fairness_perf",
    "max_min_fairness_packed",
    "max_min_fairness_water_filling_perf",
    "max_min_fairness_water_filling_packed",
    "finish_time_fairness_perf",
    "finish_time_fairness_packed",
    "gandiva_packed",
    "max_sum_throughput_perf",
    "max_sum_throughput_normalized_by_cost_perf",
    "min_total_duration_perf",
)

#: The largest ρ alone decides: of the fractions that reach the smallest on trace B, the published run took others.
LEFT_OUT = {("B", "finish_time_fairness_packed")}

CASES = [(trace, policy) for trace in "AB" for policy in POLICIES if (trace, policy) not in LEFT_OUT]
QUICK = ("allox", "fifo_perf", "max_sum_throughput_perf", "max_sum_throughput_normalized_by_cost_perf")
CASES += [("C", policy) for policy in QUICK]


@pytest.mark.parametrize(("trace", "policy"), CASES)
def test_simulations_come_out_as_the_published_ones(trace: str, policy: str) -> None:
    expected = _published(trace, policy)
    result = _simulated(trace, policy)
    assert result["unfinished_jobs"] == result["rejected_decisions"] == 0
    assert result["makespan_s"] == pytest.approx(expected.makespan_s, rel=gavel.TOLERANCE)
    assert result["avg_jct_s"] == pytest.approx(expected.avg_jct_s, rel=gavel.TOLERANCE)


@pytest.mark.parametrize("trace", ["A", "B"])
def test_fifo_on_types_drawn_at_random_is_a_draw_like_the_published_one(trace: str) -> None:
    expected = _published(trace, "fifo_agnostic")
    jct_s = [_simulated(trace, "fifo_agnostic", seed)["avg_jct_s"] for seed in range(10)]
    assert min(jct_s) < expected.avg_jct_s < max(jct_s)


#: How many jobs, from the first on, fare as in the published run, before a round falls differently and draws with it.
ALIKE = {"A": 33, "B": 0, "C": 87}


@pytest.mark.parametrize("trace", ALIKE)
def test_fifo_comes_out_as_published_with_the_types_that_were_drawn_there(trace: str) -> None:
    expected = _published(trace, "fifo_agnostic")
    result = _simulated(trace, f"{Path(__file__).with_name('published_fifo.py')}:PublishedFifo")
    assert result["avg_jct_s"] == pytest.approx(expected.avg_jct_s, rel=gavel.TOLERANCE)
    with (PEERS / f"gavel/results/jct_s_{trace}.csv").open(encoding="utf-8", newline="") as file:
        theirs = [float(row["fifo-fixed"]) for row in csv.DictReader(file)][: ALIKE[trace]]
    assert [job["jct_s"] for job in result["per_job"]][: len(theirs)] == pytest.approx(theirs, rel=0.02)


def _published(trace: str, policy: str) -> gavel.GavelResult:
    results = {result.policy: result for result in gavel.published(PEERS) if result.set == trace}
    return results[policy]


def _simulated(trace: str, policy: str, seed: int = 0) -> dict[str, Any]:
    _, cluster = gavel.SETS[trace]
    experiment = Experiment(
        workload=gavel.workload_of(PEERS, trace),
        cluster=Cluster.parse(cluster),
        profiles=PEERS / gavel.TABLE,
        seed=seed,
    )
    return simulate(policy, experiment)


def test_the_generator_draws_what_gavels_draws() -> None:
    theirs = gavel.workload_of(PEERS, "C").jobs
    ours = gavel.figure_8(PEERS, jobs_per_hour=2.0, jobs=len(theirs)).jobs
    assert [(job.application, job.steps) for job in ours] == [(job.application, job.steps) for job in theirs]
    assert [job.submit_s for job in ours] == pytest.approx([job.submit_s for job in theirs], abs=1e-6)
