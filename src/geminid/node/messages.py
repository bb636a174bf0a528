"""What the service and the agents of its nodes say to each other.

The first message of a service must be a ``Hello`` with the agent's token; what the agent answers is ``Here``. Requests
carry the key of the process that they are about, and may be repeated: a key is started once. On the wire the kind of a
request is its field ``do``, and that of an answer ``told``, for agents of earlier versions that still run.
"""

from __future__ import annotations

import socket
from typing import Annotated

from msgspec import Meta, Struct, field

from geminid.wire.codec import Codec
from geminid.wire.connection import Connection

#: The version of this protocol; agents that run since before there was a version speak it, too.
PROTOCOL_VERSION = 1

#: Longest message: a request has a command and an environment, ``Here`` the last reports of all that have ended.
MAX_MESSAGE_BYTES = 1 << 24

#: An agent keeps this much that its service has not taken; the service says how much of logs it will take.
MAX_UNSENT_BYTES = 1 << 27

Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class Identity(Struct, frozen=True):
    """A process of a machine: its id, and when it was started, which distinguishes it from later ones of that id."""

    pid: Count
    started_at: int | None = None


class _Request(Struct, frozen=True, kw_only=True, tag_field="do", tag=str.lower):
    """From the service."""


class Hello(_Request, frozen=True):
    """Who it is."""

    token: str
    version: int = PROTOCOL_VERSION


class Start(_Request, frozen=True):
    """Start a process, its output into a log. ``brought`` says that its folder was brought there, and may be gone."""

    key: str
    command: list[str]
    environment: dict[str, str]
    folder: str
    slots: list[str]
    brought: bool = False


class Hold(_Request, frozen=True):
    """Which processes hold slots; None: one will."""

    slots: dict[str, Identity | None]


class Follow(_Request, frozen=True):
    """Send the log from this offset on."""

    key: str
    offset: Count


class Signal(_Request, frozen=True):
    """Send a signal to the process and all that it started."""

    key: str
    signal: Annotated[int, Meta(ge=1, le=64)]


class More(_Request, frozen=True):
    """So much more of logs may be sent than what was allowed before."""

    bytes: Count


class Forget(_Request, frozen=True):
    """The service knows how it ended, and its log is complete."""

    key: str


class Ping(_Request, frozen=True):
    """The service is there; ``Pong`` says that the agent is."""


class End(_Request, frozen=True):
    """The service has given this node up: end everything."""


class _Answer(Struct, frozen=True, kw_only=True, tag_field="told", tag=str.lower):
    """To the service."""


class Here(_Answer, frozen=True):
    """The first message: what runs, what has ended and how, which of it well after training, and last reports."""

    running: dict[str, int]
    ended: dict[str, int]
    well: list[str]
    reports: dict[str, str] = field(default_factory=dict)
    version: int = PROTOCOL_VERSION


class Refused(_Answer, frozen=True):
    """The answer to a ``Hello`` that has the right token, and cannot be served."""

    reason: str


class Started(_Answer, frozen=True):
    """A process was started."""

    key: str
    pid: Count


class Log(_Answer, frozen=True):
    """A piece of a log (bytes as Latin-1)."""

    key: str
    offset: Count
    text: str


class Ended(_Answer, frozen=True):
    """How a process ended, after the last piece of its log.

    ``well`` if its script ended well after training, ``report`` is its last one if it led, ``codeless`` if what was
    brought for it to run is gone.
    """

    key: str
    code: int
    reason: str
    well: bool
    report: str = ""
    codeless: bool = False


class Pong(_Answer, frozen=True):
    """The agent is there."""


Request = Hello | Start | Hold | Follow | Signal | More | Forget | Ping | End
Answer = Here | Refused | Started | Log | Ended | Pong

_REQUESTS: Codec[Request] = Codec(Request, max_line_bytes=MAX_MESSAGE_BYTES)
_ANSWERS: Codec[Answer] = Codec(Answer, max_line_bytes=MAX_MESSAGE_BYTES)

#: The service's end of a connection, and the agent's.
ServiceEnd = Connection[Answer, Request]
AgentEnd = Connection[Request, Answer]


def connect(host: str, port: int) -> ServiceEnd:
    """Begin to connect with an agent; see :meth:`Connection.to`."""
    return Connection.to(host, port, _ANSWERS, _REQUESTS)


def agent_end(opened: socket.socket) -> AgentEnd:
    """The agent's end of a connection."""
    return Connection(opened, _REQUESTS, _ANSWERS, max_unsent_bytes=MAX_UNSENT_BYTES)
