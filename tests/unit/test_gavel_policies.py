"""Policies over time fractions in the engine and the simulator: what they read, and what if something is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import Completed, NodeDown, Reported, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.fields import InvalidInput
from geminid.policies.base import JobFacts
from geminid.policies.gavel import timesharing
from geminid.policies.gavel.fairness import HierarchicalPerf, MaxMinFairnessPacked, MaxMinFairnessPerf, WaterFillingPerf
from geminid.policies.gavel.problem import AllocationProblem, TimeFractions
from geminid.policies.gavel.speeds import SpeedReader
from geminid.policies.gavel.timesharing import TimeSharingPolicy
from geminid.policies.gavel.totals import MaxSumThroughputByCostPerfSLOs
from geminid.policies.registry import BUILT_IN, make_policy
from geminid.sim.run import Experiment, applications_of, named_policy, simulate
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.generate import built_in_workload

TIME_SHARING = sorted(name for name, policy in BUILT_IN.items() if issubclass(policy, TimeSharingPolicy))


def facts(name: str, **more: Any) -> JobFacts:
    slots = more.pop("requested_slots", 1)
    return JobFacts(
        id=name,
        submitted_s=0.0,
        requested_slots=slots,
        min_slots=slots,
        max_slots=slots,
        kind=more.pop("kind", "k"),
        throughputs=more.pop("throughputs", {"v100": 1.0}),
        **more,
    )


def engine(policy: TimeSharingPolicy, cluster: str, *jobs: JobFacts, **more: Any) -> Engine:
    result = Engine(Cluster.parse(cluster), policy, ModelKeeper(), **more)
    for job in jobs:
        result.handle(Submitted(0.0, job))
    result.handle(Tick(1.0))
    return result


def shares(running: Engine, policy: TimeSharingPolicy) -> dict[str, float]:
    view = running.view()
    problem = policy.problem(view, {job.id: job.facts.throughputs for job in view.jobs})
    time = policy.solve(problem).by_job(problem).sum(axis=1)
    return {job.id: float(t) for job, t in zip(view.jobs, time, strict=True)}


def test_shares_of_entities_add_up_to_their_weights() -> None:
    policy = HierarchicalPerf(weights=("lab=2", "lab/ann=3"))
    owners = {"a": "lab/ann", "b": "lab/ann", "c": "lab/bob", "d": "shop", "e": "shop", "f": "shop"}
    running = engine(policy, "v100:1x1", *(facts(name, owner=owner) for name, owner in owners.items()))
    got = shares(running, policy)
    lab, ann = sum(got[n] for n in "abc"), got["a"] + got["b"]
    assert lab == pytest.approx(2 / 3, abs=1e-6)
    assert ann == pytest.approx(3 / 4 * lab, abs=1e-6)
    assert got["d"] == pytest.approx(got["f"], abs=1e-6)


def test_fifo_within_an_entity_serves_its_first_job() -> None:
    policy = HierarchicalPerf(inner="fifo")
    jobs = (facts("a", owner="lab"), facts("b", owner="lab"), facts("c", owner="shop"))
    got = shares(engine(policy, "v100:1x1", *jobs), policy)
    assert got == pytest.approx({"a": 0.5, "b": 0.0, "c": 0.5}, abs=1e-6)


def test_every_entity_has_its_own_rule_at_every_depth() -> None:
    """Fairness over FIFO and fairness, FIFO over fairness within one of them."""
    policy = make_policy("hierarchical_perf:weights=lab=3;lab/ann=2,rules=shop=fifo;lab/bob=fifo")
    assert isinstance(policy, HierarchicalPerf)
    owners = {"a": "lab/ann", "b": "lab/ann", "c": "lab/bob", "d": "lab/bob/x", "e": "shop", "f": "shop/y", "g": "shop"}
    running = engine(policy, "v100:1x1", *(facts(name, owner=owner) for name, owner in owners.items()))
    got = shares(running, policy)
    lab, shop = 3 / 4, 1 / 4
    ann, bob = 2 / 3 * lab, 1 / 3 * lab
    want = {"a": ann / 2, "b": ann / 2, "c": bob, "d": 0.0, "e": shop, "f": 0.0, "g": 0.0}
    assert got == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("text", ["lab", "lab=lifo", "=fifo", "lab//x=fifo"])
def test_rules_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be like team=fifo"):
        make_policy(f"hierarchical:rules={text}")


@pytest.mark.parametrize("text", ["lab", "lab=-1", "=2", "lab=x"])
def test_weights_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be like team=2"):
        make_policy(f"hierarchical:weights={text}")


@pytest.mark.parametrize(
    ("text", "named"),
    [("weights=lab=2;lab=3", "weights"), ("rules=shop=fifo;lab/x=fifo;lab/x=fairness", "rules")],
)
def test_an_entity_that_an_option_names_twice_is_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=f"option {named} of hierarchical .*must name lab(/x)? only once"):
        make_policy(f"hierarchical:{text}")


def test_entities_that_no_job_has_had_are_named() -> None:
    policy = make_policy("hierarchical_perf:weights=lab=2;lab/ann=3;lba=2,rules=shop=fifo")
    assert isinstance(policy, HierarchicalPerf)
    running = engine(policy, "v100:1x1", facts("a", owner="lab/ann"), facts("b"))
    reason = "unknown_entity: options weights and rules name lba, shop, to which no job has belonged so far"
    assert policy.decide(running.view()).reasons == {"a": reason, "b": reason}
    for now_s, name, owner in ((500.0, "c", "shop"), (600.0, "d", "lba")):
        running.handle(Submitted(now_s, facts(name, owner=owner)))
    for now_s in (2500.0, 5000.0):
        running.handle(Tick(now_s))
    running.handle(Completed(5001.0, "d"))
    running.handle(Tick(8000.0))
    assert policy.decide(running.view()).reasons == {}


def test_jobs_without_an_owner_are_members_of_the_cluster_beside_its_entities() -> None:
    policy = HierarchicalPerf(weights=("lab=2",))
    jobs = (facts("a", owner="lab"), facts("b", owner="lab"), facts("c"), facts("d", weight=3.0))
    got = shares(engine(policy, "v100:1x1", *jobs), policy)
    assert got == pytest.approx({"a": 1 / 6, "b": 1 / 6, "c": 1 / 6, "d": 3 / 6}, abs=1e-6)


def test_a_policy_that_pairs_jobs_says_so_where_nothing_is_known_of_pairs() -> None:
    policy = MaxMinFairnessPacked()
    running = engine(policy, "v100:1x1", facts("a"), facts("b"))
    assert "no_sharing: nothing is known here" in policy.decide(running.view()).reasons["a"]
    running = engine(policy := MaxMinFairnessPacked(), "v100:1x1", facts("a"), facts("b"), sharing=Halves())
    assert policy.decide(running.view()).reasons == {}


def test_a_deadline_that_cannot_be_met_is_named_and_nothing_stops() -> None:
    class Knowing:
        def remaining_iterations(self, job_id: str, *, after_current_epoch: bool = False) -> float:
            return 1000.0

        def remaining_s(self, job_id: str) -> float:
            return 1000.0

        def iteration_s(self, job_id: str, placement: Any) -> float:
            return 1.0

    policy = MaxSumThroughputByCostPerfSLOs()
    jobs = (facts("a", deadline_s=10.0), facts("b", deadline_s=5000.0))
    running = engine(policy, "v100:1x1", *jobs, oracle=Knowing())
    assert [(note.reason, note.jobs) for note in policy._notes] == [("infeasible_slo", ("a",))]
    assert sum(bool(job.allocation) for job in running.jobs.values()) == 1


def test_a_gang_that_lost_its_nodes_waits_and_the_others_run() -> None:
    policy = MaxMinFairnessPerf()
    running = engine(policy, "v100:2x2", facts("a", requested_slots=4), facts("b"), debug=True)
    running.handle(NodeDown(400.0, 0))
    assert not running.jobs["a"].allocation
    assert running.jobs["b"].allocation
    running.handle(Tick(3000.0))
    assert [(note.reason, note.jobs) for note in policy._notes] == [("no_type_runs", ("a",))]


@dataclass
class Broken(MaxMinFairnessPerf):
    """Fails until told otherwise, and counts how often it was asked."""

    name = "broken"
    works: bool = False
    asked: int = 0

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        self.asked += 1
        if self.works:
            return super().solve(problem)
        raise RuntimeError("no luck")


def test_a_solver_that_fails_leaves_equal_shares_and_says_so() -> None:
    policy = Broken()
    running = engine(policy, "v100:1x1", facts("a"), facts("b"))
    reason = "solver_failed: RuntimeError: no luck: equal static shares"
    assert policy.decide(running.view()).reasons == {"a": reason, "b": reason}
    served = []
    for turn in range(4):
        running.handle(Tick(1.0 + 360.0 * turn))
        served += [job.id for job in running.jobs.values() if job.allocation]
    assert served == ["a", "b", "a", "b"]


def test_a_solver_that_failed_is_asked_again_in_the_next_round() -> None:
    policy = Broken()
    running = engine(policy, "v100:1x4", facts("a", requested_slots=4), facts("b"), facts("c"))
    served: set[str] = set()
    for turn in range(6):  # equal shares give the gang of four less time, but it has its turn
        running.handle(Tick(1.0 + 360.0 * turn))
        served |= {job.id for job in running.jobs.values() if job.allocation}
    assert served == {"a", "b", "c"}
    assert policy.asked == 6
    policy.works = True
    for turn in range(6, 9):
        running.handle(Tick(1.0 + 360.0 * turn))
    assert policy.asked == 7
    assert policy.decide(running.view()).reasons == {}


def test_the_limit_of_a_solve_is_by_the_clock() -> None:
    policy = named_policy("max_min_fairness_perf:limit=2")
    assert isinstance(policy, TimeSharingPolicy)
    time = policy.allowance()
    while not time.late and time.left_s == 2.0:  # until the clock has moved, which nobody but itself does
        pass
    assert time.left_s < 2.0
    assert time.part(0.5).left_s <= 1.0


def test_a_solve_that_takes_too_long_leaves_the_middle_says_so_and_is_tried_again() -> None:
    policy = make_policy("max_min_fairness_water_filling_perf:limit=1e-9")
    assert isinstance(policy, WaterFillingPerf)
    running = engine(policy, "v100:1x1", facts("a"), facts("b"))
    served = []
    for turn in range(4):
        running.handle(Tick(1.0 + 360.0 * turn))
        served += [job.id for job in running.jobs.values() if job.allocation]
    reason = "out_of_time: no optimum was found (Time limit reached): the middle of what raises everyone furthest"
    assert policy.decide(running.view()).reasons == {"a": reason, "b": reason}
    assert served == ["a", "b", "a", "b"]
    policy.limit_s = 60.0
    for turn in range(4, 6):
        running.handle(Tick(1.0 + 360.0 * turn))
    assert policy.decide(running.view()).reasons == {}


class Trouble(RuntimeError):
    """What the tests below run into."""


def trouble(*args: Any, **more: Any) -> Any:
    raise Trouble("no luck")


@pytest.mark.parametrize("what", ["pairs", "with_spread", "folded"])
def test_a_problem_that_cannot_be_stated_leaves_equal_shares_and_says_so(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "pairs":
        monkeypatch.setattr(SpeedReader, "pairs", trouble)
    else:
        monkeypatch.setattr(timesharing, what, trouble)
    policy = MaxMinFairnessPacked()
    running = engine(
        policy, "v100:1x2", facts("a", requested_slots=2), facts("b", requested_slots=2), sharing=Halves(), debug=True
    )
    reason = "solver_failed: Trouble: no luck: equal static shares"
    assert policy.decide(running.view()).reasons == {"a": reason, "b": reason}
    served = []
    for turn in range(4):
        running.handle(Tick(1.0 + 360.0 * turn))
        served += [job.id for job in running.jobs.values() if job.allocation]
    assert served == ["a", "b", "a", "b"]


@pytest.mark.parametrize("fill", [False, True])
def test_speeds_that_cannot_be_read_are_equal_until_they_can(fill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Broken(works=True, fill=fill)
    with monkeypatch.context() as patched:
        patched.setattr(SpeedReader, "speeds", trouble)
        jobs = (facts("a", throughputs={"v100": 4.0}), facts("b", throughputs={"k80": 1.0}), facts("c"))
        running = engine(policy, "v100:1x1,k80:1x1", *jobs, debug=True)
        assert {job.id: job.gpu_type for job in running.jobs.values() if job.allocation}["b"] == "k80"
        reason = "speeds_unknown: Trouble: no luck; all jobs are taken to be equally fast"
        assert policy.decide(running.view()).reasons == dict.fromkeys("abc", reason)
    running.handle(Tick(361.0))
    assert policy.asked == 2
    assert policy.decide(running.view()).reasons == {}


def test_steps_left_without_an_oracle_are_those_that_were_not_made_yet() -> None:
    policy = make_policy("min_total_duration_perf")
    assert isinstance(policy, TimeSharingPolicy)
    running = engine(policy, "v100:1x1", facts("a", steps=1000.0), facts("b", steps=1000.0), facts("c"))
    running.handle(Reported(2.0, "a", None, None, 400.0))
    running.handle(Reported(2.0, "b", None, None, 1200.0))  # more than it said: there must be something left
    view = running.view()
    problem = policy.problem(view, {job.id: job.facts.throughputs for job in view.jobs})
    assert problem.steps_left.tolist() == [600.0, 10.0, 1.0]


def test_a_note_on_one_job_is_its_reason() -> None:
    policy = MaxMinFairnessPerf()
    running = engine(policy, "v100:1x1", facts("a"), facts("b", throughputs={"v100": 0.0}))
    reasons = policy.decide(running.view()).reasons
    assert reasons == {"b": "no_type_runs: no GPU type has the slots and the memory for the job"}


def test_speeds_that_change_make_new_fractions_due_but_not_too_often() -> None:
    policy = Broken(works=True, recompute_s=1080.0)
    view = engine(policy, "v100:1x1", facts("a"), facts("b")).view()
    faster = tuple(replace(job, facts=replace(job.facts, throughputs={"v100": 3.0})) for job in view.jobs)
    asked = []
    for turn in range(1, 7):
        jobs = faster if turn >= 2 else view.jobs
        policy.decide(replace(view, now_s=1.0 + 360.0 * turn, jobs=jobs))
        asked.append(policy.asked)
    assert asked == [1, 1, 2, 2, 2, 2]


class Steps:
    """Knows how many steps a job has left, and nothing else."""

    def __init__(self, left: float) -> None:
        self.left = left

    def remaining_iterations(self, job_id: str, *, after_current_epoch: bool = False) -> float:
        return self.left

    def remaining_s(self, job_id: str) -> float:
        raise NotImplementedError

    def iteration_s(self, job_id: str, placement: Any) -> float:
        raise NotImplementedError


@pytest.mark.parametrize(("name", "steps_per_s"), [("finish_time_fairness", 4.0), ("finish_time_fairness_perf", 2.5)])
def test_work_done_is_booked_at_the_speeds_that_the_policy_sees(name: str, steps_per_s: float) -> None:
    """Half of the time on each type; who cannot tell types apart takes both to be as fast as the faster."""
    policy = make_policy(name)
    assert isinstance(policy, TimeSharingPolicy)
    running = engine(policy, "v100:1x1,k80:1x1", facts("a", throughputs={"v100": 4.0, "k80": 1.0}), oracle=Steps(500))
    view = replace(running.view(), oracle=Steps(400))
    problem = policy.problem(view, {job.id: job.facts.throughputs for job in view.jobs})
    assert problem.jobs[0].isolated_s == pytest.approx(100 / steps_per_s)


def test_unaware_policies_see_all_types_as_one_of_them() -> None:
    jobs = (facts("a", throughputs={"v100": 1.0, "k80": 2.0}), facts("b", throughputs={"k80": 3.0}))
    for option, seen in (("", [[2.0, 2.0], [0.0, 3.0]]), (":seen_as=v100", [[1.0, 1.0], [0.0, 3.0]])):
        policy = make_policy(f"min_total_duration{option}")
        assert isinstance(policy, TimeSharingPolicy)
        view = engine(policy, "v100:1x1,k80:1x1", *jobs, oracle=Steps(500)).view()
        problem = policy.problem(view, {job.id: job.facts.throughputs for job in view.jobs})
        assert problem.throughputs.tolist() == seen
    policy = make_policy("min_total_duration:seen_as=h100")
    running = engine(policy, "v100:1x1,k80:1x1", *jobs, oracle=Steps(500))  # type: ignore[arg-type]
    assert "seen_as is h100" in policy.decide(running.view()).reasons["a"]


@pytest.mark.parametrize("text", ["round=0", "round=-5", "knob=7", "knob=-0.1"])
def test_themis_refuses_options_that_make_no_sense(text: str) -> None:
    with pytest.raises(InvalidInput, match=text.split("=")[0]):
        make_policy(f"themis:{text}")


def test_unaware_policies_need_no_models_unless_adaptive_or_looking_ahead() -> None:
    assert not make_policy("max_min_fairness").needs_models
    assert make_policy("max_min_fairness_perf").needs_models
    assert make_policy("max_min_fairness:adaptive=true").needs_models
    assert make_policy("min_total_duration").needs_models  # or it would not know how long the steps left will take
    assert make_policy("max_min_fairness_perf:adaptive=true").adapts_batch


def first_problem(name: str, experiment: Experiment) -> AllocationProblem:
    """What a policy sees when the first jobs have come."""
    policy = make_policy(name)
    assert isinstance(policy, TimeSharingPolicy)
    seen: list[AllocationProblem] = []
    solve = policy.solve

    def remember(problem: AllocationProblem) -> TimeFractions:
        seen.append(problem)
        return solve(problem)

    policy.solve = remember  # type: ignore[method-assign]
    applications = applications_of(experiment)
    Simulator(experiment.workload, applications, experiment.cluster, policy, experiment.settings).run()
    return seen[0]


@pytest.mark.parametrize("name", ["finish_time_fairness", "min_total_duration"])
def test_unaware_policies_that_look_ahead_see_profiled_jobs_as_fast_as_their_fastest_type(name: str) -> None:
    experiment = small(0, 0.2, at_once=True)
    few = replace(experiment, workload=replace(experiment.workload, jobs=experiment.workload.jobs[:4]))
    unaware, aware = first_problem(name, few), first_problem(f"{name}_perf", few)
    fastest = aware.usable.max(axis=1)
    assert len(set(fastest.tolist())) > 1
    assert unaware.usable == pytest.approx(np.where(aware.usable > 0, fastest[:, None], 0.0))
    assert (unaware.steps_left > 1).all()


class Halves:
    """Any two jobs run at 80 % of their speed beside each other."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        return 0.8, 0.8


