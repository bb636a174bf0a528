"""What the report shows, as compact plain data: where time went, distributions, series over time, packed timelines.

Times in the packed data are whole tenths of a second, and shares whole per mille: a page of 10,000 jobs stays small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.gputypes import LinkClass
from geminid.network import WHERE
from geminid.sim.workload import TraceJob, Workload

Array = NDArray[np.float64]
Job = Mapping[str, Any]
Stint = Mapping[str, Any]

#: Points of a distribution and steps of a series: more than a screen can show.
MAX_CDF_POINTS: Final = 400
SERIES_STEPS: Final = 800

#: Applications shown one by one; the rarer ones share a row.
MAX_APPLICATIONS: Final = 12
OTHERS: Final = "others"
NO_APPLICATION: Final = "no application"

#: Stints of one policy on a page. Beyond, changes of the batch size are merged, the smallest first.
MAX_STINTS: Final = 200_000
MERGED_BATCH_RATIOS: Final = (1.1, 1.25, 1.5, 2.0, float("inf"))


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Where a job's time went between its submission and its end, in seconds; the parts add up to the whole."""

    queued_s: float
    paused_s: float
    useful_s: float
    scaling_s: float
    statistics_s: float

    @property
    def total_s(self) -> float:
        """The whole time: the JCT of a job that is done."""
        return self.queued_s + self.paused_s + self.useful_s + self.scaling_s + self.statistics_s

    @classmethod
    def of(cls, job: Job, horizon_s: float) -> TimeSpent:
        """Of a job with stints; one that never ended is followed until ``horizon_s``."""
        held = paused = useful = scaling = statistics = 0.0
        for stint in job["stints"]:
            stint_s = stint["end_s"] - stint["start_s"]
            pause_s = min(max(stint["works_from_s"] - stint["start_s"], 0.0), stint_s)
            working_s = stint_s - pause_s
            lost_to_scaling_s = working_s * stint["lost_to_scaling_share"]
            lost_to_statistics_s = working_s * stint["lost_to_statistics_share"]
            held += stint_s
            paused += pause_s
            scaling += lost_to_scaling_s
            statistics += lost_to_statistics_s
            useful += working_s - lost_to_scaling_s - lost_to_statistics_s
        return cls(max(end_s(job, horizon_s) - job["submission_s"] - held, 0.0), paused, useful, scaling, statistics)


def end_s(job: Job, horizon_s: float) -> float:
    """When the job left the system, or when the page stops looking."""
    return float(job["completion_s"]) if job["completion_s"] is not None else max(horizon_s, job["submission_s"])


def horizon_s(jobs: Iterable[Job]) -> float:
    """When the last thing happens."""
    last_s = 0.0
    for job in jobs:
        stints = job["stints"]
        last_s = max(last_s, job["completion_s"] or 0.0, job["submission_s"], stints[-1]["end_s"] if stints else 0.0)
    return last_s


# --- The page as a whole ---


