"""Prediction errors on the step times that the peers measured, where their data is at hand."""

from __future__ import annotations

from functools import cache

import pytest

from geminid.bench.model import PLACEMENTS, ModelReport, run
from geminid.sim.measurements import load_measurements
from requirements import PEERS

pytestmark = pytest.mark.xdist_group("peer profiles")  # one worker makes the reports that all these look at


POLLUX, SIA = "pollux/traces", "sia/sia-simulator/traces"


@cache
def report_on(folder: str) -> ModelReport:
    return run(load_measurements(PEERS / folder), progress=lambda _: None)


@pytest.fixture(
    scope="module", params=[pytest.param(folder, marks=pytest.mark.needs_peers(folder)) for folder in (POLLUX, SIA)]
)
def report(request: pytest.FixtureRequest) -> ModelReport:
    return report_on(request.param)


def test_our_model_predicts_held_out_placements_better_than_pollux_and_under_ten_percent(report: ModelReport) -> None:
    (row,) = [row for row in report.protocols if row.held_out == PLACEMENTS]
    assert row.geminid_mean < row.pollux_mean
    assert row.geminid_mean < 0.10


def test_our_model_is_the_better_one_whatever_is_held_out(report: ModelReport) -> None:
    assert all(row.geminid_mean < row.pollux_mean for row in report.protocols)


def test_what_cannot_be_predicted_is_explained(report: ModelReport) -> None:
    hard = {(row.application, row.gpu_type): row.why for row in report.applications if row.geminid_mean > 0.15}
    assert set(hard) <= {("imagenet", "azure"), ("ncf", "azure")}
    assert all("slower than several slots" in why for why in hard.values())
    assert {row.application for row in report.excluded} <= {"gpt_pmp"}


@pytest.mark.needs_peers(SIA)
def test_carrying_a_fit_over_to_another_type_beats_both_optimism_and_sias_rule() -> None:
    optimism, scaled, recombined = report_on(SIA).transfers
    assert recombined.mean < min(optimism.mean, scaled.mean)
    assert recombined.median < min(optimism.median, scaled.median)


@pytest.mark.needs_peers(POLLUX)
def test_profiles_of_a_single_type_have_nothing_to_carry_over() -> None:
    assert not report_on(POLLUX).transfers
