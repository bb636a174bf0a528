"""Where checkpoints are kept: the newest few of them, in a folder or on storage that fsspec supports.

Loading uses the newest intact checkpoint. A damaged one is skipped with a warning, and the one before is tried. If
there are checkpoints and none is intact, that is an error: only the user may decide to start from scratch. Storage that
fails is asked again a few times, and then that is an error too.
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
from typing import Any, Protocol, TypeVar

from geminid.clock import Clock
from geminid.train.checkpoint import BadCheckpoint, Snapshot, Written, read, write

#: How many checkpoints are kept by default.
KEEP = 3

#: The end of a checkpoint's file name.
SUFFIX = ".safetensors"

#: The file that is locked while a process uses the folder.
LOCK = ".lock"

#: The locks that this process holds, and their open files; they are released when it ends.
_claimed: dict[Path, int] = {}

#: Delays before storage that fails is asked again.
RETRY_DELAYS_S = (0.5, 2.0)

#: Failures that do not go away by asking again.
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ImportError, BadCheckpoint)

T = TypeVar("T")


class CannotLoad(RuntimeError):
    """There may be checkpoints, but their storage fails; one sentence says how."""


class AllDamaged(CannotLoad):
    """There are checkpoints, and all of them are damaged; one sentence says where."""


class AllGone(CannotLoad):
    """There must be checkpoints, and there are none; one sentence says where."""


class InUse(RuntimeError):
    """Another process keeps its checkpoints in the same place; one sentence names it."""


class Checkpoints(Protocol):
    """Where one job's checkpoints are kept."""

    def claim(self) -> None:
        """Let no other process use it while this one lives, where the storage has locks.

        Raises:
            InUse: another process does.
        """

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next checkpoint, then remove those that are too old."""

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state and its location; None if there is no checkpoint.

        Raises:
            CannotLoad: the storage fails.
            AllDamaged: there are checkpoints, but no intact one.
        """


def checkpoints_at(place: Path | str, clock: Clock, keep: int = KEEP) -> Checkpoints:
    """The checkpoints in a folder, or below an fsspec URL such as ``s3://bucket/jobs/17``.

    Raises:
        CannotLoad: there is no such storage, or it cannot be reached.
    """
    text = str(place)
    try:
        if isinstance(place, Path) or "://" not in text:
            return CheckpointFolder(Path(text), clock, keep)
        if text.startswith("file://"):
            return CheckpointFolder(Path(text.removeprefix("file://")), clock, keep)
        return _retried(lambda: RemoteCheckpoints(text, clock, keep), clock)
    except Exception as problem:  # remote storage has errors of its own
        raise CannotLoad(f"checkpoints cannot be kept in {place}: {reason(problem)}") from problem


class CheckpointFolder:
    """One job's checkpoints in a folder; the newest has the largest number."""

    def __init__(self, folder: Path, clock: Clock, keep: int = KEEP) -> None:
        self.folder, self._clock, self.keep = folder, clock, keep
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
        except OSError:  # then nothing can be saved either, and saving reports it
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
        with contextlib.suppress(OSError):  # on a full disk the holder of the lock stays unknown
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
        _claimed[lock] = file

    def paths(self) -> list[Path]:
        """All checkpoints, the newest first."""
        return [self.folder / name for name in _newest_first(os.listdir(self.folder))]

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next checkpoint, then remove those that are too old."""
        begin_s = self._clock.monotonic_s()
        known = self.paths()
        path = self.folder / _name_after([path.name for path in known])
        size = write(snapshot, path)
        self._tidy(known[0] if known else None)
        return Written(snapshot, path, size, self._clock.monotonic_s() - begin_s)

    def _tidy(self, before: Path | None) -> None:
        """Remove checkpoints and damaged files that are too old, and unfinished ones.

        There is one writer at a time: an unfinished file older than the checkpoint ``before`` is left over.
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
        """The newest intact state; None if there is no checkpoint. Damaged ones are renamed, with a warning."""
        found = _newest_intact(
            self.folder,
            lambda: [path.name for path in self.paths()],
            lambda name: read(self.folder / name),
            self._set_aside,
            self._clock,
            damaged_before=len(list(self.folder.glob("checkpoint-*.damaged"))),
        )
        return (found[0], self.folder / found[1]) if found is not None else None

    def _set_aside(self, name: str) -> None:
        path = self.folder / name
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".damaged"))


