"""Configurations, placements and batch plans: what a job can be given."""

import pytest

from geminid.configuration import BatchPlan, Configuration, Placement, double_grants
from geminid.fields import InvalidInput


def test_configurations_are_values_with_an_order() -> None:
    small = Configuration(gpu_type="t4", nodes=1, slots=2)
    large = Configuration(gpu_type="t4", nodes=2, slots=8)
    assert sorted([large, small]) == [small, large]
    assert len({small, large, Configuration(gpu_type="t4", nodes=1, slots=2)}) == 2


def test_configurations_are_shown_as_people_say_them() -> None:
    assert str(Configuration(gpu_type="t4", nodes=1, slots=2)) == "2 × t4 on 1 node"
    assert str(Configuration(gpu_type="h100", nodes=2, slots=16, plan="zero")) == "16 × h100 on 2 nodes as zero"


def test_every_node_of_a_configuration_has_a_slot() -> None:
    with pytest.raises(InvalidInput, match="slots is 3, but must be at least one for each of the 4 nodes"):
        Configuration(gpu_type="t4", nodes=4, slots=3)


def test_a_bad_configuration_has_all_its_problems_reported() -> None:
    with pytest.raises(InvalidInput) as error:
        Configuration.from_dict({"gpu_type": "a b", "nodes": 0, "plan": 3, "slot": 1})
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["slots", "plan", "gpu_type", "nodes", "slot"]


def test_a_placement_knows_its_nodes_and_slots() -> None:
    placement = Placement.of({"b-1": [3, 2], "a-0": [0]})
    assert placement.slots_by_node == (("a-0", (0,)), ("b-1", (2, 3)))
    assert (placement.num_nodes, placement.num_slots) == (2, 3)
    assert placement.node_names == ("a-0", "b-1")
    assert list(placement.slots()) == [("a-0", 0), ("b-1", 2), ("b-1", 3)]


def test_equal_placements_are_equal_values_however_they_were_given() -> None:
    assert Placement.of({"a": [1, 0], "b": [0]}) == Placement.of({"b": [0], "a": [0, 1]})


@pytest.mark.parametrize(
    "slots_by_node",
    [
        (),
        (("a", ()),),
        (("a", (1, 0)),),
        (("a", (0, 0)),),
        (("a", (-1,)),),
        (("b", (0,)), ("a", (0,))),
        (("a", (0,)), ("a", (1,))),
        (("a b", (0,)),),
    ],
)
def test_a_placement_names_each_node_and_slot_once_in_order(
    slots_by_node: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    with pytest.raises(InvalidInput):
        Placement(slots_by_node=slots_by_node)


def test_a_bad_placement_names_the_bad_slot() -> None:
    with pytest.raises(InvalidInput, match=r"b\[1\] is 'x', but must be a whole number"):
        Placement.from_dict({"a": [0], "b": [0, "x"]})


def test_slots_granted_twice_are_found() -> None:
    first, second = Placement.of({"a": [0, 1]}), Placement.of({"a": [1, 2], "b": [0]})
    assert double_grants([first, second]) == {("a", 1)}
    assert double_grants([first, Placement.of({"a": [2]}), Placement.of({"b": [0, 1]})]) == set()


def test_the_total_batch_is_slots_times_batch_times_accumulated_steps() -> None:
    assert BatchPlan(per_slot_batch_samples=32).total_batch(slots=4) == 128
    assert BatchPlan(per_slot_batch_samples=32, accumulation_steps=3).total_batch(slots=4) == 512


def test_a_batch_plan_has_samples() -> None:
    with pytest.raises(InvalidInput) as error:
        BatchPlan(per_slot_batch_samples=0, accumulation_steps=-1)
    assert len(error.value.problems) == 2
