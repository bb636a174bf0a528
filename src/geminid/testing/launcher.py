"""A launcher of workers that starts no process, for tests and measurements of supervisors."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from typing import Any

from geminid.process.launch import Launch


class PretendProcess:
    """A process that does not exist: it ends when it is sent a signal, and never by itself."""

    pid, reason = 0, ""

    def __init__(self) -> None:
        self._readable, self._wake = socket.socketpair()
        self._code: int | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """By which a launcher could find it again."""
        return {"pid": 0, "started_at": None}

    def begin(self) -> None:
        """Let it run."""

    def fileno(self) -> int:
        """Readable when it has ended."""
        return self._readable.fileno()

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """End it, with that signal as the reason."""
        if self._code is None:
            self._code = -int(number)
            self._wake.send(b"\0")

    def close(self) -> None:
        """Let go of it."""
        self._readable.close()
        self._wake.close()


class PretendLauncher:
    """Starts nothing; ``environments`` has the environment of each worker that it was to start."""

    def __init__(self) -> None:
        self.environments: list[Mapping[str, str]] = []

    def start(self, launch: Launch) -> PretendProcess:
        """Remember the worker's environment."""
        self.environments.append(launch.environment)
        return PretendProcess()

    def adopt(self, identity: Mapping[str, Any]) -> None:
        """No process is found again."""

    def close(self) -> None:
        """Let go of it."""
