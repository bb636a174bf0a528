"""Gandiva: affinity, slices, packing by trial, migration, growth and shrinking; each can be switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Completed, Reported, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.fields import InvalidInput
from geminid.job import Adaptivity
from geminid.policies.antman import AntMan
from geminid.policies.base import JobFacts
from geminid.policies.gandiva import Gandiva
from geminid.policies.lucid import Lucid
from geminid.policies.registry import BUILT_IN
from geminid.policies.sharing import busy
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workload import TraceJob, Workload


class Neighbours:
    """How fast jobs are beside others goes by their kinds: two light ones well, a heavy one badly, huge ones not."""

    speeds: ClassVar = {"light": 0.9, "heavy": 0.45}

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        if "huge" in (first.kind, second.kind):
            return 0.0, 0.0
        slowest = min(self.speeds.get(kind, 0.5) for kind in (first.kind, second.kind))
        return slowest, slowest


def job(name: str, slots: int = 1, *, kind: str = "huge", most: int | None = None, at_s: float = 0.0) -> JobFacts:
    adaptivity = Adaptivity.RIGID if most is None else Adaptivity.FIXED_BATCH
    bounds = {"min_slots": slots, "max_slots": most or slots}
    return JobFacts(id=name, submitted_s=at_s, requested_slots=slots, kind=kind, adaptivity=adaptivity, **bounds)


def started(cluster: str, *jobs: JobFacts, sharing: Any = None, **options: Any) -> Engine:
    engine = Engine(Cluster.parse(cluster), Gandiva(**options), ModelKeeper(), sharing=sharing, debug=True)
    for each in jobs:
        engine.handle(Submitted(each.submitted_s, each))
    return engine


def nodes(engine: Engine, *names: str) -> list[int | None]:
    return [engine.jobs[name].allocation[0][0] if engine.jobs[name].allocation else None for name in names]


def running(engine: Engine) -> set[str]:
    return {name for name, view in engine.jobs.items() if view.allocation}


def test_jobs_go_to_nodes_of_their_size_before_they_open_new_ones() -> None:
    engine = started("v100:3x4", job("a", 1), job("b", 2), job("c", 1), job("d", 2), growth=False)
    a, b, c, d = nodes(engine, "a", "b", "c", "d")
    assert a == c
    assert b == d
    assert a != b


@pytest.mark.parametrize("migration", [True, False])
def test_free_slots_of_another_size_are_used_with_and_without_migration(migration: bool) -> None:
    engine = started("v100:2x4", job("a", 1), job("b", 4), job("c", 2), growth=False, migration=migration)
    assert nodes(engine, "c") == nodes(engine, "a")


def test_who_lodges_on_nodes_of_another_size_leaves_when_the_slots_are_needed() -> None:
    engine = started("v100:1x4", job("a", 1), job("b", 2), growth=False)
    assert running(engine) == {"a", "b"}
    for name in "cde":
        engine.handle(Submitted(1.0, job(name, 1)))
    assert running(engine) == {"a", "c", "d", "e"}


def test_too_many_jobs_of_a_size_take_turns_of_a_minute_each() -> None:
    engine = started("v100:1x2", *(job(name, 2) for name in "abc"))
    seen = [running(engine)]
    for minute in range(1, 6):
        engine.handle(Tick(60.0 * minute - 1.0))
        assert running(engine) == seen[-1]
        engine.handle(Tick(60.0 * minute))
        seen.append(running(engine))
    assert seen == [{"a"}, {"b"}, {"c"}, {"a"}, {"b"}, {"c"}]


def test_a_job_that_takes_over_inside_a_slice_has_a_whole_one() -> None:
    engine = started("v100:1x2", *(job(name, 2) for name in "abc"), growth=False)
    engine.handle(Completed(59.0, "a"))
    assert running(engine) == {"b"}
    assert engine.handle(Tick(60.0)).wake_at_s == 119.0
    assert running(engine) == {"b"}
    engine.handle(Tick(119.0))
    assert running(engine) == {"c"}


def test_who_runs_beside_a_newcomer_keeps_its_own_slice() -> None:
    """Two of four run at a time; the one that takes over at 30 s stays until 90 s, the other one leaves at 60 s."""
    engine = started("v100:1x2", *(job(name, 1) for name in "abcd"), growth=False)
    engine.handle(Completed(30.0, "a"))
    assert running(engine) == {"b", "c"}
    engine.handle(Tick(60.0))
    assert running(engine) == {"c", "d"}
    engine.handle(Tick(90.0))
    assert running(engine) == {"d", "b"}


def test_the_first_start_of_a_waiting_job_does_not_lengthen_slices() -> None:
    """Live, a job that has never run counts as cold, ten seconds: no reason for slices of 100 s."""
    engine = started("v100:1x2", job("a", 2), replace(job("b", 2), rescale_s=10.0), growth=False)
    engine.handle(Tick(60.0))
    assert running(engine) == {"b"}


def test_a_job_of_several_nodes_gets_those_of_one_rack() -> None:
    nodes = [f"{{type: v100, slots: 4, rack: r{index % 2}, first: {index}}}" for index in range(4)]
    cluster = Cluster.from_yaml(f"nodes: [{', '.join(nodes)}]")
    for policy in (Gandiva(), AntMan(), Lucid()):
        engine = Engine(cluster, policy, ModelKeeper(), debug=True)
        engine.handle(Submitted(0.0, job("eight", 8)))
        assert {cluster.node_rack[node] for node, _ in engine.jobs["eight"].allocation} == {0}


def test_parts_that_the_published_simulator_leaves_out_may_not_be_asked_for() -> None:
    trace = Workload("t", (TraceJob(name="a", submit_s=0.0, requested_slots=1, duration_s=10.0),))
    world = Experiment(workload=trace, cluster=Cluster.parse("v100:1x1"))
    with pytest.raises(InvalidInput, match=r"packing of gandiva.*published=false"):
        simulate("gandiva:packing=true", world)
    for text in ("gandiva:packing=false,growth=false,migration=false", "gandiva:packing=true,published=false"):
        assert simulate(text, world)["unfinished_jobs"] == 0


def test_the_published_simulator_ends_slices_at_full_minutes() -> None:
    """The published trace does not show it: no look there is at a full minute while anybody waits."""
    jobs = tuple(TraceJob(name=n, submit_s=0.0, requested_slots=2, duration_s=100.0) for n in "ab")
    world = Experiment(
        workload=Workload("t", jobs), cluster=Cluster.parse("v100:1x2"), settings=Settings(rescale_s=0.0)
    )
    ends = {job["name"]: job["jct_s"] for job in simulate("gandiva", world)["per_job"]}
    assert ends == {"a": 160.0, "b": 200.0}


def test_slices_are_long_enough_for_restarts_to_be_over() -> None:
    slow = [JobFacts(id=name, submitted_s=0.0, requested_slots=2, max_slots=2, rescale_s=30.0) for name in "ab"]
    engine = started("v100:1x2", *slow, growth=False)
    engine.handle(Tick(299.0))
    assert running(engine) == {"a"}
    engine.handle(Tick(300.0))
    assert running(engine) == {"b"}


def test_a_pair_that_pays_stays_together_and_frees_nobodys_time() -> None:
    engine = started("v100:1x1", *(job(name, kind="light") for name in "ab"), sharing=Neighbours())
    engine.handle(Tick(1.0))
    assert engine.jobs["a"].partner == "b"
    for name in "ab":
        engine.handle(Reported(50.0, name, relative_speed=0.9))
    engine.handle(Tick(61.0))
    engine.handle(Tick(200.0))
    assert engine.jobs["a"].partner == "b"


def test_a_pair_that_does_not_pay_parts_after_a_slice_and_is_not_tried_again() -> None:
    engine = started("v100:1x1", *(job(name, kind="heavy") for name in "ab"), sharing=Neighbours())
    engine.handle(Tick(1.0))
    assert engine.jobs["a"].partner == "b"
    for name in "ab":
        engine.handle(Reported(50.0, name, relative_speed=0.45))
    engine.handle(Tick(62.0))
    assert engine.jobs["a"].partner is None
    engine.handle(Submitted(100.0, job("c", kind="heavy", at_s=100.0)))
    engine.handle(Tick(200.0))
    assert all(view.partner is None for view in engine.jobs.values())


def facts(name: str, *, kind: str = "heavy", rescale_s: float = 0.0, at_s: float = 0.0) -> JobFacts:
    return JobFacts(id=name, submitted_s=at_s, requested_slots=1, max_slots=1, kind=kind, rescale_s=rescale_s)


def until_the_policy_sleeps(engine: Engine, at_s: float, end_s: float) -> None:
    """Follow the wake-ups of the policy alone, with pairs that report 45 % of their speed."""
    while at_s < end_s:
        for name, view in list(engine.jobs.items()):
            if view.partner is not None:
                engine.handle(Reported(at_s, name, relative_speed=0.45))
        wake_at_s = engine.handle(Tick(at_s)).wake_at_s
        if wake_at_s is None:
            return
        at_s = wake_at_s


def test_a_trial_is_judged_without_another_event_where_restarts_make_slices_long() -> None:
    engine = started("v100:1x1", *(facts(name, rescale_s=30.0) for name in "ab"), sharing=Neighbours(), growth=False)
    engine.handle(Tick(1.0))
    assert engine.jobs["a"].partner == "b"
    until_the_policy_sleeps(engine, 2.0, 1000.0)
    assert engine.jobs["a"].partner is None


def test_a_trial_that_a_slice_of_others_interrupts_goes_on_later_and_is_judged() -> None:
    engine = started("v100:1x1", facts("h", kind="huge"), facts("a"), sharing=Neighbours(), growth=False)
    engine.handle(Tick(61.0))
    engine.handle(Submitted(100.0, facts("b", at_s=100.0)))  # a and b are tried for the last third of a's slice
    assert engine.jobs["a"].partner == "b"
    engine.handle(Tick(121.0))
    assert running(engine) == {"h"}
    until_the_policy_sleeps(engine, 181.0, 239.0)
    assert all(view.partner is None for view in engine.jobs.values())


def test_a_trial_goes_on_until_both_have_measured_their_speeds() -> None:
    engine = started("v100:1x1", *(facts(name) for name in "ab"), sharing=Neighbours(), growth=False)
    engine.handle(Tick(1.0))
    outcome = engine.handle(Tick(61.0))
    assert engine.jobs["a"].partner == "b"
    assert outcome.wake_at_s == 121.0
    until_the_policy_sleeps(engine, 121.0, 122.0)
    assert engine.jobs["a"].partner is None


def test_the_lightest_jobs_are_packed_first_and_nobody_without_overload() -> None:
    kinds = {"a": "heavy", "b": "light", "d": "light"}
    jobs = [job(name, kind=kind) for name, kind in kinds.items()]
    engine = started("v100:1x2", *jobs, sharing=Neighbours())
    engine.handle(Tick(1.0))
    assert engine.jobs["b"].partner == "d"
    calm = started("v100:1x4", *jobs, sharing=Neighbours())
    assert all(view.partner is None for view in calm.jobs.values())


@pytest.mark.parametrize(("kind", "options"), [("huge", {}), ("light", {"packing": False})])
def test_no_packing_without_memory_for_both_or_when_it_is_off(kind: str, options: dict[str, bool]) -> None:
    engine = started("v100:1x1", *(job(name, kind=kind) for name in "ab"), sharing=Neighbours(), **options)
    engine.handle(Tick(1.0))
    assert len(running(engine)) == 1


def test_where_jobs_cannot_share_slots_it_says_so() -> None:
    engine = started("v100:1x1", job("a", kind="light"))
    outcome = engine.handle(Submitted(1.0, job("b", kind="light", at_s=1.0)))
    assert outcome.reasons["b"].startswith("no_sharing")


def test_departures_free_nodes_by_moving_jobs_together() -> None:
    def after_departures(migration: bool) -> set[str]:
        jobs = [job(f"s{i}", 1) for i in range(8)] + [job("wide", 4)]
        engine = started("v100:2x4", *jobs, growth=False, migration=migration)
        assert "wide" not in running(engine)
        for name in ("s0", "s1", "s4", "s5"):
            engine.handle(Completed(10.0, name))
        return running(engine)

    assert "wide" in after_departures(migration=True)
    assert "wide" not in after_departures(migration=False)


def test_a_job_grows_into_slots_that_are_idle_for_a_slice_and_shrinks_on_arrival() -> None:
    engine = started("v100:1x4", job("a", 1, most=8))
    assert engine.jobs["a"].slots == 1
    engine.handle(Tick(60.0))
    assert engine.jobs["a"].slots == 4
    engine.handle(Submitted(70.0, job("b", 1, at_s=70.0)))
    assert engine.jobs["b"].slots == 1
    assert engine.jobs["a"].slots < 4
    rigid = started("v100:1x4", job("a", 1))
    rigid.handle(Tick(60.0))
    assert rigid.jobs["a"].slots == 1
    off = started("v100:1x4", job("a", 1, most=8), growth=False)
    off.handle(Tick(60.0))
    assert off.jobs["a"].slots == 1


def test_how_busy_a_job_keeps_its_slots_shows_beside_its_copy() -> None:
    assert busy(Neighbours(), job("a", kind="light"), "v100") < busy(Neighbours(), job("a", kind="heavy"), "v100")  # type: ignore[arg-type]
    assert busy(Neighbours(), job("a", kind="huge"), "v100") == 1.0  # type: ignore[arg-type]


def test_traces_of_durations_are_run_as_published_and_others_are_not() -> None:
    def mean_jct_s(text: str) -> float:
        jobs = tuple(
            TraceJob(name=f"j{i}", submit_s=7.0 * i, requested_slots=1 + i % 2, duration_s=100.0 + 30.0 * (i % 5))
            for i in range(20)
        )
        world = Experiment(
            workload=Workload("w", jobs), cluster=Cluster.parse("v100:2x2"), settings=Settings(rescale_s=0.0)
        )
        return float(simulate(text, world)["avg_jct_s"])

    off = "packing=false,growth=false,migration=false"
    assert mean_jct_s(f"gandiva:{off}") == mean_jct_s(f"gandiva:{off},published=true")
    assert mean_jct_s(f"gandiva:{off}") != mean_jct_s(f"gandiva:{off},published=false")
    assert {"gandiva", "gandiva_packed"} <= set(BUILT_IN)
