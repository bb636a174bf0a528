"""The service's own process inside a Ray cluster: whatever needs Ray happens here.

A Ray driver ends with its raylet, and after a while without the head; the service must not. So it starts this one,
talks with it over a socket, and starts another when it is gone. It looks at the cluster
twice a second, keeps an agent on every node that has slots, and takes and gives back slots as placement groups.
What both say to each other is in ``bridgemessages.py``.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import ray
from msgspec import convert
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from geminid import __version__
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray import private
from geminid.serve.executors.ray.actors import NAMESPACE, end_actor, end_named, in_a_line, why_it_died
from geminid.serve.executors.ray.agent import NodeAgent, lease_name
from geminid.serve.executors.ray.autoscaler import wish, wish_nothing
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
from geminid.serve.executors.ray.slot import GeminidSlot

#: Longest time to wait until the service has taken why this process ends.
TROUBLE_S = 5.0

#: The cluster is looked at so often.
LOOK_S = 0.4

#: Within so long it shows whether a node is gone where something could not be done.
NOTICED_S = 3.0

#: A slot that cannot be held within so long is somebody else's; to sit down in it may take so long, and for those that
#: an earlier bridge held it must not: nothing else happens meanwhile, and a bridge that is silent for long is ended.
LEASE_S, SEAT_S, SEAT_AGAIN_S = 5.0, 60.0, 15.0

#: What is told of a CPU slot before its actor is there: that it has no devices.
UNSEATED = b.Seat()

#: A node that seems to be one that we know, started anew, is not used before that is given up, or for so long.
SUCCESSION_S = 60.0

#: A node that has another version of Geminid is looked at again after so long.
OTHER_VERSION_S = 60.0

#: So many requests for slots are carried out at a time.
WORKERS = 32

#: An agent that cannot be started is tried again after so long, and twice as long each time up to a limit.
AGENT_S, AGENT_LIMIT_S = 1.0, 60.0

#: Slots of others are believed in when they have been seen so many times in a row: counts of Ray lag a little.
LOOKS_TO_BELIEVE = 3


@dataclass(slots=True)
class _Question:
    """Where an agent is: what will be its answer, and for how many looks it has been waited for."""

    answer: Any
    looks: int = 0


class Bridge:
    """See the module."""

    def __init__(self, connection: b.BridgeEnd, service: str, known: Known, forsaken_s: float, silent_s: float) -> None:
        self._connection, self._service, self._forsaken_s = connection, service, forsaken_s
        self._patient_looks = silent_s / LOOK_S  # not time: we may have stood still ourselves
        self._send_lock = threading.Lock()
        self._leases: dict[str, PlacementGroup] = {}
        self._seats: dict[str, Any] = {}  # the actor in a slot, or on its way there
        self._stays: dict[str, Any] = {}  # what is heard when it ends
        self._found = False
        self._units: dict[str, tuple[str, str]] = {}
        self._bundles: dict[str, dict[str, float]] = {}
        self._known = known
        self._succeeding: dict[str, float] = {}
        self._agents: dict[str, Any] = {}
        self._asked: dict[str, _Question] = {}
        self._again_at_s: dict[str, float] = {}
        self._places: dict[str, b.AgentPlace] = {}
        self._others: dict[str, deque[int]] = {}
        self._resting: set[str] = set()
        self._failed: dict[str, int] = {}  # how often in a row the agent of a node could not be started
        self._said: object = None
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="lease")
        self._shipping = Shipping(
            service,
            self._tell,
            lambda name: self._units[name][0],
            self._agent,
            lambda: list(self._agents.values()),
        )
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve until the service hangs up."""
        self._tell(b.Looked())
        self._find_leases()
        self._look()  # whatever is asked for is of nodes that it must know
        look_at_s = 0.0
        while True:
            if self._connection.wait(max(0.0, look_at_s - monotonic())):
                for request in self._connection.receive():
                    if isinstance(request, b.End):
                        self._give_all_back()
                        return
                    self._obey(request)
            if monotonic() >= look_at_s:
                self._look()
                self._tell(b.Looked())
                look_at_s = monotonic() + LOOK_S

    def _tell(self, answer: b.Answer) -> None:
        with self._send_lock:
            self._send(answer)

    def _send(self, answer: b.Answer) -> None:
        self._connection.send(answer)
        self._connection.drain(None)

    # --- Nodes ---

    def _look(self) -> None:
        """Tell of all nodes that are alive, if anything has changed, and of slots of theirs that were taken back."""
        alive = self._without_successors([node for node in ray.nodes() if node["Alive"]])
        self._lose({node["NodeID"] for node in alive})
        free, draining = private.free_resources(), private.draining_nodes()
        self._know(alive)
        self._tell_nodes(self._see(alive, free, draining))

    def _see(
        self, alive: list[dict[str, Any]], free: Mapping[str, Mapping[str, float]], draining: Collection[str]
    ) -> list[b.SeenNode]:
        """The nodes that have slots, of all that are alive."""
        with self._lock:
            ours = Counter(slot.rpartition("/")[0] for slot in self._leases)
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
                    resting=node["NodeID"] in self._resting,
                    agent=self._agent_on(node["NodeID"], name),
                )
            )
        return seen

    def _tell_nodes(self, seen: list[b.SeenNode]) -> None:
        """Tell of the nodes, if anything is otherwise than it was told last."""
        if seen != self._said:
            self._said = seen
            again = None if self._found else self._sit_again()
            self._found = True
            self._tell(b.Nodes(nodes=seen, found=again))

    def _without_successors(self, alive: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Nodes that were started anew are to have the names of what they were before, which Ray will give up soon."""
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

    def _agent_on(self, node_id: str, name: str) -> b.AgentPlace | None:
        """Where the agent of a node is; None if it is being started, or there is to be none."""
        if node_id in self._resting or monotonic() < self._again_at_s.get(node_id, 0.0):
            return None
        if node_id not in self._agents:
            options = {
                "name": f"{self._service}/{node_id}",
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
                "num_cpus": 0,
                "max_restarts": 0,
                "max_concurrency": WORKERS + 2,  # it says where it is while it unpacks whatever is asked for here
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
            }
            actor = ray.remote(NodeAgent).options(**options).remote(self._service, name, self._forsaken_s)
            self._agents[node_id] = actor
        if node_id not in self._asked:
            self._asked[node_id] = _Question(self._agents[node_id].place.remote())
        asked = self._asked[node_id]
        asked.looks += 1
        done, _ = ray.wait([asked.answer], timeout=0)
        place = None
        try:
            place = convert(ray.get(asked.answer), b.AgentPlace) if done else None
        except ray.exceptions.ActorUnavailableError:  # that it did not answer is no answer
            asked.answer = self._agents[node_id].place.remote()
        except ray.exceptions.RayError as problem:  # it ended: another one is made at the next look, or later
            for known in (self._asked, self._places, self._agents):
                known.pop(node_id, None)
            self._put_off(node_id, name, in_a_line(problem))
            return None
        if place is None and asked.looks > self._patient_looks:
            self._end_agent(node_id)
            self._tell(b.Hangs(node=name))
            return None
        if place is not None and place.version != __version__:
            self._end_agent(node_id)
            self._again_at_s[node_id] = monotonic() + OTHER_VERSION_S
            self._tell(b.OtherVersion(node=name, version=place.version))
            return None
        if place is not None:
            del self._asked[node_id]
            self._failed.pop(node_id, None)
            self._places[node_id] = place
        return self._places.get(node_id)

    def _put_off(self, node_id: str, name: str, reason: str) -> None:
        """An agent has ended. If it never came to be, and the one before did not either, say so, and wait a while."""
        failed = self._failed[node_id] = self._failed.get(node_id, 0) + 1
        if failed > 1:
            self._again_at_s[node_id] = monotonic() + min(AGENT_S * 2.0 ** (failed - 2), AGENT_LIMIT_S)
            self._tell(b.NoAgent(node=name, reason=reason))

    def _rest(self, node_id: str) -> None:
        """End the agent of a node until it is needed again, and whatever keeps the environments of jobs there."""
        self._resting.add(node_id)
        self._end_agent(node_id)
        self._shipping.forsake(node_id)

    def _end_agent(self, node_id: str) -> None:
        """End the agent of a node; unless it is to rest, another one is started at the next look."""
        for known in (self._asked, self._places):
            known.pop(node_id, None)
        agent = self._agents.pop(node_id, None)
        if agent is not None:
            ray.kill(agent)

    # --- Slots ---

    def _obey(self, request: b.Request) -> None:
        match request:
            case b.Lease(slots=slots) if not {slot.rpartition("/")[0] for slot in slots} <= self._units.keys():
                self._tell(b.Refused(id=request.id, slots=slots, withheld=False))
            case b.Lease(slots=slots):
                self._resting -= {self._units[slot.rpartition("/")[0]][0] for slot in slots}
                self._pool.submit(self._lease, request.id, slots)
            case b.Ship(nodes=nodes) if not set(nodes) <= self._units.keys():
                self._tell(b.Unfit(id=request.id, nodes=nodes, reason=""))
            case b.Ship():
                self._shipping.bring(request.id, request.job, Path(request.code), request.nodes)
            case b.Unship():
                self._shipping.remove(request.id, request.job)
            case b.Release():
                for slot in request.slots:
                    self._release(slot)
            case b.RequestCapacity(bundles=None):
                wish_nothing(self._service)
            case b.RequestCapacity(bundles=bundles):
                wish(self._service, bundles or [])
            case b.Rest(node=node) if node in self._units:
                self._rest(self._units[node][0])
            case b.Replace(node=node) if node in self._units:
                self._end_agent(self._units[node][0])

    def _lease(self, number: int, slots: list[str]) -> None:
        """Hold slots, all or none of them."""
        groups: dict[str, PlacementGroup] = {}
        withheld = False
        try:
            with self._lock:
                missing = [slot for slot in slots if slot not in self._leases]
            for slot in missing:
                groups[slot] = self._hold(slot)
            later = all(self._units[slot.rpartition("/")[0]][1] != "GPU" for slot in slots)
            deadline_s = monotonic() + LEASE_S
            late = [slot for slot, group in groups.items() if not group.wait(max(0.01, deadline_s - monotonic()))]
            withheld = bool(late)
            if not late:
                with self._lock:
                    self._leases |= groups  # now they count as ours
                    groups = {slot: self._leases[slot] for slot in slots}
                held = dict.fromkeys(slots, UNSEATED) if later else self._sit(groups)
                if held.keys() != set(slots):
                    raise RuntimeError("nobody could sit down in some of them")
        except Exception as problem:  # a node that has just gone, for example
            print(f"geminid: slots could not be held: {problem}", file=sys.stderr, flush=True)
            late = slots
        if late:
            for slot in missing:
                self._release(slot, groups.get(slot))
            self._said = None
            self._tell(b.Refused(id=number, slots=late, withheld=withheld))
            return
        with self._send_lock:  # what is told of losses comes before, or after
            with self._lock:
                held = {slot: seat for slot, seat in held.items() if slot in self._leases}
            self._send(b.Leased(id=number, held=held))
        if later:
            self._sit_later(groups)

    def _agent(self, name: str) -> Any:
        """The agent of a node; one that was let go is about to be started again.

        Raises:
            TimeoutError: there is none, and none has come.
        """
        deadline_s = monotonic() + LEASE_S
        while (agent := self._agents.get(self._units[name][0])) is None:
            if monotonic() > deadline_s:
                raise TimeoutError(f"node {name} has no agent")
            sleep(0.1)
        return agent

    def _hold(self, slot: str) -> PlacementGroup:
        name, _, index = slot.rpartition("/")
        node_id, _ = self._units[name]
        return placement_group(
            [self._bundles[name]],
            name=lease_name(self._service, name, int(index)),
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node_id}],
        )

    def _sit(self, groups: Mapping[str, PlacementGroup], patience_s: float = SEAT_S) -> dict[str, b.Seat]:
        """Have an actor in each of some slots that are held for us; who they are, and what they have.

        Slots are left out of it that were given back meanwhile, and those that nobody could sit down in.
        """
        actors = {}
        for slot, group in groups.items():
            name, _, index = slot.rpartition("/")
            bundle = dict(self._bundles[name])
            actors[slot] = (
                ray.remote(GeminidSlot)
                .options(
                    name=f"{lease_name(self._service, name, int(index))}/{group.id.hex()[:8]}",
                    namespace=NAMESPACE,
                    lifetime="detached",
                    get_if_exists=True,
                    num_cpus=bundle.pop("CPU", 0.0),
                    num_gpus=bundle.pop("GPU", 0.0),
                    resources=bundle,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group),
                )
                .remote(self._service, name, int(index))
            )
        with self._lock:
            mine = self._ours(groups)
            self._seats |= {slot: actors[slot] for slot in mine}
        for slot in groups.keys() - set(mine):  # given back meanwhile: it would wait for ever, and count as wanted
            end_actor(actors.pop(slot))
        asked = {slot: actor.seat.remote() for slot, actor in actors.items()}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=patience_s)
        seats: dict[str, b.Seat] = {}
        for slot, answer in asked.items():
            try:
                seats[slot] = convert(ray.get(answer, timeout=0), b.Seat)
            except ray.exceptions.RayError as problem:
                if slot in self._ours(groups):  # otherwise it was given back meanwhile
                    print(f"geminid: nobody sits in {slot}: {in_a_line(problem)}", file=sys.stderr, flush=True)
        with self._lock:
            mine = [slot for slot in self._ours(groups) if slot in seats]
            self._stays |= {slot: actors[slot].stay.remote() for slot in mine}
        return {slot: seats[slot] for slot in mine}

    def _ours(self, groups: Mapping[str, PlacementGroup]) -> list[str]:
        """Which slots are still held as they were; the others were given back, and may be held anew."""
        return [slot for slot, group in groups.items() if self._leases.get(slot) is group]

    def _sit_later(self, groups: Mapping[str, PlacementGroup]) -> None:
        """Have actors in slots that are used already; those that cannot be sat in are given up."""
        held: dict[str, b.Seat] = {}
        try:
            held = self._sit(groups)
        except Exception as problem:  # whatever it is, nobody else would know that nobody sits there
            print(f"geminid: nobody sits in {', '.join(groups)}: {in_a_line(problem)}", file=sys.stderr, flush=True)
        self._tell(b.Seated(held=held))
        if len(held) == len(groups):
            return
        sleep(NOTICED_S)
        gone: set[str] = set()
        with contextlib.suppress(Exception):  # the head is away: whether nodes are gone shows when it is back
            gone = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
        with self._lock:
            lost = [slot for slot in self._ours(groups) if slot not in held]
        for slot in lost:
            self._release(slot)
        here = [slot for slot in lost if self._units.get(slot.rpartition("/")[0], ("",))[0] not in gone]
        if here:  # of the others it is told that their nodes are gone
            self._tell(b.Lost(slots=here, reason="nobody could sit there"))
            self._said = None

    def _lose(self, alive: set[str]) -> None:
        """See which slots were taken back. Those of nodes that are gone are gone with them, which is told otherwise."""
        with self._lock:
            stays = {stay: slot for slot, stay in self._stays.items()}
        ended, _ = ray.wait(list(stays), num_returns=len(stays), timeout=0) if stays else ([], [])
        here = [(stays[stay], stay) for stay in ended if self._units[stays[stay].rpartition("/")[0]][0] in alive]
        found = {slot: self._how_it_ended(slot, stay) for slot, stay in here}
        by_reason: dict[str, list[str]] = {}
        for slot, reason in found.items():
            if reason is not None:
                by_reason.setdefault(reason, []).append(slot)
        for reason, lost in by_reason.items():
            print(f"geminid: taken back by Ray: {', '.join(lost)}: {reason}", file=sys.stderr, flush=True)
            for slot in lost:
                self._release(slot)
            self._tell(b.Lost(slots=lost, reason=reason))
            self._said = None

    def _how_it_ended(self, slot: str, stay: Any) -> str | None:
        """Why what held a slot has ended, if Ray says so; None if it has not, and is just out of reach."""
        try:
            ray.get(stay)
        except ray.exceptions.ActorUnavailableError:
            with self._lock:
                if slot in self._stays:
                    self._stays[slot] = self._seats[slot].stay.remote()
            return None
        except ray.exceptions.RayError as problem:
            return why_it_died(problem)
        return ""

    def _release(self, slot: str, group: PlacementGroup | None = None) -> None:
        """Give a slot back, or what was to hold it."""
        with self._lock:
            group = self._leases.pop(slot, group)
            seat = self._seats.pop(slot, None)
            self._stays.pop(slot, None)
        if seat is not None:
            end_actor(seat)
        if group is not None:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                remove_placement_group(group)

    def _find_leases(self) -> None:
        """Slots that an earlier bridge held; those of nodes that are gone are given up."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        prefix = f"geminid/{self._service}/"
        for group in placement_group_table().values():
            if not group["name"].startswith(prefix) or group["state"] == "REMOVED":
                continue
            with contextlib.suppress(ValueError):
                known = ray.util.get_placement_group(group["name"])
                if group["state"] == "CREATED" and set(group["bundles_to_node_id"].values()) <= alive:
                    self._leases[group["name"].removeprefix(prefix)] = known
                else:
                    remove_placement_group(known)

    def _sit_again(self) -> dict[str, b.Seat]:
        """By whom the slots are held that an earlier bridge held; those that cannot be sat in are given up.

        Those who sit there answer at once. Whoever does not was stopped, or was being started when the head of the
        cluster ended, which Ray never gets over: only a new placement group will do.
        """
        self._tell(b.Looked())
        groups = {slot: group for slot, group in self._leases.items() if slot.rpartition("/")[0] in self._units}
        found = self._sit(groups, SEAT_AGAIN_S)
        for slot in self._leases.keys() - found.keys():
            self._release(slot)
        return found

    def _give_all_back(self) -> None:
        wish_nothing(self._service)
        Known.forget(self._service)
        for slot in list(self._leases):
            self._release(slot)
        if leaving := [agent.leave.remote() for agent in self._agents.values()]:
            ray.wait(leaving, num_returns=len(leaving), timeout=2.0)
        end_named(lambda name: name.startswith(f"{self._service}/"))


def main(address: str, service: str, forsaken_s: float, silent_s: float, descriptor: int) -> None:
    """Join the cluster and serve; whatever goes wrong is told, and ends this process."""
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
