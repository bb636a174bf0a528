"""Curves, stints and changes: bounded, complete, and the same after a restart."""

from __future__ import annotations

import json
import sqlite3
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase, JobState
from geminid.serve.livejob import LiveJob
from geminid.serve.observe.changes import MAX_KEPT, Changes
from geminid.serve.observe.curves import MAX_POINTS, Curve, Point, merged, numbers_of
from geminid.serve.observe.recorder import Recording
from geminid.serve.observe.rows import COLUMNS, coarse, difference, row_of
from geminid.serve.observe.stints import Held, turnover
from geminid.serve.observe.store import HISTORY, HistoryStore
from geminid.serve.observe.usage import by_period, period_starts
from geminid.serve.planner import DecisionCounts
from geminid.serve.service import Published
from geminid.serve.state import ServiceState


def job(job_id: str = "j1", *, slots: int = 0, samples: int = 0, owner: str = "ann", phase: JobPhase | None = None):
    """A job, which runs if it has slots."""
    state = JobState.submitted(job_id=job_id, spec=JobSpec(name="x", command=("x",), owner=owner), at_s=0.0)
    if slots:
        state = state.move(JobPhase.STARTING, at_s=1.0, placement=Placement.of({"a": list(range(slots))}))
        state = state.move(JobPhase.RUNNING, at_s=2.0)
    if phase is not None:
        state = state.move(phase, at_s=3.0)
    return LiveJob(state=state, elastic=True, samples=samples, metrics=(("loss", 1.0 / (samples + 1)), ("note", "nan")))


def published(now_s: float, *jobs: LiveJob, **fields: object) -> Published:
    return Published(now_s, ServiceState(jobs={one.id: one for one in jobs}), **fields)


# --- Curves ---


@given(st.lists(st.tuples(st.floats(0.1, 100.0), st.integers(1, 8)), max_size=1500))
def test_a_curve_covers_the_whole_life_of_a_job_in_a_bounded_number_of_points(steps):
    curve, at_s, samples = Curve(), 0.0, 0
    for gap_s, slots in steps:
        at_s, samples = at_s + gap_s, samples + 10
        curve = curve.plus(Point(at_s=at_s, slots=slots, samples=samples))
    assert len(curve.points) <= MAX_POINTS
    times = [point.at_s for point in curve.points]
    assert times == sorted(times)
    assert [point.samples for point in curve.points] == sorted(point.samples for point in curve.points)
    if steps:
        assert (times[-1], curve.points[-1].samples) == (at_s, samples)
    assert Curve.unpacked(curve.packed()) == curve


def test_counts_keep_their_last_value_and_rates_their_mean():
    both = merged(
        Point(at_s=1.0, samples=10, goodput=4.0, noise_scale=None, metrics={"loss": 2.0}),
        Point(at_s=2.0, samples=30, goodput=8.0, noise_scale=5.0, metrics={"loss": 1.0, "accuracy": 0.5}),
    )
    assert (both.at_s, both.samples, both.goodput, both.noise_scale) == (2.0, 30, 6.0, 5.0)
    assert both.metrics == {"loss": 1.5, "accuracy": 0.5}
    three = merged(both, Point(at_s=3.0, goodput=0.0))
    assert (three.goodput, three.weight) == (pytest.approx(4.0), 3)  # all measurements count alike


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=1200))
def test_the_mean_over_a_thinned_curve_is_the_mean_of_all_measurements(rates):
    curve = Curve()
    for i, rate in enumerate(rates):
        curve = curve.plus(Point(at_s=float(i), slots=1, goodput=rate, batch=64.0))
    assert sum(point.weight for point in curve.points) == len(rates)
    batch, goodput = curve.measured(1)
    assert (batch, goodput) == (64, pytest.approx(sum(rates) / len(rates)))
    assert curve.measured(2) == (None, None)


