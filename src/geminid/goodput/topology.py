"""What the cluster's links mean for the model: bandwidths become the ratios that step times scale with."""

from __future__ import annotations

from collections.abc import Iterable

from geminid.cluster import Cluster
from geminid.gputypes import GpuType, LinkClass


def link_slowdown(cluster: Cluster, node_names: Iterable[str]) -> float:
    """How much slower the narrowest link among these nodes is than one between two nodes of a rack.

    1 on a single node or within a rack; what :class:`geminid.goodput.throughput.Shape` asks for.
    """
    names = list(node_names)
    link_class = cluster.link_class(names)
    if link_class in (LinkClass.NODE, LinkClass.RACK):
        return 1.0
    links = cluster.gpu_type(cluster.node(names[0]).gpu_type).interconnect
    rack, crossed = links.link(LinkClass.RACK), links.link(link_class)
    return max(1.0, rack.bandwidth_bytes_per_s / crossed.bandwidth_bytes_per_s)


def link_time_ratio(known: GpuType, new: GpuType) -> float:
    """How much longer a message takes between nodes of the new type than between nodes of the known one."""
    before, after = known.interconnect.link(LinkClass.RACK), new.interconnect.link(LinkClass.RACK)
    return before.bandwidth_bytes_per_s / after.bandwidth_bytes_per_s
