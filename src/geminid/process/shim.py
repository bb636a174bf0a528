"""The parent of every process of a job: waits for it, ends everything that it has left behind, and records its exit.

Linux makes orphans children of the nearest ancestor that is a subreaper (``PR_SET_CHILD_SUBREAPER``). A shim is one, so
everything that a job starts stays below it, also in other sessions or forked twice: when the shim has ended, nothing of
the job is left. Where control groups (version 2) are writable, the job's process is also in one of its own.

A shim outlives the service, so that the next service learns how the job's process ended. It uses only the standard
library, and runs in one of three ways:

- ``python -I -S shim.py FOLDER START COMMAND …`` for a plain command, in a session that both share. Before it runs the
  command it records its own process id, if the folder still contains this start: a service that was restarted meanwhile
  either finds the process or has cancelled the start, so that no command runs twice.
- ``python -I -S shim.py --worker EXIT DESCRIPTOR COMMAND …`` for a worker, which has a session of its own. The worker's
  process id, or why there is none, is written to the descriptor, and its exit code to the file EXIT, if it is named.
- :func:`keep`, in a fork of the zygote (``zygote.py``), for a worker that was forked as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator

#: The variable that limits the memory of a process, in bytes.
MEMORY = "GEMINID_MEMORY_BYTES"

#: The file in a command's folder that has its requested start, or its process.
PROCESS = "plain.json"

#: The file in a command's folder that has its exit code.
EXIT = "exit.json"

#: The file in a command's folder that is locked while ``PROCESS`` is changed.
LOCK = "plain.lock"

#: Disk space that is reserved for the record of a command's exit, in bytes.
RESERVED_BYTES = 4096

#: Operation of prctl(2): set the signal that this process gets when its parent ends.
PR_SET_PDEATHSIG = 1

#: Operation of prctl(2): set the name of this process in lists of processes.
PR_SET_NAME = 15

#: Operation of prctl(2): make orphans among the descendants of this process its children.
PR_SET_CHILD_SUBREAPER = 36

#: The signal that makes a shim end everything below it.
END_ALL = signal.SIGUSR1

#: Before processes are killed they are stopped, in at most this many rounds: each finds what was forked meanwhile.
STOP_ROUNDS = 20

#: Time between two rounds, in seconds.
ROUND_S = 0.005

#: How the names of control groups begin; the shim's process id and start time follow.
GROUP_PREFIX = "geminid-"


# --- A plain command ---


def run_command(folder: str, start: str, command: list[str]) -> int:
    """Run a plain command, and wait for it. Signals to the process group reach the command without the shim's help."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory_bytes = os.environ.pop(MEMORY, None)
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: received.append(number))

    def end_all(number: int, _: object) -> None:
        received.append(number)
        signal_below(os.getpid(), signal.SIGKILL)

    signal.signal(END_ALL, end_all)
    if not _claimed(folder, start) or received:
        return 0
    _reserve_space(os.path.join(folder, EXIT))
    become_subreaper()
    group = make_group()
    if received:
        remove_group(group)
        return 0
    try:
        child = subprocess.Popen(command, restore_signals=True, preexec_fn=lambda: enter_group(group))
    except OSError as problem:
        remove_group(group)
        document = {"code": 127, "problem": f"could not be started: {command[0]}: {problem.strerror}", "asked": False}
        write(os.path.join(folder, EXIT), document)
        return 127
    for early in tuple(received):  # they may have arrived just before the command's process existed
        os.kill(child.pid, signal.SIGKILL if early == END_ALL else early)
    ended = {"code": wait_for(child.pid), "problem": "", "asked": signal.SIGTERM in received}
    end_descendants(group)
    while not _written(os.path.join(folder, EXIT), ended):
        time.sleep(1.0)
    return 0


def _claimed(folder: str, start: str) -> bool:
    """Record which process this is, unless the start was cancelled."""
    with locked(folder):
        try:
            with open(os.path.join(folder, PROCESS), encoding="utf-8") as file:
                wanted = bool(json.load(file).get("start") == start)
        except (OSError, ValueError):
            wanted = False
        if wanted:
            write(os.path.join(folder, PROCESS), {"pid": os.getpid(), "started_at": started_at(os.getpid())})
        return wanted


