"""The service's own process inside a Ray cluster: whatever needs Ray happens here.

A Ray driver ends with its raylet, and after a while without the head; the service must not. So it starts this one,
talks with it over a socket (JSON objects, one a line), and starts another when it is gone. It looks at the cluster
twice a second, keeps an agent on every node that has slots, and takes and gives back slots as placement groups.

| from the service | meaning |
|---|---|
| ``{"do": "lease", "id", "slots", "job", "code"}`` | hold these slots, all or none, with a job's package there |
| ``{"do": "unship", "job"}`` | its code is not needed any more |
| ``{"do": "release", "slots"}`` | give them back |
| ``{"do": "wish", "wished": [{"bundle", "accelerator", "slots"}]}`` | the autoscaler is to make room for this |
| ``{"do": "rest", "node"}`` | end its agent; another one is started when slots of it are to be held |
| ``{"do": "replace", "node"}`` | its agent does not answer: end it, and start another one |
| ``{"do": "end"}`` | give everything back and end the agents |

| to the service | meaning |
|---|---|
| ``{"told": "nodes", "nodes", "found"}`` | all nodes with slots; at first, all slots that an earlier bridge held, too |
| ``{"told": "leased", "id", "held", "places"}`` | by whom each slot is held, and where the code is on each node |
| ``{"told": "seated", "held"}`` | by whom CPU slots are held, for whose actors nobody had to wait |
| ``{"told": "refused", "id", "slots", "reason", "withheld"}`` | not to be had; ``withheld``: Ray has them, for others |
| ``{"told": "lost", "slots"}`` | these were taken back: what held them for us has ended |
| ``{"told": "unshippable", "id", "held", "nodes", "reason", "certain"}`` | slots are held, but code cannot be there |
| ``{"told": "hangs", "node"}`` | its agent has not answered for too long, and was ended; another one is started |
| ``{"told": "other version", "node", "version"}`` | it has another version of Geminid, and is not used |
| ``{"told": "looked"}`` | it lives, and has looked at the cluster |
| ``{"told": "trouble", "text"}`` | why it ends |
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import ray
from ray._private import state as ray_state
from ray._private.runtime_env.packaging import (
    RAY_PKG_PREFIX,
    package_exists,
    pin_runtime_env_uri,
    upload_package_to_gcs,
)
from ray.autoscaler.sdk import request_resources
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from geminid import __version__
from geminid.serve.executors.nodeserver import Line
from geminid.serve.executors.rayagent import NodeAgent, lease_name, own_path
from geminid.serve.executors.raycode import CodeStore
from geminid.serve.executors.raynodes import (
    ACCELERATOR,
    ACCELERATOR_LABEL,
    Known,
    SeenNode,
    accelerator_of,
    bundle_of,
    own_node,
    slots_of,
    type_of,
)
from geminid.serve.executors.rayslot import GeminidSlot

#: Where Geminid's actors live.
NAMESPACE = "geminid"

#: The cluster is looked at so often.
LOOK_S = 0.4

#: Bringing code to a node, with what has to be installed for it, may take so long.
SHIP_S = 900.0

#: And removing it may take so long.
UNSHIP_S = 60.0

#: A slot that cannot be held within so long is somebody else's; to sit down in it may take so long.
LEASE_S, SEAT_S = 5.0, 60.0

#: What is told of a CPU slot before its actor is there: that it has no devices.
UNSEATED: dict[str, Any] = {"devices": [], "holder": None}

#: How Ray says that whoever was asked has ended, or could not be started, and not that it could not do it.
GONE = (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError, ray.exceptions.NodeDiedError)

#: A node that has another version of Geminid is looked at again after so long.
OTHER_VERSION_S = 60.0

#: So many requests are carried out at a time; those that bring code to nodes take long.
WORKERS = 32

#: Slots of others are believed in when they have been seen so many times in a row: counts of Ray lag a little.
LOOKS_TO_BELIEVE = 3


@dataclass(slots=True)
class _Question:
    """Where an agent is: what will be its answer, and for how many looks it has been waited for."""

    answer: Any
    looks: int = 0


class Bridge:
    """See the module."""

    def __init__(self, line: Line, service: str, forsaken_s: float, silent_s: float) -> None:
        self._line, self._service, self._forsaken_s = line, service, forsaken_s
        self._patient_looks = silent_s / LOOK_S  # not time: we may have stood still ourselves
        self._send_lock = threading.Lock()
        self._leases: dict[str, PlacementGroup] = {}
        self._seats: dict[str, Any] = {}  # the actor in a slot, or on its way there
        self._stays: dict[str, Any] = {}  # what is heard when it ends
        self._found = False
        self._units: dict[str, tuple[str, str]] = {}
        self._bundles: dict[str, dict[str, float]] = {}
        self._known = Known.recalled(service)
        self._agents: dict[str, Any] = {}
        self._asked: dict[str, _Question] = {}
        self._again_at_s: dict[str, float] = {}
        self._places: dict[str, dict[str, Any]] = {}
        self._others: dict[str, deque[int]] = {}
        self._resting: set[str] = set()
        self._unshipping: dict[str, Future[None]] = {}
        self._wished = False
        self._said: object = None
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="lease")
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve until the service hangs up."""
        self._tell({"told": "looked"})
        self._find_leases()
        self._look()  # whatever is asked for is of nodes that it must know
        look_at_s = 0.0
        while True:
            ready, _, _ = select.select([self._line], [], [], max(0.0, look_at_s - monotonic()))
            if ready:
                for document in self._line.receive():
                    if document["do"] == "end":
                        self._give_all_back()
                        return
                    self._obey(document)
            if monotonic() >= look_at_s:
                self._look()
                self._tell({"told": "looked"})
                look_at_s = monotonic() + LOOK_S

    def _tell(self, document: dict[str, Any]) -> None:
        with self._send_lock:
            self._line.send(document)

    # --- Nodes ---

    def _look(self) -> None:
        """Tell of all nodes that are alive, if anything has changed, and of slots of theirs that were taken back."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        self._lose({node["NodeID"] for node in alive})
        free = ray_state.available_resources_per_node()
        draining = ray_state.state.get_draining_nodes()
        self._know(alive)
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
            others = self._others_on(name, node["NodeID"], slots, free_slots)
            seen.append(
                SeenNode(
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
        if seen != self._said:
            self._said = seen
            again = None if self._found else self._sit_again()
            self._found = True
            self._tell({"told": "nodes", "nodes": [asdict(node) for node in seen], "found": again})

    def _know(self, alive: list[dict[str, Any]]) -> None:
        """Keep what nodes are called, and which offer their CPUs; written down where the next bridge finds it."""
        now = self._known.after(alive)
        if now != self._known:
            self._known = now
            now.keep(self._service)

    def _others_on(self, name: str, node_id: str, slots: int, free: float) -> int:
        """How many slots of a node others have: those that are neither free nor ours."""
        with self._lock:
            ours = sum(slot.rpartition("/")[0] == name for slot in self._leases)
        counts = self._others.setdefault(node_id, deque(maxlen=LOOKS_TO_BELIEVE))
        counts.append(max(0, slots - ours - math.floor(free + 1e-6)))
        return min(counts)

    def _agent_on(self, node_id: str, name: str) -> dict[str, Any] | None:
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
            place = ray.get(asked.answer) if done else None
        except ray.exceptions.ActorUnavailableError:  # that it did not answer is no answer
            asked.answer = self._agents[node_id].place.remote()
        except ray.exceptions.RayError:  # it ended: another one is made at the next look
            for known in (self._asked, self._places, self._agents):
                known.pop(node_id, None)
            return None
        if place is None and asked.looks > self._patient_looks:
            self._end_agent(node_id)
            self._tell({"told": "hangs", "node": name})
            return None
        if place is not None and place["version"] != __version__:
            self._end_agent(node_id)
            self._again_at_s[node_id] = monotonic() + OTHER_VERSION_S
            self._tell({"told": "other version", "node": name, "version": place["version"]})
            return None
        if place is not None:
            del self._asked[node_id]
            self._places[node_id] = place
        return self._places.get(node_id)

    def _rest(self, node_id: str) -> None:
        """End the agent of a node until it is needed again."""
        self._resting.add(node_id)
        self._end_agent(node_id)

    def _end_agent(self, node_id: str) -> None:
        """End the agent of a node; unless it is to rest, another one is started at the next look."""
        for known in (self._asked, self._places):
            known.pop(node_id, None)
        agent = self._agents.pop(node_id, None)
        if agent is not None:
            ray.kill(agent)

    # --- Slots ---

    def _obey(self, document: dict[str, Any]) -> None:
        match document["do"]:
            case "lease" if not {slot.rpartition("/")[0] for slot in document["slots"]} <= self._units.keys():
                unknown = {"slots": document["slots"], "reason": "", "withheld": False}
                self._tell({"told": "refused", "id": document["id"], **unknown})
            case "lease":
                self._resting -= {self._units[slot.rpartition("/")[0]][0] for slot in document["slots"]}
                before = self._unshipping.get(document["job"])
                asked = (document["id"], document["slots"], document["job"], document["code"])
                self._pool.submit(self._lease, *asked, before)
            case "unship":
                self._unshipping = {job: one for job, one in self._unshipping.items() if not one.done()}
                self._unshipping[document["job"]] = self._pool.submit(self._unship, document["job"])
            case "release":
                for slot in document["slots"]:
                    self._release(slot)
            case "wish":
                self._wished = True
                _wish(document["wished"])
            case "rest" if document["node"] in self._units:
                self._rest(self._units[document["node"]][0])
            case "replace" if document["node"] in self._units:
                self._end_agent(self._units[document["node"]][0])

    def _lease(
        self, number: int, slots: list[str], job: str, code: str | None, before: Future[None] | None = None
    ) -> None:
        """Hold slots, all or none of them, and have a job's code on their nodes.

        If its code is being removed, that comes ``before``: it is brought anew.
        """
        groups: dict[str, PlacementGroup] = {}
        shipping: dict[str, Any] = {}
        told: dict[str, Any] = {"told": "leased", "places": {}}
        reason, withheld = "", False
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
                if code is not None:
                    nodes = {slot.rpartition("/")[0] for slot in slots}
                    if before is not None:
                        wait([before], UNSHIP_S)
                    try:
                        shipping = self._ship(job, Path(code), nodes)
                    except (FileNotFoundError, ValueError, TypeError) as problem:  # it will never do
                        told = _unshippable(problem, nodes, certain=True)
                held = dict.fromkeys(slots, UNSEATED) if later else self._sit(groups)
                if held.keys() != set(slots):
                    raise RuntimeError("nobody could sit down in some of them")
        except Exception as problem:  # a node that has just gone, for example
            print(f"geminid: slots could not be held: {problem}", file=sys.stderr, flush=True)
            late = slots
        for name, place in shipping.items() if not late else ():
            try:
                told["places"][name] = ray.get(place, timeout=SHIP_S)
            except ray.exceptions.GetTimeoutError:
                told = _unshippable(TimeoutError(f"it took longer than {SHIP_S:g} s"), {name}, certain=False)
                break
            except (*GONE, OSError) as problem:  # the node is gone, or has no room: others may do
                if not isinstance(problem, GONE):
                    reason = f"no code could be brought to {name}: {_first_line(problem)}"
                late = [slot for slot in slots if slot.rpartition("/")[0] == name]
                break
            except Exception as problem:  # what it asks for cannot be had there
                told = _unshippable(problem, {name}, certain=False)
                break
        if late:
            for slot in missing:
                self._release(slot, groups.get(slot))
            self._said = None
            self._tell({"told": "refused", "id": number, "slots": late, "reason": reason, "withheld": withheld})
            return
        with self._send_lock:  # what is told of losses comes before, or after
            with self._lock:
                held = {slot: seat for slot, seat in held.items() if slot in self._leases}
            self._line.send({**told, "id": number, "held": held})
        if later:
            self._sit_later(groups)

    def _ship(self, job: str, code: Path, nodes: set[str]) -> dict[str, Any]:
        """Have Ray bring a job's code to some nodes, with the environment that it asks for; their answers.

        Code alone is unpacked by the agents: Ray takes seconds to start a process in an environment.
        """
        uri = f"gcs://{RAY_PKG_PREFIX}{code.name}"  # whose name stands for what is in it
        pin_runtime_env_uri(uri)
        if not package_exists(uri):
            upload_package_to_gcs(uri, code.read_bytes())
        environment = CodeStore(code.parent).environment(code.stem)
        if not environment:
            return {name: self._agent(name).unpack.remote(job, uri) for name in nodes}
        environment["working_dir"] = uri
        asked = {}
        for name in nodes:
            options = {
                "name": f"{self._service}/{job}/{self._units[name][0]}",
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
                "num_cpus": 0,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(self._units[name][0], soft=False),
                "runtime_env": environment,
            }
            names = list(environment.get("env_vars", {}))
            asked[name] = ray.remote(_Code).options(**options).remote().place.remote(names)
        return asked

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

    def _unship(self, job: str) -> None:
        """Remove a job's code everywhere; when this returns, nobody removes any of it any more."""
        removed = [agent.discard.remote(job) for agent in list(self._agents.values())]
        if removed:
            ray.wait(removed, num_returns=len(removed), timeout=UNSHIP_S)
        _end_named(f"{self._service}/{job}/")

    def _hold(self, slot: str) -> PlacementGroup:
        name, _, index = slot.rpartition("/")
        node_id, _ = self._units[name]
        return placement_group(
            [self._bundles[name]],
            name=lease_name(self._service, name, int(index)),
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node_id}],
        )

    def _sit(self, groups: Mapping[str, PlacementGroup]) -> dict[str, Any]:
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
            _end(actors.pop(slot))
        asked = {slot: actor.seat.remote() for slot, actor in actors.items()}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=SEAT_S)
        seats: dict[str, Any] = {}
        for slot, answer in asked.items():
            try:
                seats[slot] = ray.get(answer, timeout=0)
            except ray.exceptions.RayError as problem:
                if slot in self._ours(groups):  # otherwise it was given back meanwhile
                    print(f"geminid: nobody sits in {slot}: {_first_line(problem)}", file=sys.stderr, flush=True)
        with self._lock:
            mine = [slot for slot in self._ours(groups) if slot in seats]
            self._stays |= {slot: actors[slot].stay.remote() for slot in mine}
        return {slot: seats[slot] for slot in mine}

    def _ours(self, groups: Mapping[str, PlacementGroup]) -> list[str]:
        """Which slots are still held as they were; the others were given back, and may be held anew."""
        return [slot for slot, group in groups.items() if self._leases.get(slot) is group]

    def _sit_later(self, groups: Mapping[str, PlacementGroup]) -> None:
        """Have actors in slots that are used already; those that cannot be sat in are given up."""
        held: dict[str, Any] = {}
        try:
            held = self._sit(groups)
        except Exception as problem:  # whatever it is, nobody else would know that nobody sits there
            print(f"geminid: nobody sits in {', '.join(groups)}: {_first_line(problem)}", file=sys.stderr, flush=True)
        with self._lock:
            lost = [slot for slot in self._ours(groups) if slot not in held]
        self._tell({"told": "seated", "held": held})
        if lost:
            for slot in lost:
                self._release(slot)
            self._tell({"told": "lost", "slots": lost})
            self._said = None

    def _lose(self, alive: set[str]) -> None:
        """See which slots were taken back. Those of nodes that are gone are gone with them, which is told otherwise."""
        with self._lock:
            stays = {stay: slot for slot, stay in self._stays.items()}
        ended, _ = ray.wait(list(stays), num_returns=len(stays), timeout=0) if stays else ([], [])
        here = [(stays[stay], stay) for stay in ended if self._units[stays[stay].rpartition("/")[0]][0] in alive]
        lost = [slot for slot, stay in here if self._has_ended(slot, stay)]
        if lost:
            print(f"geminid: taken back by Ray: {', '.join(lost)}", file=sys.stderr, flush=True)
            for slot in lost:
                self._release(slot)
            self._tell({"told": "lost", "slots": lost})
            self._said = None

    def _has_ended(self, slot: str, stay: Any) -> bool:
        """Whether what held a slot has ended, and not just been out of reach."""
        try:
            ray.get(stay)
        except ray.exceptions.ActorUnavailableError:
            with self._lock:
                if slot in self._stays:
                    self._stays[slot] = self._seats[slot].stay.remote()
            return False
        except ray.exceptions.RayError:
            pass
        return True

    def _release(self, slot: str, group: PlacementGroup | None = None) -> None:
        """Give a slot back, or what was to hold it."""
        with self._lock:
            group = self._leases.pop(slot, group)
            seat = self._seats.pop(slot, None)
            self._stays.pop(slot, None)
        if seat is not None:
            _end(seat)
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

    def _sit_again(self) -> dict[str, Any]:
        """By whom the slots are held that an earlier bridge held; those that cannot be sat in are given up."""
        found: dict[str, Any] = {}
        for slot, group in list(self._leases.items()):
            self._tell({"told": "looked"})
            with contextlib.suppress(ray.exceptions.RayError, KeyError, ValueError):
                found |= self._sit({slot: group})
            if slot not in found:
                self._release(slot)
        return found

    def _give_all_back(self) -> None:
        if self._wished:
            _wish([])
        Known.forget(self._service)
        for slot in list(self._leases):
            self._release(slot)
        if leaving := [agent.leave.remote() for agent in self._agents.values()]:
            ray.wait(leaving, num_returns=len(leaving), timeout=2.0)
        _end_named(f"{self._service}/")


