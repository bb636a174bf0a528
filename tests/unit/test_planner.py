"""What the planner makes of jobs, nodes that come and go, and slots that others use."""

from dataclasses import replace

import pytest

from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.configuration import Configuration, Placement
from geminid.engine.explain import expected_speed, explain
from geminid.job import JobSpec
from geminid.nodes import NodeGroup
from geminid.policies.base import ClusterView, Decision, Policy
from geminid.policies.registry import make_policy
from geminid.policies.slaq import Slaq
from geminid.serve import records as r
from geminid.serve.planner import Planner
from geminid.serve.protection import standing_now
from geminid.serve.state import ServiceState
from geminid.sim.run import load_policy
from geminid.testing.clock import ManualClock


def nodes(**types: str) -> Cluster:
    return Cluster.of_groups([NodeGroup(gpu_type=kind, slots=2, name=name) for name, kind in types.items()])


def started(cluster: Cluster) -> r.ServiceStarted:
    types = {"gpu_types_by_node": {node.name: node.gpu_type for node in cluster.nodes}}
    return r.ServiceStarted(epoch=1, version="0", policy="geminid", cluster=types)


class Scene:
    """A planner and its state, and what they are told."""

    def __init__(self, cluster: Cluster, policy: Policy | None = None) -> None:
        self.state, self.clock = ServiceState(), Clock()
        self.tell(started(cluster), planner=False)
        policy = policy or make_policy("geminid:gap=0", load_policy)
        self.planner = Planner(cluster, policy, "geminid", self.state, self.clock)

    def tell(self, record: r.Record, *, planner: bool = True) -> None:
        self.state.apply(self.state.seq + 1, self.clock.now_s(), record)
        if planner:
            self.planner.notice(record)

    def submit(self, job_id: str, *, elastic: bool = False, **fields: object) -> None:
        spec = JobSpec.from_dict({"name": "x", "command": ["x"], **fields})
        self.tell(r.JobSubmitted(job_id=job_id, spec=spec, elastic=elastic, request=None))
        self.planner.sync([job_id])

    def plan(self) -> dict[str, Placement | None]:
        records = self.planner.decide()
        for record in records:
            self.tell(record)
        assert not [record for record in records if isinstance(record, r.Noted)], records
        return {job.id: job.target for job in self.state.jobs.values()}


def test_a_plain_command_gets_only_types_that_it_allows_even_of_nodes_that_come_later():
    scene = Scene(nodes(a="cpu", b="cpu"))
    scene.submit("j1", slots=1, gpu_types=["a100"])
    assert scene.plan() == {"j1": None}
    assert scene.planner.requested_slots() == {"a100": 1}
    scene.planner.follow(nodes(a="cpu", b="cpu", c="a100"))
    scene.tell(r.NodeJoined(node="c", gpu_type="a100", slots=2))
    assert scene.plan()["j1"].node_names == ("c",)


def test_a_job_never_gets_less_than_it_needs_and_its_wish_is_told_at_once():
    scene = Scene(nodes(a="cpu", b="a100"))
    scene.submit("j1", slots=3, gpu_types=["a100"])
    assert scene.planner.due_s() <= scene.clock.now_s()
    assert scene.plan() == {"j1": None}
    assert scene.planner.requested_slots() == {"a100": 3}
    scene.tell(r.NodeJoined(node="c", gpu_type="a100", slots=2))
    scene.planner.follow(nodes(a="cpu", b="a100", c="a100"))
    assert scene.plan()["j1"].num_slots == 3
    assert scene.planner.requested_slots() == {"a100": 3}


class Wishing(Policy):
    """Nobody gets anything, and three nodes of one type are wished for."""

    name = paper = objective = "wishing"

    def decide(self, view: ClusterView) -> Decision:
        return Decision({}, desired_nodes={"a100": 3})


def test_wishes_of_a_policy_are_by_type():
    scene = Scene(nodes(a="cpu", b="a100"), Wishing())
    scene.submit("j1", slots=1)
    scene.plan()
    assert scene.planner.requested_slots() == {"cpu": 1, "a100": 6}


