"""Starting worker processes, and watching processes that may not be children of this one.

Commands run without a shell, each in a session of its own, below a shim (``shim.py``) that ends after the process and
everything that it started. The shim is watched through a file descriptor (pidfd) that becomes readable when it ends: by
then nothing of the process is left. Signals go to the process itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from geminid.process import shim
from geminid.process.disk_full import open_log
from geminid.process.identity import identity_of, still_runs

#: The variable that limits the memory of a process, in bytes.
MEMORY = shim.MEMORY

#: The command of a shim; it runs without the packages that are installed for the interpreter.
SHIM = (sys.executable, "-I", "-S", shim.__file__)

#: The code of a process that was ended because its slot was taken away; no process has it as its exit code.
SLOT_GONE = 1024

#: The code of a process whose exit code cannot be found out: another process started it, and nothing was recorded.
UNKNOWN_CODE = 255


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run: a command (never a shell line), its whole environment, its folder, and where its output goes.

    ``slot`` is where it runs, for launchers that serve several machines; ``name`` is shown in lists of processes. Its
    exit code is written to ``exit_file``, if there is one, for the next supervisor.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    slot: str = ""
    name: str = ""
    exit_file: Path | None = None


class WorkerProcess(Protocol):
    """A process that is watched."""

    @property
    def pid(self) -> int:
        """Its id, which is also that of its session and process group."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What identifies it uniquely, as JSON: the next supervisor finds it by that (``Launcher.adopt``)."""

    def begin(self) -> None:
        """Let it run its command, now that it is recorded. A process that waits for this ends if its launcher dies."""

    def fileno(self) -> int:
        """Readable when the process has ended."""

    @property
    def reason(self) -> str:
        """Why it ended, or did not begin, if its launcher knows more than the exit code; otherwise empty."""

    def exit_code(self) -> int | None:
        """The exit code once it has ended (negative: the signal that ended it); None while it runs."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and everything in its session's process group."""

    def close(self) -> None:
        """Close the descriptor; the process stays as it is."""


class Launcher(Protocol):
    """Something that starts processes."""

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a process, which runs its command after :meth:`WorkerProcess.begin`."""

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a process that an earlier launcher started; None if it is gone."""

    def close(self) -> None:
        """Release what starting processes needs; no more will be started."""


class _Watched:
    """A process that is watched through the pidfd of its shim, or through its own if it has no shim."""

    reason = ""

    def __init__(self, pid: int, shim_pid: int | None = None, exit_file: Path | None = None) -> None:
        self.pid, self._shim_pid, self._exit_file = pid, shim_pid, exit_file
        self._closed = False
        self._pidfd = os.pidfd_open(pid if shim_pid is None else shim_pid)
        self.identity: Mapping[str, Any] = identity_of(pid)
        if shim_pid is not None:
            self.identity = {**self.identity, "shim": identity_of(shim_pid), "exit_file": str(exit_file or "")}

    def begin(self) -> None:
        """It runs already."""

    def fileno(self) -> int:
        return self._pidfd

    def ended(self) -> bool:
        """Whether the process has ended, with all that it started."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def exit_code(self) -> int | None:
        if not self.ended():
            return None
        code = None if self._exit_file is None else written_exit_code(self._exit_file)
        return UNKNOWN_CODE if code is None else code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, or to itself if it has none of its own yet.

        SIGKILL, SIGSTOP and SIGCONT also reach everything that it started in other process groups.
        """
        if self._closed:  # its process id may belong to another process by now
            return
        if self._shim_pid is not None and not self.ended():
            if number is signal.SIGKILL:  # its shim kills everything that it started
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    for to_shim in (signal.SIGCONT, shim.END_ALL):
                        signal.pidfd_send_signal(self._pidfd, to_shim)
            elif number in (signal.SIGSTOP, signal.SIGCONT):
                shim.signal_below(self._shim_pid, number)
                return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                leads = os.getpgid(self.pid) == self.pid
            except ProcessLookupError:  # its parent has read its exit code: others of its group may still live
                leads = True
            if leads:
                os.killpg(self.pid, number)
            elif self._shim_pid is not None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        self._closed = True
        os.close(self._pidfd)


