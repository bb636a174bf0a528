"""What a process prints on its node, until it has been brought to the service.

It goes into a file that the process appends to as fast as it likes, and that must not fill the disk, whether or not a
service takes it: of what was printed, the last part is kept (``KEPT_BYTES``), and the disk gets the rest back. What was
not brought before that is left out, which shows in the offsets of what is.
"""

from __future__ import annotations

import os
from pathlib import Path

from geminid.process.logfiles import free_beginning

#: Number of bytes at the end of a log that are kept.
KEPT_BYTES = 16 << 20

#: Least number of bytes that are given back to the disk at a time.
STEP_BYTES = 4 << 20


class NodeLog:
    """The output of one process, in the file ``path``. Offsets count what it has printed.

    ``sent`` is up to where the service has been sent it, None if it does not follow.
    """

    def __init__(self, path: Path, sent: int | None = None) -> None:
        self.path, self.sent = path, sent
        self._kept_from = self._file_from = 0
        self._end: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the process has ended and the service has been sent what is left of its output."""
        return self.sent is not None and self._end is not None and self.sent >= self._end

    def finish(self) -> None:
        """The process has ended: what comes after this is not its output."""
        self.trim()
        self._end = self._printed

    def piece(self, most_bytes: int) -> tuple[int, bytes]:
        """The next piece for the service, and where it begins; it counts as sent. Empty if there is none."""
        assert self.sent is not None
        at = max(self.sent, self._kept_from)
        end = self._printed if self._end is None else self._end
        found = self._read(at, min(most_bytes, end - at)) if at < end else b""
        self.sent = at + len(found) if found else max(at, end)  # what cannot be read is left out
        return at, found

    def trim(self) -> None:
        """Give the disk back what is not kept; all of it, where the system can only empty files."""
        printed = self._printed
        first = printed - KEPT_BYTES
        if first - self._kept_from < STEP_BYTES:
            return
        try:
            with self.path.open("rb+") as file:
                if free_beginning(file.fileno(), first - self._file_from):
                    self._kept_from = first
                else:  # its writer appends, so it goes on at the beginning
                    os.truncate(file.fileno(), 0)
                    self._kept_from = self._file_from = printed
        except OSError:
            return

    @property
    def _printed(self) -> int:
        """How much the process has printed."""
        try:
            return self._file_from + self.path.stat().st_size
        except OSError:
            return self._file_from

    def _read(self, at: int, length: int) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(at - self._file_from)
                return file.read(length)
        except OSError:
            return b""
