"""Is the geminid policy better than those it was made to beat? All in one simulator, profiles and costs of a change.

First at equal cost: every policy pays the published cold costs of a change of slots. Then live: ours pays what a live
rescale costs, the baseline keeps the cold costs that it was published with. And with estimates that are wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geminid.cluster import Cluster
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workload import Workload
from geminid.sim.workloads import load_workload
from geminid.sim.workloads.generate import built_in_workload

#: What a change of slots costs with live rescaling, as in ``geminid simulate --rescale live``.
LIVE_RESCALE_S = 1.0

BUILT_IN_CLUSTER = "v100:8x4,a100-40gb:2x8,t4:8x4"
BUILT_IN_LOADS = (0.5, 1.0, 1.5, 2.0)

#: What is compared, all of them less is better.
MEASURES = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "worst_ftf")


@dataclass(frozen=True, slots=True)
class Case:
    """A workload with the policy that is to be beaten on it. ``family`` is what means are taken over."""

    family: str
    name: str
    baseline: str
    cluster: str
    path: str | None = None
    profiles: str | None = None
    load: float = 1.0

    def workload(self, peers: Path, seed: int) -> Workload:
        """The jobs."""
        if self.path is None:
            return built_in_workload("day", seed=seed, load=self.load)
        return load_workload(peers / self.path)


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running our policy: what a change costs, and how wrong jobs are about what they have to do."""

    name: str
    rescale_s: float | None = None
    estimate_error: float | None = 0.0


EQUAL = Way("equal cost")
LIVE = Way("live", LIVE_RESCALE_S)
WRONG_ESTIMATES = (
    Way("equal cost, estimates wrong by 0.5", None, 0.5),
    Way("equal cost, estimates wrong by 1", None, 1.0),
    Way("equal cost, no estimates", None, None),
)


@dataclass(frozen=True, slots=True)
class QualityRow:
    """Ours on one workload (or the mean over a family), and by how much it differs from the baseline's."""

    family: str
    workload: str
    way: str
    baseline: str
    avg_jct_s: float
    avg_jct: float
    median_jct: float
    p99_jct: float
    makespan: float
    worst_ftf: float
    rescales_per_job: float
    baseline_rescales_per_job: float


def cases() -> Iterator[Case]:
    """The peers' workloads on their clusters, and the built-in one at four loads."""
    sia = (("philly", 1), ("philly", 2), ("philly", 3), ("saturn", 1), ("saturn", 2), ("newtrace", 1))
    for trace, number in sia:
        path = f"sia/sia-simulator/workloads/{trace}/workload-{number}.csv"
        cluster = "aws:6x4,dgx-ext:2x8,rtx:3x8"
        family = "newtrace" if trace == "newtrace" else "sia"
        yield Case(family, f"{trace}-{number}", "sia", cluster, path, "sia/sia-simulator/traces")
    for number in (1, 2, 3, 6):
        path = f"pollux/workloads/workload-{number}.csv"
        yield Case("pollux", f"pollux-{number}", "pollux", "t4:16x4", path, "pollux/traces")
    for load in BUILT_IN_LOADS:
        yield Case("built-in", f"day-{load:g}", "sia", BUILT_IN_CLUSTER, load=load)


def run(
    peers: Path,
    *,
    policy: str,
    only: Sequence[str],
    wrong_estimates: bool,
    baselines: Path | None,
    seed: int,
    progress: Callable[[str], None],
) -> list[QualityRow]:
    """Simulate every case whose files are there and whose name begins with one of ``only`` (all, if there are none).

    Results of baselines are taken from and added to a JSON file, where one is given.
    """
    chosen = [case for case in cases() if not only or any(case.name.startswith(name) for name in only)]
    chosen = [case for case in chosen if case.path is None or (peers / case.path).is_file()]
    if not chosen:
        known = ", ".join(case.name for case in cases())
        raise InvalidInput([Problem("workload", ",".join(only) or NOT_SHOWN, f"must be one of {known}, and be there")])
    known_results = _read(baselines)
    rows: list[QualityRow] = []
    for way in (EQUAL, LIVE, *(WRONG_ESTIMATES if wrong_estimates else ())):
        of_way = []
        for case in chosen:
            key = f"{case.baseline} on {case.name}, seed {seed}"
            if key not in known_results:
                progress(f"{case.baseline} on {case.name}")
                known_results[key] = _measures(case.baseline, case, peers, EQUAL, seed)
                _write(baselines, known_results)
            progress(f"{policy} on {case.name}, {way.name}")
            ours = _measures(policy, case, peers, way, seed)
            of_way.append(_row(case, way, ours, known_results[key]))
        rows += of_way
        for family in dict.fromkeys(row.family for row in of_way):
            members = [row for row in of_way if row.family == family]
            if len(members) > 1:
                rows.append(_mean(members))
    return rows


def _measures(policy: str, case: Case, peers: Path, way: Way, seed: int) -> dict[str, float]:
    experiment = Experiment(
        workload=case.workload(peers, seed),
        cluster=Cluster.parse(case.cluster),
        profiles=peers / case.profiles if case.profiles else None,
        settings=Settings(
            model="pollux" if case.profiles else "geminid",
            rescale_s=way.rescale_s,
            estimate_error=way.estimate_error,
            seed=seed,
        ),
        seed=seed,
    )
    result = simulate(policy, experiment)
    return {name: float(result[name]) for name in (*MEASURES, "rescales_per_job")}


def _row(case: Case, way: Way, ours: Mapping[str, float], theirs: Mapping[str, float]) -> QualityRow:
    avg, median, p99, makespan, ratio = (ours[name] / theirs[name] - 1.0 for name in MEASURES)
    return QualityRow(
        case.family,
        case.name,
        way.name,
        case.baseline,
        ours["avg_jct_s"],
        avg,
        median,
        p99,
        makespan,
        ratio,
        ours["rescales_per_job"],
        theirs["rescales_per_job"],
    )


def _mean(rows: Sequence[QualityRow]) -> QualityRow:
    first = rows[0]

    def mean(name: str) -> float:
        return float(np.mean([getattr(row, name) for row in rows]))

    return QualityRow(
        first.family,
        f"mean of {len(rows)}",
        first.way,
        first.baseline,
        mean("avg_jct_s"),
        mean("avg_jct"),
        mean("median_jct"),
        mean("p99_jct"),
        mean("makespan"),
        mean("worst_ftf"),
        mean("rescales_per_job"),
        mean("baseline_rescales_per_job"),
    )


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        results = None
    if not isinstance(results, dict):
        raise InvalidInput([Problem("baseline-json", str(path), "must be a file that an earlier run has written")])
    return results


def _write(path: Path | None, results: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