def test_slots_that_others_use_are_given_to_nobody():
    scene = Scene(nodes(a="cpu"))
    scene.tell(r.SlotsTaken(node="a", slots=[0]))
    scene.submit("j1", slots=1)
    scene.submit("j2", slots=1)
    assert [place for place in scene.plan().values() if place] == [Placement.of({"a": [1]})]
    scene.tell(r.SlotsTaken(node="a", slots=[]))
    assert sorted(place.slots_by_node for place in scene.plan().values()) == [(("a", (0,)),), (("a", (1,)),)]


@pytest.mark.parametrize(("least", "left"), [(1, Placement.of({"b": [0, 1]})), (3, None)])
def test_a_job_keeps_what_it_has_elsewhere_if_that_is_enough(least, left):
    cluster = nodes(a="cpu", b="cpu")
    scene = Scene(cluster)
    scene.submit("j1", elastic=True, min_slots=least, max_slots=4)
    both = Placement.of({"a": [0, 1], "b": [0, 1]})
    scene.tell(r.Planned(targets={"j1": both}, reasons={}))
    scene.tell(r.NodeLeft(node="a", reason="node a is gone"))
    assert scene.state.jobs["j1"].target == left
    scene.planner.follow(cluster)
    held = scene.plan()["j1"]
    assert held is None if least == 3 else held.node_names == ("b",)
    scene.tell(r.NodeJoined(node="a", gpu_type="cpu", slots=2))
    assert scene.state.down == frozenset()
    assert ServiceState.from_dict(scene.state.to_dict()) == scene.state


def by_hand(scene: Scene) -> ManualClock:
    """Have a scene's clock set by hand, from now on."""
    clock = ManualClock(scene.clock.now_s())
    scene.clock = scene.planner.clock = scene.planner.live.clock = clock
    return clock


def test_a_job_that_crashed_waits_for_its_turn_under_a_new_planner_as_well():
    """Started at once, it was withdrawn as soon as it was looked at, and others were given the slots that it had."""
    scene = Scene(nodes(a="cpu"))
    scene.submit("j1", slots=2)
    place = scene.plan()["j1"]
    assert place is not None
    scene.tell(r.JobStarting(job_id="j1", placement=place))
    scene.tell(r.JobFormed(job_id="j1", placement=place))
    scene.tell(r.JobEnded(job_id="j1", how="crashed", reason="x"))
    assert scene.state.jobs["j1"].held_until_s > scene.clock.now_s()
    scene.planner.start_over()
    assert scene.plan() == {"j1": None}
    scene.submit("j2", slots=2)
    assert scene.plan() == {"j1": None, "j2": place}
    scene.state.check()


def test_a_job_that_took_long_to_start_is_not_stopped_the_moment_it_trains():
    """It is left alone for some seconds of training, not for some seconds since it was planned."""
    scene = Scene(Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=1, name="a")]))
    clock = by_hand(scene)
    scene.submit("j1", elastic=True, epochs=1000, dataset_samples=1000, initial_batch_size=10)
    place = scene.plan()["j1"]
    assert place is not None
    scene.tell(r.JobStarting(job_id="j1", placement=place))
    scene.submit("j2", slots=1, priority=900)
    clock.at_s += 20.0
    scene.tell(r.JobFormed(job_id="j1", placement=place))
    clock.at_s += 1.0
    kept = scene.planner.live.protected_until_s(scene.planner.engine.jobs["j1"])
    assert kept == pytest.approx(clock.at_s + 2.0)
    assert scene.plan()["j1"] == place


def run(scene: Scene, *job_ids: str) -> None:
    """Have jobs run where they are planned to."""
    for job_id in job_ids:
        place = scene.state.jobs[job_id].target
        assert place is not None
        scene.tell(r.JobStarting(job_id=job_id, placement=place))
        scene.tell(r.JobFormed(job_id=job_id, placement=place))
        scene.planner.sync([job_id])


def cordon(scene: Scene, slot: int, *, undo: bool = False) -> None:
    scene.tell(r.SlotCordoned(node="a", slot=slot, cordoned=not undo, by="op"))
    scene.planner.sync([])


