"""How long whole decisions of policies take on a large cluster: 1,000 jobs of all kinds that want more than there is.

The first decision is from nothing; a later one follows reports of all running jobs, a few completions and arrivals.
Both count everything from the view of the cluster to commands. Fitting the models of jobs that are new, for policies
that need them, is counted by itself: it is done once for each job, by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from geminid.bench.timing import timed
from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Completed, Reported, Submitted, Tick
from geminid.network import Network, Uplink
from geminid.nodes import NodeGroup
from geminid.sim.foreknowledge import add_profiles, one_slot_profiles
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.run import named_policy
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import Workload
from geminid.sim.workloads.generate import built_in_workload

#: Number of jobs.
JOBS = 1000

#: The cluster, in the short form.
CLUSTER = "v100:128x8,a100-40gb:128x8"

#: Number of jobs in a quick run.
QUICK_JOBS = 100

#: The cluster of a quick run.
QUICK_CLUSTER = "v100:16x8,a100-40gb:8x8"

#: Number of nodes in a rack.
NODES_PER_RACK = 8

#: What the nodes of a rack can send, divided by what its uplink carries.
OVERSUBSCRIPTION = 4.0

#: Policies that decide about whole jobs; Gavel's over time fractions have their own table.
POLICIES = (
    "dally",
    "gandiva",
    "antman:opportunistic=0.3",
    "slaq",
    "shockwave",
    "lucid",
    "fifo",
    "tiresias",
    "sia",
    "geminid",
)

#: A decision should take less.
GOAL_S = 1.0

#: Later decisions that are measured; the slowest counts.
LATER = 6

#: Jobs that come and go before each of them.
CHANGES = 10

#: Seconds between them.
GAP_S = 60.0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One policy: seconds of fitting all models, of its first decision and of the slowest later one."""

    policy: str
    slots: int
    jobs: int
    models_s: float
    first_s: float
    later_s: float


def run(
    *,
    jobs: int = JOBS,
    cluster: str = CLUSTER,
    policies: Iterable[str] = POLICIES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[DecisionRow]:
    """Measure every policy."""
    needed = jobs + LATER * CHANGES
    known = built_in_workload("scale", seed=seed).jobs[: 2 * needed]
    larger = sorted(range(len(known)), key=lambda i: -known[i].requested_slots)[:needed]
    workload = Workload("scale", tuple(replace(known[i], submit_s=0.0) for i in sorted(larger)))
    rows = []
    for text in policies:
        progress(f"{text}, {jobs} jobs …")
        rows.append(_measure(text, workload, in_racks(Cluster.parse(cluster)), jobs))
    return rows


def in_racks(
    cluster: Cluster, nodes_per_rack: int = NODES_PER_RACK, oversubscription: float | None = OVERSUBSCRIPTION
) -> Cluster:
    """The nodes of a cluster, divided over racks of their type; without oversubscription no uplink limits anybody."""
    counts, slots = cluster.nodes_per_type, cluster.largest_node_slots
    groups = [
        NodeGroup(gpu_type=name, count=counts[name], slots=slots[name], nodes_per_rack=nodes_per_rack)
        for name in cluster.nodes_of_type
    ]
    uplink = None if oversubscription is None else Uplink(oversubscription=oversubscription)
    return Cluster.of_groups(groups, cluster.gpu_types, Network(rack_uplink=uplink))


def _measure(text: str, workload: Workload, cluster: Cluster, count: int) -> DecisionRow:
    policy = named_policy(text)
    simulator = Simulator(workload, built_in_applications(), cluster, policy, Settings(rescale_s=1.0))
    engine, coming = simulator.engine, list(simulator.jobs.values())

    def arrive(number: int, at_s: float) -> None:
        for job in coming[:number]:
            if policy.brings_profiles:
                add_profiles(engine.models, job.facts.id, one_slot_profiles(job))
            engine.take(Submitted(at_s, job.facts))
        del coming[:number]

    arrive(count, 0.0)
    models_s = timed(engine.view).wall_s
    first_s = _decide_s(engine)
    later_s = 0.0
    for turn in range(1, LATER + 1):
        at_s = GAP_S * turn
        _report(simulator, at_s, turn / (2 * LATER))
        for job_id in [job.id for job in engine.jobs.values() if job.allocation][:CHANGES]:
            engine.take(Completed(at_s, job_id))
        arrive(CHANGES, at_s)
        later_s = max(later_s, _decide_s(engine))
    return DecisionRow(text, cluster.total_slots, count, models_s, first_s, later_s)


def _report(simulator: Simulator, at_s: float, done: float) -> None:
    """All running jobs report that this part of their work is done."""
    engine = simulator.engine
    for job in list(engine.jobs.values()):
        simulated = simulator.jobs[job.id]
        if job.allocation and simulated.application is not None:
            curve = simulated.application.value.loss
            loss = None if curve is None else curve.at(done)
            speed = 0.9 if job.partner is not None else None
            report = Reported(at_s, job.id, progress=done * simulated.work, loss=loss, relative_speed=speed)
            engine.take(report)


def _decide_s(engine: Engine) -> float:
    engine.take(Tick(engine.now_s))
    took_s, _, outcome = timed(engine.decide)
    if outcome.rejected:
        raise RuntimeError(f"{engine.policy.name}: {outcome.rejected[0]}")
    return took_s
