"""Do the policies reproduce what their authors report? Mean JCTs, and some makespans, on the peers' own workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geminid.bench import gavel
from geminid.cluster import Cluster
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workload import Workload
from geminid.sim.workloads import load_workload

#: What a quick run compares: three policies on 60 jobs.
QUICK_WORKLOAD = "traces/tiresias/60_job.csv"


@dataclass(frozen=True, slots=True)
class Case:
    """Published figures of one policy on one workload, and how closely they should be met.

    Where ``measured`` is given, only these jobs of the workload count. ``load`` makes a workload that is in no file.
    """

    policy: str
    workload: str
    profiles: str | None
    cluster: str
    published_s: Mapping[str, float]
    tolerance: float
    measured: range | None = None
    load: Callable[[Path], Workload] | None = None


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """Ours beside theirs: the mean over the seeds, the lowest and the highest."""

    policy: str
    workload: str
    metric: str
    published_s: float
    ours_s: float
    lowest_s: float
    highest_s: float
    difference: float
    tolerance: float
    within: bool


def cases(peers: Path, *, figure_8: bool = False) -> Iterator[Case]:
    """All published figures, cheapest first."""
    for policy, jct in (("fifo", 1556.48), ("srtf", 519.87), ("tiresias", 715.27)):
        yield Case(policy, "traces/tiresias/60_job.csv", None, "v100:2x4", {"avg_jct_s": jct}, 0.01)
    yield Case(
        "gandiva:packing=false,growth=false,migration=false",
        "traces/tiresias/60_job.csv",
        None,
        "v100:2x4",
        {"avg_jct_s": 787.18, "makespan_s": 4879.0},
        0.01,
    )
    yield from _gavel_cases(peers, figure_8=figure_8)
    pollux = {
        "tiresias": ((1, 2473.7), (2, 5145.0), (3, 3876.3), (6, 3469.69)),
        "optimus": ((1, 4087.1), (2, 6913.9), (3, 3944.0), (6, 5301.88)),
        "pollux": ((1, 2088.8), (2, 3322.9), (3, 2188.5), (6, 2446.1)),
    }
    for policy, figures in pollux.items():
        for number, jct in figures:
            path = f"pollux/workloads/workload-{number}.csv"
            allowed = 0.07 if policy == "pollux" else 0.02
            yield Case(policy, path, "pollux/traces", "t4:16x4", {"avg_jct_s": jct}, allowed)
    sia = (("philly", 1, 0.540), ("philly", 2, 0.742), ("philly", 3, 0.575), ("saturn", 1, 0.589), ("saturn", 2, 0.712))
    for trace, number, hours in (*sia, ("newtrace", 1, 0.807)):
        path = f"sia/sia-simulator/workloads/{trace}/workload-{number}.csv"
        cluster = "aws:6x4,dgx-ext:2x8,rtx:3x8"
        yield Case("sia", path, "sia/sia-simulator/traces", cluster, {"avg_jct_s": hours * 3600}, 0.07)


def _gavel_cases(peers: Path, *, figure_8: bool) -> Iterator[Case]:
    for result in gavel.published(peers):
        figures = {"avg_jct_s": result.avg_jct_s, "makespan_s": result.makespan_s}
        if result.set in gavel.SETS:
            path, cluster = gavel.SETS[result.set]
            yield Case(result.policy, path, gavel.TABLE, cluster, figures, gavel.TOLERANCE)
        elif result.set == "F44" and figure_8:
            yield Case(
                result.policy,
                "gavel figure 8",
                gavel.TABLE,
                gavel.FIGURE_8_CLUSTER,
                {"avg_jct_s": result.avg_jct_s},
                gavel.TOLERANCE,
                gavel.FIGURE_8_MEASURED,
                gavel.figure_8,
            )


def has(peers: Path, only: str | None, *, figure_8: bool = False) -> bool:
    """Whether there are published figures of a policy, or of any."""
    return any(only in (None, case.policy.partition(":")[0]) for case in cases(peers, figure_8=figure_8))


def run(
    peers: Path,
    *,
    only: str | None,
    workload: str | None = None,
    figure_8: bool = False,
    options: str = "",
    seeds: Sequence[int],
    progress: Callable[[str], None],
) -> list[FidelityRow]:
    """Simulate every case whose files are there.

    ``only`` is a policy's name, ``workload`` part of a workload's; ``options`` are given to every policy.
    """
    if not peers.is_dir():
        raise InvalidInput([Problem("peers", str(peers), "must be the folder that holds the peers' data")])
    rows = []
    for case in cases(peers, figure_8=figure_8):
        if (only and case.policy.partition(":")[0] != only) or (workload and workload not in case.workload):
            continue
        if case.load is None and not (peers / case.workload).is_file():
            continue
        progress(f"{case.policy} on {case.workload}")
        results = [_simulate(case, peers, options, seed) for seed in seeds]
        for metric, published_s in case.published_s.items():
            ours_s = [_figure(case, result, metric) for result in results]
            difference = float(np.mean(ours_s)) / published_s - 1.0
            rows.append(
                FidelityRow(
                    case.policy,
                    case.workload,
                    metric.removesuffix("_s"),
                    published_s,
                    float(np.mean(ours_s)),
                    min(ours_s),
                    max(ours_s),
                    difference,
                    case.tolerance,
                    abs(difference) <= case.tolerance,
                )
            )
    if not rows:
        wanted = f" for {only or workload}" if only or workload else ""
        expected = f"holds none of the workloads that have published figures{wanted}"
        raise InvalidInput([Problem(str(peers), NOT_SHOWN, expected)])
    return rows


def _simulate(case: Case, peers: Path, options: str, seed: int) -> dict[str, Any]:
    experiment = Experiment(
        workload=load_workload(peers / case.workload) if case.load is None else case.load(peers),
        cluster=Cluster.parse(case.cluster),
        profiles=peers / case.profiles if case.profiles else None,
        settings=Settings(model="pollux"),
        seed=seed,
    )
    separator = "," if ":" in case.policy else ":"
    return simulate(f"{case.policy}{separator}{options}" if options else case.policy, experiment)


def _figure(case: Case, result: Mapping[str, Any], metric: str) -> float:
    if case.measured is None:
        return float(result[metric])
    return float(np.mean([result["per_job"][i]["jct_s"] for i in case.measured]))
