"""Jobs in clusters of several racks: predicted by the links they cross, brought together where that pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.fit import ThroughputFit, fit
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.table import JobModel
from geminid.goodput.throughput import MODELS, Shape
from geminid.gputypes import LinkClass
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, JobFacts, JobView, slots_of
from geminid.policies.geminid import Geminid
from geminid.policies.goodputs import Goodputs, closest_tier
from geminid.solve.placement import place

RACKS = Cluster.from_yaml(
    "network: {rack: 10GB/s, zone: 1GB/s}\nnodes: [{type: v100, count: 4, slots: 4, nodes_per_rack: 2}]"
)
ONE_RACK = Cluster.parse("v100:4x4")
LIMITS = BatchLimits(initial=256, largest=256, smallest_per_slot=8, largest_per_slot=64)
#: A pass of 64 samples takes 0.1 s, synchronising between nodes of a rack adds about 0.05 s and ten times that beyond.
TRUTH = np.array([0.01, 0.0015, 4.0, 0.001, 1e-4, 0.03, 1e-4, 1.0, 1e-8, 1e-10, 0.1, 0.5, 1.2])


def model() -> ThroughputFit:
    rows = []
    for nodes, slots, batch in ((1, 1, 16), (1, 1, 64), (1, 2, 32), (1, 4, 64), (2, 8, 32), (3, 12, 32), (4, 16, 16)):
        times = MODELS["geminid"].step_times(TRUTH, Shape.of(nodes, slots, batch))
        busiest = -(-slots // nodes)
        rows.append(
            Observation(
                nodes=nodes,
                slots=slots,
                per_slot_batch=batch,
                accumulation_s=float(times.accumulation_s),
                step_s=float(times.step_s),
                busiest_node_slots=busiest,
            )
        )
    return fit(Profile.of(rows), "geminid")


FITTED = model()


def job(name: str, slots: int, allocation: Allocation = (), *, left: float = 1e7, rescale_s: float = 10.0) -> JobView:
    """A rigid job with this much work left."""
    facts = JobFacts(
        id=name,
        submitted_s=0.0,
        requested_slots=slots,
        min_slots=slots,
        max_slots=slots,
        requested_batch=256,
        adaptivity=Adaptivity.RIGID,
        limits={"v100": LIMITS},
        rescale_s=rescale_s,
        work=left,
    )
    return JobView(
        facts=facts,
        allocation=allocation,
        slots=slots_of(allocation),
        gpu_type="v100" if allocation else None,
        started_s=0.0 if allocation else None,
        most_slots_measured=16,
        model=JobModel({"v100": FITTED}, {"v100": LIMITS}),
    )


def view(jobs: Sequence[JobView], cluster: Cluster = RACKS) -> ClusterView:
    usable = tuple(cluster.node_slots.tolist())
    free = list(usable)
    for each in jobs:
        for node, slots in each.allocation:
            free[node] -= slots
    return ClusterView(1000.0, cluster, tuple(jobs), usable, tuple(free))


def nodes_of(assignment: Configuration | Allocation) -> list[int]:
    assert not isinstance(assignment, Configuration)
    return [node for node, _ in assignment]


ACROSS = ((0, 4), (2, 4))


def test_a_configuration_counts_as_on_the_closest_tier_that_can_hold_it() -> None:
    tiers = [closest_tier(RACKS, Configuration(gpu_type="v100", nodes=n, slots=4 * n)) for n in (1, 2, 3)]
    assert tiers == [LinkClass.NODE, LinkClass.RACK, LinkClass.ZONE]


def test_the_configuration_that_a_job_has_counts_as_on_the_tier_where_it_stands() -> None:
    goodputs = Goodputs(growth=4.0)
    configurations, goodput = goodputs.of(view([job("near", 8, ((0, 4), (1, 4))), job("far", 8, ACROSS)]))
    column = configurations.index(Configuration(gpu_type="v100", nodes=2, slots=8))
    assert goodput[1, column] < 0.5 * goodput[0, column]
    assert goodputs.on_tier(1, column, LinkClass.RACK) == goodput[0, column]
    assert goodputs.on_tier(0, column, LinkClass.ZONE) == goodput[1, column]


def test_in_one_rack_the_table_is_as_it_was() -> None:
    goodputs = Goodputs(growth=4.0)
    configurations, goodput = goodputs.of(view([job("a", 8, ACROSS)], ONE_RACK))
    assert goodput.shape == (1, len(configurations))
    assert set(goodputs.per_slot_batch.shape) == {1, len(configurations)}


def test_a_job_across_racks_moves_into_one_when_that_pays_and_says_by_how_much() -> None:
    decision = Geminid().decide(view([job("far", 8, ACROSS)]))
    assert len({RACKS.node_rack[node] for node in nodes_of(decision.assignments["far"])}) == 1
    assert "to stand in one rack: " in decision.reasons["far"]
    assert "times as fast" in decision.reasons["far"]


@pytest.mark.parametrize("staying", [job("far", 8, ACROSS, left=100.0), job("far", 8, ACROSS, rescale_s=20_000.0)])
def test_a_job_that_is_nearly_done_or_dear_to_move_stays(staying: JobView) -> None:
    decision = Geminid().decide(view([staying]))
    assert decision.assignments["far"] == ACROSS
    assert "far" not in decision.reasons


def test_a_smaller_job_makes_room_where_that_pays_for_both() -> None:
    """Neither rack has two free nodes: a small job of one goes to the node that the large job leaves."""
    small = [job("s1", 4, ((1, 4),), rescale_s=1.0), job("s3", 4, ((3, 4),), rescale_s=1.0)]
    decision = Geminid().decide(view([job("far", 8, ACROSS), *small]))
    racks = {RACKS.node_rack[node] for node in nodes_of(decision.assignments["far"])}
    assert len(racks) == 1
    moved = [each for each in small if decision.assignments[each.id] != each.allocation]
    assert len(moved) == 1
    assert "makes room for far" in decision.reasons[moved[0].id]
    dear = [replace(each, facts=replace(each.facts, rescale_s=9000.0)) for each in small]
    stays = Geminid().decide(view([job("far", 8, ACROSS), *dear]))
    assert stays.assignments["far"] == ACROSS


def test_no_slot_is_given_twice_when_jobs_are_brought_together() -> None:
    jobs = [job("far", 8, ACROSS), job("s1", 2, ((1, 2),)), job("s3", 4, ((3, 4),)), job("new", 2)]
    decision = Geminid().decide(view(jobs))
    used = np.zeros(4, dtype=int)
    for assignment in decision.assignments.values():
        assert not isinstance(assignment, Configuration)
        for node, slots in assignment:
            used[node] += slots
    assert (used <= RACKS.node_slots).all()


def test_an_elastic_job_takes_fewer_slots_on_one_node_in_place_of_more_across_racks() -> None:
    """One node is left in each rack: eight slots across both are slower than four on one."""
    blocked = [job("s1", 4, ((1, 4),), rescale_s=1e5), job("s3", 4, ((3, 4),), rescale_s=1e5)]
    fresh = job("new", 8)
    elastic = replace(fresh, facts=replace(fresh.facts, min_slots=1, adaptivity=Adaptivity.FIXED_BATCH))
    decision = Geminid(share=False).decide(view([*blocked, elastic]))
    assert len(nodes_of(decision.assignments["new"])) == 1


def test_unequal_parts_of_one_job_are_put_into_one_rack() -> None:
    wanted = {"six": Configuration(gpu_type="v100", nodes=2, slots=7)}
    placed = place(RACKS, (4, 0, 4, 4), wanted, {})
    assert [node for node, _ in placed.allocations["six"]] == [2, 3]


@st.composite
def standing_jobs(draw: st.DrawFn) -> list[JobView]:
    """Jobs on any nodes of the racks, some waiting, without more slots than there are."""
    free, jobs = [4, 4, 4, 4], []
    for number in range(draw(st.integers(1, 6))):
        slots = draw(st.sampled_from([1, 2, 4, 8]))
        allocation, left = [], slots
        for node in draw(st.permutations(range(4))):
            part = min(free[node], 4 if slots == 8 else slots, left)
            if part == min(4, slots):
                allocation.append((node, part))
                left -= part
        if left or draw(st.booleans()):
            allocation = []
        for node, part in allocation:
            free[node] -= part
        rescale_s = draw(st.sampled_from([0.0, 10.0, 300.0]))
        jobs.append(job(f"j{number}", slots, tuple(sorted(allocation)), rescale_s=rescale_s))
    return jobs


@settings(max_examples=examples(60))
@given(standing_jobs())
def test_whatever_is_moved_every_job_gets_its_slots_once(jobs: list[JobView]) -> None:
    decision = Geminid(share=False).decide(view(jobs))
    used = np.zeros(4, dtype=int)
    for each in jobs:
        assignment = decision.assignments.get(each.id, ())
        assert not isinstance(assignment, Configuration)
        assert slots_of(assignment) in (0, each.facts.requested_slots)
        for node, slots in assignment:
            used[node] += slots
    assert (used <= RACKS.node_slots).all()


@settings(max_examples=examples(60))
@given(standing_jobs())
def test_nobody_that_stays_is_put_further_apart(jobs: list[JobView]) -> None:
    decision = Geminid(share=False).decide(view(jobs))
    order = [LinkClass.NODE, LinkClass.RACK, LinkClass.ZONE]
    for each in jobs:
        assignment = decision.assignments.get(each.id, ())
        if each.allocation and assignment:
            before, after = (RACKS.links.tier(nodes_of(place)) for place in (each.allocation, assignment))
            assert order.index(after) <= order.index(before)
