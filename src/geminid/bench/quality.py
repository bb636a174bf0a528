"""Is the geminid policy better than those it was made to beat? All in one simulator, profiles and costs of a change.

First at equal cost: every policy pays the published cold costs of a change of slots. Then live: ours pays what a live
rescale costs, the baseline keeps the cold costs that it was published with. And with estimates that are wrong. What
could be won by better decisions between jobs is shown by every job alone on the whole cluster.

A policy's constants must not be chosen for single traces: resampled workloads have the jobs and the arrivals of a
trace, both resampled.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
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
    resample: int | None = None

    def workload(self, peers: Path, seed: int) -> Workload:
        """The jobs."""
        if self.path is None:
            workload = built_in_workload("day", seed=seed, load=self.load)
        else:
            workload = load_workload(peers / self.path)
        return workload if self.resample is None else resampled(workload, self.resample)

    def resampled(self, number: int) -> Case:
        """The same with jobs and arrivals resampled."""
        return replace(self, name=f"{self.name}~{number}", family=f"{self.family}, resampled", resample=number)


#: Arrivals of resampled workloads are moved by up to this much, so that those drawn twice do not come together.
RESAMPLED_WITHIN_S = 300.0


def resampled(workload: Workload, number: int) -> Workload:
    """As many jobs, drawn with replacement from the workload's, at as many times, drawn from its arrivals."""
    rng = np.random.default_rng(number)
    count = len(workload.jobs)
    picked = rng.integers(0, count, count)
    arrivals_s = rng.choice([job.submit_s for job in workload.jobs], count)
    arrivals_s = np.sort(arrivals_s + rng.uniform(0.0, RESAMPLED_WITHIN_S, count))
    jobs = [
        replace(
            workload.jobs[index], name=f"{place:03d}-{workload.jobs[index].name}", submit_s=float(arrivals_s[place])
        )
        for place, index in enumerate(picked.tolist())
    ]
    return replace(workload, jobs=tuple(jobs))


#: Time between the arrivals of jobs that are to run alone, in seconds.
ALONE_FOR_S = 1e6


def one_by_one(workload: Workload) -> Workload:
    """The same jobs, each coming when the one before is long done."""
    jobs = (replace(job, submit_s=ALONE_FOR_S * place) for place, job in enumerate(workload.jobs))
    return replace(workload, jobs=tuple(jobs))


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running our policy: what a change costs, and how wrong jobs are about what they have to do.

    ``alone``: every job has the cluster to itself, which says nothing about makespans and fairness.
    """

    name: str
    rescale_s: float | None = None
    estimate_error: float | None = 0.0
    alone: bool = False


#: Over the workloads, mean JCTs are to differ by this from the baselines': at equal cost of changes, and live.
GOAL_EQUAL = -0.10
GOAL_LIVE = -0.30

EQUAL = Way("equal cost")
LIVE = Way("live", LIVE_RESCALE_S)
ALONE = Way("live, every job alone on the cluster", LIVE_RESCALE_S, alone=True)
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
    makespan: float | None
    worst_ftf: float | None
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


#: What a quick run simulates: a tenth of a day's jobs on few slots.
QUICK_CASES = (Case("built-in", "day-0.1", "sia", "v100:2x4,a100-40gb:1x8,t4:2x4", load=0.1),)


@dataclass(frozen=True, slots=True)
class _Task:
    """One simulation."""

    policy: str
    case: Case
    way: Way
    is_baseline: bool = False

    def run(self, peers: Path, seed: int) -> dict[str, float]:
        case, way = self.case, self.way
        workload = case.workload(peers, seed)
        experiment = Experiment(
            workload=one_by_one(workload) if way.alone else workload,
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
        result = simulate(self.policy, experiment)
        return {name: float(result[name]) for name in (*MEASURES, "rescales_per_job")}


def run(
    peers: Path,
    *,
    policy: str,
    only: Sequence[str],
    wrong_estimates: bool,
    baselines: Path | None,
    seed: int,
    progress: Callable[[str], None],
    resamples: int = 0,
    workers: int = 1,
    alone: bool = False,
    known: Sequence[Case] | None = None,
) -> list[QualityRow]:
    """Simulate every case (or those of ``known``) whose files are there and whose name begins with one of ``only``.

    ``alone`` adds what jobs would reach alone on the cluster; ``resamples`` is the number of resampled workloads added
    for each; ``workers`` simulations run at a time. Results of baselines are read from and added to a JSON file, if one
    is given.
    """
    known = known if known is not None else list(cases())
    chosen = [case for case in known if not only or any(case.name.startswith(name) for name in only)]
    chosen = [case for case in chosen if case.path is None or (peers / case.path).is_file()]
    if not chosen:
        names = ", ".join(case.name for case in known)
        raise InvalidInput([Problem("workload", ",".join(only) or NOT_SHOWN, f"must be one of {names}, and be there")])
    chosen += [case.resampled(number) for number in range(1, resamples + 1) for case in chosen]
    ways = (EQUAL, LIVE, *((ALONE,) if alone else ()), *(WRONG_ESTIMATES if wrong_estimates else ()))
    known_results = _read(baselines)
    keys = {case.name: f"{case.baseline} on {case.name}, seed {seed}" for case in chosen}
    theirs = {case.name: known_results.get(keys[case.name]) for case in chosen}
    todo = [_Task(case.baseline, case, EQUAL, is_baseline=True) for case in chosen if theirs[case.name] is None]
    todo += [_Task(policy, case, way) for way in ways for case in chosen]
    ours: dict[tuple[str, str], dict[str, float]] = {}
    for done, (task, result) in enumerate(_results(todo, peers, seed, workers), start=1):
        progress(f"{done} of {len(todo)} simulations done")
        if task.is_baseline:
            theirs[task.case.name] = known_results[keys[task.case.name]] = result
            _write(baselines, known_results)
        else:
            ours[task.case.name, task.way.name] = result
    rows: list[QualityRow] = []
    for way in ways:
        of_way = [_row(case, way, ours[case.name, way.name], theirs[case.name] or {}) for case in chosen]
        rows += of_way
        for family in dict.fromkeys(row.family for row in of_way):
            members = [row for row in of_way if row.family == family]
            if len(members) > 1:
                rows.append(_mean(members))
    return rows


def mean_change(rows: Sequence[QualityRow], way: Way) -> float:
    """By how much mean JCTs differ from the baselines', on average over the workloads."""
    return float(np.mean([row.avg_jct for row in rows if row.way == way.name and not row.workload.startswith("mean")]))


def _results(tasks: Sequence[_Task], peers: Path, seed: int, workers: int) -> Iterator[tuple[_Task, dict[str, float]]]:
    """The tasks with their results, in the order in which they are done."""
    if workers == 1:
        for task in tasks:
            yield task, task.run(peers, seed)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(task.run, peers, seed): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


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
        None if way.alone else makespan,
        None if way.alone else ratio,
        ours["rescales_per_job"],
        theirs["rescales_per_job"],
    )


def _mean(rows: Sequence[QualityRow]) -> QualityRow:
    first = rows[0]

    def mean(name: str) -> Any:
        values = [getattr(row, name) for row in rows]
        return None if None in values else float(np.mean(values))

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
