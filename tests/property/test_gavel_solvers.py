"""What holds for every policy over time fractions, on random problems: feasible, no exceptions, merging is exact."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from effort import examples
from geminid.policies.gavel.allox import allox, in_lines
from geminid.policies.gavel.auction import themis_auction
from geminid.policies.gavel.finish_time import finish_time_fairness
from geminid.policies.gavel.in_order import first_in_first_out, shortest_job_first
from geminid.policies.gavel.makespan import min_makespan
from geminid.policies.gavel.maxmin import max_min_fairness, normalised_shares
from geminid.policies.gavel.memory import Memory
from geminid.policies.gavel.problem import AllocationProblem, GangJob, PairThroughputs, Solver, TimeFractions, agnostic
from geminid.policies.gavel.program import Choice
from geminid.policies.gavel.random_packing import random_packing
from geminid.policies.gavel.static import isolated, proportional
from geminid.policies.gavel.throughput import max_total_throughput
from geminid.policies.gavel.waterfill import Entity, Hierarchy, water_filling

HIERARCHY = Hierarchy({(): Entity(), ("x",): Entity(2.0, "fifo"), ("y",): Entity(1.0), ("y", "v"): Entity(3.0)})

SOLVERS: dict[str, Solver] = {
    "max_min_fairness": max_min_fairness,
    "max_min_fairness, centre": lambda p: max_min_fairness(p, choice="centre"),
    "max_min_fairness, total": lambda p: max_min_fairness(p, choice="total"),
    "water filling": water_filling,
    "hierarchy": lambda p: water_filling(p, hierarchy=HIERARCHY),
    "makespan": min_makespan,
    "makespan, centre": lambda p: min_makespan(p, choice="centre"),
    "finish-time fairness": finish_time_fairness,
    "finish-time fairness, centre": lambda p: finish_time_fairness(p, choice="centre"),
    "total throughput": max_total_throughput,
    "total throughput by cost, deadlines": lambda p: max_total_throughput(p, by_cost=True, deadlines=True),
    "fifo": first_in_first_out,
    "fifo, unaware": lambda p: first_in_first_out(p, aware=False, skip=True),
    "shortest job first": shortest_job_first,
    "random packing": random_packing,
    "isolated": isolated,
    "proportional": proportional,
    "allox": allox,
    "auction": themis_auction,
}


@st.composite
def problems(draw: st.DrawFn, *, pairs: bool | None = None, jobs: int = 9, wide: bool = False) -> AllocationProblem:
    """Few kinds, so that jobs repeat; types without slots, jobs that nothing runs, gangs that do not fit.

    ``wide`` has speeds of 0.01 to 100 steps a second, work of 10 to a million seconds, and ages up to as many.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, types, kinds = draw(st.integers(0, jobs)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    alone = rng.choice([0.0, 1.0, 2.0, 3.5, 8.0], (kinds, types), p=[0.15, 0.3, 0.25, 0.2, 0.1])
    if wide:
        alone = alone * 10.0 ** rng.uniform(-2.0, 1.0, (kinds, 1))
    gang_of_kind = rng.choice([1, 2, 4], kinds, p=[0.6, 0.25, 0.15])
    slots = rng.integers(0, 5, types).astype(float)
    kind = rng.integers(0, kinds, count)
    deadline_s = [float(rng.uniform(-1, 300)) if rng.random() < 0.3 else None for _ in range(count)]
    made = tuple(
        GangJob(
            id=f"job-{i}",
            gang=int(gang_of_kind[kind[i]]),
            kind=int(kind[i]),
            weight=float(rng.choice([1.0, 1.0, 2.0, 5.0])),
            arrived_s=float(rng.integers(0, 5)),
            steps_left=float(
                10.0 ** rng.uniform(1.0, 6.0) * max(float(alone[kind[i]].max()), 0.01)
                if wide
                else rng.choice([0.0, 10.0, 100.0, 1000.0], p=[0.05, 0.35, 0.3, 0.3])
            ),
            elapsed_s=float(10.0 ** rng.uniform(0.0, 6.0) if wide else rng.choice([0.0, 50.0, 500.0])),
            isolated_s=float(rng.choice([0.0, 50.0])),
            deadline_s=deadline_s[i],
            entity=[("x",), ("y",), ("y", "u"), ("y", "v")][int(rng.integers(4))],
        )
        for i in range(count)
    )
    rates = alone[:, None] * rng.choice([0.0, 0.4, 0.7, 0.95], (kinds, kinds, types))
    space = draw(st.booleans()) if pairs is None else pairs
    return AllocationProblem(
        tuple(f"type-{j}" for j in range(types)),
        slots,
        made,
        alone[kind],
        PairThroughputs(tuple(range(kinds)), rates) if space else None,
        costs=np.arange(1.0, types + 1.0),
    )


def _check(problem: AllocationProblem, answer: TimeFractions) -> None:
    gang = {job.id: job.gang for job in problem.jobs}
    assert answer.fractions.shape == (len(answer.combinations), len(problem.gpu_types))
    assert (answer.fractions >= 0).all()
    assert (answer.by_job(problem).sum(axis=1) <= 1 + 1e-7).all()
    assert (answer.slots_used(problem) <= problem.slots * (1 + 1e-7)).all()
    assert len(set(answer.combinations)) == len(answer.combinations)
    assert all(len(set(c)) == len(c) and len({gang[job] for job in c}) == 1 for c in answer.combinations)
    assert not (answer.by_job(problem)[problem.usable <= 0] > 0).any()
    named = {job for note in answer.notes if note.reason == "no_type_runs" for job in note.jobs}
    assert named == {problem.jobs[i].id for i in np.flatnonzero(~problem.runs)}
    assert {"solver_failed", "out_of_time"}.isdisjoint(note.reason for note in answer.notes)


@pytest.mark.parametrize("name", SOLVERS)
@settings(max_examples=examples(40))
@given(problem=problems())
def test_every_answer_is_feasible(name: str, problem: AllocationProblem) -> None:
    _check(problem, SOLVERS[name](problem))
    blind = agnostic(problem)
    _check(blind, SOLVERS[name](blind))


@settings(max_examples=examples(150))
@given(problem=problems(wide=True, jobs=30))
def test_the_auction_finds_winners_among_jobs_of_all_ages_and_sizes(problem: AllocationProblem) -> None:
    _check(problem, themis_auction(problem))


@pytest.mark.parametrize("solve", [finish_time_fairness, min_makespan])
@settings(max_examples=examples(60))
@given(problem=problems(wide=True, jobs=30))
def test_jobs_of_all_ages_and_sizes_are_served_equally_well_whatever_the_choice(
    solve: Callable[..., TimeFractions], problem: AllocationProblem
) -> None:
    """Work of seconds to weeks, waits as long: needs near the poles of 1/(ρ·D − t), and needs of next to nothing."""
    objectives = []
    for choice in ("vertex", "centre", "total"):
        answer = solve(problem, choice=choice)
        _check(problem, answer)
        objectives.append(answer.objective)
    assert objectives == pytest.approx([objectives[0]] * 3, rel=1e-4)


@pytest.mark.parametrize("choice", ["vertex", "centre"])
def test_a_job_that_needs_next_to_nothing_beside_a_huge_one_still_gets_time(choice: Choice) -> None:
    jobs = (GangJob(id="huge", steps_left=1e7), GangJob(id="tiny", steps_left=1e-4))
    problem = AllocationProblem(("t",), np.ones(1), jobs, np.ones((2, 1)))
    answer = min_makespan(problem, choice=choice)
    _check(problem, answer)
    assert (answer.effective_throughput(problem) > 0).all()
    assert answer.objective == pytest.approx(1e7, rel=1e-5)


def test_deadlines_that_have_passed_are_priced_without_a_warning() -> None:
    deadlines = (-1.0, 150.0, 150.0, 150.0)
    jobs = tuple(
        GangJob(id=f"job-{i}", steps_left=100.0, deadline_s=s, arrived_s=float(i)) for i, s in enumerate(deadlines)
    )
    problem = AllocationProblem(("a", "b"), np.ones(2), jobs, np.array([[1.0, 0.0]] * 4), costs=np.array([1.0, 2.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = max_total_throughput(problem, by_cost=True, deadlines=True)
    _check(problem, answer)
    assert [(note.reason, note.jobs) for note in answer.notes] == [
        ("infeasible_slo", ("job-0",)),
        ("infeasible_slo", ("job-2", "job-3")),
    ]


MERGING: dict[str, Callable[..., TimeFractions]] = {
    "max_min_fairness": max_min_fairness,
    "makespan, centre": lambda p, merged: min_makespan(p, choice="centre", merged=merged),
    "makespan": min_makespan,
    "finish-time fairness": finish_time_fairness,
    "total throughput": max_total_throughput,
    "deadlines": lambda p, merged: max_total_throughput(p, deadlines=True, merged=merged),
}


@pytest.mark.parametrize("name", MERGING)
@settings(max_examples=examples(40))
@given(problem=problems())
def test_merging_identical_jobs_changes_nothing(name: str, problem: AllocationProblem) -> None:
    merged, apart = MERGING[name](problem, merged=True), MERGING[name](problem, merged=False)
    assert merged.objective == pytest.approx(apart.objective, rel=1e-5, abs=1e-7)
    assert {(n.reason, frozenset(n.jobs)) for n in merged.notes} == {(n.reason, frozenset(n.jobs)) for n in apart.notes}


WARM: dict[str, Callable[..., TimeFractions]] = {
    **{
        f"{solve.__name__}, {choice}": partial(solve, choice=choice)
        for solve in (max_min_fairness, min_makespan, finish_time_fairness)
        for choice in ("vertex", "centre", "total")
    },
    "water filling": partial(water_filling, hierarchy=HIERARCHY),
    "total throughput": max_total_throughput,
    "deadlines": partial(max_total_throughput, deadlines=True),
}


@pytest.mark.parametrize("name", WARM)
@settings(max_examples=examples(15))
@given(before=problems(), problem=problems())
def test_what_was_solved_before_does_not_change_the_optimum(
    name: str, before: AllocationProblem, problem: AllocationProblem
) -> None:
    """Whatever the last problem was, and when the same one comes again."""
    memory = Memory()
    WARM[name](before, memory=memory)
    cold = WARM[name](problem)
    for _ in range(2):
        warm = WARM[name](problem, memory=memory)
        _check(problem, warm)
        assert warm.objective == pytest.approx(cold.objective, rel=1e-5, abs=1e-7)
        assert [note.reason for note in warm.notes] == [note.reason for note in cold.notes]


@settings(max_examples=examples(40))
@given(problem=problems())
def test_merged_water_filling_reaches_the_same_throughputs(problem: AllocationProblem) -> None:
    for hierarchy in (None, HIERARCHY):
        merged = water_filling(problem, hierarchy=hierarchy).effective_throughput(problem)
        apart = water_filling(problem, hierarchy=hierarchy, merged=False).effective_throughput(problem)
        np.testing.assert_allclose(merged, apart, rtol=1e-4, atol=1e-5)


@settings(max_examples=examples(40))
@given(problem=problems())
def test_water_filling_serves_the_least_served_as_well_as_max_min_fairness(problem: AllocationProblem) -> None:
    shares = normalised_shares(problem, water_filling(problem))
    fair = max_min_fairness(problem).objective
    if np.isfinite(fair):
        assert np.nanmin(shares) == pytest.approx(fair, rel=1e-5, abs=1e-7)


@settings(max_examples=examples(30))
@given(weights=st.lists(st.floats(0.2, 5.0), min_size=2, max_size=4), jobs=st.integers(2, 5))
def test_shares_of_entities_add_up_to_their_weights(weights: list[float], jobs: int) -> None:
    # Slot time is in proportion to weights as long as nobody has all of the time.
    entity = [(f"team-{e}",) for e in range(len(weights)) for _ in range(jobs + e)]
    made = tuple(GangJob(id=f"job-{i}", entity=path) for i, path in enumerate(entity))
    problem = AllocationProblem(("a", "b"), np.array([1.0, 1.0]), made, np.ones((len(made), 2)))
    hierarchy = Hierarchy({(f"team-{e}",): Entity(weight) for e, weight in enumerate(weights)})
    time = water_filling(problem, hierarchy=hierarchy).by_job(problem).sum(axis=1)
    by_team = np.array([time[[path == (f"team-{e}",) for path in entity]].sum() for e in range(len(weights))])
    if time.max() < 1 - 1e-6:
        np.testing.assert_allclose(by_team / by_team.sum(), np.array(weights) / sum(weights), rtol=1e-4)


@settings(max_examples=examples(30))
@given(data=st.data())
def test_shares_add_up_to_the_weights_at_each_level_whatever_the_rules(data: st.DataObject) -> None:
    """One slot that all want: everyone's time is the product of its entities' shares along its path."""
    names = st.sampled_from(("a", "b"))
    paths = data.draw(st.lists(st.lists(names, max_size=3).map(tuple), min_size=1, max_size=8))
    jobs = tuple(
        GangJob(id=f"job-{i}", entity=path, arrived_s=float(i), weight=data.draw(st.sampled_from((1.0, 2.0))))
        for i, path in enumerate(paths)
    )
    nodes = {path[:depth] for path in paths for depth in range(len(path) + 1)}
    rule, weight = st.sampled_from(("fairness", "fifo")), st.sampled_from((0.5, 1.0, 3.0))
    tree = Hierarchy({node: Entity(data.draw(weight), data.draw(rule)) for node in sorted(nodes)})
    expected = np.zeros(len(jobs))

    def divide(node: tuple[str, ...], share: float) -> None:
        """An entity's part among its jobs and the entities directly below it."""
        below = [n for n in sorted(nodes) if len(n) == len(node) + 1 and n[:-1] == node]
        first = {n: min(i for i, path in enumerate(paths) if path[: len(n)] == n) for n in below}
        own = [i for i, path in enumerate(paths) if path == node]
        if tree.entities[node].within == "fifo":
            earliest = min([*first.values(), *own])
            for i in own:
                expected[i] = share if i == earliest else 0.0
            for n in below:
                divide(n, share if first[n] == earliest else 0.0)
            return
        total = sum(jobs[i].weight for i in own) + sum(tree.entities[n].weight for n in below)
        for i in own:
            expected[i] = share * jobs[i].weight / total
        for n in below:
            divide(n, share * tree.entities[n].weight / total)

    divide((), 1.0)
    problem = AllocationProblem(("v100",), np.array([1.0]), jobs, np.ones((len(jobs), 1)))
    time = water_filling(problem, hierarchy=tree).by_job(problem).sum(axis=1)
    np.testing.assert_allclose(time, expected, atol=1e-6)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60))
def test_allox_is_the_assignment_of_jobs_to_places_from_the_end_of_each_slots_line(seed: int) -> None:
    """As the paper has it, one column for every slot and place, through another solver."""
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(1, 25)), int(rng.integers(1, 4))
    slots = rng.integers(1, 5, types).astype(float)
    duration_s = rng.lognormal(3.0, 1.0, (jobs, types))
    every_place = np.concatenate(
        [np.outer(duration_s[:, j], np.repeat(np.arange(1, jobs + 1), int(slots[j]))) for j in range(types)], axis=1
    )
    rows, columns = linear_sum_assignment(every_place)
    total_s, starts = in_lines(duration_s, slots)
    assert total_s == pytest.approx(every_place[rows, columns].sum())
    assert len({job for job, _ in starts}) == len(starts)
    assert all(sum(where == j for _, where in starts) <= slots[j] for j in range(types))
