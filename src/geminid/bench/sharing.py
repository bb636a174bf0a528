"""What sharing slots brings to the geminid policy, by what may be changed about the jobs.

Many small jobs on few GPUs: where there are slots for everybody, nobody shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from geminid.cluster import Cluster
from geminid.job import Adaptivity
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads.generate import SizeCategory, generate_workload

CLUSTERS = ("h200:1x4", "v100:2x4")
#: Number of jobs of a workload.
JOBS = 40

#: Time over which they arrive, in hours.
HOURS = 1.0

SIZES = {SizeCategory.SMALL: 0.8, SizeCategory.MEDIUM: 0.2}
SLOTS = {1: 0.75, 2: 0.10, 4: 0.15}

#: The policy without sharing.
ALONE = "geminid:share=false"

#: The policy with sharing.
SHARED = "geminid:share_adaptive=true"
MEASURES = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "worst_ftf")


@dataclass(frozen=True, slots=True)
class SharingRow:
    """Jobs of one kind on one cluster: the mean JCT without sharing, and differences with it, means over seeds."""

    jobs: str
    cluster: str
    alone_avg_jct_s: float
    avg_jct: float
    worst_avg_jct: float
    median_jct: float
    p99_jct: float
    makespan: float
    worst_ftf: float
    alone_rescales_per_job: float
    rescales_per_job: float


def run(
    *,
    clusters: Sequence[str] = CLUSTERS,
    kinds: Sequence[Adaptivity] = tuple(Adaptivity),
    rescale_s: float | None = None,
    seeds: Sequence[int] = (1, 2, 3, 4),
    jobs: int = JOBS,
    progress: Callable[[str], None] = lambda _: None,
) -> list[SharingRow]:
    """Simulate the same workloads without and with sharing."""
    rows = []
    for cluster in clusters:
        for kind in kinds:
            found: dict[str, list[dict[str, float]]] = {ALONE: [], SHARED: []}
            for seed in seeds:
                workload = generate_workload(
                    jobs=jobs, hours=HOURS, seed=seed, sizes=SIZES, slots=SLOTS, adaptivity={kind: 1.0}
                )
                for policy, results in found.items():
                    progress(f"{kind} jobs on {cluster}, seed {seed}: {policy}")
                    experiment = Experiment(
                        workload=workload,
                        cluster=Cluster.parse(cluster),
                        settings=Settings(rescale_s=rescale_s, seed=seed),
                        seed=seed,
                    )
                    result = simulate(policy, experiment)
                    results.append({name: float(result[name]) for name in (*MEASURES, "rescales_per_job")})
            rows.append(_row(kind, cluster, found[ALONE], found[SHARED]))
    return rows


def _row(
    kind: Adaptivity, cluster: str, alone: Sequence[dict[str, float]], shared: Sequence[dict[str, float]]
) -> SharingRow:
    change = {name: [b[name] / a[name] - 1.0 for a, b in zip(alone, shared, strict=True)] for name in MEASURES}
    mean = {name: float(np.mean(values)) for name, values in change.items()}
    return SharingRow(
        jobs=kind.value,
        cluster=cluster,
        alone_avg_jct_s=float(np.mean([a["avg_jct_s"] for a in alone])),
        avg_jct=mean["avg_jct_s"],
        worst_avg_jct=max(change["avg_jct_s"]),
        median_jct=mean["median_jct_s"],
        p99_jct=mean["p99_jct_s"],
        makespan=mean["makespan_s"],
        worst_ftf=mean["worst_ftf"],
        alone_rescales_per_job=float(np.mean([a["rescales_per_job"] for a in alone])),
        rescales_per_job=float(np.mean([b["rescales_per_job"] for b in shared])),
    )
