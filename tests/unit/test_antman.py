"""AntMan: guaranteed jobs hardly notice opportunistic ones, which run on what is left, slowed down as needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Submitted
from geminid.engine.models import ModelKeeper
from geminid.fields import InvalidInput
from geminid.policies.antman import AntMan
from geminid.policies.base import JobFacts
from geminid.serve.server import Options, serve
from geminid.sim.run import Experiment, applications_of, policy_of, simulate
from geminid.sim.simjob import Stint
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads import load_workload
from geminid.sim.workloads.native import write_native


class Half:
    """Light jobs run at 70 % beside each other, heavy ones at half their speed; huge ones do not fit beside anybody."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        if "huge" in (first.kind, second.kind):
            return 0.0, 0.0
        return (0.5, 0.5) if {first.kind, second.kind} == {"heavy"} else (0.7, 0.7)


def job(name: str, *, kind: str = "light", slots: int = 1, low: bool = False) -> JobFacts:
    return JobFacts(
        id=name, submitted_s=0.0, requested_slots=slots, max_slots=slots, min_slots=slots, kind=kind, opportunistic=low
    )


def started(cluster: str, *jobs: JobFacts, **options: Any) -> Engine:
    engine = Engine(Cluster.parse(cluster), AntMan(**options), ModelKeeper(), sharing=Half(), debug=True)  # type: ignore[arg-type]
    for each in jobs:
        engine.handle(Submitted(0.0, each))
    return engine


def test_a_guaranteed_job_has_slots_to_itself_and_guests_come_only_beside() -> None:
    engine = started("v100:1x2", job("a"), job("b"), job("low", low=True))
    assert engine.jobs["a"].allocation
    assert engine.jobs["b"].allocation
    assert engine.jobs["low"].partner in ("a", "b")
    assert engine.jobs["low"].cap < 0.1
    assert all(engine.jobs[name].cap == 1.0 for name in "ab")


def test_idle_slots_come_first_and_guaranteed_jobs_take_them_back() -> None:
    engine = started("v100:1x1", job("low", low=True))
    assert engine.jobs["low"].partner is None
    assert engine.jobs["low"].cap == 1.0
    engine.handle(Submitted(5.0, job("a")))
    assert engine.jobs["a"].allocation
    assert engine.jobs["low"].partner == "a"


@pytest.mark.parametrize(
    ("host", "guest"),
    [(job("a", kind="heavy"), job("low", low=True)), (job("a"), job("low", kind="huge", low=True))],
    ids=["too busy", "too little memory"],
)
def test_nobody_joins_a_job_that_is_busy_or_leaves_too_little_memory(host: JobFacts, guest: JobFacts) -> None:
    assert not started("v100:1x1", host, guest).jobs["low"].allocation


def test_the_least_busy_job_gets_the_guest() -> None:
    engine = started("v100:1x2", job("a", kind="heavy"), job("b"), job("low", low=True), busiest=1.0)
    assert engine.jobs["low"].partner == "b"


@given(cap=st.floats(0.0, 1.0), loss=st.floats(0.0, 1.0), tolerance=st.floats(0.001, 0.5))
def test_the_controller_cuts_what_costs_too_much_and_raises_what_costs_little(
    cap: float, loss: float, tolerance: float
) -> None:
    after = AntMan(tolerance=tolerance).next_cap(cap, loss)
    assert 0.0 <= after <= 1.0
    if loss > tolerance:
        assert after <= cap
    if loss < tolerance / 2 and 0.01 <= cap < 1.0:
        assert after > cap


WORKLOAD = tuple(
    TraceJob(name=f"j{i}", submit_s=200.0 * i, requested_slots=1, application=application, opportunistic=i % 2 == 1)
    for i, application in enumerate(["resnet18-cifar10", "neumf-ml20m", "lstm-wikitext2", "dlrm-small"] * 3)
)


def simulated(jobs: tuple[TraceJob, ...], policy: str = "antman") -> dict[str, dict[str, Any]]:
    world = Experiment(
        workload=Workload("mixed", jobs), cluster=Cluster.parse("h200:1x2"), settings=Settings(rescale_s=0.0)
    )
    result = simulate(policy, world)
    assert result["rejected_decisions"] == result["unfinished_jobs"] == 0
    return {entry["name"]: entry for entry in result["per_job"]}


def running_s(entry: dict[str, Any]) -> float:
    return float(entry["jct_s"] - entry["queued_s"])


def test_guaranteed_jobs_lose_at_most_three_percent_beside_opportunistic_ones() -> None:
    beside, alone = simulated(WORKLOAD), simulated(tuple(job for job in WORKLOAD if not job.opportunistic))
    for name, entry in alone.items():
        assert running_s(beside[name]) <= 1.03 * running_s(entry)
    assert sum(running_s(beside[name]) for name in alone) > sum(map(running_s, alone.values()))


