"""Which slots of a shared cluster are not for our jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.serve.executors.ray.foreign_slots import REFUSED_S, UNFIT_S, OthersSlots
from geminid.testing.clock import ManualClock

indices = st.sets(st.integers(0, 5))


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@given(indices, indices, st.integers(0, 8))
def test_no_slot_that_we_hold_is_taken_and_as_many_are_as_others_have(held, refused, count):
    slots = OthersSlots(ManualClock())
    slots.refuse(("a", index) for index in refused)
    taken = slots.count("a", 6, count, held) or ()
    assert not set(taken) & held
    assert len(taken) == min(6 - len(held), max(count, len(refused - held)))
    assert refused - held <= set(taken)
    assert slots.count("a", 6, count, held) is None
    assert all(slots.has("a", index) == (index in taken) for index in range(6))


def test_what_ray_has_refused_is_left_alone_for_a_while(clock):
    slots = OthersSlots(clock)
    slots.refuse([("a", 0)])
    assert slots.count("a", 2, 0, set()) == (0,)
    assert not slots.forget_waits()
    clock.at_s += REFUSED_S
    assert slots.forget_waits()
    assert slots.count("a", 2, 0, set()) == ()


def test_a_node_that_cannot_be_used_keeps_only_what_we_hold_there(clock):
    slots = OthersSlots(clock)
    assert slots.spare(["a", "c"], "no room") == ["a", "c"]
    assert slots.spare(["a", "c"], "no room") == []
    assert slots.count("a", 3, 0, {1}) == (0, 2)
    assert slots.count("b", 3, 0, {1}) is None
    assert slots.count("c", 1, 1, set()) == (0,)
    assert [slots.why_unfit(node) for node in "abc"] == ["no room", "", "no room"]
    clock.at_s += UNFIT_S
    assert slots.forget_waits()
    assert slots.count("a", 3, 0, {1}) == ()
    assert slots.count("c", 1, 1, set()) == (0,)  # as before, and for another reason
    assert [slots.why_unfit(node) for node in "abc"] == ["", "", ""]


def test_slots_that_turn_out_not_to_be_ours_are_others_until_their_node_is_counted_again():
    slots = OthersSlots(ManualClock())
    assert slots.mark([("a", 1), ("b", 0), ("a", 0)]) == {"a": (0, 1), "b": (0,)}
    assert slots.count("a", 2, 1, set()) == (1,)
    slots.lose_node("b")
    assert slots.taken == {"a": (1,)}