def _written(path: str, document: dict[str, object]) -> bool:
    """Write a document; False if the disk is full. Without the record, a command that has ended would run again."""
    try:
        write(path, document)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keep other processes from changing which process a folder's command has."""
    with open(os.path.join(folder, LOCK), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _reserve_space(path: str) -> None:
    """Reserve disk space for a short document: the disk may be full by the time it is written."""
    with contextlib.suppress(OSError), open(path + ".new", "wb") as file:
        file.write(b" " * RESERVED_BYTES)
        file.flush()
        os.fsync(file.fileno())


def write(path: str, document: dict[str, object]) -> None:
    """Write a document atomically and durably, into the space that was reserved for it, if any."""
    content = json.dumps(document).encode()
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


# --- A worker ---


def run_worker(exit_file: str, report: int, command: list[str]) -> int:
    """Run a worker's command in a session of its own; its exit code."""
    ignore_all_but_worker()
    group, own_pid = make_group(), os.getpid()

    def prepare() -> None:
        os.setsid()
        die_with_parent(own_pid)
        enter_group(group)

    try:
        child = subprocess.Popen(command, restore_signals=True, preexec_fn=prepare, pass_fds=())
    except OSError as problem:
        remove_group(group)
        os.write(report, json.dumps({"errno": problem.errno, "problem": problem.strerror}).encode())
        return 127
    os.write(report, json.dumps({"pid": child.pid}).encode())
    os.close(report)
    return keep(child.pid, exit_file, group)


def ignore_all_but_worker() -> None:
    """Become a subreaper that ignores requests to end: the supervisor asks the worker, and the shim ends after it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)  # and not SIG_IGN, which the worker would inherit
    signal.signal(END_ALL, lambda number, frame: signal_below(os.getpid(), signal.SIGKILL))


def _ignore(number: int, frame: object) -> None:
    """Do nothing."""


def keep(worker: int, exit_file: str, group: str | None, *, has_begun: Callable[[], bool] = lambda: True) -> int:
    """Wait for a worker, end everything that it has left behind, and record its exit code if it has begun."""
    code = wait_for(worker)
    end_descendants(group)
    if exit_file and has_begun():
        with contextlib.suppress(OSError):  # with a full disk, only the parent of this process learns the code
            new = f"{exit_file}.new"
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump({"code": code}, file)
            os.replace(new, exit_file)
    return code


def end_like(code: int) -> None:
    """End this process like another one: by a signal (if the code is negative) or with an exit code."""
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL cannot be set, and need not be
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if 0 <= code < 256 else 1)


# --- What is below a process ---


def become_subreaper() -> None:
    """Make orphans among the descendants of this process its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Let this process get a signal when its parent ends; at once, if it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def wait_for(child: int) -> int:
    """Wait until a child has ended, and reap orphans that end meanwhile; its exit code."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def end_descendants(group: str | None = None) -> None:
    """End everything below this process, and wait until it has ended."""
    end_group(group)
    with contextlib.suppress(ChildProcessError):  # there are none
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:  # some live
                signal_below(os.getpid(), signal.SIGKILL)
                os.waitpid(-1, 0)
    remove_group(group)


def signal_below(pid: int, number: signal.Signals) -> int:
    """Send a signal to everything below a process, but not to itself; the number of processes."""
    return signal_all(lambda: descendants(pid), number)


def signal_all(find: Callable[[], Iterable[int]], number: signal.Signals) -> int:
    """Send a signal to all processes that a function finds; their number.

    Before they are killed they are stopped, so that none is missed because it was started meanwhile.
    """
    if number is not signal.SIGKILL:
        return sum(_send(one, number) for one in find())
    known: set[int] = set()
    for _ in range(STOP_ROUNDS):
        new = {one for one in find() if one not in known and _send(one, signal.SIGSTOP)}
        if not new:
            break
        known |= new
        time.sleep(ROUND_S)
    return sum(_send(one, signal.SIGKILL) for one in known)


def descendants(pid: int) -> list[int]:
    """The processes below a process that have not ended, the nearest first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = stat_of(int(entry))[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    front = [pid]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        found += front
    return found


def started_at(pid: int) -> int | None:
    """When a process started, in ticks since boot: with its id, that identifies it. None if there is no such one."""
    try:
        return int(stat_of(pid)[19])
    except (OSError, IndexError, ValueError):
        return None


def stat_of(pid: int) -> list[str]:
    """The kernel's record of a process (``proc_pid_stat(5)``) from its state on; the name before that may have spaces.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rsplit(")", 1)[1].split()


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


# --- Control groups ---


def own_group(proc: str = "/proc") -> str | None:
    """The folder of this process's control group (version 2), if this process may make others in it."""
    try:
        with open(f"{proc}/self/mounts", encoding="utf-8") as file:
            root = next(fields[1] for fields in map(str.split, file) if fields[2] == "cgroup2")
        with open(f"{proc}/self/cgroup", encoding="utf-8") as file:
            path = next(line.strip().split(":", 2)[2] for line in file if line.startswith("0::"))
    except (OSError, StopIteration, IndexError):
        return None
    folder = os.path.join(root, path.lstrip("/")).rstrip("/")
    writable = os.access(folder, os.W_OK | os.X_OK) and os.access(os.path.join(folder, "cgroup.procs"), os.W_OK)
    return folder if writable else None


def make_group(proc: str = "/proc") -> str | None:
    """Make a control group for what this process starts; None if that is impossible."""
    parent = own_group(proc)
    if parent is None:
        return None
    made = os.path.join(parent, f"{GROUP_PREFIX}{os.getpid()}-{started_at(os.getpid())}")
    try:
        os.mkdir(made, 0o755)
    except OSError:
        return None
    return made


def enter_group(group: str | None) -> None:
    """Put this process, and what it starts from now on, into a control group, if that is possible."""
    if group is not None:
        with contextlib.suppress(OSError), open(os.path.join(group, "cgroup.procs"), "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))


def end_group(group: str | None) -> None:
    """End everything in a control group at once."""
    if group is not None:
        with contextlib.suppress(OSError), open(os.path.join(group, "cgroup.kill"), "w", encoding="utf-8") as file:
            file.write("1")


def remove_group(group: str | None) -> None:
    """Remove a control group that is empty."""
    if group is not None:
        with contextlib.suppress(OSError):
            os.rmdir(group)


def end_left_groups(proc: str = "/proc") -> None:
    """End what is in control groups whose shim was killed, and remove them."""
    parent = own_group(proc)
    for name in [] if parent is None else os.listdir(parent):
        if not name.startswith(GROUP_PREFIX):
            continue
        pid, _, began = name.removeprefix(GROUP_PREFIX).partition("-")
        if pid.isdigit() and str(started_at(int(pid))) != began:
            group = os.path.join(parent or "", name)
            end_group(group)
            remove_group(group)


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        end_like(run_worker(sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
    sys.exit(run_command(sys.argv[1], sys.argv[2], sys.argv[3:]))
