"""The store: an append-only log of records in one SQLite file, with snapshots so that an old log starts quickly too.

Records of one batch are written in one transaction: after a crash, all of them are there or none. They are linked by a
hash chain (``chain.py``), and how far the log has come is written to a file of its own (``sequence.py``): a log that
misses something, or was changed, is refused (``inspection.py``), and nothing is changed before an operator has decided.

Only one service may have a store: it holds a lock on a file beside it for as long as it lives (the system releases
it with the process), and an *epoch* that grows with every service; a write under an older epoch is refused, even if the
lock was circumvented.
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

from geminid.serve.ahead import ahead_sentence, jobs_ahead
from geminid.serve.chain import Link, Row, seal
from geminid.serve.inspection import DATABASE as DATABASE
from geminid.serve.inspection import (
    UNTOUCHED,
    Findings,
    first_link,
    inspect,
    reading,
    refusal,
    rows,
    sealed_snapshots,
)
from geminid.serve.quarantine import unreadable
from geminid.serve.records import (
    KINDS,
    SCHEMA_VERSION,
    JobSubmitted,
    LogRecovered,
    Record,
    UnreadableRecord,
    decode,
    encode,
    job_of,
    kind_of,
    to_plain,
)
from geminid.serve.sequence import SEQUENCE, Mark, SequenceFile
from geminid.serve.state import ServiceState

LOCK = "service.lock"

#: Records after which a snapshot is written.
SNAPSHOT_EVERY = 5000

#: Records that are kept although a snapshot holds what they led to.
EVENTS_KEPT = 100_000

#: Snapshots that are kept.
SNAPSHOTS_KEPT = 3

TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, job_id TEXT, body TEXT NOT NULL, chain BLOB
);
CREATE INDEX IF NOT EXISTS events_by_job ON events (job_id, seq);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, chain BLOB, seal BLOB);
CREATE TABLE IF NOT EXISTS anchor (seq INTEGER PRIMARY KEY, chain BLOB NOT NULL);
"""


class StoreProblem(Exception):
    """The store cannot be used as asked; one sentence says why. Nothing was written."""