class _Code:
    """Stays where a job's code is for as long as it is needed: Ray removes code that nobody uses."""

    def place(self, names: list[str]) -> dict[str, Any]:
        """Where it is, and what makes it run; with these variables, which its environment sets."""
        names = ["PYTHONPATH", "VIRTUAL_ENV", *names]
        environment = {"PATH": own_path()} | {name: os.environ[name] for name in names if name in os.environ}
        return {"folder": os.getcwd(), "environment": environment}


def _end(actor: Any) -> None:
    """End an actor, or have it not be started."""
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        ray.kill(actor)


def _end_named(prefix: str) -> None:
    """End all actors whose names begin so."""
    for name in ray.util.list_named_actors():
        if name.startswith(prefix):
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(ray.get_actor(name))


def _wish(wished: list[dict[str, Any]]) -> None:
    """Have Ray's autoscaler make room: GPU types are labels to its second version, and resources to the first."""
    bundles: list[dict[str, float]] = []
    selectors: list[dict[str, str]] = []
    by_label = is_autoscaler_v2()
    for kind in wished:
        bundle, selector = dict(kind["bundle"]), {}
        if kind["accelerator"] is not None and by_label:
            selector = {ACCELERATOR_LABEL: kind["accelerator"]}
        elif kind["accelerator"] is not None:
            bundle[ACCELERATOR + kind["accelerator"]] = 0.001
        bundles += [bundle] * kind["slots"]
        selectors += [selector] * kind["slots"]
    request_resources(bundles=bundles, bundle_label_selectors=selectors)


