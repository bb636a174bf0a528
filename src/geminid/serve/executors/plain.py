"""A plain command as a job: one process on all of its slots, which is told to end, and made to.

Its parent is a shim (``shim.py``) in a session of its own that writes down how the command ended: neither the end of
the service nor its coming back disturbs the command, and none is started twice. With it ends whatever it has started,
in sessions of their own as well (``torchrun`` has its workers in such): it is known by a mark in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from geminid.serve.executors.machine import SLOTS
from geminid.serve.executors.shim import EXIT, PROCESS, locked, write
from geminid.train.launcher import AdoptedProcess, Launch, PlainLauncher, WorkerProcess, how_it_ended, still_runs
from geminid.train.offspring import MARK, signal_marked

SHIM = Path(__file__).with_name("shim.py")


@dataclass(frozen=True, slots=True)
class PlainExit:
    """How a command ended; ``asked`` if it had been told to before it did."""

    code: int
    problem: str
    asked: bool = False

    def told(self) -> str:
        """In words."""
        return self.problem or how_it_ended(self.code)


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
        end_offspring(folder)  # of an earlier try
        start = secrets.token_hex(8)
        with locked(str(folder)):
            write(str(folder / PROCESS), {"start": start})
        _separate(folder / "logs" / "out.log")
        shim = (sys.executable, "-I", "-S", str(SHIM), str(folder), start, *command)
        marked = {**environment, MARK: str(folder.absolute())}
        process = PlainLauncher().start(Launch(shim, marked, where, folder / "logs" / "out.log"))
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
        """End the command now."""
        self._signal(signal.SIGKILL)

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
        end_offspring(self._folder)
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
                file.write(f"{'' if ended else chr(10)}==> started again at {at} <==\n".encode())


def exit_of(folder: Path) -> PlainExit | None:
    """How the command of a folder ended; None if nothing was written down."""
    try:
        document = json.loads((folder / EXIT).read_text(encoding="utf-8"))
        return PlainExit(int(document["code"]), str(document["problem"]), bool(document.get("asked", False)))
    except (OSError, ValueError, KeyError):
        return None


def forget_exit(folder: Path) -> None:
    """The command of a folder is run again: how it ended before counts no more."""
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
    return identity["pid"] if still_runs(identity) and not _is_dead(identity["pid"]) else None


def _is_dead(pid: int) -> bool:
    """Whether only the entry of a process is left, because nobody has asked for its exit code."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def slots_of(folder: Path) -> tuple[str, ...]:
    """The slots that the command of a folder was started for; none if it does not run, or cannot be asked."""
    pid = live_pid(folder)
    begins = f"{SLOTS}=".encode()
    with contextlib.suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        named = [one.removeprefix(begins).decode(errors="replace") for one in variables if one.startswith(begins)]
        return tuple(name for text in named[:1] for name in text.split(",") if name.isdigit())
    return ()


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
        if still_runs(entry) and not _is_dead(entry["pid"])
    }


def end_offspring(folder: Path) -> None:
    """End whatever the command of a folder has started and left behind, wherever it has gone."""
    signal_marked(signal.SIGKILL, str(folder.absolute()).__eq__)


def end_group(pid: int) -> None:
    """End a process and its session's process group at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