def test_without_caps_they_would_lose_more() -> None:
    beside = simulated(WORKLOAD, "antman:tolerance=1,busiest=1")
    alone = simulated(tuple(job for job in WORKLOAD if not job.opportunistic))
    assert max(running_s(beside[name]) / running_s(entry) for name, entry in alone.items()) > 1.03


TIGHT = (
    TraceJob(name="host", submit_s=0.0, requested_slots=1, application="deepspeech2"),
    TraceJob(name="low", submit_s=10.0, requested_slots=1, application="gpt2-124m", opportunistic=True),
)


def stints_of_the_guest(policy: str) -> list[Stint]:
    """Where a guest ran that does not fit into memory beside its host, while the host was there."""
    world = Experiment(
        workload=Workload("tight", TIGHT), cluster=Cluster.parse("v100:1x1"), settings=Settings(rescale_s=0.0)
    )
    made = policy_of(policy, world)
    jobs = Simulator(world.workload, applications_of(world), world.cluster, made, replace(world.settings, debug=True))
    return [stint for stint in jobs.run().jobs[1].stints if stint.partner == "host"]


def test_a_guest_that_does_not_fit_spills_and_is_slower_the_less_memory_it_may_use() -> None:
    speeds = [stints_of_the_guest(f"antman:memory_cap={cap}")[-1].speed for cap in (1, 0.5, 0.3)]
    assert 0.9 > speeds[0] > speeds[1] > speeds[2] > 0.0


def test_a_guest_waits_where_what_it_needs_at_a_time_does_not_fit() -> None:
    assert not stints_of_the_guest("antman:memory_cap=0.2")


def test_a_guest_goes_first_where_all_of_it_fits() -> None:
    class Full(Half):
        def spilled_speeds(
            self, host: JobFacts, guest: JobFacts, gpu_type: str, memory_cap: float
        ) -> tuple[float, float, float]:
            return 0.7, 0.7, 0.5 if host.id == "a" else 0.0

    engine = Engine(Cluster.parse("v100:1x2"), AntMan(), ModelKeeper(), sharing=Full(), debug=True)  # type: ignore[arg-type]
    for each in (job("a"), job("b"), job("low", low=True)):
        engine.handle(Submitted(0.0, each))
    assert engine.jobs["low"].partner == "b"
    assert engine.jobs["low"].memory_cap == 1.0


def test_without_tolerance_nobody_has_a_guest_and_nothing_is_lost() -> None:
    assert not started("v100:1x1", job("a"), job("low", low=True), tolerance=0.0).jobs["low"].allocation
    beside = simulated(WORKLOAD, "antman:tolerance=0")
    alone = simulated(tuple(job for job in WORKLOAD if not job.opportunistic))
    assert {name: beside[name]["jct_s"] for name in alone} == {name: entry["jct_s"] for name, entry in alone.items()}


def test_guaranteed_jobs_are_on_as_few_nodes_as_possible() -> None:
    engine = started("v100:2x4", job("a", slots=3), job("b"), job("c", slots=2), job("d", slots=2))
    nodes = {name: [node for node, _ in view.allocation] for name, view in engine.jobs.items()}
    assert nodes["a"] == nodes["b"]
    assert nodes["c"] == nodes["d"] != nodes["a"]
    wide = started("v100:3x4", job("a"), job("wide", slots=6), job("b", slots=2))
    assert [slots for _, slots in wide.jobs["wide"].allocation] == [2, 4]
    assert len(wide.jobs["b"].allocation) == 1


def test_a_share_of_the_jobs_can_be_made_opportunistic() -> None:
    policy = AntMan(opportunistic=0.3)
    engine = Engine(Cluster.parse("v100:1x1"), policy, ModelKeeper())
    for i in range(200):
        engine.take(Submitted(0.0, job(f"job-{i}")))
    drawn = sum(map(policy.is_opportunistic, engine.jobs.values()))
    assert 40 < drawn < 80


@pytest.mark.parametrize("suffix", ["yaml", "csv"])
def test_workloads_say_which_jobs_are_opportunistic(tmp_path: Path, suffix: str) -> None:
    jobs = tuple(replace(job, submit_s=float(job.submit_s)) for job in WORKLOAD)
    write_native(Workload("mixed", jobs), tmp_path / f"mixed.{suffix}")
    assert load_workload(tmp_path / f"mixed.{suffix}").jobs == jobs


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("antman", "live jobs cannot share slots, nor compute for a part of the time"),
        ("srtf", "it must know how long jobs still take"),
        ("optimus", "it must know how long jobs still take"),
    ],
)
def test_a_service_refuses_what_it_cannot_do_and_says_why(tmp_path: Path, policy: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        serve(Options(home=tmp_path, policy=policy))