def on(scene: Scene, job_id: str) -> tuple[int, ...]:
    place = scene.state.jobs[job_id].target
    return () if place is None else tuple(slot for _, slot in place.slots())


def test_a_plain_command_stays_on_a_cordoned_slot_until_it_ends_and_nobody_follows_it():
    scene = Scene(nodes(a="cpu"))
    scene.submit("j1", slots=1)
    scene.plan()
    run(scene, "j1")
    (mine,) = on(scene, "j1")
    cordon(scene, mine)  # another slot is free, where it would have to begin again
    assert scene.plan()["j1"] == Placement.of({"a": [mine]})
    scene.submit("j2", slots=1)
    scene.submit("j3", slots=1)
    scene.plan()
    assert on(scene, "j1") == (mine,)
    assert on(scene, "j2") == (1 - mine,)
    run(scene, "j2")
    scene.tell(r.JobEnded(job_id="j1", how="succeeded"))
    scene.planner.sync(["j1"])
    assert scene.plan()["j3"] is None
    cordon(scene, mine, undo=True)
    assert scene.plan()["j3"] == Placement.of({"a": [mine]})


def test_a_drain_stops_a_plain_command_even_on_a_cordoned_slot():
    scene = Scene(nodes(a="cpu"))
    scene.submit("j1", slots=1)
    scene.plan()
    run(scene, "j1")
    cordon(scene, on(scene, "j1")[0])
    scene.tell(r.NodeDrained(node="a", drained=True, by="op"))
    scene.planner.sync([])
    assert scene.plan()["j1"] is None


def test_whoever_was_paused_has_not_waited_meanwhile():
    """A wide job that comes back from a long pause holds nobody back."""
    scene = Scene(nodes(a="cpu"))
    clock = by_hand(scene)
    scene.submit("j1", slots=1)
    scene.plan()
    run(scene, "j1")
    scene.submit("j2", slots=2)
    scene.tell(r.JobWished(job_id="j2", wish="pause", by="ann"))
    clock.at_s += 100_000.0
    scene.tell(r.JobWished(job_id="j2", wish="run", by="ann"))
    assert scene.state.jobs["j2"].rested_s == 100_000.0
    assert ServiceState.from_dict(scene.state.to_dict()) == scene.state
    scene.planner.sync(["j2"])
    scene.submit("j3", slots=1)
    assert scene.plan()["j3"] is not None
    clock.at_s += 100_000.0  # but now it has
    scene.submit("j4", slots=1)
    scene.tell(r.JobEnded(job_id="j3", how="succeeded"))
    scene.planner.sync(["j3"])
    assert scene.plan()["j4"] is None


def test_a_wish_that_comes_while_a_job_is_on_its_way_is_granted_soon_after_it_has_arrived():
    scene = Scene(nodes(a="cpu", b="cpu"), make_policy("geminid:gap=0,fill=true", load_policy))
    clock = by_hand(scene)
    scene.submit("j1", elastic=True, min_slots=1, max_slots=1)
    target = scene.plan()["j1"]
    scene.tell(r.JobStarting(job_id="j1", placement=target))
    scene.tell(r.JobChanged(job_id="j1", by="ann", min_slots=2, max_slots=2))
    scene.planner.sync(["j1"])
    assert scene.plan()["j1"] == target  # it has not even begun
    clock.at_s += 1.0
    scene.tell(r.JobFormed(job_id="j1", placement=target))
    scene.planner.sync(["j1"])
    assert scene.planner.due_s() <= clock.at_s + 5.0
    clock.at_s += 5.0
    assert scene.plan()["j1"].num_slots == 2


