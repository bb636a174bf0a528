"""Small problems whose best time fractions are known by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from geminid.bench.policies import TEAM_LINES, synthetic_input, teams, under_way
from geminid.policies.gavel import auction
from geminid.policies.gavel.allox import allox
from geminid.policies.gavel.auction import hold_auction, themis_auction
from geminid.policies.gavel.finish_time import finish_time_fairness
from geminid.policies.gavel.in_order import first_in_first_out, shortest_job_first
from geminid.policies.gavel.makespan import min_makespan
from geminid.policies.gavel.maxmin import max_min_fairness, normalised_shares
from geminid.policies.gavel.problem import AllocationProblem, GangJob, PairThroughputs, agnostic
from geminid.policies.gavel.program import Raised, TimeProgram
from geminid.policies.gavel.random_packing import random_packing
from geminid.policies.gavel.static import isolated, proportional
from geminid.policies.gavel.throughput import max_total_throughput
from geminid.policies.gavel.waterfill import Entity, Hierarchy, water_filling
from geminid.solve.lp import Allowance
from geminid.solve.sums import Sums


def _problem(throughputs: list[list[float]], slots: list[float], **jobs: list[Any]) -> AllocationProblem:
    values = np.array(throughputs, dtype=float)
    made = tuple(
        GangJob(id="abcdefgh"[i], kind=i, **{name: column[i] for name, column in jobs.items()})
        for i in range(len(values))
    )
    return AllocationProblem(tuple(f"type-{j}" for j in range(len(slots))), np.array(slots, dtype=float), made, values)


def test_weighted_fairness_of_two_jobs_on_two_types() -> None:
    # Job a makes 6 or 1 steps/s, job b (twice the weight) 2 or 1; one slot of each type. Both run all the time, a on
    # the fast type for u of it: (6u + 1 − u)/3.5 = (2 − u)/(2·1.5) gives u = 8/37, and shares of 22/37.
    problem = _problem([[6, 1], [2, 1]], [1, 1], weight=[1, 2])
    answer = max_min_fairness(problem)
    u = 8 / 37
    np.testing.assert_allclose(answer.by_job(problem), [[u, 1 - u], [1 - u, u]], atol=1e-6)
    assert answer.objective == pytest.approx(22 / 37)


def test_gangs_share_slots_not_jobs() -> None:
    # One type of 2 slots; a wants both at a time, b and c one each. Equal slot-time: 2/3 of a slot for each.
    problem = _problem([[1], [1], [1]], [2], gang=[2, 1, 1])
    answer = max_min_fairness(problem)
    np.testing.assert_allclose(answer.by_job(problem)[:, 0], [1 / 3, 2 / 3, 2 / 3], atol=1e-6)


def test_agnostic_fairness_spreads_every_job_over_the_types() -> None:
    # 3 slots for four equal jobs: 3/4 of the time each, two thirds of it on the type that has two of the slots.
    problem = _problem([[9, 1], [2, 1], [5, 4], [1, 1]], [2, 1], weight=[1, 1, 1, 1])
    answer = max_min_fairness(agnostic(problem))
    np.testing.assert_allclose(answer.by_job(problem), np.tile([0.5, 0.25], (4, 1)), atol=1e-6)


def test_a_pair_that_loses_little_shares_all_the_time() -> None:
    # One slot; together each runs at 80 %, taking turns at 50 %.
    rates = np.zeros((2, 2, 1))
    rates[0, 1], rates[1, 0] = 0.8 * 4, 0.8 * 2
    alone = _problem([[4], [2]], [1])
    problem = AllocationProblem(
        alone.gpu_types, alone.slots, alone.jobs, alone.throughputs, PairThroughputs((0, 1), rates)
    )
    answer = max_min_fairness(problem)
    assert answer.combinations == (("a", "b"),)
    np.testing.assert_allclose(answer.fractions, [[1.0]], atol=1e-6)
    np.testing.assert_allclose(normalised_shares(problem, answer), 0.8, atol=1e-6)


def test_a_job_that_nothing_can_run_is_named_and_harms_nobody() -> None:
    problem = _problem([[0, 0], [1, 1]], [1, 1])
    answer = max_min_fairness(problem)
    assert [(note.reason, note.jobs) for note in answer.notes] == [("no_type_runs", ("a",))]
    assert answer.objective == pytest.approx(1.0)


def test_makespan_of_two_jobs_on_two_types() -> None:
    # Both run all the time, a on the fast type for u of it: 2 + 2u = 8/T and 2 − u = 4/T give u = 1/2 and T = 8/3 s.
    problem = _problem([[4, 2], [2, 1]], [1, 1], steps_left=[8.0, 4.0])
    answer = min_makespan(problem)
    np.testing.assert_allclose(answer.by_job(problem), 0.5, atol=1e-6)
    assert answer.objective == pytest.approx(8 / 3)


def test_jobs_of_one_kind_with_different_work_are_served_by_need() -> None:
    # One fast slot and one slow, two equal jobs of 3 and 1 steps: 2 + 1 steps/s in all, so T = 4/3 s at least; but the
    # longer alone on the fast slot takes 3/2 s, and then the other has time to spare.
    problem = _problem([[2, 1], [2, 1]], [1, 1], steps_left=[3.0, 1.0])
    answer = min_makespan(problem)
    assert answer.objective == pytest.approx(1.5)
    np.testing.assert_allclose(answer.by_job(problem)[0], [1, 0], atol=1e-6)


def test_finish_time_fairness_of_a_job_that_has_waited() -> None:
    # One slot, two jobs of 100 s; one has waited for 100 s. The golden section: 1/x + 1 = 1/(1 − x).
    problem = _problem([[1], [1]], [1], steps_left=[100.0, 100.0], elapsed_s=[0.0, 100.0])
    answer = finish_time_fairness(problem)
    golden = (np.sqrt(5) - 1) / 2
    np.testing.assert_allclose(answer.by_job(problem)[:, 0], [1 - golden, golden], atol=1e-6)
    assert answer.objective == pytest.approx(0.5 / (1 - golden))  # 1.309


def test_total_throughput_and_throughput_per_price() -> None:
    problem = _problem([[4, 1], [3, 2]], [1, 1])
    np.testing.assert_allclose(max_total_throughput(problem).by_job(problem), [[1, 0], [0, 1]], atol=1e-6)
    # Per price a is worth 1 or 1, b 0.75 or 2.
    priced = replace(problem, costs=np.array([4.0, 1.0]))
    assert max_total_throughput(priced, by_cost=True).objective == pytest.approx(3.0)
    # In multiples of what an equal share makes (2.5 for both).
    assert max_total_throughput(problem, normalised=True).objective == pytest.approx(6 / 2.5)


def test_types_that_cost_nothing_are_the_cheapest() -> None:
    problem = replace(_problem([[4, 1], [3, 2]], [1, 1]), costs=np.array([4.0, 0.0]))
    for deadlines in (False, True):
        answer = max_total_throughput(problem, by_cost=True, deadlines=deadlines)
        np.testing.assert_allclose(answer.by_job(problem), [[1, 0], [0, 1]], atol=1e-6)
    free = replace(problem, costs=np.zeros(2))
    assert max_total_throughput(free, by_cost=True).objective == pytest.approx(6.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
@pytest.mark.parametrize(
    "solve", [max_min_fairness, min_makespan, finish_time_fairness, max_total_throughput, water_filling, allox]
)
def test_a_speed_that_is_no_number_keeps_a_job_from_that_type_only(solve: Any, bad: float) -> None:
    problem, same = _problem([[bad, 1], [3, 2]], [1, 1]), _problem([[0, 1], [3, 2]], [1, 1])
    answer = solve(problem)
    np.testing.assert_allclose(answer.by_job(problem), solve(same).by_job(same), atol=1e-6)
    assert {note.reason for note in answer.notes} == ({"bad_speed"} if not np.isfinite(bad) else set())


def test_pairs_whose_speed_is_no_number_do_not_share() -> None:
    rates = np.full((2, 2, 1), np.nan)
    rates[0, 0], rates[1, 1] = np.inf, 0.9
    problem = replace(_problem([[1], [1]], [1]), pairs=PairThroughputs((0, 1), rates))
    np.testing.assert_allclose(max_min_fairness(problem).by_job(problem)[:, 0], [0.5, 0.5], atol=1e-6)


@pytest.mark.parametrize("choice", ["vertex", "centre", "total"])
@pytest.mark.parametrize("weight", [0.0, 1e-9, 1e12, np.inf, np.nan])
def test_weights_beyond_all_bounds_leave_nobody_out(choice: Any, weight: float) -> None:
    problem = _problem([[2, 1], [3, 2], [1, 1]], [1, 1], weight=[weight, 1.0, 1.0])
    for answer in (max_min_fairness(problem, choice=choice), water_filling(problem)):
        time = answer.by_job(problem).sum(axis=1)
        assert (time > 0).all()
        assert answer.slots_used(problem).sum() > 1


@pytest.mark.parametrize("weight", [0.0, -1.0, np.inf, np.nan])
def test_entities_whose_weight_is_beyond_all_bounds_leave_nobody_out(weight: float) -> None:
    problem = _problem([[1]] * 3, [1], entity=[("x",), ("x",), ("y",)])
    answer = water_filling(problem, hierarchy=Hierarchy({("x",): Entity(weight)}))
    assert (answer.by_job(problem)[:, 0] > 0).all()
    assert answer.slots_used(problem)[0] == pytest.approx(1.0)
    alone = water_filling(_problem([[1]] * 2, [1], entity=[("x",)] * 2), hierarchy=Hierarchy({("x",): Entity(weight)}))
    np.testing.assert_allclose(alone.fractions[:, 0], [0.5, 0.5], atol=1e-6)


def test_deadlines_that_are_not_held_say_why() -> None:
    # One slot: a has all of it, b would need all of it too, c twice as much, d the past.
    problem = _problem(
        [[1]] * 4, [1], steps_left=[9.0, 9.0, 20.0, 1.0], deadline_s=[10.0, 10.0, 10.0, -1.0], arrived_s=[0, 1, 2, 3]
    )
    why = {job: note.text for note in max_total_throughput(problem, deadlines=True).notes for job in note.jobs}
    assert sorted(why) == ["b", "c", "d"]
    assert "arrived earlier" in why["b"]
    assert "fastest GPU type all the time" in why["c"]
    assert "has passed" in why["d"]


def test_deadlines_are_kept_in_the_order_of_arrival_and_the_others_named() -> None:
    # One slot: a needs 0.8 of it, b 0.5, c 0.1, d the past.
    deadline_s = [10.0, 10.0, 10.0, -1.0]
    problem = _problem([[1]] * 4, [1], steps_left=[8.0, 5.0, 1.0, 1.0], deadline_s=deadline_s, arrived_s=[0, 1, 2, 3])
    answer = max_total_throughput(problem, deadlines=True)
    time = answer.by_job(problem)[:, 0]
    assert time[0] >= 0.8 - 1e-6
    assert time[2] >= 0.1 - 1e-6
    assert time.sum() == pytest.approx(1.0)
    assert {job for note in answer.notes if note.reason == "infeasible_slo" for job in note.jobs} == {"b", "d"}


def test_water_filling_goes_on_where_max_min_fairness_stops() -> None:
    # a and b can only run on the first type: half of it each. c is alone on the second.
    problem = _problem([[1, 0], [1, 0], [0, 1]], [1, 1])
    answer = water_filling(problem)
    np.testing.assert_allclose(answer.by_job(problem), [[0.5, 0], [0.5, 0], [0, 1]], atol=1e-6)
    assert answer.objective == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("weights", "within", "shares"),
    [
        ((1, 2), "fairness", [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ((2, 1), "fairness", [1.0, 1.0, 0.25, 0.25, 0.25, 0.25]),
        ((5, 1), "fairness", [1.0, 1.0, 0.25, 0.25, 0.25, 0.25]),  # nobody can have more than all of the time
        ((1, 2), "fifo", [1.0, 0.0, 0.5, 0.5, 0.5, 0.5]),
        ((1, 1), "fifo", [1.0, 0.5, 0.375, 0.375, 0.375, 0.375]),
    ],
)
def test_hierarchy_of_two_teams(weights: tuple[float, float], within: Any, shares: list[float]) -> None:
    # 3 equal slots; team x has jobs a and b, team y four others.
    entity = [("x",)] * 2 + [("y",)] * 4
    problem = _problem([[1]] * 6, [3], entity=entity, arrived_s=list(range(6)))
    hierarchy = Hierarchy({("x",): Entity(weights[0], within), ("y",): Entity(weights[1])})
    answer = water_filling(problem, hierarchy=hierarchy)
    np.testing.assert_allclose(answer.by_job(problem)[:, 0], shares, atol=1e-6)


def test_hierarchy_of_three_levels() -> None:
    # 1 slot: org p has weight 3 against q's 1; within p, team p1 first (fifo); within p1 weights 2 and 1.
    entity = [("p", "p1"), ("p", "p1"), ("p", "p2"), ("q",)]
    problem = _problem([[1]] * 4, [1], entity=entity, arrived_s=[0, 1, 2, 3], weight=[2, 1, 1, 1])
    hierarchy = Hierarchy({("p",): Entity(3.0, "fifo")})
    answer = water_filling(problem, hierarchy=hierarchy)
    np.testing.assert_allclose(answer.by_job(problem)[:, 0], [0.5, 0.25, 0.0, 0.25], atol=1e-6)


def test_static_shares() -> None:
    problem = _problem([[1, 1], [1, 0]], [1, 3], gang=[2, 1])
    # A gang of two has half of the time of one slot; the first type has no room for it, the second none for b.
    np.testing.assert_allclose(isolated(problem).by_job(problem), [[0, 0.75], [0.25, 0]])
    np.testing.assert_allclose(proportional(problem).by_job(problem), [[0, 0.75], [0.25, 0]])
    crowded = _problem([[1, 1]] * 4, [2, 2], gang=[2, 1, 1, 1])
    np.testing.assert_allclose(proportional(crowded).by_job(crowded), 0.4)


def test_jobs_that_nothing_can_run_leave_their_share_to_the_others() -> None:
    problem = _problem([[2, 1], [2, 1], [0, 0], [0, 0]], [1, 1])
    np.testing.assert_allclose(isolated(problem).by_job(problem), [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]])
    np.testing.assert_allclose(proportional(problem).by_job(problem), [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]])
    np.testing.assert_allclose(problem.isolated_throughput, [1.5, 1.5, 0, 0])


def test_first_in_first_out_takes_the_fastest_free_type_and_waits_for_the_first_in_line() -> None:
    problem = _problem([[1, 4], [1, 2], [1, 1], [1, 1]], [2, 1], gang=[1, 1, 2, 1], arrived_s=[0, 1, 2, 3])
    in_turn = first_in_first_out(problem)
    assert dict(zip(in_turn.combinations, in_turn.fractions.argmax(axis=1).tolist(), strict=True)) == {
        ("a",): 1,
        ("b",): 0,
    }
    assert first_in_first_out(problem, skip=True).combinations == (("a",), ("b",), ("d",))
    held = first_in_first_out(problem, held={"c": "type-0"})
    assert {c[0] for c in held.combinations} == {"a", "c"}


def test_first_in_first_out_draws_types_when_unaware_of_speeds() -> None:
    problem = _problem([[1, 4]] * 4, [4, 4], arrived_s=[0, 1, 2, 3])
    chosen = {seed: first_in_first_out(problem, aware=False, seed=seed).fractions.tobytes() for seed in range(8)}
    assert len(set(chosen.values())) > 1
    assert chosen[0] == first_in_first_out(problem, aware=False, seed=0).fractions.tobytes()


@pytest.mark.parametrize(("together", "expected"), [(0.8, {("a", "b")}), (0.7, {("a",)})])
def test_first_in_first_out_packs_only_what_pays(together: float, expected: set[tuple[str, ...]]) -> None:
    problem = _problem([[4], [2]], [1], arrived_s=[0, 1])
    rates = np.zeros((2, 2, 1))
    rates[0, 1], rates[1, 0] = together * 4, together * 2
    answer = first_in_first_out(replace(problem, pairs=PairThroughputs((0, 1), rates)))
    assert set(answer.combinations) == expected


def test_shortest_job_first() -> None:
    problem = _problem([[1, 2]] * 3, [1, 1], steps_left=[9.0, 1.0, 4.0])
    answer = shortest_job_first(problem)
    assert dict(zip(answer.combinations, answer.fractions.argmax(axis=1).tolist(), strict=True)) == {
        ("b",): 1,
        ("c",): 0,
    }


def test_random_packing_only_under_overload_and_pairs_stay_while_they_pay() -> None:
    rates = np.full((4, 4, 1), 0.6)
    rates[0, :], rates[:, 0] = 0.3, 0.3  # nobody gains beside a
    rates[1, 2] = rates[2, 1] = 0.0  # b and c cannot share
    pairs = PairThroughputs((0, 1, 2, 3), rates)
    alone = _problem([[1]] * 4, [4])
    assert all(len(c) == 1 for c in random_packing(replace(alone, pairs=pairs)).combinations)
    crowded = replace(alone, pairs=pairs, slots=np.array([2.0]))
    for seed in range(6):
        answer = random_packing(crowded, seed=seed)
        assert len(answer.combinations) == 2  # everyone is tried beside someone
        np.testing.assert_allclose(
            answer.fractions.ravel(), [0.0 if set(c) == {"b", "c"} else 1.0 for c in answer.combinations]
        )
        again = random_packing(crowded, seed=99, held=answer.combinations)
        kept = {c for c in answer.combinations if "a" not in c and set(c) != {"b", "c"}}
        assert kept <= set(again.combinations)
    assert all(len(c) == 1 for c in random_packing(replace(alone, pairs=pairs), held=[("c", "d")]).combinations)


def test_allox_places_jobs_for_the_least_average_completion() -> None:
    # Durations: a 1 or 3, b 2 or 3, c 9 or 9 on one slot each. Best: a then b on the first (1 + 3), c
    # on the second (9).
    problem = _problem([[1, 1 / 3], [1 / 2, 1 / 3], [1 / 9, 1 / 9]], [1, 1])
    answer = allox(problem)
    assert answer.objective == pytest.approx(13.0)
    assert dict(zip(answer.combinations, answer.fractions.argmax(axis=1).tolist(), strict=True)) == {
        ("a",): 0,
        ("c",): 1,
    }
    gangs = _problem([[1], [1]], [3], gang=[1, 2])
    answer = allox(gangs)
    assert [note.reason for note in answer.notes] == ["gang_not_supported"]
    assert set(answer.combinations) == {("a",), ("b",)}


@pytest.mark.parametrize("bidders", [2, 3, 5])
def test_equal_linear_bidders_keep_what_the_mechanism_leaves_them(bidders: int) -> None:
    problem = _problem([[1]] * bidders, [1])
    award = hold_auction(problem, np.arange(bidders))
    assert award is not None
    np.testing.assert_allclose(award.kept, ((bidders - 1) / bidders) ** (bidders - 1), atol=1e-4)


def test_the_auction_asks_the_worst_off_and_leaves_nothing_idle() -> None:
    problem = _problem([[1]] * 5, [1], steps_left=[100.0] * 5, elapsed_s=[0.0, 0.0, 900.0, 0.0, 0.0])
    answer = themis_auction(problem)
    np.testing.assert_allclose(answer.by_job(problem)[:, 0], [0, 0, 1, 0, 0], atol=1e-6)
    both = themis_auction(problem, fairness_knob=0.6).by_job(problem)[:, 0]
    assert both.sum() == pytest.approx(1.0)
    assert both.min() > 0.01


@pytest.mark.parametrize("solve", [max_total_throughput, partial(max_total_throughput, deadlines=True)])
def test_a_solver_whose_time_is_over_leaves_equal_shares_and_says_why(solve: Any) -> None:
    problem = _problem([[6, 1], [2, 1]], [1, 1], weight=[1, 2], deadline_s=[4.0, None])
    answer = solve(problem, within=Allowance(0.0))
    assert [note.reason for note in answer.notes] == ["out_of_time"]
    assert answer.notes[0].text == "no optimum was found (Time limit reached): equal static shares"
    np.testing.assert_allclose(answer.by_job(problem), [[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize("solve", [max_min_fairness, water_filling, finish_time_fairness, min_makespan, themis_auction])
def test_without_time_for_programs_there_is_still_the_middle(solve: Any) -> None:
    problem = _problem([[6, 1], [2, 1]], [1, 1], weight=[1, 2])
    answer = solve(problem, within=Allowance(0.0))
    assert [note.reason for note in answer.notes] == ["out_of_time"]
    assert answer.notes[0].text.endswith("(Time limit reached): the middle of what raises everyone furthest")
    made, best = answer.effective_throughput(problem), solve(problem).effective_throughput(problem)
    assert (made >= 0.9 * best).all()


class Hours:
    """A clock on which an hour passes whenever somebody looks."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 3600.0
        return self.now_s


