"""CPU time of whole decisions of policies on a large cluster: 1,000 jobs of all kinds that want more than there is.

The first decision is from nothing; a later one follows reports of all running jobs, a few completions and arrivals.
Reports include step times, by which Dally finds jobs to preempt; policies with models of speeds get none, because
fitting is measured by itself.
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
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.profile import Observation
from geminid.network import Network, Uplink
from geminid.nodes import NodeGroup
from geminid.policies.base import Allocation, JobFacts, JobView
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

#: The policy whose decision about starved jobs is measured by itself, and what its row is called.
PREEMPTING, STARVED_ROW = "dally", "dally, all starved"

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

#: Batch limits of the jobs that are measured as starved: one pass of one sample.
STARVED_LIMITS = {
    name: BatchLimits(initial=1, largest=1, smallest_per_slot=1, largest_per_slot=1) for name in ("v100", "a100-40gb")
}

#: A decision should take less.
GOAL_S = 1.0

#: Later decisions that are measured; the slowest counts.
LATER = 6

#: Jobs that come and go before each of them.
CHANGES = 10

#: Seconds between them: the last ones come after the time for which Dally lets every job run.
GAP_S = 150.0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One policy: CPU seconds of fitting all models, of its first decision and of the slowest later one."""

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
        if text == PREEMPTING:
            rows.append(_measure_starved(workload, in_racks(Cluster.parse(cluster)), jobs))
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
    models_s = timed(engine.view).cpu_s
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


def _measure_starved(workload: Workload, cluster: Cluster, count: int) -> DecisionRow:
    """The same jobs on slots of two racks each, where they compute for a tenth of their time; the others wait."""
    engine = Simulator(workload, built_in_applications(), cluster, named_policy(PREEMPTING)).engine
    free = cluster.node_slots.tolist()
    for job in workload.jobs[:count]:
        size = job.requested_slots
        facts = JobFacts(
            id=job.name, submitted_s=0.0, requested_slots=size, min_slots=size, max_slots=size, limits=STARVED_LIMITS
        )
        spread = _across_racks(cluster, free, size)
        if spread is None:
            engine.take(Submitted(0.0, facts))
            continue
        seen = Observation(
            nodes=2, slots=size, busiest_node_slots=size // 2, per_slot_batch=1, accumulation_s=0.1, step_s=1.0
        )
        gpu_type = cluster.nodes[spread[0][0]].gpu_type
        engine.restore(JobView(facts=facts, allocation=spread, slots=size, gpu_type=gpu_type, observed=seen))
    first_s = _decide_s(engine)
    engine.take(Tick(LATER * GAP_S))
    return DecisionRow(STARVED_ROW, cluster.total_slots, count, 0.0, first_s, _decide_s(engine))


def _across_racks(cluster: Cluster, free: list[int], slots: int) -> Allocation | None:
    """Half of the slots on the first node that has them and half in another rack, taken from the free ones."""
    half = slots // 2
    able = [node for node, left in enumerate(free) if half and slots % 2 == 0 and left >= half]
    for first in able[:1]:
        for other in able:
            apart = cluster.node_rack[other] != cluster.node_rack[first]
            if apart and cluster.node_type[other] == cluster.node_type[first]:
                free[first] -= half
                free[other] -= half
                return (first, half), (other, half)
    return None


def _report(simulator: Simulator, at_s: float, done: float) -> None:
    """All running jobs report how far they are, this part of their work, and their step times."""
    engine = simulator.engine
    for job in list(engine.jobs.values()):
        simulated = simulator.jobs[job.id]
        if job.allocation and simulated.application is not None:
            curve = simulated.application.value.loss
            loss = None if curve is None else curve.at(done)
            speed = 0.9 if job.partner is not None else None
            seen = None if engine.policy.needs_models else _observation(simulator, job)
            engine.take(Reported(at_s, job.id, seen, None, done * simulated.work, loss, speed))


def _observation(simulator: Simulator, job: JobView) -> Observation | None:
    """The step times that a running job measures on its slots."""
    simulated = simulator.jobs[job.id]
    batch = simulated.fixed_batch(job.gpu_type or "", job.slots)
    if simulated.application is None or batch is None:
        return None
    placement = tuple(slots for _, slots in job.allocation)
    path = simulator.cluster.links.crossing(tuple(node for node, _ in job.allocation)).path
    truth = simulated.application.value.truth[job.gpu_type or ""]
    accumulation_s, step_s = truth.step_times_over(placement, batch.per_slot, path)
    return Observation(
        nodes=len(placement),
        slots=job.slots,
        busiest_node_slots=max(placement),
        per_slot_batch=batch.per_slot,
        accumulation_s=accumulation_s,
        step_s=step_s,
        link_slowdown=path.slowdown,
    )


def _decide_s(engine: Engine) -> float:
    engine.take(Tick(engine.now_s))
    _, took_s, outcome = timed(engine.decide)
    if outcome.rejected:
        raise RuntimeError(f"{engine.policy.name}: {outcome.rejected[0]}")
    return took_s
