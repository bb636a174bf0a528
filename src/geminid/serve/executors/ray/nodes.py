"""What nodes of a Ray cluster are called, and what they offer: as the bridge sees them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geminid.node.machine import is_of_this_machine
from geminid.serve.executors.ray.private import kv_delete, kv_get, kv_put, node_addresses

#: The resource that says how many CPU slots a node has.
SLOTS = "geminid_slot"

#: The label and the resource that name a GPU type in Ray.
ACCELERATOR_LABEL, ACCELERATOR = "ray.io/accelerator-type", "accelerator_type:"

#: Longest time to ask the head for its nodes, in seconds.
NODES_S = 10.0


@dataclass(frozen=True, slots=True)
class Known:
    """What stays true of nodes for as long as they live, though others come and go: Ray keeps it for the next bridge.

    ``names`` is what they are called, by their ids. Where none is ``typed`` (has GPUs or slots of its own), all offer
    their CPUs; these ``cpu_nodes`` keep the jobs that they have when the first typed one comes, and get no others.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    typed: bool = False
    cpu_nodes: frozenset[str] = frozenset()

    @classmethod
    def recalled(cls, service: str) -> Known:
        """What an earlier bridge of a service knew."""
        kept = kv_get(cls._key(service))
        plain = json.loads(kept) if kept else {}
        names, cpu_nodes = plain.get("names", {}), frozenset(plain.get("cpu_nodes", ()))
        return cls(names, bool(plain.get("typed", False)), cpu_nodes)

    def keep(self, service: str) -> None:
        """Write it down."""
        plain = {"names": self.names, "typed": self.typed, "cpu_nodes": sorted(self.cpu_nodes)}
        kv_put(self._key(service), json.dumps(plain).encode())

    @classmethod
    def forget(cls, service: str) -> None:
        """The service ends: the next one is free to see it otherwise."""
        kv_delete(cls._key(service))

    @staticmethod
    def _key(service: str) -> str:
        return f"geminid/{service}/nodes"

    def after(self, alive: list[dict[str, Any]]) -> Known:
        """What is known with these nodes, and no others."""
        ids = frozenset(node["NodeID"] for node in alive)
        typed = self.typed or any(slots_of(node, by_cpu=False) for node in alive)
        return Known(names(alive, self.names), typed, self.cpu_nodes & ids if typed else ids)


def slots_of(node: dict[str, Any], *, by_cpu: bool) -> tuple[str, int] | None:
    """What a slot of a node is one of, and how many there are; None if there are none."""
    resources = node.get("Resources", {})
    for unit in ("GPU", SLOTS, *(("CPU",) if by_cpu else ())):
        if resources.get(unit, 0.0) >= 1.0:
            return unit, int(resources[unit])
    return None


def bundle_of(node: dict[str, Any], unit: str, slots: int) -> dict[str, float]:
    """What Ray holds for a slot: one of its unit, and a CPU where there is one for each."""
    enough = node["Resources"].get("CPU", 0.0) >= slots
    return {unit: 1.0, **({"CPU": 1.0} if enough else {})}


def accelerator_of(node: dict[str, Any], labels: dict[str, str]) -> str | None:
    """What Ray calls the GPU type of a node, from its labels or its resources."""
    marked = [name for name in node["Resources"] if name.startswith(ACCELERATOR)]
    return labels.get(ACCELERATOR_LABEL) or (marked[0].removeprefix(ACCELERATOR) if marked else None)


def type_of(accelerator: str | None) -> str:
    """The name that Geminid has for a GPU type of Ray's."""
    return re.sub(r"[^a-z0-9.]+", "-", (accelerator or "gpu").lower()).strip("-") or "gpu"


def names(nodes: list[dict[str, Any]], known: Mapping[str, str]) -> dict[str, str]:
    """A name for each node, by its id: its own if it is one and nobody else's, or its address, with its id if need be.

    One that is ``known`` by a name keeps it for as long as it lives, even if another comes with the same.
    """
    found = {node["NodeID"]: known[node["NodeID"]] for node in nodes if node["NodeID"] in known}
    taken = set(found.values())
    new = [node for node in nodes if node["NodeID"] not in known]
    own = Counter(node.get("NodeName") or "" for node in new)
    addresses = Counter(node["NodeManagerAddress"] for node in nodes)
    for node in new:
        name, address = node.get("NodeName") or "", node["NodeManagerAddress"]
        mine = name not in taken and own[name] == 1 and addresses[name] == (name == address)
        if not (mine and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name)):
            name = address if address not in taken and addresses[address] == 1 else f"{address}-{node['NodeID'][:8]}"
        found[node["NodeID"]] = name
    return found


def successors(nodes: list[dict[str, Any]], known: Mapping[str, str]) -> set[str]:
    """Nodes, by id, that seem to have been restarted before Ray has given up their earlier selves.

    They have both the name and the address of one that is known.
    """
    before = {(node.get("NodeName"), node["NodeManagerAddress"]) for node in nodes if node["NodeID"] in known}
    new = [node for node in nodes if node["NodeID"] not in known]
    return {node["NodeID"] for node in new if (node.get("NodeName"), node["NodeManagerAddress"]) in before}


def own_node(address: str) -> str | None:
    """The address of the node of a cluster that this machine is, which may not be the one at which its head is asked.

    None if that is for Ray to find out.
    """
    host = address.rpartition(":")[0]
    if not host:
        return None
    addresses = node_addresses(address, NODES_S)
    if host in addresses:
        return host if is_of_this_machine(host) else None
    return next(filter(is_of_this_machine, addresses), None)
