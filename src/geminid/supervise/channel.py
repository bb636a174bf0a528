"""The line between a job's supervisor and its workers: JSON lines over a socket that only they can open.

An address is ``unix:`` and a path (the file is open to its owner only) or ``tcp:host:port``, for workers on other
machines. The first line on a connection must be a ``Hello`` with the worker's own token; all others are cut off.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from geminid.supervise.protocol import (
    FROM_SUPERVISOR,
    FROM_WORKER,
    PROTOCOL_VERSION,
    FromSupervisor,
    FromWorker,
    Hello,
    ProtocolError,
)
from geminid.wire.connection import Connection
from geminid.wire.handshake import check_token, check_version

#: A worker's end of its connection, and the supervisor's.
WorkerEnd = Connection[FromSupervisor, FromWorker]
SupervisorEnd = Connection[FromWorker, FromSupervisor]

#: Environment of a worker process.
CONTROL, TOKEN, WORKER, JOB = "GEMINID_CONTROL", "GEMINID_TOKEN", "GEMINID_WORKER", "GEMINID_JOB"
CHECKPOINTS, REPORTS, OPTIONS = "GEMINID_CHECKPOINTS", "GEMINID_REPORTS", "GEMINID_OPTIONS"

#: Where a worker leaves word that its script has ended well after training, for a supervisor that may be away.
ENDED = "GEMINID_ENDED"

#: Set for a process of which nobody knows whether it will call ``geminid.init()``: it does without a supervisor.
LONE = "GEMINID_LONE"

#: Where there are several nodes: the name of the worker's own, and the address at which the others can reach it.
NODE, ADDRESS = "GEMINID_NODE", "GEMINID_ADDRESS"

#: How long a peer that takes nothing more is waited for before it counts as gone.
SEND_PATIENCE_S = 5.0

#: Unix socket paths are limited to 107 bytes on Linux.
LONGEST_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class Address:
    """Where a supervisor listens."""

    path: str | None = None
    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``unix:/path`` or ``tcp:host:port``."""
        scheme, _, rest = text.partition(":")
        if scheme == "unix" and rest.startswith("/"):
            return cls(path=rest)
        host, _, port = rest.rpartition(":")
        if scheme == "tcp" and host and port.isdigit():
            return cls(host=host, port=int(port))
        raise ValueError(f"{CONTROL} is {text!r}: it must be unix:/path or tcp:host:port")

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else f"tcp:{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected socket."""
        if self.path is not None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(timeout_s)
            try:
                made.connect(self.path)
            except BaseException:
                made.close()
                raise
            return made
        return socket.create_connection((self.host, self.port), timeout=timeout_s)

    def listen(self) -> tuple[socket.socket, Address]:
        """A listening socket that does not block, and its address with the port that the system chose."""
        if self.path is None:
            made = socket.create_server((self.host, self.port), backlog=64)
            made.setblocking(False)
            host, port = made.getsockname()[:2]
            return made, Address(host=host, port=port)
        if len(os.fsencode(self.path)) > LONGEST_SOCKET_PATH:
            raise ValueError(f"the socket path {self.path} is longer than {LONGEST_SOCKET_PATH} bytes")
        Path(self.path).unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            made.bind(self.path)
        finally:
            os.umask(before)
        made.listen(64)
        made.setblocking(False)
        return made, self


def worker_end(opened: socket.socket) -> WorkerEnd:
    """A worker's end of a connection."""
    return Connection(opened, FROM_SUPERVISOR, FROM_WORKER)


def supervisor_end(opened: socket.socket) -> SupervisorEnd:
    """A supervisor's end of a connection."""
    return Connection(opened, FROM_WORKER, FROM_SUPERVISOR)


def admitted(message: FromWorker, token: str | None) -> Hello:
    """The greeting, if it is one and carries the right token, which is None if there is no such worker.

    Raises:
        ProtocolError: it is not.
    """
    if not isinstance(message, Hello):
        raise ProtocolError("the first message was not a hello")
    if token is None:
        raise ProtocolError(f"there is no worker {message.worker[:40]!r}")
    check_token(message.token, token)
    check_version("the worker", message.version, PROTOCOL_VERSION)
    return message
