"""What an execution engine has to supply: nodes, and leases of their slots. A provider knows nothing about jobs.

Everything about jobs is done by the executor (``executor.py``) with the agents of the nodes (``node/agent.py``). A new
engine needs a :class:`NodeProvider`, an implementation of ``base.Submissions``, and a function that makes an
``AgentExecutor`` with them (``ray/executor.py`` is the model).

A provider is called in the service's thread only. What it learns in threads of its own it passes to ``post``; the
executor then calls ``handle`` with it, which returns what it means for nodes and slots as node events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct, field

from geminid.node.messages import Identity
from geminid.nodes import NodeGroup
from geminid.process.launch import Launcher
from geminid.serve.executors.base import ExecutorEvent

#: A node, and the number of a slot there.
Place = tuple[str, int]


class AgentPlace(Struct, frozen=True):
    """Where the agent of a node listens, its token, and its version of Geminid."""

    host: str
    port: int
    token: str
    version: str = ""


class Seat(Struct, frozen=True):
    """A leased slot: its devices, and the engine's process that holds the lease, if that is known yet."""

    devices: list[str] = field(default_factory=list)
    holder: Identity | None = None


class CodePlace(Struct, frozen=True):
    """Where a job's code is on a node, what makes it run, and the token of the agent that has unpacked it."""

    folder: str
    environment: dict[str, str]
    agent: str = ""


# --- What a provider reports ---


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The engine has a node. It is used once its agent answers; at once if the agent ``rests`` until it is needed."""

    node: NodeGroup
    agent: AgentPlace | None = None
    rests: bool = False


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The engine no longer has a node."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLeaving:
    """The engine is going to take a node away, so jobs should leave it; or no longer is (``leaving`` is false)."""

    node: str
    leaving: bool


@dataclass(frozen=True, slots=True)
class AgentStopped:
    """The provider has ended a node's agent until the node is needed again."""

    node: str


@dataclass(frozen=True, slots=True)
class SlotsTaken:
    """All slots of a node that our jobs cannot have now: others use them, or they are broken."""

    node: str
    slots: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SlotsLost:
    """Leased slots were taken back: what ran there has ended."""

    slots: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """Leases of these slots (None: of any) have changed: jobs that wait for them are looked at again."""

    slots: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class CodeUndeliverable:
    """A job's code cannot be brought to its nodes; if that is ``certain``, to no other nodes either."""

    job_id: str
    reason: str
    certain: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning for the operator."""

    text: str


NodeEvent = (
    NodeSeen
    | NodeGone
    | NodeLeaving
    | AgentStopped
    | SlotsTaken
    | SlotsLost
    | SlotsChanged
    | CodeUndeliverable
    | Notice
)


class SlotNames(Protocol):
    """One name for each slot, which stays the same for as long as processes may run there."""

    def name(self, place: Place) -> str:
        """The name of a slot."""

    def place(self, name: str) -> Place:
        """The node and the number of a slot."""

    def has(self, name: str) -> bool:
        """Whether there may be such a slot."""

    def moved(self, place: Place) -> Place | None:
        """Where the slot is now that was here when the last service ran; None if it is gone."""


class Agents(Launcher, Protocol):
    """The agents of all nodes: a launcher whose processes run where their slot is."""

    def know(self, node: str, host: str, port: int, token: str) -> bool:
        """Connect to the agent of a node at this address. True if that is done at once; otherwise an event follows."""

    def leave(self, node: str) -> None:
        """A node's agent is about to end, as it should: disconnect, and report nothing."""

    def forget(self, node: str) -> None:
        """The engine no longer has a node: what may still run there is ended, or waited for."""

    def doubt(self, node: str) -> bool:
        """A node is not there; whether processes of an earlier service may run on it. Reports when that is over."""

    def hold(self, node: str) -> None:
        """Send a node's agent the processes that hold its slots (``Seat.holder``)."""

    def host(self, node: str) -> str:
        """The address at which other nodes reach a node."""

    def runs(self, identity: Mapping[str, Any]) -> bool:
        """Whether a process of an earlier service still runs."""

    def end_unknown(self, jobs: Collection[str], keys: Set[str]) -> None:
        """End processes of earlier services, except these and those of these jobs."""

    def end_strangers(self, node: str) -> None:
        """End the processes of a node that this service does not watch."""


class NodeProvider(ABC):
    """Supplies nodes, and leases of their slots. Most engines need the abstract methods only."""

    #: What slots are called.
    names: SlotNames
    #: The address at which nodes reach this machine; None if all processes run on it.
    host: str | None = None
    #: Why the engine cannot be asked for anything now; empty if it can.
    trouble: str = ""
    #: What processes need in their environment to find the devices of their slots, beside their names.
    device_environment: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def open(self, post: Callable[[ExecutorEvent], None], jobs: Collection[str]) -> None:
        """The service begins; ``jobs`` are those that hold slots. From now on, events go to ``post``."""

    @abstractmethod
    def handle(self, event: ExecutorEvent) -> list[NodeEvent]:
        """What a posted event means for nodes and slots."""

    @abstractmethod
    def lease(self, job_id: str, code: str, slots: Sequence[str]) -> None:
        """Begin to lease these slots, and to bring a job's code there; those that are leased already stay so.

        Returns at once. When a lease is there, ``handle`` or ``tick`` returns ``SlotsChanged``.
        """

    @abstractmethod
    def seat(self, slot: str) -> Seat | None:
        """The lease of a slot; None if it is not leased for us."""

    @abstractmethod
    def release(self, slots: Collection[str]) -> None:
        """Give leased slots back."""

    @abstractmethod
    def close(self, *, detach: bool) -> None:
        """Give all slots back, or leave them to the next service (``detach``)."""

    def tick(self, needed: Callable[[], Set[str]], jobs: Callable[[str], bool]) -> list[NodeEvent]:
        """Do what is due. ``needed`` returns the slots that jobs use or wait for, ``jobs`` whether a job exists."""
        return []

    def is_ready(self, job_id: str, code: str, slot: str) -> bool:
        """Whether a slot is leased, its node's agent runs, and a job's code is there."""
        return self.seat(slot) is not None

    def has_code(self, job_id: str, code: str, slot: str) -> bool:
        """Whether a job's code is known to be where a slot is, if it has to be brought there."""
        return True

    def code_on(self, job_id: str, node: str) -> CodePlace | None:
        """Where a job's code is on a node, if it was brought there."""
        return None

    def lose_code(self, job_id: str, node: str) -> None:
        """A job's code is not on a node any more."""
        return

    def request_capacity(self, slots_by_type: Callable[[], Mapping[str, int]]) -> None:
        """There is work for this number of slots of each GPU type: an engine that can start nodes does."""
        return

    def replace_agent(self, node: str) -> None:
        """The agent of a node does not answer: end it, and start another one."""
        return

    def is_waiting(self, job_id: str) -> bool:
        """Whether slots were requested for a job, and the engine has not answered yet."""
        return False

    def delay_of(self, job_id: str, code: str, slots: Sequence[str]) -> str:
        """What a job waits for whose slots are free; empty if for nothing. In any thread."""
        return ""
