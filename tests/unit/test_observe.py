"""Curves, stints and changes: bounded, complete, and the same after a restart."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase, JobState
from geminid.serve.livejob import LiveJob
from geminid.serve.observe.changes import MAX_KEPT, Changes
from geminid.serve.observe.curves import MAX_POINTS, Curve, Point, merged
from geminid.serve.observe.recorder import Recording
from geminid.serve.observe.rows import COLUMNS, coarse, difference, row_of
from geminid.serve.observe.stints import Held, turnover
from geminid.serve.observe.store import HISTORY, HistoryStore
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
    assert again.slot_seconds(0.0, 40.0, 20.0) == [(0, "ann", 20.0), (1, "ann", 30.0)]
    assert again.stints(0.0, 100.0, shortest_s=15.0) == again.stints(0.0, 100.0)[:2]
    assert again.stints(35.0, 36.0)[0].job_slots == 1
    again.close()


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
