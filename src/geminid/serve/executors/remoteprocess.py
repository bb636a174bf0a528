"""A process on a node, as its supervisor or its command sees it."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from geminid.node import messages as m
from geminid.process.launch import UNKNOWN_CODE
from geminid.serve.executors.collected import Collected

if TYPE_CHECKING:
    from geminid.serve.executors.agents import AgentPool


class RemoteProcess:
    """A process on a node."""

    def __init__(
        self, agents: AgentPool, node: str, key: str, log: Path, pid: int = 0, start: m.Start | None = None
    ) -> None:
        self._agents, self.node, self.key, self.log, self.pid = agents, node, key, log, pid
        self.start = start
        self.collected = Collected(key, log)
        self.is_repeatable = True
        self.on_end: Callable[[int, str], None] = lambda code, reason: None
        self.reason = ""
        self._code: int | None = None
        self._readable, self._wake = socket.socketpair()

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its node, its key there, and for those that were announced, what starts it on which agent."""
        known = {"node": self.node, "key": self.key, "pid": self.pid, "log": str(self.log)}
        if self.start is None or not self.is_repeatable:
            return known
        return {**known, "start": msgspec.to_builtins(self.start), "server": self._agents.server(self.node)}

    def begin(self) -> None:
        """Have its node start it, once: its identity has been written down."""
        self._agents.begin(self)

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._readable.fileno()

    def exit_code(self) -> int | None:
        """The exit code, if it has ended."""
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Have its node send it a signal. On a node that is gone, there is nothing left to end."""
        if self._code is None and self._agents.knows(self.node):
            self._agents.send(self.node, m.Signal(key=self.key, signal=number))
        elif number == signal.SIGKILL:
            self.over(UNKNOWN_CODE, f"node {self.node} is gone")

    def over(self, code: int, reason: str = "") -> None:
        """It has ended."""
        if self._code is None:
            self._code, self.reason = code, reason
            with contextlib.suppress(OSError):
                self._wake.send(b"\0")

    def close(self) -> None:
        """Stop watching it."""
        self._readable.close()
        self._wake.close()
        self._agents.drop(self)
