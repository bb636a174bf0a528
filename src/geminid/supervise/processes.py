"""The processes of one job's workers: starting, watching, signalling and forgetting them (I/O)."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from geminid.process.descendants import MARK, signal_marked
from geminid.process.disk_full import SHORTAGES
from geminid.process.launch import Launch, Launcher, how_it_ended, written_exit_code
from geminid.supervise import channel, inputs
from geminid.supervise.connections import ADOPTED, Link
from geminid.supervise.handover import Handover, end_of, exit_file_of, has_ended_well, mark
from geminid.supervise.inputs import Event
from geminid.supervise.setaside import CHECKPOINTS
from geminid.supervise.spec import WorkerSpec
from geminid.wire.reactor import Reactor


class WorkerProcesses:
    """The worker processes of one job. ``links`` has each of them, from its start until it is forgotten."""

    def __init__(self, spec: WorkerSpec, launcher: Launcher, reactor: Reactor) -> None:
        self.links: dict[str, Link] = {}
        self.folder = spec.folder.absolute()
        self._spec, self._launcher, self._reactor = spec, launcher, reactor
        self._checkpoints = spec.checkpoints or self.folder / CHECKPOINTS
        for folder in (self.folder, self._checkpoints, self.folder / "logs"):
            if isinstance(folder, Path):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def start(self, worker: str, slot: str, address: str, *, alone: bool) -> Event:
        """Start a worker's process, which waits for :meth:`run_script`; whether that worked.

        A process that is ``alone`` may never call ``geminid.init()``, and has all slots of its job.
        """
        spec, token = self._spec, secrets.token_hex(32)
        environment = {
            **spec.environment,
            **(spec.lone_environment() if alone else spec.slot_environment(slot)),
            channel.CONTROL: address,
            channel.TOKEN: token,
            MARK: mark(self.folder, worker, token),
            channel.WORKER: worker,
            channel.JOB: spec.name,
            channel.CHECKPOINTS: str(self._checkpoints),
            channel.SAVED: str(spec.saved_samples),
            channel.ENDED: str(end_of(self.folder, worker)),
            channel.OPTIONS: json.dumps(dict(spec.options)),
            **({channel.LONE: "1"} if alone else {}),
        }
        launch = Launch(
            command=spec.command,
            environment=environment,
            folder=spec.working_folder or self.folder,
            log=self.folder / "logs" / f"{worker}.log",
            slot=slot,
            name=f"{spec.name}/{worker}",
            exit_file=exit_file_of(self.folder, worker),
        )
        try:
            process = self._launcher.start(launch)
        except OSError as problem:
            reason = f"{spec.command[0]} could not be started: {problem.strerror or problem}"
            return inputs.StartFailed(worker, reason, problem.errno in SHORTAGES)
        self.links[worker] = Link(process, slot, token, self._reactor.now_s())
        return inputs.ProcessStarted(worker, slot, process.pid)

    def adopt(self, left: Handover) -> None:
        """Take over the processes of an earlier supervisor that still run."""
        for worker, entry in left.workers.items():
            process = self._launcher.adopt(entry)
            if process is not None:
                token = entry.get("token", left.token)  # earlier versions had one token for all
                self.links[worker] = Link(process, entry["slot"], token, self._reactor.now_s(), ADOPTED)

    def watch(self, worker: str, has_ended: Callable[[], None]) -> None:
        """Call this once, in the reactor's thread, when a worker's process has ended; from any thread."""
        process = self.links[worker].process

        def unwatch_and_call() -> None:
            self._reactor.unwatch(process)
            has_ended()

        self._reactor.watch(process, unwatch_and_call, urgent=True)

    def unwatch_all(self) -> None:
        """Stop watching all processes; in the reactor's thread."""
        for link in self.links.values():
            self._reactor.unwatch(link.process)

    def ending_of(self, worker: str) -> inputs.ProcessEnded | None:
        """How a worker's process has ended; None if it has not."""
        process = self.links[worker].process
        code = process.exit_code()
        if code is None:
            return None
        how = process.reason or how_it_ended(code)
        return inputs.ProcessEnded(worker, code, how, has_ended_well(self.folder, worker))

    def forget(self, worker: str) -> Link:
        """Stop watching a worker's process, and end everything that it has left behind; its link."""
        link = self.links.pop(worker)
        self._reactor.unwatch(link.process)
        link.process.signal(signal.SIGKILL)
        link.process.close()
        if written_exit_code(exit_file_of(self.folder, worker)) is None:  # its shim was killed, and has ended nothing
            signal_marked(signal.SIGKILL, mark(self.folder, worker, link.token).__eq__)
        return link