@pytest.mark.parametrize("choice", ["vertex", "centre"])
@pytest.mark.parametrize("solve", [max_min_fairness, finish_time_fairness, min_makespan])
def test_by_a_clock_interior_points_count_too(solve: Any, choice: Any) -> None:
    problem = under_way(synthetic_input(24, 3, 0))
    for given in (problem, replace(problem, pairs=None)):
        answer = solve(given, choice=choice, within=Allowance(60.0, Hours()))
        assert [note.reason for note in answer.notes] == ["out_of_time"]
        assert answer.notes[0].text.endswith("equal static shares")


def test_by_a_clock_the_auction_counts_too() -> None:
    problem = replace(under_way(synthetic_input(64, 3, 0)), pairs=None)
    answer = themis_auction(problem, within=Allowance(60.0, Hours()))
    assert [note.reason for note in answer.notes] == ["out_of_time"]


def test_what_winners_keep_is_near_what_prices_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """When there is time for the largest product only: each of many bidders hardly moves the prices."""
    problem = under_way(synthetic_input(200, 3, 0))
    problem = replace(problem, pairs=None, slots=problem.slots / 8)
    bidders = np.arange(100)
    exact = hold_auction(problem, bidders)
    largest_sum = auction.largest_sum

    def only_first(blocks: Any, value: Any, present: Any, within: Any) -> Any:
        if len(present) == 1:
            return largest_sum(blocks, value, present)
        return Sums(np.full(present.shape, np.nan), np.full(present.shape, np.nan))

    monkeypatch.setattr(auction, "largest_sum", only_first)
    rough = hold_auction(problem, bidders, Allowance(0.0))
    assert exact is not None
    assert rough is not None
    assert (exact.estimated, rough.estimated) == (0, 100)
    assert exact.kept.min() < 0.7
    np.testing.assert_allclose(rough.throughput, exact.throughput, rtol=1e-6)
    np.testing.assert_allclose(rough.kept, exact.kept, atol=0.02)
    notes = themis_auction(problem, fairness_knob=0.5, within=Allowance(0.0)).notes
    assert notes[-1].text == "what 100 of 100 winners keep is estimated from the prices of the slots"


