"""Plain commands of jobs: one process on each of a command's nodes, what of it runs where, and how it ended.

What is to run where is written down in the job's folder before any of it is started, and how it ended before its agent
forgets it: nothing runs twice, and no end is lost.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from geminid.clock import Clock
from geminid.process.launch import Launch, how_it_ended
from geminid.process.shim import PROCESS, write
from geminid.serve.executors.agents import AgentPool
from geminid.serve.executors.remoteprocess import RemoteProcess
from geminid.wire.reactor import shared_reactor

#: A process that is to end is signalled again after this time: a connection that is cut carries nothing.
SIGNAL_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class CommandExit:
    """How a command ended; ``asked`` if it had been asked to before it did."""

    code: int
    problem: str
    asked: bool = False

    @property
    def text(self) -> str:
        """In words."""
        return self.problem or how_it_ended(self.code)


class Command(Protocol):
    """The processes of a plain command."""

    @property
    def pids(self) -> list[int]:
        """The process ids, each on its node."""

    def stop(self, grace_s: float) -> None:
        """Ask the command to end; it is killed when the grace period is over."""

    def tick(self) -> None:
        """Kill the command if its grace period is over."""

    def kill(self) -> None:
        """End the command now."""


class Commands(Protocol):
    """Starts the commands of jobs, and takes over those that an earlier service started."""

    def start(self, job_id: str, launches: Sequence[Launch], ended: Callable[[Command], None]) -> Command:
        """Start a job's command on each of its nodes."""

    def adopt(self, job_id: str, ended: Callable[[Command], None], *, begin: bool, asked: bool) -> Command | None:
        """Take over a command: what runs, what has ended and, to ``begin``, what was to be started and was not.

        ``asked`` if the service before this one has asked it to end. None if some of it is gone.
        """

    def slots_of(self, job_id: str) -> tuple[str, ...]:
        """The slots that a command of an earlier service runs on; none if nobody knows."""

    def exit_of(self, job_id: str) -> CommandExit | None:
        """How a job's command ended, if it did."""

    def forget_exit(self, job_id: str) -> None:
        """A job's command is started again: how it ended before does not matter any more."""

    def keys(self, job_id: str) -> set[str]:
        """The keys of the processes that are written down for a job."""


class RemoteCommand:
    """A plain command's processes, one on each of its nodes: when one fails, all end."""

    def __init__(
        self,
        processes: Sequence[RemoteProcess],
        ended: Callable[[RemoteCommand], None],
        *,
        asked: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._processes, self._clock = processes, clock or Clock()
        self._kill_at_s: float | None = None
        self._stopping = False
        self._asked = asked
        self.exit: CommandExit | None = None
        self._ended, self._left = ended, set(processes)
        for process in processes:
            shared_reactor().watch(process, partial(self._over, process), urgent=True)

    @property
    def pids(self) -> list[int]:
        """The process ids, each on its node."""
        return [process.pid for process in self._processes]

    def stop(self, grace_s: float) -> None:
        """Ask the command to end; it is killed when the grace period is over."""
        if not self._stopping:
            self._stopping, self._kill_at_s = True, self._clock.monotonic_s() + grace_s
            self._asked = self._asked or any(process.exit_code() is None for process in self._processes)
            for process in self._processes:
                process.signal(signal.SIGTERM)

    def tick(self) -> None:
        """Kill the command if its grace period is over; as often as that takes."""
        if self._kill_at_s is not None and self._clock.monotonic_s() > self._kill_at_s:
            self.kill()

    def kill(self) -> None:
        """End the command now."""
        self._kill_at_s = self._clock.monotonic_s() + SIGNAL_AGAIN_S
        for process in self._processes:
            process.signal(signal.SIGKILL)

    def _over(self, process: RemoteProcess) -> None:
        """One of its processes has ended; in the thread of the reactor."""
        shared_reactor().unwatch(process)
        code = process.exit_code() or 0
        if code != 0 and self.exit is None:
            self.exit = CommandExit(code, process.reason or how_it_ended(code), self._asked)
            self.kill()
        process.close()
        self._left.discard(process)
        if not self._left:
            self.exit = self.exit or CommandExit(0, "", self._asked)
            self._ended(self)


class RemoteCommands:
    """Commands whose processes are started by agents."""

    def __init__(self, agents: AgentPool, folder_of: Callable[[str], Path]) -> None:
        self._agents, self._folder_of = agents, folder_of
        self._exits: dict[str, CommandExit] = {}

    def start(self, job_id: str, launches: Sequence[Launch], ended: Callable[[Command], None]) -> RemoteCommand:
        """Start a job's command on each of its nodes."""
        processes = [self._agents.announce(launch) for launch in launches]
        write(str(self._written(job_id)), {"processes": [dict(process.identity) for process in processes]})
        for process in processes:
            self._keep_end(job_id, process)
            self._agents.begin(process)
        return RemoteCommand(processes, lambda command: self._over(job_id, command, ended))

    def adopt(self, job_id: str, ended: Callable[[Command], None], *, begin: bool, asked: bool) -> RemoteCommand | None:
        """Take over a command: what runs, what has ended and, to ``begin``, what was to be started and was not."""
        try:
            document = json.loads(self._written(job_id).read_text(encoding="utf-8"))
            identities = list(document["processes"])
            ends = document.get("ends", {})
            found = [self._agents.recover(identity, ends.get(identity["key"]), begin=begin) for identity in identities]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        processes = [process for process in found if process is not None]
        if len(processes) < len(found) or not processes:
            for process in processes:
                process.signal(signal.SIGKILL)
            return None
        for process in processes:
            self._keep_end(job_id, process)
        return RemoteCommand(processes, lambda command: self._over(job_id, command, ended), asked=asked)

    def slots_of(self, job_id: str) -> tuple[str, ...]:
        """Slots do not change their names: the service's log says which they are."""
        return ()

    def exit_of(self, job_id: str) -> CommandExit | None:
        """How a job's command ended, if it did."""
        return self._exits.get(job_id)

    def forget_exit(self, job_id: str) -> None:
        """A job's command is started again: how it ended before does not matter any more."""
        self._exits.pop(job_id, None)
        self._written(job_id).unlink(missing_ok=True)

    def keys(self, job_id: str) -> set[str]:
        """The keys of the processes that are written down for a job."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return {one["key"] for one in json.loads(self._written(job_id).read_text(encoding="utf-8"))["processes"]}
        return set()

    def _keep_end(self, job_id: str, process: RemoteProcess) -> None:
        path = self._written(job_id)

        def keep(code: int, reason: str) -> None:
            with contextlib.suppress(OSError, ValueError, KeyError):
                document = json.loads(path.read_text(encoding="utf-8"))
                ends = {**document.get("ends", {}), process.key: [code, reason]}
                write(str(path), {**document, "ends": ends})

        process.on_end = keep

    def _over(self, job_id: str, command: RemoteCommand, ended: Callable[[Command], None]) -> None:
        if command.exit is not None:
            self._exits[job_id] = command.exit
        ended(command)

    def _written(self, job_id: str) -> Path:
        return self._folder_of(job_id) / PROCESS
