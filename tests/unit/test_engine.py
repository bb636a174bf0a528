"""The engine as its two drivers meet it: events in, commands out, and nothing trusted."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.engine.commands import Rescale, Start, Stop
from geminid.engine.engine import Engine, InvariantBroken
from geminid.engine.events import Completed, Failed, NodeDown, NodeDrained, NodeUp, Reported, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Observation
from geminid.job import Adaptivity
from geminid.policies.base import ClusterView, Decision, JobFacts
from geminid.testing.policies import ScriptedPolicy

CLUSTER = Cluster.parse("v100:2x4,t4:1x4")


def job(name: str, at_s: float = 0.0, **facts: object) -> Submitted:
    defaults: dict[str, object] = {"requested_slots": 2, "min_slots": 1, "max_slots": 8}
    return Submitted(at_s, JobFacts(id=name, submitted_s=at_s, **(defaults | facts)))  # type: ignore[arg-type]


def engine(answer: Callable[[ClusterView], Decision], **options: object) -> Engine:
    policy = ScriptedPolicy(answer, needs_models=True, **options)  # type: ignore[arg-type]
    return Engine(CLUSTER, policy, ModelKeeper("pollux"), debug=False)


def always(**assignments: object) -> Callable[[ClusterView], Decision]:
    """Give these to whoever is there."""
    return lambda view: Decision({j.id: assignments[j.id] for j in view.jobs if j.id in assignments})  # type: ignore[misc]


def test_a_submitted_job_is_started_where_the_policy_says() -> None:
    outcome = engine(always(a=((0, 2),))).handle(job("a"))
    assert outcome.commands == (Start("a", ((0, 2),)),)


def test_a_configuration_is_placed_by_the_engine() -> None:
    outcome = engine(always(a=Configuration(gpu_type="t4", nodes=1, slots=4))).handle(job("a"))
    assert outcome.commands == (Start("a", ((2, 4),)),)


def test_a_job_whose_slots_had_to_be_scattered_is_told_why() -> None:
    three, two = (Configuration(gpu_type="v100", nodes=1, slots=n) for n in (3, 2))
    e = engine(lambda view: Decision({"a": three, "b": three, "c": two} if len(view.jobs) == 3 else {}))
    for name in ("a", "b"):
        e.handle(job(name))
    started = {c.job_id: c for c in e.handle(job("c")).commands if isinstance(c, Start)}
    assert started["a"].reason == started["b"].reason == ""
    assert started["c"].allocation == ((0, 1), (1, 1))
    assert "too scattered for 2 × v100" in started["c"].reason


def test_a_job_that_keeps_its_configuration_is_left_alone() -> None:
    e = engine(always(a=Configuration(gpu_type="v100", nodes=1, slots=2)))
    e.handle(job("a"))
    assert e.handle(Tick(60.0)).commands == ()


def test_slots_are_freed_before_they_are_granted_again() -> None:
    answers = iter([Decision({"a": ((0, 4),)}), Decision({"b": ((0, 4),)})])
    e = engine(lambda view: next(answers))
    e.handle(job("a"))
    commands = e.handle(job("b", 10.0)).commands
    assert commands == (Stop("a", ((0, 4),), "others go first"), Start("b", ((0, 4),)))


def test_service_and_restarts_are_counted() -> None:
    answers = iter([Decision({"a": ((0, 2),)}), Decision({"a": ((0, 4),)}), Decision({}), Decision({"a": ((1, 1),)})])
    e = engine(lambda view: next(answers))
    e.handle(job("a"))
    assert isinstance(e.handle(Tick(100.0)).commands[0], Rescale)
    e.handle(Tick(150.0))
    e.handle(Tick(200.0))
    view = e.jobs["a"]
    assert view.attained_service_gpu_s(210.0) == 2 * 100 + 4 * 50 + 1 * 10
    assert view.executed_s(210.0) == 160
    assert view.restarts == 2
    assert view.started_s == 0.0


def test_a_policy_with_rounds_is_asked_at_their_end_only() -> None:
    e = engine(always(a=((0, 1),)), interval_s=60.0)
    assert not e.handle(job("a")).decided
    assert e.handle(Tick(60.0)).commands == (Start("a", ((0, 1),)),)


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        (((0, 5),), "node v100-0 was given out 1 slots more than it has usable"),
        (((7, 1),), "job a was given 1 slots on node 7"),
        (((0, 0),), "job a was given 0 slots on node 0"),
        (((0, 1.5),), "job a was given ((0, 1.5),), not pairs of a node's index and some slots"),
        (((0, 1), (0, 1)), "job a was given slots of one node twice"),
        (((0, 2), (2, 2)), "job a was given slots of several GPU types: t4, v100"),
        (((0, 4), (1, 4)), "job a was given 8 slots, outside 1 to 4"),
        (Configuration(gpu_type="h100", nodes=1, slots=1), "job a was given GPU type h100, which the cluster lacks"),
        (
            Configuration(gpu_type="v100", nodes=1, slots=99),
            "job a was given 99 slots of type v100, of which the cluster has 8",
        ),
    ],
)
def test_an_invalid_decision_is_refused_with_a_reason_and_changes_nothing(assignment: object, reason: str) -> None:
    good: dict[str, object] = {"a": ((0, 2),)}
    e = engine(lambda view: Decision(dict(good)))  # type: ignore[arg-type]
    e.handle(job("a", max_slots=4))
    good["a"] = assignment
    outcome = e.handle(Tick(1.0))
    assert outcome.rejected == (reason,)
    assert outcome.commands == ()
    assert e.jobs["a"].allocation == ((0, 2),)


def test_a_rigid_job_gets_its_size_or_nothing() -> None:
    e = engine(always(a=((0, 1),)))
    rejected = e.handle(job("a", adaptivity=Adaptivity.RIGID, requested_slots=2)).rejected
    assert rejected == ("job a is rigid and needs 2 slots, not 1",)


def test_a_type_that_the_job_does_not_allow_is_refused() -> None:
    e = engine(always(a=((2, 1),)))
    rejected = e.handle(job("a", gpu_types=frozenset({"v100"}))).rejected
    assert rejected == ("job a was given GPU type t4, which it does not allow",)


def test_an_unknown_job_in_a_decision_is_refused() -> None:
    assert engine(lambda view: Decision({"ghost": ((0, 1),)})).handle(job("a")).rejected == ("job ghost is not active",)


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (None, "the policy answered NoneType, not a Decision"),
        (Decision({}, reasons=None), "reasons is NoneType, not a mapping by job"),  # type: ignore[arg-type]
        (Decision([]), "assignments is list, not a mapping by job"),  # type: ignore[arg-type]
        (Decision({}, wake_at_s=math.nan), "wake_at_s is nan, not a time"),
        (Decision({}, desired_nodes={"a": -1}), "desired_nodes is {'a': -1}, not a number of nodes by GPU type"),
        (Decision({}, pairs=7), "pairs is int, not a sequence"),  # type: ignore[arg-type]
        (Decision({"a": 7}), "job a was given 7, not pairs of a node's index and some slots"),  # type: ignore[dict-item]
    ],
)
def test_nonsense_is_no_decision(decision: Decision, reason: str) -> None:
    assert engine(lambda view: decision).handle(job("a")).rejected == (reason,)


def test_numpy_integers_are_integers_and_what_a_policy_does_later_to_its_answer_changes_nothing() -> None:
    mine = [[np.int64(0), np.int64(2)]]
    machine = engine(lambda view: Decision({"a": mine}))  # type: ignore[dict-item]
    assert machine.handle(job("a")).commands == (Start("a", ((0, 2),)),)
    mine[0][1] = np.int64(3)
    assert machine.jobs["a"].allocation == ((0, 2),)
    machine.check()


def test_a_policy_that_raises_stops_nothing() -> None:
    def fail(view: ClusterView) -> Decision:
        raise ZeroDivisionError("oops")

    (reason,) = engine(fail).handle(job("a")).rejected
    assert reason.startswith("ZeroDivisionError: oops (")
    assert reason.endswith("in fail)")


def test_when_a_node_dies_its_jobs_wait_and_its_slots_are_gone() -> None:
    e = engine(lambda view: Decision({j.id: ((0, 2),) for j in view.jobs if view.usable_slots[0]}))
    e.handle(job("a"))
    down = e.handle(NodeDown(5.0, 0))
    assert down.commands == (Stop("a", ((0, 2),), "node v100-0 is down", lost=True),)
    assert e.view().usable_slots == (0, 4, 4)
    assert e.handle(NodeUp(9.0, 0)).commands == (Start("a", ((0, 2),)),)


def test_a_drained_node_takes_no_new_work() -> None:
    e = engine(lambda view: Decision({j.id: ((0 if view.usable_slots[0] else 1, 2),) for j in view.jobs}))
    e.handle(job("a"))
    assert e.handle(NodeDrained(5.0, 0)).commands == (Rescale("a", ((0, 2),), ((1, 2),)),)


def test_completion_and_final_failure_end_a_job_and_other_failures_requeue_it() -> None:
    e = engine(always(a=((0, 1),), b=((0, 1),), c=((0, 1),)))
    for name in "abc":
        e.handle(job(name))
    e.handle(Completed(1.0, "a"))
    e.handle(Failed(2.0, "b", "out of memory", final=True))
    assert list(e.jobs) == ["c"]
    assert e.handle(Failed(3.0, "c", "worker died")).commands == (Start("c", ((0, 1),)),)


def test_reports_become_models_and_nonsense_is_left_out() -> None:
    seen: list[ClusterView] = []

    def remember(view: ClusterView) -> Decision:
        seen.append(view)
        return Decision({"a": ((0, 1),)})

    e = engine(remember)
    e.handle(job("a"))
    good = Observation(nodes=1, slots=1, busiest_node_slots=1, per_slot_batch=8, accumulation_s=0.1, step_s=0.1)
    bad = Observation(nodes=1, slots=1, busiest_node_slots=1, per_slot_batch=8, accumulation_s=0.1, step_s=math.nan)
    e.handle(Reported(1.0, "a", good, GradientStats.clamped(math.nan, 1.0)))
    e.handle(Reported(1.0, "a", bad))
    e.handle(Reported(1.0, "ghost", good))
    e.handle(Tick(2.0))
    model = seen[-1].jobs[0].model
    assert model is not None
    assert model.fits["v100"].observations == 1
    assert model.gradient == GradientStats()
    assert seen[-1].jobs[0].most_slots_measured == 1


def test_time_never_goes_back() -> None:
    e = engine(always())
    e.handle(Tick(10.0))
    with pytest.raises(InvariantBroken):
        e.handle(Tick(9.0))
