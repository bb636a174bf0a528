"""Where checkpoints are kept: several generations of them, in a folder or on storage that fsspec knows.

Whoever loads gets the newest one that is intact. One that is damaged is passed over, with a warning, and the one before
is tried. Where there are some, but none is intact, that is an error: training does not begin from the beginning unless
somebody decides that it should. Storage that fails is asked again, and then an error as well.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from geminid.train.checkpoint import BadCheckpoint, Snapshot, Written, read, write

#: How many checkpoints are kept.
KEEP = 3

SUFFIX = ".safetensors"

#: What is locked in a folder that is in use.
LOCK = ".lock"

#: The locks that this process holds, and their open files: they end with it.
_claimed: dict[Path, int] = {}

#: Storage that fails is asked again after so long, and once more.
PAUSES_S = (0.5, 2.0)

#: What asking again does not help against.
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ImportError, BadCheckpoint)

T = TypeVar("T")


class CannotLoad(RuntimeError):
    """There may be checkpoints, but their storage fails; one sentence says how."""


class AllDamaged(CannotLoad):
    """There are checkpoints, and all of them are damaged; one sentence says where."""


class InUse(RuntimeError):
    """Another process keeps its checkpoints there; one sentence says which."""


class Checkpoints(Protocol):
    """Where one job's checkpoints are kept."""

    def claim(self) -> None:
        """Let nobody else use it while this process lives, where that is possible.

        Raises:
            InUse: somebody else does.
        """

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next generation, then remove those that are too old."""

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state and where it was; None if there is no checkpoint.

        Raises:
            CannotLoad: the storage fails.
            AllDamaged: there are checkpoints, but no intact one.
        """


def checkpoints_at(place: Path | str, keep: int = KEEP) -> Checkpoints:
    """The checkpoints in a folder, or below an fsspec URL such as ``s3://bucket/jobs/17``.

    Raises:
        CannotLoad: there is no such storage, or it cannot be reached.
    """
    text = str(place)
    try:
        if isinstance(place, Path) or "://" not in text:
            return CheckpointFolder(Path(text), keep)
        if text.startswith("file://"):
            return CheckpointFolder(Path(text.removeprefix("file://")), keep)
        return _insist(lambda: RemoteCheckpoints(text, keep))
    except Exception as problem:  # remote storage has errors of its own
        raise CannotLoad(f"checkpoints cannot be kept in {place}: {reason(problem)}") from problem


class CheckpointFolder:
    """The generations of one job's checkpoints; the newest has the largest number."""

    def __init__(self, folder: Path, keep: int = KEEP) -> None:
        self.folder = folder
        self.keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self) -> None:
        """Let no other process on machines that share the folder use it, as far as their file system has locks.

        Raises:
            InUse: one does.
        """
        lock = self.folder.resolve() / LOCK
        if lock in _claimed:
            return
        try:
            file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # then nothing can be saved either, which is told when it is tried
            return
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = os.read(file, 20).decode("ascii", "replace").strip()
            os.close(file)
            if problem.errno not in (errno.EACCES, errno.EAGAIN):
                return
            raise InUse(
                f"another run keeps its checkpoints in {self.folder} (process {holder or 'unknown'}): wait for it, or "
                "give this one a checkpoint_dir of its own"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk it stays unknown who holds the lock
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
        _claimed[lock] = file

    def paths(self) -> list[Path]:
        """All checkpoints, the newest first."""
        return [self.folder / name for name in _generations(os.listdir(self.folder))]

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next generation, then remove those that are too old."""
        begin = monotonic()
        known = self.paths()
        path = self.folder / _name_after([path.name for path in known])
        size = write(snapshot, path)
        self._tidy(known[0] if known else None)
        return Written(snapshot, path, size, monotonic() - begin)

    def _tidy(self, before: Path | None) -> None:
        """Remove checkpoints and damaged files that are too old, and what was not written to its end.

        There is one writer at a time: a file that nobody has touched since the last checkpoint but one is left over.
        """
        damaged = sorted(self.folder.glob("checkpoint-*.damaged"), reverse=True)
        for old in (*self.paths()[self.keep :], *damaged[self.keep :]):
            old.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            written_at = before.stat().st_mtime_ns if before is not None else 0
            for unfinished in self.folder.glob(f".checkpoint-*{SUFFIX}.*"):
                if unfinished.stat().st_mtime_ns < written_at:
                    shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink(missing_ok=True)

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state; None if there is no checkpoint. What is damaged is renamed, with a warning."""
        found = _newest_intact(
            self.folder,
            lambda: [path.name for path in self.paths()],
            lambda name: read(self.folder / name),
            self._set_aside,
            damaged_before=len(list(self.folder.glob("checkpoint-*.damaged"))),
        )
        return (found[0], self.folder / found[1]) if found is not None else None

    def _set_aside(self, name: str) -> None:
        path = self.folder / name
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".damaged"))


