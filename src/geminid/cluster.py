"""The cluster: nodes with slots, in racks, in zones.

A :class:`Cluster` is an immutable value. It is written in two ways: the short form ``aws:6x4,dgx-ext:2x8``
(six nodes with four slots of type ``aws``, two with eight of type ``dgx-ext``), and a mapping or YAML file
with groups of nodes, which can also say racks, zones, names, the network and the properties of GPU types. Whatever
policies and solvers look up again and again is computed once, on first use, as arrays over the nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from geminid.documents import Document
from geminid.fields import InvalidInput, Problem, Reader, show, suggestion
from geminid.gputypes import CATALOGUE, GpuType, LinkClass, is_in_catalogue, named_gpu_type
from geminid.network import FROM_GPU_TYPES, Links, Network
from geminid.nodes import Node, NodeGroup, check_total, expand, group_nodes

# For clusters of a million nodes: mapped, these are several times faster than a generator.
_name, _gpu_type, _slots = attrgetter("name"), attrgetter("gpu_type"), attrgetter("slots")
_rack_and_zone = attrgetter("rack", "zone")

_SHORT_GROUP = re.compile(r"([^:]*):\s*([0-9]+)\s*[xX×]\s*([0-9]+)")


@dataclass(frozen=True, kw_only=True)  # without slots, so that cached properties have a place to live
class Cluster(Document):
    """All nodes of a cluster and their GPU types. Arrays are in the order of ``nodes`` and ``gpu_types``."""

    gpu_types: tuple[GpuType, ...]
    nodes: tuple[Node, ...] = field(repr=False)
    network: Network = FROM_GPU_TYPES

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise InvalidInput(problems)

    def _problems(self) -> Iterator[Problem]:
        if not self.nodes:
            yield Problem("nodes", self.nodes, "must name at least one node")
        for label, named in (("gpu_types", self.gpu_types), ("nodes", self.nodes)):
            if len(set(map(_name, named))) < len(named):
                for name, count in Counter(value.name for value in named).items():
                    if count > 1:
                        yield Problem(label, name, f"must have a name of its own, and {count} have this one")
        known = {gpu_type.name for gpu_type in self.gpu_types}
        for name in sorted(set(map(_gpu_type, self.nodes)) - known):
            yield Problem("nodes.type", name, f"must be one of gpu_types{suggestion(name, known)}")
        zones: dict[str, str] = {}
        for rack, zone in dict.fromkeys(map(_rack_and_zone, self.nodes)):
            if zones.setdefault(rack, zone) != zone:
                expected = f"must be in a single zone, not in both {zones[rack]} and {zone}"
                yield Problem("nodes.rack", rack, expected)
        yield from check_total(len(self.nodes), sum(map(_slots, self.nodes)))

    # --- What there is ---

    @cached_property
    def total_slots(self) -> int:
        """The number of slots of all nodes."""
        return int(self.node_slots.sum())

    @cached_property
    def slots_per_type(self) -> Mapping[str, int]:
        """The number of slots of each GPU type, zero included."""
        return self._per_type(self.node_slots)

    @cached_property
    def nodes_per_type(self) -> Mapping[str, int]:
        """The number of nodes of each GPU type, zero included."""
        return self._per_type(np.ones(len(self.nodes), dtype=np.int64))

    @cached_property
    def nodes_of_type(self) -> Mapping[str, tuple[int, ...]]:
        """The nodes of each GPU type, as indices into ``nodes``; types without any are left out."""
        by_type: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            by_type.setdefault(node.gpu_type, []).append(index)
        return MappingProxyType({name: tuple(indices) for name, indices in by_type.items()})

    @cached_property
    def largest_node_slots(self) -> Mapping[str, int]:
        """Slots of the largest node of each GPU type; types without nodes are left out."""
        largest = {name: max(self.nodes[n].slots for n in nodes) for name, nodes in self.nodes_of_type.items()}
        return MappingProxyType(largest)

    @cached_property
    def racks(self) -> tuple[str, ...]:
        """The racks, in the order in which the nodes name them."""
        return tuple(dict.fromkeys(node.rack for node in self.nodes))

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """The zones, in the order in which the nodes name them."""
        return tuple(dict.fromkeys(node.zone for node in self.nodes))

    @cached_property
    def type_index(self) -> Mapping[str, int]:
        """Where each GPU type stands in ``gpu_types``."""
        return _positions(gpu_type.name for gpu_type in self.gpu_types)

    @cached_property
    def node_index(self) -> Mapping[str, int]:
        """Where each node stands in ``nodes`` and in the arrays over nodes."""
        return _positions(node.name for node in self.nodes)

    @cached_property
    def node_slots(self) -> NDArray[np.int64]:
        """Each node's number of slots."""
        return _frozen_array(node.slots for node in self.nodes)

    @cached_property
    def node_type(self) -> NDArray[np.int64]:
        """Each node's GPU type, as an index into ``gpu_types``."""
        return _frozen_array(self.type_index[node.gpu_type] for node in self.nodes)

    @cached_property
    def node_rack(self) -> NDArray[np.int64]:
        """Each node's rack, as an index into ``racks``."""
        index = _positions(self.racks)
        return _frozen_array(index[node.rack] for node in self.nodes)

    @cached_property
    def node_zone(self) -> NDArray[np.int64]:
        """Each node's zone, as an index into ``zones``."""
        index = _positions(self.zones)
        return _frozen_array(index[node.zone] for node in self.nodes)

    @cached_property
    def links(self) -> Links:
        """The links between nodes: which tier any of them cross, and how slow it is."""
        interconnects = [gpu_type.interconnect for gpu_type in self.gpu_types]
        return Links.of(self.network, interconnects, self.node_rack, self.node_zone, self.node_type)

    def node(self, name: str) -> Node:
        """The node of a name; raises :class:`InvalidInput` if there is none."""
        return self.nodes[_look_up("node", name, self.node_index)]

    def gpu_type(self, name: str) -> GpuType:
        """The GPU type of a name; raises :class:`InvalidInput` if there is none."""
        return self.gpu_types[_look_up("gpu_type", name, self.type_index)]

    def link_class(self, node_names: Iterable[str]) -> LinkClass:
        """How far apart the slots of some nodes are: the smallest part of the cluster that holds them all."""
        return self.links.tier([_look_up("node", name, self.node_index) for name in set(node_names)])

    # --- How it is written ---

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the short form, ``TYPE:NODESxSLOTS`` separated by commas.

        All nodes stand in one rack. A type that the catalogue does not have is a plain PCIe card with 16 GiB
        (see :func:`geminid.gputypes.named_gpu_type`).
        """
        problems: list[Problem] = []
        groups: list[NodeGroup] = []
        for number, part in enumerate(text.split(","), start=1):
            label = f"group {number} of the cluster"
            match = _SHORT_GROUP.fullmatch(part.strip())
            if match is None:
                expected = "must have the form TYPE:NODESxSLOTS, for example v100:2x8"
                problems.append(Problem(label, part.strip(), expected))
                continue
            name, (nodes, slots) = match[1].strip(), (int(digits[:18]) for digits in match.groups()[1:])
            try:
                group = NodeGroup(gpu_type=name, count=nodes, slots=slots)
            except InvalidInput as error:
                reasons = " and ".join(f"the {bad.field} {bad.expected}" for bad in error.problems)
                reasons = reasons.replace("the count", "the number of nodes")
                problems.append(Problem(label, part.strip(), reasons))
                continue
            if any((group.gpu_type, group.slots) == (other.gpu_type, other.slots) for other in groups):
                expected = f"repeats a group of {name} nodes with {slots} slots; give their sum once"
                problems.append(Problem(label, part.strip(), expected))
            groups.append(group)
        if problems:
            raise InvalidInput(problems)
        return cls.of_groups(groups)

    def short_form(self) -> str | None:
        """The short form, or None for a cluster with racks, names or types that it cannot express."""
        text = ",".join(f"{group.gpu_type}:{group.count}x{group.slots}" for group in group_nodes(self.nodes))
        try:
            return text if Cluster.parse(text) == self else None
        except InvalidInput:
            return None

    @classmethod
    def of_groups(
        cls, groups: Iterable[NodeGroup], declared: Iterable[GpuType] = (), network: Network = FROM_GPU_TYPES
    ) -> Self:
        """The cluster of some groups of nodes; types that are not declared come from the catalogue."""
        nodes = expand(groups)
        types = {gpu_type.name: gpu_type for gpu_type in declared}
        for name in dict.fromkeys(map(_gpu_type, nodes)):
            types.setdefault(name, named_gpu_type(name))
        return cls(gpu_types=tuple(types.values()), nodes=nodes, network=network)

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read the mapping form: ``nodes`` (a list of groups), and optionally ``gpu_types`` (by name), ``network``."""
        return reader.attempt(lambda: cls.of_groups(*_read_parts(reader)))

    def to_dict(self) -> dict[str, Any]:
        """The mapping form, with every GPU type in full."""
        network = {} if self.network == FROM_GPU_TYPES else {"network": self.network.to_dict()}
        return {
            "gpu_types": {gpu_type.name: gpu_type.to_dict() for gpu_type in self.gpu_types},
            **network,
            "nodes": [group.to_dict() for group in group_nodes(self.nodes)],
        }

    def _per_type(self, weights: NDArray[np.int64]) -> Mapping[str, int]:
        sums = np.zeros(len(self.gpu_types), dtype=np.int64)
        np.add.at(sums, self.node_type, weights)
        return MappingProxyType(dict(zip(self.type_index, sums.tolist(), strict=True)))


