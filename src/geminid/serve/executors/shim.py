"""Run a command and write down how it ended, even if nobody is there to hear it: the parent of every plain command.

Started as ``python -I shim.py FOLDER START COMMAND …`` in a session of its own, with standard library only. It outlives
the service, so that a service that comes back learns whether the command succeeded. Before it runs the command it
writes down which process it is, if the folder still waits for this very start: a service that came back meanwhile has
either heard of it or taken the start back, and no command runs twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

#: The most memory that the command may use, in bytes; there is no limit without. As launchers call it.
MEMORY = "GEMINID_MEMORY_BYTES"

#: What is in a command's folder: the start or the process, how it ended, and who may change the first.
PROCESS, EXIT, LOCK = "plain.json", "exit.json", "plain.lock"

#: Enough for how a command ended.
ROOM_BYTES = 4096


def main(folder: str, start: str, command: list[str]) -> int:
    """Run the command; signals that end a process group reach it by themselves, so this one only waits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory_bytes = os.environ.pop(MEMORY, None)
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    if not _claimed(folder, start) or asked:
        return 0
    _keep_room(os.path.join(folder, EXIT))
    try:
        child = subprocess.Popen(command, restore_signals=True)
    except OSError as problem:
        document = {"code": 127, "problem": f"could not be started: {command[0]}: {problem.strerror}", "asked": False}
        write(os.path.join(folder, EXIT), document)
        return 127
    while True:
        with contextlib.suppress(InterruptedError):
            code = child.wait()
            break
    ended = {"code": code, "problem": "", "asked": signal.SIGTERM in asked}
    while not _written(os.path.join(folder, EXIT), ended):
        time.sleep(1.0)
    if os.getpgrp() == os.getpid():  # whatever the command left behind ends here, and so does this process
        os.killpg(0, signal.SIGKILL)
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
            with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
                started_at = int(file.read().rsplit(")", 1)[1].split()[19])
            write(os.path.join(folder, PROCESS), {"pid": os.getpid(), "started_at": started_at})
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
