"""The planner and forecasts leave a running job alone for the same time."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase, JobState
from geminid.nodes import NodeGroup
from geminid.serve.livejob import LiveJob
from geminid.serve.protection import standing_foreseen, standing_now
from geminid.serve.translation import allocation_of, facts_of, view_of
from geminid.serve.whatif import standing_view

CLUSTER = Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=4, name="a")])
PLACE = Placement.of({"a": [0, 1]})


@given(
    elastic=st.booleans(),
    planned_s=st.floats(0.0, 100.0),
    formed_after_s=st.floats(0.0, 50.0),
    age_s=st.floats(0.0, 200.0),
    stays_s=st.floats(0.0, 400.0),
    min_runtime_s=st.sampled_from([0.0, 30.0, 500.0]),
    min_slots=st.sampled_from([1, 2, 3]),
    pauses_s=st.lists(st.floats(0.0, 20.0), max_size=3),
)
def test_a_forecast_protects_a_job_as_the_planner_does(
    elastic: bool,
    planned_s: float,
    formed_after_s: float,
    age_s: float,
    stays_s: float,
    min_runtime_s: float,
    min_slots: int,
    pauses_s: list[float],
) -> None:
    spec = JobSpec(name="x", command=("x",), max_slots=4, min_runtime_s=min_runtime_s)
    state = JobState.submitted(job_id="j1", spec=spec, at_s=0.0)
    formed_s = planned_s + formed_after_s
    state = state.move(JobPhase.STARTING, at_s=planned_s, placement=PLACE)
    changed = replace(spec, min_slots=min_slots)  # its owner may ask for more by now
    state = replace(state, spec=changed, phase=JobPhase.RUNNING, updated_at_s=formed_s)
    job = LiveJob(
        state=state,
        elastic=elastic,
        target=PLACE,
        target_since_s=planned_s,
        formed_at_s=formed_s,
        stays_put_until_s=stays_s,
        pauses_s=tuple(pauses_s),
    )
    now_s = formed_s + age_s
    live = standing_now(job, view_of(job, CLUSTER, now_s)).protected_until_s
    view = standing_view(job, facts_of(job, CLUSTER), allocation_of(PLACE, CLUSTER), CLUSTER, now_s)
    foreseen = standing_foreseen(job, view, now_s, resizable=elastic).protected_until_s
    if live == inf or live <= now_s:
        assert foreseen == live or foreseen <= 0.0
    else:
        assert foreseen + now_s == pytest.approx(live)
