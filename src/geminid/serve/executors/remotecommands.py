"""The plain commands of jobs on the nodes of a cluster, what of them runs where, and how they ended."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from geminid.process.launch import Launch
from geminid.process.shim import write
from geminid.serve.executors.plain import PlainExit
from geminid.serve.executors.remote import Nodes, RemoteProcess
from geminid.serve.executors.remotecommand import RemoteCommand

PLAIN = "plain.json"


class RemoteCommands:
    """Starts commands on several nodes each, and takes over those that an earlier service started.

    What is to run where is written down in the job's folder before any of it is started, and how it ended before its
    node forgets it: nothing is run twice, and no end is lost.
    """

    def __init__(self, nodes: Nodes, folder_of: Callable[[str], Path]) -> None:
        self._nodes, self._folder_of = nodes, folder_of
        self._exits: dict[str, PlainExit] = {}

    def start(self, job_id: str, launches: Sequence[Launch], ended: Callable[[RemoteCommand], None]) -> RemoteCommand:
        """Start a job's command on each of its nodes."""
        processes = [self._nodes.announce(launch) for launch in launches]
        write(str(self._written(job_id)), {"processes": [dict(process.identity) for process in processes]})
        for process in processes:
            self._keep_end(job_id, process)
            self._nodes.begin(process)
        return RemoteCommand(processes, lambda command: self._over(job_id, command, ended))

    def adopt(
        self, job_id: str, ended: Callable[[RemoteCommand], None], *, begin: bool, asked: bool
    ) -> RemoteCommand | None:
        """Take over a command: what runs, what has ended and, to ``begin``, what was to be started and has not been.

        ``asked`` if the service before this one has asked it to end.
        """
        try:
            document = json.loads(self._written(job_id).read_text(encoding="utf-8"))
            identities = list(document["processes"])
            ends = document.get("ends", {})
            found = [self._nodes.recover(identity, ends.get(identity["key"]), begin=begin) for identity in identities]
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

    def exit_of(self, job_id: str) -> PlainExit | None:
        """How a job's command ended, if it did."""
        return self._exits.get(job_id)

    def forget_exit(self, job_id: str) -> None:
        """How a job's command ended when it ran before counts no more."""
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

    def _over(self, job_id: str, command: RemoteCommand, ended: Callable[[RemoteCommand], None]) -> None:
        if command.exit is not None:
            self._exits[job_id] = command.exit
        ended(command)

    def _written(self, job_id: str) -> Path:
        return self._folder_of(job_id) / PLAIN
