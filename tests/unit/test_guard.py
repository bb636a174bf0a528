"""Quotas hold under every policy, and what nobody else can use may be borrowed until somebody can."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.engine.engine import Engine
from geminid.engine.events import Submitted
from geminid.engine.models import ModelKeeper
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import fit
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.table import JobModel
from geminid.policies.base import ClusterView, Decision, JobFacts, JobView, Policy, slots_of
from geminid.policies.geminid import Geminid
from geminid.serve.guard import Guard, Timed


@dataclass
class Greedy(Policy):
    """As much as can be for whoever came first."""

    name, paper, objective = "greedy", "", ""

    def decide(self, view: ClusterView) -> Decision:
        free, given = sum(view.usable_slots), {}
        for job in view.jobs:
            slots = min(job.facts.max_slots, free)
            if slots >= job.facts.min_slots:
                given[job.id] = Configuration(gpu_type="cpu", nodes=1, slots=slots)
                free -= slots
        return Decision(given)


def job(name: str, most: int, has: int = 0) -> JobView:
    facts = JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=most, owner=name[0])
    return JobView(facts=facts, allocation=((0, has),) if has else (), slots=has, gpu_type="cpu" if has else None)


def given(*jobs: JobView, borrow: str = "a", quotas: dict[str, int] | None = None, kept: str = "") -> dict[str, int]:
    """What jobs get on four slots, where owners have quotas."""
    limits = {"a": 1} if quotas is None else quotas
    guard = Guard(
        Greedy(),
        protected=lambda job: float("inf") if job.id in kept.split() else 0.0,
        groups=lambda job_id: {job_id[0]: limits[job_id[0]]} if job_id[0] in limits else {},
        may_borrow=lambda name: name in borrow,
    )
    cluster = Cluster.parse("cpu:1x4")
    held = sum(job.slots for job in jobs)
    decision = guard.decide(ClusterView(0.0, cluster, jobs, (4,), (4 - held,)))
    return {
        name: wanted.slots if isinstance(wanted, Configuration) else slots_of(wanted)
        for name, wanted in decision.assignments.items()
    }


def test_what_nobody_else_can_use_is_borrowed_and_given_back():
    assert given(job("a1", 4), borrow="") == {"a1": 1}
    assert given(job("a1", 4)) == {"a1": 4}
    assert given(job("a1", 4, 4), job("b1", 2)) == {"a1": 2, "b1": 2}
    assert given(job("a1", 4, 4), job("b1", 4)) == {"a1": 1, "b1": 3}
    assert given(job("a1", 4, 1), job("b1", 2, 2)) == {"a1": 2, "b1": 2}


def test_borrowers_leave_each_other_what_is_their_own():
    two = {"a": 1, "b": 2}
    assert given(job("a1", 4, 4), job("b1", 4), borrow="ab", quotas=two) == {"a1": 2, "b1": 2}
    assert given(job("a1", 4), job("b1", 1), borrow="ab", quotas=two) == {"a1": 3, "b1": 1}
    assert given(job("a1", 4, 3), job("b1", 4), borrow="ab", quotas=two, kept="a1") == {"a1": 3, "b1": 1}


@dataclass
class Sizes(Policy):
    """What it was told."""

    name, paper, objective = "sizes", "", ""

    sizes: dict[str, int] = field(default_factory=dict)

    def decide(self, view: ClusterView) -> Decision:
        return Decision({name: Configuration(gpu_type="cpu", nodes=1, slots=n) for name, n in self.sizes.items() if n})


def measured(name: str, has: int, step_s: dict[int, float], most: int = 4) -> JobView:
    """A job that keeps its batch of 32 and needs so long for a step on so many slots."""
    limits = BatchLimits(initial=32, largest=32, smallest_per_slot=1, largest_per_slot=32)
    profile = Profile.of(
        Observation(
            nodes=1,
            slots=slots,
            per_slot_batch=32 // slots,
            busiest_node_slots=slots,
            accumulation_s=0.1 / slots,
            step_s=seconds,
        )
        for slots, seconds in step_s.items()
    )
    model = JobModel({"cpu": fit(profile)}, {"cpu": limits}, GradientStats())
    made = job(name, most, has)
    return replace(made, model=model, facts=replace(made.facts, limits={"cpu": limits}))


@pytest.mark.parametrize(
    ("has", "wanted", "step_s", "gets"),
    [
        (2, 1, {1: 0.100, 2: 0.110}, 2),  # nobody gets the slot, and it should be hardly faster without it
        (2, 1, {1: 0.100, 2: 0.180}, 1),
        (1, 2, {1: 0.100, 2: 0.099}, 1),
        (1, 2, {1: 0.100, 2: 0.060}, 2),
    ],
)
def test_a_job_is_not_resized_for_next_to_nothing(has: int, wanted: int, step_s: dict[int, float], gets: int):
    def resized(*others: JobView, most: int = 4, **sizes: int) -> int:
        view = (measured("a", has, step_s, most), *others)
        held = sum(one.slots for one in view)
        decision = Guard(Sizes({"a": wanted, **sizes})).decide(
            ClusterView(0.0, Cluster.parse("cpu:1x4"), view, (4,), (4 - held,))
        )
        found = decision.assignments["a"]
        return found.slots if isinstance(found, Configuration) else slots_of(found)

    assert resized() == gets
    assert resized(job("b", 1), b=1) == wanted  # somebody starts
    if wanted < has:
        assert resized(job("b", 4, 2), b=3) == wanted  # somebody else gets it
        assert resized(most=1) == wanted  # it may not have more


def test_prices_are_those_of_the_last_decision_about_everybody():
    """Jobs that have just changed are left out of decisions for a moment; prices among the others would be odd."""
    until = {"a": 0.0}
    policy = Geminid(gap_s=0.0)
    guard = Guard(policy, protected=lambda job: until.get(job.id, 0.0))
    jobs = (measured("a", 2, {1: 0.1, 2: 0.055, 4: 0.03}), measured("b", 2, {1: 0.1, 2: 0.055, 4: 0.03}))

    def price(now_s: float) -> float:
        guard.decide(ClusterView(now_s, Cluster.parse("cpu:1x4"), jobs, (4,), (0,)))
        return float(guard.solution.prices.types[0])

    assert not guard.has_weighed("a")
    everybody = price(1.0)
    assert everybody > 0
    assert guard.has_weighed("a")
    until |= {"a": 5.0, "b": 5.0}
    assert price(2.0) == everybody
    assert float(policy.solution.prices.types[0]) == 0.0
    until.clear()
    assert price(6.0) == pytest.approx(everybody, rel=0.01)


@dataclass
class Forgetful(Policy):
    """Lacks a ``return`` at the end."""

    name, paper, objective = "forgetful", "", ""

    def decide(self, view: ClusterView) -> Decision:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("guarded", [Guard(Forgetful()), Guard(Timed(Forgetful()))])
def test_a_policy_that_returns_no_decision_is_named_with_its_file(guarded):
    engine = Engine(Cluster.parse("cpu:1x4"), guarded, ModelKeeper("pollux"), debug=False)
    (told,) = engine.handle(Submitted(0.0, job("a", 4).facts)).rejected
    assert "Forgetful.decide returned None instead of a Decision" in told
    assert __file__ in told
    assert "serve/guard.py" not in told
