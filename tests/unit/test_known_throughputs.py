"""Jobs that make steps at the speeds of a table, alone and in pairs, in the simulator."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from geminid.cluster import Cluster
from geminid.fields import InvalidInput
from geminid.policies.base import Allocation, ClusterView, Decision, Policy
from geminid.sim.metrics import summary
from geminid.sim.profiles import ThroughputTable, load_throughputs
from geminid.sim.run import without_unknown
from geminid.sim.simulator import Simulator
from geminid.sim.workload import TraceJob, Workload

TABLE: dict[str, Any] = {
    "v100": {
        "('A', 1)": {"null": 10.0, "('B', 1)": [5.0, 4.0], "('A', 1)": [6.0, 6.0]},
        "('B', 1)": {"null": 5.0, "('A', 1)": [4.0, 5.0], "('B', 1)": [0.0, 0.0]},
        "('A', 2)": {"null": 20.0},
    },
    "v100_unconsolidated": {"('A', 2)": {"null": 8.0}},
    "k80": {"('A', 1)": {"null": 2.0}, "('B', 1)": {"null": 0.0}},
}


@pytest.fixture
def table(tmp_path: Path) -> ThroughputTable:
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(TABLE))
    return load_throughputs(tmp_path)


def job(name: str, model: str, steps: int, slots: int = 1, **more: Any) -> TraceJob:
    return TraceJob(name=name, submit_s=0.0, requested_slots=slots, application=model, steps=steps, **more)


@dataclass
class Fixed(Policy):
    """Always the same allocations and pairs, of the jobs that are there."""

    name = "fixed"
    paper = objective = ""
    allocations: dict[str, Allocation] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()

    def decide(self, view: ClusterView) -> Decision:
        there = {job.id for job in view.jobs}
        return Decision(
            {job_id: where for job_id, where in self.allocations.items() if job_id in there},
            pairs=[pair for pair in self.pairs if there >= set(pair)],
        )


def run(table: ThroughputTable | None, jobs: list[TraceJob], policy: Policy, cluster: str = "v100:2x2,k80:1x1") -> Any:
    workload = Workload("test", tuple(jobs))
    return summary(Simulator(workload, {}, Cluster.parse(cluster), policy, throughputs=table).run())


def completions(result: Any) -> list[float]:
    return [entry["completion_s"] for entry in result["per_job"]]


def test_speed_depends_on_the_gpu_type(table: ThroughputTable) -> None:
    policy = Fixed({"a": ((0, 1),), "b": ((2, 1),)})
    assert completions(run(table, [job("a", "A", 100), job("b", "A", 100)], policy)) == [10.0, 50.0]


def test_a_gang_is_slower_on_more_nodes_than_it_needs(table: ThroughputTable) -> None:
    jobs = [job("a", "A", 160, slots=2)]
    assert completions(run(table, jobs, Fixed({"a": ((0, 2),)}))) == [8.0]
    assert completions(run(table, jobs, Fixed({"a": ((0, 1), (1, 1))}))) == [20.0]
    assert completions(run(table, jobs, Fixed({"a": ((0, 1), (1, 1))}), "v100:2x1")) == [8.0]


def test_jobs_that_share_slots_run_at_the_speeds_of_the_pair_until_one_is_done(table: ThroughputTable) -> None:
    """B makes 40 steps in 10 s at 4 a second; A makes 50 beside it, and the other 50 alone in 5 s."""
    jobs = [job("a", "A", 100), job("b", "B", 40)]
    result = run(table, jobs, Fixed({"a": ((0, 1),), "b": ((0, 1),)}, (("a", "b"),)), "v100:1x1")
    assert completions(result) == [15.0, 10.0]
    assert result["gpu_hours"] == pytest.approx(15.0 / 3600)
    assert result["utilization"] == pytest.approx(1.0)


def test_jobs_that_cannot_share_do_not(table: ThroughputTable) -> None:
    jobs = [job("a", "B", 40), job("b", "B", 40)]
    result = run(table, jobs, Fixed({"a": ((0, 1),), "b": ((0, 1),)}, (("a", "b"),)))
    assert result["rejected_because"] == "jobs a and b cannot share slots of type v100"


def test_a_job_may_use_only_types_that_run_it(table: ThroughputTable) -> None:
    result = run(table, [job("a", "B", 40)], Fixed({"a": ((2, 1),)}))
    assert result["rejected_because"] == "job a was given GPU type k80, which it does not allow"


def test_deadlines_are_multiples_of_the_time_on_the_fastest_type(table: ThroughputTable) -> None:
    jobs = (job("a", "A", 100, slo_factor=1.5),)
    simulator = Simulator(Workload("test", jobs), {}, Cluster.parse("v100:1x1"), Fixed(), throughputs=table)
    assert simulator.jobs["a"].facts.deadline_s == 15.0


def test_without_a_table_one_sentence_says_to_pass_one() -> None:
    with pytest.raises(InvalidInput) as error:
        run(None, [job("a", "A", 100), job("b", "B", 1)], Fixed())
    assert len(error.value.problems) == 1
    assert "pass --profiles" in str(error.value)


def test_unknown_jobs_are_named_by_kind_or_left_out_with_a_note(table: ThroughputTable, tmp_path: Path) -> None:
    jobs = (job("a", "A", 100), job("b", "C", 1), job("c", "C", 1), job("d", "A", 1, slots=4))
    with pytest.raises(InvalidInput) as error:
        run(table, list(jobs), Fixed())
    assert len(error.value.problems) == 2
    assert "C on 1 slots (2 jobs)" in str(error.value)
    left = without_unknown(Workload("test", jobs), tmp_path)
    assert [kept.name for kept in left.jobs] == ["a"]
    assert "3 of 4 jobs are left out" in left.notes[0]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[", "cannot be read as JSON"),
        ('{"v100": 3}', "must map job types"),
        ('{"v100": {"ResNet": {"null": 1}}}', "must be like ('ResNet-18 (batch size 16)', 1)"),
        ('{"v100": {"(\'A\', 1)": {"null": -1}}}', "must be steps per second"),
        ('{"v100": {"(\'A\', 1)": {"(\'A\', 1)": [1]}}}', "the two jobs' steps per second"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(InvalidInput) as error:
        load_throughputs(path)
    assert len(error.value.problems) == 1
    assert complaint in str(error.value)