class StoreDamaged(StoreProblem):
    """Something of what was written is missing or changed: an operator has to decide."""


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
        with contextlib.ExitStack() as undo:
            lock = take_lock(folder)
            undo.callback(os.close, lock)
            found = inspect(folder)
            if found.damage:
                raise StoreDamaged(refusal(folder, found))
            if found.last.seq and not found.is_old and (ahead := jobs_ahead(folder, _state_of(folder))):
                raise StoreDamaged(f"{ahead_sentence(ahead)}. {UNTOUCHED}")
            self._last, self._last_at_s, self._submitted = found.last, found.last_at_s, found.submitted
            mark = Mark(link=found.last, at_s=found.last_at_s, submitted=found.submitted)
            try:
                self._sequence = SequenceFile(folder, mark)
            except OSError as problem:
                raise StoreProblem(_told(folder, problem)) from problem
            undo.callback(self._sequence.close)
            self._database = _open(folder / DATABASE, found)
            undo.callback(self._database.close)
            self.epoch = self._begin_epoch()
            self._release = undo.pop_all()
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
        self._release.close()

    @property
    def last(self) -> Link:
        """The last record, and the hash of everything up to it."""
        return self._last

    def append(self, at_s: float, records: Sequence[Record], after_seq: int) -> list[Entry]:
        """Write records after the one with this number, all or none, and safely on disk.

        Raises:
            StoreProblem: they could not be written (a full disk), or another service has written meanwhile.
        """
        if after_seq != self._last.seq:
            raise StoreProblem(f"records were to be written after record {after_seq}, and {self._last.seq} is the last")
        entries = [Entry(after_seq + 1 + i, at_s, record) for i, record in enumerate(records)]
        chain, submitted, values = self._last.chain, self._submitted, []
        for entry in entries:
            row = Row(entry.seq, float(at_s), kind_of(entry.record), job_of(entry.record), encode(entry.record))
            chain = row.after(chain)
            values.append((row.seq, row.at_s, row.kind, row.job_id, row.body, chain))
            if isinstance(entry.record, JobSubmitted):
                submitted += 1
            elif isinstance(entry.record, LogRecovered):
                submitted = max(submitted, entry.record.submitted)
        self.before_write("begin")
        self._catch_up()
        with self._transaction():
            (epoch,) = self._database.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
            if epoch != self.epoch:
                raise StoreTaken(f"another service (epoch {epoch}) has taken over the store from this one")
            self._database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", values)
            self.before_write("commit")
        self.before_write("committed")
        if entries:
            self._last, self._last_at_s, self._submitted = Link(entries[-1].seq, chain), float(at_s), submitted
        with contextlib.suppress(StoreProblem):  # what is committed is written: before the next batch it is tried again
            self._catch_up()
        self._since_snapshot += len(values)
        return entries

    def _catch_up(self) -> None:
        """Have the sequence file say how far the log has come."""
        if self._sequence.mark.link == self._last:
            return
        try:
            self._sequence.write(Mark(link=self._last, at_s=self._last_at_s, submitted=self._submitted))
        except OSError as problem:
            raise StoreProblem(_told(self.folder / SEQUENCE, problem)) from problem

    def snapshot_is_due(self, state: ServiceState) -> bool:
        """Whether enough was written since the last snapshot; of a large state they are made less often."""
        return self._since_snapshot >= max(SNAPSHOT_EVERY, 2 * len(state.jobs))

    def snapshot(self, state: ServiceState) -> None:
        """Write the whole state down, so that later starts need not replay what led to it.

        Old records that no kept snapshot needs are dropped from the log.
        """
        body = json.dumps(state.to_dict(), allow_nan=False, separators=(",", ":"))
        chain = self._last.chain
        if state.seq != self._last.seq:
            raise StoreProblem(f"a snapshot was to be made after record {state.seq}, and {self._last.seq} is the last")
        self.before_write("snapshot")
        with self._transaction():
            self._database.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", (state.seq, body, chain, seal(chain, body))
            )
            self._database.execute(
                "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
                (SNAPSHOTS_KEPT,),
            )
            count, oldest = self._database.execute("SELECT COUNT(*), MIN(seq) FROM snapshots").fetchone()
            if count == SNAPSHOTS_KEPT:
                self._drop_until(min(oldest, state.seq - self._events_kept))
            self.before_write("snapshot commit")
        self._since_snapshot = 0

    def _drop_until(self, seq: int) -> None:
        """Drop old records; the last of them stays as the anchor of those that are kept."""
        row = self._database.execute("SELECT seq, chain FROM events WHERE seq = ?", (seq,)).fetchone()
        if row is None:  # they are gone already
            return
        self._database.execute("DELETE FROM anchor")
        self._database.execute("INSERT INTO anchor VALUES (?, ?)", row)
        self._database.execute("DELETE FROM events WHERE seq <= ?", (seq,))

    def load(self) -> ServiceState:
        """The state: the newest snapshot that can be read, and all records after it.

        Raises:
            StoreProblem: a record cannot be read, or some are missing.
        """
        return _loaded(self._database, self.folder)

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


def _loaded(database: sqlite3.Connection, folder: Path) -> ServiceState:
    """The state that a log leads to; see :meth:`Store.load`."""
    state = ServiceState()
    for snapshot in sealed_snapshots(database):
        with contextlib.suppress(Exception):  # an older one, or the whole log, will do
            state = ServiceState.from_dict(json.loads(snapshot.body))
            break
    for entry in read_entries(database, after=state.seq):
        if entry.seq != state.seq + 1:
            raise StoreProblem(f"record {state.seq + 1} is missing from {folder / DATABASE}")
        state.apply(entry.seq, entry.at_s, entry.record)
    return state


def _state_of(folder: Path) -> ServiceState:
    """The state of a home whose log is intact, read without changing anything."""
    with reading(folder / DATABASE) as database:
        return _loaded(database, folder)


def read_entries(
    database: sqlite3.Connection,
    after: int = 0,
    limit: int = -1,
    job_id: str | None = None,
    without: Sequence[str] = (),
) -> Iterator[Entry]:
    """Records after a number, in order; those about one job only, if it is named, plans that change its slots included.

    Records of the kinds ``without`` are left out.

    Raises:
        StoreProblem: a record cannot be read.
    """
    about, named = _about(job_id, without)
    where, values = f"seq > ? {about}", (after, *named, limit)
    query = f"SELECT seq, at_s, kind, job_id, body FROM events WHERE {where} ORDER BY seq LIMIT ?"
    try:
        for seq, at_s, kind, job_of_it, body in database.execute(query, values):
            yield Entry(seq, at_s, _decoded(kind, job_of_it, body))
    except UnreadableRecord as problem:
        raise StoreProblem(f"record {seq} of the log cannot be read: {problem}") from None
    except sqlite3.Error as problem:
        raise StoreProblem(f"the log cannot be read: {problem}") from problem