def test_a_job_that_cannot_come_where_it_is_planned_waits_and_takes_nothing_from_others():
    scene = Scene(nodes(a="cpu"))
    clock = by_hand(scene)
    scene.submit("j1", slots=2)
    assert scene.plan()["j1"] is not None
    scene.tell(r.JobHeld(job_id="j1", for_s=30.0, reason="no such package"))
    scene.planner.sync(["j1"])
    assert scene.state.jobs["j1"].story[-1].text == "pending: no such package; it is tried again in 30 s"
    assert ServiceState.from_dict(scene.state.to_dict()) == scene.state
    scene.submit("j2", slots=1)
    assert [scene.plan()[job_id] is None for job_id in ("j1", "j2")] == [True, False]
    run(scene, "j2")
    scene.tell(r.JobEnded(job_id="j2", how="succeeded"))
    clock.at_s += 31.0
    scene.planner.sync(["j2"])
    assert scene.plan()["j1"] is not None


def test_a_job_that_cannot_grow_stays_as_it_is_for_a_while_and_others_have_the_slots():
    scene = Scene(nodes(a="cpu", b="cpu"))
    clock = by_hand(scene)
    scene.submit("j1", elastic=True, min_slots=1, max_slots=4)
    here, there = Placement.of({"a": [0, 1]}), Placement.of({"a": [0, 1], "b": [0, 1]})
    scene.tell(r.Planned(targets={"j1": here}, reasons={}))
    run(scene, "j1")
    scene.tell(r.Planned(targets={"j1": there}, reasons={}))
    scene.tell(r.JobHeld(job_id="j1", for_s=30.0, reason="no such package"))
    scene.planner.sync(["j1"])
    assert scene.state.jobs["j1"].target == here
    assert scene.state.jobs["j1"].story[-1].text == "it stays on 2 slots for 30 s: no such package"
    scene.submit("j2", slots=2)
    plan = scene.plan()
    assert (plan["j1"], plan["j2"]) == (here, Placement.of({"b": [0, 1]}))
    view = scene.planner.engine.jobs["j1"]
    assert view.facts.max_slots == 2
    assert (
        standing_now(scene.state.jobs["j1"], view).protected_until_s < scene.state.jobs["j1"].stays_until_s
    )  # others may need its slots
    clock.at_s += 31.0
    assert scene.planner.due_s() <= clock.at_s
    scene.planner.sync([])
    assert scene.planner.engine.jobs["j1"].facts.max_slots == 4


def test_a_job_that_has_less_than_its_owner_says_by_now_is_not_left_alone():
    scene = Scene(nodes(a="cpu", b="cpu"))
    clock = by_hand(scene)
    scene.submit("j1", elastic=True, min_slots=1, max_slots=4)
    here = Placement.of({"a": [0, 1]})
    scene.tell(r.Planned(targets={"j1": here}, reasons={}))
    run(scene, "j1")
    scene.tell(r.JobHeld(job_id="j1", for_s=30.0, reason="no such package", placement=here))
    scene.planner.sync(["j1"])
    view = scene.planner.engine.jobs["j1"]
    assert (view.facts.max_slots, standing_now(scene.state.jobs["j1"], view).protected_until_s > clock.at_s) == (
        2,
        True,
    )
    scene.tell(r.JobChanged(job_id="j1", by="ann", min_slots=3))
    scene.planner.sync(["j1"])
    view = scene.planner.engine.jobs["j1"]
    assert (view.facts.min_slots, view.facts.max_slots) == (3, 4)
    assert standing_now(scene.state.jobs["j1"], view).protected_until_s <= clock.at_s


def test_a_job_that_cannot_move_keeps_its_slots_from_whoever_was_to_have_them():
    scene = Scene(nodes(a="cpu", b="cpu"))
    by_hand(scene)
    scene.submit("j1", elastic=True, min_slots=1, max_slots=2)
    here, there = Placement.of({"a": [0, 1]}), Placement.of({"b": [0, 1]})
    scene.tell(r.Planned(targets={"j1": here}, reasons={}))
    run(scene, "j1")
    scene.submit("j2", slots=2)
    scene.tell(r.Planned(targets={"j1": there, "j2": here}, reasons={}))
    scene.tell(r.JobHeld(job_id="j1", for_s=30.0, reason="no such package"))
    scene.state.check()
    assert [scene.state.jobs[job_id].target for job_id in ("j1", "j2")] == [here, None]
    scene.planner.sync(["j1", "j2"])
    plan = scene.plan()
    scene.state.check()
    assert (plan["j1"], plan["j2"]) == (here, there)


