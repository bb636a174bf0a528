"""Dally: who waits how long for which place, how timers follow waits, and whom the network makes move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.bench import decisions
from geminid.cluster import Cluster
from geminid.fields import InvalidInput
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.profile import Observation
from geminid.gputypes import LinkClass
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, JobFacts, JobView
from geminid.policies.dally import Dally, Places
from geminid.policies.registry import make_policy
from geminid.sim.application import Application, StepTimeTruth
from geminid.sim.simulator import Result, Settings, Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.testing.applications import SteadyNoise


class Chatty(StepTimeTruth):
    """A pass takes 0.1 s; synchronising within a rack takes as long, within a node a tenth."""

    most_slots = 64

    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> tuple[float, float]:
        return 0.1, 0.1 + (0.0 if sum(placement) == 1 else 0.01 if len(placement) == 1 else 0.1)


CHATTY = Application(
    name="chatty",
    progress_steps=np.array([20_000.0]),
    gradient=SteadyNoise(),
    truth={"v100": Chatty()},
    limits={"v100": BatchLimits(initial=64, largest=64, smallest_per_slot=1, largest_per_slot=64)},
    rescale_s=10.0,
)

RACKS = Cluster.from_yaml(
    "network: {rack: 1GB/s, zone: 0.1GB/s}\nnodes: [{type: v100, count: 4, slots: 4, nodes_per_rack: 2}]"
)


FASTER_RACKS = Cluster.from_yaml(
    "network: {zone: 1.7GB/s}\nnodes: [{type: v100, count: 4, slots: 4, nodes_per_rack: 2}]"
)


def opaque(name: str, slots: int, duration_s: float = 10_000.0, submit_s: float = 0.0) -> TraceJob:
    return TraceJob(name=name, submit_s=submit_s, requested_slots=slots, duration_s=duration_s)


def chatty(name: str, slots: int, submit_s: float = 0.0) -> TraceJob:
    return TraceJob(
        name=name,
        submit_s=submit_s,
        requested_slots=slots,
        application="chatty",
        adaptivity=Adaptivity.RIGID,
        requested_batch=64,
    )


def run(policy: str | Dally, jobs: Sequence[TraceJob], cluster: Cluster = RACKS) -> Result:
    chosen = make_policy(policy) if isinstance(policy, str) else policy
    settings = Settings(debug=True, rescale_s=0.0)
    return Simulator(Workload("test", tuple(jobs)), {"chatty": CHATTY}, cluster, chosen, settings).run()


def starts(result: Result) -> dict[str, float]:
    return {job.facts.id: job.stints[0].start_s for job in result.jobs}


def first_nodes(result: Result, name: str) -> list[int]:
    job = next(job for job in result.jobs if job.facts.id == name)
    return [node for node, _ in job.stints[0].allocation]


def half_taken(later: TraceJob) -> list[TraceJob]:
    """Jobs that leave two slots free on both nodes of the only rack: a and c stand on different nodes."""
    return [
        opaque("x", 2, duration_s=1.0),
        opaque("a", 2),
        opaque("y", 2, duration_s=1.0),
        opaque("c", 2),
        later,
    ]


ONE_RACK = Cluster.parse("v100:2x4")


@pytest.mark.parametrize("timer_s", [0.0, 100.0, 7000.0])
def test_a_job_takes_a_rack_exactly_when_its_time_for_a_node_is_over(timer_s: float) -> None:
    jobs = half_taken(opaque("four", 4, submit_s=10.0))
    result = run(f"dally:auto=false,node={timer_s}", jobs, ONE_RACK)
    assert starts(result)["four"] == 10.0 + timer_s
    assert first_nodes(result, "four") == [0, 1]


def test_without_end_a_job_waits_for_a_node_however_long_it_takes() -> None:
    jobs = half_taken(opaque("four", 4, submit_s=10.0))
    result = run("dally:auto=false,node=inf,rack=inf", jobs, ONE_RACK)
    assert starts(result)["four"] == 10_000.0
    assert len(first_nodes(result, "four")) == 1


def test_a_place_on_a_node_is_taken_at_once() -> None:
    assert starts(run("dally:node=inf", [opaque("four", 4, submit_s=3.0)])) == {"four": 3.0}


def test_a_level_that_can_never_hold_a_job_is_skipped() -> None:
    """Eight slots are no node's: the job waits for a rack from the beginning, and sixteen take the cluster at once."""
    result = run("dally:auto=false,node=inf,rack=inf", [opaque("eight", 8), opaque("sixteen", 16, submit_s=1.0)])
    assert starts(result) == {"eight": 0.0, "sixteen": 10_000.0}
    assert first_nodes(result, "eight") == [0, 1]


