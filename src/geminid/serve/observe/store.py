"""Curves, stints, faults and usage on disk: an SQLite file of their own, ``history.db``, beside the log.

Nothing that the service decides depends on it. It is written once in a while and read by the interface; if it is lost
or damaged, a new one begins and the old one is moved aside. A job has a curve of 5 to 40 kB, and 100 bytes for each of
its stints on a slot; they go when the job is forgotten. What owners used stays: 50 bytes for each hour and owner.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from geminid.serve.aside import move_aside, new_aside
from geminid.serve.observe.curves import Curve
from geminid.serve.observe.stints import Held, Slot, Stint
from geminid.serve.observe.usage import HOUR_S, Usage, by_hour

#: The file in the home folder.
HISTORY = "history.db"

#: Stints that are kept at most, the newest ones.
MAX_STINTS = 500_000

#: Rows that one question about stints is answered with at most.
MAX_ROWS = 50_000

#: Faults that one question is answered with at most, the newest ones.
MAX_FAULTS = 1000

#: Time for which it is kept what owners used.
USAGE_KEPT_S = 400 * 86_400.0

#: The version of the file's layout. 0: without usage and faults.
LAYOUT = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS curves (job_id TEXT PRIMARY KEY, curve BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stints (
    id INTEGER PRIMARY KEY, job_id TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL, slot INTEGER NOT NULL,
    from_s REAL NOT NULL, to_s REAL, job_slots INTEGER NOT NULL, batch INTEGER, goodput REAL
);
CREATE INDEX IF NOT EXISTS stints_by_end ON stints (to_s);
CREATE INDEX IF NOT EXISTS stints_by_job ON stints (job_id);
CREATE TABLE IF NOT EXISTS faults (
    job_id TEXT NOT NULL, at_s REAL NOT NULL, text TEXT NOT NULL, PRIMARY KEY (job_id, at_s, text)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS faults_by_time ON faults (at_s);
CREATE TABLE IF NOT EXISTS usage (
    hour INTEGER NOT NULL, owner TEXT NOT NULL, slot_s REAL NOT NULL, PRIMARY KEY (hour, owner)
) WITHOUT ROWID;
"""