class RemoteCheckpoints:
    """The generations of one job's checkpoints on storage that fsspec knows.

    A file is put there in one go. On object stores that is whole or not at all; elsewhere half a file may be left,
    which its checksum betrays, and the generation before is used. Object stores know no folders: there is none before
    there is something in it, and whoever may write below it may not be allowed to make it.
    """

    def __init__(self, url: str, keep: int = KEEP) -> None:
        from fsspec.core import url_to_fs

        self._storage, self._root = url_to_fs(url)
        self.url, self.keep = url.rstrip("/"), keep

    def names(self) -> list[str]:
        """All checkpoints, the newest first."""
        self._storage.invalidate_cache()
        try:
            listed = self._storage.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return _generations([path.rstrip("/").rpartition("/")[2] for path in listed])

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next generation, then remove those that are too old."""
        begin = monotonic()
        name = _name_after(self.names())
        with tempfile.TemporaryDirectory(prefix="geminid-") as folder:
            size = write(snapshot, Path(folder, name))
            self._put(str(Path(folder, name)), name)
        for old in self.names()[self.keep :]:
            with contextlib.suppress(FileNotFoundError):
                self._storage.rm_file(f"{self._root}/{old}")
        return Written(snapshot, f"{self.url}/{name}", size, monotonic() - begin)

    def _put(self, file: str, name: str) -> None:
        try:
            self._storage.put_file(file, f"{self._root}/{name}")
        except FileNotFoundError:
            self._storage.makedirs(self._root, exist_ok=True)
            self._storage.put_file(file, f"{self._root}/{name}")

    def claim(self) -> None:
        """Remote storage has no locks."""

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state; None if there is no checkpoint. What is damaged is passed over, with a warning."""
        found = _newest_intact(self.url, self.names, self._read, lambda name: None)
        return (found[0], f"{self.url}/{found[1]}") if found is not None else None

    def _read(self, name: str) -> Any:
        with tempfile.TemporaryDirectory(prefix="geminid-") as folder:
            self._storage.get_file(f"{self._root}/{name}", str(Path(folder, name)))
            return read(Path(folder, name))


def reason(problem: Exception) -> str:
    """What an error says, in one line."""
    lines = str(getattr(problem, "strerror", None) or problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


def _generations(names: Sequence[str]) -> list[str]:
    """The checkpoints among these names, the newest first."""
    return sorted((name for name in names if name.startswith("checkpoint-") and name.endswith(SUFFIX)), reverse=True)


def _name_after(known: Sequence[str]) -> str:
    number = int(known[0].removesuffix(SUFFIX).removeprefix("checkpoint-")) + 1 if known else 1
    return f"checkpoint-{number:08d}{SUFFIX}"


def _insist(action: Callable[[], T]) -> T:
    """Ask storage that fails again, unless that does not help."""
    for pause_s in PAUSES_S:
        try:
            return action()
        except LASTING:
            raise
        except Exception:  # remote storage has errors of its own
            sleep(pause_s)
    return action()


def _newest_intact(
    place: Path | str,
    names: Callable[[], list[str]],
    read_one: Callable[[str], Any],
    set_aside: Callable[[str], None],
    damaged_before: int = 0,
) -> tuple[Any, str] | None:
    """The newest intact state and its name; None if there is no checkpoint.

    Raises:
        CannotLoad: the storage fails.
        AllDamaged: there are checkpoints, but no intact one. ``damaged_before`` of them were found to be so before.
    """
    damaged, failure = damaged_before, None
    try:
        known = _insist(names)
    except Exception as problem:
        raise CannotLoad(f"the checkpoints in {place} cannot be listed: {reason(problem)}") from problem
    for name in known:
        try:
            return _insist(lambda name=name: read_one(name)), name  # type: ignore[misc]
        except FileNotFoundError:  # too old by now
            continue
        except BadCheckpoint as problem:
            _warn(f"{place}/{name} is not used: {problem}")
            set_aside(name)
            damaged += 1
        except Exception as problem:
            _warn(f"{place}/{name} cannot be read: {reason(problem)}")
            failure = problem
    if failure is not None:
        raise CannotLoad(
            f"there are checkpoints in {place}, but none can be read ({reason(failure)}): make them readable, or "
            "remove them to begin anew"
        ) from failure
    if damaged:
        what = "the only checkpoint" if damaged == 1 else f"all {damaged} checkpoints"
        raise AllDamaged(
            f"{what} in {place} {'is' if damaged == 1 else 'are'} damaged: put an intact one there to go on from it, "
            "or move the damaged ones away to begin from the beginning"
        )
    return None


def _warn(text: str) -> None:
    print(f"geminid: warning: {text}", file=sys.stderr, flush=True)