def test_pairs_are_used_where_they_pay() -> None:
    policy = MaxMinFairnessPacked()
    running = engine(policy, "v100:1x1", facts("a"), facts("b"), sharing=Halves(), debug=True)
    assert running.jobs["a"].partner == "b"
    assert running.jobs["a"].allocation == running.jobs["b"].allocation


class Counting(Halves):
    """The same, but jobs of kind c fit beside nobody, and it remembers who was asked about."""

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        return (0.0, 0.0) if "c" in (first.kind, second.kind) else (0.8, 0.8)


def test_pairs_that_nobody_has_measured_are_estimated_and_learnt_by_running() -> None:
    policy = make_policy("max_min_fairness_packed:profiled=0")
    jobs = tuple(facts(f"{kind}{i}", kind=kind) for kind in "abcdef" for i in range(2))
    running = engine(policy, "v100:1x4", *jobs, sharing=Counting(), debug=True)  # type: ignore[arg-type]
    assert isinstance(policy, MaxMinFairnessPacked)
    before = len(policy._speeds._tried)
    for turn in range(1, 30):
        running.handle(Tick(1.0 + 360.0 * turn))
        together = {
            frozenset((job.facts.kind, running.jobs[job.partner].facts.kind))
            for job in running.jobs.values()
            if job.partner
        }
        assert not any("c" in pair for pair in together)
    assert len(policy._speeds._tried) > before


