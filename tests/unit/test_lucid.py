"""Lucid: predicted shortest first, nobody interrupted, light jobs on the same slots."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Completed, NodeDrained, Submitted
from geminid.engine.models import ModelKeeper
from geminid.policies.base import JobFacts
from geminid.policies.lucid import Lucid, share_score
from geminid.sim.run import Experiment, simulate
from geminid.sim.simulator import Settings
from geminid.sim.workloads.generate import built_in_workload
from requirements import PEERS

COLOCATION = PEERS / "traces" / "lucid-colocation"


class ByKind:
    """What jobs keep of their speed depends on the two kinds; huge ones fit beside nobody."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        if "huge" in (first.kind, second.kind):
            return 0.0, 0.0
        return tuple(0.7 if facts.kind == "heavy" else 0.97 for facts in (first, second))  # type: ignore[return-value]


def job(name: str, *, kind: str = "light", slots: int = 1, at_s: float = 0.0) -> JobFacts:
    return JobFacts(id=name, submitted_s=at_s, requested_slots=slots, min_slots=slots, max_slots=slots, kind=kind)


def started(cluster: str, *jobs: JobFacts, sharing: Any = None, **options: Any) -> Engine:
    engine = Engine(Cluster.parse(cluster), Lucid(**options), ModelKeeper(), sharing=sharing, debug=True)
    for each in jobs:
        engine.handle(Submitted(each.submitted_s, each))
    return engine


def running(engine: Engine) -> set[str]:
    return {name for name, view in engine.jobs.items() if view.allocation}


def test_who_is_predicted_to_take_the_least_slot_time_goes_first_and_nobody_is_interrupted() -> None:
    engine = started("v100:1x1", job("short", kind="a"))
    engine.handle(Completed(100.0, "short"))
    engine.handle(Submitted(100.0, job("long", kind="b", at_s=100.0)))
    engine.handle(Submitted(101.0, job("unknown", kind="c", at_s=101.0)))
    engine.handle(Completed(5100.0, "long"))
    assert running(engine) == {"unknown"}
    for name, kind in (("x", "b"), ("y", "a")):
        engine.handle(Submitted(5200.0, job(name, kind=kind, at_s=5200.0)))
    assert running(engine) == {"unknown"}
    engine.handle(Completed(5300.0, "unknown"))
    assert running(engine) == {"y"}


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [("light", "light", True), ("light", "heavy", True), ("heavy", "heavy", False), ("light", "huge", False)],
)
def test_only_light_neighbours_share(first: str, second: str, share: bool) -> None:
    engine = started("v100:1x1", job("a", kind=first), job("b", kind=second), sharing=ByKind())
    assert (engine.jobs["a"].partner == "b") == share


def test_nobody_shares_while_slots_are_free_or_with_packing_off_or_another_size() -> None:
    assert all(view.partner is None for view in started("v100:1x2", job("a"), job("b"), sharing=ByKind()).jobs.values())
    assert running(started("v100:1x1", job("a"), job("b"), sharing=ByKind(), packing=False)) == {"a"}
    assert running(started("v100:1x2", job("a", slots=2), job("b"), sharing=ByKind())) == {"a"}


def ended(kind: str, took_s: float, *jobs: JobFacts, cluster: str = "v100:1x1", **options: Any) -> Engine:
    """A cluster on which a job of a kind has taken so long, and on which others arrive right after."""
    engine = started(cluster, job("before", kind=kind), **options)
    engine.handle(Completed(took_s, "before"))
    for each in jobs:
        engine.handle(Submitted(took_s, replace(each, submitted_s=took_s)))
    return engine


def test_it_is_the_duration_times_the_slots_that_decides_who_is_first() -> None:
    """Of equal duration, two jobs of one slot go before an older one of two."""
    engine = started("v100:1x2", job("now", slots=2))
    for each in (job("wide", slots=2, at_s=1.0), job("narrow", at_s=2.0), job("narrow2", at_s=3.0)):
        engine.handle(Submitted(each.submitted_s, each))
    engine.handle(Completed(100.0, "now"))
    assert running(engine) == {"narrow", "narrow2"}


