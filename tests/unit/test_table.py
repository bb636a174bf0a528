from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from geminid.bench.table import random_job
from geminid.configuration import Configuration
from geminid.goodput.table import GoodputTable, JobModel, model_key

TYPES = ["fast", "slow"]
CONFIGURATIONS = [
    Configuration(gpu_type=t, nodes=n, slots=k) for t in TYPES for n, k in ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))
]


def jobs(count: int) -> dict[str, JobModel]:
    rng = np.random.default_rng(7)
    return {f"job-{i}": random_job("geminid", TYPES, rng) for i in range(count)}


def test_only_rows_of_changed_jobs_are_recomputed() -> None:
    models = jobs(20)
    table = GoodputTable.of(CONFIGURATIONS, models)
    assert table.recomputed == 20
    assert table.refresh(models).recomputed == 0
    changed = {**models, "job-3": replace(models["job-3"], gradient=replace(models["job-3"].gradient, variance=50.0))}
    refreshed = table.refresh(changed)
    assert refreshed.recomputed == 1
    assert refreshed.goodput == pytest.approx(GoodputTable.of(CONFIGURATIONS, changed).goodput)
    assert (refreshed.row("job-3") != table.row("job-3")).any()


def test_an_equal_model_counts_as_unchanged() -> None:
    assert GoodputTable.of(CONFIGURATIONS, jobs(5)).refresh(jobs(5)).recomputed == 0


def test_jobs_may_come_go_and_change_order() -> None:
    models = jobs(6)
    table = GoodputTable.of(CONFIGURATIONS, models)
    fewer = {job_id: models[job_id] for job_id in ("job-5", "job-1")}
    smaller = table.refresh(fewer)
    assert smaller.job_ids == ("job-5", "job-1")
    assert smaller.recomputed == 0
    assert (smaller.row("job-5") == table.row("job-5")).all()
    assert GoodputTable.empty(CONFIGURATIONS).refresh({}).goodput.shape == (0, len(CONFIGURATIONS))


def test_a_gpu_type_without_a_fit_has_no_goodput() -> None:
    job = jobs(1)["job-0"]
    only_fast = replace(job, fits={"fast": job.fits["fast"]})
    table = GoodputTable.of(CONFIGURATIONS, {"a": only_fast})
    by_type = {t: [table.goodput[0, i] for i, c in enumerate(CONFIGURATIONS) if c.gpu_type == t] for t in TYPES}
    assert min(by_type["fast"]) > 0
    assert max(by_type["slow"]) == 0
    assert table.per_slot_batch[0, CONFIGURATIONS.index(Configuration(gpu_type="slow", nodes=1, slots=1))] == 0


def test_execution_plans_have_fits_of_their_own() -> None:
    job = jobs(1)["job-0"]
    plain = Configuration(gpu_type="fast", nodes=1, slots=4)
    sharded = Configuration(gpu_type="fast", nodes=1, slots=4, plan="zero")
    assert GoodputTable.of([plain, sharded], {"a": job}).goodput[0, 1] == 0
    slower = replace(job.fits["fast"], parameters=tuple(2 * p for p in job.fits["fast"].parameters))
    both = replace(
        job,
        fits={**job.fits, model_key(sharded): slower},
        limits={**job.limits, model_key(sharded): job.limits["fast"]},
    )
    goodput = GoodputTable.of([plain, sharded], {"a": both}).goodput[0]
    assert 0 < goodput[1] < goodput[0]


def test_models_of_both_families_share_a_table() -> None:
    rng = np.random.default_rng(3)
    mixed = {"a": random_job("pollux", TYPES, rng), "b": random_job("geminid", TYPES, rng)}
    table = GoodputTable.of(CONFIGURATIONS, mixed)
    for job_id, model in mixed.items():
        assert (table.row(job_id) == GoodputTable.of(CONFIGURATIONS, {job_id: model}).goodput[0]).all()