def overview(workload: Workload, cluster: Cluster, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is drawn at once: the jobs, the cluster, and per policy its distributions, series and averages."""
    groups, group_of_job = _application_groups(workload.jobs)
    types = gpu_types(cluster, results)
    runs = [_jobs_in_order(workload, result) for result in results]
    horizons = [horizon_s(jobs) for jobs in runs]
    names = [application_of(job) for job in workload.jobs]
    applications = list(dict.fromkeys(names))
    index = {name: i for i, name in enumerate(applications)}
    return {
        "slots": cluster.total_slots,
        "types": [{"name": name, "slots": cluster.slots_per_type.get(name, 0)} for name in types],
        "nodes": [node.name for node in cluster.nodes],
        **_racks(cluster),
        "applications": applications,
        "sync_times": [_sync_times(name, results) for name in applications],
        "groups": groups,
        "jobs": {
            "name": [job.name for job in workload.jobs],
            "application": [index[name] for name in names],
            "submitted": [tenths(job.submit_s) for job in workload.jobs],
            "asked": [job.requested_slots for job in workload.jobs],
        },
        "horizon": tenths(max(horizons, default=0.0)),
        "policies": [
            _policy(str(result["policy"]), jobs, until_s, types, (len(groups), group_of_job))
            for result, jobs, until_s in zip(results, runs, horizons, strict=True)
        ],
    }


def _sync_times(application: str, results: Sequence[Mapping[str, Any]]) -> str | None:
    """Where an application's synchronisation times come from, in words; None where all are as profiled."""
    by_tier = next((found for run in results if (found := _setup(run).get("sync_times", {}).get(application))), None)
    if by_tier is None:
        return None
    return "; ".join(f"{WHERE[LinkClass(tier)]}: {source}" for tier, source in by_tier.items())


def _setup(result: Mapping[str, Any]) -> Mapping[str, Any]:
    setup: Mapping[str, Any] = result.get("setup", {})
    return setup


def _racks(cluster: Cluster) -> dict[str, Any]:
    """The racks with their zones, each node's rack and number of slots; nothing where all stand in one."""
    if len(cluster.racks) < 2:
        return {"racks": [], "rack": [], "node_slots": []}
    zones = {node.rack: node.zone for node in cluster.nodes}
    return {
        "racks": [{"name": rack, "zone": zones[rack]} for rack in cluster.racks],
        "rack": cluster.node_rack.tolist(),
        "node_slots": cluster.node_slots.tolist(),
    }


def _policy(
    name: str, jobs: list[Job], until_s: float, types: Sequence[str], groups: tuple[int, list[int]]
) -> dict[str, Any]:
    jct = np.array([np.nan if job["jct_s"] is None else job["jct_s"] for job in jobs])
    done = ~np.isnan(jct)
    spent = [TimeSpent.of(job, until_s) for job in jobs if job["jct_s"] is not None]
    n_groups, group_of_job = groups
    members = np.array(group_of_job, dtype=int)
    return {
        "name": name,
        "unfinished": int((~done).sum()),
        "horizon": tenths(until_s),
        "cdf": cdf(jct[done], len(jobs)),
        "boxes": [_box(jct[done & (members == group)]) for group in range(n_groups)],
        "series": series(jobs, until_s, types),
        "spent": [
            round(float(np.mean([getattr(s, part) for s in spent])), 2) if spent else 0.0
            for part in TimeSpent.__dataclass_fields__
        ],
    }


def _jobs_in_order(workload: Workload, result: Mapping[str, Any]) -> list[Job]:
    """The jobs of one run in the order of the workload, so that an index means the same job under every policy."""
    by_name = {job["name"]: job for job in result["per_job"]}
    jobs = [by_name[job.name] for job in workload.jobs]
    if any("stints" not in job for job in jobs):
        raise ValueError(f"the results of {result['policy']} have no stints; simulate with stints=True")
    return jobs


def application_of(job: TraceJob) -> str:
    """The application's name, or words for jobs that have none."""
    return job.application or NO_APPLICATION


def _application_groups(jobs: Sequence[TraceJob]) -> tuple[list[str], list[int]]:
    """Rows of the plot by application, the most frequent first, and each job's row."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[application_of(job)] = counts.get(application_of(job), 0) + 1
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    shown = ranked if len(ranked) <= MAX_APPLICATIONS else [*ranked[: MAX_APPLICATIONS - 1], OTHERS]
    row = {name: min(i, len(shown) - 1) for i, name in enumerate(ranked)}
    return shown, [row[application_of(job)] for job in jobs]


def gpu_types(cluster: Cluster, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cluster's GPU types in its order, and whatever else jobs ran on."""
    used = {s["gpu_type"] for result in results for job in result["per_job"] for s in job.get("stints", ())}
    return [*cluster.type_index, *sorted(used - set(cluster.type_index))]


# --- Distributions ---


def cdf(values: Array, of: int) -> list[list[float]]:
    """Points of the empirical distribution, times and per mille of ``of`` jobs; exact when there are few values."""
    if not values.size:
        return [[], []]
    ordered = np.sort(values)
    at = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), MAX_CDF_POINTS)).round().astype(int))
    return [[round(float(x), 1) for x in ordered[at]], [round(1000.0 * (int(i) + 1) / of, 2) for i in at]]


