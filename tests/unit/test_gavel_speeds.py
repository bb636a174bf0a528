"""What policies over time fractions read of jobs that have been measured in part only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.table import JobModel
from geminid.policies.base import JobFacts, JobView
from geminid.policies.gavel import speeds as speeds_module
from geminid.policies.gavel.fairness import MaxMinFairnessPacked
from geminid.policies.gavel.speeds import SpeedReader

CLUSTER = Cluster.parse("v100:1x4,k80:1x4")
LIMITS = BatchLimits(initial=100, largest=100, smallest_per_slot=1, largest_per_slot=100)


def fitted(step_s: float, source: str = "fitted") -> ThroughputFit:
    """Steps of a hundred samples take so long."""
    parameters = (0.0, step_s / 100, 0.0, 0.0, 0.0, 0.0, 1.0)
    return ThroughputFit("pollux", parameters, source, 0.0, 8)  # type: ignore[arg-type]


def job(name: str, **step_s: float) -> JobView:
    """A job that may run on both types, fitted on those given."""
    limits = {"v100": LIMITS, "k80": LIMITS}
    facts = JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=1, kind=name, limits=limits)
    return JobView(facts=facts, model=JobModel({t: fitted(s) for t, s in step_s.items()}, limits))


def speeds(*jobs: JobView) -> Mapping[str, Mapping[str, float]]:
    return SpeedReader().speeds(CLUSTER, jobs)


def test_speeds_on_other_types_are_estimated_from_the_other_jobs() -> None:
    """All others are four times as fast on one type as on the other: so is the one known on the slow one only."""
    got = speeds(job("a", v100=0.1, k80=0.4), job("b", v100=0.01, k80=0.04), job("c", k80=0.002))
    assert got["a"] == pytest.approx({"v100": 10.0, "k80": 2.5})
    assert got["c"] == pytest.approx({"v100": 2000.0, "k80": 500.0})


def test_jobs_of_which_nothing_is_known_are_like_the_others() -> None:
    got = speeds(job("a", v100=0.1, k80=0.4), job("b"))["b"]
    assert got == pytest.approx({"v100": 10.0, "k80": 2.5})


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_jobs_of_which_nothing_is_known_have_the_geometric_mean_of_the_others(scale: float) -> None:
    one, two = job("a", v100=scale, k80=4 * scale), job("b", v100=scale / 100, k80=scale / 50)
    got = speeds(one, two, job("c"))["c"]
    assert got == pytest.approx({"v100": 10 / scale, "k80": (0.25 * 50) ** 0.5 / scale})


def test_without_others_a_job_is_as_fast_as_where_it_is_known() -> None:
    assert speeds(job("a", k80=0.002), job("b")) == {
        "a": pytest.approx({"v100": 500.0, "k80": 500.0}),
        "b": {"v100": 1.0, "k80": 1.0},
    }


def test_a_prior_counts_as_unknown() -> None:
    one = job("a", k80=0.002)
    assert one.model is not None
    prior = JobModel({**one.model.fits, "v100": fitted(7.0, "prior")}, one.model.limits)
    assert speeds(JobView(facts=one.facts, model=prior))["a"]["v100"] == pytest.approx(500.0)


def test_estimates_follow_what_becomes_known_of_others() -> None:
    reader = SpeedReader()
    reader.speeds(CLUSTER, (job("a", v100=0.1), job("c", k80=0.002)))
    got = reader.speeds(CLUSTER, (job("a", v100=0.1, k80=0.4), job("c", k80=0.002)))
    assert got["c"]["v100"] == pytest.approx(2000.0)


class Partly:
    """Light jobs keep 0.9 beside light ones; nobody has measured the newcomer beside ``light2``."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        both = {first.kind, second.kind}
        if "new" in both and ("light2" in both or first.kind == second.kind):
            return np.nan, np.nan
        return (0.9, 0.9) if "heavy" not in both else (0.0, 0.0)


def table_job(name: str) -> JobView:
    facts = JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=1, kind=name, throughputs={"v100": 2.0})
    return JobView(facts=facts)


def test_pairs_that_nobody_has_measured_are_estimated() -> None:
    """The newcomer shares well with one light job, so it is expected to with the other, and not with the heavy one."""
    jobs = [table_job(name) for name in ("light1", "light2", "heavy", "new")]
    alone = {job.id: job.facts.throughputs for job in jobs}
    pairs = SpeedReader().pairs(("v100",), jobs, alone, Partly())
    rates = {(a[0], b[0]): pairs.rates[i, j, 0] for i, a in enumerate(pairs.kinds) for j, b in enumerate(pairs.kinds)}  # type: ignore[index]
    assert rates["new", "light2"] == pytest.approx(1.8, abs=0.1)
    assert rates["light2", "new"] == pytest.approx(1.8, abs=0.1)
    assert rates["new", "light1"] == pytest.approx(1.8)
    assert rates["new", "heavy"] == rates["heavy", "new"] == 0.0


class ByBatch:
    """Two jobs keep the less of their speed the larger their batches are; the requested ones have a hundred samples."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        return 0.9, 0.9

    def speeds_together(self, jobs: Sequence[JobFacts], gpu_type: str, batches: Sequence[int]) -> NDArray[np.float64]:
        slow = 0.1 * np.array([batch or 100 for batch in batches]) / 100
        return np.asarray(1.0 - np.maximum(slow[:, None], slow))


@pytest.mark.parametrize(("adaptive", "kept"), [(False, 0.9), (True, 0.8)])
def test_jobs_that_tune_their_batch_lose_to_others_what_they_do_at_that_batch(adaptive: bool, kept: float) -> None:
    """Larger batches cost nothing here: jobs take four times as many samples as submitted with, in two passes."""
    limits = replace(LIMITS, largest=400, largest_per_slot=400)
    constant = ThroughputFit("pollux", (0.1, 1e-9, 0.0, 0.0, 0.0, 0.0, 1.0), "fitted", 0.0, 8)
    model = JobModel({"v100": constant}, {"v100": limits}, GradientStats(1.0, 1e6))
    jobs = [
        replace(job(name), facts=replace(job(name).facts, limits={"v100": limits}), model=model) for name in ("a", "b")
    ]
    reader = SpeedReader(adaptive=adaptive)
    alone = reader.speeds(CLUSTER, jobs)
    pairs = reader.pairs(("v100",), jobs, alone, ByBatch())
    assert pairs.rates[0, 1, 0] == pytest.approx(kept * alone["a"]["v100"])


def test_what_is_known_of_pairs_of_kinds_that_are_gone_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds_module, "MOST_PAIRS", 20)
    reader = SpeedReader(profiled=0.5)
    for generation in range(12):
        jobs = [table_job(f"{name}{generation}") for name in ("light", "other")]
        alone = reader.speeds(CLUSTER, jobs)
        reader.try_out(*jobs)
        reader.pairs(("v100",), jobs, alone, Partly())
        assert not reader.try_out(*jobs)
        assert len(reader._pairs) + len(reader._tried) <= 20 + 4


def test_a_pair_that_nobody_has_measured_is_tried() -> None:
    running = Engine(Cluster.parse("v100:1x1"), MaxMinFairnessPacked(), ModelKeeper(), sharing=Partly())
    for name in ("light2", "new"):
        running.handle(Submitted(0.0, table_job(name).facts))
    running.handle(Tick(1.0))
    assert running.jobs["new"].partner == "light2"
