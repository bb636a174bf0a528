"""What is in the log of a home, and whether it is all that was written: read without changing anything.

The log is compared with itself (the hash chain), with the sequence file, and with the folders of jobs. Whatever does
not fit is a :class:`Damage`. A service does not start on such a home before an operator has decided (``geminid
recover``): it would end the processes of the jobs that it does not know of.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geminid.serve.aside import ASIDE
from geminid.serve.chain import BEGINNING, GENESIS, Link, Row, seal
from geminid.serve.records import SCHEMA_VERSION
from geminid.serve.sequence import SEQUENCE, DamagedSequence, Mark, read_sequence

DATABASE = "geminid.db"

#: Where the folders of jobs are, in the home.
JOBS = "jobs"

#: The schema of databases whose records have no hash chain.
OLD_SCHEMA = 1

#: A service takes the next epoch whenever it starts; one that is this far ahead of the log was not counted.
MAX_EPOCHS_AHEAD = 1_000_000

#: What every refusal ends with.
UNTOUCHED = "Nothing was changed, and jobs that run were left alone: `geminid recover` continues"

_ROWS = "SELECT seq, at_s, kind, job_id, body, {chain} FROM events NOT INDEXED ORDER BY seq"


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is missing or changed in a home; one sentence says what."""

    text: str


@dataclass(frozen=True, slots=True)
class Base:
    """Where a state can be built from: a snapshot, or nothing at all (``body`` is empty)."""

    link: Link = BEGINNING
    body: str = ""


@dataclass(slots=True)
class Findings:
    """What was found in a home.

    ``base`` and ``last`` are the part of the log that reaches furthest and fits together: from a snapshot, or from the
    first record on. ``is_old`` says that the database is of a version without chain, ``epoch`` is that of the last
    service that the usable part of the log knows of.
    """

    is_old: bool = False
    epoch: int = 0
    mark: Mark | None = None
    base: Base = field(default_factory=Base)
    last: Link = field(default_factory=Link)
    last_at_s: float = 0.0
    submitted: int = 0
    highest_folder: int = 0
    index_is_damaged: bool = False
    damage: list[Damage] = field(default_factory=list)

    @property
    def highest_job(self) -> int:
        """The highest number of a job that anything in the home knows of."""
        return max(self.submitted, self.highest_folder, 0 if self.mark is None else self.mark.submitted)

    def lost(self) -> str:
        """What is known to be lost, in words; empty if nothing is."""
        parts = []
        missing = 0 if self.mark is None else self.mark.link.seq - self.last.seq
        if missing > 0:
            first, last = self.last.seq + 1, self.last.seq + missing
            parts.append(f"record {first}" if missing == 1 else f"records {first} to {last}")
        if self.highest_job > self.submitted:
            first, last = self.submitted + 1, self.highest_job
            parts.append(f"job j{first}" if first == last else f"jobs j{first} to j{last}")
        return " and ".join(parts)


def inspect(folder: Path) -> Findings:
    """Look at the log of a home; no process may write to it meanwhile."""
    found = Findings(highest_folder=highest_job_folder(folder))
    lost_sequence = ""
    try:
        found.mark = read_sequence(folder)
    except DamagedSequence as problem:
        lost_sequence = str(problem)
    database = folder / DATABASE
    if not database.exists() or not database.stat().st_size:
        known_of = found.highest_folder if found.mark is None else found.mark.link.seq
        if known_of or lost_sequence:
            found.damage.append(Damage(f"{database} is missing"))
    else:
        try:
            _read(database, found)
        except Exception as problem:  # what a damaged file holds may be anything
            found.damage.append(Damage(f"{database} is damaged: {problem}"))
    if lost_sequence:
        found.damage.append(Damage(lost_sequence))
    elif found.mark is None and not found.is_old and found.last.seq:
        found.damage.append(Damage(f"{folder / SEQUENCE} is missing"))
    if not found.damage and found.highest_folder > found.submitted:
        sentence = (
            f"{folder / JOBS} has a folder of job j{found.highest_folder}, and the log knows of {found.submitted} jobs"
        )
        found.damage.append(Damage(sentence))
    return found


def refusal(folder: Path, found: Findings) -> str:
    """Why a service does not start on a home, what is lost as far as that is known, and how to continue."""
    problems = "; ".join(damage.text for damage in found.damage)
    lost = found.lost()
    until = f" (the log is intact up to record {found.last.seq}{_when(found.last_at_s)})" if found.last.seq else ""
    said = f"{lost} of {folder} {'is' if ' ' not in lost.split(' ', 1)[-1] else 'are'} lost{until}" if lost else ""
    known = said or f"it is not known that anything is lost{until}"
    return f"{problems}: {known}. {UNTOUCHED}"