def test_a_job_that_cannot_move_while_it_is_on_its_way_stays_where_it_comes_to():
    """On its way it holds the slots that it leaves and those that it comes to, which may be more than it asked for."""
    scene = Scene(nodes(a="cpu", b="cpu"))
    by_hand(scene)
    scene.submit("j1", elastic=True, min_slots=1, max_slots=2)
    here, there = Placement.of({"a": [0, 1]}), Placement.of({"a": [0], "b": [0]})
    scene.tell(r.Planned(targets={"j1": here}, reasons={}))
    run(scene, "j1")
    scene.tell(r.Planned(targets={"j1": there}, reasons={}))
    scene.tell(r.JobRescaling(job_id="j1", placement=Placement.of({"a": [0, 1], "b": [0]})))
    scene.tell(r.JobHeld(job_id="j1", for_s=30.0, reason="no such package", placement=here))
    assert scene.state.jobs["j1"].target == here


def test_survivors_that_are_too_few_and_cannot_be_joined_by_others_wait():
    scene = Scene(nodes(a="cpu", b="cpu", c="cpu"))
    clock = by_hand(scene)
    scene.submit("j1", elastic=True, min_slots=4, max_slots=4)
    scene.tell(r.Planned(targets={"j1": Placement.of({"a": [0, 1], "b": [0, 1]})}, reasons={}))
    run(scene, "j1")
    scene.tell(r.NodeLeft(node="b", reason="node b is gone"))
    scene.tell(r.Planned(targets={"j1": Placement.of({"a": [0, 1], "c": [0, 1]})}, reasons={}))
    left = Placement.of({"a": [0, 1]})
    scene.tell(r.JobFormed(job_id="j1", placement=left, pause_s=0.1))
    scene.tell(r.JobHeld(job_id="j1", for_s=30.0, reason="no such package", placement=left))
    assert scene.state.jobs["j1"].target is None
    scene.tell(r.JobEnded(job_id="j1", how="stopped"))
    scene.planner.sync(["j1"])
    assert scene.plan()["j1"] is None
    clock.at_s += 31.0
    scene.planner.sync(["j1"])
    assert scene.plan()["j1"].num_slots == 4


def test_a_command_that_crashed_keeps_its_place_among_those_that_wait():
    scene = Scene(nodes(a="cpu"))
    clock = by_hand(scene)
    scene.submit("j1", slots=2)
    assert scene.plan()["j1"] is not None
    run(scene, "j1")
    scene.tell(r.JobEnded(job_id="j1", how="crashed", reason="it ended with exit code 1"))
    scene.planner.sync(["j1"])
    for i in range(2, 6):
        clock.at_s += 0.1
        scene.submit(f"j{i}", slots=2)
    clock.at_s += 20.0
    scene.planner.sync([])
    view, _ = scene.planner.view_with("j1")
    assert [job.id for job in view.jobs] == ["j1", "j2", "j3"]
    assert {job_id: len(times) for job_id, times in view.behind.items()} == {"j3": 2}  # j4 and j5
    assert scene.plan()["j1"] is not None


def usable(scene: Scene) -> list[int]:
    return list(scene.planner.engine.view().usable_slots)


def test_an_operators_drain_and_that_of_the_nodes_owner_know_nothing_of_each_other():
    drain = {drained: r.NodeDrained(node="a", drained=drained, by="op") for drained in (True, False)}
    leave = {leaving: r.NodeLeaving(node="a", leaving=leaving) for leaving in (True, False)}
    for first, second in ((drain, leave), (leave, drain)):
        scene = Scene(nodes(a="cpu", b="cpu"))
        for record, left in ((first[True], 0), (second[True], 0), (first[False], 0), (second[False], 2)):
            scene.tell(record)
            assert usable(scene) == [left, 2]
            assert ServiceState.from_dict(scene.state.to_dict()) == scene.state