def _decoded(kind: str, job_id: str | None, body: str) -> Record:
    """A record; one of a job that cannot be read, though its kind is known, puts the job into quarantine."""
    try:
        return decode(kind, body)
    except UnreadableRecord as problem:
        if job_id is None or kind not in KINDS:
            raise
        return unreadable(job_id, kind, problem)


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
        sentence = f"{folder} cannot be the folder of a service ({problem.strerror}): set GEMINID_HOME to another one"
        raise StoreProblem(sentence) from None


def last_entries(
    folder: Path, count: int, after: int | None = None, job_id: str | None = None, without: Sequence[str] = ()
) -> list[Entry]:
    """The newest records, or the first after a number: read beside the service that writes them."""
    with reading(folder / DATABASE) as database:
        if after is None:
            about, named = _about(job_id, without)
            query = f"SELECT seq FROM events WHERE seq > 0 {about} ORDER BY seq DESC LIMIT 1 OFFSET ?"
            row = database.execute(query, (*named, count)).fetchone()
            after = row[0] if row else 0
        return list(read_entries(database, after, count, job_id, without))


def _about(job_id: str | None, without: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
    """The condition, with its values, that a record is about a job, and of no kind that is left out."""
    hidden = f"AND kind NOT IN ({', '.join('?' * len(without))})" if without else ""
    if job_id is None:
        return hidden, tuple(without)
    planned = "kind = 'Planned' AND EXISTS (SELECT 1 FROM json_each(body, '$.targets') WHERE key = ?)"
    return f"AND (job_id = ? OR ({planned})) {hidden}", (job_id, job_id, *without)


def take_lock(folder: Path) -> int:
    """Lock the folder for this process; the error names the process that has it."""
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


def _open(path: Path, found: Findings) -> sqlite3.Connection:
    """Open the database that was inspected, making it if need be, and bring it to this version."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if found.index_is_damaged:
            database.execute("REINDEX")
        if found.is_old:
            _add_chain(database)
        first = f"INSERT OR IGNORE INTO meta VALUES ('epoch', 0), ('schema', {SCHEMA_VERSION});"
        database.executescript(f"BEGIN IMMEDIATE;{TABLES}{first}COMMIT;")
    except sqlite3.Error as problem:
        database.close()
        raise StoreProblem(_told(path, problem)) from problem
    return database


def _add_chain(database: sqlite3.Connection) -> None:
    """Link the records of a version that had no chain, and seal its snapshots; all of it or nothing."""
    database.execute("BEGIN IMMEDIATE")
    database.execute("ALTER TABLE events ADD COLUMN chain BLOB")
    database.execute("ALTER TABLE snapshots ADD COLUMN chain BLOB")
    database.execute("ALTER TABLE snapshots ADD COLUMN seal BLOB")
    database.execute("CREATE TABLE anchor (seq INTEGER PRIMARY KEY, chain BLOB NOT NULL)")
    anchor = first_link(database, old=True)
    database.execute("INSERT INTO anchor VALUES (?, ?)", (anchor.seq, anchor.chain))
    links = {anchor.seq: anchor.chain}
    chain, linked = anchor.chain, []
    for row, _ in rows(database, old=True):
        chain = row.after(chain)
        links[row.seq] = chain
        linked.append((chain, row.seq))
    database.executemany("UPDATE events SET chain = ? WHERE seq = ?", linked)
    for seq, body in database.execute("SELECT seq, body FROM snapshots").fetchall():
        if seq in links:
            sealed = (links[seq], seal(links[seq], body), seq)
            database.execute("UPDATE snapshots SET chain = ?, seal = ? WHERE seq = ?", sealed)
    database.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA_VERSION,))
    database.execute("COMMIT")


def _told(path: Path, problem: Exception) -> str:
    text = str(problem)
    if "full" in text or "No space" in text:
        return f"the disk is full: {path} could not be written"
    if "not a database" in text or "malformed" in text:
        return f"{path} is damaged: {text}"
    return f"{path} could not be used: {text}"
