"""Prediction errors on the step times that the peers measured, where their data is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from geminid.bench.model import PLACEMENTS, ModelReport, run
from geminid.sim.measurements import load_measurements

pytestmark = pytest.mark.xdist_group("peer profiles")  # one worker makes the reports that all these look at

PEERS = Path(__file__).parents[3] / "shared" / "peers"


@pytest.fixture(scope="module", params=["pollux/traces", "sia/sia-simulator/traces"])
def report(request: pytest.FixtureRequest) -> ModelReport:
    directory = PEERS / request.param
    if not directory.is_dir():
        pytest.skip(f"the peers' measured profiles are not at {directory.relative_to(PEERS.parents[1])}")
    return run(load_measurements(directory), progress=lambda _: None)


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


def test_carrying_a_fit_over_to_another_type_beats_both_optimism_and_sias_rule(report: ModelReport) -> None:
    if not report.transfers:
        pytest.skip("these profiles are of a single GPU type")
    optimism, scaled, recombined = report.transfers
    assert recombined.mean < min(optimism.mean, scaled.mean)
    assert recombined.median < min(optimism.median, scaled.median)
