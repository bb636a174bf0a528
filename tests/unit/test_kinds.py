"""What jobs know from earlier ones of their kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geminid.cluster import Cluster
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.table import JobModel
from geminid.policies import kinds
from geminid.policies.base import ClusterView, JobFacts, JobView
from geminid.policies.goodputs import Goodputs
from geminid.policies.kinds import KindMemory

LIMITS = {"t4": BatchLimits(initial=128, largest=4096, smallest_per_slot=32, largest_per_slot=1024)}
NOISE = GradientStats(1.0, 8.0)


def fit(most_slots: int, *, pass_s: float = 0.1, observations: int = 8) -> ThroughputFit:
    parameters = (pass_s, 0.001, 0.04, 0.002, 0.02, 0.001, 2.0)
    return ThroughputFit("pollux", parameters, "fitted", 0.0, observations, most_slots=most_slots)


def job(name: str, fitted: ThroughputFit | None, *, kind: str = "resnet", owner: str = "ada") -> JobView:
    model = JobModel({"t4": fitted}, LIMITS, NOISE) if fitted is not None else None
    facts = JobFacts(
        id=name, submitted_s=0.0, requested_slots=1, max_slots=64, limits=LIMITS, kind=kind, owner=owner, work=1e6
    )
    most = fitted.most_slots if fitted is not None and fitted.most_slots > 1 else 0
    return JobView(facts=facts, model=model, most_slots_measured=most)


def taught(*jobs: JobView) -> KindMemory:
    memory = KindMemory()
    memory.learn(jobs)
    return memory


def test_a_job_begins_with_what_those_before_it_measured() -> None:
    memory = taught(job("first", fit(16)))
    new = job("second", None)
    model = memory.complete(new, JobModel({}, LIMITS))
    assert model.fits["t4"] == fit(16)
    assert model.gradient == NOISE
    assert memory.most_slots(new) == 16


def test_what_it_measures_itself_comes_first_once_it_reaches_as_far() -> None:
    memory = taught(job("first", fit(16)))
    own = job("second", fit(16, pass_s=0.12))
    assert own.model is not None
    assert memory.complete(own, own.model).fits["t4"] == fit(16, pass_s=0.12)
    behind = job("third", fit(2, pass_s=0.12))
    assert behind.model is not None
    assert memory.complete(behind, behind.model).fits["t4"] == fit(16)


def test_jobs_of_another_kind_or_owner_or_speed_learn_nothing() -> None:
    memory = taught(job("first", fit(16)))
    for stranger in (
        job("other kind", fit(1), kind="bert"),
        job("other owner", fit(1), owner="bob"),
        job("no kind", fit(1), kind=""),
        job("another speed under the same name", fit(1, pass_s=1.0)),
    ):
        assert stranger.model is not None
        assert memory.complete(stranger, stranger.model) == stranger.model, stranger.id
        assert memory.most_slots(stranger) == 0, stranger.id


def test_one_slot_alone_teaches_nothing_about_scaling() -> None:
    memory = taught(job("first", fit(1)))
    assert memory.most_slots(job("second", None)) == 0


def test_the_version_changes_when_more_is_known() -> None:
    memory = taught(job("first", fit(2)))
    new = job("new", None)
    before = memory.version(new)
    memory.learn([job("first", fit(2))])
    assert memory.version(new) == before
    memory.learn([job("first", fit(8))])
    assert memory.version(new) > before


def test_jobs_that_have_ended_are_remembered_and_kinds_are_forgotten_one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MOST_KINDS", 2)
    memory = KindMemory()
    for number in range(3):
        memory.learn([], ended=[job(f"job-{number}", fit(8), kind=f"kind-{number}")])
    assert [memory.most_slots(job("new", None, kind=f"kind-{n}")) for n in range(3)] == [0, 8, 8]


def test_a_waiting_job_sees_at_once_what_its_kind_has_learnt() -> None:
    cluster = Cluster.parse("t4:4x4")
    usable = tuple(int(n) for n in cluster.node_slots)
    goodputs = Goodputs(4.0, memory=KindMemory())
    waiting = job("waiting", None)

    def most_slots(*jobs: JobView) -> int:
        configurations, goodput = goodputs.of(ClusterView(0.0, cluster, jobs, usable, usable))
        return max(c.slots for c, speed in zip(configurations, goodput[0], strict=True) if speed > 0)

    assert most_slots(waiting) == 4
    running = job("running", fit(4))
    assert most_slots(waiting, running) == 16
    assert most_slots(replace(waiting, facts=replace(waiting.facts, max_slots=8)), running) == 8


def test_a_job_of_which_nothing_is_known_may_start_on_what_its_limits_allow() -> None:
    cluster = Cluster.parse("t4:1x4,a100:1x4")
    usable = tuple(int(n) for n in cluster.node_slots)
    configurations, goodput = Goodputs(1.0).of(ClusterView(0.0, cluster, (job("new", None),), usable, usable))
    assert {c.gpu_type for c, speed in zip(configurations, goodput[0], strict=True) if speed > 0} == {"t4"}
