"""Two jobs on the same slots: what the engine allows, who has to move, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.engine.commands import Rescale, Share, Start, Stop
from geminid.engine.engine import Engine, Outcome
from geminid.engine.events import Completed, Failed, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.policies.base import Allocation, Decision, JobFacts
from geminid.testing.policies import ScriptedPolicy

NODE_0: Allocation = ((0, 1),)
NODE_1: Allocation = ((1, 1),)


@pytest.fixture
def engine() -> Engine:
    engine = Engine(Cluster.parse("v100:2x2"), ScriptedPolicy(interval_s=60.0), ModelKeeper("pollux"), debug=True)
    for name in "abc":
        engine.handle(Submitted(0.0, JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=2)))
    return engine


def decide(
    engine: Engine,
    assignments: dict[str, Configuration | Allocation],
    pairs: Sequence[tuple[str, str]] = (),
    at_s: float = 0.0,
) -> Outcome:
    engine.policy = ScriptedPolicy(lambda view: Decision(assignments, pairs=pairs), interval_s=60.0)
    return engine.handle(Tick(at_s))


def test_a_pair_has_the_same_slots_and_takes_them_once(engine: Engine) -> None:
    both: Allocation = ((0, 2),)
    outcome = decide(engine, {"a": both, "b": both, "c": ((1, 2),)}, [("a", "b")])
    assert outcome.commands == (
        Start("a", both),
        Start("b", both),
        Start("c", ((1, 2),)),
        Share("a", "b"),
        Share("b", "a"),
    )
    assert not outcome.rejected
    assert decide(engine, {"a": both, "b": both, "c": ((1, 2),)}, [("b", "a")]).commands == ()


def test_a_pair_is_placed_by_its_configuration(engine: Engine) -> None:
    one = Configuration(gpu_type="v100", nodes=1, slots=1)
    decide(engine, {"a": one, "b": one, "c": one}, [("a", "b")])
    assert engine.jobs["a"].allocation == engine.jobs["b"].allocation
    assert [job.partner for job in engine.jobs.values()] == ["b", "a", None]


@pytest.mark.parametrize(
    ("assignments", "pairs", "reason"),
    [
        ({"a": ((0, 2),), "b": ((0, 2),)}, [], "2 slots more than it has usable"),
        ({"a": NODE_0, "b": NODE_1}, [("a", "b")], "were not given the same"),
        ({"a": NODE_0}, [("a", "b")], "were not given the same"),
        ({"a": NODE_0, "b": NODE_0, "c": NODE_0}, [("a", "b"), ("b", "c")], "more than one pair"),
        ({"a": NODE_0}, [("a", "a")], "two different jobs"),
        ({"a": NODE_0, "x": NODE_0}, [("a", "x")], "not active"),
    ],
)
def test_slots_are_shared_only_by_declared_pairs(
    engine: Engine,
    assignments: dict[str, Configuration | Allocation],
    pairs: list[tuple[str, str]],
    reason: str,
) -> None:
    outcome = decide(engine, assignments, pairs)
    assert any(reason in text for text in outcome.rejected), outcome.rejected
    assert outcome.commands == ()


def test_a_job_that_joins_moves_and_its_host_stays(engine: Engine) -> None:
    decide(engine, {"a": NODE_0, "b": NODE_0, "c": NODE_1})
    outcome = decide(engine, {"a": NODE_0, "b": NODE_0, "c": NODE_1}, [("a", "b")])
    assert outcome.commands == (Rescale("b", NODE_0, NODE_0), Share("a", "b"), Share("b", "a"))


def test_of_two_that_part_on_the_spot_one_moves(engine: Engine) -> None:
    decide(engine, {"a": NODE_0, "b": NODE_0}, [("a", "b")])
    outcome = decide(engine, {"a": NODE_0, "b": NODE_0})
    assert outcome.commands == (Rescale("b", NODE_0, NODE_0), Share("a", None))
    assert engine.jobs["b"].partner is None


def test_who_is_left_by_its_partner_has_the_slots_alone(engine: Engine) -> None:
    decide(engine, {"a": NODE_0, "b": NODE_0}, [("a", "b")])
    assert engine.handle(Failed(0.0, "b", "x")).commands == (Share("a", None),)
    decide(engine, {"a": NODE_0, "b": NODE_0}, [("a", "b")])
    assert decide(engine, {"b": NODE_0}).commands == (Stop("a", NODE_0, "others go first"), Share("b", None))
    decide(engine, {"a": NODE_0, "b": NODE_0}, [("a", "b")])
    assert engine.handle(Completed(0.0, "a")).commands == (Share("b", None),)
    assert engine.jobs["b"].partner is None


def test_shared_slots_count_half(engine: Engine) -> None:
    decide(engine, {"a": ((0, 2),), "b": ((0, 2),)}, [("a", "b")])
    decide(engine, {"a": ((0, 2),)}, at_s=100.0)
    assert [engine.jobs[name].attained_service_gpu_s(150.0) for name in "ab"] == [200.0, 100.0]
