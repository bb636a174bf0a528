"""Commands lead from any allocations to any plan, and slots are named as the commands say, no slot twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.engine.commands import Rescale, Start, Stop
from geminid.engine.plan import Plan
from geminid.engine.reconcile import reconcile
from geminid.nodes import NodeGroup
from geminid.policies.base import Allocation, JobFacts, JobView, slots_of
from geminid.serve import targets
from geminid.serve.translation import allocation_of

SLOTS = 4
CLUSTER = Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=SLOTS, name=name) for name in ("a", "b")])
JOBS = ("j1", "j2", "j3", "j4")


@st.composite
def allocations(draw: st.DrawFn) -> dict[str, Allocation]:
    """Slots of each node for some jobs, no more than there are."""
    free = [SLOTS] * len(CLUSTER.nodes)
    given: dict[str, Allocation] = {}
    for job_id in JOBS:
        counts = [draw(st.integers(0, left)) for left in free]
        free = [left - count for left, count in zip(free, counts, strict=True)]
        given[job_id] = tuple((node, count) for node, count in enumerate(counts) if count)
    return given


def view(job_id: str, allocation: Allocation) -> JobView:
    facts = JobFacts(id=job_id, submitted_s=0.0, requested_slots=1, min_slots=1, max_slots=2 * SLOTS)
    return replace(JobView(facts=facts), allocation=allocation, slots=slots_of(allocation))


def plan_of(wanted: dict[str, Allocation]) -> Plan:
    given = {job_id: allocation for job_id, allocation in wanted.items() if allocation}
    return Plan(named=JOBS, allocations=given, partners={}, reasons={})


@given(before=allocations(), after=allocations())
def test_commands_lead_to_the_plan_and_free_slots_first(
    before: dict[str, Allocation], after: dict[str, Allocation]
) -> None:
    jobs = {job_id: view(job_id, allocation) for job_id, allocation in before.items()}
    commands = reconcile(plan_of(after), jobs, [SLOTS] * 2)
    result = dict(before)
    for command in commands:
        match command:
            case Stop():
                assert result[command.job_id] == command.before != ()
                result[command.job_id] = ()
            case Start():
                assert result[command.job_id] == ()
                result[command.job_id] = command.allocation
            case Rescale():
                assert result[command.job_id] == command.before != command.allocation
                result[command.job_id] = command.allocation
    assert result == after
    assert {command.job_id for command in commands} == {job for job in JOBS if before[job] != after[job]}
    kinds = [isinstance(command, Stop) for command in commands]
    assert kinds == sorted(kinds, reverse=True)
    held = {job_id: view(job_id, allocation) for job_id, allocation in after.items()}
    assert reconcile(plan_of(after), held, [SLOTS] * 2) == []


@given(before=allocations(), after=allocations(), closed=st.sets(st.integers(0, SLOTS - 1), max_size=2))
def test_targets_are_what_the_commands_say(
    before: dict[str, Allocation], after: dict[str, Allocation], closed: set[int]
) -> None:
    actual: dict[str, Placement | None] = dict.fromkeys(JOBS)
    actual |= targets.name_slots({job: slots for job, slots in before.items() if slots}, {}, CLUSTER, [])
    jobs = {job_id: view(job_id, allocation) for job_id, allocation in before.items()}
    room = SLOTS - len(closed)
    used = Counter(dict.fromkeys(range(2), 0))
    for job_id, allocation in after.items():  # a plan gives out no closed slots
        after[job_id] = tuple((node, min(n, room - used[node])) for node, n in allocation if used[node] < room)
        used.update(dict(after[job_id]))
    commands = reconcile(plan_of(after), jobs, [room] * 2)
    out = {(name, slot) for name in ("a", "b") for slot in closed}
    desired = {job_id: allocation for job_id, allocation in after.items() if allocation}
    changes = targets.reconcile(commands, desired, actual, CLUSTER, closed=out)
    result = actual | changes
    for job_id, place in result.items():
        assert (() if place is None else allocation_of(place, CLUSTER)) == after[job_id]
    slots = [slot for place in result.values() if place is not None for slot in place.slots()]
    assert len(slots) == len(set(slots))
    assert not out & set(slots)
    commanded = {command.job_id for command in commands}
    for job_id in changes.keys() - commanded:  # only what it had to leave
        place = actual[job_id]
        assert place is not None
        assert set(place.slots()) & out
    assert commanded <= changes.keys()
