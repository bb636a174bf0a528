"""The messages between the service and its process inside a Ray cluster (``bridge_process.py``).

Both are of the same version: the service starts the process, and another one when it is gone.
"""

from __future__ import annotations

import socket
from typing import Annotated

from msgspec import Meta, Struct

from geminid.serve.executors.provider import AgentPlace as AgentPlace
from geminid.serve.executors.provider import CodePlace as CodePlace
from geminid.serve.executors.provider import Seat as Seat
from geminid.wire.codec import Codec
from geminid.wire.connection import Connection

#: Longest message, in bytes: one reports all nodes and the slots that are held there, a kilobyte or so for each.
MAX_MESSAGE_BYTES = 1 << 27

Count = Annotated[int, Meta(ge=0)]


class SeenNode(Struct, frozen=True, kw_only=True):
    """A node with slots.

    ``unit`` is the resource that a slot is one of, ``bundle`` all that Ray holds for one, ``accelerator`` what Ray
    calls its GPU type; ``others`` are slots that others hold; ``resting`` nodes have no agent for now.
    """

    id: str
    name: str
    address: str
    gpu_type: str
    slots: Count
    unit: str
    bundle: dict[str, float]
    accelerator: str | None
    rack: str | None = None
    zone: str | None = None
    others: Count = 0
    draining: bool = False
    resting: bool = False
    agent: AgentPlace | None = None


class Bundle(Struct, frozen=True, kw_only=True):
    """A number of slots, each this bundle of resources to Ray, on nodes with this accelerator."""

    bundle: dict[str, float]
    accelerator: str | None
    slots: Count


class _Request(Struct, frozen=True, kw_only=True, tag_field="do", tag=str.lower, forbid_unknown_fields=True):
    """From the service."""


class Lease(_Request, frozen=True):
    """Hold these slots, all or none."""

    id: int
    slots: list[str]


class Ship(_Request, frozen=True):
    """Have a job's package on these nodes, with what it asks for."""

    id: int
    job: str
    code: str
    nodes: list[str]


class Unship(_Request, frozen=True):
    """A job's code is not needed any more, nor is it to be brought anywhere."""

    id: int
    job: str


class Release(_Request, frozen=True):
    """Give slots back."""

    slots: list[str]


class RequestCapacity(_Request, frozen=True):
    """Ask the autoscaler for this, and for nothing else; None: withdraw what was requested."""

    bundles: list[Bundle] | None


class Rest(_Request, frozen=True):
    """End the agent of a node; another one is started when slots of it are to be held."""

    node: str


class Replace(_Request, frozen=True):
    """The agent of a node does not answer: end it, and start another one."""

    node: str


class End(_Request, frozen=True):
    """Give everything back and end the agents."""


class _Answer(Struct, frozen=True, kw_only=True, tag_field="told", tag=str.lower, forbid_unknown_fields=True):
    """To the service."""


class Nodes(_Answer, frozen=True):
    """All nodes with slots; at first, all slots that an earlier bridge held, too."""

    nodes: list[SeenNode]
    found: dict[str, Seat] | None = None


class Leased(_Answer, frozen=True):
    """Slots are leased: the process that holds each."""

    id: int
    held: dict[str, Seat]


class Seated(_Answer, frozen=True):
    """The processes that hold CPU slots, which were leased before their actors had started."""

    held: dict[str, Seat]


class Refused(_Answer, frozen=True):
    """Slots cannot be leased; ``withheld``: Ray has them, for others."""

    id: int
    slots: list[str]
    withheld: bool


class Lost(_Answer, frozen=True):
    """Slots were taken back: what held them for us has ended, as Ray says for this reason."""

    slots: list[str]
    reason: str


class Shipped(_Answer, frozen=True):
    """Where a job's code is on each node."""

    id: int
    places: dict[str, CodePlace]


class Unshippable(_Answer, frozen=True):
    """A job's code, with what it asks for, cannot be on these nodes; ``certain`` if on no other either."""

    id: int
    nodes: list[str]
    reason: str
    certain: bool


class Unfit(_Answer, frozen=True):
    """No code can be brought to these nodes; without a reason, for now."""

    id: int
    nodes: list[str]
    reason: str


class Unshipped(_Answer, frozen=True):
    """Nothing is left of that job's code."""

    id: int


class NoAgent(_Answer, frozen=True):
    """No agent can be started on a node."""

    node: str
    reason: str


class Hangs(_Answer, frozen=True):
    """The agent of a node has not answered for too long, and was ended; another one is started."""

    node: str


class OtherVersion(_Answer, frozen=True):
    """A node has another version of Geminid, and is not used."""

    node: str
    version: str


class Looked(_Answer, frozen=True):
    """The bridge lives, and has looked at the cluster."""


class Trouble(_Answer, frozen=True):
    """Why the bridge ends."""

    text: str


class Away(_Answer, frozen=True):
    """From the service to itself: this bridge is gone, for this reason if it has given one."""

    bridge: int
    trouble: str


Request = Lease | Ship | Unship | Release | RequestCapacity | Rest | Replace | End
Answer = (
    Nodes
    | Leased
    | Seated
    | Refused
    | Lost
    | Shipped
    | Unshippable
    | Unfit
    | Unshipped
    | NoAgent
    | Hangs
    | OtherVersion
    | Looked
    | Trouble
    | Away
)

REQUESTS: Codec[Request] = Codec(Request, max_line_bytes=MAX_MESSAGE_BYTES)
ANSWERS: Codec[Answer] = Codec(Answer, max_line_bytes=MAX_MESSAGE_BYTES)

#: The service's end of the connection, and that of the bridge.
ServiceEnd = Connection[Answer, Request]
BridgeEnd = Connection[Request, Answer]


def service_end(opened: socket.socket) -> ServiceEnd:
    """The service's end of the connection."""
    return Connection(opened, ANSWERS, REQUESTS, max_unsent_bytes=MAX_MESSAGE_BYTES)


def bridge_end(opened: socket.socket) -> BridgeEnd:
    """The bridge's end of the connection."""
    return Connection(opened, REQUESTS, ANSWERS, max_unsent_bytes=2 * MAX_MESSAGE_BYTES)
