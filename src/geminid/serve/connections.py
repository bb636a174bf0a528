"""The service's connections: how many may be open, how long a request may take to arrive, and which are closed first.

Anybody on this machine can connect, with or without a token. A connection is *unknown* until a request on it has shown
a valid token. Unknown connections that wait for a request have a small share of their own, and the oldest of them is
closed when there are too many; a user's connections have a share as well. Requests whose headers or body do not arrive
in time are closed, and so are unknown ones that do not read their answers. All limits follow from the file
descriptors that the process may have, half of which are left to the store and to jobs: a connection is always refused
before the system refuses a descriptor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

log = logging.getLogger("geminid.connections")

#: The service's limit of file descriptors is raised to this, where the system allows it.
WANTED_DESCRIPTORS = 16_384

#: Connections that may be open at once, however many descriptors there are.
MAX_CONNECTIONS = 2048

#: A request's headers must have arrived after this time.
HEADER_S = 10.0

#: A request's body must have arrived this long after its headers.
BODY_S = 30.0

#: Connections accepted before the open ones are counted again: the limit may be exceeded by this many for a moment.
ACCEPTED_AT_ONCE = 8

#: Connections that the system keeps waiting until they are accepted.
BACKLOG = 1024

#: The name of the connection in a request's state.
CONNECTION = "connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections may be open: in all, of those without a valid token, and of one user; and times."""

    total: int
    unknown: int
    per_user: int
    header_s: float = HEADER_S
    body_s: float = BODY_S

    @classmethod
    def for_descriptors(cls, descriptors: int) -> ConnectionLimits:
        """Half of the descriptors are for connections: a quarter of these for unknown ones, half for one user."""
        total = max(8, min(descriptors // 2, MAX_CONNECTIONS))
        return cls(total=total, unknown=total // 4, per_user=total // 2)


def raise_descriptor_limit() -> int:
    """Let this process have as many file descriptors as the system allows, up to what is wanted; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


class Connections:
    """All open connections of a server, oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._unknown: dict[GuardedConnection, None] = {}
        self._known: dict[GuardedConnection, str] = {}
        self._per_user: Counter[str] = Counter()

    def opened(self, connection: GuardedConnection) -> None:
        """A connection was made; which one is closed if that is one too many.

        That is the oldest of those that have shown no token and for which nothing is being done, then the oldest idle
        one of a user, then the newcomer.
        """
        self._unknown[connection] = None
        waiting = [one for one in self._unknown if not one.is_answering]
        too_many = len(self._unknown) + len(self._known) > self.limits.total
        if too_many or len(waiting) > self.limits.unknown:
            idle = [one for one in self._known if one.is_idle] if waiting[0] is connection else []
            gives_way = [*idle, *waiting][0]
            self.closed(gives_way)  # now: closing takes a while, and the next newcomer must find another
            gives_way.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the service has too many connections open: try again")

    def identified(self, connection: GuardedConnection, user: str) -> bool:
        """A request on a connection has shown the token of a user; whether the user may have another connection."""
        if self._known.get(connection) == user:
            return True
        if self._per_user[user] >= self.limits.per_user:
            return False
        if connection in self._unknown or connection in self._known:  # it may have been closed meanwhile
            self.closed(connection)
            self._known[connection] = user
            self._per_user[user] += 1
        return True

    def is_unknown(self, connection: GuardedConnection) -> bool:
        """Whether no request on a connection has shown a valid token."""
        return connection in self._unknown

    def closed(self, connection: GuardedConnection) -> None:
        """A connection is gone."""
        self._unknown.pop(connection, None)
        if (user := self._known.pop(connection, None)) is not None:
            self._per_user[user] -= 1
            if not self._per_user[user]:
                del self._per_user[user]


class GuardedConnection(H11Protocol):
    """A connection that is closed if its requests do not arrive in time. ``all_connections`` is set by a subclass."""

    all_connections: Connections

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited: str | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked and nothing is being answered."""
        return self.conn.their_state is h11.IDLE and self.cycle is not None and self.cycle.response_complete

    @property
    def is_answering(self) -> bool:
        """Whether a request has arrived, and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def identified(self, user: str) -> bool:
        """A request has shown the token of a user; whether the user may have another connection."""
        may = self.all_connections.identified(self, user)
        self._watch()
        return may

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._watch()
        self.all_connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.all_connections.closed(self)
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something has arrived."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A request was answered: the next one may come."""
        super().on_response_complete()
        self._watch()

    def refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Close the connection; if a request has begun that was not answered yet, with one sentence."""
        if self.transport.is_closing():
            return
        if not self.is_idle and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            log.warning("closed the connection of %s:%s: %s", *(self.client or ("?", "?")), sentence)
            body = json.dumps({"errors": [sentence]}).encode()
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
        self.transport.close()
        if self.transport.get_write_buffer_size():  # it would stay open until the other side reads
            self.transport.abort()

    def _watch(self) -> None:
        """Give the part of a request that is expected next its time, once."""
        awaited = None if self.transport.is_closing() else _AWAITED.get(self.conn.their_state)
        if self.is_idle and not self.conn.trailing_data[0]:
            awaited = None  # the server's own limit for idle connections applies
        elif awaited is None and self.is_answering and self.all_connections.is_unknown(self):
            awaited = "answer"  # a stranger may not read it; a user's may take as long as it takes
        if awaited != self._awaited:
            self._set_deadline(awaited)

    def _set_deadline(self, awaited: str | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline, self._awaited = None, awaited
        if awaited is not None:
            limits = self.all_connections.limits
            within_s = limits.header_s if awaited == "headers" else limits.body_s
            sentence = f"the {awaited} of a request must be complete within {within_s:g} s"
            self._deadline = self.loop.call_later(within_s, self.refuse, HTTPStatus.REQUEST_TIMEOUT, sentence)


#: What of a request is expected next, by where its sender is.
_AWAITED: dict[object, str] = {h11.IDLE: "headers", h11.SEND_BODY: "body"}


def guarded(limits: ConnectionLimits) -> type[GuardedConnection]:
    """The protocol of a server with these limits."""

    class Guarded(GuardedConnection):
        all_connections = Connections(limits)

    return Guarded
