"""Reconciling desired and actual slots: nobody ever shares a slot, and everybody gets where they should be."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from geminid.serve.executors.reconcile import Acquire, Actual, Desired, Resize, Start, StopToMove, deadlocked, reconcile

SLOTS = tuple(f"s{number}" for number in range(6))


@st.composite
def situations(draw, *, all_ready: bool = False) -> tuple[list[Desired], dict[str, Actual]]:
    """Some jobs with disjoint desired slots, some of them running on other disjoint ones."""
    owners = draw(st.lists(st.sampled_from(["", "j0", "j1", "j2", "j3"]), min_size=6, max_size=6))
    holders = draw(st.lists(st.sampled_from(["", "j0", "j1", "j2", "j3"]), min_size=6, max_size=6))
    desired, actual = [], {}
    for job_id in ("j0", "j1", "j2", "j3"):
        elastic = draw(st.booleans())
        slots = tuple(slot for slot, owner in zip(SLOTS, owners, strict=True) if owner == job_id)
        held = tuple(slot for slot, holder in zip(SLOTS, holders, strict=True) if holder == job_id)
        if held:
            stopping = draw(st.booleans())
            actual[job_id] = Actual(job_id, held, frozenset(held), stopping, resizable=elastic)
        if slots:
            ready = frozenset(slots) if all_ready else frozenset(draw(st.sets(st.sampled_from(slots))))
            acquired = ready if all_ready else frozenset(draw(st.sets(st.sampled_from(slots))))
            least = draw(st.integers(1, len(slots)))
            may_start = all_ready or draw(st.booleans())
            desired.append(Desired(job_id, slots, ready, acquired, least, elastic, may_start))
    return desired, actual


def carried_out(actual: dict[str, Actual], actions) -> dict[str, Actual]:
    """What runs when actions were carried out, and no job has left anything yet."""
    after = dict(actual)
    for action in actions:
        match action:
            case Start(job_id=job_id, slots=slots):
                after[job_id] = Actual(job_id, slots, frozenset(slots))
            case Resize(job_id=job_id, slots=slots):
                after[job_id] = replace(after[job_id], slots=slots, holds=after[job_id].holds | set(slots))
            case StopToMove(job_id=job_id):
                after[job_id] = replace(after[job_id], stopping=True)
    return after


def settled(actual: dict[str, Actual], elastic: set[str]) -> dict[str, Actual]:
    """What runs when all jobs that were to stop have, and the others hold only what they were given."""
    return {
        job_id: replace(job, holds=frozenset(job.slots), resizable=job_id in elastic)
        for job_id, job in actual.items()
        if not job.stopping
    }


@given(situations())
def test_no_slot_is_given_to_two_jobs(situation):
    desired, actual = situation
    after = carried_out(actual, reconcile(desired, actual))
    held = [slot for job in after.values() for slot in job.holds]
    assert len(held) == len(set(held))


@given(situations())
def test_jobs_run_only_on_desired_slots_that_are_ready(situation):
    desired, actual = situation
    by_id = {job.job_id: job for job in desired}
    for action in reconcile(desired, actual):
        job = by_id[action.job_id]
        match action:
            case Start():
                assert action.job_id not in actual
                assert job.may_start
                assert set(action.slots) <= job.ready
                assert len(action.slots) >= (job.min_slots if job.elastic else len(job.slots))
            case Resize():
                assert actual[action.job_id].resizable
                assert set(action.slots) <= job.ready
            case StopToMove():
                assert not actual[action.job_id].resizable or action.job_id in deadlocked(desired, actual)
                assert not actual[action.job_id].stopping
            case Acquire():
                assert set(action.slots) <= set(job.slots)
                assert set(action.slots) - job.acquired


@given(situations())
def test_what_is_done_is_not_done_again(situation):
    desired, actual = situation
    after = carried_out(actual, reconcile(desired, actual))
    again = [action for action in reconcile(desired, after) if not isinstance(action, Acquire | Resize)]
    assert again == []


@given(situations(all_ready=True))
@settings(deadline=None)
def test_everybody_gets_to_their_slots_when_all_that_stop_have_stopped(situation):
    desired, actual = situation
    wanted = {job.job_id: job for job in desired}
    elastic = {job.job_id for job in desired if job.elastic}
    actual = {job_id: replace(job, stopping=job.stopping or job_id not in wanted) for job_id, job in actual.items()}
    for _ in range(12):
        actions = reconcile(desired, actual)
        actual = settled(carried_out(actual, actions), elastic)
    assert {job_id: job.slots for job_id, job in actual.items()} == {job.job_id: job.slots for job in desired}
    assert reconcile(desired, actual) == []


def test_a_job_starts_beside_one_that_was_asked_to_stop_if_that_is_enough():
    stopping = Actual("j1", ("s0",), frozenset({"s0"}), stopping=True)
    both = frozenset({"s0", "s1"})
    grows = Desired("j2", ("s0", "s1"), both, both, min_slots=1, elastic=True)
    assert reconcile([grows], {"j1": stopping}) == [Start("j2", ("s1",))]
    assert reconcile([replace(grows, min_slots=2)], {"j1": stopping}) == []
    assert reconcile([replace(grows, elastic=False)], {"j1": stopping}) == []
    assert reconcile([grows], {"j1": replace(stopping, stopping=False)}) == []


def test_of_jobs_that_are_to_swap_their_slots_the_smallest_stops_and_the_others_move():
    slots = {"j1": ("s0", "s1"), "j2": ("s2",), "j3": ("s3", "s4")}
    actual = {job_id: Actual(job_id, held, frozenset(held), resizable=True) for job_id, held in slots.items()}
    to = {"j1": slots["j2"], "j2": slots["j3"], "j3": slots["j1"]}
    desired = [Desired(job, new, frozenset(new), frozenset(new), elastic=True) for job, new in to.items()]
    assert reconcile(desired, actual) == [StopToMove("j2")]
    del actual["j2"]
    assert reconcile(desired, actual) == [Resize("j1", ("s2",))]
    elsewhere = Desired("j3", ("s5",), frozenset({"s5"}), frozenset({"s5"}), elastic=True)
    assert deadlocked([*desired[:2], elsewhere], actual) == set()
