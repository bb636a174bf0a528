"""Copies of a home in one file, made beside a running service or without one, and homes made of such copies.

A copy is a tar file: the database as it was at one moment, its sequence file, and the small files of the home (tokens,
settings). With ``jobs``, the newest checkpoints of jobs are in it as well. Only its owner can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from geminid import __version__
from geminid.serve.ahead import jobs_ahead
from geminid.serve.aside import move_aside, new_aside
from geminid.serve.inspection import DATABASE, JOBS, highest_job_folder, inspect, reading
from geminid.serve.privacy import check_private
from geminid.serve.recovery import DATABASE_FILES, replace_log, set_floor, settle_ahead, unknown_folders
from geminid.serve.sequence import SEQUENCE, DamagedSequence, Mark, read_sequence, write_sequence
from geminid.serve.state import ServiceState
from geminid.serve.store import LOCK, Store, StoreDamaged, StoreProblem, make_home, take_lock

MANIFEST = "manifest.json"

#: Version of what is in a copy.
FORMAT = 1

#: What an operator does about a damaged home.
HOW_TO_CONTINUE = "`geminid recover` continues with what is left"

#: Larger files beside the database are not part of a copy: settings are small.
LARGEST_SETTING_BYTES = 1 << 20

#: Files of a home that say something about the service that runs, and mean nothing in a copy.
PASSING = (LOCK, "service.json", "service.out", "service.log", SEQUENCE, *DATABASE_FILES)


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy holds."""

    path: Path
    seq: int
    jobs: int
    size_bytes: int


def backup(home: Path, path: Path, *, jobs: bool = False) -> Copied:
    """Copy a home into a file, whole or not at all.

    Raises:
        StoreProblem: there is no log, it is damaged, or the file is there already or cannot be written.
    """
    if not (home / DATABASE).is_file():
        raise StoreProblem(f"{home} has no log: there is nothing to copy")
    if path.exists():
        raise StoreProblem(f"{path} is there already: name another file")
    unfinished = path.with_name(path.name + ".part")
    try:
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=path.parent) as made:
            mark = _copy_log(home, Path(made))
            contents = [(DATABASE, Path(made, DATABASE)), (SEQUENCE, Path(made, SEQUENCE)), *_settings(home)]
            contents += _checkpoints(home) if jobs else []
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                _write(file, contents, mark)
                file.flush()
                os.fsync(file.fileno())
        os.link(unfinished, path)  # which fails if another process has made it meanwhile
        return Copied(path, mark.link.seq, mark.submitted, path.stat().st_size)
    except (OSError, sqlite3.Error, tarfile.TarError) as problem:
        raise StoreProblem(f"{path} could not be written: {problem}") from problem
    finally:
        unfinished.unlink(missing_ok=True)


