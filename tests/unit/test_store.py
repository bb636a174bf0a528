"""The store refuses what it must refuse, in one sentence, and keeps what it has."""

from __future__ import annotations

import os
import sqlite3
import stat
import time

import pytest

from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.store import DATABASE, Store, StoreProblem, StoreTaken, last_entries

NOTE = r.Noted(level="warning", text="hm")


def test_a_second_service_is_refused_and_the_first_is_named(tmp_path):
    with Store(tmp_path), pytest.raises(StoreTaken, match=r"a service runs on .* already \(process \d+\)"):
        Store(tmp_path)
    with Store(tmp_path) as third:
        assert third.epoch == 2


def test_only_its_owner_may_read_the_database(tmp_path):
    with Store(tmp_path):
        assert stat.S_IMODE((tmp_path / DATABASE).stat().st_mode) == 0o600


def test_a_service_that_lost_its_epoch_writes_nothing(tmp_path):
    with Store(tmp_path) as store:
        with sqlite3.connect(tmp_path / DATABASE) as other:
            other.execute("UPDATE meta SET value = 9 WHERE key = 'epoch'")
        other.close()
        with pytest.raises(StoreTaken, match="epoch 9"):
            store.append(1.0, [NOTE], 0)
        assert list(store.entries()) == []


def test_a_full_disk_is_told_and_nothing_is_half_written(tmp_path):
    with Store(tmp_path) as store:
        store.append(1.0, [NOTE], 0)
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        big = r.Noted(level="info", text="x" * 100_000)
        with pytest.raises(StoreProblem, match="the disk is full"):
            store.append(2.0, [NOTE, big], 1)
        store._database.execute("PRAGMA max_page_count = 1000000")
        assert store.load().seq == 1
        store.append(2.0, [NOTE, big], 1)
        assert store.load().seq == 3


def test_a_damaged_file_and_a_damaged_record_are_told(tmp_path):
    with Store(tmp_path) as store:
        store.append(1.0, [NOTE, NOTE], 0)
        store._database.execute('UPDATE events SET body = \'{"level": 1, "what": 2}\' WHERE seq = 2')
        with pytest.raises(StoreProblem, match="record 2 of the log cannot be read: Noted"):
            store.load()
        store._database.execute("DELETE FROM events WHERE seq = 1")
        with pytest.raises(StoreProblem, match=r"record 1 is missing|record 2 of the log"):
            store.load()
    (tmp_path / DATABASE).write_bytes(b"nonsense" * 1000)
    for extra in ("-wal", "-shm"):
        (tmp_path / (DATABASE + extra)).unlink(missing_ok=True)
    with pytest.raises(StoreProblem, match="is damaged"):
        Store(tmp_path)


def test_a_damaged_snapshot_is_passed_over(tmp_path):
    with Store(tmp_path) as store:
        state = store.load()
        for entry in store.append(1.0, [NOTE], 0):
            state.apply(entry.seq, entry.at_s, entry.record)
        store.snapshot(state)
        store._database.execute("UPDATE snapshots SET body = 'x'")
        assert store.load().to_dict() == state.to_dict()


def test_secrets_do_not_leave_the_log(tmp_path):
    spec = JobSpec(name="a", command=("true",), env=(("TOKEN", "hunter2"),))
    with Store(tmp_path) as store:
        store.append(1.0, [r.JobSubmitted(job_id="j1", spec=spec, elastic=False)], 0)
        assert store.load().jobs["j1"].spec.env == (("TOKEN", "hunter2"),)
        (entry,) = last_entries(tmp_path, 10)
        assert "hunter2" not in str(entry.to_plain())


def test_a_home_that_cannot_be_made_is_told_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreProblem, match=r"file/home cannot be the folder of a service \(Not a directory\)"):
        Store(tmp_path / "file" / "home")


def test_the_sequence_file_is_synced_before_the_next_batch_is_written(tmp_path, monkeypatch):
    """Its mark on disk is never more than one batch behind the log, also if the machine stops."""
    synced: list[int] = []
    written: list[int] = []
    sync = os.fdatasync
    # Slow, so that syncs that nobody waits for would fall behind.
    monkeypatch.setattr(os, "fdatasync", lambda file: (time.sleep(0.01), sync(file), synced.append(file)))
    note = r.Noted(level="info", text="x")
    with Store(
        tmp_path, before_write=lambda point: written.append(len(synced)) if point == "commit" else None
    ) as store:
        before = len(synced)
        for seq in range(5):
            store.append(1.0, [note], seq)
        # The sync of a batch goes on while the next is committed, and is over before the one after that.
        late = [batch for batch, count in enumerate(written) if count < before + batch - 1]
        assert not late, f"batches {late} were committed before the last but one was synced: {written}"
    assert len(synced) >= before + 5
