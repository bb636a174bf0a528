"""The sequence file: how far the log has come, written beside the database and synced by itself.

A database that has lost its newest records (a damaged or missing write-ahead log, an older file put back) looks whole;
only another file shows it. This one has two slots which are written in turn, so that one of them is intact
whenever the machine stops. It is written after every commit and synced while the next batch is on its way: when the
machine stops, the log may be one batch ahead of the file on disk, and never behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geminid.serve.chain import BEGINNING, Link

SEQUENCE = "geminid.seq"

#: Each slot lies in a disk block of its own.
SLOT_BYTES = 4096


class DamagedSequence(Exception):
    """The sequence file is there, and none of its slots can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a log has come: its last record, when that was, and the highest number that a job was given."""

    link: Link = BEGINNING
    at_s: float = 0.0
    submitted: int = 0

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "seq": self.link.seq,
            "chain": self.link.chain.hex(),
            "at_s": self.at_s,
            "submitted": self.submitted,
        }


class SequenceFile:
    """The sequence file of a home, open for writing."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        """Go on with the file, or make one: from now on it says this."""
        self._path = folder / SEQUENCE
        found = _slots(self._path) if self._path.exists() else []
        self._turn = max((turn for turn, _ in found), default=0)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_size < 2 * SLOT_BYTES:
            os.pwrite(self._file, b" " * 2 * SLOT_BYTES, 0)  # later writes change no size
        self.mark = mark
        self._syncs = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sync the sequence file")
        self._syncing: Future[None] | None = None
        self.write(mark)
        self.settle()
        sync_folder(folder)

    def write(self, mark: Mark) -> None:
        """Say how far the log has come: at once for every reader, and on disk soon after (see :meth:`settle`).

        Raises:
            OSError: it cannot be written; the slot that was written before is still there.
        """
        self.settle()
        turn = self._turn + 1
        os.pwrite(self._file, _encoded(turn, mark).ljust(SLOT_BYTES), (turn % 2) * SLOT_BYTES)
        self._turn, self.mark = turn, mark
        self._syncing = self._syncs.submit(os.fdatasync, self._file)

    def settle(self) -> None:
        """Wait until what was written is safely on disk.

        Raises:
            OSError: it could not be synced.
        """
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()

    def close(self) -> None:
        """Close the file, once it is safely on disk."""
        with contextlib.suppress(OSError):
            self.settle()
        self._syncs.shutdown()
        os.close(self._file)


def read_sequence(folder: Path) -> Mark | None:
    """What the sequence file of a home says; None if there is no such file.

    Raises:
        DamagedSequence: it is there, and says nothing.
    """
    path = folder / SEQUENCE
    try:
        found = _slots(path)
    except FileNotFoundError:
        return None
    if not found:
        raise DamagedSequence(f"{path} is damaged")
    return max(found, key=lambda slot: slot[0])[1]


def write_sequence(path: Path, mark: Mark) -> None:
    """Write a sequence file elsewhere, for a copy of the log."""
    path.write_bytes(_encoded(1, mark).ljust(SLOT_BYTES) + _encoded(2, mark).ljust(SLOT_BYTES))


def sync_folder(folder: Path) -> None:
    """Have the names in a folder safely on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _encoded(turn: int, mark: Mark) -> bytes:
    text = json.dumps({"turn": turn, **mark.to_plain()}, allow_nan=False)
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}\n".encode()


def _slots(path: Path) -> list[tuple[int, Mark]]:
    raw = path.read_bytes()
    found = []
    for begin in (0, SLOT_BYTES):
        digest, _, text = raw[begin : begin + SLOT_BYTES].partition(b"\n")[0].partition(b" ")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            continue
        plain = json.loads(text)
        link = Link(plain["seq"], bytes.fromhex(plain["chain"]))
        found.append((plain["turn"], Mark(link=link, at_s=plain["at_s"], submitted=plain["submitted"])))
    return found