def test_the_middle_of_what_jobs_can_have_alone_takes_no_program() -> None:
    problem = _problem([[6, 1], [2, 1]], [1, 1], weight=[1, 2])
    answer = max_min_fairness(problem, choice="centre", within=Allowance(0.0))
    assert answer.notes == ()
    assert answer.objective == pytest.approx(22 / 37, rel=1e-6)


def test_the_auction_says_that_its_time_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.full((1, 1), np.nan)
    monkeypatch.setattr(auction, "largest_sum", lambda blocks, value, present, within: Sums(nothing, nothing))
    answer = themis_auction(_problem([[6, 1], [2, 1]], [1, 1]), within=Allowance(0.0))
    (note,) = answer.notes
    assert note.reason == "out_of_time"
    assert note.text.startswith("no winning allocation was found")


@pytest.mark.parametrize("solve", [max_min_fairness, min_makespan, finish_time_fairness])
def test_without_time_for_pairs_everyone_is_served_as_well_as_without_them(solve: Any) -> None:
    problem = under_way(synthetic_input(24, 3, 0))
    alone = replace(problem, pairs=None)
    answer = solve(problem, within=Allowance(0.0))
    assert [str(note) for note in answer.notes] == [
        "out_of_time: no optimum was found (Time limit reached): no pairs share slots"
    ]
    assert answer.objective == pytest.approx(solve(alone).objective, rel=1e-5)


