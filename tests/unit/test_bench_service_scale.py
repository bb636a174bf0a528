"""What the service costs on large clusters: that the parts which are measured do what they are said to do."""

from __future__ import annotations

from collections import Counter

import pytest

from geminid.bench import heartbeats, service_scale
from geminid.bench.executor_scale import ManyJobs, ManyNodes
from geminid.bench.heartbeats import Heard
from geminid.bench.service_scale import _Scene
from geminid.serve.executors import executor

NODES = 3


@pytest.fixture
def many():
    scene = _Scene(NODES)
    with scene.executor() as made:
        yield made
    scene.close()


def holds(many: ManyJobs) -> dict[str, set[str]]:
    return {job_id: running.holds for job_id, running in many._executor.jobs.running.items()}


def test_all_jobs_run_where_they_are_planned_and_do_so_after_others_have_taken_their_places(many):
    planned = {
        job.id: {f"{node}/{index}" for node, index in job.target.slots()} for job in many.jobs.values() if job.target
    }
    assert len(planned) == 2 * NODES
    assert holds(many) == planned
    many.come_and_go(["j0", "j3"])
    many.tick()
    many.hear_nodes()
    many.report(many.jobs)
    assert holds(many) == planned
    assert all(many._executor._is_there(job_id) for job_id in planned)


def test_a_report_and_a_look_at_the_clock_lead_nobody_who_is_there(many, monkeypatch):
    led: Counter[str] = Counter()
    monkeypatch.setattr(
        executor, "reconcile", lambda desired, actual: led.update([job.job_id for job in desired]) or []
    )
    many.report(many.jobs)
    many.tick()
    assert not led
    many._executor.provider.leases.held.popitem()
    many.tick()
    assert sum(led.values()) == 1  # whose slot Ray has not given: it is asked for again


def test_the_bridge_sees_all_nodes_and_no_slots_of_others():
    made = ManyNodes(["a", "b"], 8)
    assert made.look()
    assert not made.look()  # nothing has changed
    assert [(node.name, node.slots, node.others) for node in made._said] == [("a", 8, 0), ("b", 8, 0)]
    del made._bridge._leases.held["b/3"], made._bridge._leases.held["b/4"]
    for _ in range(3):  # counts of Ray lag a little: it is believed after some looks
        made.look()
    assert [node.others for node in made._said] == [0, 2]
    assert b'"others":2' in made.tell()
    made.close()


def test_the_largest_part_comes_first(monkeypatch):
    monkeypatch.setattr(heartbeats, "measure", lambda *sizes: Heard(1e-5, 1e-5))
    monkeypatch.setattr(heartbeats, "ping", lambda *sizes: 1e-5)
    parts = service_scale.measure(NODES)
    shares = [part.share for part in parts]
    assert shares == sorted(shares, reverse=True)
    assert {part.part.partition(":")[0] for part in parts} >= {"executor", "bridge", "heartbeats", "decisions"}
    assert all(part.each_ms > 0.0 for part in parts)
