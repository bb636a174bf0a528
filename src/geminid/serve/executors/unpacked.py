"""The code of jobs on a node: each package in a folder of its own, and whole, or not there."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class NotNeeded(Exception):
    """A job's code was discarded while it was being unpacked."""


class UnpackedCode:
    """Packages of jobs, unpacked by ``unpack`` (which is given a package and a folder, and says where it is then).

    Any thread may ask. Code may be discarded, and be asked for again, while it is still being unpacked: no folder is
    ever used twice.
    """

    def __init__(self, folder: Path, unpack: Callable[[str, Path], Path]) -> None:
        self._folder, self._unpack = folder, unpack
        self._lock = threading.Lock()
        self._folders: dict[str, set[Path]] = {}
        self._there: dict[tuple[str, str], Path] = {}

    def have(self, job: str, package: str) -> Path:
        """Where a job's package is; it is unpacked if it is not there.

        Raises:
            NotNeeded: it was discarded meanwhile.
        """
        with self._lock:
            if (there := self._there.get((job, package))) is not None:
                return there
            folder = self._folder / job / secrets.token_hex(4)
            self._folders.setdefault(job, set()).add(folder)
        try:
            folder.mkdir(parents=True, mode=0o700)
            there = self._unpack(package, folder)
            with self._lock:
                if folder not in self._folders.get(job, ()):
                    raise NotNeeded
                self._there[job, package] = there
        except BaseException:
            with self._lock:
                self._folders.get(job, set()).discard(folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return there

    def discard(self, job: str) -> None:
        """A job's code is not needed any more."""
        with self._lock:
            folders = self._folders.pop(job, set())
            self._there = {key: there for key, there in self._there.items() if key[0] != job}
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # some of it is being unpacked again
            (self._folder / job).rmdir()
