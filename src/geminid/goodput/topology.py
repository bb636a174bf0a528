"""What the cluster's links mean for the model: bandwidths become the ratios that step times scale with."""

from __future__ import annotations

from collections.abc import Iterable

from geminid.cluster import Cluster
from geminid.gputypes import GpuType, LinkClass


def link_slowdown(cluster: Cluster, node_names: Iterable[str]) -> float:
    """How much slower the narrowest link among these nodes is than the GPU type's own link within a rack.

    1 on a single node, or within a rack that is joined by the type's own links; what
    :class:`geminid.goodput.throughput.Shape` asks for.
    """
    nodes = sorted(cluster.node_index[cluster.node(name).name] for name in set(node_names))
    return cluster.links.crossing(tuple(nodes)).path.slowdown


def link_time_ratio(known: GpuType, new: GpuType) -> float:
    """How much longer a message takes between nodes of the new type than between nodes of the known one."""
    before, after = known.interconnect.link(LinkClass.RACK), new.interconnect.link(LinkClass.RACK)
    return before.bandwidth_bytes_per_s / after.bandwidth_bytes_per_s