def test_all_programs_of_a_solve_share_one_allowance() -> None:
    problem = _problem([[1, 0], [1, 1], [0, 1]], [1, 4])
    time = Allowance(50.0)
    water_filling(problem, within=time)
    assert 40.0 < time.left_s < 50.0


def test_water_filling_whose_time_is_over_on_the_way_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem([[1, 0], [1, 1], [0, 1]], [1, 4])
    time = Allowance()
    raise_level = TimeProgram.raise_level

    def and_then_no_more(program: TimeProgram, *arguments: Any, **more: Any) -> Raised | None:
        raised = raise_level(program, *arguments, **more)
        time.take(time.left_s)
        return raised

    monkeypatch.setattr(TimeProgram, "raise_level", and_then_no_more)
    answer = water_filling(problem, within=time)
    assert [note.reason for note in answer.notes] == ["out_of_time"]
    assert "not everyone was raised" in answer.notes[0].text
    assert normalised_shares(problem, answer).min() == pytest.approx(max_min_fairness(problem).objective)


def test_rounding_does_not_add_up_over_the_rounds_of_water_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = teams(replace(synthetic_input(128, 8, seed=0), pairs=None))
    raise_level = TimeProgram.raise_level
    failed = []

    def counted(program: TimeProgram, *arguments: Any, **more: Any) -> Raised | None:
        raised = raise_level(program, *arguments, **more)
        failed.append(raised is None)
        return raised

    monkeypatch.setattr(TimeProgram, "raise_level", counted)
    answer = water_filling(problem, hierarchy=TEAM_LINES)
    assert not answer.notes
    assert len(failed) > 80
    assert sum(failed) < 4  # each begins a program anew


def test_water_filling_says_if_it_had_to_stop_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem([[1, 0], [1, 1], [0, 1]], [1, 4])
    raise_level = TimeProgram.raise_level
    calls = []

    def only_once(program: TimeProgram, *arguments: Any, **more: Any) -> Raised | None:
        calls.append(program)
        return raise_level(program, *arguments, **more) if len(calls) == 1 else None

    monkeypatch.setattr(TimeProgram, "raise_level", only_once)
    answer = water_filling(problem)
    assert len(calls) > 1
    assert [note.reason for note in answer.notes] == ["solver_failed"]
    assert "not everyone was raised" in answer.notes[0].text
    assert answer.by_job(problem).sum(axis=1).min() > 0
