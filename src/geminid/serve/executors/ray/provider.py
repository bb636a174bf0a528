"""A Ray cluster as a provider of nodes: slots are leased through Ray, and used through an agent on each node.

Which nodes there are comes from the *bridge*, a process of its own that is the only one to talk with Ray
(``bridge_process.py``). A slot is used only while an actor of ours sits in it (``slot.py``), in a placement group on
that node, so that Ray gives it to nobody else; when that actor ends, for whatever reason, so do the processes on the
slot. What Ray has given to others is not offered to our jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geminid import __version__
from geminid.clock import Clock
from geminid.node.messages import Identity
from geminid.nodes import NodeGroup
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.executor import several
from geminid.serve.executors.provider import (
    AgentStopped,
    CodePlace,
    CodeUndeliverable,
    NodeEvent,
    NodeGone,
    NodeLeaving,
    NodeProvider,
    NodeSeen,
    Notice,
    Seat,
    SlotsChanged,
    SlotsLost,
)
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.bridge import Bridge
from geminid.serve.executors.ray.capacity import CapacityRequest
from geminid.serve.executors.ray.code import CodeStore
from geminid.serve.executors.ray.codeplaces import CodePlaces
from geminid.serve.executors.ray.leases import Leases
from geminid.serve.executors.slotnames import NodeSlotNames, node_of

#: On a cluster that is scaled, the agent of a node that no job has needed for this time is ended, so that Ray can take
#: the node away.
REST_S = 5.0

#: In the service's folder: snapshots of the code of jobs.
CODE = "code"

#: In the service's folder: where the code of jobs is on nodes.
PLACES = "places"


@dataclass(frozen=True, slots=True)
class BridgeAnswer:
    """Something that the bridge sent."""

    answer: b.Answer


class RayProvider(NodeProvider):
    """The nodes of a Ray cluster. A slot is named ``node/index``.

    ``hold`` has a node's agent know who holds its slots, ``in_use`` tells which slots jobs have processes on. With
    ``ship``, the code of jobs is brought to nodes; with ``autoscale``, Ray's autoscaler is asked for nodes.
    """

    def __init__(
        self,
        folder: Path,
        start_bridge: Callable[[Callable[[b.Answer], None]], Bridge],
        post: Callable[[ExecutorEvent], None],
        *,
        hold: Callable[[str], None],
        clock: Clock,
        silent_s: float,
        ship: bool = True,
        autoscale: bool = False,
    ) -> None:
        self.names, self._clock, self._silent_s, self._ship = NodeSlotNames(), clock, silent_s, ship
        self.in_use: Callable[[], Set[str]] = frozenset
        self.seen: dict[str, b.SeenNode] = {}
        self.has_looked = False
        self.agentless: dict[str, str] = {}
        self._leaving: frozenset[str] = frozenset()
        self._resting: dict[str, str] = {}  # nodes without an agent, and the token of the one that was ended
        self._unneeded_since_s: dict[str, float] = {}
        self._other_versions: dict[str, str] = {}
        self.leases = Leases(self._send, hold, clock)
        self.store = CodeStore(folder / CODE)
        self.places = CodePlaces(folder / PLACES, self.store, self._send, self._token_of)
        self.capacity = CapacityRequest(self._send, scales=autoscale)
        self.bridge = start_bridge(lambda answer: post(BridgeAnswer(answer)))

    def _send(self, request: b.Request) -> int | None:
        return self.bridge.send(request)

    # --- Leases and code ---

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Collection[str]) -> None:
        """Recall where the code of jobs is."""
        self.places.recall(jobs)

    def lease(self, job_id: str, code: str, slots: Sequence[str]) -> None:
        """Ask Ray for slots, and have a job's code where they are."""
        requested = self.leases.request(job_id, slots)
        woken = self._resting.keys() & {node_of(slot) for slot in requested}
        self._resting |= dict.fromkeys(woken, "")
        if code and self._ship:
            asked = self.leases.pending.of(job_id)
            nodes = {node_of(slot) for slot in slots if slot in self.leases.held or slot in asked}
            self.places.bring(job_id, nodes, code)

    def seat(self, slot: str) -> Seat | None:
        """The lease of a slot, if it is held for us."""
        return self.leases.held.get(slot)

    def is_ready(self, job_id: str, code: str, slot: str) -> bool:
        """Whether a slot is held for us, and a job's code is on its node."""
        return slot in self.leases.held and self.has_code(job_id, code, slot)

    def has_code(self, job_id: str, code: str, slot: str) -> bool:
        """Whether a job's code is where a slot is, if it has to be brought there."""
        return not (code and self._ship) or self.places.on(job_id, node_of(slot)) is not None

    def code_on(self, job_id: str, node: str) -> CodePlace | None:
        """Where a job's code is on a node, if it was brought there."""
        return self.places.on(job_id, node)

    def lose_code(self, job_id: str, node: str) -> None:
        """A job's code is not on a node any more."""
        self.places.gone(job_id, node)

    def release(self, slots: Collection[str]) -> None:
        """Give slots back to Ray."""
        self.leases.release(slots)

    def holders_on(self, node: str) -> dict[str, Identity | None]:
        """The processes that hold the slots of a node for us, by index."""
        return self.leases.holders_on(node, self.seen[node].slots if node in self.seen else 0)

    def request_capacity(self, slots_by_type: Callable[[], Mapping[str, int]]) -> None:
        """Ask Ray's autoscaler for what is needed."""
        if self.capacity.scales:
            self.capacity.request(slots_by_type())
        if self.has_looked:
            self.capacity.send()

    def replace_agent(self, node: str) -> None:
        """End the agent of a node, and start another one."""
        self._send(b.Replace(node=node))

    def is_waiting(self, job_id: str) -> bool:
        """Whether slots were requested for a job, and Ray has not answered yet."""
        return job_id in self.leases.pending.jobs

    def delay_of(self, job_id: str, code: str, slots: Sequence[str]) -> str:
        """What a job waits for: Ray, or its code."""
        if asked := self.leases.pending.among(slots):
            return f"Ray is asked for {several(asked)}"
        if bringing := sorted(self.places.bringing(job_id)):
            environment = ", with the environment that it asks for," if self.store.environment(code) else ""
            return f"its code{environment} is brought to {several(bringing)}"
        return ""

    def close(self, *, detach: bool) -> None:
        """End the bridge; unless others take over, with all leases and agents."""
        if not detach:
            self._send(b.End())
            self.bridge.wait(20.0)
        self.bridge.close()

    # --- Events ---

    def tick(self, needed: Callable[[], Set[str]], jobs: Callable[[str], bool]) -> list[NodeEvent]:
        """Give slots and agents that no job needs back to Ray; request slots again that could not be leased."""
        slots = needed()
        self.leases.release_idle(slots)
        events: list[NodeEvent] = []
        if self.capacity.scales:
            events += self._rest(slots)
        if self.leases.others.forget_waits():
            events += self.leases.count_others(self.seen)
        self.places.keep_only(jobs)
        return events

    def handle(self, event: ExecutorEvent) -> list[NodeEvent]:
        """What the bridge sent means for nodes and slots."""
        if not isinstance(event, BridgeAnswer):
            return []
        answer = event.answer
        match answer:
            case b.Nodes():
                return [*self._look(answer), SlotsChanged()]
            case b.Leased():
                asked = self.leases.pending.answered(answer.id)
                self.leases.granted(answer.held)
                return [_changed(answer.held, () if asked is None else asked.things)]
            case b.Refused():
                asked = self.leases.pending.answered(answer.id)
                if answer.withheld:
                    self.leases.others.refuse(map(self.names.place, answer.slots))
                taken = self.leases.mark_taken(answer.slots)
                return [*taken, _changed(() if asked is None else asked.things)]
            case b.Seated():
                self.leases.seated(answer.held)
                return [_changed(answer.held)]
            case b.Lost():
                return [*self._lose(answer.slots, answer.reason), SlotsChanged()]
            case b.Shipped() | b.Unshippable() | b.Unfit():
                return self._delivered(answer)
            case b.Unshipped():
                self.places.removed(answer.id)
            case b.Away():
                return [*self._bridge_gone(answer), SlotsChanged()]
            case b.Hangs(node=name):
                text = f"the agent of node {name} has not answered for {self._silent_s:g} s"
                return [Notice(f"{text}: it is ended, with all that it runs, and another one is started")]
            case b.OtherVersion(node=name, version=version):
                text = f"node {name} has geminid {version}, and the service {__version__}: it is not used"
                return _once(self._other_versions, name, version, text)
            case b.NoAgent(node=name, reason=reason):
                text = f"node {name} is not used, because its agent cannot be started: {reason}"
                return _once(self.agentless, name, reason, text)
        return []

    def _bridge_gone(self, answer: b.Away) -> list[NodeEvent]:
        """A bridge is gone: what it has not answered is requested again from the next one."""
        self.leases.pending.drop_bridge(answer.bridge)
        self.places.lose_bridge(answer.bridge)
        self.capacity.bridge_gone()
        trouble = f"Ray is out of reach ({answer.trouble})" if answer.trouble else ""
        if not trouble or trouble == self.trouble:
            return []
        self.trouble = trouble
        return [Notice(f"Ray is out of reach: {answer.trouble}")]

    def _look(self, answer: b.Nodes) -> list[NodeEvent]:
        """All nodes that Ray has, and at first all slots that are held for us."""
        self.trouble, self.has_looked = "", True
        before, self.seen = self.seen, {node.name: node for node in answer.nodes}
        events: list[NodeEvent] = []
        for name in before.keys() - self.seen.keys():
            self._resting.pop(name, None)
            self.leases.others.lose_node(name)
            events.append(NodeGone(name))
        for name, node in self.seen.items():
            self.capacity.learn(node.gpu_type, node.bundle, node.accelerator)
            events += self._see(node, is_new=before.get(name) != node)
        if (found := answer.found) is not None:  # the first message of a bridge: what earlier ones held
            changed = self.leases.changed(found)
            events += self._lose([slot for slot in changed if node_of(slot) in self.seen])
            self.leases.granted({slot: seat for slot, seat in found.items() if slot not in changed})
            for name in [name for name, token in self._resting.items() if token and name in self.seen]:
                self._send(b.Rest(node=name))
        leaving = frozenset(name for name, node in self.seen.items() if node.draining)
        events += [NodeLeaving(name, leaving=True) for name in sorted(leaving - self._leaving)]
        events += [NodeLeaving(name, leaving=False) for name in sorted(self._leaving - leaving)]
        self._leaving = leaving
        self.leases.others.forget_waits()
        return [*events, *self.leases.count_others(self.seen)]

    def _see(self, node: b.SeenNode, *, is_new: bool) -> list[NodeEvent]:
        """A node as Ray describes it; one whose agent rests has none, or only the one that was ended."""
        agent = node.agent
        if agent is not None and agent.token == self._resting.get(node.name):
            return []
        if agent is not None:
            self._resting.pop(node.name, None)
        elif node.resting:
            self._resting.setdefault(node.name, "")
        if not (is_new or node.resting):
            return []
        place: dict[str, Any] = {key: value for key, value in (("rack", node.rack), ("zone", node.zone)) if value}
        group = NodeGroup(gpu_type=node.gpu_type, slots=node.slots, name=node.name, **place)
        return [NodeSeen(group, agent, rests=node.resting)]

    def _lose(self, slots: Sequence[str], why: str = "") -> list[NodeEvent]:
        """Ray has taken slots back: the agents have ended what ran there."""
        mine = [slot for slot in slots if slot in self.leases.held]
        if not mine:
            return []
        self.leases.release(mine)
        reason = f"Ray has taken {', '.join(mine)} back" + (f": {why}" if why else "")
        return [*self.leases.mark_taken(mine), SlotsLost(tuple(mine), reason)]

    def _delivered(self, answer: b.Shipped | b.Unshippable | b.Unfit) -> list[NodeEvent]:
        """A job's code was brought to nodes, or could not be."""
        request = self.places.answered(answer.id)
        if request is None:
            return []
        match answer:
            case b.Shipped():
                self.places.came(request.job_id, answer.places)
                held = [slot for slot in self.leases.held if node_of(slot) in answer.places]
                return [_changed(held)]
            case b.Unshippable():
                self.places.may_be_left(request.job_id)  # on other nodes
                return [CodeUndeliverable(request.job_id, answer.reason, answer.certain)]
            case b.Unfit() if answer.reason:
                avoided = self.leases.avoid(answer.nodes, answer.reason, self.in_use())
                return [*avoided, *self.leases.count_others(self.seen)]
        return []  # these nodes may be about to go; if they do not, it is requested again

    def _rest(self, needed: Set[str]) -> list[NodeEvent]:
        """End the agents of nodes that no job needs: to Ray's autoscaler, a node with an actor on it is in use."""
        busy = {node_of(slot) for slot in needed | self.leases.pending.things | self.leases.held.keys()}
        now_s = self._clock.monotonic_s()
        agents = {name: node.agent for name, node in self.seen.items() if node.agent is not None}
        unneeded = agents.keys() - self._resting.keys() - busy
        self._unneeded_since_s = {name: self._unneeded_since_s.get(name, now_s) for name in unneeded}
        events: list[NodeEvent] = []
        for name, since_s in self._unneeded_since_s.items():
            if now_s - since_s > REST_S:
                self._resting[name] = agents[name].token
                self._send(b.Rest(node=name))
                events.append(AgentStopped(name))
        return events

    def _token_of(self, node: str) -> str:
        """What identifies the agent of a node; empty if it has none."""
        agent = self.seen[node].agent if node in self.seen else None
        return "" if agent is None else agent.token


def _changed(*slots: Iterable[str]) -> SlotsChanged:
    return SlotsChanged(frozenset(slot for some in slots for slot in some))


def _once(known: dict[str, str], node: str, reason: str, text: str) -> list[NodeEvent]:
    """A warning about a node, unless it is the same as the last."""
    if known.get(node) == reason:
        return []
    known[node] = reason
    return [Notice(text)]