def test_losses_come_first_and_further_metrics_by_name():
    metrics = [(f"m{k}", float(k)) for k in range(9)] + [("note", "text"), ("train_loss", 1.0)]
    kept = numbers_of(metrics)
    assert list(kept) == ["train_loss", *(f"m{k}" for k in range(7))]
    assert list(Curve((Point(at_s=1.0, metrics=kept),)).to_columns()["metrics"]) == list(kept)


def test_curves_without_weights_are_read():
    old = Curve((Point(at_s=1.0), Point(at_s=2.0)))
    plain = json.loads(zlib.decompress(old.packed()))
    del plain["weight"]
    assert Curve.unpacked(zlib.compress(json.dumps(plain).encode())) == old


def test_a_full_curve_takes_little_room():
    curve = Curve()
    for i in range(10_000):
        metrics = {f"m{k}": 1.0 / (i + k + 1) for k in range(8)}
        curve = curve.plus(Point(at_s=float(i), samples=17 * i, goodput=i * 0.37, noise_scale=i * 1.1, metrics=metrics))
    assert len(curve.packed()) < 40_000


# --- Stints ---


def test_stints_end_and_begin_where_the_holder_of_a_slot_or_its_size_changes():
    before = {("a", 0): Held("j1", 2), ("a", 1): Held("j1", 2), ("b", 0): Held("j2", 1)}
    after = {("a", 0): Held("j1", 1), ("a", 1): Held("j3", 1), ("b", 0): Held("j2", 1)}
    changes = turnover(before, after)
    assert set(changes.ended) == set(changes.begun) == {("a", 0), ("a", 1)}
    assert changes.begun["a", 1] == Held("j3", 1)


def test_slots_over_time_are_kept_across_restarts(tmp_path):
    store = HistoryStore(tmp_path)
    recording = Recording(store)
    recording.look(published(10.0, job(slots=2)))
    store.close()

    again = HistoryStore(tmp_path)  # the service was killed and is back; the job is where it was
    recording = Recording(again)
    recording.look(published(20.0, job(slots=2)))
    recording.look(published(30.0, job(slots=1)))
    recording.look(published(40.0, job(slots=1, phase=JobPhase.SUCCEEDED)))
    found = [(one.slot, one.from_s, one.to_s, one.job_slots) for one in again.stints(0.0, 100.0)]
    assert found == [(0, 10.0, 30.0, 2), (1, 10.0, 30.0, 2), (0, 30.0, 40.0, 1)]
    assert again.usage(0.0, 40.0) == {(0, "ann"): 50.0}
    assert again.stints(0.0, 100.0, shortest_s=15.0) == again.stints(0.0, 100.0)[:2]
    assert again.stints(35.0, 36.0)[0].job_slots == 1
    again.close()


def test_a_stint_keeps_what_was_measured_in_it(tmp_path):
    recording = Recording(HistoryStore(tmp_path))
    for i in range(5):
        recording.look(published(10.0 + i, job(slots=2, samples=100 * i)))
    assert recording.measured("j1", 2)[1] == pytest.approx(0.0)  # samples without progress
    recording.look(published(20.0, job(slots=1, samples=400)))
    ended = [one for one in recording.store.stints(0.0, 100.0) if one.to_s is not None]
    assert {(one.job_slots, one.goodput) for one in ended} == {(2, 0.0)}
    recording.store.close()


def test_faults_are_kept_once_and_go_with_the_job(tmp_path):
    recording = Recording(HistoryStore(tmp_path))
    one = job(slots=1).with_story(5.0, "training on 1 slot").with_story(6.0, "worker w1 was killed (SIGKILL)")
    recording.look(published(7.0, one))
    recording.look(published(8.0, one.with_story(7.5, "failed: exit code 3")))
    recording = Recording(recording.store)  # the service was started again
    recording.look(published(9.0, one.with_story(7.5, "failed: exit code 3")))
    found = recording.store.faults(0.0, 10.0)
    assert [(fault.at_s, fault.text) for fault in found] == [
        (6.0, "worker w1 was killed (SIGKILL)"),
        (7.5, "failed: exit code 3"),
    ]
    assert recording.store.faults(0.0, 10.0, "j2") == []
    recording.look(published(10_000.0))
    assert recording.store.faults(0.0, 1e9) == []
    recording.store.close()