def test_a_node_that_was_about_to_leave_comes_back_as_any_other_and_stays_drained_if_it_was():
    cluster = nodes(a="cpu", b="cpu")
    for drained, left in ((False, 2), (True, 0)):
        for between in (
            [r.NodeLeft(node="a", reason="gone"), r.NodeJoined(node="a", gpu_type="cpu", slots=2)],
            [started(cluster)],
        ):
            scene = Scene(cluster)
            scene.tell(r.NodeDrained(node="a", drained=drained, by="op"))
            scene.tell(r.NodeLeaving(node="a", leaving=True))
            for record in between:
                scene.tell(record)
            scene.planner.follow(cluster)
            assert usable(scene) == [left, 2]


def test_a_node_that_is_gone_is_not_there_again_because_it_is_not_drained_any_more():
    scene = Scene(nodes(a="cpu", b="cpu"))
    scene.tell(r.NodeDrained(node="a", drained=True, by="op"))
    scene.tell(r.NodeLeft(node="a", reason="gone"))
    scene.planner.follow(scene.planner.cluster)
    scene.tell(r.NodeDrained(node="a", drained=False, by="op"))
    assert usable(scene) == [0, 2]


def test_an_elastic_job_that_has_nowhere_to_go_stays_on_a_cordoned_slot_and_leaves_when_it_can():
    scene = Scene(nodes(a="cpu"))
    clock = by_hand(scene)
    for job_id in ("j1", "j2"):
        scene.submit(job_id, elastic=True, min_slots=1, max_slots=1)
    scene.plan()
    run(scene, "j1", "j2")
    clock.at_s += 100.0
    (mine,) = on(scene, "j1")
    cordon(scene, mine)
    scene.submit("j3", slots=1, priority=900)
    before = scene.plan()
    assert before["j1"] == Placement.of({"a": [mine]})  # whoever else is preempted for j3
    assert {job_id for job_id, place in before.items() if place} in ({"j1", "j2"}, {"j1", "j3"})
    scene.tell(r.JobWished(job_id="j3", wish="cancel", by="op"))
    scene.tell(r.JobWished(job_id="j2", wish="cancel", by="op"))
    scene.planner.sync(["j2", "j3"])
    clock.at_s += 100.0
    assert scene.plan()["j1"] == Placement.of({"a": [1 - mine]})


def test_a_command_is_not_stopped_for_a_cordon_under_somebody_who_has_just_started():
    scene = Scene(Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=3, name="a")]))
    scene.submit("j1", elastic=True, min_slots=1, max_slots=2)
    scene.submit("j2", slots=1)
    two, one = Placement.of({"a": [0, 1]}), Placement.of({"a": [2]})
    scene.tell(r.Planned(targets={"j1": two, "j2": one}, reasons={}))
    scene.planner.start_over()
    run(scene, "j1", "j2")
    cordon(scene, 0)
    after = scene.plan()
    assert after["j2"] == one
    assert after["j1"] is not None


class Widening(Policy):
    """Gives the only job one slot, and two once it is told to; remembers which model it saw last."""

    name = paper = objective = "widening"
    needs_models = True
    slots, saw = 1, None

    def decide(self, view: ClusterView) -> Decision:
        self.saw = view.jobs[0].model
        return Decision({view.jobs[0].id: Configuration(gpu_type="cpu", nodes=1, slots=self.slots)})


