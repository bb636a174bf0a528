"""Live jobs report step times with the links that they were measured on, so that models know the tier."""

from __future__ import annotations

import json

from geminid.cluster import Cluster
from geminid.goodput.topology import link_slowdown
from geminid.serve import records as r
from geminid.serve.livejob import observation_of

REPORT = r.JobProgressed(
    job_id="j1",
    progress=10.0,
    samples=10,
    step=1,
    epoch=0,
    slots=4,
    nodes=2,
    per_slot_batch=8,
    accumulation_steps=0,
    accumulation_s=0.1,
    step_s=0.4,
    link_slowdown=2.0,
)


def test_a_report_tells_the_model_which_links_its_step_times_are_of() -> None:
    seen = observation_of(REPORT)
    assert seen is not None
    assert seen.link_slowdown == 2.0


def test_reports_written_before_are_of_one_rack() -> None:
    body = json.loads(r.encode(REPORT))
    assert r.decode("JobProgressed", json.dumps(body)) == REPORT
    del body["link_slowdown"]
    old = r.decode("JobProgressed", json.dumps(body))
    assert isinstance(old, r.JobProgressed)
    assert old.link_slowdown == 1.0


def test_nodes_whose_labels_name_other_racks_are_further_apart() -> None:
    nodes = Cluster.from_yaml(
        "nodes: [{type: cpu, slots: 2, name: n1, rack: a}, {type: cpu, slots: 2, name: n2, rack: b}]"
    )
    assert link_slowdown(nodes, {"n1"}) == 1.0
    assert link_slowdown(nodes, {"n1", "n2"}) == 2.0
    assert link_slowdown(nodes, set()) == 1.0