@pytest.mark.parametrize(("longer", "joins"), [(2.0, False), (100.0, True)])
def test_nobody_joins_a_job_that_is_predicted_to_end_long_before(longer: float, joins: bool) -> None:
    """A light job of 100 s runs; another kind is predicted to take 1,800 s."""
    long_kind = job("guest", kind="other", at_s=5000.0)
    engine = ended("light", 100.0, job("host"), sharing=ByKind(), longer=longer)
    engine.handle(Submitted(101.0, job("x", kind="other", at_s=101.0)))
    engine.handle(Completed(200.0, "host"))
    engine.handle(Completed(5000.0, "x"))
    engine.handle(Submitted(5000.0, job("host2", at_s=5000.0)))
    engine.handle(Submitted(5000.0, long_kind))
    assert (engine.jobs["host2"].partner == "guest") is joins


@pytest.mark.parametrize(("slots", "share"), [(8, True), (16, False)])
def test_jobs_of_more_than_eight_slots_share_with_nobody(slots: int, share: bool) -> None:
    engine = started(f"v100:1x{slots}", job("a", slots=slots), job("b", slots=slots), sharing=ByKind())
    assert (engine.jobs["a"].partner == "b") is share


def test_a_job_gets_the_fullest_node_that_has_room_for_it() -> None:
    engine = started("v100:3x4", job("three", slots=3), job("two", slots=2), job("one"), job("more", slots=2))
    places = {name: view.allocation for name, view in engine.jobs.items()}
    assert places["one"][0][0] == places["three"][0][0]
    assert places["more"][0][0] == places["two"][0][0]
    assert all(len(allocation) == 1 for allocation in places.values())


def test_a_job_waits_for_one_node_and_a_large_one_for_whole_nodes() -> None:
    engine = started("v100:2x4", job("a", slots=3), job("b", slots=2), job("two", slots=2), job("three", slots=3))
    assert running(engine) == {"a", "b", "two"}
    engine.handle(Completed(10.0, "a"))
    assert engine.jobs["three"].allocation == ((0, 3),)
    large = started("v100:3x4", job("a"), job("six", slots=6), job("eight", slots=8))
    assert large.jobs["six"].allocation == ((1, 4), (2, 2))
    assert not large.jobs["eight"].allocation
    large.handle(Completed(5.0, "six"))
    assert large.jobs["eight"].allocation == ((1, 4), (2, 4))


def test_where_jobs_cannot_share_slots_it_says_so() -> None:
    engine = started("v100:1x1", job("a"))
    assert engine.handle(Submitted(1.0, job("b", at_s=1.0))).reasons["b"].startswith("no_sharing")


def test_jobs_leave_a_drained_node() -> None:
    engine = started("v100:2x1", job("a"))
    held = engine.jobs["a"].allocation[0][0]
    engine.handle(NodeDrained(1.0, held))
    assert engine.jobs["a"].allocation[0][0] != held


def test_a_generated_day_is_finished_sooner_than_first_come_first_served() -> None:
    world = Experiment(
        workload=built_in_workload("small", seed=0, load=1.0),
        cluster=Cluster.parse("v100:2x4"),
        settings=Settings(rescale_s=1.0, debug=True),
    )
    ours, fifo = simulate("lucid", world), simulate("fifo", world)
    assert ours["rejected_decisions"] == ours["unfinished_jobs"] == 0
    assert ours["avg_jct_s"] < fifo["avg_jct_s"]
    assert all(entry["rescales"] == 0 for entry in ours["per_job"])


@pytest.mark.needs_peers("traces/lucid-colocation")
def test_scores_of_measured_pairs_are_mostly_the_published_ones() -> None:
    """From the measured speeds of all pairs, the thresholds give 42 of the 56 labels that were published with them."""
    speeds: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with (COLOCATION / "colocate_info.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for side in "12":
                if row[f"gpu_num{side}"] == "1":
                    key = tuple(row[f"{field}{side}"] for field in ("model", "dataset", "batchsize", "amp"))
                    speeds[key].append(float(row[f"speed{side}"]))
    with (COLOCATION / "single_data.csv").open(encoding="utf-8", newline="") as file:
        labels = {
            (row["model"], row["dataset"], row["batchsize"], row["amp"]): int(row["label"])
            for row in csv.DictReader(file)
        }
    known = [key for key in labels if speeds.get(key)]
    right = sum(share_score(sum(speeds[key]) / len(speeds[key])) == labels[key] for key in known)
    assert (right, len(known)) == (42, 56)