def _read_parts(reader: Reader) -> tuple[list[NodeGroup], list[GpuType], Network]:
    """The groups, the declared types and the network of the mapping form.

    A type that is neither declared nor in the catalogue is refused here, unlike in the short form: in a file
    it is more likely a slip, and there is room to say what it is.
    """
    entries = reader.nested_by_name("gpu_types")
    types = [GpuType.read(entry, name) for name, entry in entries.items()]
    groups = [NodeGroup.read(entry) for entry in reader.nested_list("nodes")]
    for name in dict.fromkeys(group.gpu_type for group in groups if group):
        if name not in entries and not is_in_catalogue(name):
            hint = suggestion(name, [*entries, *CATALOGUE])
            reader.report("nodes.type", name, f"must be declared in gpu_types or be in the catalogue{hint}")
    entry = reader.nested("network") if reader.raw("network") is not None else None
    network = (entry and Network.read(entry)) or FROM_GPU_TYPES
    return [group for group in groups if group], [gpu_type for gpu_type in types if gpu_type], network


def _positions(names: Iterable[str]) -> Mapping[str, int]:
    return MappingProxyType({name: index for index, name in enumerate(names)})


def _frozen_array(values: Iterable[int]) -> NDArray[np.int64]:
    array = np.fromiter(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def _look_up(kind: str, name: str, index: Mapping[str, int]) -> int:
    if name not in index:
        expected = f"must be one of the cluster's {len(index)}{suggestion(show(name), index)}"
        raise InvalidInput([Problem(kind, name, expected)])
    return index[name]
