"""Continuing with what is left of a damaged log. Nothing is deleted: whatever is not used is moved aside.

The part of the log that reaches furthest and fits together becomes the new log, from a snapshot or from the first
record on. A record says what was lost. Folders of jobs that the new log does not know are moved aside after their
processes have ended; no job ever gets the number of one of them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from geminid.serve.ahead import JobAhead, jobs_ahead, takeover_records
from geminid.serve.aside import move_aside, new_aside
from geminid.serve.chain import Link, seal
from geminid.serve.inspection import DATABASE, JOBS, MAX_EPOCHS_AHEAD, Findings, inspect, reading, rows
from geminid.serve.privacy import check_private
from geminid.serve.records import SCHEMA_VERSION, LogRecovered, Record
from geminid.serve.sequence import SEQUENCE, Mark, sync_folder, write_sequence
from geminid.serve.state import ServiceState
from geminid.serve.store import TABLES, Store, StoreProblem, make_home, take_lock

#: The files of a database.
DATABASE_FILES = (f"{DATABASE}-wal", f"{DATABASE}-shm", DATABASE)


@dataclass(frozen=True, slots=True)
class Salvage:
    """What can be saved of a home: the records up to ``last_seq``, these jobs, and folders that belong to none.

    ``ahead`` are jobs of the log that have run without the log knowing it.
    """

    findings: Findings
    state: ServiceState
    unknown_folders: tuple[str, ...]
    ahead: tuple[JobAhead, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether anything has to be decided."""
        return bool(self.findings.damage or self.ahead)


def salvage(folder: Path) -> Salvage:
    """See what can be saved of a home, without changing anything.

    Raises:
        StoreProblem: a service runs on it, or it has no log and no jobs at all.
    """
    make_home(folder)
    lock = take_lock(folder)
    try:
        return _salvage(folder, inspect(folder))
    finally:
        os.close(lock)


def _salvage(folder: Path, found: Findings) -> Salvage:
    with tempfile.TemporaryDirectory(prefix="geminid-") as made:
        state = _rebuilt(folder, Path(made), found)
    return Salvage(found, state, tuple(unknown_folders(folder, state)), jobs_ahead(folder, state))


def unknown_folders(folder: Path, state: ServiceState) -> list[str]:
    """The folders of jobs that a log does not know, and has not forgotten."""
    names = sorted(path.name for path in (folder / JOBS).glob("j*") if path.is_dir())
    return [name for name in names if name not in state.jobs]


def recover(folder: Path, end_processes: Callable[[Path], None]) -> Path:
    """Continue with what can be saved of a home; where everything else was moved to.

    A job that runs without the log knowing it is taken over by the next service, if it can be. ``end_processes`` is
    called with the folders of the other such jobs, which continue from their newest checkpoints, and of every job that
    the log does not know.

    Raises:
        StoreProblem: a service runs on it, or something cannot be written; nothing is lost then.
    """
    make_home(folder)
    check_private(folder)
    lock = take_lock(folder)
    try:
        found = inspect(folder)
        with tempfile.TemporaryDirectory(prefix=".recovering-", dir=folder) as made:
            state = _rebuilt(folder, Path(made), found)
            settle_ahead(folder, Path(made), state, end_processes)
            aside = new_aside(folder)
            replace_log(folder, Path(made), aside)
        for name in unknown_folders(folder, state):
            end_processes(folder / JOBS / name)
            move_aside(folder / JOBS / name, aside / JOBS)
    except OSError as problem:
        raise StoreProblem(f"{folder} could not be recovered: {problem}; nothing was deleted") from problem
    finally:
        os.close(lock)
    return aside


def replace_log(folder: Path, made: Path, aside: Path) -> None:
    """Put another log in the place of a home's; the old files are in ``aside`` before anything is taken away.

    Raises:
        OSError: a file cannot be moved.
    """
    for name in (SEQUENCE, *DATABASE_FILES):
        if (folder / name).exists():
            os.link(folder / name, aside / name)
    sync_folder(aside)
    os.replace(made / SEQUENCE, folder / SEQUENCE)  # first: a database that does not belong to it is refused
    for name in DATABASE_FILES:
        if name != DATABASE:
            (folder / name).unlink(missing_ok=True)
    os.replace(made / DATABASE, folder / DATABASE)
    sync_folder(folder)


def _rebuilt(folder: Path, to: Path, found: Findings) -> ServiceState:
    """Write a new log of the part that can be used; the state that it leads to."""
    with contextlib.closing(sqlite3.connect(to / DATABASE, isolation_level=None)) as made:
        os.chmod(to / DATABASE, 0o600)
        made.executescript(TABLES)
        made.execute("BEGIN")
        made.execute("INSERT INTO meta VALUES ('epoch', ?), ('schema', ?)", (_epoch(folder, found), SCHEMA_VERSION))
        base, chain = found.base, found.base.link.chain
        if base.body:
            made.execute("INSERT INTO anchor VALUES (?, ?)", (base.link.seq, chain))
            sealed = (base.link.seq, base.body, chain, seal(chain, base.body))
            made.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", sealed)
        if found.last.seq > base.link.seq:
            with reading(folder / DATABASE) as damaged:
                for row, _ in rows(damaged, old=found.is_old, after=base.link.seq):
                    chain = row.after(chain)
                    values = (row.seq, row.at_s, row.kind, row.job_id, row.body, chain)
                    made.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", values)
                    if row.seq >= found.last.seq:
                        break
        made.execute("COMMIT")
    link = Link(found.last.seq, chain)
    write_sequence(to / SEQUENCE, Mark(link=link, at_s=found.last_at_s, submitted=found.submitted))
    lost = found.lost()
    sentence = f"{lost} {'were' if ' and ' in lost or 's ' in lost else 'was'} lost" if lost else ""
    return set_floor(to, found.highest_job, sentence)


def settle_ahead(
    home: Path, log: Path, state: ServiceState, end_processes: Callable[[Path], None]
) -> tuple[JobAhead, ...]:
    """Have a log (in ``log``) know the jobs that ran without it; processes that cannot be taken over are ended."""
    in_log = jobs_ahead(log, state)  # a backup may hold checkpoints that are newer than its log
    ahead = jobs_ahead(home, state)
    ahead += tuple(job for job in in_log if job.job_id not in {one.job_id for one in ahead})
    for job in ahead:
        if job.runs and job.placement is None:
            end_processes(home / JOBS / job.job_id)
    if ahead:
        continued = [job.job_id for job in ahead if job.placement is None]
        set_floor(log, state.submitted, "", continued, takeover_records(state, ahead))
    return ahead


def set_floor(
    folder: Path, highest_job: int, lost: str, continued: Sequence[str] = (), others: Sequence[Record] = ()
) -> ServiceState:
    """Have a log say that it goes on after something was lost; no job gets a number up to this one any more.

    ``continued`` are jobs that have run although the log does not know it; ``others`` are records that follow.
    """
    with Store(folder) as store:
        state = store.load()
        record = LogRecovered(submitted=max(highest_job, state.submitted), lost=lost, continued=list(continued))
        for entry in store.append(max(time.time(), state.at_s), [record, *others], state.seq):
            state.apply(entry.seq, entry.at_s, entry.record)
        return state


def _epoch(folder: Path, found: Findings) -> int:
    """The epoch of the last service: as the database says, or else its records."""
    with contextlib.suppress(sqlite3.Error, TypeError, ValueError), reading(folder / DATABASE) as damaged:
        said = int(damaged.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])
        if found.epoch <= said <= found.epoch + MAX_EPOCHS_AHEAD:
            return said
    return found.epoch
