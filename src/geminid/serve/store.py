"""The store: an append-only log of records in one SQLite file, with snapshots so that an old log starts quickly too.

Records of one batch are written in one transaction: after a crash, all of them are there or none. Only one service may
have a store: it holds a lock on a file beside it for as long as it lives (the system gives it up with the process), and
an *epoch* that grows with every service; a write under an older epoch is refused, even if the lock was circumvented.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from geminid.serve.records import (
    SCHEMA_VERSION,
    Record,
    UnreadableRecord,
    decode,
    encode,
    job_of,
    kind_of,
    to_plain,
)
from geminid.serve.state import ServiceState

DATABASE, LOCK = "geminid.db", "service.lock"

#: A snapshot is written after so many records.
SNAPSHOT_EVERY = 5000

#: So many records are kept although a snapshot holds what they led to.
EVENTS_KEPT = 100_000

#: So many snapshots are kept.
SNAPSHOTS_KEPT = 3

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, job_id TEXT, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_job ON events (job_id, seq);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, body TEXT NOT NULL);
"""


class StoreProblem(Exception):
    """The store cannot be used as asked; one sentence says why. Nothing was written."""


class StoreTaken(StoreProblem):
    """Another service has the store."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its place in the log."""

    seq: int
    at_s: float
    record: Record

    def to_plain(self) -> dict[str, Any]:
        """The entry for people and programs, without the jobs' secrets."""
        fields = to_plain(self.record)
        fields.pop("digest", None)  # by which a short secret could be guessed
        if "spec" in fields and "env" in fields["spec"]:
            fields["spec"] = {**fields["spec"], "env": dict.fromkeys(fields["spec"]["env"], "***")}
        return {"seq": self.seq, "at_s": self.at_s, "kind": kind_of(self.record), **fields}


class Store:
    """One service's store, for as long as the ``with`` block lasts.

    ``before_write`` is called with the name of every point at which a process may die in the middle of a write; tests
    put something there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        before_write: Callable[[str], None] = lambda point: None,
        events_kept: int = EVENTS_KEPT,
    ) -> None:
        make_home(folder)
        self.folder = folder
        self.before_write, self._events_kept = before_write, events_kept
        self._lock = _take_lock(folder)
        try:
            self._database = _open(folder / DATABASE)
            self.epoch = self._begin_epoch()
        except BaseException:
            os.close(self._lock)
            raise
        self._since_snapshot = 0

    def __enter__(self) -> Self:
        """Nothing more is needed: making it took the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the store up."""
        self.close()

    def close(self) -> None:
        """Give the store up."""
        self._database.close()
        os.close(self._lock)

    def append(self, at_s: float, records: Sequence[Record], after_seq: int) -> list[Entry]:
        """Write records after the one with this number, all or none, and safely on disk.

        Raises:
            StoreProblem: they could not be written (a full disk), or another service has written meanwhile.
        """
        entries = [Entry(after_seq + 1 + i, at_s, record) for i, record in enumerate(records)]
        rows = [(e.seq, e.at_s, kind_of(e.record), job_of(e.record), encode(e.record)) for e in entries]
        self.before_write("begin")
        with self._transaction():
            (epoch,) = self._database.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
            if epoch != self.epoch:
                raise StoreTaken(f"another service (epoch {epoch}) has taken over the store from this one")
            self._database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
            self.before_write("commit")
        self.before_write("committed")
        self._since_snapshot += len(rows)
        return entries

    def snapshot_is_due(self, state: ServiceState) -> bool:
        """Whether enough was written since the last snapshot; of a large state they are made less often."""
        return self._since_snapshot >= max(SNAPSHOT_EVERY, 2 * len(state.jobs))

    def snapshot(self, state: ServiceState) -> None:
        """Write the whole state down, so that later starts need not replay what led to it.

        Old records that no kept snapshot needs are dropped from the log.
        """
        body = json.dumps(state.to_dict(), allow_nan=False, separators=(",", ":"))
        self.before_write("snapshot")
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (state.seq, body))
            self._database.execute(
                "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
                (SNAPSHOTS_KEPT,),
            )
            count, oldest = self._database.execute("SELECT COUNT(*), MIN(seq) FROM snapshots").fetchone()
            if count == SNAPSHOTS_KEPT:
                self._database.execute(
                    "DELETE FROM events WHERE seq <= ?", (min(oldest, state.seq - self._events_kept),)
                )
            self.before_write("snapshot commit")
        self._since_snapshot = 0

    def load(self) -> ServiceState:
        """The state: the newest snapshot that can be read, and all records after it.

        Raises:
            StoreProblem: a record cannot be read, or some are missing.
        """
        state = ServiceState()
        for (body,) in self._database.execute("SELECT body FROM snapshots ORDER BY seq DESC").fetchall():
            with contextlib.suppress(Exception):  # an older one, or the whole log, will do
                state = ServiceState.from_dict(json.loads(body))
                break
        for entry in self.entries(after=state.seq):
            if entry.seq != state.seq + 1:
                raise StoreProblem(f"record {state.seq + 1} is missing from {self.folder / DATABASE}")
            state.apply(entry.seq, entry.at_s, entry.record)
        return state

    def entries(self, after: int = 0, limit: int = -1, job_id: str | None = None) -> Iterator[Entry]:
        """Records in order; see :func:`read_entries`."""
        return read_entries(self._database, after, limit, job_id)

    def _begin_epoch(self) -> int:
        with self._transaction():
            (before,) = self._database.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
            self._database.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (before + 1,))
        return int(before) + 1

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException as problem:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            if isinstance(problem, sqlite3.Error | OSError):
                raise StoreProblem(_told(self.folder / DATABASE, problem)) from problem
            raise


def read_entries(
    database: sqlite3.Connection, after: int = 0, limit: int = -1, job_id: str | None = None
) -> Iterator[Entry]:
    """Records after a number, in order; those about one job only, if it is named, plans that change its slots included.

    Raises:
        StoreProblem: a record cannot be read.
    """
    about, named = _about(job_id)
    where, values = f"seq > ? {about}", (after, *named, limit)
    query = f"SELECT seq, at_s, kind, body FROM events WHERE {where} ORDER BY seq LIMIT ?"
    try:
        for seq, at_s, kind, body in database.execute(query, values):
            yield Entry(seq, at_s, decode(kind, body))
    except UnreadableRecord as problem:
        raise StoreProblem(f"record {seq} of the log cannot be read: {problem}") from None
    except sqlite3.Error as problem:
        raise StoreProblem(f"the log cannot be read: {problem}") from problem


def make_home(folder: Path) -> None:
    """Make the folder of a service, if it is not there.

    Raises:
        StoreProblem: that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        told = f"{folder} cannot be the folder of a service ({problem.strerror}): set GEMINID_HOME to another one"
        raise StoreProblem(told) from None


