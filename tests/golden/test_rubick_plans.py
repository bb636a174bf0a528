"""Predictions on the step times that Rubick's authors measured, and their workloads, where the data is at hand."""

from __future__ import annotations

import pytest

from geminid.bench.plans import ERROR_GOAL, P95_GOAL, WORST_GOAL, run
from geminid.cluster import Cluster
from geminid.sim.profiles.rubick import load_models
from geminid.sim.run import Experiment, simulate
from geminid.sim.workloads import load_workload
from requirements import PEERS


@pytest.mark.needs_peers("rubick/placements")
def test_eight_samples_predict_plans_well_enough_to_choose_them() -> None:
    rows = run(load_models(PEERS / "rubick"), samples=8, draws=100, seed=0)
    assert [row.model for row in rows] == ["bert", "gpt2", "llama7", "roberta", "t5", "vit"]
    assert max(row.median_error for row in rows) <= ERROR_GOAL
    assert max(row.p95_regret for row in rows) <= P95_GOAL
    assert max(row.worst_regret for row in rows) <= WORST_GOAL
    assert all(row.median_error < row.published_median_error for row in rows)


def mean_jct_s(policy: str, workload: str) -> float:
    experiment = Experiment(
        workload=load_workload(PEERS / "rubick" / "workloads" / f"{workload}.csv"),
        cluster=Cluster.parse("a800:8x8"),
        profiles=PEERS / "rubick",
    )
    return float(simulate(policy, experiment)["avg_jct_s"])


@pytest.mark.needs_peers("rubick/workloads")
@pytest.mark.parametrize(
    ("workload", "published_s"), [("workload-base", 3638.29), ("workload-bp", 3638.29), ("naive", 895.61)]
)
def test_rubick_is_as_good_on_its_workloads_as_published(workload: str, published_s: float) -> None:
    assert mean_jct_s("rubick", workload) <= 1.05 * published_s


@pytest.mark.needs_peers("rubick/workloads")
def test_geminid_with_plans_is_a_fifth_better_than_rubick_at_the_same_cost_of_changes() -> None:
    assert mean_jct_s("geminid", "workload-base") <= 0.8 * mean_jct_s("rubick", "workload-base")
