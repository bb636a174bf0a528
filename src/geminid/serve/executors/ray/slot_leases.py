"""The slots of a Ray cluster that are held for us, as the bridge keeps them: placement groups with an actor in each."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any

import ray
from msgspec import convert
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.actors import NAMESPACE, end_actor, in_a_line, why_it_died
from geminid.serve.executors.ray.agent import lease_name
from geminid.serve.executors.ray.node_agents import Answers
from geminid.serve.executors.ray.slot import GeminidSlot

#: Time in which Ray reports that a node is gone, after something failed there.
NOTICED_S = 3.0

#: A slot that cannot be held within this time is somebody else's.
LEASE_S = 5.0

#: Longest time for the actor of a slot to start.
SEAT_S = 60.0

#: … in slots that an earlier bridge held: nothing else happens meanwhile, and a bridge that is silent is ended.
SEAT_AGAIN_S = 15.0

#: What is reported of a CPU slot before its actor is there: that it has no devices.
UNSEATED = b.Seat()


class SlotLeases:
    """The leases, by slot. ``units`` has the id of each node and the resource that its slots are, by the node's name;
    ``bundles`` what Ray holds for a slot there. ``on_change`` is called when nodes are to be reported again.
    """

    def __init__(
        self,
        service: str,
        answers: Answers,
        units: Mapping[str, tuple[str, str]],
        bundles: Mapping[str, Mapping[str, float]],
        on_change: Callable[[], None],
    ) -> None:
        self._service, self._answers, self._units, self._bundles = service, answers, units, bundles
        self._on_change = on_change
        self.held: dict[str, PlacementGroup] = {}
        self._seats: dict[str, Any] = {}  # the actor in a slot, or on its way there
        self._stays: dict[str, Any] = {}  # what is answered when it ends
        self._lock = threading.Lock()

    def count(self) -> Counter[str]:
        """How many slots of each node are held."""
        with self._lock:
            return Counter(slot.rpartition("/")[0] for slot in self.held)

    def lease(self, number: int, slots: list[str]) -> None:
        """Hold slots, all or none of them."""
        groups: dict[str, PlacementGroup] = {}
        withheld = False
        try:
            with self._lock:
                missing = [slot for slot in slots if slot not in self.held]
            for slot in missing:
                groups[slot] = self._hold(slot)
            later = all(self._units[slot.rpartition("/")[0]][1] != "GPU" for slot in slots)
            deadline_s = monotonic() + LEASE_S
            late = [slot for slot, group in groups.items() if not group.wait(max(0.01, deadline_s - monotonic()))]
            withheld = bool(late)
            if not late:
                with self._lock:
                    self.held |= groups  # now they count as ours
                    groups = {slot: self.held[slot] for slot in slots}
                held = dict.fromkeys(slots, UNSEATED) if later else self._sit(groups)
                if held.keys() != set(slots):
                    raise RuntimeError("no actor could be started in some of them")
        except Exception as problem:  # a node that has just gone, for example
            print(f"geminid: slots could not be held: {problem}", file=sys.stderr, flush=True)
            late = slots
        if late:
            for slot in missing:
                self.release(slot, groups.get(slot))
            self._on_change()
            self._answers.send(b.Refused(id=number, slots=late, withheld=withheld))
            return
        with self._answers.lock:  # losses are reported before, or after
            with self._lock:
                held = {slot: seat for slot, seat in held.items() if slot in self.held}
            self._answers.send(b.Leased(id=number, held=held))
        if later:
            self._sit_later(groups)

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
                    print(f"geminid: no actor holds {slot}: {in_a_line(problem)}", file=sys.stderr, flush=True)
        with self._lock:
            mine = [slot for slot in self._ours(groups) if slot in seats]
            self._stays |= {slot: actors[slot].stay.remote() for slot in mine}
        return {slot: seats[slot] for slot in mine}

    def _ours(self, groups: Mapping[str, PlacementGroup]) -> list[str]:
        """Which slots are still held as they were; the others were given back, and may have been leased again."""
        return [slot for slot, group in groups.items() if self.held.get(slot) is group]

    def _sit_later(self, groups: Mapping[str, PlacementGroup]) -> None:
        """Have actors in slots that are used already; those that cannot be sat in are given up."""
        held: dict[str, b.Seat] = {}
        try:
            held = self._sit(groups)
        except Exception as problem:  # whatever it is, nobody else would know that nobody sits there
            print(f"geminid: no actor holds {', '.join(groups)}: {in_a_line(problem)}", file=sys.stderr, flush=True)
        self._answers.send(b.Seated(held=held))
        if len(held) == len(groups):
            return
        sleep(NOTICED_S)
        gone: set[str] = set()
        with contextlib.suppress(Exception):  # the head is away: whether nodes are gone shows when it is back
            gone = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
        with self._lock:
            lost = [slot for slot in self._ours(groups) if slot not in held]
        for slot in lost:
            self.release(slot)
        here = [slot for slot in lost if self._units.get(slot.rpartition("/")[0], ("",))[0] not in gone]
        if here:  # the nodes of the others are reported as gone
            self._answers.send(b.Lost(slots=here, reason="no actor could be started there"))
            self._on_change()

    def find_lost(self, alive: set[str]) -> None:
        """See which slots were taken back. Those of nodes that are gone are reported with their nodes."""
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
                self.release(slot)
            self._answers.send(b.Lost(slots=lost, reason=reason))
            self._on_change()

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

    def release(self, slot: str, group: PlacementGroup | None = None) -> None:
        """Give a slot back, or what was to hold it."""
        with self._lock:
            group = self.held.pop(slot, group)
            seat = self._seats.pop(slot, None)
            self._stays.pop(slot, None)
        if seat is not None:
            end_actor(seat)
        if group is not None:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                remove_placement_group(group)

    def recall(self) -> None:
        """Slots that an earlier bridge held; those of nodes that are gone are given up."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        prefix = f"geminid/{self._service}/"
        for group in placement_group_table().values():
            if not group["name"].startswith(prefix) or group["state"] == "REMOVED":
                continue
            with contextlib.suppress(ValueError):
                known = ray.util.get_placement_group(group["name"])
                if group["state"] == "CREATED" and set(group["bundles_to_node_id"].values()) <= alive:
                    self.held[group["name"].removeprefix(prefix)] = known
                else:
                    remove_placement_group(known)

    def sit_again(self) -> dict[str, b.Seat]:
        """The holders of slots that an earlier bridge held; slots whose actor does not answer are given up.

        An actor that does not answer at once was stopped, or was being started when the head of the cluster ended. Ray
        never finishes that start: only a new placement group helps.
        """
        self._answers.send(b.Looked())
        groups = {slot: group for slot, group in self.held.items() if slot.rpartition("/")[0] in self._units}
        found = self._sit(groups, SEAT_AGAIN_S)
        for slot in self.held.keys() - found.keys():
            self.release(slot)
        return found
