"""The Ray executor's slots, with a bridge that is played: what is asked for again when it was not given."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import pytest

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.serve import records as r
from geminid.serve.executors.base import Happening
from geminid.serve.executors.bridge import Bridge
from geminid.serve.executors.ray import RayExecutor, _Bridged
from geminid.serve.executorscale import _Lines, _Quiet, _told
from geminid.serve.state import LiveJob

NODES = [_told("a", 2), _told("b", 2)]


class Played(Bridge):
    """Keeps what it is asked for."""

    def __init__(self, on_document) -> None:
        self.trouble, self.is_there, self.asked = "", True, []
        on_document({"told": "nodes", "nodes": NODES, "found": {}})

    def send(self, document: Mapping[str, Any]) -> int | None:
        if self.is_there:
            self.asked.append(document)
        return 1 if self.is_there else None

    def leases(self) -> list[tuple[str, ...]]:
        found = [tuple(one["slots"]) for one in self.asked if one["do"] == "lease"]
        self.asked.clear()
        return found

    def close(self) -> None:
        pass


@pytest.fixture
def executor(tmp_path):
    class Alone(RayExecutor):
        _lines = _Lines
        _talker = staticmethod(lambda command, on_document: Played(on_document))

        def _supervise(self, job: LiveJob, *, adopt: bool) -> _Quiet:
            return _Quiet(())

    made = Alone(tmp_path, "auto")
    heard: SimpleQueue[Happening] = SimpleQueue()
    made.open(heard.put, [])
    yield made
    made.close(detach=True)


def job(job_id: str, *slots: int) -> LiveJob:
    spec = JobSpec(name="x", command=("true",), max_slots=2)
    state = JobState.submitted(job_id=job_id, spec=spec, at_s=0.0)
    return LiveJob(state=state, elastic=True, target=Placement.of({"a": list(slots)}))


def run(executor: RayExecutor, job: LiveJob) -> list[r.Record]:
    return executor.run(job, job.target)


def tell(executor: RayExecutor, told: str, **document: object) -> list[r.Record]:
    return executor.take(_Bridged({"told": told, **document}))


def give(executor: RayExecutor, *slots: str) -> list[r.Record]:
    held = {slot: {"devices": [], "holder": None} for slot in slots}
    return tell(executor, "leased", id=executor._asked, held=held)


def test_slots_are_asked_for_once_and_the_job_starts_when_they_are_given(executor):
    bridge = executor._bridge
    assert run(executor, job("j1", 0, 1)) == []
    assert bridge.leases() == [("a/0", "a/1")]
    assert executor.tick() == []
    assert bridge.leases() == []
    (started,) = give(executor, "a/0", "a/1")
    assert started == r.JobStarting(job_id="j1", placement=Placement.of({"a": [0, 1]}))
    assert executor.tick() == []
    assert bridge.leases() == []


def test_slots_that_nobody_could_be_asked_for_are_asked_for_at_the_next_tick(executor):
    bridge = executor._bridge
    bridge.is_there = False
    run(executor, job("j1", 0))
    bridge.is_there = True
    executor.tick()
    assert bridge.leases() == [("a/0",)]


def test_slots_that_were_refused_are_asked_for_again_when_they_are_not_others_any_more(executor):
    bridge = executor._bridge
    run(executor, job("j1", 0))
    bridge.leases()
    refused = {"id": executor._asked, "slots": ["a/0"], "withheld": False}
    assert tell(executor, "refused", **refused) == [r.SlotsTaken(node="a", slots=[0])]
    executor.tick()
    assert bridge.leases() == []
    tell(executor, "nodes", nodes=NODES, found=None)
    assert bridge.leases() == [("a/0",)]


def test_slots_that_were_asked_for_another_job_are_asked_for_when_that_is_answered(executor):
    bridge = executor._bridge
    first = job("j1", 0)
    run(executor, first)
    assert bridge.leases() == [("a/0",)]
    executor.stop(first, "cancelled")
    run(executor, job("j2", 0, 1))
    executor.tick()
    assert bridge.leases() == []
    assert give(executor, "a/0") == []
    assert bridge.leases() == [("a/1",)]
    (started,) = give(executor, "a/1")
    assert started == r.JobStarting(job_id="j2", placement=Placement.of({"a": [0, 1]}))


def test_what_was_asked_of_a_bridge_that_is_gone_is_asked_of_the_next(executor):
    bridge = executor._bridge
    run(executor, job("j1", 0))
    bridge.leases()
    tell(executor, "away", bridge=1, trouble="")
    assert bridge.leases() == [("a/0",)]