def test_what_owners_used_stays_when_their_jobs_are_forgotten(tmp_path):
    recording = Recording(HistoryStore(tmp_path))
    recording.look(published(3000.0, job(slots=2)))
    assert recording.store.usage(0.0, 4000.0) == {(0, "ann"): 1200.0, (1, "ann"): 800.0}  # it still runs
    recording.look(published(4600.0, job(slots=2, phase=JobPhase.SUCCEEDED)))
    recording.look(published(10_000.0))
    assert recording.store.known_jobs() == set()
    assert recording.store.usage(0.0, 20_000.0) == {(0, "ann"): 1200.0, (1, "ann"): 2000.0}
    recording.store.close()


def test_periods_follow_the_calendar_of_a_time_zone():
    monday_noon_s = 4 * 86_400.0 + 43_200.0
    assert period_starts("hour", 2, monday_noon_s + 1.0, 0.0) == [monday_noon_s - 3600.0, monday_noon_s]
    assert period_starts("day", 2, monday_noon_s, 0.0) == [3 * 86_400.0, 4 * 86_400.0]
    assert period_starts("day", 1, monday_noon_s, 3600.0) == [4 * 86_400.0 - 3600.0]
    assert period_starts("week", 1, monday_noon_s + 6 * 86_400.0, 0.0) == [4 * 86_400.0]
    assert period_starts("day", 1, monday_noon_s, 19_800.0)[0] % 3600.0 == 0.0
    used = {(0, "ann"): 3600.0, (25, "ann"): 1800.0, (25, "bob"): 7200.0}
    assert by_period(used, period_starts("day", 2, 2 * 86_400.0 - 1.0, 0.0)) == {"ann": [1.0, 0.5], "bob": [0.0, 2.0]}
    assert by_period(used, period_starts("day", 1, 2 * 86_400.0 - 1.0, 0.0)) == {"ann": [0.5], "bob": [2.0]}


def test_a_history_of_an_earlier_version_is_read_and_counted(tmp_path):
    database = sqlite3.connect(tmp_path / HISTORY)
    database.executescript("""
        CREATE TABLE curves (job_id TEXT PRIMARY KEY, curve BLOB NOT NULL) WITHOUT ROWID;
        CREATE TABLE stints (
            id INTEGER PRIMARY KEY, job_id TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL,
            slot INTEGER NOT NULL, from_s REAL NOT NULL, to_s REAL, job_slots INTEGER NOT NULL
        );
        INSERT INTO stints VALUES (1, 'j1', 'ann', 'a', 0, 3000.0, 4000.0, 1), (2, 'j2', 'bob', 'a', 1, 0.0, NULL, 1);
    """)
    database.close()
    for _ in range(2):  # counted once
        store = HistoryStore(tmp_path)
        assert store.usage(0.0, 3600.0) == {(0, "ann"): 600.0, (1, "ann"): 400.0, (0, "bob"): 3600.0}
        assert [(one.job_id, one.batch) for one in store.stints(0.0, 5000.0)] == [("j1", None), ("j2", None)]
        store.close()


def test_a_damaged_history_is_moved_aside_and_a_new_one_begins(tmp_path):
    (tmp_path / HISTORY).write_bytes(b"not a database" * 100)
    store = HistoryStore(tmp_path)
    assert store.stints(0.0, 1e12) == []
    assert [path.name for path in (tmp_path / "aside").rglob("*.db")] == [HISTORY]
    assert (tmp_path / HISTORY).stat().st_mode & 0o077 == 0
    store.close()


# --- Recording ---