def test_racks_are_waited_for_as_well() -> None:
    jobs = [opaque("a", 4), opaque("b", 8), opaque("eight", 8, submit_s=10.0, duration_s=5.0)]
    taken = run("dally:auto=false,node=0,rack=500", [*jobs, opaque("c", 2)])
    assert starts(taken)["eight"] == 10_000.0  # six slots are left, of any rack
    free = [opaque("x", 4, duration_s=1.0), opaque("a", 4), opaque("y", 4, duration_s=1.0), opaque("b", 4)]
    result = run("dally:auto=false,node=0,rack=500", [*free, opaque("eight", 8, submit_s=10.0)])
    assert starts(result)["eight"] == 510.0
    assert len({RACKS.node_rack[node] for node in first_nodes(result, "eight")}) == 2


def test_others_are_served_while_a_job_waits_for_its_place() -> None:
    jobs = [*half_taken(opaque("four", 4, submit_s=10.0)), opaque("two", 2, submit_s=20.0, duration_s=1.0)]
    assert starts(run("dally:auto=false,node=100", jobs, ONE_RACK))["two"] == 20.0


def test_timers_are_the_mean_of_accepted_waits_and_k_standard_deviations() -> None:
    policy = Dally(k=2.0, node_s=77.0)
    jobs = [opaque(f"j{i}", 4, duration_s=10.0) for i in range(4)]
    assert policy.timer_s(LinkClass.NODE, 4) == 77.0
    run(policy, jobs, Cluster.parse("v100:1x4"))
    waits = [0.0, 10.0, 20.0, 30.0]  # one after the other
    assert policy.timer_s(LinkClass.NODE, 4) == pytest.approx(np.mean([*waits, *[77.0] * 3]) + 2.0 * np.std(waits))
    assert policy.timer_s(LinkClass.NODE, 2) == 77.0
    assert policy.timer_s(LinkClass.RACK, 4) == policy.rack_s


def test_a_job_that_the_network_starves_moves_to_a_better_place_when_there_is_one() -> None:
    """Across racks the job computes for a tenth of its time; when a node becomes free it goes there, and says why."""
    jobs = [
        opaque("w", 4, duration_s=3000.0),
        opaque("x", 2, duration_s=30_000.0),
        opaque("y", 4, duration_s=20_000.0),
        opaque("z", 3, duration_s=30_000.0),
        chatty("spread", 3, submit_s=1.0),
    ]
    moved = run("dally:auto=false,node=0,rack=0", jobs)
    stints = [stint for job in moved.jobs if job.facts.id == "spread" for stint in job.stints]
    assert [len(stint.placement) for stint in stints] == [2, 1]
    assert stints[1].start_s == 3000.0
    assert any("moves to slots on one node" in reason for reason in moved.reasons.counts())
    stays = run("dally:auto=false,node=0,rack=0,preempt=false", jobs)
    assert all(len(stint.placement) == 2 for job in stays.jobs if job.facts.id == "spread" for stint in job.stints)


def test_a_job_that_computes_well_where_it_is_stays() -> None:
    jobs = [opaque("w", 4, duration_s=3000.0), opaque("x", 2), opaque("y", 4), opaque("z", 3), opaque("spread", 3)]
    result = run("dally:auto=false,node=0,rack=0", jobs)
    assert all(len(job.stints) == 1 for job in result.jobs)


def test_jobs_that_found_an_empty_cluster_do_not_end_the_waiting_of_those_that_come_later() -> None:
    first = [opaque(f"x{i}", 4, duration_s=1.0, submit_s=10.0 * i) for i in range(3)]
    later = [opaque(name, 2, submit_s=100.0) for name in "abc"]
    short = [opaque("y", 2, submit_s=100.0, duration_s=1.0)]
    result = run(
        "dally:node=600", [*first, *later[:1], *short, *later[1:], opaque("four", 4, submit_s=200.0)], ONE_RACK
    )
    assert starts(result)["four"] > 200.0


def test_a_node_that_is_down_is_not_waited_for() -> None:
    """The only node of eight slots is down: a job of eight slots takes the rack at once, though timers are infinite."""
    cluster = Cluster.from_yaml("nodes: [{type: v100, slots: 8}, {type: v100, count: 2, slots: 4, first: 1}]")
    facts = JobFacts(id="eight", submitted_s=0.0, requested_slots=8, max_slots=8)
    down = ClusterView(5.0, cluster, (JobView(facts=facts),), (0, 4, 4), (0, 4, 4))
    decided = make_policy("dally:auto=false,node=inf,rack=inf").decide(down)
    assert decided.assignments == {"eight": ((1, 4), (2, 4))}
    both = (JobView(facts=facts), JobView(facts=replace(facts, id="other")))
    decided = make_policy("dally:auto=false,node=inf,rack=inf").decide(replace(down, jobs=both, usable_slots=(8, 4, 4)))
    assert decided.assignments == {"eight": ((0, 8),)}
    assert decided.reasons == {"other": "waits for 8 slots on one node, however long it takes"}


