"""The service's own process inside a Ray cluster: whatever needs Ray happens here.

A Ray driver ends with its raylet, and after a while without the head; the service must not. So it starts this one,
talks with it over a socket, and starts another when it is gone. It looks at the cluster
twice a second, keeps an agent on every node that has slots, and takes and gives back slots as placement groups.
What both send each other is in ``messages.py``.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray import private
from geminid.serve.executors.ray.actors import NAMESPACE, end_named, in_a_line
from geminid.serve.executors.ray.autoscaler import request_capacity, withdraw_capacity
from geminid.serve.executors.ray.node_agents import LOOK_S, Answers, NodeAgents
from geminid.serve.executors.ray.nodes import (
    Known,
    accelerator_of,
    bundle_of,
    own_node,
    slots_of,
    successors,
    type_of,
)
from geminid.serve.executors.ray.shipping import Shipping
from geminid.serve.executors.ray.slot_leases import SlotLeases

#: Longest time to wait until the service has taken why this process ends.
TROUBLE_S = 5.0

#: A node that seems to be a restarted one is not used before Ray has given the earlier one up, or for this time.
SUCCESSION_S = 60.0

#: Most requests for slots that are carried out at a time.
WORKERS = 32

#: Number of looks in a row after which slots of others count as taken: counts of Ray lag a little.
LOOKS_TO_BELIEVE = 3


class Bridge:
    """See the module."""

    def __init__(self, connection: b.BridgeEnd, service: str, known: Known, forsaken_s: float, silent_s: float) -> None:
        self._connection, self._service, self._known = connection, service, known
        self._answers = Answers(connection)
        self._has_reported = False
        self._units: dict[str, tuple[str, str]] = {}
        self._bundles: dict[str, dict[str, float]] = {}
        self._succeeding: dict[str, float] = {}
        self._others: dict[str, deque[int]] = {}
        self._reported: list[b.SeenNode] | None = None
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="lease")
        self._agents = NodeAgents(service, self._answers, forsaken_s, silent_s)
        self._leases = SlotLeases(service, self._answers, self._units, self._bundles, self._report_again)
        self._shipping = Shipping(
            service,
            self._answers.send,
            lambda name: self._units[name][0],
            lambda name: self._agents.wait_for(self._units[name][0], name),
            lambda: self._agents.all,
        )

    def serve(self) -> None:
        """Serve until the service disconnects."""
        self._answers.send(b.Looked())
        self._leases.recall()
        self._look()  # whatever is asked for is of nodes that it must know
        look_at_s = 0.0
        while True:
            if self._connection.wait(max(0.0, look_at_s - monotonic())):
                for request in self._connection.receive():
                    if isinstance(request, b.End):
                        self._give_all_back()
                        return
                    self._handle(request)
            if monotonic() >= look_at_s:
                self._look()
                self._answers.send(b.Looked())
                look_at_s = monotonic() + LOOK_S

    def _report_again(self) -> None:
        """Have all nodes reported at the next look, though nothing may have changed."""
        self._reported = None

    # --- Nodes ---

    def _look(self) -> None:
        """Report all nodes that are alive, if anything has changed, and slots of theirs that were taken back."""
        alive = self._without_successors([node for node in ray.nodes() if node["Alive"]])
        self._leases.find_lost({node["NodeID"] for node in alive})
        free, draining = private.free_resources(), private.draining_nodes()
        self._know(alive)
        self._report(self._see(alive, free, draining))

    def _see(
        self, alive: list[dict[str, Any]], free: Mapping[str, Mapping[str, float]], draining: Collection[str]
    ) -> list[b.SeenNode]:
        """The nodes that have slots, of all that are alive."""
        ours = self._leases.count()
        seen = []
        for node in alive:
            name = self._known.names[node["NodeID"]]
            found = slots_of(node, by_cpu=node["NodeID"] in self._known.cpu_nodes)
            if found is None:
                continue
            unit, slots = found
            self._units[name] = (node["NodeID"], unit)
            labels = node.get("Labels") or {}
            there = free.get(node["NodeID"], {})
            bundle = self._bundles[name] = bundle_of(node, unit, slots)
            free_slots = 0.0 if unit == "CPU" and self._known.typed else min(there.get(part, 0.0) for part in bundle)
            others = self._others_on(node["NodeID"], slots - ours[name], free_slots)
            seen.append(
                b.SeenNode(
                    id=node["NodeID"],
                    name=name,
                    address=node["NodeManagerAddress"],
                    gpu_type=type_of(accelerator_of(node, labels)) if unit == "GPU" else "cpu",
                    slots=slots,
                    unit=unit,
                    bundle=bundle,
                    accelerator=accelerator_of(node, labels) if unit == "GPU" else None,
                    rack=labels.get("geminid.io/rack"),
                    zone=labels.get("ray.io/availability-zone") or None,
                    others=others,
                    draining=node["NodeID"] in draining,
                    resting=node["NodeID"] in self._agents.resting,
                    agent=self._agents.place(node["NodeID"], name),
                )
            )
        return seen

    def _report(self, seen: list[b.SeenNode]) -> None:
        """Report the nodes, if anything has changed since the last report."""
        if seen != self._reported:
            self._reported = seen
            again = None if self._has_reported else self._leases.sit_again()
            self._has_reported = True
            self._answers.send(b.Nodes(nodes=seen, found=again))

    def _without_successors(self, alive: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Nodes that were restarted are to keep their names, which they can once Ray has given the earlier ones up."""
        new = successors(alive, self._known.names)
        now_s = monotonic()
        self._succeeding = {node_id: self._succeeding.get(node_id, now_s) for node_id in new}
        waiting = {node_id for node_id, since_s in self._succeeding.items() if now_s - since_s < SUCCESSION_S}
        return [node for node in alive if node["NodeID"] not in waiting]

    def _know(self, alive: list[dict[str, Any]]) -> None:
        """Keep what nodes are called, and which offer their CPUs; written down where the next bridge finds it."""
        now = self._known.after(alive)
        if now != self._known:
            self._known = now
            now.keep(self._service)

    def _others_on(self, node_id: str, not_ours: int, free: float) -> int:
        """How many slots of a node others have, of those that are not ours: those that are not free."""
        counts = self._others.setdefault(node_id, deque(maxlen=LOOKS_TO_BELIEVE))
        counts.append(max(0, not_ours - math.floor(free + 1e-6)))
        return min(counts)

    def _rest(self, node_id: str) -> None:
        """End the agent of a node until it is needed again, and whatever keeps the environments of jobs there."""
        self._agents.resting.add(node_id)
        self._agents.end(node_id)
        self._shipping.forsake(node_id)

    # --- Slots ---

    def _handle(self, request: b.Request) -> None:
        match request:
            case b.Lease(slots=slots) if not {slot.rpartition("/")[0] for slot in slots} <= self._units.keys():
                self._answers.send(b.Refused(id=request.id, slots=slots, withheld=False))
            case b.Lease(slots=slots):
                self._agents.resting -= {self._units[slot.rpartition("/")[0]][0] for slot in slots}
                self._pool.submit(self._leases.lease, request.id, slots)
            case b.Ship(nodes=nodes) if not set(nodes) <= self._units.keys():
                self._answers.send(b.Unfit(id=request.id, nodes=nodes, reason=""))
            case b.Ship():
                self._shipping.bring(request.id, request.job, Path(request.code), request.nodes)
            case b.Unship():
                self._shipping.remove(request.id, request.job)
            case b.Release():
                for slot in request.slots:
                    self._leases.release(slot)
            case b.RequestCapacity(bundles=None):
                withdraw_capacity(self._service)
            case b.RequestCapacity(bundles=bundles):
                request_capacity(self._service, bundles or [])
            case b.Rest(node=node) if node in self._units:
                self._rest(self._units[node][0])
            case b.Replace(node=node) if node in self._units:
                self._agents.end(self._units[node][0])

    def _give_all_back(self) -> None:
        withdraw_capacity(self._service)
        Known.forget(self._service)
        for slot in list(self._leases.held):
            self._leases.release(slot)
        if leaving := [agent.leave.remote() for agent in self._agents.all]:
            ray.wait(leaving, num_returns=len(leaving), timeout=2.0)
        end_named(lambda name: name.startswith(f"{self._service}/"))


def main(address: str, service: str, forsaken_s: float, silent_s: float, descriptor: int) -> None:
    """Join the cluster and serve; whatever goes wrong is reported, and ends this process."""
    connection = b.bridge_end(socket.socket(fileno=descriptor))
    try:
        connection.send(b.Looked())  # joining may take long
        place = {} if (own := own_node(address)) is None else {"_node_ip_address": own}
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error", **place)
        Bridge(connection, service, Known.recalled(service), forsaken_s, silent_s).serve()
    except (EOFError, BrokenPipeError):
        pass  # the service is gone; agents and slots stay for the next one
    except BaseException as problem:
        with contextlib.suppress(OSError):
            connection.send(b.Trouble(text=in_a_line(problem)))
            connection.drain(TROUBLE_S)
    os._exit(0)  # Ray's own way out may wait for a raylet that is gone


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