def _unshippable(problem: Exception, nodes: set[str], *, certain: bool) -> dict[str, Any]:
    """That a job's code, with what it asks for, cannot be had on some nodes; ``certain`` if it could nowhere."""
    reason = f"its code could not be brought to {', '.join(sorted(nodes))}: {_first_line(problem)}"
    return {"told": "unshippable", "nodes": sorted(nodes), "reason": reason, "certain": certain}


def _first_line(problem: BaseException) -> str:
    """A problem in a line; that of the process that was asked, not that it was asked through Ray.

    Of what an installer printed, it is the last line that it calls an error.
    """
    problem = getattr(problem, "cause", None) or problem
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(problem))  # Ray's are coloured
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return f"{type(problem).__name__}: {(errors[-1:] or lines[:1] or [''])[0]}"[:300]


def main(address: str, service: str, forsaken_s: float, silent_s: float, descriptor: int) -> None:
    """Join the cluster and serve; whatever goes wrong is told, and ends this process."""
    line = Line(socket.socket(fileno=descriptor), timeout_s=None)
    try:
        line.send({"told": "looked"})  # joining may take long
        place = {} if (own := own_node(address)) is None else {"_node_ip_address": own}
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error", **place)
        Bridge(line, service, forsaken_s, silent_s).serve()
    except (EOFError, BrokenPipeError):
        pass  # the service is gone; agents and slots stay for the next one
    except BaseException as problem:
        with contextlib.suppress(OSError):
            line.send({"told": "trouble", "text": _first_line(problem)})
    os._exit(0)  # Ray's own way out may wait for a raylet that is gone


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