@pytest.mark.parametrize(("slots", "makes_way"), [(1, False), (2, True)])
def test_a_starved_job_makes_way_only_where_more_slots_compute_then(slots: int, makes_way: bool) -> None:
    """Four slots across racks compute for a third of their time: as much as 1.4 that need no network."""
    whole = [opaque("a", 4, 1.0), opaque("b", 4, 40_000.0), opaque("c", 4, 1.0), opaque("d", 4, 40_000.0)]
    halves = [
        opaque(name, 2, duration_s, 2.0) for name, duration_s in (("e", 4e4), ("e2", 2.0), ("f", 4e4), ("f2", 2.0))
    ]
    jobs = [*whole, *halves, chatty("spread", 4, submit_s=10.0), opaque("new", slots, 5000.0, 700.0)]
    result = run("dally:auto=false,node=0,rack=0", jobs, FASTER_RACKS)
    spread, new = result.jobs[-2:]
    assert len(spread.stints[0].placement) == 2
    assert (new.stints[0].start_s == 700.0) is makes_way
    assert any("makes way for new, which then is on one node" in why for why in result.reasons.counts()) is makes_way
    assert len(spread.stints) == 1 + makes_way
    assert spread.completed_s is not None


def view_of(now_s: float, jobs: Sequence[JobView], cluster: Cluster = RACKS) -> ClusterView:
    slots = tuple(cluster.node_slots.tolist())
    free = list(slots)
    for job in jobs:
        for node, count in job.allocation:
            free[node] -= count
    return ClusterView(now_s, cluster, tuple(jobs), slots, tuple(free))


def standing(name: str, slots: int, *nodes: int, computes: float = 0.1) -> JobView:
    """A job that runs on equal parts of some nodes and computes for a part of its time, or waits without nodes."""
    limits = {"v100": BatchLimits(initial=1, largest=1, smallest_per_slot=1, largest_per_slot=1)}
    facts = JobFacts(
        id=name, submitted_s=0.0, requested_slots=slots, min_slots=slots, max_slots=slots, limits=limits, kind="net"
    )
    if not nodes:
        return JobView(facts=facts)
    each = slots // len(nodes)
    seen = Observation(
        nodes=len(nodes), slots=slots, busiest_node_slots=each, per_slot_batch=1, accumulation_s=computes, step_s=1.0
    )
    allocation = tuple((node, each) for node in nodes)
    return JobView(facts=facts, allocation=allocation, slots=slots, gpu_type="v100", started_s=0.0, observed=seen)


def test_a_starved_job_gets_a_better_place_before_those_who_wait_and_leaves_them_its_own() -> None:
    policy = make_policy("dally:auto=false,node=0,rack=0")
    starved = standing("starved", 4, 0, 2)
    full = [standing("a", 2, 0, computes=1.0), standing("b", 2, 2, computes=1.0), standing("c", 4, 1, computes=1.0)]
    waiting = standing("waiting", 4)
    policy.decide(view_of(0.0, [*full, starved, standing("d", 4, 3, computes=1.0)]))
    decided = policy.decide(view_of(1000.0, [*full, starved, waiting]))
    assert decided.assignments == {"starved": ((3, 4),), "waiting": ((0, 2), (2, 2))}
    early = make_policy("dally:auto=false,node=0,rack=0")
    early.decide(view_of(0.0, [*full, starved, standing("d", 4, 3, computes=1.0)]))
    assert early.decide(view_of(599.0, [*full, starved, waiting])).assignments == {"waiting": ((3, 4),)}  # its quantum


def test_the_job_that_computes_least_goes_first() -> None:
    """One node is free for two starved jobs; and one waiting job can have the slots of either."""
    both = [standing("more", 4, 0, 2, computes=0.4), standing("less", 4, 1, 3, computes=0.1)]
    rest = [standing(f"r{node}", 2, node, computes=1.0) for node in (0, 1, 2)]
    policy = make_policy("dally:auto=false,node=0,rack=0")
    policy.decide(view_of(0.0, [*both, *rest]))
    swapped = policy.decide(view_of(1000.0, [*both, *rest, standing("r3", 2, 3, computes=1.0), standing("new", 2)]))
    assert swapped.assignments["less"] == ()
    assert "more" not in swapped.assignments
    wider = Cluster.from_yaml("network: {zone: 0.1GB/s}\nnodes: [{type: v100, count: 6, slots: 4, nodes_per_rack: 2}]")
    policy = make_policy("dally:auto=false,node=0,rack=0")
    others = [*rest, standing("r3", 2, 3, computes=1.0), standing("r5", 4, 5, computes=1.0)]
    policy.decide(view_of(0.0, [*both, *others, standing("r4", 4, 4, computes=1.0)], wider))
    moved = policy.decide(view_of(1000.0, [*both, *others], wider))
    assert moved.assignments == {"less": ((4, 4),), "more": ((0, 2), (1, 2))}