def test_the_speed_that_a_story_expects_is_of_the_model_that_the_decision_was_made_with():
    policy, clock = Widening(), ManualClock(1e9)
    scene = Scene(nodes(a="cpu"), policy)
    scene.clock = scene.planner.clock = scene.planner.live.clock = clock
    clock.at_s = scene.planner.engine.now_s + 1.0
    scene.submit("j1", elastic=True, max_slots=2)
    scene.plan()
    run(scene, "j1")
    limits = {"initial_batch": 8, "largest_batch": 64, "smallest_per_slot": 1, "largest_per_slot": 8}
    scene.tell(r.JobReady(job_id="j1", parameter_count=1, **limits))

    def report(step: int, batch: int, step_s: float) -> None:
        clock.at_s += 30.0
        seen = {"slots": 1, "nodes": 1, "per_slot_batch": batch, "accumulation_steps": 0, "step_s": step_s}
        noise = {"squared_gradient": 1.0, "variance": 10.0 if step == 1 else 200.0}
        scene.tell(r.JobProgressed(job_id="j1", progress=1.0, samples=step, step=step, epoch=0, **seen, **noise))
        scene.planner.sync(["j1"])

    report(1, 8, 0.2)
    scene.plan()
    before = policy.saw
    report(2, 4, 0.19)  # and its gradients have become noisier
    policy.slots = 2
    view = scene.planner.engine.jobs["j1"]
    scene.plan()
    outdated, decided_with = (expected_speed(replace(view, model=model), 2, 1) for model in (before, policy.saw))
    assert f"{outdated:.2f}" != f"{decided_with:.2f}"
    assert f"expected speed × {decided_with:.2f}" in scene.state.jobs["j1"].why


def test_a_job_behind_many_equal_ones_is_explained_as_if_all_were_there():
    scene = Scene(nodes(a="cpu"))
    for i in range(1, 8):
        scene.submit(f"j{i}", slots=2)
    assert scene.plan()["j1"] is not None
    scene.planner.sync(["j1"])
    assert "j7" not in scene.planner.engine.jobs
    view, shown_for = scene.planner.view_with("j7")
    told = explain(view, "j7")
    assert (shown_for, told.reason) == ("j3", "all 2 slots are held by 1 other job")
    assert "5 waiting jobs came before it, 0 have a higher priority" in told.numbers
    running = explain(view, "j1")
    assert "0 slots are free; 6 other jobs are active, 6 of them waiting" in running.numbers


def test_a_job_that_waits_behind_others_starts_when_it_is_changed_so_that_it_goes_first():
    scene = Scene(nodes(a="cpu"))
    for i in range(1, 8):
        scene.submit(f"j{i}", slots=2)
    assert scene.plan()["j1"] is not None
    scene.planner.sync(["j1"])
    scene.tell(r.JobChanged(job_id="j7", by="op", priority=500))
    scene.planner.sync(["j7"])
    scene.tell(r.JobEnded(job_id="j1", how="failed", failures=9))
    scene.planner.sync(["j1"])
    targets = scene.plan()
    assert [job_id for job_id, place in targets.items() if place is not None] == ["j7"]


def test_the_first_job_does_not_wait_for_a_round_of_the_policy_but_later_ones_do():
    scene = Scene(nodes(a="cpu"), make_policy("las:interval=60"))
    clock = by_hand(scene)
    scene.planner.decide()  # there is nobody yet
    assert scene.planner.due_s() == float("inf")
    clock.at_s += 5.0
    scene.submit("j1", slots=1)
    assert scene.planner.due_s() <= clock.at_s
    assert scene.plan()["j1"] is not None
    clock.at_s += 5.0
    scene.submit("j2", slots=1)
    assert scene.planner.due_s() == clock.at_s + 55.0