def last_entries(folder: Path, count: int, after: int | None = None, job_id: str | None = None) -> list[Entry]:
    """The newest records, or the first after a number: read beside the service that writes them."""
    with contextlib.closing(sqlite3.connect(f"file:{folder / DATABASE}?mode=ro", uri=True)) as database:
        if after is None:
            about, named = _about(job_id)
            query = f"SELECT seq FROM events WHERE seq > 0 {about} ORDER BY seq DESC LIMIT 1 OFFSET ?"
            row = database.execute(query, (*named, count)).fetchone()
            after = row[0] if row else 0
        return list(read_entries(database, after, count, job_id))


def _about(job_id: str | None) -> tuple[str, tuple[str, ...]]:
    """The condition, with its values, that a record is about a job."""
    if job_id is None:
        return "", ()
    planned = "kind = 'Planned' AND EXISTS (SELECT 1 FROM json_each(body, '$.targets') WHERE key = ?)"
    return f"AND (job_id = ? OR ({planned}))", (job_id, job_id)


def _take_lock(folder: Path) -> int:
    """Lock the folder for this process; whoever has it is named."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(lock, 32).decode("ascii", "replace").strip()
        os.close(lock)
        who = f"process {owner}" if owner else "another process"
        raise StoreTaken(f"a service runs on {folder} already ({who}); `geminid down` ends it") from None
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _open(path: Path) -> sqlite3.Connection:
    """Open the database, making it if need be, and check that it is whole and of this version."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        problem = database.execute("PRAGMA quick_check").fetchone()[0]
        if problem != "ok":
            raise StoreProblem(f"{path} is damaged: {problem}")
        database.executescript(_TABLES)
        database.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', 0), ('schema', ?)", (SCHEMA_VERSION,))
        (schema,) = database.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if schema != SCHEMA_VERSION:
            raise StoreProblem(f"{path} was written by another version (schema {schema}, this is {SCHEMA_VERSION})")
    except sqlite3.Error as problem:
        database.close()
        raise StoreProblem(_told(path, problem)) from problem
    except StoreProblem:
        database.close()
        raise
    return database


def _told(path: Path, problem: Exception) -> str:
    text = str(problem)
    if "full" in text or "No space" in text:
        return f"the disk is full: {path} could not be written"
    if "not a database" in text or "malformed" in text:
        return f"{path} is damaged: {text}"
    return f"{path} could not be used: {text}"