def test_a_waiting_job_takes_the_place_of_a_starved_one_and_no_other() -> None:
    """A place that it does not accept yet, where nobody has to leave, is no reason to stop somebody."""
    policy = make_policy("dally:auto=false,node=5000,rack=6000")
    starved = standing("starved", 2, 0, 2)
    rest = [standing(name, 3, node, computes=1.0) for name, node in (("a", 0), ("c", 2))]
    rest += [standing("b", 2, 1, computes=1.0), standing("d", 2, 3, computes=1.0)]
    policy.decide(view_of(0.0, [starved, *rest]))
    decided = policy.decide(view_of(1000.0, [replace(starved, facts=replace(starved.facts, requested_slots=4)), *rest]))
    assert decided.assignments == {}
    decided = policy.decide(view_of(1000.0, [*rest, standing("three", 3)]))
    assert decided.assignments == {}


def test_jobs_wait_longer_for_a_closer_place_where_their_kind_has_been_seen_to_compute_little() -> None:
    """With a tenth of the time for computing across racks, a job accepts that after ten times the timer."""
    policy = Dally(node_s=0.0, rack_s=60.0, preempt=False)
    seen = standing("seen", 8, 0, 2)
    rest = [standing("a", 4, 1, computes=1.0)]
    policy.decide(view_of(0.0, [seen, *rest]))
    decided = policy.decide(view_of(100.0, [*rest, standing("b", 4, 3, computes=1.0), standing("new", 8)]))
    assert decided.wake_at_s == pytest.approx(600.0)
    assert "for 600 s at most" in decided.reasons["new"]


def test_places_are_searched_for_each_kind_of_waiting_job_and_not_for_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark's 1,000 jobs, about half of which run and are starved: hundreds of thousands of searches else."""
    searches = 0
    find = Places.find

    def counting(self: Places, job: JobFacts, widest: LinkClass) -> tuple[LinkClass, Allocation] | None:
        nonlocal searches
        searches += 1
        return find(self, job, widest)

    monkeypatch.setattr(Places, "find", counting)
    rows = decisions.run(policies=["dally"], progress=lambda _: None)
    assert [row.policy for row in rows] == ["dally", decisions.STARVED_ROW]
    assert 500 < searches < 10_000


def test_timers_may_be_infinite_and_nothing_else() -> None:
    policy = make_policy("dally:node=inf,rack=INF")
    assert isinstance(policy, Dally)
    assert policy.node_s == float("inf")
    for wrong in ("node=-1", "node=nan", "k=inf", "below=2", "quantum=0"):
        with pytest.raises(InvalidInput, match=wrong.split("=")[0]):
            make_policy(f"dally:{wrong}")


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    count = draw(st.integers(1, 12))
    return [
        opaque(
            f"j{i}",
            draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])),
            duration_s=draw(st.sampled_from([10.0, 500.0, 4000.0])),
            submit_s=draw(st.sampled_from([0.0, 0.0, 5.0, 300.0, 2500.0])),
        )
        for i in range(count)
    ]


@settings(max_examples=examples(40))
@given(traces(), st.sampled_from(["dally", "dally:auto=false,node=0,rack=0", "dally:auto=false,node=inf,rack=inf"]))
def test_every_job_is_done_on_its_slots_whatever_the_timers(jobs: list[TraceJob], policy: str) -> None:
    jobs.sort(key=lambda job: job.submit_s)
    result = run(policy, jobs)
    assert not result.rejected
    assert all(job.completed_s is not None for job in result.jobs)
    asked = {job.name: job.requested_slots for job in jobs}
    assert all(sum(stint.placement) == asked[job.facts.id] for job in result.jobs for stint in job.stints)


@settings(max_examples=examples(40))
@given(traces())
def test_without_end_nobody_ever_stands_further_apart_than_it_must(jobs: list[TraceJob]) -> None:
    result = run("dally:auto=false,node=inf,rack=inf", sorted(jobs, key=lambda job: job.submit_s))
    for job in result.jobs:
        closest = LinkClass.NODE if job.facts.requested_slots <= 4 else LinkClass.RACK
        if job.facts.requested_slots <= 8:
            assert all(stint.crossing.path.tier is closest for stint in job.stints)
