"""Training on while the disk is full: what a job writes besides its checkpoints can wait, or is done without.

Where members of a job on one machine meet is kept in memory (:func:`meeting_folder`), a log that cannot be made is done
without (:func:`open_log`), and what a script prints is dropped while there is no room for it (:func:`keep_printing`).
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sys
from pathlib import Path
from typing import Any

#: What the system says when a disk, or somebody's share of it, is full.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

#: What keeps a process from being started that is the machine's doing, and not the job's.
SHORTAGES = FULL | {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}

#: A file system in memory, where there is one.
MEMORY = Path("/dev/shm")

#: With less than this left, a disk is full for all that jobs may want.
LEAST_ROOM_BYTES = 1 << 16


def no_room(problem: BaseException) -> bool:
    """Whether something failed because a disk is full."""
    return isinstance(problem, OSError) and problem.errno in FULL


def is_full(folder: Path) -> bool:
    """Whether the disk that a folder is on is full."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return False
    return system.f_bavail * system.f_frsize < LEAST_ROOM_BYTES


def tells_of_full_disk(words: str) -> bool:
    """Whether an error message is that of a full disk."""
    return any(os.strerror(code) in words for code in FULL)


def meeting_folder(job: Path, token: str) -> Path:
    """Where the workers of a job on this machine meet: in memory, so that a full disk keeps nobody from coming.

    Where there is no such file system, in the job's own folder. It is the same for whoever knows the token.
    """
    name = hashlib.sha256(f"meeting {token}".encode()).hexdigest()[:24]
    for folder in (MEMORY / f"geminid-{name}", job / "rendezvous"):
        try:
            folder.mkdir(parents=folder.parent != MEMORY, mode=0o700)
            return folder
        except FileExistsError:
            return folder
        except OSError:
            continue
    return job / "rendezvous"


def open_log(path: Path) -> int:
    """A descriptor to append to a log with; to nowhere, if there is no room even to make it."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as problem:
        if not no_room(problem):
            raise
        return os.open(os.devnull, os.O_WRONLY)


class _Spared(io.FileIO):
    """A log that takes what it has room for: the rest is lost, and whoever printed it goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as problem:
            if not no_room(problem):
                raise
            return memoryview(data).nbytes


def keep_printing() -> None:
    """From here on what this process prints goes to its log line by line, and a full disk does not end the process."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        try:
            raw = getattr(stream.buffer, "raw", stream.buffer)  # there is one only where output is buffered
            if stream.fileno() != descriptor or isinstance(raw, _Spared):
                continue
            stream.flush()
        except (AttributeError, OSError, ValueError):  # it is no file, but what a test or a script has made of it
            continue
        spared = io.BufferedWriter(_Spared(descriptor, "w", closefd=False))
        kept = io.TextIOWrapper(spared, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        setattr(sys, name, kept)
