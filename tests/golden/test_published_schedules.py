"""Mean JCTs that the published code of other systems reports, on their own workloads."""

from __future__ import annotations

import pytest

from geminid.cluster import Cluster
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads import load_workload
from requirements import PEERS

TIRESIAS = "traces/tiresias/60_job.csv"


@pytest.mark.needs_peers(TIRESIAS)
@pytest.mark.parametrize(("policy", "mean_jct_s"), [("fifo", 1556.48), ("srtf", 519.87), ("tiresias", 715.27)])
def test_tiresias_demonstration_trace(policy: str, mean_jct_s: float) -> None:
    workload = load_workload(PEERS / TIRESIAS)
    result = simulate(policy, Experiment(workload=workload, cluster=Cluster.parse("v100:2x4")))
    assert result["avg_jct_s"] == pytest.approx(mean_jct_s, abs=0.005)


@pytest.mark.needs_peers(TIRESIAS)
def test_gandiva_as_published_with_tiresias() -> None:
    """It looks at the cluster every 10 s and counts jobs as done then; ours are done when they are."""
    workload = load_workload(PEERS / TIRESIAS)
    world = Experiment(workload=workload, cluster=Cluster.parse("v100:2x4"), settings=Settings(rescale_s=0.0))
    result = simulate("gandiva:packing=false,growth=false,migration=false", world)
    assert result["avg_jct_s"] == pytest.approx(787.18, rel=0.01)
    assert result["makespan_s"] == pytest.approx(4879.0, rel=0.01)
    assert result["rescales_per_job"] == 0.0, "no slice ever ends in the published schedule"


@pytest.mark.needs_peers(TIRESIAS)
def test_gandiva_with_slices_that_end_takes_a_little_longer_than_published() -> None:
    workload = load_workload(PEERS / TIRESIAS)
    world = Experiment(workload=workload, cluster=Cluster.parse("v100:2x4"), settings=Settings(rescale_s=0.0))
    result = simulate("gandiva:packing=false,growth=false,migration=false,published=false", world)
    assert result["rescales_per_job"] > 0.5
    assert result["avg_jct_s"] == pytest.approx(787.18, rel=0.05)
    assert result["makespan_s"] == pytest.approx(4879.0, rel=0.02)


POLLUX_EVALUATION = {
    "tiresias": {1: 2473.7, 2: 5145.0, 3: 3876.3, 6: 3469.69},
    "optimus": {1: 4087.1, 2: 6913.9, 3: 3944.0, 6: 5301.88},
}


@pytest.mark.needs_peers("pollux/workloads", "pollux/traces")
@pytest.mark.parametrize(
    ("policy", "number", "mean_jct_s"),
    [(policy, number, jct) for policy, figures in POLLUX_EVALUATION.items() for number, jct in figures.items()],
)
def test_baselines_of_polluxs_evaluation(policy: str, number: int, mean_jct_s: float) -> None:
    experiment = Experiment(
        workload=load_workload(PEERS / f"pollux/workloads/workload-{number}.csv"),
        cluster=Cluster.parse("t4:16x4"),
        profiles=PEERS / "pollux/traces",
        settings=Settings(model="pollux"),
    )
    assert simulate(policy, experiment)["avg_jct_s"] == pytest.approx(mean_jct_s, rel=0.02)


@pytest.mark.slow("two minutes")
@pytest.mark.needs_peers("pollux/workloads", "pollux/traces")
def test_pollux_on_one_of_its_own_workloads() -> None:
    """The one with the fewest decisions; the others are in ``geminid bench fidelity``, and take minutes each."""
    experiment = Experiment(
        workload=load_workload(PEERS / "pollux/workloads/workload-3.csv"),
        cluster=Cluster.parse("t4:16x4"),
        profiles=PEERS / "pollux/traces",
        settings=Settings(model="pollux"),
    )
    assert simulate("pollux", experiment)["avg_jct_s"] == pytest.approx(2188.5, rel=0.07)


@pytest.mark.needs_peers("sia/sia-simulator/workloads", "sia/sia-simulator/traces")
@pytest.mark.parametrize(("number", "mean_jct_h"), [(1, 0.540), (3, 0.575)])
def test_sia_on_its_own_workloads(number: int, mean_jct_h: float) -> None:
    """The others are in ``geminid bench fidelity``."""
    experiment = Experiment(
        workload=load_workload(PEERS / f"sia/sia-simulator/workloads/philly/workload-{number}.csv"),
        cluster=Cluster.parse("aws:6x4,dgx-ext:2x8,rtx:3x8"),
        profiles=PEERS / "sia/sia-simulator/traces",
        settings=Settings(model="pollux"),
    )
    assert simulate("sia", experiment)["avg_jct_s"] == pytest.approx(mean_jct_h * 3600, rel=0.07)
