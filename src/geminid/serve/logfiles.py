"""Reading the logs of a job: all of its workers', from the end or as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: So much of a log is read at a time.
PIECE_BYTES = 1 << 16


@dataclass(slots=True)
class LogReader:
    """Reads on where it left off, in all files of a folder. With several workers, each piece says whose it is."""

    folder: Path
    worker: str | None = None
    _at: dict[Path, int] = field(default_factory=dict)
    _last: Path | None = None

    def start(self, tail_bytes: int | None) -> None:
        """Begin so far from the end of each log that is there; None for the beginning."""
        if tail_bytes is not None:
            for path in self._files():
                self._at[path] = max(0, path.stat().st_size - tail_bytes)

    def read(self) -> Iterator[bytes]:
        """Whatever has come since; nothing if nothing has."""
        files = self._files()
        for path in files:
            yield from self._read_one(path, named=len(files) > 1)

    def _read_one(self, path: Path, *, named: bool) -> Iterator[bytes]:
        at = self._at.get(path, 0)
        try:
            size = path.stat().st_size
            if size < at:
                at = 0  # it was put aside, and begins anew
            if size == at:
                return
            with path.open("rb") as file:
                file.seek(at)
                while piece := file.read(PIECE_BYTES):
                    if named and path != self._last:
                        yield f"==> {path.stem} <==\n".encode()
                        self._last = path
                    at += len(piece)
                    yield piece
        except OSError:
            return
        finally:
            self._at[path] = at

    def _files(self) -> list[Path]:
        name = f"{self.worker}.log" if self.worker else "*.log"
        try:
            return sorted(self.folder.glob(name), key=lambda path: (len(path.name), path.name))
        except OSError:
            return []
