"""How workers find and reach their supervisor: the environment of a worker, and the address of a supervisor.

An address is ``unix:`` and a path (only the owner can open the file) or ``tcp:host:port``, for workers on other
machines. The first message on a connection must be a ``Hello`` with the worker's own token; otherwise it is refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
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

#: Variable of a worker: the address of its supervisor.
CONTROL = "GEMINID_CONTROL"

#: Variable of a worker: its own secret token.
TOKEN = "GEMINID_TOKEN"

#: Variable of a worker: its name.
WORKER = "GEMINID_WORKER"

#: Variable of a worker: the name of its job.
JOB = "GEMINID_JOB"

#: Variable of a worker: the folder or fsspec URL of checkpoints.
CHECKPOINTS = "GEMINID_CHECKPOINTS"

#: Variable of a worker: the samples that are in its job's checkpoints, as far as the service knows.
SAVED = "GEMINID_SAVED_SAMPLES"

#: Variable of a script without a supervisor: the file that it appends its reports to.
REPORTS = "GEMINID_REPORTS"

#: Variable of a worker: options that override what the script passes to ``run.prepare``, as JSON.
OPTIONS = "GEMINID_OPTIONS"

#: Variable of a worker: the file that it writes when its script has ended well after training.
ENDED = "GEMINID_ENDED"

#: Variable of a process that may never call ``geminid.init()``: it keeps running without a supervisor.
LONE = "GEMINID_LONE"

#: Variable of a worker on one of several nodes: the name of its node.
NODE = "GEMINID_NODE"

#: Variable of a worker on one of several nodes: the address at which the others can reach it.
ADDRESS = "GEMINID_ADDRESS"

#: How long a peer may take to accept a connection or what was sent to it, in seconds; then it counts as gone.
SEND_PATIENCE_S = 5.0

#: Longest path of a socket, in bytes: Linux allows 107.
LONGEST_SOCKET_PATH = 100

#: How many connections the system keeps waiting for a supervisor to accept them.
BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Address:
    """Where a supervisor listens: a socket file, or a host and port."""

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
        """A non-blocking socket that listens, and its address with the port that the system chose."""
        if self.path is None:
            made = socket.create_server((self.host, self.port), backlog=BACKLOG)
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
        made.listen(BACKLOG)
        made.setblocking(False)
        return made, self


def saved_samples(environment: Mapping[str, str]) -> int:
    """The samples that are in the checkpoints of a worker's job, as far as the service knows."""
    text = environment.get(SAVED, "")
    return int(text) if text.isdecimal() else 0


def worker_end(opened: socket.socket) -> WorkerEnd:
    """A worker's end of a connection."""
    return Connection(opened, FROM_SUPERVISOR, FROM_WORKER)


def supervisor_end(opened: socket.socket) -> SupervisorEnd:
    """A supervisor's end of a connection."""
    return Connection(opened, FROM_WORKER, FROM_SUPERVISOR)


def admitted(message: FromWorker, token: str | None) -> Hello:
    """The message, if it is a ``Hello`` with the right token, which is None if there is no such worker.

    Raises:
        ProtocolError: it is something else.
    """
    if not isinstance(message, Hello):
        raise ProtocolError("the first message was not a hello")
    if token is None:
        raise ProtocolError(f"there is no worker {message.worker[:40]!r}")
    check_token(message.token, token)
    check_version("the worker", message.version, PROTOCOL_VERSION)
    return message