def _box(values: Array) -> list[float]:
    """Number of values, then their 5th, 25th, 50th, 75th and 95th percentiles."""
    if not values.size:
        return [0]
    return [len(values), *(round(float(q), 1) for q in np.percentile(values, (5, 25, 50, 75, 95)))]


# --- Series over time ---


def series(jobs: Sequence[Job], until_s: float, types: Sequence[str]) -> dict[str, Any]:
    """Mean slots held per GPU type, and mean jobs running and queued, in equal steps from 0 to ``until_s``."""
    edges = np.linspace(0.0, until_s, SERIES_STEPS + 1)
    starts, ends, slots, kinds = [], [], [], []
    index = {name: i for i, name in enumerate(types)}
    for job in jobs:
        for stint in job["stints"]:
            starts.append(stint["start_s"])
            ends.append(stint["end_s"])
            slots.append(stint["slots"] * (0.5 if "partner" in stint else 1.0))
            kinds.append(index[stint["gpu_type"]])
    start, end, held, kind = np.array(starts), np.array(ends), np.array(slots, dtype=float), np.array(kinds, dtype=int)
    arrivals = np.array([job["submission_s"] for job in jobs])
    departures = np.array([end_s(job, until_s) for job in jobs])
    running = _mean_level(start, end, np.ones(len(start)), edges)
    present = _mean_level(arrivals, departures, np.ones(len(jobs)), edges)
    return {
        "step_s": until_s / SERIES_STEPS,
        "held": [
            _rounded(_mean_level(start[kind == i], end[kind == i], held[kind == i], edges)) for i in range(len(types))
        ],
        "running": _rounded(running),
        "queued": _rounded(np.maximum(present - running, 0.0)),
    }


def _mean_level(start: Array, end: Array, height: Array, edges: Array) -> Array:
    """Mean over each interval between edges of a sum of rectangles (exact: their integral is piecewise linear)."""
    if not start.size or edges[-1] <= edges[0]:
        return np.zeros(len(edges) - 1)
    times, at = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.bincount(at, weights=np.concatenate([height, -height]), minlength=len(times))
    level = np.cumsum(change)
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    mean: Array = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return mean


def _rounded(values: Array) -> list[float]:
    return [int(v) if v == int(v) else v for v in np.maximum(values, 0.0).round(2).tolist()]


# --- Timelines, read by the page only when they are looked at ---


