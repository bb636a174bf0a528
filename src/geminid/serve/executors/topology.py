"""Where the nodes of a live cluster stand, and what joins them: from a cluster file, or from the nodes' labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from geminid.cluster import Cluster
from geminid.network import FROM_GPU_TYPES
from geminid.nodes import DEFAULT_RACK, Node, NodeGroup


@dataclass(frozen=True, slots=True)
class Topology:
    """What is known of nodes before they are there.

    ``described`` is the cluster file of ``geminid up --cluster``. Nodes of the live cluster are found in it by name;
    their rack and zone come from it, and the network and the GPU types' links as well. A node that the file does not
    name keeps the rack and zone of its labels.
    """

    described: Cluster | None = None

    def cluster_of(self, nodes: Iterable[NodeGroup]) -> Cluster:
        """The cluster of the nodes that there are.

        A rack is in one zone. If labels put it into several, the file decides, or else the first node by name.
        """
        nodes = sorted((self.placed(node) for node in nodes), key=lambda node: node.name or "")
        if self.described is None:
            zones: dict[str, str] = {}
            declared, network = [], FROM_GPU_TYPES
        else:
            zones = {node.rack: node.zone for node in self.described.nodes}
            used = {node.gpu_type for node in nodes}
            declared = [gpu_type for gpu_type in self.described.gpu_types if gpu_type.name in used]
            network = self.described.network
        in_one_zone = [replace(node, zone=zones.setdefault(node.rack or DEFAULT_RACK, node.zone)) for node in nodes]
        return Cluster.of_groups(in_one_zone, declared, network)

    def differences(self, node: NodeGroup) -> str:
        """How a node differs from its description, in words; empty if it does not."""
        described = self._description(node)
        if described is None:
            return ""
        parts = []
        if described.gpu_type != node.gpu_type:
            parts.append(f"type {node.gpu_type}, not {described.gpu_type}")
        if described.slots != node.slots:
            parts.append(f"{node.slots} slots, not {described.slots}")
        return " and ".join(parts)

    def placed(self, node: NodeGroup) -> NodeGroup:
        """A node with the rack and zone of its description, if it has one."""
        described = self._description(node)
        return node if described is None else replace(node, rack=described.rack, zone=described.zone)

    def _description(self, node: NodeGroup) -> Node | None:
        if self.described is None or node.name is None or node.name not in self.described.node_index:
            return None
        return self.described.node(node.name)
