"""Starting worker processes, and watching processes that may not be our own children.

Commands run without a shell, each in a session of its own, so that a worker and whatever it started can be ended
together. A process is watched through a file descriptor (pidfd) that becomes readable when it ends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from geminid.train.room import open_log

#: The most memory that a process may use, in bytes, where its environment says so.
MEMORY = "GEMINID_MEMORY_BYTES"

#: How a process is said to have ended that was ended because its slot was taken away; it is nobody's exit code.
SLOT_GONE = 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run: a command (never a shell line), its whole environment, its folder, and where its output goes.

    ``slot`` says where, to launchers that serve several machines; ``name`` whose process it is.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    slot: str = ""
    name: str = ""


class WorkerProcess(Protocol):
    """A process that is watched."""

    @property
    def pid(self) -> int:
        """Its id, which is also that of its session and process group."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What names it for good, as JSON: whoever comes after us finds it by that (``Launcher.adopt``)."""

    def begin(self) -> None:
        """Let it run: who it is has been written down. Where it can be held until then, it ends if nobody does."""

    def fileno(self) -> int:
        """Readable when the process has ended."""

    @property
    def reason(self) -> str:
        """Why it ended, or did not begin, if its launcher knows more than its exit code; otherwise nothing."""

    def exit_code(self) -> int | None:
        """The exit code once it has ended (negative: the signal that ended it); None while it runs."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and everything in its session's process group."""

    def close(self) -> None:
        """Give back what watching takes."""


class Launcher(Protocol):
    """Something that starts processes."""

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a process, which is then told to ``begin``."""

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a process that an earlier launcher started; None if it is gone."""

    def close(self) -> None:
        """No more will be started."""


class _Watched:
    """A process with a pidfd."""

    #: What is said of a process that nobody here may ask for its exit code.
    UNKNOWN_CODE = 255

    reason = ""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self.identity: Mapping[str, Any] = {"pid": pid, "started_at": started_at(pid)}

    def begin(self) -> None:
        """It runs already."""

    def fileno(self) -> int:
        return self._pidfd

    def ended(self) -> bool:
        """Whether the process has ended."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def exit_code(self) -> int | None:
        return self.UNKNOWN_CODE if self.ended() else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, and to itself in case it has none of its own yet."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                leads = os.getpgid(self.pid) == self.pid
            except ProcessLookupError:  # its parent has asked for its exit code: others of its group may still live
                leads = True
            if leads:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        os.close(self._pidfd)


class AdoptedProcess(_Watched):
    """A process that somebody else started; its exit code stays unknown."""


class ChildProcess(_Watched):
    """A process that we started."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        super().__init__(child.pid)
        self._child = child

    def exit_code(self) -> int | None:
        """The exit code, if it has ended."""
        return self._child.poll()


class PlainLauncher:
    """Starts every process afresh."""

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a process whose output is appended to its log."""
        with open(open_log(launch.log), "ab") as log:
            child = subprocess.Popen(
                list(launch.command),
                env=dict(launch.environment),
                cwd=launch.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return ChildProcess(child)
        except OSError:  # nobody could watch it: no descriptors are left
            child.kill()
            child.wait()
            raise

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a process of this machine."""
        return adopted(identity)

    def close(self) -> None:
        """Nothing to give back."""


class LimitedLauncher:
    """Starts processes that may use as much memory as their environment says (``MEMORY``): limited before they begin.

    One that cannot be held until then, since its launcher starts it afresh, is limited as soon as there is one.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.adopt, self.close = launcher.adopt, launcher.close

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a process and limit it; it may be limited to less already, which stays."""
        process = self._launcher.start(launch)
        try:
            if MEMORY in launch.environment:
                _, most = resource.prlimit(process.pid, resource.RLIMIT_DATA)
                wanted = int(launch.environment[MEMORY])
                limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, limit))
        except ProcessLookupError:
            pass  # it has ended already
        except BaseException:
            process.signal(signal.SIGKILL)
            process.close()
            raise
        return process


def adopted(identity: Mapping[str, Any]) -> AdoptedProcess | None:
    """The process of this machine that was given this identity, if it still runs."""
    if not still_runs(identity):
        return None
    try:
        return AdoptedProcess(identity["pid"])
    except ProcessLookupError:
        return None


def still_runs(identity: Mapping[str, Any]) -> bool:
    """Whether a process of this machine that was given this identity is still the one with its id."""
    return identity["started_at"] is not None and started_at(identity["pid"]) == identity["started_at"]


def started_at(pid: int) -> int | None:
    """When a process started, in ticks since boot: with its id, that names it for good. None if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code == SLOT_GONE:
        return "was ended because its slot was taken away"
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return "was killed (SIGKILL)" if name == "SIGKILL" else f"was ended by {name}"
    return f"ended with exit code {code}"
