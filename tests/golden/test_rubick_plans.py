"""Prediction errors and regrets on the step times that Rubick's authors measured, where their data is at hand."""

from __future__ import annotations

import pytest

from geminid.bench.plans import ERROR_GOAL, P95_GOAL, WORST_GOAL, run
from geminid.sim.profiles.rubick import load_models
from requirements import PEERS


@pytest.mark.needs_peers("rubick/placements")
def test_eight_samples_predict_plans_well_enough_to_choose_them() -> None:
    rows = run(load_models(PEERS / "rubick"), samples=8, draws=100, seed=0)
    assert [row.model for row in rows] == ["bert", "gpt2", "llama7", "roberta", "t5", "vit"]
    assert max(row.median_error for row in rows) <= ERROR_GOAL
    assert max(row.p95_regret for row in rows) <= P95_GOAL
    assert max(row.worst_regret for row in rows) <= WORST_GOAL
    assert all(row.median_error < row.published_median_error for row in rows)
