"""Quotas hold under every policy, and what nobody else can use may be borrowed until somebody can."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.policies.base import ClusterView, Decision, JobFacts, JobView, Policy, slots_of
from geminid.serve.guard import Guard


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
