"""Where live nodes stand: a cluster file goes before their labels, and labels that disagree break nothing."""

from __future__ import annotations

from geminid.cluster import Cluster
from geminid.nodes import NodeGroup
from geminid.serve.executors.topology import Topology

DESCRIBED = Cluster.from_yaml(
    """
gpu_types: {a100: {relative_cost: 7}, t4: {}}
network: {rack_uplink: {oversubscription: 4}}
nodes:
  - {type: a100, slots: 8, name: a, rack: r1, zone: north}
  - {type: a100, slots: 8, name: b, rack: r2, zone: north}
  - {type: t4, slots: 4, name: absent, rack: r3}
"""
)


def node(name: str, rack: str | None = None, zone: str = "zone-0", *, slots: int = 8, gpu_type: str = "a100"):
    return NodeGroup(gpu_type=gpu_type, slots=slots, name=name, rack=rack, zone=zone)


def places(cluster: Cluster) -> dict[str, tuple[str, str]]:
    return {node.name: (node.zone, node.rack) for node in cluster.nodes}


def test_a_file_says_where_nodes_stand_and_what_joins_them():
    cluster = Topology(DESCRIBED).cluster_of([node("b", "elsewhere"), node("a"), node("new", "r9", "south")])
    assert places(cluster) == {"a": ("north", "r1"), "b": ("north", "r2"), "new": ("south", "r9")}
    assert cluster.network == DESCRIBED.network
    assert [(one.name, one.relative_cost) for one in cluster.gpu_types] == [("a100", 7.0)]
    assert cluster.links.limited


def test_without_a_file_labels_say_it():
    cluster = Topology().cluster_of([node("b", "r2"), node("a", "r1", "north")])
    assert places(cluster) == {"a": ("north", "r1"), "b": ("zone-0", "r2")}


def test_a_rack_that_labels_put_into_two_zones_is_in_that_of_the_file_or_of_the_first_node():
    labelled = [node("c", "r1", "south"), node("d", "r7", "south"), node("e", "r7", "west")]
    assert places(Topology(DESCRIBED).cluster_of([*labelled, node("a")])) == {
        "a": ("north", "r1"),
        "c": ("north", "r1"),
        "d": ("south", "r7"),
        "e": ("south", "r7"),
    }
    assert places(Topology().cluster_of(labelled))["e"] == ("south", "r7")


def test_what_differs_from_the_file_is_said_and_what_is_there_counts():
    topology = Topology(DESCRIBED)
    seen = node("a", slots=4, gpu_type="t4")
    assert topology.differences(seen) == "type t4, not a100 and 4 slots, not 8"
    assert topology.cluster_of([seen]).slots_per_type == {"t4": 4}
    assert topology.differences(node("b")) == topology.differences(node("new")) == ""
    assert Topology().differences(seen) == ""
