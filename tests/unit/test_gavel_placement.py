"""Placement sensitivity: what whole and spread gangs are worth to the problem and to the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.policies.base import JobFacts
from geminid.policies.gavel.fairness import MaxMinFairnessPerf
from geminid.policies.gavel.maxmin import max_min_fairness
from geminid.policies.gavel.placement import folded, whole_gangs, with_spread
from geminid.policies.gavel.problem import AllocationProblem, GangJob
from geminid.policies.gavel.throughput import max_total_throughput
from geminid.policies.gavel.waterfill import water_filling
from geminid.sim.profiles.gavel import ThroughputTable, TypeThroughputs
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload


def gangs_of_three(jobs: int) -> AllocationProblem:
    """Gangs of three that make three steps a second, on three nodes of four slots."""
    made = tuple(GangJob(id=f"job-{i}", gang=3) for i in range(jobs))
    return AllocationProblem(("v100",), np.array([12.0]), made, np.full((jobs, 1), 3.0))


@pytest.mark.parametrize(
    ("nodes", "gang", "most"), [((4, 4, 4), 3, 3), ((4, 4, 4), 4, 3), ((4, 4, 3), 8, 1), ((2, 1), 1, 3), ((), 2, 0)]
)
def test_as_many_gangs_stand_whole_as_nodes_have_room_for(nodes: tuple[int, ...], gang: int, most: int) -> None:
    assert whole_gangs(nodes, gang) == most


@pytest.mark.parametrize("choice", ["vertex", "centre", "total"])
def test_the_gang_that_does_not_fit_a_node_is_slower(choice: Any) -> None:
    """Three of four stand whole at a time: everyone makes 3/4·3 + 1/4·1.5 steps a second."""
    problem = with_spread(gangs_of_three(4), np.full((4, 1), 1.5), {"v100": [4, 4, 4]})
    answer = max_min_fairness(problem, choice=choice)
    np.testing.assert_allclose(answer.effective_throughput(problem), 2.625, rtol=1e-6)
    np.testing.assert_allclose(answer.slots_used(problem), [12, 0], rtol=1e-6)
    assert folded(problem, answer).fractions.sum() == pytest.approx(4.0, rel=1e-6)
    assert folded(problem, answer).gpu_types == ("v100",)


@pytest.mark.parametrize("solve", [max_min_fairness, water_filling, max_total_throughput])
def test_who_does_not_mind_is_spread(solve: Any) -> None:
    problem = with_spread(gangs_of_three(4), np.array([[1.5], [1.5], [3.0], [1.5]]), {"v100": [4, 4, 4]})
    answer = solve(problem)
    np.testing.assert_allclose(answer.effective_throughput(problem), 3.0, rtol=1e-6)
    spread = answer.by_job(problem)[:, 1]
    assert spread[2] == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(np.delete(spread, 2), 0.0, atol=1e-6)


def test_where_gangs_fill_nodes_nothing_changes() -> None:
    made = tuple(GangJob(id=f"job-{i}", gang=2) for i in range(4))
    problem = AllocationProblem(("v100",), np.array([8.0]), made, np.full((4, 1), 2.0))
    assert with_spread(problem, np.full((4, 1), 0.5), {"v100": [4, 4]}) is problem


def facts(name: str, spread: float) -> JobFacts:
    return JobFacts(
        id=name,
        submitted_s=0.0,
        requested_slots=3,
        min_slots=3,
        max_slots=3,
        kind=name,
        throughputs={"v100": 3.0},
        spread_throughputs={"v100": spread},
    )


def test_rounds_spread_who_minds_least_and_make_up_for_what_others_lose() -> None:
    policy = MaxMinFairnessPerf()
    running = Engine(Cluster.parse("v100:3x4"), policy, ModelKeeper(), debug=True)
    for name, spread in (("a", 1.5), ("b", 3.0), ("c", 1.5), ("d", 1.5)):
        running.handle(Submitted(0.0, facts(name, spread)))
    running.handle(Tick(1.0))
    nodes = {name: len(job.allocation) for name, job in running.jobs.items()}
    assert nodes == {"a": 1, "b": 3, "c": 1, "d": 1}


def test_rounds_make_up_for_time_on_too_many_nodes() -> None:
    """Four of five gangs run at a time, one of them at half speed: everyone has made as many steps in the end."""
    running = Engine(Cluster.parse("v100:3x4"), MaxMinFairnessPerf(), ModelKeeper(), debug=True)
    for name in "abcde":
        running.handle(Submitted(0.0, facts(name, 1.5)))
    steps, spread = dict.fromkeys("abcde", 0.0), 0
    for turn in range(100):
        running.handle(Tick(1.0 + 360.0 * turn))
        for name, job in running.jobs.items():
            steps[name] += {0: 0.0, 1: 3.0}.get(len(job.allocation), 1.5)
            spread += len(job.allocation) > 1
    assert spread == 100
    assert max(steps.values()) / min(steps.values()) < 1.05


def test_the_simulator_runs_spread_gangs_as_the_table_says() -> None:
    """Two jobs of one kind on nodes of four: the second has a slot of each, and takes twice as long."""
    kind = ("k", 3)
    table = ThroughputTable({"v100": TypeThroughputs({kind: 3.0}, {kind: 1.5}, {})})
    jobs = tuple(TraceJob(name=f"j{i}", submit_s=0.0, requested_slots=3, application="k", steps=300) for i in range(4))
    simulator = Simulator(
        Workload("w", jobs), {}, Cluster.parse("v100:3x4"), MaxMinFairnessPerf(), Settings(), throughputs=table
    )
    done = sorted(job.completed_s or 0.0 for job in simulator.run().jobs)
    assert done == pytest.approx([101, 101, 101, 201], abs=1.0)
