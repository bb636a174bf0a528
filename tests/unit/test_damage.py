"""Whatever happens to the files of a log: nothing is affected, or the store is refused and can be recovered.

Never is anything lost without a word, and no job ever gets the number of another.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from effort import examples
from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.process.identity import identity_of
from geminid.serve import records as r
from geminid.serve.backup import backup, restore
from geminid.serve.inspection import inspect
from geminid.serve.recovery import recover, salvage
from geminid.serve.sequence import SEQUENCE
from geminid.serve.state import ServiceState
from geminid.serve.store import DATABASE, Store, StoreDamaged, StoreProblem, last_entries

CASES = examples(500)
JOBS = 24


def written(home: Path, number: int, state: ServiceState, store: Store) -> None:
    """One job comes, runs and perhaps ends."""
    job_id, place = f"j{number}", Placement.of({"local": [number]})
    spec = JobSpec(name=f"name-{number}", command=("python", "train.py"), env=(("SECRET", "x" * 50),))
    batches: list[list[r.Record]] = [
        [r.JobSubmitted(job_id=job_id, spec=spec, elastic=True, request=f"r{number}")],
        [r.Planned(targets={job_id: place}), r.JobStarting(job_id=job_id, placement=place)],
        [r.JobFormed(job_id=job_id, placement=place)],
    ]
    if number % 3:
        batches.append([r.JobEnded(job_id=job_id, how="succeeded")])
    for batch in batches:
        for entry in store.append(state.at_s + 1.0, batch, state.seq):
            state.apply(entry.seq, entry.at_s, entry.record)
    (home / "jobs" / job_id).mkdir(parents=True)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Iterator[Path]:
    """A folder in memory, where there is one: what a disk takes to sync hundreds of logs is no part of these tests."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("damage")
        return
    with tempfile.TemporaryDirectory(prefix="gmd-damage-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def killed(scratch) -> Path:
    """A home whose service was killed: some of its log is in the database, some in the write-ahead log.

    ``earlier`` is the same home a while before.
    """
    folder = scratch
    home, earlier = folder / "home", folder / "earlier"
    store = Store(home, events_kept=20)
    state = store.load()
    for number in range(1, JOBS + 1):
        written(home, number, state, store)
        if number in (4, 8, 12, 16):
            store.snapshot(state)
        if number == 16:
            store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if number == 20:
            shutil.copytree(home, earlier)
    shutil.copytree(home, folder / "killed")
    store.close()
    return folder


def opened(home: Path) -> ServiceState:
    with Store(home) as store:
        return store.load()


def damage(home: Path, earlier: Path, chance: random.Random) -> str:
    """Do something to the files of a log; what it was."""
    files = [home / name for name in (DATABASE, f"{DATABASE}-wal", SEQUENCE)]
    ways = ["flip", "flip", "flip", "flips", "truncate", "zero", "remove", "older", "older all", "all older"]
    what = chance.choice(ways)
    file = chance.choice(files)
    raw = bytearray(file.read_bytes())
    if what in ("flip", "flips"):
        for _ in range(1 if what == "flip" else chance.randint(2, 50)):
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        file.write_bytes(raw)
    elif what == "truncate":
        file.write_bytes(raw[: chance.randrange(len(raw))])
    elif what == "zero":
        begin = chance.randrange(len(raw))
        raw[begin : begin + 512] = bytes(len(raw[begin : begin + 512]))
        file.write_bytes(raw)
    elif what == "remove":
        file.unlink()
    elif what == "older":
        shutil.copy(earlier / file.name, file)
    else:  # without the sequence file, or with it: then only the folders of jobs show that something is missing
        for one in files[: 2 if what == "older all" else 3]:
            shutil.copy(earlier / one.name, one)
    return f"{what} {file.name}"


def test_no_damage_goes_unnoticed(killed):
    """What opens is all that was written; what is refused is untouched, and recovered without a clash."""
    whole = opened(shutil.copytree(killed / "killed", killed / "whole")).to_dict()
    chance, refused, sentences = random.Random(17), 0, set()
    for case in range(CASES):
        home = shutil.copytree(killed / "killed", killed / "case")
        what = damage(home, killed / "earlier", chance)
        before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
        problem = ""
        try:
            state = opened(home)
        except StoreDamaged as said:
            problem = str(said)
        if problem:
            refused += 1
            sentences.add(re.sub(r"\d+|/\S*/", "…", problem))
            assert "`geminid recover`" in problem, what
            after = {path.name: path.read_bytes() for path in home.iterdir() if path.name in before}
            assert {name: after[name] for name in before if not name.endswith("-shm")} == {
                name: content for name, content in before.items() if not name.endswith("-shm")
            }, f"case {case}: {what} changed files"
            if case % 5 == 0:
                check_recovery(home, before)
        else:
            assert state.to_dict() == whole, f"case {case}: {what} was not noticed"
        shutil.rmtree(home)
    assert refused > CASES / 3, "the damage did not damage anything"
    assert len(sentences) > 5


def test_no_bit_of_the_small_tables_goes_unnoticed(killed, tmp_path):
    """Every bit beside the records: what opens is all that was written, and what is refused can be recovered."""
    home = shutil.copytree(killed / "killed", killed / "small")
    state = opened(home).to_dict()  # nothing is left in the write-ahead log
    raw, sequence = (home / DATABASE).read_bytes(), (home / SEQUENCE).read_bytes()
    with closing(sqlite3.connect(home / DATABASE)) as database:
        (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE tbl_name IN ('meta', 'anchor')"
        pages = [page for (page,) in database.execute(query)]
    refused = 0
    for page, back, bit in product(pages, range(1, 49, 2), range(0, 8, 2)):
        damaged = bytearray(raw)
        damaged[page * page_bytes - back] ^= 1 << (bit + back // 2 % 2)
        for name in (f"{DATABASE}-wal", f"{DATABASE}-shm"):
            (home / name).unlink(missing_ok=True)
        (home / DATABASE).write_bytes(damaged)
        (home / SEQUENCE).write_bytes(sequence)
        if inspect(home).damage:
            refused += 1
            with pytest.raises(StoreDamaged, match="`geminid recover`"):
                Store(home)
            if refused % 10 == 0:
                recover(home, lambda folder: None)
                assert opened(home).to_dict()["jobs"] == state["jobs"]
        else:
            assert opened(home).to_dict() == state
    assert refused > 20


def test_a_damaged_home_is_not_copied_as_if_it_were_whole(killed, tmp_path):
    home = shutil.copytree(killed / "killed", tmp_path / "home")
    (home / f"{DATABASE}-wal").unlink()
    with pytest.raises(StoreDamaged, match=r"is damaged and was not copied: .*ends with record.*`geminid recover`"):
        backup(home, tmp_path / "copy.tar")
    assert not (tmp_path / "copy.tar").exists()


def test_jobs_that_run_are_not_ended_by_a_restore_unless_that_is_confirmed(killed, tmp_path):
    home, copy = shutil.copytree(killed / "killed", tmp_path / "home"), tmp_path / "copy.tar"
    home.chmod(0o700)
    backup(home, copy)
    with Store(home) as store:
        written(home, JOBS + 1, store.load(), store)
    ended = []
    last = f"j{JOBS + 1}"
    with pytest.raises(StoreProblem, match=f"{last} is running and not in .*--yes"):
        restore(home, copy, replace=True, runs=lambda folder: True, end_processes=ended.append)
    assert (ended, last in opened(home).jobs) == ([], True)
    done = restore(
        home, copy, replace=True, runs=lambda folder: True, may_end=[last].__eq__, end_processes=ended.append
    )
    assert [folder.name for folder in ended] == [last]
    assert (done.aside / "jobs" / last).is_dir()
    assert opened(home).submitted == JOBS + 1, "its number is not given again"


WAITING = f"j{JOBS + 1}"


@pytest.fixture
def put_back(killed, tmp_path):
    """A home whose log was put back to the moment before its last job was started; and a copy of that moment.

    The folders are as they were when the job had run: that of the last job is there, as the log knows it.
    """
    home = shutil.copytree(killed / "killed", tmp_path / "home")
    home.chmod(0o700)
    with Store(home) as store:
        spec = JobSpec(name="waiting", command=("python", "train.py"))
        submitted = r.JobSubmitted(job_id=WAITING, spec=spec, elastic=True)
        store.append(store.load().at_s + 1.0, [submitted], store.load().seq)
    copy = tmp_path / "copy.tar"
    backup(home, copy)
    folder = home / "jobs" / WAITING
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "checkpoint-00000001.safetensors").write_bytes(b"weights")
    return home, copy


def lives(folder: Path) -> None:
    """Have a live process in the folder of a job: this one."""
    (folder / "plain.json").write_text(json.dumps(identity_of(os.getpid())))


def test_a_log_put_back_with_its_sequence_file_is_refused_if_jobs_have_run_since(put_back):
    home, _ = put_back
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    told = rf"ahead of the log.*{WAITING} \(has run, has checkpoints\).*`geminid recover`"
    with pytest.raises(StoreDamaged, match=told):
        Store(home)
    lives(home / "jobs" / WAITING)
    with pytest.raises(StoreDamaged, match=rf"{WAITING} \(runs, has checkpoints\).*left alone"):
        Store(home)
    assert {path.name: path.read_bytes() for path in home.iterdir() if path.name in before} == before


@pytest.mark.parametrize("alive", [False, True])
def test_a_job_ahead_of_the_log_continues_from_its_checkpoints_after_a_recovery(put_back, alive):
    home, _ = put_back
    folder = home / "jobs" / WAITING
    if alive:
        lives(folder)
    (ahead,) = salvage(home).ahead
    assert (ahead.job_id, ahead.runs, ahead.has_checkpoints) == (WAITING, alive, True)
    ended = []
    recover(home, lambda one: (ended.append(one), (one / "plain.json").unlink()))
    assert ended == ([folder] if alive else [])
    job = opened(home).jobs[WAITING]
    assert job.state.first_started_at_s is not None, "its folder would be moved aside when it is started"
    assert "from its newest checkpoint" in job.story[-1].text
    assert list((folder / "checkpoints").iterdir()), "its checkpoints stay where they are"


@pytest.mark.parametrize("held_by_other", [False, True])
def test_a_job_that_runs_ahead_of_the_log_is_taken_over_unless_another_lives_on_its_slots(put_back, held_by_other):
    home, _ = put_back
    folder = home / "jobs" / WAITING
    place = Placement.of({"here": [0]})
    folder = folder.rename(home / "later")
    with Store(home) as store:  # another job holds the slot, as far as the log knows
        state = store.load()
        spec = JobSpec(name="other", command=("sleep", "9"))
        records = [
            r.JobSubmitted(job_id="j90", spec=spec, elastic=False),
            r.Planned(targets={"j90": place}, reasons={}),
            r.JobStarting(job_id="j90", placement=place),
            r.JobFormed(job_id="j90", placement=place),
        ]
        store.append(state.at_s + 1.0, records, state.seq)
    folder = folder.rename(home / "jobs" / WAITING)
    (home / "slots.json").write_text(json.dumps({"0": ["here/0", ["here", 0]]}))
    worker = {**identity_of(os.getpid()), "slot": "0"}
    (folder / "supervisor.json").write_text(json.dumps({"workers": {"w1": worker}}))
    if held_by_other:
        (home / "jobs" / "j90").mkdir(parents=True)
        lives(home / "jobs" / "j90")
    ended: list[Path] = []
    recover(home, lambda one: (ended.append(one), (one / "supervisor.json").unlink()))
    state = opened(home)
    job, other = state.jobs[WAITING], state.jobs["j90"]
    if held_by_other:
        assert (ended, job.phase.value, other.phase.value) == ([folder], "pending", "running")
        return
    assert (ended, job.phase.value, job.target, job.state.placement) == ([], "starting", place, place)
    assert (other.phase.value, other.target) == ("pending", None)


def test_a_restore_does_not_end_jobs_that_were_started_since_the_backup_unless_that_is_confirmed(put_back):
    home, copy = put_back
    lives(home / "jobs" / WAITING)
    with pytest.raises(StoreProblem, match=f"{WAITING} has been started since.*nothing was changed"):
        restore(home, copy, replace=True)
    done = restore(
        home,
        copy,
        replace=True,
        may_end=[WAITING].__eq__,
        end_processes=lambda folder: (folder / "plain.json").unlink(),
    )
    assert done.continued == (WAITING,)
    assert opened(home).jobs[WAITING].state.first_started_at_s is not None


def test_a_plain_command_that_ended_after_the_log_was_written_is_not_run_again_silently(put_back):
    home, _ = put_back
    shutil.rmtree(home / "jobs" / WAITING / "checkpoints")
    assert opened(home).jobs[WAITING].phase.value == "pending", "an empty folder shows nothing"
    (home / "jobs" / WAITING / "exit.json").write_text('{"code": 0, "problem": ""}')
    with pytest.raises(StoreDamaged, match=rf"{WAITING} \(has run, has no checkpoints\)"):
        Store(home)


def test_nothing_is_recovered_or_restored_into_a_home_that_others_can_write(killed, tmp_path):
    home = shutil.copytree(killed / "killed", tmp_path / "home")
    home.chmod(0o777)
    with pytest.raises(StoreProblem, match="can be written by everybody"):
        recover(home, lambda folder: None)
    with pytest.raises(StoreProblem, match="can be written by everybody"):
        restore(home, tmp_path / "copy.tar", replace=True)


def check_recovery(home: Path, before: dict[str, bytes]) -> None:
    kept = salvage(home)
    aside = recover(home, lambda folder: None)
    for name in (DATABASE, f"{DATABASE}-wal", SEQUENCE):
        assert name not in before or (aside / name).read_bytes() == before[name], "damaged files are kept"
    with Store(home) as store:
        state = store.load()
        assert state.jobs.keys() == kept.state.jobs.keys()
        assert state.submitted >= JOBS, "numbers are not given again"
        folders = {path.name for path in (home / "jobs").iterdir()} | {path.name for path in aside.glob("jobs/*")}
        assert folders == {f"j{number}" for number in range(1, JOBS + 1)}, "no folder is deleted"
        written(home, state.submitted + 1, state, store)
    assert inspect(home).damage == []


def test_a_lost_write_ahead_log_is_told_with_what_is_lost(killed, tmp_path):
    home = shutil.copytree(killed / "killed", tmp_path / "home")
    (home / f"{DATABASE}-wal").unlink()
    with pytest.raises(
        StoreDamaged, match=r"ends with record \d+, and was at \d+: records \d+ to \d+ and jobs j17 to j24"
    ):
        Store(home)


def test_a_copy_of_the_database_file_alone_does_not_pass_for_fewer_jobs(killed, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(killed / "killed" / DATABASE, home)
    with pytest.raises(StoreDamaged, match=f"{SEQUENCE} is missing"):
        Store(home)


def test_a_log_that_is_lost_as_a_whole_is_not_taken_for_a_new_home(killed, tmp_path):
    home = shutil.copytree(killed / "killed", tmp_path / "home")
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", SEQUENCE):
        (home / name).unlink(missing_ok=True)
    with pytest.raises(StoreDamaged, match=r"is missing: jobs j1 to j24 .* are lost"):
        Store(home)
    recover(home, lambda folder: None)
    with Store(home) as store:
        assert (store.load().jobs, store.load().submitted) == ({}, JOBS)


def test_a_record_that_somebody_changed_is_named_and_recovery_goes_on_from_a_later_snapshot(killed, tmp_path):
    home = shutil.copytree(killed / "killed", tmp_path / "home")
    with Store(home) as store:
        state = store.load()
        store.snapshot(state)
        seq = next(entry.seq for entry in store.entries() if isinstance(entry.record, r.JobSubmitted))
        store._database.execute("UPDATE events SET body = replace(body, 'name-', 'nime-') WHERE seq = ?", (seq,))
    with pytest.raises(StoreDamaged, match=f"record {seq} in .* is damaged: it is not known that anything is lost"):
        Store(home)
    recover(home, lambda folder: None)
    assert opened(home).jobs == state.jobs


def test_records_that_were_dropped_leave_an_anchor(killed, tmp_path):
    home = shutil.copytree(killed / "killed", tmp_path / "home")
    first = last_entries(home, 1, 0)[0].seq
    assert first > 1
    with Store(home) as store:
        store._database.execute("DELETE FROM events WHERE seq = ?", (first,))
    with pytest.raises(StoreDamaged, match=f"record {first} is missing"):
        Store(home)


def test_the_last_batch_may_be_missing_from_the_sequence_file_after_a_crash(tmp_path):
    class Killed(Exception):
        pass

    def die(point: str) -> None:
        if point == "committed" and dying:
            raise Killed

    dying: list[bool] = []
    note = r.Noted(level="info", text="x")
    store = Store(tmp_path, before_write=die)
    store.append(1.0, [note], 0)
    dying.append(True)
    with pytest.raises(Killed):
        store.append(2.0, [note, note], 1)
    store.close()
    with Store(tmp_path) as again:
        assert again.load().seq == 3


def test_half_a_slot_of_the_sequence_file_is_no_damage(tmp_path):
    note = r.Noted(level="info", text="x")
    with Store(tmp_path) as store:
        for seq in range(5):
            store.append(1.0, [note], seq)
    raw = bytearray((tmp_path / SEQUENCE).read_bytes())
    newest = max((0, 4096), key=lambda begin: int(re.search(rb'"turn": (\d+)', raw[begin : begin + 300])[1]))
    raw[newest + 40 : newest + 120] = b"#" * 80
    (tmp_path / SEQUENCE).write_bytes(raw)
    assert opened(tmp_path).seq == 5


def test_recovery_is_refused_while_a_service_runs(tmp_path):
    with Store(tmp_path), pytest.raises(StoreProblem, match="a service runs on"):
        salvage(tmp_path)
