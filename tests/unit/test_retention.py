"""A service that runs for long: jobs that are over are forgotten, their use is not, and the log stays bounded."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.documents import usage_documents
from geminid.serve.histograms import Histogram
from geminid.serve.metrics import metrics_text
from geminid.serve.retention import Retention
from geminid.serve.service import Published
from geminid.serve.state import ServiceState
from geminid.serve.store import SNAPSHOTS_KEPT, Store, last_entries

CLUSTER = Cluster.parse("cpu:1x2")


def one_job(number: int) -> list[r.Record]:
    job_id, place = f"j{number}", Placement.of({"here": [0]})
    spec = JobSpec(name="x", command=("true",), owner="ann" if number % 2 else "bob")
    return [
        r.JobSubmitted(job_id=job_id, spec=spec, elastic=False, request=f"r{number}"),
        r.Planned(targets={job_id: place}),
        r.JobStarting(job_id=job_id, placement=place),
        r.JobFormed(job_id=job_id, placement=place),
        r.JobEnded(job_id=job_id, how="succeeded"),
    ]


def test_the_oldest_and_the_supernumerary_are_outdated_and_nobody_who_is_active():
    state = ServiceState()
    for number in range(1, 7):
        for record in one_job(number)[: 5 if number < 6 else 4]:  # the last one still runs
            state.apply(state.seq + 1, 10.0 * number, record)
    assert Retention(jobs=10, seconds=1e9).outdated(state, 1e6) == []
    assert Retention(jobs=2, seconds=1e9).outdated(state, 1e6) == ["j1", "j2", "j3"]
    assert Retention(jobs=10, seconds=35.0).outdated(state, 60.0) == ["j1", "j2"]
    assert Retention(jobs=0, seconds=0.0).outdated(state, 1e6) == ["j1", "j2", "j3", "j4", "j5"]


def test_what_forgotten_jobs_used_is_not_forgotten():
    state = ServiceState()
    for number in range(1, 5):
        for i, record in enumerate(one_job(number)):
            state.apply(state.seq + 1, 100.0 * number + i, record)
    before = usage_documents(state, 1000.0)
    state.apply(state.seq + 1, 1000.0, r.JobsForgotten(job_ids=["j1", "j2", "j9"]))
    assert list(state.jobs) == ["j3", "j4"]
    assert list(state.requests) == ["r3", "r4"]
    assert usage_documents(state, 1000.0) == before
    assert ServiceState.from_dict(state.to_dict()).to_dict() == state.to_dict()
    active = one_job(7)[:4]
    for record in [*active, r.JobsForgotten(job_ids=["j7"])]:
        state.apply(state.seq + 1, 1001.0, record)
    assert "j7" in state.jobs  # it is not over


def test_metrics_tell_why_jobs_wait():
    state = ServiceState()
    for record in (
        *(one_job(number)[0] for number in (1, 2, 3, 4)),
        r.JobWished(job_id="j1", wish="pause", by="ann"),
        r.QuotaSet(of="owner", name="bob", slots=1, by="op"),
        r.Planned(targets={"j2": Placement.of({"here": [0]})}),
    ):
        state.apply(state.seq + 1, 1.0, record)
    families = {one.name: one for one in text_string_to_metric_families(metrics_text(Published(2.0, state), CLUSTER))}
    waiting = {sample.labels["reason"]: sample.value for sample in families["geminid_waiting_jobs"].samples}
    assert waiting == {"capacity": 1, "quota": 1, "paused": 1, "retry": 0, "dependency": 0}
    assert [tuple(sample[:3]) for sample in families["geminid_jobs_submitted"].samples] == [
        ("geminid_jobs_submitted_total", {}, 4)
    ]
    assert {family.type for family in families.values()} == {"gauge", "counter", "histogram"}
    assert all(family.documentation for family in families.values())


def test_metrics_have_the_names_and_labels_that_dashboards_use():
    text = metrics_text(Published(2.0, ServiceState()), CLUSTER)
    for line in (
        "# HELP geminid_decisions_total Decisions since this service started.",
        "# TYPE geminid_decisions_total counter",
        'geminid_jobs{phase="running"} 0.0',
        'geminid_wait_seconds_bucket{le="3600"} 0.0',
        'geminid_wait_seconds_bucket{le="+Inf"} 0.0',
        "geminid_wait_seconds_sum 0.0",
    ):
        assert f"{line}\n" in text
    assert "_created" not in text


def test_a_histogram_counts_what_is_at_most_each_bound():
    seen = Histogram.of(0.5, 10.0)
    for value in (0.1, 0.5, 3.0, 20.0):
        seen = seen.plus(value)
    assert seen.buckets() == [("0.5", 2), ("10", 3), ("+Inf", 4)]
    assert seen.total == 23.6


def test_the_log_stays_bounded_and_any_kept_snapshot_gives_the_state_back(tmp_path):
    with Store(tmp_path, events_kept=20) as store:
        state = store.load()
        for number in range(1, 31):
            for entry in store.append(float(number), one_job(number), state.seq):
                state.apply(entry.seq, entry.at_s, entry.record)
            if number > 5:
                forget = [r.JobsForgotten(job_ids=[f"j{number - 5}"])]
                for entry in store.append(float(number), forget, state.seq):
                    state.apply(entry.seq, entry.at_s, entry.record)
            store.snapshot(state)
    left = last_entries(tmp_path, 10_000, 0)
    assert 20 <= len(left) <= 20 + 6 * SNAPSHOTS_KEPT
    for damaged in range(SNAPSHOTS_KEPT):  # the newest snapshots are damaged, one after the other
        with Store(tmp_path) as store:
            assert store.load().to_dict() == state.to_dict()
            if damaged < SNAPSHOTS_KEPT - 1:
                query = "UPDATE snapshots SET body = 'x' WHERE seq = (SELECT MAX(seq) FROM snapshots WHERE body != 'x')"
                store._database.execute(query)