def test_all_pairs_are_known_unless_told_otherwise() -> None:
    reader = MaxMinFairnessPacked()._speeds
    view = engine(MaxMinFairnessPacked(), "v100:1x1", facts("a", kind="a"), facts("b", kind="b")).view()
    assert reader._measured(*view.jobs)
    assert not any(
        MaxMinFairnessPacked(profiled=0.0, seed=seed)._speeds._draw("x") == reader._draw("x") for seed in (1, 2)
    )


@pytest.mark.parametrize("text", ["profiled=-0.1", "profiled=2"])
def test_a_part_of_the_pairs_is_between_none_and_all(text: str) -> None:
    with pytest.raises(InvalidInput, match="profiled"):
        make_policy(f"max_min_fairness_packed:{text}")


@pytest.mark.parametrize("policy", TIME_SHARING)
def test_every_policy_finishes_jobs_of_unknown_speed(policy: str) -> None:
    rng = np.random.default_rng(0)
    jobs = [
        TraceJob(name=f"j{i}", submit_s=float(400 * i), requested_slots=int(rng.choice([1, 2])), duration_s=900.0)
        for i in range(8)
    ]
    experiment = Experiment(
        workload=Workload("few", tuple(jobs)), cluster=Cluster.parse("v100:2x2"), settings=Settings(debug=True)
    )
    result = simulate(policy, experiment)
    assert result["unfinished_jobs"] == result["rejected_decisions"] == 0


