"""Jobs that need many slots have their turn, whatever stream of narrower ones there is."""

from __future__ import annotations

from math import inf

import pytest

from geminid.cluster import Cluster
from geminid.job import Adaptivity
from geminid.policies.base import ClusterView, JobFacts, JobView, Policy
from geminid.policies.registry import make_policy
from geminid.serve.guard import Guard
from geminid.serve.reservations import reserve
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload


def job(name: str, slots: int, waited_s: float, **facts: object) -> JobView:
    size = {"requested_slots": slots, "min_slots": slots, "max_slots": slots}
    return JobView(facts=JobFacts(id=name, submitted_s=-waited_s, **size, **facts))


def of(waiting: list[JobView], usable: tuple[int, ...] = (1, 0), cluster: str = "a:1x4,b:1x4"):
    parsed = Cluster.parse(cluster)
    whole = tuple(map(int, parsed.node_slots))
    view = ClusterView(0.0, parsed, tuple(waiting), whole, usable)
    return reserve(view, waiting, usable, lambda job: job.age_s(0.0), patience_s=60.0)


def test_narrower_jobs_wait_for_one_that_has_waited_longer_but_not_for_ever():
    only_a = frozenset({"a"})
    narrow = job("n", 1, 5.0, gpu_types=only_a)
    held = [t for t in (30, 61, 119, 121, 239, 241, 479, 481) if of([job("w", 4, t), narrow]).held == {"n"}]
    assert held == [61, 119, 241, 479]  # from one patience to two, from four to eight
    found = of([job("w", 4, 100.0), narrow])
    assert "w, which needs 4" in found.reasons["n"]
    assert "n is held back" in found.reasons["w"]
    assert found.until_s == 20.0
    assert of([job("w", 4, 100.0), job("n", 1, 101.0)]).held == set()  # whoever has waited longer goes first
    assert of([job("w", 4, 100.0), job("n", 4, 5.0)]).held == set()  # it is not by its size that it goes first
    assert of([job("w", 5, 1e5), narrow]).held == set()  # there is no place for the wide one at all


def test_priority_shortens_the_patience_and_lower_ones_are_held_back_all_the_time():
    narrow = job("n", 1, 1.0, gpu_types=frozenset({"a"}))
    assert [t for t in (1, 10, 16, 40, 200, 300) if of([job("w", 4, t, weight=4.0), narrow]).held] == [16, 40, 200, 300]


def test_other_types_stay_open():
    (left,) = [job for job in of([job("w", 4, 100.0), job("n", 1, 5.0)], usable=(1, 0)).waiting if job.id == "n"]
    assert left.facts.gpu_types == {"b"}


def test_whoever_fits_has_its_turn_at_once():
    found = of([job("w", 2, 100.0), job("n", 1, 5.0)], usable=(2, 1))
    assert found.granted == {"w": ((0, 2),)}
    assert list(found.usable) == [0, 1]
    assert [job.id for job in found.waiting] == ["n"]


def test_a_wide_job_does_not_have_its_turn_before_a_narrow_one_of_a_larger_claim():
    wide, later = job("w", 2, 100.0), job("n", 1, 5.0)
    urgent = job("u", 1, 5.0, weight=1000.0)
    assert of([wide, later, urgent], usable=(2, 0), cluster="a:1x2,b:1x1").granted == {}
    assert of([wide, later, urgent], usable=(3, 0), cluster="a:1x3,b:1x1").granted == {"w": ((0, 2),)}


@pytest.mark.parametrize("policy", ["geminid:gap=2,refresh=20,fill=true", "fifo", "srtf"])
@pytest.mark.parametrize("weight", [1.0, 2.0**20])
def test_a_stream_of_narrow_commands_does_not_keep_a_wide_one_waiting(policy, weight):
    """On two slots, narrow commands of 50 s arrive every 20 s for half an hour, and one that needs both slots."""
    narrow = [
        TraceJob(
            name=f"n{i}", submit_s=20.0 * i, requested_slots=1, duration_s=50.0, adaptivity=Adaptivity.RIGID, owner="a"
        )
        for i in range(90)
    ]
    wide = TraceJob(
        name="w", submit_s=95.0, requested_slots=2, duration_s=10.0, adaptivity=Adaptivity.RIGID, weight=weight
    )
    jobs = tuple(sorted([*narrow, wide], key=lambda job: job.submit_s))

    def started_s(made: Policy) -> float:
        simulator = Simulator(Workload("stream", jobs), {}, Cluster.parse("cpu:1x2"), made, Settings(oracle=True))
        simulator.run()
        return simulator.jobs["w"].stints[0].start_s

    guarded = Guard(make_policy(policy), protected=lambda job: inf, patience_s=60.0)
    assert started_s(guarded) - 95.0 <= (60.0 if weight > 1 else 4 * 60.0)