def highest_job_folder(folder: Path) -> int:
    """The highest number of a job that has, or had, a folder in a home."""
    names = [path.name for pattern in (f"{JOBS}/*", f"{ASIDE}/*/{JOBS}/*") for path in folder.glob(pattern)]
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"j(\d{1,15})(?:-\d+)?", name))]
    return max(numbers, default=0)


def reading(database: Path) -> contextlib.closing[sqlite3.Connection]:
    """A connection that reads a database and leaves its files, also its write-ahead log, as they are."""
    return contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10.0))


def _read(path: Path, found: Findings) -> None:
    """Follow the chain through the whole log, and compare it with the sequence file."""
    with reading(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "meta" not in tables:
            if tables or (found.mark is not None and found.mark.link.seq):
                found.damage.append(Damage(f"{path} is damaged: its tables are missing"))
            return
        columns = {row[1] for row in database.execute("PRAGMA table_info(events)")}
        found.is_old = "chain" not in columns
        problem = _inconsistency(database)
        found.index_is_damaged = problem != "ok" and _can_be_indexed(database)
        if problem != "ok" and not found.index_is_damaged:
            found.damage.append(Damage(f"{path} is damaged: {' '.join(problem.split())}"))
        bases = _bases(database, old=found.is_old)
        try:
            _follow(database, path, found, bases)
        except Exception as problem:  # what a damaged file holds may be anything
            found.damage.append(Damage(f"{path} is damaged after record {found.last.seq}: {problem}"))
        with contextlib.suppress(sqlite3.Error):
            found.submitted, found.epoch = _counted(database, found)
        if not found.damage:
            found.damage += [Damage(f"{path} {problem}") for problem in _meta_problems(database, found)]


def _inconsistency(database: sqlite3.Connection) -> str:
    """What SQLite finds wrong with a database first, "ok" if nothing."""
    try:
        return str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except sqlite3.Error as problem:
        return str(problem)


def _can_be_indexed(database: sqlite3.Connection) -> bool:
    """Whether damaged indices can be made again from what is in the tables; tried on a copy in memory."""
    with contextlib.closing(sqlite3.connect(":memory:")) as copy:
        try:
            database.backup(copy)
            copy.execute("REINDEX")
            return _inconsistency(copy) == "ok"
        except sqlite3.Error:
            return False


def _meta_problems(database: sqlite3.Connection, found: Findings) -> list[str]:
    """What is wrong with the numbers that are kept beside the records: no hash covers them."""
    values = dict(database.execute("SELECT key, value FROM meta NOT INDEXED"))
    if not values and not found.last.seq:
        return []  # a version before this one was stopped while it made the database
    schema, epoch = values.get("schema"), values.get("epoch")
    if values.keys() != {"schema", "epoch"} or not isinstance(schema, int) or not isinstance(epoch, int):
        return ["is damaged: its schema or epoch cannot be read"]
    if schema != (OLD_SCHEMA if found.is_old else SCHEMA_VERSION):
        return [
            f"says that it has schema {schema}, which this version does not know: start the version of Geminid that"
            " wrote it, or, if there is none, recover it"
        ]
    if not found.epoch <= epoch <= found.epoch + MAX_EPOCHS_AHEAD:
        return [f"is damaged: its epoch is {epoch}, and its records are of epoch {found.epoch}"]
    return []


def _bases(database: sqlite3.Connection, *, old: bool) -> dict[int, Base]:
    """The snapshots whose seals are right, by the record that each was made after; and the beginning."""
    bases = {0: Base()}
    if old:  # they have no seals, and whatever can be read is believed, as before
        for seq, body in database.execute("SELECT seq, body FROM snapshots"):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if json.loads(body)["seq"] == seq:
                    bases[seq] = Base(Link(seq), body)
        return bases
    return bases | {base.link.seq: base for base in sealed_snapshots(database)}


def sealed_snapshots(database: sqlite3.Connection) -> Iterator[Base]:
    """The snapshots whose seals are right, the newest first; one that cannot be read does not hide the others."""
    seqs: list[Any] = []
    with contextlib.suppress(sqlite3.Error):
        seqs += [seq for (seq,) in database.execute("SELECT seq FROM snapshots ORDER BY seq DESC")]
    for seq in seqs:
        with contextlib.suppress(sqlite3.Error, TypeError, AttributeError):
            query = "SELECT body, chain, seal FROM snapshots WHERE seq = ?"
            body, chain, sealed = database.execute(query, (seq,)).fetchone()
            if seal(chain, body) == sealed:
                yield Base(Link(seq, chain), body)


def _follow(database: sqlite3.Connection, path: Path, found: Findings, bases: dict[int, Base]) -> None:
    """Find the part of the log that reaches furthest, and what is wrong."""
    try:
        anchor = first_link(database, old=found.is_old)
    except (sqlite3.Error, ValueError) as problem:  # a snapshot among the records is where it goes on
        found.damage.append(Damage(f"the anchor of the log in {path} is damaged: {problem}"))
        anchor = Link(-1)
    last, broken, usable = anchor, anchor.seq < 0, anchor.seq in bases
    found.base, found.last = bases.get(anchor.seq, Base()), anchor if usable else Link()
    mark = None if found.mark is None else found.mark.link
    agrees = mark is None or mark == anchor
    for row, chain in rows(database, old=found.is_old):
        if row.seq != last.seq + 1:
            if not broken:
                found.damage.append(Damage(f"record {last.seq + 1} is missing from {path}"))
            broken, usable = True, False
        expected = row.after(last.chain)
        intact = not broken and (found.is_old or chain == expected)
        if not broken and not intact:
            found.damage.append(Damage(f"record {row.seq} in {path} is damaged"))
            broken, usable = True, False
        base = bases.get(row.seq)
        if intact:
            last = Link(row.seq, expected)
            if base is not None and (found.is_old or base.link == last):
                found.base, usable = base, True
        elif base is not None:  # from here on it fits together again
            last, broken, usable = base.link, False, True
            found.base = base
        else:
            last = Link(row.seq, chain or b"")
        if usable:
            found.last, found.last_at_s = last, row.at_s if intact else found.last_at_s
        agrees = agrees or last == mark
    if found.last.seq == 0 and last.seq:
        found.damage.append(Damage(f"no snapshot in {path} can be used, and the first records are gone"))
    if mark is not None and not found.damage and mark.seq > last.seq:
        found.damage.append(Damage(f"the log in {path} ends with record {last.seq}, and was at {mark.seq}"))
    elif mark is not None and not found.damage and not agrees:
        found.damage.append(Damage(f"the log in {path} is not the one that {SEQUENCE} belongs to"))


def rows(database: sqlite3.Connection, *, old: bool, after: int = 0) -> Iterator[tuple[Row, bytes | None]]:
    """The records in order, as they are stored, each with its hash (None where the version had none)."""
    query = _ROWS.format(chain="NULL" if old else "chain").replace("ORDER", f"WHERE seq > {after} ORDER")
    for seq, at_s, kind, job_id, body, chain in database.execute(query):
        yield Row(seq, float(at_s), kind, job_id, body), chain


def first_link(database: sqlite3.Connection, *, old: bool) -> Link:
    """The last record that was dropped from the log because snapshots hold what it led to."""
    if old:
        (first,) = database.execute("SELECT MIN(seq) FROM events").fetchone()
        if first is None:
            (first,) = database.execute("SELECT MAX(seq) + 1 FROM snapshots").fetchone()
        return Link((first or 1) - 1, GENESIS)
    row = database.execute("SELECT seq, chain FROM anchor NOT INDEXED").fetchone()
    if row is None:
        return BEGINNING
    seq, chain = row
    if not isinstance(seq, int) or not isinstance(chain, bytes) or len(chain) != len(GENESIS):
        raise ValueError("it cannot be read")
    return Link(seq, chain)


def _counted(database: sqlite3.Connection, found: Findings) -> tuple[int, int]:
    """How many jobs, and which epoch, the usable part of the log knows of."""
    base = json.loads(found.base.body) if found.base.body else {}
    submitted, epoch = int(base.get("submitted", 0)), int(base.get("epoch", 0))
    query = "SELECT kind, body FROM events NOT INDEXED WHERE seq > ? AND seq <= ? AND kind IN (?, ?, ?) ORDER BY seq"
    kinds = ("JobSubmitted", "LogRecovered", "ServiceStarted")
    for kind, body in database.execute(query, (found.base.link.seq, found.last.seq, *kinds)):
        if kind == "JobSubmitted":
            submitted += 1
        elif kind == "LogRecovered":
            submitted = max(submitted, int(json.loads(body)["submitted"]))
        else:
            epoch = max(epoch, int(json.loads(body)["epoch"]))
    return submitted, epoch


def _when(at_s: float) -> str:
    return time.strftime(" of %Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s)) if at_s else ""
