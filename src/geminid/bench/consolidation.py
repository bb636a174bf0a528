"""Dally against full and no consolidation, on networks whose racks have narrower and narrower uplinks.

The paper compares with schedulers that consolidate, on a simulator of its own and traces that it does not publish; here
the workload is generated. All policies but Tiresias are Dally itself with its parts switched off, so that nothing else
differs: the order of the queue, the fit of a place, the pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from geminid.bench.decisions import in_racks
from geminid.cluster import Cluster
from geminid.job import Adaptivity
from geminid.sim.run import Experiment, simulate
from geminid.sim.workload import Workload
from geminid.sim.workloads.generate import SizeCategory, generate_workload

#: Largest relative change of the makespan that the paper reports, against schedulers that consolidate.
PAPER_MAKESPAN = -0.69

#: … of the average JCT.
PAPER_JCT = -0.83

#: … of the communication time, on congested networks.
PAPER_COMMUNICATION = -0.98

#: Eight racks of four nodes with four V100 each.
NODES: Final = "v100:32x4"
NODES_PER_RACK: Final = 4

#: How many times more the nodes of a rack could send than its uplink carries; None for uplinks that limit nobody.
NETWORKS: Final[tuple[float | None, ...]] = (None, 8.0, 32.0)

#: Slots that users ask for, and how much work jobs are: more of several nodes than in the usual workloads.
SLOTS: Final = {1: 0.30, 2: 0.15, 4: 0.25, 8: 0.20, 16: 0.10}
SIZES: Final = {SizeCategory.SMALL: 0.72, SizeCategory.MEDIUM: 0.22, SizeCategory.LARGE: 0.06}

DALLY: Final = "dally"
OTHERS: Final = {
    "consolidated": "dally:auto=false,node=inf,rack=inf,zone=inf,preempt=false",
    "no waiting": "dally:auto=false,node=0,rack=0,zone=0,preempt=false",
    "tiresias": "tiresias",
}


@dataclass(frozen=True, slots=True)
class ConsolidationRow:
    """One way of placing jobs on one network, means over the seeds, and by how much Dally changes each figure."""

    oversubscription: float | None
    placing: str
    avg_jct_s: float
    makespan_s: float
    communication_h: float
    communication_share: float
    dally_jct: float
    dally_makespan: float
    dally_communication: float


def workload(jobs: int, hours: float, seed: int) -> Workload:
    """Rigid jobs of the built-in applications, many of them on several nodes."""
    return generate_workload(
        jobs=jobs, hours=hours, seed=seed, slots=SLOTS, sizes=SIZES, adaptivity={Adaptivity.RIGID: 1.0}
    )


def cluster(oversubscription: float | None) -> Cluster:
    """The racks, with uplinks this narrow."""
    return in_racks(Cluster.parse(NODES), NODES_PER_RACK, oversubscription)


def run(
    *,
    jobs: int,
    hours: float,
    networks: Sequence[float | None] = NETWORKS,
    seeds: Sequence[int] = (0,),
    progress: Callable[[str], None],
) -> list[ConsolidationRow]:
    """Simulate all ways on all networks."""
    rows = []
    for network in networks:
        figures = {}
        for placing, policy in {DALLY: DALLY, **OTHERS}.items():
            progress(f"{placing}, uplinks {'wide' if network is None else f'{network:g} to 1'}")
            runs = [
                simulate(policy, Experiment(workload=workload(jobs, hours, seed), cluster=cluster(network), seed=seed))
                for seed in seeds
            ]
            figures[placing] = [_means(runs, key) for key in ("avg_jct_s", "makespan_s", "communication_s")]
            figures[placing].append(_means(runs, "communication_share"))
        dally = figures[DALLY]
        for placing, (jct_s, makespan_s, communication_s, share) in figures.items():
            changes = [ours / theirs - 1.0 for ours, theirs in zip(dally[:3], figures[placing][:3], strict=True)]
            rows.append(
                ConsolidationRow(network, placing, jct_s, makespan_s, communication_s / 3600.0, share, *changes)
            )
    return rows


def most_to_gain(*, jobs: int, hours: float, oversubscription: float | None, seeds: Sequence[int] = (0,)) -> float:
    """How much shorter JCTs of fully consolidated jobs are if all nodes are in one rack, which no uplink limits."""
    policy = OTHERS["consolidated"]
    on_network, in_one_rack = (
        _means(
            [
                simulate(policy, Experiment(workload=workload(jobs, hours, seed), cluster=nodes, seed=seed))
                for seed in seeds
            ],
            "avg_jct_s",
        )
        for nodes in (cluster(oversubscription), Cluster.parse(NODES))
    )
    return in_one_rack / on_network - 1.0


def _means(runs: Sequence[dict[str, object]], key: str) -> float:
    """The mean over runs of a figure, or of the sum over the jobs of each."""
    values = []
    for figures in runs:
        per_job = figures["per_job"]
        assert isinstance(per_job, list)
        value = figures[key] if key in figures else sum(job[key] for job in per_job)
        assert isinstance(value, float | int)
        values.append(float(value))
    return sum(values) / len(values)
