"""What nodes of a Ray cluster are called, and what they offer: for as long as they live, whoever joins or leaves."""

import pytest

from geminid.serve.executors.ray.actors import in_a_line
from geminid.serve.executors.ray.nodes import Known, successors


def node(node_id: str, name: str, address: str = "", **resources: float) -> dict:
    return {
        "NodeID": node_id,
        "NodeName": name,
        "NodeManagerAddress": address or f"10.0.0.{node_id}",
        "Resources": resources or {"CPU": 4.0},
    }


def test_a_node_keeps_its_name_when_a_namesake_comes_and_goes():
    first, namesake = node("1", "a"), node("2", "a")
    alone = Known().after([first])
    assert alone.names == {"1": "a"}
    both = alone.after([namesake, first])
    assert both.names == {"1": "a", "2": "10.0.0.2"}
    assert both.after([namesake]).names == {"2": "10.0.0.2"}
    assert both.after([first]).names == {"1": "a"}


def test_a_node_that_is_started_anew_waits_until_what_it_was_before_is_given_up():
    before, anew, namesake = node("1", "a", "10.0.0.1"), node("2", "a", "10.0.0.1"), node("3", "a", "10.0.0.3")
    known = Known().after([before])
    assert successors([before, anew, namesake], known.names) == {"2"}
    assert successors([anew, namesake], known.names) == set()
    assert known.after([anew]).names == {"2": "a"}


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ([node("1", "a"), node("2", "a")], ["10.0.0.1", "10.0.0.2"]),  # nobody was first
        ([node("1", ""), node("2", "no name")], ["10.0.0.1", "10.0.0.2"]),
        ([node("1", "10.0.0.1"), node("2", "10.0.0.1")], ["10.0.0.1", "10.0.0.2"]),
        ([node("1", "x", "10.0.0.9"), node("2", "x", "10.0.0.9")], ["10.0.0.9-1", "10.0.0.9-2"]),
        ([node("1", "10.0.0.2"), node("2", "b")], ["10.0.0.1", "b"]),  # that is another's address
    ],
)
def test_every_node_has_a_name_of_its_own(nodes, names):
    assert list(Known().after(nodes).names.values()) == names


def test_cpus_are_slots_only_until_the_first_node_with_slots_of_its_own_comes():
    cpus, more, gpus = node("1", "a"), node("2", "b"), node("3", "c", CPU=4.0, GPU=2.0)
    before = Known().after([cpus])
    assert (before.typed, before.cpu_nodes) == (False, {"1"})
    during = before.after([cpus, gpus])
    assert (during.typed, during.cpu_nodes) == (True, {"1"})  # for the jobs that it has
    later = during.after([cpus, more, gpus])
    assert later.cpu_nodes == {"1"}
    assert later.after([cpus, more]).cpu_nodes == {"1"}  # the GPUs are gone, and CPUs are nobody's for that
    assert later.after([more]).cpu_nodes == frozenset()


def test_what_an_installer_could_not_do_is_told_in_its_words():
    told = (
        "Failed to set up.\nTraceback …\n    ERROR: tip\n    \x1b[31mERROR: No matching distribution found for x\nend"
    )
    assert in_a_line(RuntimeError(told)) == "ERROR: No matching distribution found for x"
    missing = "The actor died\nTraceback …\nModuleNotFoundError: No module named 'geminid'\nat least it was not found"
    assert in_a_line(RuntimeError(missing)) == "ModuleNotFoundError: No module named 'geminid'"
    assert in_a_line(ValueError("one\ntwo")) == "ValueError: one"
