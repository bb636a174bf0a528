"""A service is started anew on the home of another: what it takes over of how that was started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.server import EXECUTOR, Options, _as_before
from geminid.serve.store import Store, StoreProblem


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path) as made:
        yield made


def last_time(home: Path, executor: str, storage: str | None) -> None:
    (home / EXECUTOR).write_text(json.dumps({"executor": executor, "storage": storage}))


def run_a_job(store: Store) -> None:
    place = Placement.of({"a": [0]})
    told = [
        r.JobSubmitted(job_id="j1", spec=JobSpec(name="x", command=("true",)), elastic=True),
        r.Planned(targets={"j1": place}),
        r.JobStarting(job_id="j1", placement=place),
    ]
    store.append(1.0, told, store.load().seq)


def test_checkpoints_stay_where_they_are_unless_another_place_is_named(tmp_path, store):
    ray = Options(home=tmp_path, executor="ray")
    assert _as_before(ray, store) == (ray, "")
    last_time(tmp_path, "ray", "s3://here")
    assert _as_before(ray, store) == (replace(ray, storage="s3://here"), "")
    elsewhere = replace(ray, storage="/there")
    assert _as_before(elsewhere, store) == (elsewhere, "")  # no job has any
    run_a_job(store)
    assert _as_before(elsewhere, store) == (elsewhere, "s3://here")
    last_time(tmp_path, "ray", None)
    assert _as_before(elsewhere, store) == (elsewhere, str(tmp_path / "jobs"))
    (tmp_path / EXECUTOR).write_text("{")
    assert _as_before(ray, store) == (ray, "")


def test_jobs_that_are_not_over_are_not_looked_for_where_they_never_ran(tmp_path, store):
    last_time(tmp_path, "ray", None)
    local = Options(home=tmp_path)
    assert _as_before(local, store) == (local, "")  # there are none
    run_a_job(store)
    with pytest.raises(
        StoreProblem, match=r"--executor ray, and are not over: start it with that again .* or set GEMINID_"
    ):
        _as_before(local, store)
    store.append(2.0, [r.JobEnded(job_id="j1", how="succeeded")], store.load().seq)
    assert _as_before(local, store) == (local, "")
