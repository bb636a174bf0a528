"""Mean JCTs that the published code of other systems reports, on their own workloads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from geminid.cluster import Cluster
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads import load_workload

PEERS = Path(__file__).parents[3] / "shared" / "peers"


def peer(path: str) -> Path:
    found = PEERS / path
    if not found.exists():
        pytest.skip(f"the peers' data is not at shared/peers/{path}")
    return found


@pytest.mark.parametrize(("policy", "mean_jct_s"), [("fifo", 1556.48), ("srtf", 519.87), ("tiresias", 715.27)])
def test_tiresias_demonstration_trace(policy: str, mean_jct_s: float) -> None:
    workload = load_workload(peer("traces/tiresias/60_job.csv"))
    result = simulate(policy, Experiment(workload=workload, cluster=Cluster.parse("v100:2x4")))
    assert result["avg_jct_s"] == pytest.approx(mean_jct_s, abs=0.005)


POLLUX_EVALUATION = {
    "tiresias": {1: 2473.7, 2: 5145.0, 3: 3876.3, 6: 3469.69},
    "optimus": {1: 4087.1, 2: 6913.9, 3: 3944.0, 6: 5301.88},
}


@pytest.mark.parametrize(
    ("policy", "number", "mean_jct_s"),
    [(policy, number, jct) for policy, figures in POLLUX_EVALUATION.items() for number, jct in figures.items()],
)
def test_baselines_of_polluxs_evaluation(policy: str, number: int, mean_jct_s: float) -> None:
    experiment = Experiment(
        workload=load_workload(peer(f"pollux/workloads/workload-{number}.csv")),
        cluster=Cluster.parse("t4:16x4"),
        profiles=peer("pollux/traces"),
        settings=Settings(model="pollux"),
    )
    assert simulate(policy, experiment)["avg_jct_s"] == pytest.approx(mean_jct_s, rel=0.02)


@pytest.mark.skipif("GEMINID_TEST_SLOW" not in os.environ, reason="takes two minutes: set GEMINID_TEST_SLOW=1")
def test_pollux_on_one_of_its_own_workloads() -> None:
    """The one with the fewest decisions; the others are in ``geminid bench fidelity``, and take minutes each."""
    experiment = Experiment(
        workload=load_workload(peer("pollux/workloads/workload-3.csv")),
        cluster=Cluster.parse("t4:16x4"),
        profiles=peer("pollux/traces"),
        settings=Settings(model="pollux"),
    )
    assert simulate("pollux", experiment)["avg_jct_s"] == pytest.approx(2188.5, rel=0.07)


@pytest.mark.parametrize(("number", "mean_jct_h"), [(1, 0.540), (3, 0.575)])
def test_sia_on_its_own_workloads(number: int, mean_jct_h: float) -> None:
    """The others are in ``geminid bench fidelity``."""
    experiment = Experiment(
        workload=load_workload(peer(f"sia/sia-simulator/workloads/philly/workload-{number}.csv")),
        cluster=Cluster.parse("aws:6x4,dgx-ext:2x8,rtx:3x8"),
        profiles=peer("sia/sia-simulator/traces"),
        settings=Settings(model="pollux"),
    )
    assert simulate("sia", experiment)["avg_jct_s"] == pytest.approx(mean_jct_h * 3600, rel=0.07)
