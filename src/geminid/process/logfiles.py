"""Reading the logs of a job: those of all of its workers, from the end or as they grow.

A log that has grown too large is rotated (``rotate``): its writers hold it open and append, so its content is copied to
``NAME.log.1``, and the log is truncated. Readers continue in the copy where they were, and then in the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TypeVar

from geminid.clock import Clock

T = TypeVar("T")

#: How a line begins that stands between what a command printed before it was started again, and after.
RESTARTED = "==> started again at "

#: How much of a log is read at a time, in bytes.
PIECE_BYTES = 1 << 16

#: How long readers share what was last seen of a log, in seconds.
CACHE_S = 0.1

#: For how many logs readers share that.
MAX_CACHED_LOGS = 1000

#: A log that grows beyond this many bytes is rotated, and the copy of the last rotation is dropped. Of a log that has
#: grown far beyond it before it was rotated, only this much of its end is kept.
MAX_LOG_BYTES = 64 << 20

#: Flags of fallocate(2): free a part of a file on the disk, and keep the file's length.
PUNCH_HOLE = 0x01 | 0x02


class Tails:
    """The ends of logs, read once for all readers that follow them; up to ``CACHE_S`` old. For one thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._logs: dict[Path, tuple[float, list[Path]]] = {}
        self._ends: dict[Path, tuple[float, int, bytes]] = {}

    def logs(self, folder: Path) -> list[Path]:
        """The logs of a folder, by worker."""
        looked_s, found = self._logs.get(folder, (-inf, []))
        if self._clock.monotonic_s() - looked_s > CACHE_S:
            found = sorted(folder.glob("*.log"), key=lambda path: (len(path.name), path.name))
            _trim(self._logs)[folder] = (self._clock.monotonic_s(), found)
        return found

    def end(self, log: Path) -> tuple[int, bytes]:
        """The length of a log, and its last bytes."""
        looked_s, size, last = self._ends.get(log, (-inf, -1, b""))
        if self._clock.monotonic_s() - looked_s > CACHE_S:
            now = log.stat().st_size
            if now != size:
                with log.open("rb") as file:
                    file.seek(max(0, now - PIECE_BYTES))
                    last = file.read(min(now, PIECE_BYTES))
                    size = max(0, now - PIECE_BYTES) + len(last)
            _trim(self._ends)[log] = (self._clock.monotonic_s(), size, last)
        return size, last


def _trim(known: dict[Path, T]) -> dict[Path, T]:
    """The same cache, emptied if it has become large."""
    if len(known) > MAX_CACHED_LOGS:
        known.clear()
    return known


@dataclass(slots=True)
class LogReader:
    """Reads all logs of a folder, each time from where it stopped. With several workers, each piece names its own."""

    folder: Path
    worker: str | None = None
    tails: Tails = field(default_factory=Tails)
    _at: dict[Path, int] = field(default_factory=dict)
    _last: Path | None = None

    def start(self, tail: int | None) -> None:
        """Begin ``tail`` lines before the end of each log, the last rotated part included; None for the beginning."""
        for path in self._list():
            with contextlib.suppress(OSError):
                if tail is None:
                    self._at[path] = -_size(aside(path))
                    continue
                at, found = _last_lines(path, tail)
                if found < tail and _size(aside(path)):
                    before, _ = _last_lines(aside(path), tail - found)
                    at = before - _size(aside(path))
                self._at[path] = at

    def go_on(self, at: Mapping[str, int]) -> None:
        """Begin where another reader stopped, by worker (:meth:`positions`)."""
        self._at = {self.folder / f"{name}.log": place for name, place in at.items()}

    def positions(self) -> dict[str, int]:
        """The position in each log, by worker."""
        return {path.stem: at for path, at in self._at.items()}

    def read(self) -> Iterator[bytes]:
        """What was written since the last call."""
        for _, _, piece in self.pieces():
            yield piece

    def pieces(self) -> Iterator[tuple[str, int, bytes]]:
        """The same, with the worker and the position after each piece."""
        files = self._list()
        for path in files:
            try:
                at = self._at.get(path, 0)
                size, last = self.tails.end(path)
                if size == at:
                    continue
                if size < at:  # it was rotated meanwhile: what was written before is in the copy
                    at -= _size(aside(path))
                near = 0 <= size - len(last) <= at
                for piece, end in [(last[at - size :], size)] if near else _pieces(path, at):
                    self._at[path] = end
                    named = len(files) > 1 and path != self._last
                    self._last = path if named else self._last
                    yield path.stem, end, (f"==> {path.stem} <==\n".encode() if named else b"") + piece
            except OSError:
                continue

    def _list(self) -> list[Path]:
        try:
            found = self.tails.logs(self.folder)
        except OSError:
            return []
        return found if self.worker is None else [path for path in found if path.stem == self.worker]


