"""Means over seeds have Student's intervals, and differences between policies are paired by seed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from geminid.sim.seeds import Estimate, over_seeds


def result(policy: str, jct_s: float, **more: Any) -> dict[str, Any]:
    return {"policy": policy, "jobs": 10, "unfinished_jobs": 0, "avg_jct_s": jct_s, **more}


def test_intervals_are_students() -> None:
    found = Estimate.of([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high == pytest.approx(2.0 + 4.302652729911275 / math.sqrt(3.0))
    assert found.low == pytest.approx(2.0 - 4.302652729911275 / math.sqrt(3.0))


def test_a_single_value_has_no_interval() -> None:
    assert Estimate.of([3.0]) == Estimate(3.0, None, None)
    assert not Estimate.of([3.0]).differs_from_zero


def test_differences_are_paired_by_seed() -> None:
    first = [result("fifo", value) for value in (100.0, 1000.0, 400.0)]
    second = [result("geminid", 0.8 * value) for value in (100.0, 1000.0, 400.0)]
    rows = over_seeds([first, second], [4, 5, 6])
    assert rows[0]["to_first"] == {}
    change = Estimate(**rows[1]["to_first"]["avg_jct_s"])
    assert change.mean == pytest.approx(-0.2)
    assert change.differs_from_zero
    means = Estimate(**rows[1]["interval"]["avg_jct_s"])
    assert means.low is not None
    assert means.low < 0, "the means alone say nothing"
    assert rows[1]["seeds"] == [4, 5, 6]
    assert rows[1]["by_seed"]["avg_jct_s"] == [80.0, 800.0, 320.0]


def test_a_measure_that_a_seed_lacks_is_left_out() -> None:
    first = [result("fifo", 1.0, worst_ftf=None), result("fifo", 2.0, worst_ftf=1.0)]
    rows = over_seeds([first], [0, 1])
    assert rows[0]["worst_ftf"] is None
    assert "worst_ftf" not in rows[0]["interval"]