def small(seed: int, load: float, *, at_once: bool = False) -> Experiment:
    """A few profiled jobs on a few nodes of three types, that arrive one after the other or all at once."""
    workload = built_in_workload("small", seed=seed, load=load)
    if at_once:
        workload = replace(workload, jobs=tuple(replace(job, submit_s=0.0) for job in workload.jobs))
    return Experiment(
        workload=workload,
        cluster=Cluster.parse("v100:1x4,a100-40gb:1x4,t4:2x4"),
        settings=Settings(rescale_s=1.0, seed=seed),
        seed=seed,
    )


@pytest.mark.parametrize(
    "name",
    [
        *("max_min_fairness_water_filling_perf", "finish_time_fairness_perf", "min_total_duration_perf", "fifo_perf"),
        *("max_sum_throughput_perf", "max_sum_throughput_normalized_by_cost_perf_SLOs", "hierarchical_perf"),
        *("allox", "themis", "isolated"),
    ],
)
def test_every_objective_can_read_goodputs(name: str) -> None:
    """Jobs that tune their batch sizes are done sooner under all of them."""
    fixed, tuned = (simulate(f"{name}{more}", small(1, 0.2)) for more in ("", ":adaptive=true"))
    assert fixed["unfinished_jobs"] == tuned["unfinished_jobs"] == 0
    assert tuned["avg_jct_s"] < fixed["avg_jct_s"]
