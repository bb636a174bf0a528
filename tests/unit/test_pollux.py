"""Pollux: its objective by hand, its search against brute force, and what it does for jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.engine.plan import Plan, make_plan
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.table import JobModel
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, JobFacts, JobView, slots_of
from geminid.policies.pollux import Pollux, Problem, _Round, restart_factor
from geminid.policies.pollux_objective import EPSILON, Objective, cost_of, mean_of_cost, power_mean
from geminid.solve.genetic import Cells

LIMITS = BatchLimits(initial=128, largest=4096, smallest_per_slot=32, largest_per_slot=1024)


def model(sync_s: float = 0.02, noise: float = 8.0, gpu_type: str = "t4") -> JobModel:
    """A job that takes 0.1 s + 1 ms a sample, and synchronises in this time, twice as long across nodes."""
    parameters = (0.1, 0.001, 2 * sync_s, 0.002, sync_s, 0.001, 2.0)
    fitted = ThroughputFit("pollux", parameters, "fitted", 0.0, 8)
    return JobModel({gpu_type: fitted}, {gpu_type: LIMITS}, GradientStats(1.0, noise))


def job(name: str, *, allocation: Allocation = (), measured: int = 64, **changes: Any) -> JobView:
    known = changes.pop("model", model())
    view = {key: changes.pop(key) for key in ("restarts", "service_before_gpu_s") if key in changes}
    facts: dict[str, Any] = {"submitted_s": 0.0, "requested_slots": 1, "max_slots": 64, "limits": {"t4": LIMITS}}
    return JobView(
        facts=JobFacts(id=name, **(facts | changes)),
        allocation=allocation,
        slots=slots_of(allocation),
        gpu_type="t4" if allocation else None,
        since_s=600.0,
        most_slots_measured=measured,
        model=known,
        **view,
    )


def view(*jobs: JobView, cluster: str = "t4:4x4", now_s: float = 600.0, down: tuple[int, ...] = ()) -> ClusterView:
    parsed = Cluster.parse(cluster)
    usable = tuple(0 if n in down else int(slots) for n, slots in enumerate(parsed.node_slots))
    free = list(usable)
    for job in jobs:
        for node, slots in job.allocation:
            free[node] -= slots
    return ClusterView(now_s, parsed, jobs, usable, tuple(free))


def decide(policy: Pollux, at: ClusterView) -> Mapping[str, Allocation]:
    plan = make_plan(policy.decide(at), at, {job.id: job for job in at.jobs})
    assert isinstance(plan, Plan), plan
    return plan.allocations


def after(at: ClusterView, allocations: Mapping[str, Allocation]) -> ClusterView:
    """A minute later, with what was decided."""
    jobs = tuple(
        replace(
            job,
            allocation=allocations.get(job.id, ()),
            slots=slots_of(allocations.get(job.id, ())),
            gpu_type=at.cluster.nodes[allocations[job.id][0][0]].gpu_type if job.id in allocations else None,
        )
        for job in at.jobs
    )
    return replace(at, now_s=at.now_s + 60.0, jobs=jobs)


def rounds(policy: Pollux, at: ClusterView, count: int) -> ClusterView:
    for _ in range(count):
        at = after(at, decide(policy, at))
    return at


def slots(at: ClusterView) -> list[int]:
    return [job.slots for job in at.jobs]


def problem_of(policy: Pollux, at: ClusterView) -> Problem:
    return policy._problem(at, np.flatnonzero(at.usable_slots))


def fitness(problem: Problem, matrix: NDArray[Any]) -> float:
    return float(problem.objective(Cells.of(matrix[None]))[0, 0])


# --- The objective ---


def test_power_means() -> None:
    values = np.array([1.0, 4.0])
    assert power_mean(values, -1.0) == pytest.approx(1.6)
    assert power_mean(values, 0.0) == pytest.approx(2.0)
    assert power_mean(values, 1.0) == pytest.approx(2.5)
    assert power_mean(values, 2.0) == pytest.approx(np.sqrt(8.5))


@pytest.mark.parametrize("p", [-2.0, -1.0, 0.0, 0.5, 1.0])
def test_the_sum_of_costs_is_least_where_the_power_mean_is_largest(p: float) -> None:
    speedups = np.array([0.0, 0.3, 2.0])
    assert mean_of_cost(float(cost_of(speedups, p).mean()), p) == pytest.approx(power_mean(speedups + EPSILON, p))


@pytest.mark.parametrize(
    ("age_s", "restarts", "expected"), [(0.0, 0, 0.0), (30.0, 0, 0.5), (300.0, 2, 240 / 330), (60.0, 3, 0.0)]
)
def test_the_restart_factor_is_what_the_paper_says(age_s: float, restarts: int, expected: float) -> None:
    assert restart_factor(job("a", restarts=restarts), age_s, 30.0) == pytest.approx(expected)


def test_a_change_without_cost_is_not_discounted() -> None:
    assert restart_factor(job("a", restarts=5), 0.0, 0.0) == 1.0


def test_fitness_and_utility_by_hand() -> None:
    speedup = np.zeros((2, 3, 5))
    speedup[0, 1, 2], speedup[1, 2, 3] = 1.5, 2.0
    current = np.array([[2, 0, 0], [0, 0, 0]])
    objective = Objective(
        speedup=speedup,
        current=current,
        factor=np.array([0.1, 0.5]),
        must_move=np.array([False, False]),
        capacity=np.array([4, 4, 4]),
        scale=0.25,
        p=-1.0,
    )
    stays_and_starts = np.array([[2, 0, 0], [2, 1, 0]])
    moves = np.array([[0, 2, 0], [0, 0, 0]])
    values = objective(Cells.of(np.array([stays_and_starts, moves])))
    first, second = 1.5 * 0.25 + 0.001, 2.0 * 0.5 * 0.25 + 0.001
    np.testing.assert_allclose(values[0], [2 / (1 / first + 1 / second), 3.5 / 8])
    np.testing.assert_allclose(values[1], [2 / (1 / (1.5 * 0.1 * 0.25 + 0.001) + 1000), 1.5 / 4])
    forced = replace(objective, must_move=np.array([True, False]))
    assert forced(Cells.of(stays_and_starts[None]))[0, 0] < values[0, 0]


def test_speedups_are_relative_to_the_fair_share() -> None:
    problem = problem_of(Pollux(), view(*(job(str(i)) for i in range(8))))
    np.testing.assert_allclose(problem.objective.speedup[:, 1, 2], 1.0)  # 16 slots for 8 jobs
    assert problem.objective.scale == 4 / 16
    assert (problem.objective.speedup[:, 1, 1] < 1.0).all()


def test_a_job_that_was_never_measured_counts_as_scaling_perfectly_and_gets_one_slot() -> None:
    at = view(job("new", model=None, measured=0), job("old"))
    problem = problem_of(Pollux(), at)
    row = [job.id for job in problem.jobs].index("new")
    np.testing.assert_allclose(problem.objective.speedup[row, 1], np.arange(problem.goodput.shape[2]) / 8)
    assert problem.space.max_slots[row] == 1


def test_jobs_come_in_the_order_pinned_service_submission() -> None:
    at = view(
        job("late", submitted_s=9.0),
        job("served", service_before_gpu_s=50.0),
        job("early", submitted_s=3.0),
        job("pinned", allocation=((0, 1),), service_before_gpu_s=99.0),
    )
    problem = problem_of(Pollux(pinned=("pinned", "early")), at)
    assert [job.id for job in problem.jobs] == ["pinned", "early", "late", "served"]
    assert problem.space.pinned.tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("measured", "changes", "most"),
    [(0, {}, 1), (1, {}, 2), (5, {}, 10), (64, {"max_slots": 6}, 6), (64, {}, 16), (0, {"min_slots": 3}, 3)],
)
def test_a_job_may_have_twice_what_it_was_measured_on(measured: int, changes: dict[str, Any], most: int) -> None:
    assert problem_of(Pollux(), view(job("a", measured=measured, **changes))).space.max_slots.tolist() == [most]


def test_a_job_has_no_more_slots_than_its_batch_can_be_divided_over() -> None:
    limits = {"t4": replace(LIMITS, largest=128)}
    assert problem_of(Pollux(), view(job("a", limits=limits))).space.max_slots.tolist() == [4]


# --- What it decides ---


def test_a_lone_job_grows_as_it_is_measured() -> None:
    policy, at, seen = Pollux(), view(job("a", measured=0, model=None)), []
    for _ in range(5):
        at = after(at, decide(policy, at))
        measured = replace(at.jobs[0], most_slots_measured=at.jobs[0].slots, model=model(0.001, noise=1000.0))
        at = replace(at, jobs=(measured,))
        seen.append(measured.slots)
    assert seen == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("solver", ["genetic", "exact"])
def test_equal_jobs_get_similar_shares(solver: Any) -> None:
    at = rounds(Pollux(solver=solver), view(*(job(str(i)) for i in range(4)), cluster="t4:2x4"), 4)
    assert sum(slots(at)) == 8
    assert set(slots(at)) == {2}


def test_a_seed_determines_every_decision() -> None:
    at = view(*(job(str(i), model=model(0.01 * (i + 1))) for i in range(5)))
    one, same, other = (rounds(Pollux(seed=seed, generations=5), at, 3) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_pinned_jobs_keep_their_slots_while_they_run() -> None:
    held = ((1, 1), (2, 1))
    at = view(job("pinned", allocation=held), *(job(str(i)) for i in range(3)))
    for solver in ("genetic", "exact"):
        policy = Pollux(pinned=("pinned",), solver=solver)  # type: ignore[arg-type]
        assert decide(policy, at)["pinned"] == held


def test_jobs_leave_nodes_that_are_gone() -> None:
    at = view(job("a", allocation=((0, 4),)), job("b", allocation=((1, 4),)), cluster="t4:2x4", down=(0,))
    for solver in ("genetic", "exact"):
        allocations = decide(Pollux(solver=solver), at)  # type: ignore[arg-type]
        assert {node for allocation in allocations.values() for node, _ in allocation} == {1}


def test_nothing_is_decided_where_there_is_nothing() -> None:
    assert Pollux().decide(view()).assignments == {}
    assert Pollux().decide(view(job("a"), cluster="t4:1x4", down=(0,))).assignments == {}


@pytest.mark.parametrize("solver", ["genetic", "exact"])
def test_distributed_jobs_share_no_node_unless_they_may(solver: Any) -> None:
    at = rounds(Pollux(solver=solver), view(*(job(str(i)) for i in range(3)), cluster="t4:4x2"), 4)
    distributed = [node for job in at.jobs if len(job.allocation) > 1 for node, _ in job.allocation]
    assert len(distributed) == len(set(distributed))


@pytest.mark.parametrize("solver", ["genetic", "exact"])
def test_on_mixed_types_every_job_stays_within_one_that_it_allows(solver: Any) -> None:
    both = {"t4": LIMITS, "v100": LIMITS}
    jobs = [job(str(i), limits=both) for i in range(3)]
    picky = job("picky", limits=both, gpu_types=frozenset({"v100"}))
    at = rounds(Pollux(solver=solver), view(*jobs, picky, cluster="t4:2x2,v100:2x4"), 5)
    types = [{at.cluster.nodes[node].gpu_type for node, _ in job.allocation} for job in at.jobs]
    assert all(len(used) == 1 for used in types)
    assert types[-1] == {"v100"}


@pytest.mark.parametrize("solver", ["genetic", "exact"])
def test_rigid_jobs_get_all_or_nothing(solver: Any) -> None:
    rigid = job(
        "rigid", model=None, limits={}, requested_slots=6, min_slots=6, max_slots=6, adaptivity=Adaptivity.RIGID
    )
    at = rounds(Pollux(solver=solver), view(job("a"), rigid, cluster="t4:2x4"), 8)
    assert slots(at)[1] == 6


def test_the_last_round_is_carried_over_by_name() -> None:
    last = _Round(("a", "b"), ("n0", "n1", "n2"), np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.int8))
    adapted = last.adapted(["new", "b"], ["n2", "n0", "fresh"])
    assert adapted.tolist() == [[[0, 0, 0], [6, 4, 0]]]
    assert last.adapted(["x"], ["y"]).tolist() == [[[0]]]


def test_good_use_keeps_the_cluster_and_other_use_resizes_it() -> None:
    policy = Pollux(autoscale=True)
    scales_well = view(*(job(str(i), model=model(1e-6, noise=1e6)) for i in range(8)), cluster="t4:2x4")
    assert (policy.decide(scales_well).desired_nodes or {})["t4"] > 2
    scales_badly = view(job("a", model=model(5.0, noise=0.01), measured=1), cluster="t4:8x4")
    assert Pollux(autoscale=True).decide(scales_badly).desired_nodes == {"t4": 1}
    mixed = view(job("a", model=model(5.0, noise=0.01), measured=1), cluster="t4:6x4,v100:2x4")
    assert Pollux(autoscale=True).decide(mixed).desired_nodes == {"t4": 1, "v100": 0}
    assert Pollux().decide(scales_badly).desired_nodes is None


# --- How good it is ---


def best_by_brute_force(problem: Problem) -> float:
    """The best fitness over all feasible matrices."""
    jobs, nodes = problem.space.current.shape
    cells = [range(int(capacity) + 1) for _ in range(jobs) for capacity in problem.space.capacity]
    every = np.array(list(product(*cells)), dtype=np.int8).reshape(-1, jobs, nodes)
    repaired = every.copy()
    problem.space.repair(repaired, np.random.default_rng(0))
    feasible = every[(repaired == every).all(axis=(1, 2))]
    return float(problem.objective(Cells.of(feasible))[:, 0].max())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("p", [-1.0, 0.0, 1.0])
def test_both_solvers_come_close_to_brute_force(seed: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    jobs = [job(str(i), model=model(float(rng.uniform(0.001, 0.2)), float(rng.uniform(1, 100)))) for i in range(3)]
    at = view(*jobs, cluster="t4:3x2")
    genetic, exact = Pollux(p=p, seed=seed), Pollux(p=p, solver="exact")
    at = rounds(genetic, at, 3)
    problem = problem_of(genetic, at)
    best = best_by_brute_force(problem)
    assert fitness(problem, problem.space.current) >= 0.98 * best
    moved = after(at, decide(exact, at))
    order = {job.id: job for job in moved.jobs}
    matrix = np.zeros_like(problem.space.current)
    for row, member in enumerate(problem.jobs):
        for node, count in order[member.id].allocation:
            matrix[row, node] = count
    assert fitness(problem, matrix) == pytest.approx(best, rel=1e-4)
    assert exact.bound is not None
    assert exact.bound >= best * (1 - 1e-4)
    assert genetic.bound is None


def test_the_exact_solver_serves_everyone_at_once_where_the_search_needs_many_rounds() -> None:
    at = view(*(job(str(i)) for i in range(32)), cluster="t4:8x4")
    exact, genetic = decide(Pollux(solver="exact"), at), decide(Pollux(generations=20), at)
    assert len(exact) == 32
    assert len(genetic) < 32
