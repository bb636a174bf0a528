"""A plain command as a job: one process on all of its slots, which is asked to end, and killed if it does not.

Its parent is a shim (``process/shim.py``) in a session of its own that writes down how the command ended: the service
may end and come back without disturbing the command or starting it twice. When the command ends, so does everything
that it has started, in other sessions too (``torchrun`` makes such): all of it is below the shim. If the shim itself is
killed, a mark in the environment identifies its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

import psutil

from geminid.node.machine import SLOTS
from geminid.process import shim
from geminid.process.descendants import MARK, signal_marked
from geminid.process.identity import is_running, still_runs
from geminid.process.launch import (
    SHIM,
    AdoptedProcess,
    Launch,
    WorkerProcess,
    end_left,
    spawn,
    watched,
)
from geminid.process.logfiles import RESTARTED
from geminid.process.shim import EXIT, PROCESS, locked, write
from geminid.serve.executors.commands import CommandExit
from geminid.supervise.handover import Handover


class PlainCommand:
    """The process of one command, started or taken over."""

    def __init__(self, folder: Path, process: WorkerProcess, ended: Callable[[PlainCommand], None]) -> None:
        self._folder, self._process = folder, process
        self._kill_at_s: float | None = None
        self.stopping = False
        self._gone, self._lock = False, threading.Lock()
        self._watcher = threading.Thread(target=self._watch, args=(ended,), name="watch a command", daemon=True)
        self._watcher.start()

    @classmethod
    def start(
        cls,
        folder: Path,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        where: Path,
        ended: Callable[[PlainCommand], None],
    ) -> PlainCommand:
        """Start a command in a folder of its own."""
        (folder / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)
        forget_exit(folder)
        end_descendants(folder)  # of an earlier try
        start = secrets.token_hex(8)
        with locked(str(folder)):
            write(str(folder / PROCESS), {"start": start})
        _separate(folder / "logs" / "out.log")
        marked = {**environment, MARK: str(folder.absolute())}
        launch = Launch(command, marked, where, folder / "logs" / "out.log")
        process = watched(spawn([*SHIM, str(folder), start, *command], launch))
        return cls(folder, process, ended)

    @classmethod
    def adopt(cls, folder: Path, ended: Callable[[PlainCommand], None]) -> PlainCommand | None:
        """Take over the command that an earlier service started there, if it still runs."""
        pid = live_pid(folder)
        if pid is None:
            return None
        try:
            return cls(folder, AdoptedProcess(pid), ended)
        except ProcessLookupError:
            return None

    @property
    def pids(self) -> list[int]:
        """The process id of the shim, which is that of the session."""
        return [self._process.pid]

    def stop(self, grace_s: float) -> None:
        """Ask the command to end; after the grace period it is made to."""
        if not self.stopping:
            self.stopping, self._kill_at_s = True, monotonic() + grace_s
            self._signal(signal.SIGTERM)

    def tick(self) -> None:
        """End the command if its grace period is over."""
        if self._kill_at_s is not None and monotonic() > self._kill_at_s:
            self._kill_at_s = None
            self.kill()

    def kill(self) -> None:
        """End the command now, and all that it started; its shim ends after it."""
        with self._lock:
            if not self._gone:
                for number in (signal.SIGCONT, shim.END_ALL):
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(self._process.fileno(), number)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._gone:  # its process id may be another's by now
                self._process.signal(number)

    def _watch(self, ended: Callable[[PlainCommand], None]) -> None:
        poll = select.poll()
        poll.register(self._process.fileno(), select.POLLIN)
        poll.poll()
        with self._lock:
            self._process.signal(signal.SIGKILL)  # whatever is left of its group, while the group's id is still its own
            self._process.exit_code()  # takes the process off the system's list, where it is our child
            self._process.close()
            self._gone = True
        end_descendants(self._folder)
        ended(self)


def _separate(log: Path) -> None:
    """Put a line between what a command printed before and what it prints when it is started again."""
    with contextlib.suppress(OSError):  # a full disk is no reason not to run
        if log.exists() and log.stat().st_size:
            with log.open("rb+") as file:
                file.seek(-1, os.SEEK_END)
                ended = file.read() == b"\n"
            at = time.strftime("%Y-%m-%d %H:%M:%S")
            with log.open("ab") as file:
                file.write(f"{'' if ended else chr(10)}{RESTARTED}{at} <==\n".encode())


def exit_of(folder: Path) -> CommandExit | None:
    """How the command of a folder ended; None if nothing was written down."""
    try:
        document = json.loads((folder / EXIT).read_text(encoding="utf-8"))
        return CommandExit(int(document["code"]), str(document["problem"]), bool(document.get("asked", False)))
    except (OSError, ValueError, KeyError):
        return None


def forget_exit(folder: Path) -> None:
    """The command of a folder is run again: how it ended before does not matter any more."""
    (folder / EXIT).unlink(missing_ok=True)


def live_pid(folder: Path) -> int | None:
    """The process of a folder's command, if it still runs and is the same; if it is yet to start, it will not."""
    if not (folder / PROCESS).exists():
        return None
    try:
        with locked(str(folder)):
            document = json.loads((folder / PROCESS).read_text(encoding="utf-8"))
            if "start" in document:
                (folder / PROCESS).unlink()
        identity = {"pid": int(document["pid"]), "started_at": document["started_at"]}
    except (OSError, ValueError, KeyError):
        return None
    return identity["pid"] if still_runs(identity) and is_running(identity["pid"]) else None


def has_processes(folder: Path) -> bool:
    """Whether the command or the workers of a folder still run, as far as its files show; nothing is changed."""
    try:
        document = json.loads((folder / PROCESS).read_text(encoding="utf-8"))
        identity = {"pid": int(document["pid"]), "started_at": document["started_at"]}
        if still_runs(identity) and is_running(identity["pid"]):
            return True
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return bool(live_workers(folder))


def slots_of(folder: Path) -> tuple[str, ...]:
    """The slots that the command of a folder was started for; none if it does not run, or cannot be asked."""
    pid = live_pid(folder)
    if pid is None:
        return ()
    try:
        named = psutil.Process(pid).environ().get(SLOTS, "")
    except psutil.Error:
        return ()
    return tuple(name for name in named.split(",") if name.isdigit())


def live_workers(folder: Path) -> dict[str, tuple[int, str]]:
    """Process and slot of each worker that an earlier supervisor of a folder left, if it still runs."""
    try:
        document = json.loads((folder / "supervisor.json").read_text(encoding="utf-8"))
        workers = document["workers"].items()
    except (OSError, ValueError, KeyError):
        return {}
    return {
        worker: (entry["pid"], entry["slot"])
        for worker, entry in workers
        if still_runs(entry) and is_running(entry.get("shim", entry)["pid"])
    }


def end_descendants(folder: Path) -> None:
    """End whatever the command of a folder has started and left behind, wherever it has gone."""
    signal_marked(signal.SIGKILL, str(folder.absolute()).__eq__)


def end_command(folder: Path) -> None:
    """End the command of a folder, if it still runs, and all that it has started."""
    pid = live_pid(folder)
    if pid is not None:
        shim.signal_below(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    end_descendants(folder)


def end_workers(folder: Path) -> None:
    """End the workers that an earlier supervisor of a folder left, if they still run, and what they have started."""
    left = Handover.read(folder)
    for entry in [] if left is None else left.workers.values():
        if "pid" in entry:
            end_left(entry)