def _copy_log(home: Path, to: Path) -> Mark:
    """Copy the database as it is at this moment, and say in a sequence file of its own how far that is.

    How far the log had come before is read first: a copy that does not reach it misses something.
    """
    try:
        mark, highest_folder = read_sequence(home), highest_job_folder(home)
    except DamagedSequence as problem:
        raise StoreDamaged(f"{problem}, so the log cannot be copied: {HOW_TO_CONTINUE}") from None
    with reading(home / DATABASE) as source, contextlib.closing(sqlite3.connect(to / DATABASE)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    if mark is not None:
        write_sequence(to / SEQUENCE, mark)
    found = inspect(to)
    if found.is_old:
        raise StoreProblem(f"the log of {home} was written by an earlier version: start the service once, then copy it")
    problems = [damage.text for damage in found.damage]
    if not problems and highest_folder > found.submitted:
        problems.append(f"{home / JOBS} has a folder of job j{highest_folder}, and the log ends before it")
    if problems:
        why = "; ".join(problems).replace(str(to), str(home))
        raise StoreDamaged(f"the log of {home} is damaged and was not copied: {why}. {HOW_TO_CONTINUE}")
    copied = Mark(link=found.last, at_s=found.last_at_s, submitted=found.submitted)
    write_sequence(to / SEQUENCE, copied)
    return copied


def _settings(home: Path) -> list[tuple[str, Path]]:
    """The small files of a home: tokens, and how it was set up."""
    found = []
    for path in sorted(home.iterdir()):
        passing = path.name.startswith((*PASSING, ".")) or path.suffix in (".lock", ".new")
        if path.is_file() and not path.is_symlink() and not passing and path.stat().st_size <= LARGEST_SETTING_BYTES:
            found.append((path.name, path))
    return found


def _checkpoints(home: Path) -> list[tuple[str, Path]]:
    """The newest checkpoint of every job."""
    found = []
    for folder in sorted((home / JOBS).glob("*/checkpoints")):
        names = sorted(path.name for path in folder.glob("checkpoint-*.safetensors"))
        if names:
            found.append((f"{JOBS}/{folder.parent.name}/checkpoints/{names[-1]}", folder / names[-1]))
    return found


def _write(file: io.BufferedWriter, contents: list[tuple[str, Path]], mark: Mark) -> None:
    digests = {}
    with tarfile.open(fileobj=file, mode="w|") as tar:
        for name, path in contents:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as content:  # a checkpoint may be too old now
                digests[name] = _add(tar, name, content, os.fstat(content.fileno()).st_size)
        manifest = {"format": FORMAT, "version": __version__, "made_at_s": time.time(), "files": digests}
        text = json.dumps({**manifest, "log": mark.to_plain()}).encode()
        _add(tar, MANIFEST, io.BytesIO(text), len(text))


class _Hashed:
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> str:
    """Add a file; its hash."""
    entry, hashed = tarfile.TarInfo(name), _Hashed(content)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(time.time())
    tar.addfile(entry, cast(IO[bytes], hashed))
    return hashed.digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Restored:
    """What a home was made of: the last record, its jobs, and where what was there before is now, if anything was.

    ``continued`` are jobs that have run since the copy was made, and continue from what their folders hold;
    ``taken_over`` are those whose processes still run, and stay with the next service.
    """

    seq: int
    jobs: int
    aside: Path | None
    continued: tuple[str, ...] = ()
    taken_over: tuple[str, ...] = ()


def restore(
    home: Path,
    path: Path,
    *,
    replace: bool = False,
    may_end: Callable[[list[str]], bool] = lambda job_ids: False,
    runs: Callable[[Path], bool] = lambda folder: False,
    end_processes: Callable[[Path], None] = lambda folder: None,
) -> Restored:
    """Make a home of a copy. What is there already is moved aside (``replace``), and never deleted.

    Folders of jobs that the copy knows stay where they are, and what they hold is newer than what is in the copy.
    Jobs that were started since are taken over by the next service, if they can be. Processes of the others, and of
    jobs that the copy does not know (``runs``), are ended if ``may_end`` allows it; the former continue from their
    newest checkpoints.

    Raises:
        StoreProblem: the file is no whole copy, a service runs on the home, it is not empty, or jobs run that may not
            be ended.
    """
    make_home(home)
    check_private(home)
    lock = take_lock(home)
    try:
        occupied = sorted(entry.name for entry in home.iterdir() if entry.name != LOCK and not _is_empty(entry))
        if occupied and not replace:
            sentence = f"{home} is not empty ({', '.join(occupied[:3])}{' and more' if len(occupied) > 3 else ''})"
            raise StoreProblem(
                f"{sentence}: restore into another GEMINID_HOME, or with --replace, which moves it aside"
            )
        with tempfile.TemporaryDirectory(prefix=".restoring-", dir=home) as made:
            unpacked = Path(made)
            _unpack(path, unpacked)
            state = _checked(path, unpacked, inspect(home).highest_job)
            unknown = unknown_folders(home, state)
            running = [name for name in unknown if runs(home / JOBS / name)]
            behind = [job.job_id for job in jobs_ahead(home, state) if job.runs and job.placement is None]
            if (running or behind) and not may_end(running + behind):
                raise StoreProblem(f"{_still_running(running, behind, path)}: nothing was changed; --yes ends them")
            for name in unknown:
                end_processes(home / JOBS / name)
            continued = settle_ahead(home, unpacked, state, end_processes)
            (unpacked / LOCK).unlink(missing_ok=True)
            aside = _put_in_place(home, unpacked, unknown) if occupied else _put_in_place(home, unpacked, None)
    except OSError as problem:
        raise StoreProblem(f"{path} could not be restored: {problem}; nothing was deleted") from problem
    finally:
        os.close(lock)
    names = [tuple(job.job_id for job in continued if (job.placement is None) is ended) for ended in (True, False)]
    return Restored(state.seq, len(state.jobs), aside, *names)


def _still_running(unknown: list[str], behind: list[str], path: Path) -> str:
    """Which jobs run that a copy does not know, or does not know to run, in words."""
    parts = []
    if unknown:
        parts.append(f"{', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} running and not in {path}")
    if behind:
        started = "has been started since it was made, and continues from its newest checkpoint if its process is ended"
        if len(behind) > 1:
            started = "have been started since it was made, and continue from their newest checkpoints if ended"
        parts.append(f"{', '.join(behind)} {started}")
    return "; ".join(parts)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _unpack(path: Path, to: Path) -> None:
    """Unpack a copy, and make sure that everything in it is what its manifest says."""
    try:
        with tarfile.open(path, mode="r:") as tar:
            digests = {entry.name: _extract(tar, entry, to) for entry in tar}
        manifest: dict[str, Any] = json.loads((to / MANIFEST).read_bytes())
        files, made_as = manifest["files"], manifest["format"]
    except (tarfile.TarError, FileNotFoundError, KeyError, ValueError, TypeError, EOFError) as problem:
        raise StoreProblem(f"{path} is not a copy made by `geminid backup`, or is damaged: {problem}") from None
    if made_as != FORMAT:
        raise StoreProblem(f"{path} is a copy of another version (format {made_as}, this is {FORMAT})")
    (to / MANIFEST).unlink()
    del digests[MANIFEST]
    if digests != files or not {DATABASE, SEQUENCE} <= files.keys():
        different = sorted(name for name in {*digests, *files} if digests.get(name) != files.get(name))
        raise StoreProblem(f"{path} is damaged: {', '.join(different[:3]) or DATABASE} is missing or changed")


def _extract(tar: tarfile.TarFile, entry: tarfile.TarInfo, to: Path) -> str:
    """Write a file of a copy into a folder, and nowhere else; its hash."""
    content = tar.extractfile(entry) if entry.isfile() else None
    if content is None or entry.name.startswith("/") or ".." in PurePosixPath(entry.name).parts:
        raise ValueError(f"{entry.name!r} has no place in it")
    place, hashed = to / entry.name, _Hashed(content)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        shutil.copyfileobj(hashed, file)
        file.flush()
        os.fsync(file.fileno())
    return hashed.digest.hexdigest()


def _checked(path: Path, unpacked: Path, highest_job: int) -> ServiceState:
    """The state of a log that was unpacked, which from now on gives no job a number up to this one."""
    try:
        with Store(unpacked) as store:
            state = store.load()
        if highest_job > state.submitted:
            lost = f"jobs j{state.submitted + 1} to j{highest_job} are not in the copy that was restored"
            state = set_floor(unpacked, highest_job, lost)
    except StoreDamaged as problem:
        raise StoreProblem(f"{path} is damaged: {problem}") from None
    (unpacked / LOCK).unlink()
    return state


def _put_in_place(home: Path, unpacked: Path, unknown: list[str] | None) -> Path | None:
    """Move what was unpacked into the home; what it replaces, and ``unknown`` folders of jobs, aside.

    ``unknown`` is None where the home is empty.
    """
    aside = None if unknown is None else new_aside(home)
    if aside is not None and unknown is not None:
        replace_log(home, unpacked, aside)
        for name in unknown:
            move_aside(home / JOBS / name, aside / JOBS)
    order = sorted(unpacked.rglob("*"), key=lambda file: (file.name == DATABASE, str(file)))  # the database last
    for file in order:
        place = home / file.relative_to(unpacked)
        if file.is_dir() or (place.exists() and place.is_relative_to(home / JOBS)):
            continue
        if place.exists() and aside is not None:
            move_aside(place, aside)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.replace(file, place)
    return aside
