"""What a process on another machine has printed, brought here piece by piece.

Several processes may write to one log after another (the tries of a command), and a log that has grown too large is put
aside, so that the log alone does not show how much of a process is here. It is written down beside it, with how
long the log was then: whatever it has grown since is of the same process. What does not come, because it was printed
faster than it could be brought, is marked in the log.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

#: What is written down has always the same length, so that it is replaced in one piece.
NOTE_BYTES = 256


class Collected:
    """The output of the process ``key``, in the file ``log``; ``bytes`` of it are here."""

    def __init__(self, key: str, log: Path) -> None:
        self._key, self._log = key, log
        self.bytes = 0

    def recall(self) -> None:
        """Go on where an earlier service was."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._notes.read_text(encoding="utf-8"))
            if known["key"] == self._key:
                self.bytes = int(known["bytes"]) + max(0, self._log.stat().st_size - int(known["size"]))

    def take(self, offset: int, piece: bytes) -> None:
        """A piece of the output, which begins at an offset of it; what of it is here already is not added again."""
        new = piece[max(0, self.bytes - offset) :]
        if not new:
            return
        with contextlib.suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                if self.bytes == 0:
                    self._note(file.tell())
                if offset > self.bytes:
                    file.write(left_out(offset - self.bytes))
                    file.flush()
                    self.bytes = offset
                    self._note(file.tell())
                file.write(new)
                file.flush()
                self.bytes = offset + len(piece)
                self._note(file.tell())

    @property
    def _notes(self) -> Path:
        return self._log.with_suffix(".here")

    def _note(self, size: int) -> None:
        text = json.dumps({"key": self._key, "bytes": self.bytes, "size": size}).ljust(NOTE_BYTES)
        descriptor = os.open(self._notes, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, text.encode(), 0)
        finally:
            os.close(descriptor)


def left_out(length: int) -> bytes:
    """What stands in a log in place of bytes that are left out."""
    return f"\n==> {length} bytes are left out here <==\n".encode()
