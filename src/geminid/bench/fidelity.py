"""Do the policies reproduce what their authors report? Mean JCTs on the peers' own workloads, ours beside theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from geminid.cluster import Cluster
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads import load_workload


@dataclass(frozen=True, slots=True)
class Case:
    """One published mean JCT, and how closely it should be met."""

    policy: str
    workload: str
    profiles: str | None
    cluster: str
    published_s: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """Ours beside theirs."""

    policy: str
    workload: str
    published_s: float
    ours_s: float
    difference: float
    tolerance: float
    within: bool


def cases() -> Iterator[Case]:
    """All published figures, cheapest first."""
    for policy, jct in (("fifo", 1556.48), ("srtf", 519.87), ("tiresias", 715.27)):
        yield Case(policy, "traces/tiresias/60_job.csv", None, "v100:2x4", jct, 0.01)
    pollux = {
        "tiresias": ((1, 2473.7), (2, 5145.0), (3, 3876.3), (6, 3469.69)),
        "optimus": ((1, 4087.1), (2, 6913.9), (3, 3944.0), (6, 5301.88)),
        "pollux": ((1, 2088.8), (2, 3322.9), (3, 2188.5), (6, 2446.1)),
    }
    for policy, figures in pollux.items():
        for number, jct in figures:
            path = f"pollux/workloads/workload-{number}.csv"
            yield Case(policy, path, "pollux/traces", "t4:16x4", jct, 0.07 if policy == "pollux" else 0.02)
    sia = (("philly", 1, 0.540), ("philly", 2, 0.742), ("philly", 3, 0.575), ("saturn", 1, 0.589), ("saturn", 2, 0.712))
    for trace, number, hours in (*sia, ("newtrace", 1, 0.807)):
        path = f"sia/sia-simulator/workloads/{trace}/workload-{number}.csv"
        cluster = "aws:6x4,dgx-ext:2x8,rtx:3x8"
        yield Case("sia", path, "sia/sia-simulator/traces", cluster, hours * 3600, 0.07)


def run(peers: Path, *, only: str | None, seed: int, progress: Callable[[str], None]) -> list[FidelityRow]:
    """Simulate every case whose files are there."""
    if not peers.is_dir():
        raise InvalidInput([Problem("peers", str(peers), "must be the folder that holds the peers' data")])
    rows = []
    for case in cases():
        if (only and case.policy != only) or not (peers / case.workload).is_file():
            continue
        progress(f"{case.policy} on {case.workload}")
        experiment = Experiment(
            workload=load_workload(peers / case.workload),
            cluster=Cluster.parse(case.cluster),
            profiles=peers / case.profiles if case.profiles else None,
            settings=Settings(model="pollux"),
            seed=seed,
        )
        ours_s = simulate(case.policy, experiment)["avg_jct_s"]
        difference = ours_s / case.published_s - 1.0
        rows.append(
            FidelityRow(
                case.policy,
                case.workload,
                case.published_s,
                ours_s,
                difference,
                case.tolerance,
                abs(difference) <= case.tolerance,
            )
        )
    if not rows:
        raise InvalidInput([Problem(str(peers), NOT_SHOWN, "holds none of the workloads that have published figures")])
    return rows