class RemoteCheckpoints:
    """One job's checkpoints on storage that fsspec supports.

    A file is uploaded in one operation. On object stores that is atomic; elsewhere half a file may be left, which its
    checksum reveals, and the checkpoint before is used. Object stores have no folders: one exists only while there is
    an object in it, and an account that may write objects may not be allowed to create folders.
    """

    def __init__(self, url: str, clock: Clock, keep: int = KEEP) -> None:
        from fsspec.core import url_to_fs

        self._storage, self._root = url_to_fs(url)
        self.url, self._clock, self.keep = url.rstrip("/"), clock, keep

    def names(self) -> list[str]:
        """All checkpoints, the newest first."""
        self._storage.invalidate_cache()
        try:
            listed = self._storage.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return _newest_first([path.rstrip("/").rpartition("/")[2] for path in listed])

    def save(self, snapshot: Snapshot) -> Written:
        """Write the next checkpoint, then remove those that are too old."""
        begin_s = self._clock.monotonic_s()
        name = _name_after(self.names())
        with tempfile.TemporaryDirectory(prefix="geminid-") as folder:
            size = write(snapshot, Path(folder, name))
            self._put(str(Path(folder, name)), name)
        for old in self.names()[self.keep :]:
            with contextlib.suppress(FileNotFoundError):
                self._storage.rm_file(f"{self._root}/{old}")
        return Written(snapshot, f"{self.url}/{name}", size, self._clock.monotonic_s() - begin_s)

    def _put(self, file: str, name: str) -> None:
        try:
            self._storage.put_file(file, f"{self._root}/{name}")
        except FileNotFoundError:
            self._storage.makedirs(self._root, exist_ok=True)
            self._storage.put_file(file, f"{self._root}/{name}")

    def claim(self) -> None:
        """Remote storage has no locks."""

    def load(self) -> tuple[Any, Path | str] | None:
        """The newest intact state; None if there is no checkpoint. Damaged ones are skipped, with a warning."""
        found = _newest_intact(self.url, self.names, self._read, lambda name: None, self._clock)
        return (found[0], f"{self.url}/{found[1]}") if found is not None else None

    def _read(self, name: str) -> Any:
        with tempfile.TemporaryDirectory(prefix="geminid-") as folder:
            self._storage.get_file(f"{self._root}/{name}", str(Path(folder, name)))
            return read(Path(folder, name))


def reason(problem: Exception) -> str:
    """An error's message, in one line."""
    lines = str(getattr(problem, "strerror", None) or problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


def _newest_first(names: Sequence[str]) -> list[str]:
    """The checkpoints among these names, the newest first."""
    return sorted((name for name in names if name.startswith("checkpoint-") and name.endswith(SUFFIX)), reverse=True)


def _name_after(known: Sequence[str]) -> str:
    number = int(known[0].removesuffix(SUFFIX).removeprefix("checkpoint-")) + 1 if known else 1
    return f"checkpoint-{number:08d}{SUFFIX}"


def _retried(action: Callable[[], T], clock: Clock) -> T:
    """Repeat an action on storage that fails, unless that does not help."""
    for delay_s in RETRY_DELAYS_S:
        try:
            return action()
        except LASTING:
            raise
        except Exception:  # remote storage has errors of its own
            clock.sleep(delay_s)
    return action()


def _newest_intact(
    place: Path | str,
    names: Callable[[], list[str]],
    read_one: Callable[[str], Any],
    set_aside: Callable[[str], None],
    clock: Clock,
    damaged_before: int = 0,
) -> tuple[Any, str] | None:
    """The newest intact state and its name; None if there is no checkpoint.

    Raises:
        CannotLoad: the storage fails.
        AllDamaged: there are checkpoints, but no intact one. ``damaged_before`` of them were found damaged earlier.
    """
    damaged, failure = damaged_before, None
    try:
        known = _retried(names, clock)
    except Exception as problem:
        raise CannotLoad(f"the checkpoints in {place} cannot be listed: {reason(problem)}") from problem
    for name in known:
        try:
            return _retried(lambda name=name: read_one(name), clock), name  # type: ignore[misc]
        except FileNotFoundError:  # it was removed meanwhile because it was too old
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
            "remove them to start from scratch"
        ) from failure
    if damaged:
        what = "the only checkpoint" if damaged == 1 else f"all {damaged} checkpoints"
        raise AllDamaged(
            f"{what} in {place} {'is' if damaged == 1 else 'are'} damaged: put an intact one there to continue from "
            "it, or move the damaged ones away to start from scratch"
        )
    return None


def _warn(text: str) -> None:
    print(f"geminid: warning: {text}", file=sys.stderr, flush=True)
