"""Rubick: curves, guaranteed speeds, slopes, and when a change is worth it; and the same jobs under geminid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.fields import InvalidInput
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, Decision, JobFacts, JobView, slots_of
from geminid.policies.geminid import Geminid
from geminid.policies.rubick import Curve, Rubick
from geminid.sim.run import Experiment, simulator_of
from geminid.sim.settings import Settings
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads import load_workload

#: A restart, in seconds.
RESTART_S = 260.0


@dataclass(frozen=True, eq=False)
class Speeds:
    """Speeds by number of slots, the same on any nodes; a job that is spread loses a tenth."""

    by_slots: Mapping[int, float]

    @property
    def sizes(self) -> frozenset[int]:
        return frozenset(self.by_slots)

    def steps_per_s(self, placement: Sequence[int]) -> float:
        return self.by_slots.get(sum(placement), 0.0) * (0.9 if len(placement) > 1 else 1.0)

    def plan(self, placement: Sequence[int]) -> str:
        return f"best-on-{sum(placement)}"


LINEAR = Speeds({k: float(k) for k in range(1, 9)})
FLAT = Speeds({1: 1.0, 2: 1.1, 4: 1.2})
#: RoBERTa and T5-3B as in Rubick's data: two slots help neither, three make T5-3B several times as fast.
ROBERTA = Speeds({1: 1.46, 2: 1.43, 4: 2.68})
T5_3B = Speeds({1: 0.25, 2: 0.31, 3: 1.08, 4: 1.21})


def job(name: str, speeds: Speeds, requested: float, *, guaranteed: bool = False, slots: int = 1) -> JobView:
    facts = JobFacts(
        id=name,
        submitted_s=0.0,
        requested_slots=slots,
        min_slots=min(speeds.sizes),
        max_slots=max(speeds.sizes),
        adaptivity=Adaptivity.FIXED_BATCH,
        throughputs=MappingProxyType({"a800": requested}),
        steps=100_000,
        work=100_000.0,
        rescale_s=RESTART_S,
        opportunistic=not guaranteed,
        plan_speeds=speeds,
    )
    return JobView(facts=facts)


def running(one: JobView, allocation: Allocation, *, for_s: float, restarts: int = 0) -> JobView:
    held = {"allocation": allocation, "slots": slots_of(allocation), "gpu_type": "a800", "started_s": 0.0}
    return replace(one, **held, executed_before_s=for_s, since_s=10_000.0, restarts=restarts)


def view_of(cluster: str, *jobs: JobView) -> ClusterView:
    machines = Cluster.parse(cluster)
    usable = tuple(machines.node_slots.tolist())
    free = list(usable)
    for one in jobs:
        for node, slots in one.allocation:
            free[node] -= slots
    return ClusterView(10_000.0, machines, jobs, usable, tuple(free))


def sizes(decision: Decision) -> dict[str, int]:
    return {
        name: given.slots if isinstance(given, Configuration) else slots_of(given)
        for name, given in decision.assignments.items()
    }


def test_a_curve_has_only_sizes_that_bring_something() -> None:
    curve = Curve.through([(4, 2.0), (1, 1.0), (2, 1.0), (3, 0.0)])
    assert curve.sizes == (1, 4)
    assert [curve.speed(k) for k in (0, 1, 3, 9)] == [0.0, 1.0, 1.0, 2.0]
    assert curve.reaching(1.5) == 4
    assert curve.reaching(9.0) == 4  # nobody can have more than there is


@pytest.mark.parametrize("policy", [Rubick, Geminid])
@pytest.mark.parametrize(("roberta", "t5"), [(1.46, 0.25), (2.68, 1.21), (0.5, 0.31)])
def test_roberta_gets_one_slot_of_four_and_t5_three_whatever_was_asked_for(policy, roberta: float, t5: float) -> None:
    view = view_of("a800:1x4", job("roberta", ROBERTA, roberta), job("t5", T5_3B, t5))
    assert sizes(policy().decide(view)) == {"roberta": 1, "t5": 3}


def test_a_guaranteed_job_gets_what_its_requested_speed_takes_and_others_the_rest() -> None:
    jobs = [job("best-effort", LINEAR, 1.0), job("guaranteed", FLAT, 1.15, guaranteed=True)]
    assert sizes(Rubick().decide(view_of("a800:1x4", *jobs))) == {"guaranteed": 4}
    assert sizes(Rubick().decide(view_of("a800:2x4", *jobs))) == {"guaranteed": 4, "best-effort": 4}


@pytest.mark.parametrize(("ran_s", "changed"), [(5_000.0, False), (RESTART_S / 0.03 + 1.0, True)])
def test_a_job_is_changed_only_if_it_has_run_long_enough(ran_s: float, changed: bool) -> None:
    old = running(job("old", LINEAR, 1.0), ((0, 4),), for_s=ran_s)
    alone = Rubick().decide(view_of("a800:1x8", old))
    assert sizes(alone) == {"old": 8 if changed else 4}
    full = running(job("old", LINEAR, 1.0), ((0, 8),), for_s=ran_s)
    new = job("new", LINEAR, 4.0, guaranteed=True)
    both = Rubick().decide(view_of("a800:1x8", full, new))
    assert sizes(both) == ({"old": 4, "new": 4} if changed else {"old": 8})


def test_best_effort_jobs_take_from_others_only_what_is_worth_more_to_them() -> None:
    old = running(job("old", LINEAR, 8.0, slots=8), ((0, 8),), for_s=1e6)
    assert sizes(Rubick().decide(view_of("a800:1x8", old, job("new", FLAT, 1.0)))) == {"old": 7, "new": 1}
    poor = job("new", Speeds({1: 0.1, 8: 8.0}), 8.0, slots=8)
    assert sizes(Rubick().decide(view_of("a800:1x8", old, poor))) == {"old": 8}


def test_a_guaranteed_job_waits_rather_than_run_scattered_below_its_speed() -> None:
    stays = [running(job(f"old-{n}", Speeds({3: 1.0}), 1.0), ((n, 3),), for_s=10.0) for n in range(2)]
    new = job("new", LINEAR, 2.0, guaranteed=True)
    decision = Rubick().decide(view_of("a800:2x4", *stays, new))
    assert "new" not in decision.assignments
    slower = job("new", LINEAR, 1.8, guaranteed=True)
    assert sizes(Rubick().decide(view_of("a800:2x4", *stays, slower)))["new"] == 2


# --- In the simulator ---

ROWS = """exec_plan,placement,iter_time
ga,1,1.0
ga,2,0.6
ga,4,0.4
ga,22,0.7
ga,8,0.35
zero-dp,2,0.55
zero-dp,8,0.2
zero-offload,1,1.8
zero-offload,4,0.8
"""


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rubick")
    (folder / "placements").mkdir()
    (folder / "profile" / "bert").mkdir(parents=True)
    (folder / "placements" / "bert.csv").write_text(ROWS)
    (folder / "profile" / "bert" / "config.csv").write_text("parameter_size\n300\n")
    (folder / "validation_points.csv").write_text("model,global_batch\nbert,32\n")
    return folder


def trace(name: str, submit_s: float, slots: int, plan: str, steps: int, *, guaranteed: bool) -> TraceJob:
    return TraceJob(
        name=name,
        submit_s=submit_s,
        requested_slots=slots,
        application="bert",
        steps=steps,
        plan=plan,
        adaptivity=Adaptivity.FIXED_BATCH,
        opportunistic=not guaranteed,
    )


def run(policy: str, profiles: Path, *jobs: TraceJob, cluster: str = "a800:2x8"):
    workload = Workload("w", jobs)
    experiment = Experiment(
        workload=workload, cluster=Cluster.parse(cluster), profiles=profiles, settings=Settings(debug=True)
    )
    return simulator_of(policy, experiment).run().jobs


def test_policies_that_choose_plans_use_the_fastest_and_others_the_users(profiles: Path) -> None:
    one = trace("a", 0.0, 8, "dp", 1000, guaranteed=False)
    for policy, plan, work_s in (
        ("geminid", "zero", 200.0),
        ("geminid:plans=false", "dp", 350.0),
        ("fifo", "dp", 350.0),
    ):
        (done,) = run(policy, profiles, one)
        assert done.stints[-1].plan == plan
        assert done.completed_s == pytest.approx(work_s + RESTART_S)


traces = st.lists(
    st.tuples(
        st.floats(0, 5_000),
        st.sampled_from([(1, "dp"), (2, "zero"), (4, "dp"), (8, "zero"), (1, "zero-offload"), (4, "zero-offload")]),
        st.integers(1, 20_000),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(traces, st.sampled_from(["rubick", "geminid", "rubick:worth=0"]))
def test_guaranteed_jobs_never_run_below_the_speed_that_they_asked_for(profiles: Path, drawn, policy: str) -> None:
    jobs = [
        trace(f"j{i}", at, slots, plan, steps, guaranteed=guaranteed)
        for i, (at, (slots, plan), steps, guaranteed) in enumerate(sorted(drawn))
    ]
    for done in run(policy, profiles, *jobs):
        requested = 0.0 if done.facts.opportunistic else max(done.facts.throughputs.values())
        assert done.completed_s is not None
        assert all(stint.steps_per_s >= requested * (1 - 1e-9) for stint in done.stints)
        assert all(stint.steps_per_s > 0 for stint in done.stints)


def test_a_workload_with_plans_needs_profiles(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("name,submission_time,application,num_gpus,exec_plan,steps,is_sla\nb,5,bert,2,zero-dp,7,1\n")
    workload = load_workload(path)
    expected = trace("b", 5.0, 2, "zero", 7, guaranteed=True)
    assert workload.jobs == (expected,)
    with pytest.raises(InvalidInput, match="Rubick's layout"):
        simulator_of("rubick", Experiment(workload=workload, cluster=Cluster.parse("a800:1x8")))
    path.write_text("name,submission_time,application,num_gpus,exec_plan,steps,is_sla\nb,5,bert,2,zero,7,2\n")
    with pytest.raises(InvalidInput, match="exec_plan") as caught:
        load_workload(path)
    assert "is_sla" in str(caught.value)


def test_a_job_of_a_model_or_plan_that_was_not_measured_is_refused(profiles: Path) -> None:
    with pytest.raises(InvalidInput, match="has no throughput"):
        run("rubick", profiles, trace("a", 0.0, 8, "pp2-tp2", 10, guaranteed=True))
