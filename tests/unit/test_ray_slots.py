"""The Ray executor's slots, with a bridge that is played: what is asked for again when it was not given."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue
from unittest.mock import MagicMock

import msgspec
import pytest

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.serve import records as r
from geminid.serve.executors.agentevents import CodeGone
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.executor import AgentExecutor
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.bridge import Bridge
from geminid.serve.executors.ray.executor import ray_executor
from geminid.serve.executors.ray.provider import BridgeAnswer
from geminid.serve.executors.starts import SupervisorEvent
from geminid.serve.livejob import LiveJob
from geminid.supervise.events import WorkerStarted
from geminid.testing.ray_doubles import ConnectedAgents, PretendSupervisor, seen_node

NODES = msgspec.to_builtins([seen_node("a", 2), seen_node("b", 2)])


class Played(Bridge):
    """Keeps what it is asked for."""

    def __init__(self, on_answer) -> None:
        self.trouble, self.is_there, self.asked = "", True, []
        on_answer(msgspec.convert({"told": "nodes", "nodes": NODES, "found": {}}, b.Answer))

    def send(self, request: b.Request) -> int | None:
        if self.is_there:
            self.asked.append(msgspec.to_builtins(request))
        return 1 if self.is_there else None

    def leases(self) -> list[tuple[str, ...]]:
        found = [tuple(one["slots"]) for one in self.asked if one["do"] == "lease"]
        self.asked.clear()
        return found

    def close(self) -> None:
        pass


def alone(folder) -> AgentExecutor:
    made = ray_executor(
        folder,
        "auto",
        make_agents=ConnectedAgents,
        make_bridge=lambda command, on_answer: Played(on_answer),
        make_supervisor=PretendSupervisor,
    )
    heard: SimpleQueue[ExecutorEvent] = SimpleQueue()
    made.open(heard.put, [])
    return made


@pytest.fixture
def executor(tmp_path):
    made = alone(tmp_path)
    yield made
    made.close(detach=True)


def job(job_id: str, *slots: int) -> LiveJob:
    spec = JobSpec(name="x", command=("true",), max_slots=2)
    state = JobState.submitted(job_id=job_id, spec=spec, at_s=0.0)
    return LiveJob(state=state, elastic=True, target=Placement.of({"a": list(slots)}))


def run(executor: AgentExecutor, job: LiveJob) -> list[r.Record]:
    return executor.run(job, job.target)


def tell(executor: AgentExecutor, told: str, **document: object) -> list[r.Record]:
    return executor.handle(BridgeAnswer(msgspec.convert({"told": told, **document}, b.Answer)))


def give(executor: AgentExecutor, *slots: str) -> list[r.Record]:
    held = {slot: {"devices": [], "holder": None} for slot in slots}
    return tell(executor, "leased", id=executor.provider.leases.pending._last, held=held)


def test_slots_are_asked_for_once_and_the_job_starts_when_they_are_given(executor):
    bridge = executor.provider.bridge
    assert run(executor, job("j1", 0, 1)) == []
    assert bridge.leases() == [("a/0", "a/1")]
    assert executor.tick(dict) == []
    assert bridge.leases() == []
    (started,) = give(executor, "a/0", "a/1")
    assert started == r.JobStarting(job_id="j1", placement=Placement.of({"a": [0, 1]}))
    assert executor.tick(dict) == []
    assert bridge.leases() == []


def test_slots_that_nobody_could_be_asked_for_are_asked_for_at_the_next_tick(executor):
    bridge = executor.provider.bridge
    bridge.is_there = False
    run(executor, job("j1", 0))
    bridge.is_there = True
    executor.tick(dict)
    assert bridge.leases() == [("a/0",)]


def test_slots_that_were_refused_are_asked_for_again_when_they_are_not_others_any_more(executor):
    bridge = executor.provider.bridge
    run(executor, job("j1", 0))
    bridge.leases()
    refused = {"id": executor.provider.leases.pending._last, "slots": ["a/0"], "withheld": False}
    assert tell(executor, "refused", **refused) == [r.SlotsTaken(node="a", slots=[0])]
    executor.tick(dict)
    assert bridge.leases() == []
    tell(executor, "nodes", nodes=NODES, found=None)
    assert bridge.leases() == [("a/0",)]


def test_slots_that_were_asked_for_another_job_are_asked_for_when_that_is_answered(executor):
    bridge = executor.provider.bridge
    first = job("j1", 0)
    run(executor, first)
    assert bridge.leases() == [("a/0",)]
    executor.stop(first, "cancelled")
    run(executor, job("j2", 0, 1))
    executor.tick(dict)
    assert bridge.leases() == []
    assert give(executor, "a/0") == []
    assert bridge.leases() == [("a/1",)]
    (started,) = give(executor, "a/1")
    assert started == r.JobStarting(job_id="j2", placement=Placement.of({"a": [0, 1]}))


def test_what_was_asked_of_a_bridge_that_is_gone_is_asked_of_the_next(executor):
    bridge = executor.provider.bridge
    run(executor, job("j1", 0))
    bridge.leases()
    tell(executor, "away", bridge=1, trouble="")
    assert bridge.leases() == [("a/0",)]


def test_a_job_is_brought_its_code_where_its_slots_are_held_and_trains_on_while_it_is_brought_again(executor):
    """After the service was started anew, nobody knows where the code is."""
    bridge, both = executor.provider.bridge, {"a": [0], "b": [0]}
    coded = replace(job("j1", 0), target=Placement.of(both), code="c0de")
    assert run(executor, coded) == []
    asked = {one["do"]: one for one in bridge.asked}
    assert (asked["lease"]["slots"], asked["ship"]["nodes"]) == (["a/0", "b/0"], ["a", "b"])
    held = {slot: {"devices": [], "holder": None} for slot in ("a/0", "b/0")}
    assert tell(executor, "leased", id=asked["lease"]["id"], held=held) == []
    place = {"folder": "/code", "environment": {}}
    shipped = {"id": asked["ship"]["id"], "places": {"a": place, "b": place}}
    assert tell(executor, "shipped", **shipped) == [r.JobStarting(job_id="j1", placement=Placement.of(both))]
    executor.flush()
    running = executor.jobs.running["j1"]
    for worker, slot in (("w1", "a/0"), ("w2", "b/0")):
        executor.handle(SupervisorEvent("j1", running.supervisor, WorkerStarted(worker, slot, 1)))
    executor.provider.places._places.clear()
    bridge.asked.clear()
    assert executor.tick(dict) == []
    (again,) = [one for one in bridge.asked if one["do"] == "ship"]
    assert again["nodes"] == ["a", "b"]
    assert tell(executor, "shipped", id=again["id"], places={"a": place}) == []  # and not yet of the other node
    assert running.target == ("a/0", "b/0")


def test_code_of_a_job_that_is_not_wanted_any_more_is_not_brought(executor):
    bridge = executor.provider.bridge
    coded = replace(job("j1", 0), code="c0de")
    run(executor, coded)
    number = shipment(bridge)
    executor.stop(coded, "cancelled")
    bridge.asked.clear()
    bridge.is_there = False
    executor.tick(dict)
    bridge.is_there = True
    executor.tick(dict)
    executor.tick(dict)
    assert unshipped(bridge) == ["j1"]
    assert tell(executor, "shipped", id=number, places={"a": {"folder": "/", "environment": {}}}) == []
    assert executor.provider.places.on("j1", "a") is None


def unshipped(bridge: Played) -> list[str]:
    """The jobs whose code is to be removed, each as often as that was asked for."""
    return [one["job"] for one in bridge.asked if one["do"] == "unship"]


def shipment(bridge: Played) -> int:
    """Under which number code is to be brought."""
    return next(one["id"] for one in bridge.asked if one["do"] == "ship")


def asked_to_ship(executor: AgentExecutor, coded: LiveJob) -> int:
    """Have a job run where it has its slots, and not yet its code; under which number that is to be brought."""
    run(executor, coded)
    give(executor, *(f"{node}/{index}" for node, index in coded.target.slots()))
    return shipment(executor.provider.bridge)


def bring(executor: AgentExecutor, coded: LiveJob) -> None:
    """Have the code of a job be where it is to run, and the job end."""
    run(executor, coded)
    number = shipment(executor.provider.bridge)
    tell(executor, "shipped", id=number, places={"a": {"folder": "/", "environment": {}}})
    executor.stop(coded, "cancelled")


def test_code_is_removed_again_by_the_next_bridge_unless_it_was_told_to_be_gone(executor, tmp_path):
    bridge, written = executor.provider.bridge, tmp_path / "places" / "j1.json"
    bring(executor, replace(job("j1", 0), code="c0de"))
    executor.tick(dict)
    assert unshipped(bridge) == ["j1"]
    executor.tick(dict)
    assert unshipped(bridge) == ["j1"]
    tell(executor, "away", bridge=1, trouble="")
    executor.tick(dict)
    assert unshipped(bridge) == ["j1", "j1"]
    assert written.exists()
    tell(executor, "unshipped", id=bridge.asked[-1]["id"])
    assert not written.exists()
    executor.tick(dict)
    assert unshipped(bridge) == ["j1", "j1"]


def test_code_of_a_job_that_was_over_before_the_service_came_back_is_removed(executor, tmp_path):
    """It had been brought somewhere, or was still on its way."""
    run(executor, replace(job("j1", 0), code="c0de"))
    bring(executor, replace(job("j2", 1), code="c0de"))
    executor.close(detach=True)
    after = alone(tmp_path)
    after.tick(dict)
    assert sorted(unshipped(after.provider.bridge)) == ["j1", "j2"]


def test_where_code_is_stays_known_if_it_is_brought_again_while_it_is_removed(executor, tmp_path):
    bridge, coded = executor.provider.bridge, replace(job("j1", 0), code="c0de")
    bring(executor, coded)
    executor.tick(dict)
    removing = next(one["id"] for one in bridge.asked if one["do"] == "unship")
    bridge.asked.clear()
    bring(executor, coded)
    tell(executor, "unshipped", id=removing)
    assert (tmp_path / "places" / "j1.json").exists()
    assert executor.provider.places.on("j1", "a") is not None


def test_code_is_brought_again_where_another_agent_is_on_the_node(executor):
    """It was let rest while nobody needed it, or it has died: what it had unpacked went with it."""
    bridge, coded = executor.provider.bridge, replace(job("j1", 0), code="c0de")
    number = asked_to_ship(executor, coded)
    place = {"folder": "/", "environment": {}}
    assert tell(executor, "shipped", id=number, places={"a": place}) != []
    assert executor.provider.places.on("j1", "a") == b.CodePlace("/", {})
    bridge.asked.clear()
    other = [{**NODES[0], "agent": {**NODES[0]["agent"], "token": "another"}}, NODES[1]]
    tell(executor, "nodes", nodes=other, found=None)
    assert executor.provider.places.on("j1", "a") is None
    (again,) = [one for one in bridge.asked if one["do"] == "ship"]
    assert tell(executor, "shipped", id=again["id"], places={"a": place}) == []
    assert executor.provider.places.on("j1", "a") == b.CodePlace("/", {})


def test_a_node_that_has_no_room_for_code_is_left_alone_and_whoever_was_to_come_there_goes_elsewhere(executor):
    bridge, coded = executor.provider.bridge, replace(job("j1", 0), code="c0de")
    number = asked_to_ship(executor, coded)
    bridge.asked.clear()
    warning, taken = tell(executor, "unfit", id=number, nodes=["a"], reason="no space left on a")
    assert "no space left on a" in warning.text
    assert taken == r.SlotsTaken(node="a", slots=[0, 1], reason="no space left on a")
    assert [one["slots"] for one in bridge.asked if one["do"] == "release"] == [["a/0"]]
    bridge.asked.clear()
    assert executor.tick(dict) == []
    assert [one["do"] for one in bridge.asked if one["do"] in ("lease", "ship")] == []


def test_code_that_is_gone_from_a_node_is_brought_again_and_whoever_trains_there_trains_on(executor):
    bridge, coded = executor.provider.bridge, replace(job("j1", 0, 1), code="c0de")
    place = {"folder": "/", "environment": {}}
    assert tell(executor, "shipped", id=asked_to_ship(executor, coded), places={"a": place}) != []
    bridge.asked.clear()
    executor.jobs.running["j1"].supervisor = supervisor = MagicMock()
    executor.jobs.running["j1"].workers["w1"] = "a/0"
    executor.handle(CodeGone("j1", "a", frozenset({"a/1"})))
    assert executor.jobs.running["j1"].target == ("a/0",)
    assert executor.provider.places.on("j1", "a") is None
    (again,) = [one for one in bridge.asked if one["do"] == "ship"]
    assert tell(executor, "shipped", id=again["id"], places={"a": place}) != []
    assert executor.jobs.running["j1"].target == ("a/0", "a/1")
    supervisor.kill.assert_not_called()


def test_code_is_with_the_agent_that_has_unpacked_it_and_not_with_the_next_one(executor):
    """It died before others of the same request had answered."""
    bridge, coded = executor.provider.bridge, replace(job("j1", 0), code="c0de")
    number = asked_to_ship(executor, coded)
    bridge.asked.clear()
    place = {"folder": "/", "environment": {}, "agent": "one that is gone"}
    assert tell(executor, "shipped", id=number, places={"a": place}) == []
    assert executor.provider.places.on("j1", "a") is None
    assert [one["nodes"] for one in bridge.asked if one["do"] == "ship"] == [["a"]]