#: What a job has measured in a stint: its batch and its goodput.
Measured = tuple[int | None, float | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong with a job."""

    at_s: float
    job_id: str
    text: str


class HistoryStore:
    """The file, for several threads."""

    def __init__(self, home: Path) -> None:
        self._lock = threading.Lock()
        path = home / HISTORY
        try:
            self._database = _opened(path)
        except sqlite3.DatabaseError:
            aside = new_aside(home)
            for damaged in home.glob(f"{HISTORY}*"):
                move_aside(damaged, aside)
            self._database = _opened(path)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database:
            yield self._database

    def _rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        with self._lock:
            return self._database.execute(query, values).fetchall()

    # --- Curves ---

    def save_curves(self, curves: Mapping[str, Curve]) -> None:
        """Keep curves as they are now."""
        with self._writing() as database:
            rows = [(job_id, curve.packed()) for job_id, curve in curves.items()]
            database.executemany("INSERT OR REPLACE INTO curves VALUES (?, ?)", rows)

    def curve(self, job_id: str) -> Curve:
        """The curve of a job, without points if none is kept."""
        rows = self._rows("SELECT curve FROM curves WHERE job_id = ?", job_id)
        return Curve.unpacked(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else Curve()

    def forget(self, job_ids: Collection[str]) -> None:
        """Drop what is kept of jobs that the service has forgotten."""
        with self._writing() as database:
            for table in ("curves", "stints", "faults"):
                database.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(job_id,) for job_id in job_ids])

    def known_jobs(self) -> set[str]:
        """The jobs of which something is kept."""
        tables = ("curves", "stints", "faults")
        query = " UNION ".join(f"SELECT DISTINCT job_id FROM {table}" for table in tables)
        return {str(row[0]) for row in self._rows(query)}

    # --- Stints ---

    def end_stints(self, ended: Mapping[Slot, Held], at_s: float, measured: Mapping[str, Measured]) -> None:
        """The jobs on these slots have left them. What they ``measured`` there is kept, and what they used."""
        with self._writing() as database:
            used: Usage = {}
            for (node, slot), held in ended.items():
                where = (node, slot)
                begun = "SELECT owner, from_s FROM stints WHERE to_s IS NULL AND node = ? AND slot = ?"
                for owner, from_s in database.execute(begun, where).fetchall():
                    by_hour(used, owner, from_s, at_s)
                batch, goodput = measured.get(held.job_id, (None, None))
                database.execute(
                    "UPDATE stints SET to_s = ?, batch = ?, goodput = ? WHERE to_s IS NULL AND node = ? AND slot = ?",
                    (at_s, batch, goodput, *where),
                )
            _add_usage(database, used)
            database.execute("DELETE FROM usage WHERE hour < ?", (int((at_s - USAGE_KEPT_S) // HOUR_S),))

    def begin_stints(self, begun: Iterable[tuple[Slot, Held, str]], at_s: float) -> None:
        """Jobs are on these slots from now on; the last of each entry is the job's owner."""
        rows = [(held.job_id, owner, *slot, at_s, held.job_slots) for slot, held, owner in begun]
        with self._writing() as database:
            database.executemany(
                "INSERT INTO stints (job_id, owner, node, slot, from_s, job_slots) VALUES (?, ?, ?, ?, ?, ?)", rows
            )
            database.execute(
                "DELETE FROM stints WHERE to_s IS NOT NULL AND id <= (SELECT MAX(id) FROM stints) - ?", (MAX_STINTS,)
            )

    def open_stints(self) -> dict[Slot, Held]:
        """What was on each slot when the file was last written."""
        rows = self._rows("SELECT node, slot, job_id, job_slots FROM stints WHERE to_s IS NULL")
        return {(str(node), int(str(slot))): Held(str(job), int(str(size))) for node, slot, job, size in rows}

    def stints(self, from_s: float, to_s: float, *, shortest_s: float = 0.0, job_id: str | None = None) -> list[Stint]:
        """The stints within a time, oldest first; those that ended and took less than ``shortest_s`` are left out."""
        of_job, values = ("AND job_id = ?", (job_id,)) if job_id is not None else ("", ())
        rows = self._rows(
            "SELECT job_id, node, slot, from_s, to_s, job_slots, batch, goodput FROM stints WHERE from_s <= ? AND"
            f" (to_s IS NULL OR (to_s >= ? AND to_s - from_s >= ?)) {of_job} ORDER BY id DESC LIMIT ?",
            *(to_s, from_s, shortest_s, *values, MAX_ROWS),
        )
        return [Stint(*row) for row in reversed(rows)]  # type: ignore[arg-type]

    # --- Faults and usage ---

    def add_faults(self, faults: Iterable[Fault]) -> None:
        """Keep faults; those that are kept already stay as they are."""
        rows = [(one.job_id, one.at_s, one.text) for one in faults]
        if rows:
            with self._writing() as database:
                database.executemany("INSERT OR IGNORE INTO faults VALUES (?, ?, ?)", rows)

    def faults(self, from_s: float, to_s: float, job_id: str | None = None) -> list[Fault]:
        """The faults within a time, oldest first."""
        of_job, values = ("AND job_id = ?", (job_id,)) if job_id is not None else ("", ())
        rows = self._rows(
            f"SELECT at_s, job_id, text FROM faults WHERE at_s BETWEEN ? AND ? {of_job} ORDER BY at_s DESC LIMIT ?",
            *(from_s, to_s, *values, MAX_FAULTS),
        )
        return [Fault(*row) for row in reversed(rows)]  # type: ignore[arg-type]

    def usage(self, from_s: float, to_s: float) -> Usage:
        """Slots × seconds by owner and hour, of jobs that are forgotten, too; up to ``to_s`` for those on slots."""
        hours = (int(from_s // HOUR_S), int(to_s // HOUR_S))
        with self._lock:
            query = "SELECT hour, owner, slot_s FROM usage WHERE hour BETWEEN ? AND ?"
            kept = self._database.execute(query, hours).fetchall()
            held = self._database.execute("SELECT owner, from_s FROM stints WHERE to_s IS NULL").fetchall()
        used: Usage = {(int(hour), str(owner)): float(seconds) for hour, owner, seconds in kept}
        for owner, begin_s in held:
            by_hour(used, str(owner), max(float(begin_s), hours[0] * HOUR_S), to_s)
        return used


def _add_usage(database: sqlite3.Connection, used: Usage) -> None:
    database.executemany(
        "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT (hour, owner) DO UPDATE SET slot_s = slot_s + excluded.slot_s",
        [(hour, owner, seconds) for (hour, owner), seconds in used.items()],
    )


def _migrate(database: sqlite3.Connection) -> None:
    """Bring a file of an earlier version, or a new one, to the present layout."""
    if database.execute("PRAGMA user_version").fetchone()[0] >= LAYOUT:
        return
    known = {row[1] for row in database.execute("PRAGMA table_info(stints)")}
    with database:
        for column, kind in (("batch", "INTEGER"), ("goodput", "REAL")):
            if column not in known:
                database.execute(f"ALTER TABLE stints ADD COLUMN {column} {kind}")
        used: Usage = {}
        for owner, from_s, to_s in database.execute("SELECT owner, from_s, to_s FROM stints WHERE to_s IS NOT NULL"):
            by_hour(used, owner, from_s, to_s)
        _add_usage(database, used)
        database.execute(f"PRAGMA user_version = {LAYOUT}")


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, check_same_thread=False, timeout=10.0)
    path.chmod(0o600)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
    if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        database.close()
        raise sqlite3.DatabaseError("damaged")
    _migrate(database)
    return database
