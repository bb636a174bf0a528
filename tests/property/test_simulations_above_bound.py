"""No policy of ours is better in the simulator than the bound, and no stint is faster than the rates it is made of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.cluster import Cluster
from geminid.job import Adaptivity
from geminid.policies.gavel.timesharing import TimeSharingPolicy
from geminid.sim.bound.instance import instance
from geminid.sim.bound.rates import Rates, least_busy
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.profiles.gavel import ThroughputTable, TypeThroughputs
from geminid.sim.run import named_policy
from geminid.sim.settings import Settings
from geminid.sim.sharing import ApplicationSharing
from geminid.sim.simjob import SimJob
from geminid.sim.simulator import Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.solve.bound import jct_bound, makespan_bound

#: Few steps of the search make many workloads quick; the bound holds all the same.
FEW_STEPS = 10

ALONE = ("geminid", "sia", "srtf", "optimus", "tiresias")
SHARING = ("gandiva", "lucid", "antman:opportunistic=0.4", "geminid:share_adaptive=true")

CLUSTERS = ("v100:2x4", "v100:1x4,t4:2x2", "v100:1x3,v100:1x8", "a100-40gb:4x1", "t4:3x2,a100-40gb:1x4")

RACKS = """
nodes:
  - {type: v100, count: 2, slots: 4, rack: a}
  - {type: v100, count: 1, slots: 4, rack: b}
network: {rack: 50GB/s, zone: 0.6GB/s}
"""


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Built-in applications, whose early epochs are slow to scale, of all adaptivities, and commands of a length."""
    jobs = []
    for i in range(draw(st.integers(1, 8))):
        is_opaque = draw(st.integers(0, 3)) == 0
        application = draw(st.sampled_from(["resnet18-cifar10", "neumf-ml20m", "lstm-wikitext2"]))
        adaptivity = Adaptivity.RIGID if is_opaque else draw(st.sampled_from(Adaptivity))
        jobs.append(
            TraceJob(
                name=f"j{i}",
                submit_s=draw(st.sampled_from([0.0, 1.0, 60.0])) * draw(st.integers(0, 30)),
                requested_slots=draw(st.integers(1, 4)),
                application=None if is_opaque else application,
                duration_s=draw(st.floats(1.0, 2000.0)) if is_opaque else None,
                adaptivity=adaptivity,
                opportunistic=draw(st.booleans()),
            )
        )
    return Workload("drawn", tuple(sorted(jobs, key=lambda job: job.submit_s)))


def best_rates(simulator: Simulator, *, sharing: bool) -> Mapping[str, tuple[SimJob, Rates]]:
    jobs = [job for job in simulator.jobs.values() if job.application is not None]
    model = simulator.engine.sharing
    assert isinstance(model, ApplicationSharing)
    busy = least_busy([[job] for job in jobs], simulator.cluster, model)
    rates = Rates(simulator.cluster, model if sharing else None, busy)
    return {job.facts.id: (job, rates) for job in jobs}


def check_stints(simulator: Simulator, *, sharing: bool) -> None:
    """Every stint is at most as fast, in every epoch, as the modes of its slots say."""
    index = simulator.cluster.type_index
    for job, rates in best_rates(simulator, sharing=sharing).values():
        modes = rates.modes([job])
        for stint in job.stints:
            used = sum(stint.placement) * (0.5 if stint.partner is not None and stint.cap == 1.0 else 1.0)
            same = (modes.slots == used) & (modes.gpu_type == index[stint.gpu_type])
            partner = simulator.jobs[stint.partner] if stint.partner is not None else None
            if partner is not None and any(other.cap < 1.0 for other in partner.stints):
                continue  # a partner that computes part of the time leaves more: the two of them are one mixture
            assert np.all(job._rates(stint) <= modes.rates[:, same].max(axis=1) * (1 + 1e-9))


