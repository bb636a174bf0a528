"""Curves and stints on disk: an SQLite file of their own, ``history.db``, beside the log.

Nothing that the service decides depends on it. It is written once in a while and read by the interface; if it is lost
or damaged, a new one begins and the old one is moved aside. A job needs about 10 kB for its curve at most, and 60 bytes
for each of its stints on a slot.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from geminid.serve.aside import move_aside, new_aside
from geminid.serve.observe.curves import Curve
from geminid.serve.observe.stints import Held, Slot, Stint

#: The file in the home folder.
HISTORY = "history.db"

#: Stints that are kept at most, the newest ones.
MAX_STINTS = 500_000

#: Rows that one question about stints is answered with at most.
MAX_ROWS = 50_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS curves (job_id TEXT PRIMARY KEY, curve BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stints (
    id INTEGER PRIMARY KEY, job_id TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL, slot INTEGER NOT NULL,
    from_s REAL NOT NULL, to_s REAL, job_slots INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS stints_by_end ON stints (to_s);
CREATE INDEX IF NOT EXISTS stints_by_job ON stints (job_id);
"""


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
            for table in ("curves", "stints"):
                database.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(job_id,) for job_id in job_ids])

    def known_jobs(self) -> set[str]:
        """The jobs of which something is kept."""
        return {str(row[0]) for row in self._rows("SELECT job_id FROM curves UNION SELECT DISTINCT job_id FROM stints")}

    # --- Stints ---

    def end_stints(self, ended: Mapping[Slot, Held], at_s: float) -> None:
        """The jobs on these slots have left them."""
        with self._writing() as database:
            database.executemany(
                "UPDATE stints SET to_s = ? WHERE to_s IS NULL AND node = ? AND slot = ?",
                [(at_s, node, slot) for node, slot in ended],
            )

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
            "SELECT job_id, node, slot, from_s, to_s, job_slots FROM stints WHERE from_s <= ? AND (to_s IS NULL OR"
            f" (to_s >= ? AND to_s - from_s >= ?)) {of_job} ORDER BY id DESC LIMIT ?",
            *(to_s, from_s, shortest_s, *values, MAX_ROWS),
        )
        return [Stint(*row) for row in reversed(rows)]  # type: ignore[arg-type]

    def slot_seconds(self, from_s: float, to_s: float, period_s: float) -> list[tuple[int, str, float]]:
        """Slots × seconds by period (counted from ``from_s``) and owner."""
        rows = self._rows(
            "SELECT owner, from_s, COALESCE(to_s, ?) FROM stints WHERE from_s < ? AND (to_s IS NULL OR to_s > ?)",
            *(to_s, to_s, from_s),
        )
        used: dict[tuple[int, str], float] = {}
        for owner, begin, end in rows:
            low, high = max(float(str(begin)), from_s), min(float(str(end)), to_s)
            while low < high:
                period = int((low - from_s) // period_s)
                until = min(from_s + (period + 1) * period_s, high)
                used[period, str(owner)] = used.get((period, str(owner)), 0.0) + until - low
                low = until
        return [(period, owner, seconds) for (period, owner), seconds in sorted(used.items())]


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, check_same_thread=False, timeout=10.0)
    path.chmod(0o600)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
    if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        database.close()
        raise sqlite3.DatabaseError("damaged")
    return database
