"""The links of a cluster: what its file may say of them, and what any nodes of it are joined by."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from geminid.cli.main import app
from geminid.cluster import Cluster
from geminid.fields import InvalidInput
from geminid.gputypes import LinkClass
from geminid.network import MESSAGE_BYTES

GB = 1e9

NODES = """
nodes:
  - {type: v100, count: 4, slots: 4, nodes_per_rack: 2, rack: a, zone: north}
  - {type: v100, count: 2, slots: 4, rack: b, zone: south}
"""


def cluster(network: str = "") -> Cluster:
    return Cluster.from_yaml(f"network: {network}\n{NODES}" if network else NODES)


def test_links_come_from_the_gpu_types_where_the_file_says_nothing() -> None:
    links = cluster().links
    assert links.tiers == (LinkClass.RACK, LinkClass.ZONE, LinkClass.CLUSTER)
    assert not links.limited
    assert links.crossing((0,)).path == (LinkClass.NODE, 1.0)
    assert links.crossing((0, 1)).path == (LinkClass.RACK, 1.0)
    assert links.crossing((1, 2)).path == (LinkClass.ZONE, 2.0)  # the catalogue: 3.125 GB/s, and half of it
    assert links.crossing((0, 4)).path == (LinkClass.CLUSTER, 2.5)
    assert links.crossing((0, 4)).uplinks == ()


def test_a_cluster_of_one_rack_has_one_tier() -> None:
    links = Cluster.parse("v100:8x4").links
    assert links.tiers == (LinkClass.RACK,)
    assert not links.several_racks


def test_the_network_of_a_file_goes_before_the_gpu_types() -> None:
    """Slowdowns are against the GPU type's own link within a rack (3.125 GB/s), which profiles were measured on."""
    links = cluster("{rack: 2.5GB/s, zone: 1.25GB/s, cluster: {bandwidth: 1GB/s, latency: 10ms}}").links
    assert links.crossing((0, 1)).path == (LinkClass.RACK, 1.25)
    assert links.crossing((1, 2)).path.slowdown == 2.5
    message_s = MESSAGE_BYTES / GB + 0.01
    assert links.crossing((0, 4)).path.slowdown == pytest.approx(3.125 * GB * message_s / MESSAGE_BYTES)


def test_narrow_links_within_racks_slow_everybody_down_who_is_on_several_nodes() -> None:
    links = cluster("{rack: 1GB/s, zone: 10GB/s}").links
    assert links.crossing((0,)).path.slowdown == 1.0
    assert links.crossing((0, 1)).path.slowdown == links.slowdown(LinkClass.RACK, 0) == 3.125
    assert links.crossing((1, 2)).path.slowdown == 3.125  # across racks it goes through both racks
    fast = cluster("{rack: 6.25GB/s}").links
    assert fast.crossing((0, 1)).path.slowdown == 0.5
    in_one_rack = [
        Cluster.from_yaml(f"network: {{rack: {own}}}\nnodes: [{{type: v100, count: 4, slots: 4}}]")
        for own in ("1GB/s", "3.125GB/s")
    ]
    assert [one.links.as_profiled for one in in_one_rack] == [False, True]


def test_uplinks_carry_their_part_of_what_is_below() -> None:
    links = cluster("{zone: 10GB/s, rack_uplink: {oversubscription: 4}, zone_uplink: 2GB/s}").links
    assert links.capacity.tolist() == [1.5625 * GB, 1.5625 * GB, 1.5625 * GB, 2 * GB, 2 * GB]
    assert links.limited
    assert links.crossing((0, 1)).uplinks == ()
    assert links.crossing((0, 2)).uplinks == (0, 1)
    assert links.crossing((0, 2)).path.slowdown == 1.0  # half of the link is what a V100's collectives reach anyway
    assert links.crossing((0, 4)).uplinks == (0, 2, 3, 4)


def test_a_tier_is_as_slow_as_the_path_of_most_nodes_that_cross_it() -> None:
    links = cluster("{zone: 10GB/s, cluster: 8GB/s, rack_uplink: 1.25GB/s, zone_uplink: 312.5MB/s}").links
    assert links.slowdown(LinkClass.RACK, 0) == 1.0
    assert links.slowdown(LinkClass.ZONE, 0) == links.crossing((1, 2)).path.slowdown == 1.25
    assert links.slowdown(LinkClass.CLUSTER, 0) == links.crossing((0, 4)).path.slowdown == 5.0


def test_efficiency_limits_what_nodes_send_and_not_what_an_uplink_carries() -> None:
    """Time = max(bytes / (efficiency · link), bytes / uplink)."""
    types = (
        "gpu_types: {{v100: {{interconnect: {{zone: 3.125GB/s, efficiency: {}}}}}}}\nnetwork: {{rack_uplink: 1GB/s}}\n"
    )
    slowdowns = [
        Cluster.from_yaml(types.format(efficiency) + NODES).links.crossing((0, 2)).path.slowdown
        for efficiency in (1.0, 0.5, 0.2)
    ]
    assert slowdowns == [3.125, 1.5625, 1.0]


def test_a_zone_is_oversubscribed_over_what_its_racks_send() -> None:
    network = "{rack: 10GB/s, cluster: 10GB/s, rack_uplink: {oversubscription: 2}, zone_uplink: {oversubscription: 5}}"
    assert cluster(network).links.capacity.tolist() == [10 * GB, 10 * GB, 10 * GB, 4 * GB, 2 * GB]


def test_a_network_is_written_and_read_again() -> None:
    network = "{rack: {bandwidth: 10GB/s, latency: 5us}, zone: 4GB/s, rack_uplink: {oversubscription: 4}}"
    described = cluster(network)
    assert Cluster.from_yaml(described.to_yaml()) == described
    assert described.short_form() is None
    assert "network" not in cluster().to_dict()


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ("{rak: 10GB/s}", "network.rak"),
        ("{rack: -3GB/s}", "network.rack"),
        ("{rack_uplink: {oversubscription: 0}}", "network.rack_uplink.oversubscription is 0"),
        ("{rack_uplink: {oversubscription: 2, bandwidth: 1GB/s}}", "network.rack_uplink must have either a bandwidth"),
        ("{zone_uplink: {}}", "network.zone_uplink must have either a bandwidth or an oversubscription"),
        ("fast", "network"),
    ],
)
def test_what_is_wrong_with_a_network_is_said_with_its_field(network: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        cluster(network)


def test_validate_says_what_the_network_means(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"network: {{rack: 10GB/s, zone: 5GB/s, cluster: 1GB/s, rack_uplink: 2GB/s}}\n{NODES}")
    told = " ".join(CliRunner().invoke(app, ["validate", str(file)]).output.split())
    as_long = "take this many times as long as over the GPU type's own link within a rack"
    assert f"Gradients in one rack {as_long}: v100 0.312." in told
    assert f"Gradients across racks {as_long}: v100 0.781." in told
    assert f"Gradients across zones {as_long}: v100 3.12." in told
    assert "Uplinks carry 2 GB/s each" in told
