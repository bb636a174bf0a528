"""The parent of every process of a job: waits for it, ends all that it has left behind, and writes down how it ended.

Linux gives orphans to the nearest ancestor that asked for them (``PR_SET_CHILD_SUBREAPER``). This process asks, so that
whatever a job starts stays below it, in sessions of its own or forked twice: when this process has ended, nothing of
the job is left. Where control groups (version 2) can be written to, the job's process is in one of its own, too.

It outlives the service, so that a service that comes back learns how the job's process ended. There are three ways to
become one, all with the standard library only:

- ``python -I -S shim.py FOLDER START COMMAND …`` for a plain command, in a session that both share. Before it runs the
  command it writes down which process it is, if the folder still waits for this very start: a service that came back
  meanwhile has either heard of it or taken the start back, and no command runs twice.
- ``python -I -S shim.py --worker EXIT DESCRIPTOR COMMAND …`` for a worker, which has a session of its own. The worker's
  process id, or why there is none, goes to the descriptor; how it ended goes to the file EXIT, if one is named.
- :func:`keep`, in a fork of the warm process (``zygote.py``), for a worker that was forked as well.
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

#: The most memory that the command may use, in bytes; there is no limit without. As launchers call it.
MEMORY = "GEMINID_MEMORY_BYTES"

#: What is in a command's folder: the start or the process, how it ended, and who may change the first.
PROCESS, EXIT, LOCK = "plain.json", "exit.json", "plain.lock"

#: Enough for how a command ended.
ROOM_BYTES = 4096

#: Of prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

#: Of prctl(2): what a process is called in lists of processes.
PR_SET_NAME = 15

#: Of prctl(2): orphans among the descendants of a process become its children.
PR_SET_CHILD_SUBREAPER = 36

#: To a shim: end everything below it now.
END_ALL = signal.SIGUSR1

#: Before processes are ended they are stopped, in at most so many rounds: each finds what was forked meanwhile.
STOP_ROUNDS = 20

#: How long to wait between two rounds.
ROUND_S = 0.005

#: The begin of the names of control groups, before the shim's process id and when that was started.
GROUP_PREFIX = "geminid-"


# --- A plain command ---


def run_command(folder: str, start: str, command: list[str]) -> int:
    """Run a plain command; signals that end a process group reach it by themselves, so this one only waits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory_bytes = os.environ.pop(MEMORY, None)
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))

    def end_all(number: int, _: object) -> None:
        asked.append(number)
        signal_below(os.getpid(), signal.SIGKILL)

    signal.signal(END_ALL, end_all)
    if not _claimed(folder, start) or asked:
        return 0
    _keep_room(os.path.join(folder, EXIT))
    become_subreaper()
    group = make_group()
    if asked:
        remove_group(group)
        return 0
    try:
        child = subprocess.Popen(command, restore_signals=True, preexec_fn=lambda: enter_group(group))
    except OSError as problem:
        remove_group(group)
        document = {"code": 127, "problem": f"could not be started: {command[0]}: {problem.strerror}", "asked": False}
        write(os.path.join(folder, EXIT), document)
        return 127
    for signalled in tuple(asked):  # just when it was started, when it may not have heard of it
        os.kill(child.pid, signal.SIGKILL if signalled == END_ALL else signalled)
    ended = {"code": wait_for(child.pid), "problem": "", "asked": signal.SIGTERM in asked}
    end_descendants(group)
    while not _written(os.path.join(folder, EXIT), ended):
        time.sleep(1.0)
    return 0


def _claimed(folder: str, start: str) -> bool:
    """Write down which process this is, unless the start was taken back."""
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
    """Write a document, if the disk is not full: a command that has ended is not to be run again for that."""
    try:
        write(path, document)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Nobody else changes meanwhile which process a folder's command has."""
    with open(os.path.join(folder, LOCK), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _keep_room(path: str) -> None:
    """Have room on the disk for a short document, which may be full by the time it is written."""
    with contextlib.suppress(OSError), open(path + ".new", "wb") as file:
        file.write(b" " * ROOM_BYTES)
        file.flush()
        os.fsync(file.fileno())


def write(path: str, document: dict[str, object]) -> None:
    """Write a document, whole or not at all, to stay; into the room that was kept for it, if some was."""
    content = json.dumps(document).encode()
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


# --- A worker ---


def run_worker(exit_file: str, report: int, command: list[str]) -> int:
    """Run a worker's command in a session of its own, and end as it did."""
    ignore_all_but_worker()
    group, ours = make_group(), os.getpid()

    def prepare() -> None:
        os.setsid()
        die_with_parent(ours)
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
    """Have orphans below this process become its children; signals that end others do not end it.

    Its worker is told to stop by whoever supervises the job, and this process ends after it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)  # and not SIG_IGN, which the worker would inherit
    signal.signal(END_ALL, lambda number, frame: signal_below(os.getpid(), signal.SIGKILL))


def _ignore(number: int, frame: object) -> None:
    """A signal that does nothing."""


def keep(worker: int, exit_file: str, group: str | None, *, has_begun: Callable[[], bool] = lambda: True) -> int:
    """Wait for a worker, end all that it has left behind, and write down how it ended: its exit code.

    Of one that has not begun there is nothing to write down.
    """
    code = wait_for(worker)
    end_descendants(group)
    if exit_file and has_begun():
        with contextlib.suppress(OSError):  # with a full disk, only whoever waits for this process learns of it
            made = f"{exit_file}.new"
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump({"code": code}, file)
            os.replace(made, exit_file)
    return code


def end_like(code: int) -> None:
    """End this process as another has ended, by a signal (if the code is negative) or with an exit code."""
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL cannot be set, and need not be
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if 0 <= code < 256 else 1)


# --- What is below a process ---


def become_subreaper() -> None:
    """Have orphans among the descendants of this process become its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process get a signal when its parent ends; at once, if it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def wait_for(child: int) -> int:
    """Wait until a child has ended, and take the orphans that end meanwhile off the system's list; its exit code."""
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
    """Send a signal to everything below a process, but not to itself; to how many."""
    return signal_all(lambda: descendants(pid), number)


def signal_all(find: Callable[[], Iterable[int]], number: signal.Signals) -> int:
    """Send a signal to all processes that a function finds; to how many.

    Before they are ended they are stopped, so that none is missed because it was started meanwhile.
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
    """When a process started, in ticks since boot: with its id, that names it for good. None if there is none."""
    try:
        return int(stat_of(pid)[19])
    except (OSError, IndexError, ValueError):
        return None


def stat_of(pid: int) -> list[str]:
    """The kernel's record of a process (``proc_pid_stat(5)``), from its state on: the name before it may have spaces.

    Read by hand, because this file runs without any package.

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
    """The folder of this process's control group (version 2), if there is one that it may have others in."""
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
    """A control group for what is started by this process; None where there are none."""
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
    """Have this process be in a control group, with all that it starts from now on; it does without if it cannot."""
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