@pytest.mark.parametrize("slots", [{}, {"slots": 1}, {"max_slots": 2}])
def test_a_script_that_has_run_before_starts_again_though_its_kind_is_not_known_yet(slots):
    """It is taken to be as fast as the one before, which says nothing of its sizes until it has called init()."""
    scene = Scene(nodes(a="cpu"))

    def submit(job_id: str) -> None:
        spec = JobSpec.from_dict({"name": "x", "command": ["python", "x.py"], **slots})
        submitted = r.JobSubmitted(
            job_id=job_id, spec=spec, elastic=False, request=None, job_kind="unknown", kind_reason="x.py"
        )
        scene.tell(submitted)
        scene.planner.sync([job_id])

    submit("j1")
    place = scene.plan()["j1"]
    assert place is not None
    ready = r.JobReady(
        job_id="j1",
        initial_batch=32,
        largest_batch=128,
        smallest_per_slot=1,
        largest_per_slot=32,
        parameter_count=10,
        dataset_samples=1000,
        work_samples=10_000,
    )
    known = r.JobKindKnown(job_id="j1", job_kind="elastic", reason="the script called geminid.init()")
    report = r.JobProgressed(
        job_id="j1",
        progress=64.0,
        samples=64,
        step=2,
        epoch=0,
        slots=1,
        nodes=1,
        per_slot_batch=32,
        accumulation_steps=0,
        accumulation_s=0.09,
        step_s=0.1,
        squared_gradient=1.0,
        variance=10.0,
        metrics={},
    )
    for record in (r.JobStarting(job_id="j1", placement=place), known, ready):
        scene.tell(record)
    scene.tell(r.JobFormed(job_id="j1", placement=place))
    scene.tell(report)
    scene.tell(r.JobEnded(job_id="j1", how="succeeded"))
    scene.planner.sync(["j1"])
    submit("j2")
    assert scene.state.jobs["j2"].measured  # those of j1
    second = scene.plan()["j2"]
    assert second is not None
    assert second.num_slots == 1
    for record in (
        r.JobStarting(job_id="j2", placement=second),
        replace(known, job_id="j2"),
        replace(ready, job_id="j2"),
        r.JobFormed(job_id="j2", placement=second),
    ):
        scene.tell(record)
    scene.planner.sync(["j2"])
    assert "j2" in scene.planner.engine.models._known  # what was measured of j1 counts from now on


class Useless(Policy):
    """Raises, forgets to answer, or gives nobody anything, as the test wants."""

    name = paper = objective = "useless"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def decide(self, view: ClusterView) -> Decision:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "why", "hint"),
    [
        (Decision({}), "but the policy (geminid) gave it none", "asked again when another job comes, changes or ends"),
        (Decision({}, wake_at_s=1e12), "but the policy (geminid) gave it none", "the policy is asked again in "),
        (None, "Useless.decide returned None instead of a Decision", "see the alerts (geminid status)"),
        (KeyError("x"), "was rejected, the last plan stays: KeyError: 'x'", "see the alerts (geminid status)"),
    ],
)
def test_a_policy_that_gives_nothing_is_the_reason_why_a_job_waits_beside_free_slots(answer, why, hint):
    scene = Scene(nodes(a="cpu"), Useless(answer))

    def told():
        return explain(scene.planner.engine.view(), "j1", last=scene.planner.last_decision())

    scene.submit("j1", slots=1)
    assert told().reason == "2 slots are free, and the next decision will consider it"
    assert told().suggestions == ("nothing needs to be done: the next decision is made within seconds",)
    for record in scene.planner.decide():
        scene.tell(record)
    assert why in told().reason
    assert hint in told().suggestions[0]
    scene.submit("j2", slots=1)  # something has changed: there will be another decision
    assert "the next decision will consider it" in told().reason


def test_the_losses_that_live_jobs_report_are_what_slaq_decides_by():
    policy = Slaq()
    scene = Scene(nodes(a="cpu"), policy)
    clock = by_hand(scene)
    scene.submit("j1", elastic=True, max_slots=1)
    place = scene.plan()["j1"]
    limits = {"initial_batch": 32, "largest_batch": 32, "smallest_per_slot": 1, "largest_per_slot": 32}
    scene.tell(r.JobStarting(job_id="j1", placement=place))
    scene.tell(r.JobReady(job_id="j1", parameter_count=10, dataset_samples=1000, work_samples=10_000, **limits))
    scene.tell(r.JobFormed(job_id="j1", placement=place))
    where = {"slots": 1, "nodes": 1, "per_slot_batch": 32, "accumulation_steps": 0}
    for step, loss in ((10, 3.0), (11, 3.0), (12, 2.5), (13, "nan")):
        seen = {"progress": 100.0 * step, "samples": 100 * step, "step": step, "epoch": 0, "metrics": {"loss": loss}}
        scene.tell(r.JobProgressed(job_id="j1", accumulation_s=0.09, step_s=0.1, **seen, **where))
        clock.sleep(policy.interval_s)
        scene.plan()
    assert scene.planner.live.engine.jobs["j1"].loss == 2.5
    assert policy._histories["j1"].points == [(1000.0, 3.0), (1200.0, 2.5)]
