"""From time fractions to jobs on slots: priorities, credit, deficits, gangs, pairs, placement, leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.engine.commands import Start, Stop
from geminid.engine.engine import Engine
from geminid.engine.events import Completed, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.policies.base import ClusterView, JobFacts, JobView
from geminid.policies.gavel.fairness import MaxMinFairnessPerf
from geminid.policies.gavel.gangs import place_gangs
from geminid.policies.gavel.problem import Combination, TimeFractions
from geminid.policies.gavel.rounds import Account
from geminid.serve.guard import Guard

ROUND_S = 360.0
TYPES = ("v100", "k80")
Fractions = Mapping[Combination, tuple[float, float]]


def account(fractions: Fractions, *more: str) -> tuple[Account, dict[str, Mapping[str, float]]]:
    jobs = sorted({job_id for combination in fractions for job_id in combination} | set(more))
    result = Account(TYPES, 0.5 * ROUND_S)
    result.retarget(_fractions(fractions), jobs, 0.0)
    return result, {job_id: {"v100": 2.0, "k80": 1.0} for job_id in jobs}


def _fractions(fractions: Fractions) -> TimeFractions:
    return TimeFractions(TYPES, tuple(fractions), np.array(list(fractions.values())))


def realised(fractions: Fractions, gangs: Mapping[str, int], free: Mapping[str, int], rounds: int = 400) -> Fractions:
    """Which fractions of the time the combinations have had after many rounds."""
    book, jobs = account(fractions)
    had: dict[Combination, list[float]] = {combination: [0.0, 0.0] for combination in fractions}
    for _ in range(rounds):
        for combination, gpu_type in book.select(jobs, gangs, free, backfill=False):
            book.record(combination, gpu_type, ROUND_S)
            had[combination][TYPES.index(gpu_type)] += 1 / rounds
    return {combination: (v100, k80) for combination, (v100, k80) in had.items()}


@pytest.mark.parametrize(
    ("fractions", "gangs", "free"),
    [
        ({("a",): (0.5, 0.5), ("b",): (0.5, 0.5)}, {"a": 1, "b": 1}, {"v100": 1, "k80": 1}),
        ({("a",): (0.75, 0.0), ("b",): (0.25, 0.0)}, {"a": 2, "b": 2}, {"v100": 2, "k80": 0}),
        ({("a", "b"): (0.5, 0.0), ("c",): (0.5, 0.5)}, {"a": 1, "b": 1, "c": 1}, {"v100": 1, "k80": 1}),
        ({("a",): (0.2, 0.7), ("b",): (0.8, 0.0), ("c",): (0.0, 0.3)}, dict.fromkeys("abc", 1), {"v100": 1, "k80": 1}),
    ],
)
def test_rounds_come_close_to_the_fractions(
    fractions: Fractions, gangs: Mapping[str, int], free: Mapping[str, int]
) -> None:
    for combination, times in realised(fractions, gangs, free).items():
        assert times == pytest.approx(fractions[combination], abs=0.05), combination


def test_who_has_had_less_of_its_share_goes_first() -> None:
    book, jobs = account({("a",): (0.6, 0.0), ("b",): (0.4, 0.0)})
    gangs, free = {"a": 1, "b": 1}, {"v100": 1}
    assert book.select(jobs, gangs, free) == [(("a",), "v100")]
    book.record(("a",), "v100", ROUND_S)  # 0.6/540 against 0.4/180
    assert book.select(jobs, gangs, free) == [(("b",), "v100")]


def test_time_owed_from_before_breaks_ties() -> None:
    equal: Fractions = {("a",): (0.5, 0.0), ("b",): (0.5, 0.0)}
    book, jobs = account(equal)
    book.record(("a",), "v100", ROUND_S)
    book.retarget(_fractions(equal), ["a", "b"], ROUND_S)
    assert book.select(jobs, {"a": 1, "b": 1}, {"v100": 1}) == [(("b",), "v100")]


def test_fractions_revised_in_every_round_are_still_realised() -> None:
    """Who is behind its share stays so: else a small one would never come first."""
    book, jobs = account({("a",): (0.6, 0.0), ("b",): (0.4, 0.0)})
    served = {"a": 0, "b": 0}
    for turn in range(200):
        x = 0.8 + 0.02 * (turn % 2)
        book.revise(_fractions({("a",): (x, 0.0), ("b",): (1 - x, 0.0)}), ["a", "b"], turn * ROUND_S)
        for combination, gpu_type in book.select(jobs, {"a": 1, "b": 1}, {"v100": 1}, backfill=False):
            book.record(combination, gpu_type, ROUND_S)
            served[combination[0]] += 1
    assert served["b"] == pytest.approx(0.19 * 200, abs=2)


def test_a_gang_that_does_not_fit_is_passed_over() -> None:
    book, jobs = account({("a",): (0.5, 0.0), ("b",): (0.4, 0.0), ("c",): (0.3, 0.0)})
    chosen = book.select(jobs, {"a": 2, "b": 2, "c": 1}, {"v100": 3})
    assert chosen == [(("a",), "v100"), (("c",), "v100")]


def test_idle_slots_go_to_those_who_should_have_none() -> None:
    book, jobs = account({("a",): (0.5, 0.0)}, "b")
    gangs, free = {"a": 1, "b": 1}, {"v100": 2, "k80": 1}
    assert book.select(jobs, gangs, free) == [(("a",), "v100"), (("b",), "v100")]
    assert book.select(jobs, gangs, free, backfill=False) == [(("a",), "v100")]
    book.add("c")
    more = {**jobs, "c": {"k80": 1.0}}
    assert book.select(more, {**gangs, "c": 1}, free)[-1] == (("c",), "k80")


def test_nobody_runs_twice() -> None:
    book, jobs = account({("a", "b"): (0.5, 0.0), ("a",): (0.5, 0.5), ("b",): (0.0, 0.5)})
    chosen = book.select(jobs, {"a": 1, "b": 1}, {"v100": 2, "k80": 2})
    members = [job_id for combination, _ in chosen for job_id in combination]
    assert sorted(members) == ["a", "b"]


# --- Placement ---


def view(cluster: str, **held: tuple[tuple[int, int], ...]) -> ClusterView:
    parsed = Cluster.parse(cluster)
    jobs = tuple(
        JobView(
            facts=JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=8),
            allocation=allocation,
            slots=sum(slots for _, slots in allocation),
            gpu_type="v100" if allocation else None,
        )
        for name, allocation in held.items()
    )
    slots = tuple(int(s) for s in parsed.node_slots)
    return ClusterView(0.0, parsed, jobs, slots, slots)


def test_jobs_stay_where_they_are_and_gangs_are_kept_together() -> None:
    placed = place_gangs(
        view("v100:2x4", a=((1, 1),), b=(), c=()),
        [(("a",), "v100"), (("b",), "v100"), (("c",), "v100")],
        {"a": 1, "b": 4, "c": 2},
    )
    assert placed == {("b",): ((0, 4),), ("c",): ((1, 2),), ("a",): ((1, 1),)}


def test_a_larger_gang_may_move_a_smaller_one() -> None:
    placed = place_gangs(view("v100:2x2", a=((0, 1),), b=()), [(("a",), "v100"), (("b",), "v100")], {"a": 1, "b": 2})
    assert placed == {("b",): ((0, 2),), ("a",): ((1, 1),)}


def test_a_pair_goes_where_one_of_it_is() -> None:
    assert place_gangs(view("v100:3x1", a=(), b=((2, 1),)), [(("a", "b"), "v100")], {"a": 1, "b": 1}) == {
        ("a", "b"): ((2, 1),)
    }


# --- In the engine ---


def engine(policy: MaxMinFairnessPerf, names: str = "ab") -> Engine:
    result = Engine(Cluster.parse("v100:1x1"), policy, ModelKeeper(), debug=True)
    for name in names:
        facts = JobFacts(
            id=name,
            submitted_s=0.0,
            requested_slots=1,
            kind=name,
            throughputs={"v100": 1.0},
            gpu_types=frozenset(TYPES),
        )
        assert not result.handle(Submitted(0.0, facts)).commands
    result.handle(Tick(1.0))  # until then they gather
    return result


def test_a_round_lasts_and_then_the_other_has_its_turn() -> None:
    running = engine(MaxMinFairnessPerf())
    assert running.jobs["a"].allocation
    assert running.handle(Tick(100.0)).commands == ()
    outcome = running.handle(Tick(361.0))
    assert outcome.commands == (Stop("a", ((0, 1),), "others go first"), Start("b", ((0, 1),)))
    assert outcome.wake_at_s == 721.0


@pytest.mark.parametrize(("fill", "starts"), [(False, False), (True, True)])
def test_slots_of_a_job_that_is_done_are_idle_until_the_end_of_the_round_unless_filled(
    fill: bool, starts: bool
) -> None:
    cluster = Cluster.parse("v100:1x2")
    running = Engine(cluster, MaxMinFairnessPerf(fill=fill), ModelKeeper(), debug=True)
    for name in "abc":
        facts = JobFacts(id=name, submitted_s=0.0, requested_slots=1, kind=name, throughputs={"v100": 1.0})
        running.handle(Submitted(0.0, facts))
    running.handle(Tick(1.0))
    done = next(job.id for job in running.jobs.values() if job.allocation)
    outcome = running.handle(Completed(100.0, done))
    assert any(isinstance(command, Start) for command in outcome.commands) is starts
    assert outcome.wake_at_s == 361.0


def test_with_nobody_left_running_a_new_round_begins_at_once() -> None:
    running = engine(MaxMinFairnessPerf())
    outcome = running.handle(Completed(100.0, "a"))
    assert outcome.commands == (Start("b", ((0, 1),)),)
    assert outcome.wake_at_s == 460.0


def test_a_policy_that_knows_nothing_of_what_runs_keeps_it() -> None:
    """As after a restart of the service: nobody who runs is a newcomer to wait with."""
    cluster = Cluster.parse("v100:1x2")
    running = Engine(cluster, MaxMinFairnessPerf(), ModelKeeper(), debug=True)
    for name in "ab":
        facts = JobFacts(id=name, submitted_s=0.0, requested_slots=1, kind=name, throughputs={"v100": 1.0})
        running.handle(Submitted(0.0, facts))
    running.handle(Tick(1.0))
    held = {job.id: job.allocation for job in running.jobs.values()}
    assert all(held.values())
    assert MaxMinFairnessPerf().decide(replace(running.view(), now_s=100.0)).assignments == held


def test_jobs_that_are_left_alone_for_a_while_keep_their_slots_when_they_are_shown_again() -> None:
    """A guard does not show the policy who has just been started; that is neither a newcomer nor a lost node."""
    guarded = Guard(MaxMinFairnessPerf(), protected=lambda job: job.since_s + 10.0)
    running = Engine(Cluster.parse("v100:1x3"), guarded, ModelKeeper(), debug=True)
    slots = {"a": 1, "b": 1, "c": 1, "d": 2}

    def submit(name: str, now_s: float) -> None:
        facts = JobFacts(
            id=name,
            submitted_s=now_s,
            requested_slots=slots[name],
            max_slots=slots[name],
            kind=name,
            throughputs={"v100": 1.0},
        )
        running.handle(Submitted(now_s, facts))

    def held() -> str:
        return "".join(job.id for job in running.jobs.values() if job.allocation)

    submit("a", 0.0)
    submit("b", 0.0)
    running.handle(Tick(1.0))
    assert held() == "ab"
    running.handle(Tick(2.0))  # nobody is shown
    running.handle(Tick(12.0))  # both are again
    assert held() == "ab"
    submit("c", 13.0)  # waits for the end of the round
    submit("d", 14.0)
    assert held() == "ab"
    outcome = running.handle(Tick(200.0))
    assert (held(), outcome.wake_at_s) == ("ab", 361.0)
    running.handle(Tick(361.0))
    second = held()
    assert "d" in second or "c" in second
    for now_s in (362.0, 372.0, 400.0, 720.0):
        running.handle(Tick(now_s))
        assert held() == second


def test_who_runs_ends_the_wait_for_others_when_it_is_shown_again() -> None:
    """The second that the first job of an idle cluster waits is not at the cost of a job that ran all along."""
    guarded = Guard(MaxMinFairnessPerf(), protected=lambda job: job.since_s + 10.0)
    running = Engine(Cluster.parse("v100:1x2"), guarded, ModelKeeper(), debug=True)
    first, second = (
        JobFacts(id=name, submitted_s=at_s, requested_slots=1, kind=name, throughputs={"v100": 1.0})
        for name, at_s in (("a", 0.0), ("b", 10.5))
    )
    running.handle(Submitted(0.0, first))
    running.handle(Tick(1.0))
    running.handle(Submitted(10.5, second))  # the first is not shown until 11
    assert not running.jobs["b"].allocation
    outcome = running.handle(Tick(11.2))
    assert outcome.commands == (Start("b", ((0, 1),)),)