class AdoptedProcess(_Watched):
    """A process that another process started; its exit code is what its shim has recorded."""


class ChildProcess(_Watched):
    """A process that this one started."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        pid: int | None = None,
        exit_file: Path | None = None,
    ) -> None:
        super().__init__(child.pid if pid is None else pid, None if pid is None else child.pid, exit_file)
        self._child = child

    def exit_code(self) -> int | None:
        """The exit code, if it has ended."""
        return self._child.poll()


def spawn(command: Sequence[str], launch: Launch, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a command in the folder of a launch, with its output appended to the log."""
    with open(open_log(launch.log), "ab") as log:
        return subprocess.Popen(
            list(command),
            env=dict(launch.environment),
            cwd=launch.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )


def watched(child: subprocess.Popen[bytes], pid: int | None = None, exit_file: Path | None = None) -> ChildProcess:
    """Watch a process that was just started; if that is impossible, it is ended."""
    try:
        return ChildProcess(child, pid, exit_file)
    except OSError:  # no descriptors are left
        shim.signal_below(child.pid, signal.SIGKILL)
        child.kill()
        child.wait()
        raise


class PlainLauncher:
    """Starts every command as a new process."""

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a process whose output is appended to its log."""
        read_end, write_end = os.pipe()
        try:
            command = [*SHIM, "--worker", str(launch.exit_file or ""), str(write_end), *launch.command]
            child = spawn(command, launch, [write_end])
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        with open(read_end, "rb") as file:
            text = file.read()
        try:
            report: dict[str, Any] = json.loads(text)
            pid = report.get("pid")
            problem = OSError(report.get("errno") or 0, str(report.get("problem")), launch.command[0])
        except ValueError:
            pid, problem = None, OSError(f"the shim of the process ended before it began; see {launch.log}")
        if pid is None:
            child.wait()
            raise problem
        return watched(child, pid, launch.exit_file)

    def adopt(self, identity: Mapping[str, Any]) -> WorkerProcess | None:
        """Watch a process of this machine."""
        return adopted(identity)

    def close(self) -> None:
        """Nothing to release."""


class LimitedLauncher:
    """Limits the memory of processes that another launcher starts, as their environment says (``MEMORY``).

    A forked process is limited before it begins, a new one as soon as it exists.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.adopt, self.close = launcher.adopt, launcher.close

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a process and limit its memory; a lower limit that it already has stays."""
        process = self._launcher.start(launch)
        try:
            if MEMORY in launch.environment:
                _, hard_limit = resource.prlimit(process.pid, resource.RLIMIT_DATA)
                limit = int(launch.environment[MEMORY])
                limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, limit))
        except ProcessLookupError:
            pass  # it has ended already
        except BaseException:
            process.signal(signal.SIGKILL)
            process.close()
            raise
        return process


def adopted(identity: Mapping[str, Any]) -> AdoptedProcess | None:
    """The process of this machine with this identity, if it still runs."""
    if not still_runs(identity):
        return None
    above, exit_file = identity.get("shim"), identity.get("exit_file")
    try:
        return AdoptedProcess(
            identity["pid"],
            None if above is None else above["pid"],
            Path(exit_file) if exit_file else None,
        )
    except ProcessLookupError:
        return None


def end_left(identity: Mapping[str, Any]) -> None:
    """End a process that is not watched any more, if it still runs, and everything that it started."""
    process = adopted(identity)
    if process is not None:
        process.signal(signal.SIGKILL)
        process.close()


def written_exit_code(exit_file: Path) -> int | None:
    """The exit code that a shim has recorded; None if it has not."""
    try:
        return int(json.loads(exit_file.read_text(encoding="utf-8"))["code"])
    except (OSError, ValueError, KeyError, TypeError):
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