def job_table(workload: Workload, result: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Per job what became of it under one policy; -1 for a time that never came."""
    jobs = _jobs_in_order(workload, result)
    until_s = horizon_s(jobs)
    spent = [TimeSpent.of(job, until_s) for job in jobs]
    return {
        "started": [tenths(job["start_s"]) for job in jobs],
        "completed": [tenths(job["completion_s"]) for job in jobs],
        "queued": [tenths(s.queued_s) for s in spent],
        "paused": [tenths(s.paused_s) for s in spent],
        "useful": [tenths(s.useful_s) for s in spent],
        "scaling": [tenths(s.scaling_s) for s in spent],
        "statistics": [tenths(s.statistics_s) for s in spent],
        "gpu_s": [round(job["gpu_s"]) for job in jobs],
        "rescales": [job["rescales"] for job in jobs],
        "ftf": [_known(job["ftf"]) for job in jobs],
        "communication": [_per_mille(job.get("communication_share")) for job in jobs],
    }


def _known(ratio: float | None) -> float | None:
    return None if ratio is None or not math.isfinite(ratio) else round(ratio, 3)


def _per_mille(share: float | None) -> int | None:
    return None if share is None else round(1000 * share)


def timelines(
    workload: Workload, result: Mapping[str, Any], types: Sequence[str], *, max_stints: int = MAX_STINTS
) -> dict[str, Any]:
    """All stints of one policy, one column per field, job after job.

    ``gap`` is the time since the job's last stint (the first one's: since its submission), ``pause`` the part of
    ``for`` before work begins; ``at`` points into ``allocations`` ([GPU type, node, slots, node, slots, …]).
    """
    jobs = _jobs_in_order(workload, result)
    per_job, ratio = _within_budget([job["stints"] for job in jobs], max_stints)
    kind = {name: i for i, name in enumerate(types)}
    allocations: dict[tuple[int, ...], int] = {}
    columns: dict[str, list[int]] = {
        name: [] for name in ("gap", "pause", "for", "at", "total", "per_slot", "accumulation", "scaling", "statistics")
    }
    gap, pause, length, at, total, per_slot, accumulation, scaling, statistics = columns.values()
    for job, stints in zip(jobs, per_job, strict=True):
        last = tenths(job["submission_s"])
        for stint in stints:
            start, works_from, end = tenths(stint["start_s"]), tenths(stint["works_from_s"]), tenths(stint["end_s"])
            pairs = zip(stint["nodes"], stint["slots_per_node"], strict=True)
            allocation = (kind[stint["gpu_type"]], *(number for pair in pairs for number in pair))
            gap.append(start - last)
            pause.append(min(max(works_from - start, 0), end - start))
            length.append(end - start)
            at.append(allocations.setdefault(allocation, len(allocations)))
            total.append(stint["total_batch"] or 0)
            per_slot.append(stint["per_slot_batch"] or 0)
            accumulation.append(stint["accumulation_steps"] or 0)
            scaling.append(round(1000 * stint["lost_to_scaling_share"]))
            statistics.append(round(1000 * stint["lost_to_statistics_share"]))
            last = end
    return {
        "stints": [len(stints) for stints in per_job],
        "allocations": list(allocations),
        "merged_below": None if ratio is None else ("any" if ratio == float("inf") else ratio),
        **columns,
    }


def _within_budget(per_job: list[Sequence[Stint]], budget: int) -> tuple[list[Sequence[Stint]], float | None]:
    """Merge changes of the batch size below a ratio, the smallest that keeps the number of stints within the budget."""
    if sum(map(len, per_job)) <= budget:
        return per_job, None
    for ratio in MERGED_BATCH_RATIOS:
        per_job = [merge_batches(stints, ratio) for stints in per_job]
        if sum(map(len, per_job)) <= budget:
            break
    return per_job, ratio


def merge_batches(stints: Sequence[Stint], ratio: float) -> Sequence[Stint]:
    """Join neighbours on the same slots whose batch sizes differ by less than a ratio; lost shares are averaged."""
    merged: list[dict[str, Any]] = []
    for stint in stints:
        last = merged[-1] if merged else None
        if last is None or not _alike(last["total_batch"], stint["total_batch"], ratio) or not _same_slots(last, stint):
            merged.append(dict(stint))
            continue
        before = last["end_s"] - last["works_from_s"]
        after = stint["end_s"] - stint["works_from_s"]
        for share in ("useful_share", "lost_to_scaling_share", "lost_to_statistics_share"):
            if before + after > 0:
                last[share] = (before * last[share] + after * stint[share]) / (before + after)
        if stint["works_from_s"] > stint["start_s"]:  # the pause of the last one went on
            last["works_from_s"] = stint["works_from_s"]
        last["end_s"] = stint["end_s"]
    return merged


def _same_slots(last: Stint, stint: Stint) -> bool:
    joined = bool(last["end_s"] == stint["start_s"])
    same = joined and last["nodes"] == stint["nodes"] and last["slots_per_node"] == stint["slots_per_node"]
    pause_goes_on = last["works_from_s"] >= last["end_s"]
    return same and (pause_goes_on or stint["works_from_s"] <= stint["start_s"])


def _alike(first: int | None, second: int | None, ratio: float) -> bool:
    if not first or not second:
        return first == second
    return max(first, second) / min(first, second) < ratio


def tenths(seconds: float | None) -> int:
    """Whole tenths of a second; -1 for a time that never came."""
    return -1 if seconds is None else round(10.0 * seconds)
