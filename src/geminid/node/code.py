"""The code of jobs on a node: each package in a folder of its own, and whole, or not there."""

from __future__ import annotations

import os
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
    ever used twice. Requests are numbered (``at``) in ascending order, and may arrive in another:
    only what was asked for before is discarded.
    """

    def __init__(self, folder: Path, unpack: Callable[[str, Path], Path]) -> None:
        self._folder, self._unpack = folder, unpack
        self._lock = threading.Lock()
        self._folders: dict[str, dict[Path, int]] = {}  # and what was last asked for that is in them
        self._there: dict[tuple[str, str], tuple[Path, Path]] = {}  # the folder, and where in it
        self._files: dict[Path, tuple[str, ...]] = {}  # what is in each of these places

    def have(self, job: str, package: str, at: int) -> Path:
        """Where a job's package is; it is unpacked if it is not there.

        Raises:
            NotNeeded: it was discarded meanwhile.
        """
        with self._lock:
            if (known := self._there.get((job, package))) is not None and self.is_there(known[1]):
                self._folders[job][known[0]] = max(at, self._folders[job][known[0]])
                return known[1]
            folder = self._folder / job / secrets.token_hex(4)
            self._folders.setdefault(job, {})[folder] = at
        try:
            folder.mkdir(parents=True, mode=0o700)
            there = self._unpack(package, folder)
            files = tuple(str(path.relative_to(there)) for path in there.rglob("*") if path.is_file())
            with self._lock:
                if folder not in self._folders.get(job, ()):
                    raise NotNeeded
                self._there[job, package] = folder, there
                self._files[there] = files
        except BaseException:
            with self._lock:
                self._folders.get(job, {}).pop(folder, None)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return there

    def is_there(self, there: Path) -> bool:
        """Whether something of what was unpacked there still is; tools that tidy up may leave an empty folder.

        Of what is missing of the rest, jobs may have removed it themselves.
        """
        files = self._files.get(there, ())
        return there.is_dir() and (not files or any(os.path.exists(there / name) for name in files))

    def discard(self, job: str, at: int) -> None:
        """A job's code is not needed any more, as far as it was asked for before."""
        with self._lock:
            mine = self._folders.pop(job, {})
            discarded = [folder for folder, asked_at in mine.items() if asked_at < at]
            if left := {folder: asked_at for folder, asked_at in mine.items() if asked_at >= at}:
                self._folders[job] = left
            self._there = {key: known for key, known in self._there.items() if known[0] not in discarded}
            kept = {there for _, there in self._there.values()}
            self._files = {there: files for there, files in self._files.items() if there in kept}
        for folder in discarded:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # some of it is being unpacked again
            (self._folder / job).rmdir()
