"""Homes written by the version before the hash chain open, with all that was in them."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.serve import records as r
from geminid.serve.inspection import inspect
from geminid.serve.sequence import SEQUENCE
from geminid.serve.store import DATABASE, Store, StoreDamaged, last_entries
from oldhome import PHASES, make_old_home


@pytest.fixture
def home(tmp_path):
    return make_old_home(tmp_path / "home")


def test_all_jobs_are_there_as_they_were_and_the_log_is_linked(home):
    assert (home / "geminid.db-wal").stat().st_size > 1000
    with Store(home) as store:
        state = store.load()
        assert {job.id: job.phase.value for job in state.jobs.values()} == PHASES
        assert state.jobs["j5"].saved_samples == state.jobs["j5"].samples == 640
        assert state.jobs["j6"].spec.env == (("SECRET", "made-up"),)
        assert state.submitted == 7
        spec = JobSpec(name="x", command=("true",))
        store.append(state.at_s, [r.JobSubmitted(job_id="j8", spec=spec, elastic=False)], state.seq)
    found = inspect(home)
    assert (found.is_old, found.damage, found.submitted) == (False, [], 8)
    with Store(home) as again:
        assert list(again.load().jobs) == [*PHASES, "j8"]


def test_an_upgrade_that_was_interrupted_is_completed(home):
    """The sequence file is written first: the database is still as it was, and nothing is amiss."""
    for name in ("geminid.db", "geminid.db-wal"):
        (home / f"{name}.kept").write_bytes((home / name).read_bytes())
    Store(home).close()
    for name in ("geminid.db", "geminid.db-wal"):
        (home / f"{name}.kept").rename(home / name)
    with Store(home) as store:
        assert len(store.load().jobs) == 7


def test_the_database_from_before_the_upgrade_put_back_later_is_refused(home):
    kept = {name: (home / name).read_bytes() for name in ("geminid.db", "geminid.db-wal")}
    with Store(home) as store:
        store.append(1.0, [r.Noted(level="info", text="later")], store.load().seq)
    for name, content in kept.items():
        (home / name).write_bytes(content)
    with pytest.raises(StoreDamaged, match="`geminid recover` continues"):
        Store(home)


def test_a_home_that_the_earlier_version_could_not_open_any_more_opens(home):
    """It wrote a record down before it found that it could not compute with it, and then at every start again."""
    absurd = [
        r.JobReady(
            job_id="j5",
            initial_batch=8,
            largest_batch=8,
            smallest_per_slot=1,
            largest_per_slot=8,
            parameter_count=40,
            work_samples=10**320,
        ),
        r.JobCheckpointed(job_id="j5", samples=10**320),
    ]
    with closing(sqlite3.connect(home / DATABASE)) as database, database:
        (seq, at_s) = database.execute("SELECT MAX(seq), MAX(at_s) FROM events").fetchone()
        for i, record in enumerate(absurd, 1):
            row = (seq + i, at_s, r.kind_of(record), r.job_of(record), r.encode(record))
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
        body = '{"job_id":"j6","placement":{"local":[-7]}}'
        database.execute("INSERT INTO events VALUES (?, ?, 'JobFormed', 'j6', ?)", (seq + 3, at_s, body))
    with Store(home) as store:
        jobs = store.load().jobs
        assert {job.id: job.phase.value for job in jobs.values()} == {**PHASES, "j5": "failed", "j6": "failed"}
        assert jobs["j5"].state.reason.startswith("quarantined: its JobReady record cannot be used: work_samples is")
        assert jobs["j6"].state.reason.startswith("quarantined: its JobFormed record cannot be read:")
        assert jobs["j7"].phase is JobPhase.PENDING
    assert len(last_entries(home, -1, 0)) == seq + 3  # nothing was taken from the log


def test_a_submission_that_cannot_be_read_any_more_is_shown_and_its_number_is_not_given_again(home):
    with closing(sqlite3.connect(home / DATABASE)) as database, database:
        (seq, at_s) = database.execute("SELECT MAX(seq), MAX(at_s) FROM events").fetchone()
        body = '{"job_id":"j8","spec":{"name":"x","command":["x"],"max_retries":1' + "0" * 400 + '},"elastic":false}'
        database.execute("INSERT INTO events VALUES (?, ?, 'JobSubmitted', 'j8', ?)", (seq + 1, at_s, body))
    with Store(home) as store:
        state = store.load()
        assert (state.jobs["j8"].phase, state.submitted) == (JobPhase.FAILED, 8)
        assert state.jobs["j8"].state.reason.startswith("quarantined: its JobSubmitted record cannot be read")
    assert inspect(home).submitted == 8


def test_without_its_sequence_file_an_upgraded_home_is_refused(home):
    Store(home).close()
    (home / SEQUENCE).unlink()
    with pytest.raises(StoreDamaged, match=rf"{SEQUENCE} is missing"):
        Store(home)
