"""What owners and queues got, on schedules small enough to compute by hand."""

from __future__ import annotations

import math

import pytest

from geminid.cluster import Cluster
from geminid.policies.registry import make_policy
from geminid.sim import tenants as module
from geminid.sim.metrics import summary
from geminid.sim.report import page
from geminid.sim.simulator import Simulator
from geminid.sim.workload import TraceJob, Workload


def job(name: str, submit_s: float, slots: int, duration_s: float, owner: str, queue: str = "default") -> TraceJob:
    return TraceJob(
        name=name, submit_s=submit_s, requested_slots=slots, duration_s=duration_s, owner=owner, queue=queue
    )


def run(*jobs: TraceJob, cluster: str = "v100:1x4") -> dict:
    simulator = Simulator(Workload("test", jobs), {}, Cluster.parse(cluster), make_policy("fifo"))
    return summary(simulator.run(), stints=True)


def test_shares_count_while_a_tenant_has_jobs() -> None:
    """Ann holds 3 slots for 100 s, Bob 1 slot for 200 s: of 400 slot-seconds while both are there, 300 and 100."""
    ann, bob = run(job("a", 0, 3, 100, "ann"), job("b", 0, 1, 200, "bob"))["owners"]
    assert (ann["name"], ann["jobs"], ann["share"]) == ("ann", 1, pytest.approx(0.75))
    assert (bob["share"], bob["fair_share"]) == (pytest.approx(0.4), pytest.approx(0.75))
    assert ann["fair_share"] == pytest.approx(0.5)
    assert (ann["envy"], bob["envy"]) == (0.0, pytest.approx(0.5))
    assert (ann["avg_jct_s"], bob["avg_jct_s"]) == (100, 200)


def test_a_tenant_that_waits_while_another_works_envies_it_fully() -> None:
    ann, bob = run(job("a", 0, 4, 100, "ann"), job("b", 0, 4, 50, "bob"))["owners"]
    assert bob["envy"] == 1.0
    assert ann["envy"] == 0.0
    assert bob["worst_ftf"] > ann["worst_ftf"] > 0


def test_tenants_that_never_meet_do_not_envy_each_other() -> None:
    owners = run(job("a", 0, 4, 100, "ann"), job("b", 500, 4, 50, "bob"))["owners"]
    assert [(owner["share"], owner["fair_share"], owner["envy"]) for owner in owners] == [(1.0, 1.0, None)] * 2


def test_queues_are_tenants_as_owners_are() -> None:
    result = run(job("a", 0, 3, 100, "ann", "prod"), job("b", 0, 1, 100, "ann", "dev"))
    assert result["owners"] == []
    assert [(queue["name"], queue["share"]) for queue in result["queues"]] == [("prod", 0.75), ("dev", 0.25)]


def test_of_many_tenants_those_with_most_slot_time_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TENANTS", 2)
    result = run(job("a", 0, 2, 100, "ann"), job("b", 0, 1, 10, "bob"), job("c", 0, 1, 100, "cy"))
    assert [owner["name"] for owner in result["owners"]] == ["ann", "cy"]
    assert all(math.isfinite(owner["envy"]) for owner in result["owners"])


def test_the_report_has_a_table_of_them_only_where_there_are_several() -> None:
    jobs = (job("a", 0, 3, 100, "<ann>"), job("b", 0, 1, 200, "bob"))
    text = page(workload=Workload("test", jobs), cluster=Cluster.parse("v100:1x4"), results=[run(*jobs)])
    assert '<h2 id="owners-title">Owners</h2>' in text
    assert "<td>&lt;ann&gt;</td>" in text
    assert "queues-title" not in text