def _pieces(path: Path, at: int) -> Iterator[tuple[bytes, int]]:
    """The content from a position on, with the position after each piece; negative ones are in the rotated copy."""
    if at < 0:
        at = max(at, -MAX_LOG_BYTES)  # no more than that is kept
        with aside(path).open("rb") as file:
            file.seek(at, os.SEEK_END)
            while at < 0 and (piece := file.read(min(PIECE_BYTES, -at))):
                at += len(piece)
                yield piece, at
        at = 0
    with path.open("rb") as file:
        file.seek(at)
        while piece := file.read(PIECE_BYTES):
            at += len(piece)
            yield piece, at


def _last_lines(path: Path, lines: int) -> tuple[int, int]:
    """Where the last lines of a file begin, and how many there are; an incomplete last line counts."""
    with path.open("rb") as file:
        at = size = file.seek(0, os.SEEK_END)
        if lines == 0 or size == 0:
            return size, 0
        found = 0  # line ends before which whole lines are
        while at > 0:
            length = min(PIECE_BYTES, at)
            at -= length
            file.seek(at)
            piece = file.read(length)
            end = len(piece)
            while (end := piece.rfind(b"\n", 0, end)) >= 0:
                if at + end + 1 < size:
                    found += 1
                    if found == lines:
                        return at + end + 1, lines
        return 0, found + 1


def last_lines(folder: Path, lines: int, worker: str | None = None) -> list[str]:
    """The last lines of a worker's log, or of the log that was written last; none if there is none."""
    try:
        log = folder / f"{worker}.log"
        if worker is None:
            log = max(folder.glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
        at, _ = _last_lines(log, lines)
        with log.open("rb") as file:
            file.seek(max(at, _size(log) - PIECE_BYTES))
            text = file.read(PIECE_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    return ["".join(letter if letter.isprintable() else " " for letter in line) for line in text.splitlines()]


def aside(log: Path) -> Path:
    """Where the content of a log is copied when it is rotated."""
    return log.with_suffix(".log.1")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def rotate(logs: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Rotate logs that have grown too large. Their writers append, so they continue at the beginning.

    Everything is copied first, then what was written meanwhile, until there is nothing more; only what is written in
    the instant between that and the truncation is lost (microseconds, or the time this process waits for a core).
    """
    with contextlib.suppress(OSError):
        for log in logs.glob("*.log"):
            if log.stat().st_size > max_bytes:
                _rotate(log)


def free_beginning(descriptor: int, length: int) -> bool:
    """Free the disk space of the beginning of a file, which keeps its length; whether the file system can."""
    with contextlib.suppress(AttributeError):
        made = ctypes.CDLL(None).fallocate(descriptor, PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(length))
        return bool(made == 0)
    return False


def _rotate(log: Path) -> None:
    made = log.with_suffix(".log.new")
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as target, log.open("rb") as source:
            lost = max(0, log.stat().st_size - MAX_LOG_BYTES)
            source.seek(lost)
            target.seek(lost)  # a hole, which takes no disk space: readers find their positions by the length
            shutil.copyfileobj(source, target, 1 << 20)
            made.replace(aside(log))
            while rest := source.read(1 << 16):
                target.write(rest)
            os.truncate(log, 0)
            target.flush()
            free_beginning(target.fileno(), target.tell() - MAX_LOG_BYTES)  # as much as was written meanwhile
    finally:
        made.unlink(missing_ok=True)
