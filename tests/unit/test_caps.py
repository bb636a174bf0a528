"""A policy limits the share of the time for which jobs compute; jobs report losses and what sharing costs them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Reported, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.policies.base import ClusterView, Decision, JobFacts, Policy
from geminid.sim.application import LossCurve
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload

SLOT = ((0, 1),)


@dataclass
class Together(Policy):
    """Everybody on the first slot; the second job computes for a share of the time."""

    name = "together"
    paper = objective = "this test"
    needs_reports = True

    cap: float = 1.0
    seen: dict[str, list[float | None]] = field(default_factory=dict)
    losses: list[tuple[float, float]] = field(default_factory=list)
    interval_s: float | None = 60.0

    def decide(self, view: ClusterView) -> Decision:
        ids = [job.id for job in view.jobs]
        for job in view.jobs:
            self.seen.setdefault(job.id, []).append(job.relative_speed)
            if job.loss is not None:
                self.losses.append((job.progress, job.loss))
        caps = {"b": self.cap} if "b" in ids else {}
        return Decision(dict.fromkeys(ids, SLOT), pairs=[("a", "b")] if len(ids) == 2 else [], caps=caps)


def simulate(policy: Policy, *jobs: TraceJob) -> dict[str, float]:
    simulator = Simulator(
        Workload("two", jobs), built_in_applications(), Cluster.parse("h200:1x1"), policy, Settings(rescale_s=0.0)
    )
    return {job.facts.id: (job.completed_s or 0.0) for job in simulator.run().jobs}


def trained(name: str, application: str = "resnet18-cifar10") -> TraceJob:
    return TraceJob(name=name, submit_s=0.0, requested_slots=1, application=application)


def test_a_job_that_may_compute_half_of_the_time_takes_twice_as_long() -> None:
    lone = TraceJob(name="b", submit_s=0.0, requested_slots=1, duration_s=600.0)
    assert simulate(Together(cap=1.0), lone)["b"] == pytest.approx(660.0)
    assert simulate(Together(cap=0.5), lone)["b"] == pytest.approx(1260.0)


def test_what_a_job_loses_beside_another_shrinks_with_the_time_for_which_that_one_computes() -> None:
    ends = {cap: simulate(Together(cap=cap), trained("a"), trained("b"))["a"] for cap in (1.0, 0.5, 0.1)}
    alone = simulate(Together(), trained("a"))["a"]
    assert ends[1.0] > ends[0.5] > ends[0.1] > alone


def test_a_suspended_job_makes_no_progress_and_disturbs_nobody() -> None:
    @dataclass
    class UntilAIsDone(Together):
        def decide(self, view: ClusterView) -> Decision:
            self.cap = 0.0 if len(view.jobs) == 2 else 1.0
            return super().decide(view)

    ends = simulate(UntilAIsDone(), trained("a"), trained("b"))
    alone = simulate(Together(), trained("a"))["a"]
    assert ends["a"] == pytest.approx(alone)
    assert ends["b"] > 1.9 * alone


def test_jobs_report_how_fast_they_are_beside_their_partner_and_their_losses() -> None:
    policy = Together(cap=0.5)
    simulate(policy, trained("a"), trained("b"))
    told = [speed for speed in policy.seen["a"] if speed is not None]
    assert told
    assert all(0.9 < speed < 1.0 for speed in told)
    assert policy.losses[0][1] > policy.losses[-1][1]
    assert policy.seen["a"][0] is None


@pytest.mark.parametrize("exponential", [False, True])
def test_losses_fall_from_start_to_end(exponential: bool) -> None:
    curve = LossCurve(start=5.0, end=1.0, steepness=10.0, exponential=exponential)
    losses = [curve.at(done / 10) for done in range(11)]
    assert losses[0] == pytest.approx(5.0)
    assert losses[-1] == pytest.approx(1.0)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("cap", [-0.1, 1.5, float("nan"), "half"])
def test_a_cap_that_is_no_share_is_refused(cap: object) -> None:
    engine = Engine(Cluster.parse("h200:1x1"), Together(cap=cap), ModelKeeper())  # type: ignore[arg-type]
    engine.handle(Submitted(0.0, JobFacts(id="b", submitted_s=0.0, requested_slots=1)))
    outcome = engine.handle(Tick(1.0))
    assert "not for a share from 0 to 1" in outcome.rejected[0]
    assert not engine.jobs["b"].allocation


def test_a_loss_that_is_no_number_is_not_believed() -> None:
    engine = Engine(Cluster.parse("h200:1x1"), Together(), ModelKeeper())
    engine.handle(Submitted(0.0, JobFacts(id="b", submitted_s=0.0, requested_slots=1)))
    engine.handle(Reported(1.0, "b", loss=float("nan"), relative_speed=0.5))
    assert engine.jobs["b"].loss is None
    assert engine.jobs["b"].relative_speed is None  # it shares its slots with nobody
    engine.handle(Reported(2.0, "b", loss=0.25))
    assert engine.jobs["b"].loss == 0.25