def test_curves_are_recorded_while_a_job_has_slots_and_kept_until_the_job_is_forgotten(tmp_path):
    store = HistoryStore(tmp_path)
    recording = Recording(store)
    recording.look(published(1.0, job()))
    assert recording.curve("j1").points == ()
    for i in range(5):
        recording.look(published(10.0 + i, job(slots=2, samples=100 * i)), {"j1": 123.0})
    recording.look(published(20.0, job(slots=2, samples=400, phase=JobPhase.SUCCEEDED)))
    recording.save()
    points = store.curve("j1").points
    assert [point.samples for point in points][-2:] == [400, 400]
    assert points[1].throughput == pytest.approx(100.0)
    assert (points[1].predicted, points[1].metrics) == (123.0, {"loss": pytest.approx(1 / 101)})
    assert points[-1].slots == 0
    recording.look(published(10_000.0))
    assert store.curve("j1").points == ()
    assert store.known_jobs() == set()
    store.close()


# --- Changes ---


def plain_row(one: LiveJob):
    return row_of(one, None, {}, "", 0.0)


def changes_of(*looks: Published) -> tuple[Changes, list[dict]]:
    changes = Changes(plain_row, lambda published: {"decisions": published.counts.made})
    made = [change for look in looks if (change := changes.look(look)) is not None]
    return changes, [json.loads(change.event.split(b"data: ")[1]) for change in made]


def test_only_what_differs_is_sent():
    first, second = job("j1"), job("j2", slots=1)
    _, events = changes_of(
        published(1.0, first, second),
        published(1.5, first, second),
        published(2.0, first, replace(second, samples=50), counts=DecisionCounts(made=3)),
        published(2.5, replace(second, state=job("j2", slots=2).state), counts=DecisionCounts(made=3)),
    )
    assert [sorted(event) for event in events] == [
        ["new", "seq", "status"],
        ["seq", "status"],
        ["changed", "gone", "seq"],
    ]
    assert events[2]["gone"] == ["j1"]
    assert events[2]["changed"]["j2"]["slots"] == 2
    assert "name" not in events[2]["changed"]["j2"]


@given(st.lists(st.dictionaries(st.integers(1, 6), st.integers(0, 3), max_size=6), max_size=8))
def test_applying_the_differences_in_order_gives_the_last_table(tables):
    known: dict[str, dict] = {}
    before: dict[str, tuple] = {}
    for table in tables:
        after = {f"j{number}": plain_row(job(f"j{number}", slots=slots)) for number, slots in table.items()}
        parts = difference(before, after)
        for row in parts.get("new", []):
            known[row[0]] = dict(zip(COLUMNS, row, strict=True))
        for job_id, fields in parts.get("changed", {}).items():
            known[job_id] |= fields
        for job_id in parts.get("gone", []):
            del known[job_id]
        before = after
        assert known == {job_id: dict(zip(COLUMNS, row, strict=True)) for job_id, row in after.items()}


def test_whoever_begins_to_watch_sees_the_newest_lines():
    one = job("j1").with_story(1.0, "submitted by ann")
    changes, _ = changes_of(published(1.0, one), published(2.0, one.with_story(1.5, "starting on 1 slot")))
    assert [line["text"] for line in changes.recent] == ["submitted by ann", "starting on 1 slot"]


def test_a_client_continues_where_it_was_or_reads_everything_again():
    looks = [published(float(i), job("j1", slots=1 + i % 2)) for i in range(10)]
    changes, events = changes_of(*looks)
    assert len(events) == 10
    assert [one.number for one in changes.since(f"{changes.process}.7")] == [8, 9, 10]
    assert changes.since(changes.last_id) == []
    for unknown in (None, "", "nonsense", "other.7", f"{changes.process}.x", f"{changes.process}.11"):
        assert changes.since(unknown) is None
    for i in range(MAX_KEPT + 5):
        changes.look(published(20.0 + i, job("j1", slots=1 + i % 2)))
    assert changes.since(f"{changes.process}.7") is None


def test_forecasts_are_rounded_the_more_the_farther_away_they_are():
    assert coarse(1000.04, 995.0) == 1000.0
    assert coarse(5234.0, 0.0) == 5200.0
    assert coarse(5249.0, 0.0) == 5200.0
