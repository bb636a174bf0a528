"""The port at which a home's service listens: the same one after a restart, where it is free."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from geminid.serve.auth import write_private
from geminid.serve.store import StoreProblem

#: Where a home's last port is kept.
LAST_PORT = "port.json"

#: Connections that wait until the server has begun.
BACKLOG = 512


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens, and what is to be said about its port."""

    socket: socket.socket
    note: str = ""


def listen(home: Path, host: str, port: int | None) -> Listener:
    """Listen at a port; at any that is free for 0; at the last one of this home, if that is free, for None.

    Raises:
        StoreProblem: the port is not free.
    """
    last = _last_port(home, host) if port is None else None
    note = ""
    if last is not None:
        try:
            return Listener(socket.create_server((host, last), backlog=BACKLOG))
        except OSError as problem:
            note = f"port {last}, where the last service was, cannot be used now ({problem.strerror})"
    try:
        found = socket.create_server((host, port or 0), backlog=BACKLOG)
    except OSError as problem:
        raise StoreProblem(f"{host}:{port or 0} cannot be listened at: {problem.strerror}") from None
    return Listener(found, note)


def keep_port(home: Path, host: str, port: int) -> None:
    """Have the next service of this home listen at the same port."""
    write_private(home / LAST_PORT, json.dumps({"host": host, "port": port}))


def _last_port(home: Path, host: str) -> int | None:
    try:
        kept = json.loads((home / LAST_PORT).read_text(encoding="utf-8"))
        return int(kept["port"]) if kept["host"] == host and 0 < int(kept["port"]) < 65_536 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
