"""What each step brings to Gavel's objectives on a workload of our own, whose jobs can tune themselves.

From fractions that know nothing of GPU types, to known throughputs, to pairs of jobs on the same slots, to goodputs of
jobs that choose their batch size (which Gavel does not have), to both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from geminid.cluster import Cluster
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads.generate import built_in_workload

CLUSTER = "v100:2x4,a100-40gb:1x8,t4:4x4"

FAIR = "max-min fairness"

#: Policies of one objective: unaware of GPU types, aware of them, and with pairs.
OBJECTIVES = {
    FAIR: ("max_min_fairness", "max_min_fairness_perf", "max_min_fairness_packed"),
    "water filling": (
        "max_min_fairness_water_filling",
        "max_min_fairness_water_filling_perf",
        "max_min_fairness_water_filling_packed",
    ),
    "finish-time fairness": (
        "finish_time_fairness",
        "finish_time_fairness_perf",
        "finish_time_fairness_packed",
    ),
    "makespan": ("min_total_duration", "min_total_duration_perf", "min_total_duration_packed"),
    "total throughput": (None, "max_sum_throughput_perf", "max_sum_throughput_packed"),
    "FIFO": ("fifo_agnostic", "fifo_perf", "fifo_packed"),
}

#: Which of an objective's policies, and whether jobs tune themselves.
STEPS = {
    "unaware of GPU types": (0, False),
    "aware": (1, False),
    "aware, sharing": (2, False),
    "aware, adaptive": (1, True),
    "aware, sharing, adaptive": (2, True),
}


@dataclass(frozen=True, slots=True)
class ObjectiveRow:
    """One policy on the workload: means over the seeds, and its mean JCT relative to the aware one's.

    That of all seeds together, and the lowest and highest of one seed; ``makespan_to_fair`` is relative to max-min
    fairness of the same step.
    """

    objective: str
    step: str
    policy: str
    avg_jct_s: float
    makespan_s: float
    gpu_hours: float
    jct_to_aware: float
    jct_to_aware_lowest: float
    jct_to_aware_highest: float
    makespan_to_fair: float | None


def run(
    *,
    workload: str = "small",
    load: float = 1.0,
    cluster: str = CLUSTER,
    rescale_s: float = 1.0,
    seeds: Sequence[int] = (0,),
    only: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[ObjectiveRow]:
    """Simulate every step of every objective (or ``only`` one) on the same workloads."""
    rows: list[ObjectiveRow] = []
    fair_s: dict[str, float] = {}
    for objective, policies in OBJECTIVES.items():
        if only is not None and only != objective:
            continue
        found: dict[str, list[dict[str, Any]]] = {}
        for step, (which, adaptive) in STEPS.items():
            policy = policies[which]
            if policy is None:
                continue
            text = f"{policy}:adaptive=true" if adaptive else policy
            progress(text)
            results = [
                simulate(
                    text,
                    Experiment(
                        workload=built_in_workload(workload, seed=seed, load=load),
                        cluster=Cluster.parse(cluster),
                        settings=Settings(rescale_s=rescale_s, seed=seed),
                        seed=seed,
                    ),
                )
                for seed in seeds
            ]
            found[step] = results
        aware_s = _mean(found["aware"], "avg_jct_s")
        one_by_one = {
            step: [r["avg_jct_s"] / aware["avg_jct_s"] for r, aware in zip(results, found["aware"], strict=True)]
            for step, results in found.items()
        }
        if objective == FAIR:
            fair_s = {step: _mean(results, "makespan_s") for step, results in found.items()}
        rows += [
            ObjectiveRow(
                objective=objective,
                step=step,
                policy=str(policies[STEPS[step][0]]),
                avg_jct_s=_mean(results, "avg_jct_s"),
                makespan_s=_mean(results, "makespan_s"),
                gpu_hours=_mean(results, "gpu_hours"),
                jct_to_aware=_mean(results, "avg_jct_s") / aware_s,
                jct_to_aware_lowest=min(one_by_one[step]),
                jct_to_aware_highest=max(one_by_one[step]),
                makespan_to_fair=_mean(results, "makespan_s") / fair_s[step] if step in fair_s else None,
            )
            for step, results in found.items()
        ]
    return rows


def _mean(results: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([result[key] for result in results]))
