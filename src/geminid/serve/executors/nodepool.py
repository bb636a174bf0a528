"""The nodes of a cluster: which there are, whether their agents answer, and what may still run on those that are gone.

Events of the provider and of the agents go in; records, and what they mean for jobs, come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.nodes import NodeGroup
from geminid.serve import records as r
from geminid.serve.executors import agentevents as a
from geminid.serve.executors import provider as p
from geminid.serve.executors.fences import BEFORE, Fences
from geminid.serve.executors.topology import Topology
from geminid.serve.livejob import LiveJob

#: A node that has been gone for this time is not counted among the cluster's any more.
FORGET_NODE_S = 600.0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone with all of its slots."""

    node: str
    slots: frozenset[str]
    reason: str


#: What nodes mean for jobs, and for the log.
NodeOutcome = r.Record | NodeLost | p.SlotsLost | p.SlotsChanged | p.CodeUndeliverable | a.CodeGone


class NodePool:
    """The nodes that the provider has, and those that can be used: their agents answer, or rest until needed."""

    def __init__(
        self, provider: p.NodeProvider, agents: p.Agents, topology: Topology, clock: Clock, *, silent_s: float = 0.0
    ) -> None:
        self._provider, self._agents, self._topology, self._clock = provider, agents, topology, clock
        self._silent_s = silent_s
        self.seen: dict[str, NodeGroup] = {}
        self.up: set[str] = set()
        self.resting: set[str] = set()
        self.fences = Fences()
        self.agentless: dict[str, str] = {}
        self.agent_versions: dict[str, str] = {}
        self._known: dict[str, NodeGroup] = {}
        self._gone_since_s: dict[str, float] = {}
        self._leaving: dict[str, None] = {}
        self._taken: dict[str, p.SlotsTaken] = {}
        self._ends_strangers = False
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        """The slots of all nodes that there are."""
        if self._cluster is None:
            self._cluster = self._topology.cluster_of(self._known.values())
        return self._cluster

    @property
    def is_complete(self) -> bool:
        """Whether all nodes that the provider has can be used."""
        return bool(self.seen) and len(self.up) == len(self.seen)

    def topology(self, node: str) -> tuple[str, ...]:
        """The zone and rack of a node."""
        known = self._known.get(node)
        if known is None:
            return ()
        placed = self._topology.placed(known)
        return placed.zone, placed.rack or ""

    def gpu_type(self, node: str) -> str:
        """The GPU type of a node; ``cpu`` if it has none, or is not known."""
        known = self._known.get(node)
        return "cpu" if known is None else known.gpu_type

    def has(self, slot: str) -> bool:
        """Whether a slot is there, on a node that can be used."""
        return self._provider.names.has(slot) and self._provider.names.place(slot)[0] in self.up

    def is_usable(self, slot: str) -> bool:
        """Whether a slot is on a node whose agent answers now."""
        node = self._provider.names.place(slot)[0]
        return node in self.up and node not in self.resting and self._provider.names.has(slot)

    # --- When a service begins ---

    def fence_before(self, jobs: Iterable[LiveJob]) -> None:
        """What an earlier service started may run on nodes that are not here, and that only it knew."""
        for job in jobs:
            place = job.state.placement
            missing = set() if place is None else set(place.node_names) - self.up
            if not job.phase.holds_slots and job.wants_slots and job.state.first_started_at_s is not None:
                missing.add(BEFORE)
            self.fences.put(job.id, missing)

    def begin(self) -> list[r.Record]:
        """Jobs have been taken over: from now on, processes that no job knows are ended. What there is to record."""
        self._doubt_missing()
        self._ends_strangers, self._cluster = True, None
        taken = [self._taken_record(taken) for node, taken in self._taken.items() if node in self.up and taken.slots]
        gone = map(_left, sorted(self._known.keys() - self.up))
        return [*gone, *taken, *(r.NodeLeaving(node=node, leaving=True) for node in sorted(self._leaving))]

    # --- Events ---

    def handle_provider(self, events: Sequence[p.NodeEvent]) -> list[NodeOutcome]:
        """What the provider reports means this."""
        outcomes = [outcome for event in events for outcome in self._of_provider(event)]
        if any(isinstance(event, p.NodeSeen | p.NodeGone) for event in events):
            self._doubt_missing()
        return outcomes

    def _of_provider(self, event: p.NodeEvent) -> list[NodeOutcome]:
        match event:
            case p.NodeSeen():
                return self._see(event)
            case p.NodeGone(node=node):
                self.seen.pop(node, None)
                self._taken.pop(node, None)
                if node in self.resting:  # it has no agent that could be missed
                    return self._lose(node)
                if node in self.up:
                    self._agents.forget(node)
            case p.NodeLeaving(node=node, leaving=leaving):
                if leaving:
                    self._leaving[node] = None
                else:
                    self._leaving.pop(node, None)
                return [r.NodeLeaving(node=node, leaving=leaving)]
            case p.AgentStopped(node=node):
                self.resting.add(node)
                self._agents.leave(node)
            case p.SlotsTaken(node=node):
                self._taken[node] = event
                return [self._taken_record(event)] if node in self.up else []
            case p.Notice(text=text):
                return [r.Noted(level="warning", text=text)]
            case p.SlotsLost() | p.SlotsChanged() | p.CodeUndeliverable():
                return [event]
        return []

    def handle_agent(self, event: a.AgentEvent) -> list[NodeOutcome]:
        """What the connection with an agent reports means this."""
        match event:
            case a.NothingRuns(node=node):
                self.fences.lift(node)
            case a.AgentSilent(node=node):  # what follows is as if somebody had killed it
                self._provider.replace_agent(node)
                return [self.hanging(node)]
            case a.AgentRefused(node=node, reason=reason):
                return self.note_agentless(node, reason, f"the agent of node {node} refuses this service: {reason}")
            case a.AgentConnected(node=node) if node in self.resting:
                self.resting.discard(node)
                self._agents.end_strangers(node)
            case a.AgentConnected(node=node) if node in self.seen:
                if self._ends_strangers:
                    self._agents.end_strangers(node)  # those of jobs that have gone on without them
                self.fences.lift(node)
                return list(self._join(node))
            case a.AgentGone(node=node) if node in self.up:
                return self._lose(node)
            case a.CodeGone():
                self._provider.lose_code(event.job_id, event.node)
                return [event]
        return []

    def tick(self) -> list[r.Record]:
        """Forget nodes that have been gone for long, and may never come back: an autoscaler gives each a new name."""
        now_s, fenced = self._clock.monotonic_s(), self.fences.nodes
        late = [name for name, since_s in self._gone_since_s.items() if now_s - since_s > FORGET_NODE_S]
        late = [name for name in late if name not in fenced][: len(self._known) - 1]
        for name in late:
            del self._known[name], self._gone_since_s[name]
            self._cluster = None
        return [r.NodeForgotten(node=name) for name in late]

    def hanging(self, node: str) -> r.Record:
        """The agent of a node hangs, and is replaced."""
        text = f"the agent of node {node} has not answered for {self._silent_s:g} s"
        return r.Noted(level="warning", text=f"{text}: it is ended, with all that it runs, and another one is started")

    def note_agentless(self, node: str, reason: str, text: str) -> list[NodeOutcome]:
        """A node has no agent that can be used, for this reason; recorded once."""
        if self.agentless.get(node) == reason:
            return []
        self.agentless[node] = reason
        return [r.Noted(level="warning", text=text)]

    def _see(self, event: p.NodeSeen) -> list[NodeOutcome]:
        """The provider has a node: it joins when its agent answers, or at once if that rests."""
        name = event.node.name or ""
        self.seen[name] = event.node
        if event.agent is not None:
            self.agent_versions[name] = event.agent.version
        if event.rests and name not in self.up:
            self.resting.add(name)
            return list(self._join(name))
        if event.agent is not None and self._agents.know(name, event.agent.host, event.agent.port, event.agent.token):
            return list(self._join(name)) if name not in self.up else []
        return []

    def _join(self, name: str) -> list[r.Record]:
        """A node can be used."""
        node = self._known[name] = self.seen[name]
        self._cluster = None
        self.up.add(name)
        self._gone_since_s.pop(name, None)
        records: list[r.Record] = [r.NodeJoined(node=name, gpu_type=node.gpu_type, slots=node.slots)]
        if differs := self._topology.differences(node):
            text = f"node {name} has {differs}, as the cluster file of --cluster says; what Ray says counts"
            records.append(r.Noted(level="warning", text=text))
        if name in self._taken and self._taken[name].slots:
            records.append(self._taken_record(self._taken[name]))
        return records

    def _lose(self, name: str) -> list[NodeOutcome]:
        """A node is gone: jobs go on with what they have elsewhere, or come back from their checkpoints."""
        left = _left(name)
        self.up.discard(name)
        self.resting.discard(name)
        self._gone_since_s[name] = self._clock.monotonic_s()
        self._cluster = None
        names = self._provider.names
        slots = frozenset(names.name((name, index)) for index in range(self._known[name].slots))
        self._provider.release([slot for slot in slots if self._provider.seat(slot) is not None])
        return [left, NodeLost(name, slots, left.reason)]

    def _doubt_missing(self) -> None:
        """Wait for what may run on nodes that the provider does not have either; others may still come."""
        for name in self.fences.nodes - self.seen.keys() - self.up:
            if not self._agents.doubt(name):
                self.fences.lift(name)

    def _taken_record(self, taken: p.SlotsTaken) -> r.Record:
        return r.SlotsTaken(node=taken.node, slots=list(taken.slots), reason=taken.reason)


def _left(node: str) -> r.NodeLeft:
    return r.NodeLeft(node=node, reason=f"node {node} is gone")
