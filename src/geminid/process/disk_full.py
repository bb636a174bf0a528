"""Training while the disk is full: everything that a job writes, except its checkpoints, can wait or is dropped.

The folder where members of a job on one machine meet is in memory (:func:`meeting_folder`), a log that cannot be made
is replaced by the null device (:func:`open_log`), and output that does not fit is dropped (:func:`keep_printing`).
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sys
from pathlib import Path
from typing import Any

#: Errors of a disk, or of a user's share of it, that is full.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Errors that keep a process from starting because the machine, not the job, lacks something.
SHORTAGES = FULL | {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}

#: A file system in memory, where there is one.
MEMORY = Path("/dev/shm")

#: A disk with less free space than this, in bytes, counts as full.
MIN_FREE_BYTES = 1 << 16


def no_room(problem: BaseException) -> bool:
    """Whether something failed because a disk is full."""
    return isinstance(problem, OSError) and problem.errno in FULL


def is_full(folder: Path) -> bool:
    """Whether the disk that a folder is on is full."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return False
    return system.f_bavail * system.f_frsize < MIN_FREE_BYTES


def mentions_full_disk(text: str) -> bool:
    """Whether an error message is that of a full disk."""
    return any(os.strerror(code) in text for code in FULL)


def meeting_folder(job: Path, token: str) -> Path:
    """The folder where the workers of a job on this machine meet: in memory, so that they can while the disk is full.

    On a machine without such a file system it is in the job's own folder. The token determines its name.
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
    """A descriptor that appends to a log, or to the null device if the disk has no space for a new file."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as problem:
        if not no_room(problem):
            raise
        return os.open(os.devnull, os.O_WRONLY)


class _LossyFile(io.FileIO):
    """A log that drops what does not fit on the disk, without an error."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as problem:
            if not no_room(problem):
                raise
            return memoryview(data).nbytes


def keep_printing() -> None:
    """From now on, output of this process goes to its log line by line, and a full disk does not end the process."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        try:
            raw = getattr(stream.buffer, "raw", stream.buffer)  # unbuffered output has no raw stream
            if stream.fileno() != descriptor or isinstance(raw, _LossyFile):
                continue
            stream.flush()
        except (AttributeError, OSError, ValueError):  # a test or a script has replaced it by something else
            continue
        lossy = io.BufferedWriter(_LossyFile(descriptor, "w", closefd=False))
        text = io.TextIOWrapper(lossy, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        setattr(sys, name, text)
