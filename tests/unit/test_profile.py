from __future__ import annotations

import math
from dataclasses import replace

import pytest

from geminid.goodput.profile import MEMORY_REPORTS, Observation, Profile

SEEN = Observation(nodes=1, slots=2, busiest_node_slots=2, per_slot_batch=8, accumulation_s=1.0, step_s=2.0, reports=1)


def test_repeated_reports_are_averaged() -> None:
    profile = Profile().record(SEEN).record(replace(SEEN, accumulation_s=3.0, step_s=4.0))
    (merged,) = profile.observations
    assert (merged.accumulation_s, merged.step_s, merged.reports) == (2.0, 3.0, 2)


def test_drift_shows_however_long_a_job_has_run() -> None:
    profile = Profile((replace(SEEN, reports=1_000_000),))
    for _ in range(2 * MEMORY_REPORTS):
        profile = profile.record(replace(SEEN, step_s=4.0))
    assert profile.observations[0].step_s > 3.5


def test_configurations_are_kept_apart() -> None:
    profile = Profile().record(SEEN).record(replace(SEEN, per_slot_batch=16)).record(replace(SEEN, slots=4, nodes=2))
    assert len(profile.observations) == 3
    assert profile.most_slots == 4


@pytest.mark.parametrize("bad", [replace(SEEN, step_s=math.nan), replace(SEEN, accumulation_s=-1.0)])
def test_an_impossible_report_changes_nothing(bad: Observation) -> None:
    profile = Profile().record(SEEN)
    assert profile.record(bad) is profile


def test_a_report_may_not_put_more_on_the_busiest_node_than_there_is() -> None:
    assert "busiest" in (replace(SEEN, busiest_node_slots=3).problem() or "")
    assert "busiest" in (replace(SEEN, nodes=2, busiest_node_slots=2).problem() or "")
