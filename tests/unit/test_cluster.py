"""Clusters: both ways to write them, what can be looked up, and what is refused."""

import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

from geminid import nodes
from geminid.cluster import Cluster
from geminid.documents import load_yaml
from geminid.fields import InvalidInput
from geminid.gputypes import ALIASES, CATALOGUE, GpuType, Interconnect, Link, LinkClass, named_gpu_type
from geminid.nodes import Node

DOCS = Path(__file__).parents[2] / "docs"

TOPOLOGY = """
gpu_types:
  mine: {memory: 24GiB, relative_cost: 0.5, interconnect: {rack: {bandwidth: 1.25GB/s, latency: 5us}}}
nodes:
  - {type: mine, count: 5, slots: 2, nodes_per_rack: 2, zone: east}
  - {type: mine, count: 2, slots: 4, prefix: big, rack: tall, zone: west}
  - {type: h100, slots: 8, name: lonely, rack: tall, zone: west}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as error:
        Cluster.parse(text)
    return str(error.value).splitlines()


def file_problems(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as error:
        Cluster.from_yaml(text)
    return str(error.value).splitlines()


# --- The short form ---


def test_the_short_form_gives_types_nodes_and_slots() -> None:
    cluster = Cluster.parse("aws:6x4,dgx-ext:2x8,rtx:3x8")
    assert cluster.total_slots == 64
    assert dict(cluster.slots_per_type) == {"aws": 24, "dgx-ext": 16, "rtx": 24}
    assert dict(cluster.nodes_per_type) == {"aws": 6, "dgx-ext": 2, "rtx": 3}
    assert dict(cluster.largest_node_slots) == {"aws": 4, "dgx-ext": 8, "rtx": 8}
    assert [node.name for node in cluster.nodes][:2] == ["aws-0", "aws-1"]
    assert cluster.nodes[-1] == Node(name="rtx-2", gpu_type="rtx", slots=8)


def test_the_short_form_tolerates_spaces_and_other_crosses() -> None:
    assert Cluster.parse(" aws : 6 X 4 , rtx:3×8 ") == Cluster.parse("aws:6x4,rtx:3x8")


def test_a_type_may_come_in_several_sizes_of_node() -> None:
    cluster = Cluster.parse("v100:2x4,t4:1x4,v100:1x8")
    assert [(node.name, node.slots) for node in cluster.nodes if node.gpu_type == "v100"] == [
        ("v100-0", 4),
        ("v100-1", 4),
        ("v100-2", 8),
    ]
    assert cluster.slots_per_type["v100"] == 16


@pytest.mark.parametrize("text", ["aws:6x4,dgx-ext:2x8,rtx:3x8", "v100:2x4,t4:1x4,v100:1x8", "x:1x1"])
def test_the_short_form_is_written_back(text: str) -> None:
    assert Cluster.parse(text).short_form() == text


def test_a_cluster_with_racks_or_names_has_no_short_form() -> None:
    assert Cluster.from_yaml(TOPOLOGY).short_form() is None
    named = Cluster(gpu_types=(named_gpu_type("t4"),), nodes=(Node(name="n", gpu_type="t4", slots=1),))
    assert named.short_form() is None


def test_all_mistakes_of_the_short_form_are_reported_at_once() -> None:
    assert problems("aws:0x4, aws:6,,t4:1x2,t4:1x2,h 100:2x2,x:99999999999999999999x8") == [
        "group 1 of the cluster is 'aws:0x4', but the number of nodes must be a whole number, at least 1 "
        "and at most 1000000.",
        "group 2 of the cluster is 'aws:6', but must have the form TYPE:NODESxSLOTS, for example v100:2x8.",
        "group 3 of the cluster is '', but must have the form TYPE:NODESxSLOTS, for example v100:2x8.",
        "group 5 of the cluster is 't4:1x2', but repeats a group of t4 nodes with 2 slots; give their sum once.",
        "group 6 of the cluster is 'h 100:2x2', but the type must be a name of up to 63 letters, digits, "
        "'.', '_' and '-' that starts with a letter or digit.",
        "group 7 of the cluster is 'x:99999999999999999999x8', but the number of nodes must be a whole "
        "number, at least 1 and at most 1000000.",
    ]


@pytest.mark.parametrize("text", ["", " ", ",", "aws", "aws:", "aws:x", "aws:-1x4", "aws:1x4x2", ":1x1", "a:1x9999"])
def test_malformed_short_forms_are_refused(text: str) -> None:
    assert problems(text)


def test_a_cluster_too_large_to_handle_is_refused_before_it_is_built() -> None:
    assert problems("h100:1000000x1024") == ["slots in all is 1024000000, but must be a whole number, at most 1000000."]


def test_nodes_of_groups_are_like_nodes_made_by_hand() -> None:
    for node in Cluster.from_yaml(TOPOLOGY).nodes:
        assert node == Node(name=node.name, gpu_type=node.gpu_type, slots=node.slots, rack=node.rack, zone=node.zone)
        assert hash(node) == hash(replace(node))
        with pytest.raises(FrozenInstanceError):
            node.slots = 3  # type: ignore[misc]


def test_what_a_group_has_checked_is_not_checked_again_for_each_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[str] = []
    monkeypatch.setattr(nodes, "check_name", lambda field, value: checks.append(field) or [])
    assert Cluster.parse("h100:1000x1").total_slots == 1000
    assert len(checks) < 10


def test_racks_may_be_larger_than_groups() -> None:
    cluster = Cluster.from_dict({"nodes": [{"type": "t4", "count": 2, "slots": 1, "nodes_per_rack": 10**15}]})
    assert cluster.racks == ("t4-rack-0",)


def test_names_of_racks_never_get_too_long() -> None:
    group = {"type": "t" * 60, "slots": 1, "name": "n", "nodes_per_rack": 1}
    with pytest.raises(InvalidInput, match=r"type is .* must have at most 40 characters, as names of nodes or racks"):
        Cluster.from_dict({"gpu_types": {"t" * 60: {}}, "nodes": [group]})


@pytest.mark.parametrize("text", ["h100:12500x8", "h100:100000x1"])
def test_a_hundred_thousand_slots_are_a_normal_cluster(text: str) -> None:
    assert Cluster.parse(text).total_slots == 100_000


# --- GPU types ---


def test_the_catalogue_gives_memory_cost_and_links() -> None:
    a100 = Cluster.parse("a100-40gb:1x8").gpu_type("a100-40gb")
    assert a100.memory_bytes == 39 * 2**30
    assert a100.relative_cost > CATALOGUE["t4"].relative_cost
    assert a100.interconnect.node.bandwidth_bytes_per_s == 300e9


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_links_get_slower_with_distance(name: str) -> None:
    links = [CATALOGUE[name].interconnect.link(link).bandwidth_bytes_per_s for link in LinkClass]
    assert links == sorted(links, reverse=True)


def test_names_are_found_in_any_case_and_by_alias_and_keep_their_spelling() -> None:
    assert named_gpu_type("H100").memory_bytes == CATALOGUE["h100"].memory_bytes
    assert named_gpu_type("aws").memory_bytes == CATALOGUE["t4"].memory_bytes
    assert (named_gpu_type("H100").name, named_gpu_type("aws").name) == ("H100", "aws")
    assert set(ALIASES.values()) <= set(CATALOGUE)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("aws", "t4"),
        ("azure", "v100"),
        ("dgx", "a100-40gb"),
        ("dgx-ext", "a100-40gb"),
        ("quad", "quadro-rtx6000"),
        ("rtx", "rtx2080ti"),
    ],
)
def test_the_types_of_published_workloads_are_in_the_catalogue(name: str, meant: str) -> None:
    assert replace(named_gpu_type(name), name=meant) == CATALOGUE[meant]
    assert Cluster.from_dict({"nodes": [{"type": name, "slots": 8}]}).total_slots == 8


def test_an_unknown_type_in_the_short_form_is_a_plain_card() -> None:
    unknown = Cluster.parse("tpu:1x4").gpu_type("tpu")
    assert (unknown.memory_bytes, unknown.relative_cost) == (16 * 2**30, 1.0)


# --- The file form ---


def test_the_file_form_gives_racks_zones_names_and_types() -> None:
    cluster = Cluster.from_yaml(TOPOLOGY)
    assert [(node.name, node.rack, node.zone) for node in cluster.nodes] == [
        ("mine-0", "mine-rack-0", "east"),
        ("mine-1", "mine-rack-0", "east"),
        ("mine-2", "mine-rack-1", "east"),
        ("mine-3", "mine-rack-1", "east"),
        ("mine-4", "mine-rack-2", "east"),
        ("big-0", "tall", "west"),
        ("big-1", "tall", "west"),
        ("lonely", "tall", "west"),
    ]
    assert cluster.racks == ("mine-rack-0", "mine-rack-1", "mine-rack-2", "tall")
    assert cluster.zones == ("east", "west")
    mine = cluster.gpu_type("mine")
    assert mine.memory_bytes == 24 * 2**30
    assert mine.interconnect.rack == Link(bandwidth_bytes_per_s=1.25e9, latency_s=5e-6)


def test_the_file_form_is_written_back_without_loss() -> None:
    cluster = Cluster.from_yaml(TOPOLOGY)
    assert Cluster.from_yaml(cluster.to_yaml()) == cluster
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_the_numbering_of_racks_goes_on_from_group_to_group() -> None:
    group = {"type": "t4", "count": 2, "slots": 1, "nodes_per_rack": 1}
    cluster = Cluster.from_dict({"nodes": [group, group]})
    assert [node.rack for node in cluster.nodes] == [f"t4-rack-{i}" for i in range(4)]


def test_nodes_that_have_gone_leave_gaps_that_are_written_back() -> None:
    cluster = Cluster.parse("t4:5x4")
    without = Cluster(gpu_types=cluster.gpu_types, nodes=(*cluster.nodes[:1], *cluster.nodes[3:]))
    assert Cluster.from_dict(without.to_dict()) == without
    assert without.short_form() is None


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    text = """
    gpu_types:
      mine: {memory: lots, relative_cos: 3, interconnect: {node: {bandwith: 3GB/s}, rack: 3Gb/s}}
    nodes:
      - {type: mine, slots: four, cuont: 3}
      - {type: t4, slots: 0, count: true}
      - {type: h10, slots: 8, name: a, count: 2}
      - {type: h10, slots: 8, rack: r, zone: y}
      - {type: t4, slots: 8, rack: r, zone: z}
      - 17
    racks: 1
    """
    assert [re.split(r" (?:is|must) ", problem)[0] for problem in file_problems(text)] == [
        "gpu_types.mine.memory",
        "gpu_types.mine.interconnect.node.bandwidth",
        "gpu_types.mine.interconnect.node.bandwith",
        "gpu_types.mine.interconnect.rack",
        "gpu_types.mine.relative_cos",
        "nodes[5]",
        "nodes[0].slots",
        "nodes[0].cuont",
        "nodes[1].count",
        "nodes[1].slots",
        "nodes[2].name",
        "nodes.type",
        "nodes.rack",
        "racks",
    ]


def test_a_type_that_is_nowhere_declared_is_refused_with_a_guess() -> None:
    assert file_problems("nodes: [{type: h10, slots: 8}]") == [
        "nodes.type is 'h10', but must be declared in gpu_types or be in the catalogue (did you mean h100?)."
    ]


@pytest.mark.parametrize("text", ["", "nodes: []", "{}"])
def test_a_cluster_has_at_least_one_node(text: str) -> None:
    assert len(file_problems(text)) == 1


def test_names_are_unique() -> None:
    assert file_problems("nodes: [{type: t4, slots: 1, name: a}, {type: t4, slots: 1, name: a}]") == [
        "nodes is 'a', but must have a name of its own, and 2 have this one."
    ]


# --- What can be looked up ---


def test_arrays_follow_the_order_of_nodes_and_cannot_be_changed() -> None:
    cluster = Cluster.from_yaml(TOPOLOGY)
    assert cluster.node_slots.tolist() == [2, 2, 2, 2, 2, 4, 4, 8]
    assert cluster.node_type.tolist() == [0] * 7 + [1]
    assert cluster.node_rack.tolist() == [0, 0, 1, 1, 2, 3, 3, 3]
    assert cluster.node_zone.tolist() == [0] * 5 + [1] * 3
    assert not any(array.flags.writeable for array in (cluster.node_slots, cluster.node_type, cluster.node_rack))
    assert np.array_equal(cluster.node_slots, [node.slots for node in cluster.nodes])


def test_an_unknown_name_is_refused_with_a_guess() -> None:
    cluster = Cluster.parse("h100:2x8")
    assert cluster.node("h100-1").slots == 8
    with pytest.raises(InvalidInput, match=r"node is 'h100-11', but must be one of the cluster's 2 \(did you mean"):
        cluster.node("h100-11")
    with pytest.raises(InvalidInput, match=r"gpu_type is 'v100', but must be one of the cluster's 1"):
        cluster.gpu_type("v100")


@pytest.mark.parametrize(
    ("nodes", "link_class"),
    [
        (["mine-0"], LinkClass.NODE),
        (["mine-0", "mine-1"], LinkClass.RACK),
        (["mine-0", "mine-2"], LinkClass.ZONE),
        (["mine-0", "big-0"], LinkClass.CLUSTER),
    ],
)
def test_the_link_class_is_the_smallest_part_that_holds_all_nodes(nodes: list[str], link_class: LinkClass) -> None:
    assert Cluster.from_yaml(TOPOLOGY).link_class(nodes) is link_class


def test_values_check_themselves() -> None:
    fast = Link(bandwidth_bytes_per_s=1e9)
    links = Interconnect(node=fast, rack=fast, zone=fast, cluster=fast)
    with pytest.raises(InvalidInput, match="memory is 0"):
        GpuType(name="x", memory_bytes=0, interconnect=links)
    with pytest.raises(InvalidInput, match="bandwidth is 0"):
        Link(bandwidth_bytes_per_s=0)
    with pytest.raises(InvalidInput, match="slots is 0"):
        Node(name="x", gpu_type="t4", slots=0)
    with pytest.raises(InvalidInput, match="must be one of gpu_types"):
        Cluster(gpu_types=(), nodes=(Node(name="x", gpu_type="t4", slots=1),))


# --- The documentation ---


def test_the_example_of_the_documentation_is_valid() -> None:
    text = (DOCS / "cluster-file.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        cluster = Cluster.from_yaml(example)
        assert Cluster.from_yaml(cluster.to_yaml()) == cluster
        assert load_yaml(example)["nodes"]


def test_the_documentation_lists_the_whole_catalogue() -> None:
    text = (DOCS / "cluster-file.md").read_text()
    assert [name for name in (*CATALOGUE, *ALIASES) if f"`{name}`" not in text] == []