def check(policy: str, workload: Workload, cluster: Cluster, world: Settings) -> None:
    simulator = Simulator(workload, built_in_applications(), cluster, named_policy(policy), world)
    result = simulator.run()
    assert all(job.completed_s is not None for job in result.jobs)
    total_s = sum(job.completed_s - job.facts.submitted_s for job in result.jobs if job.completed_s is not None)
    last_s = max(job.completed_s for job in result.jobs if job.completed_s is not None)
    shared = any(stint.partner is not None for job in result.jobs for stint in job.stints)
    problem = instance(simulator, sharing=shared)
    assert jct_bound(problem, steps=FEW_STEPS) <= total_s
    assert makespan_bound(problem) <= last_s
    check_stints(simulator, sharing=shared)


@pytest.mark.parametrize("policy", [*ALONE, *SHARING])
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(
    workload=workloads(),
    cluster=st.sampled_from(CLUSTERS),
    rescale_s=st.sampled_from([None, 0.0, 1.0, 20.0]),
    model=st.sampled_from(["geminid", "pollux"]),
)
def test_no_policy_is_better(
    policy: str, workload: Workload, cluster: str, rescale_s: float | None, model: str
) -> None:
    check(policy, workload, Cluster.parse(cluster), Settings(rescale_s=rescale_s, model=model))


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(workload=workloads(), mtbf_s=st.sampled_from([None, 3000.0]), interference=st.sampled_from([0.0, 0.3]))
def test_nor_across_racks_with_faster_links_failures_and_interference(
    workload: Workload, mtbf_s: float | None, interference: float
) -> None:
    world = Settings(rescale_s=1.0, node_mtbf_s=mtbf_s, repair_s=300.0, interference=interference)
    check("geminid", workload, Cluster.from_yaml(RACKS), world)


@st.composite
def tables(draw: st.DrawFn) -> tuple[ThroughputTable, Workload]:
    """Job types with speeds alone, spread and in pairs, some of them faster beside a partner than alone."""
    kinds = [(f"model {i}", draw(st.sampled_from([1, 1, 2]))) for i in range(draw(st.integers(1, 3)))]
    speed = st.floats(0.2, 5.0)
    by_type = {}
    for gpu_type in ("v100", "t4"):
        alone = {kind: draw(speed) for kind in kinds}
        pairs = {}
        for a in kinds:
            for b in kinds:
                if a[1] == b[1] and draw(st.booleans()):
                    pairs[a, b] = (alone[a] * draw(st.floats(0.2, 1.2)), alone[b] * draw(st.floats(0.2, 1.2)))
        spread = {kind: value * draw(st.floats(0.5, 1.5)) for kind, value in alone.items() if kind[1] > 1}
        by_type[gpu_type] = TypeThroughputs(alone, spread, pairs)
    jobs = []
    for i in range(draw(st.integers(1, 6))):
        model, slots = draw(st.sampled_from(kinds))
        jobs.append(
            TraceJob(
                name=f"j{i}",
                submit_s=float(draw(st.integers(0, 500))),
                requested_slots=slots,
                application=model,
                steps=draw(st.integers(100, 20_000)),
                adaptivity=Adaptivity.RIGID,
            )
        )
    return ThroughputTable(by_type), Workload("drawn", tuple(sorted(jobs, key=lambda job: job.submit_s)))


@pytest.mark.parametrize("policy", ["fifo", "max_min_fairness_perf", "max_min_fairness_packed"])
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(drawn=tables())
def test_nor_where_speeds_come_from_a_table(policy: str, drawn: tuple[ThroughputTable, Workload]) -> None:
    table, workload = drawn
    named = named_policy(policy)
    assert policy == "fifo" or isinstance(named, TimeSharingPolicy)
    simulator = Simulator(workload, {}, Cluster.parse("v100:1x2,t4:2x2"), named, Settings(), table)
    result = simulator.run()
    total_s = sum((job.completed_s or 0.0) - job.facts.submitted_s for job in result.jobs)
    shared = any(stint.partner is not None for job in result.jobs for stint in job.stints)
    problem = instance(simulator, sharing=shared)
    assert jct_bound(problem, steps=FEW_STEPS) <= total_s
    assert makespan_bound(problem) <= max(job.completed_s or 0.0 for job in result.jobs)
