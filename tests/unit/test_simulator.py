"""What the simulated world does, on jobs small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.fields import InvalidInput
from geminid.goodput.throughput import Shape
from geminid.job import Adaptivity
from geminid.policies.base import ClusterView, Decision, Policy
from geminid.policies.registry import make_policy
from geminid.sim.metrics import job_summaries, summary
from geminid.sim.reasons import Reasons, is_named
from geminid.sim.simulator import NoProgress, Result, Settings, Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.generate import built_in_workload
from geminid.testing.applications import toy_application

TOY = toy_application(("v100", "t4"), rescale_s=30.0, noise_growth=1.0)


def run(
    policy: str | Policy, jobs: Sequence[TraceJob], cluster: str = "v100:2x4", settings: Settings | None = None
) -> Result:
    chosen = make_policy(policy) if isinstance(policy, str) else policy
    settings = replace(settings or Settings(model="pollux"), debug=True)
    return Simulator(Workload("test", tuple(jobs)), {"toy": TOY}, Cluster.parse(cluster), chosen, settings).run()


def opaque(name: str, submit_s: float, slots: int, duration_s: float) -> TraceJob:
    return TraceJob(name=name, submit_s=submit_s, requested_slots=slots, duration_s=duration_s)


def toy(name: str, submit_s: float = 0.0, slots: int = 1, batch: int = 100) -> TraceJob:
    return TraceJob(name=name, submit_s=submit_s, requested_slots=slots, requested_batch=batch, application="toy")


def jct(result: Result) -> dict[str, float]:
    return {job.facts.id: (job.completed_s or 0.0) - job.facts.submitted_s for job in result.jobs}


def test_fifo_waits_behind_a_job_that_does_not_fit() -> None:
    jobs = [opaque("a", 0, 6, 100), opaque("b", 10, 8, 50), opaque("c", 20, 1, 5)]
    assert jct(run("fifo", jobs)) == {"a": 100, "b": 140, "c": 135}


def test_shortest_remaining_time_preempts() -> None:
    jobs = [opaque("long", 0, 8, 100), opaque("short", 10, 8, 20)]
    assert jct(run("srtf", jobs)) == {"long": 120, "short": 20}


def test_a_job_alone_takes_what_its_profile_says() -> None:
    """2,000 steps of 100 samples at 0.2 s, after a start of 30 s."""
    assert jct(run("fifo", [toy("a")])) == {"a": pytest.approx(30 + 2000 * 0.2)}


def test_a_larger_batch_makes_the_progress_its_gain_allows() -> None:
    """At twice the batch on two slots: gain 4/3 in the first epoch (v = g²), 3/2 in the second (v = 2 g²)."""
    expected = 30 + 1000 / (4 / 3) * 0.3 + 1000 / (3 / 2) * 0.3
    assert jct(run("fifo", [toy("a", slots=2, batch=200)])) == {"a": pytest.approx(expected)}


def test_a_job_that_counts_samples_ends_after_so_many_at_any_batch() -> None:
    """2,000 steps at M0 = 100 are 200,000 samples; at a batch of 400 on 4 slots, 500 steps of 0.3 s."""
    epochs = replace(TOY, counts_samples=True, pinned_slots=4, pinned_batch=400)
    job = TraceJob(name="a", submit_s=0.0, requested_slots=4, requested_batch=400, application="toy")
    simulator = Simulator(
        Workload("test", (job,)), {"toy": epochs}, Cluster.parse("v100:1x4"), make_policy("fifo"), Settings()
    )
    (done,) = simulator.run().jobs
    assert done.completed_s == pytest.approx(30.0 + 500 * 0.3)
    assert done.work == 200_000


def test_a_job_may_tune_itself_as_the_training_library_does() -> None:
    """It begins with M0 although others know better, and looks for something better only now and then."""
    settings = Settings(model="pollux", tune_s=40.0, report_s=1.0, rescale_s=0.0)
    (job,) = run("geminid:gap=1", [toy("a")], "v100:1x4", settings).jobs
    batches = [stint.batch.total for stint in job.stints if stint.batch is not None]
    assert batches[0] == 100
    assert batches == sorted(batches)
    assert [stint.start_s for stint in job.stints] == [40.0 * n for n in range(len(batches))]
    (at_once,) = run("geminid:gap=1", [toy("a")], "v100:1x4", replace(settings, tune_s=None)).jobs
    first = at_once.stints[0].batch
    assert first is not None
    assert first.total > 100


def test_every_change_of_slots_costs_its_pause() -> None:
    jobs = [opaque("a", 0, 8, 100), opaque("b", 10, 8, 20)]
    slow = run("srtf", jobs, settings=Settings(rescale_s=7.0))
    assert jct(slow) == {"a": 7 + 100 + 7 + 20 + 7, "b": 7 + 20}
    assert [job.rescales for job in job_summaries(slow)] == [1, 0]


def test_time_is_accounted_for_completely() -> None:
    result = run("sia", [toy("a"), toy("b", 30.0), toy("c", 200.0)], "v100:1x4,t4:1x2")
    for job in job_summaries(result):
        held = sum((s.end_s or 0) - s.start_s for s in next(j for j in result.jobs if j.facts.id == job.name).stints)
        assert job.jct_s == pytest.approx(job.queued_s + held)
        assert job.paused_s >= 30.0


def test_interference_slows_distributed_jobs_that_share_a_node() -> None:
    class Spread(Policy):
        name = "spread"
        paper = objective = ""

        def decide(self, view: ClusterView) -> Decision:
            return Decision({job.id: ((0, 1), (1, 1)) for job in view.jobs})

    alone = jct(run(Spread(), [toy("a", slots=2)]))["a"]
    quiet = jct(run(Spread(), [toy("a", slots=2), toy("b", slots=2)]))
    noisy = jct(run(Spread(), [toy("a", slots=2), toy("b", slots=2)], settings=Settings(interference=0.5)))
    assert quiet["a"] == pytest.approx(alone)
    assert noisy["a"] - 30 == pytest.approx(2 * (alone - 30))


def test_a_failed_node_costs_the_work_since_the_last_checkpoint() -> None:
    jobs = [toy(f"j{i}") for i in range(8)]
    calm, rough = run("fifo", jobs), run("fifo", jobs, settings=Settings(node_mtbf_s=600.0, repair_s=60.0, seed=1))
    assert rough.failures > 0
    assert all(job.completed_s is not None for job in rough.jobs)
    assert sum(jct(rough).values()) > sum(jct(calm).values())
    often = Settings(node_mtbf_s=600.0, repair_s=60.0, seed=1, checkpoint_s=10.0)
    assert sum(job.lost for job in run("fifo", jobs, settings=often).jobs) < sum(job.lost for job in rough.jobs)


def test_a_crash_after_a_restart_on_the_same_slots_loses_only_what_was_not_saved() -> None:
    """Stopped and resumed on the very same node: what was done before the stop is safe."""

    class Interrupting(Policy):
        name = "interrupting"
        paper = objective = ""
        interval_s = 100.0

        def decide(self, view: ClusterView) -> Decision:
            pause = 500.0 <= view.now_s < 900.0
            return Decision({job.id: ((0, 1),) for job in view.jobs if view.usable_slots[0] and not pause})

    settings = Settings(rescale_s=10.0, node_mtbf_s=700.0, repair_s=60.0, checkpoint_s=1e6, seed=5)
    result = run(Interrupting(), [opaque("a", 0, 1, 2000)], "v100:1x4", settings)
    (job,) = result.jobs
    assert result.failures > 0
    worked = sum(
        (stint.end_s or 0.0) - stint.works_from_s for stint in job.stints if (stint.end_s or 0) > stint.works_from_s
    )
    assert worked == pytest.approx(job.total + job.lost)


@pytest.mark.parametrize("submit_s", [0.0, 1e5, 1e7, 1e9])
@pytest.mark.parametrize("policy", ["sia", "fifo"])
def test_late_in_a_long_trace_the_clock_is_coarse_but_time_goes_on(policy: str, submit_s: float) -> None:
    early = jct(run(policy, [toy("a")], "v100:1x4"))["a"]
    late = run(policy, [toy("a", submit_s), toy("b", submit_s + 1000)], "v100:1x4")
    assert jct(late)["a"] == pytest.approx(early, rel=0.3)
    assert late.events < 10_000


def test_interference_ends_when_the_other_job_does() -> None:
    class Spread(Policy):
        name = "spread"
        paper = objective = ""

        def decide(self, view: ClusterView) -> Decision:
            return Decision({job.id: ((0, 1), (1, 1)) for job in view.jobs})

    jobs = [opaque("short", 0, 2, 100), opaque("long", 0, 2, 1000)]
    assert jct(run(Spread(), jobs, settings=Settings(interference=0.5))) == {"short": 200, "long": 1100}


@pytest.mark.parametrize("slots", [3, 6])
def test_sia_runs_rigid_jobs_of_any_size_and_opaque_ones(slots: int) -> None:
    rigid = replace(toy("a", slots=slots), adaptivity=Adaptivity.RIGID)
    result = run("sia", [rigid, opaque("b", 0, slots, 500)], "v100:2x4")
    assert all(job.completed_s is not None for job in result.jobs)
    assert {sum(stint.placement) for job in result.jobs for stint in job.stints} == {slots}


@pytest.mark.parametrize("job", [opaque("a", 0, 8, 10), toy("a", slots=8)])
def test_a_job_that_fits_no_gpu_type_is_refused_before_anything_runs(job: TraceJob) -> None:
    with pytest.raises(InvalidInput, match="must be at most 4, the most that one GPU type"):
        run("fifo", [job], "v100:1x4,t4:1x4")


def test_queue_policies_take_the_better_gpu_type_first() -> None:
    result = run("fifo", [opaque("a", 0, 4, 10), opaque("b", 0, 4, 10)], "t4:4x4,v100:1x4")
    assert [job.stints[0].gpu_type for job in result.jobs] == ["v100", "t4"]


def test_optimus_leaves_nobody_waiting_beside_idle_slots_of_another_type() -> None:
    result = run("optimus", [toy("a", batch=1600), toy("b", batch=1600)], "v100:1x8,t4:1x4")
    assert all(job.stints[0].start_s <= 60.0 for job in result.jobs)


def test_a_job_grows_at_most_twofold_a_round_while_it_explores() -> None:
    result = run("sia", [toy("a")], "v100:4x4")
    slots = [sum(stint.placement) for stint in result.jobs[0].stints]
    assert slots[0] <= 2
    assert max(slots) >= 4
    assert all(after <= 2 * max(slots[:i]) for i, after in enumerate(slots) if i)


def test_with_an_oracle_nothing_needs_exploring() -> None:
    result = run("sia", [toy("a")], "v100:4x4", Settings(model="pollux", oracle=True))
    assert sum(result.jobs[0].stints[0].placement) > 2


class Scaling(Policy):
    """Everybody on what they ask for; two nodes for the first hour, one after that."""

    name = paper = objective = "scaling"
    interval_s = 60.0

    def decide(self, view: ClusterView) -> Decision:
        decision = make_policy("fifo").decide(view)
        return replace(decision, desired_nodes={"v100": 2 if view.now_s < 3600 else 1})


def test_nodes_that_an_autoscaling_policy_gives_back_cost_nothing_and_take_no_work() -> None:
    result = run(Scaling(), [opaque("a", 0.0, 4, 1000.0), opaque("b", 0.0, 4, 7140.0), opaque("c", 3700.0, 4, 600.0)])
    figures = summary(result)
    assert figures["unfinished_jobs"] == 0
    assert jct(result)["c"] == pytest.approx(3500.0 + 600.0, abs=61.0)  # it waited for the only node left
    end_h = figures["makespan_s"] / 3600.0
    assert figures["node_hours"] == pytest.approx(2.0 + (end_h - 1.0), abs=0.02)
    assert figures["utilization"] <= 1.0


def test_what_happens_after_the_last_job_counts_for_nothing() -> None:
    jobs = [opaque("a", 0.0, 4, 1000.0)]
    rare = summary(run("fifo", jobs, settings=Settings(node_mtbf_s=1e7)))
    assert rare["node_hours"] == pytest.approx(2 * rare["makespan_s"] / 3600.0)
    assert rare["node_failures"] == 0
    shrunk = summary(run(Scaling(), [opaque("b", 0.0, 4, 7140.0)], settings=Settings(node_mtbf_s=20_000.0)))
    assert shrunk["unfinished_jobs"] == 0


def test_a_view_cannot_be_written_to() -> None:
    result = run("fifo", [toy("a")])
    with pytest.raises(TypeError):
        result.jobs[0].facts.limits["v100"] = None  # type: ignore[index]


class Restless(Policy):
    """Gives nobody anything and wants to be asked again at once."""

    name = paper = objective = "restless"

    def decide(self, view: ClusterView) -> Decision:
        return Decision({}, wake_at_s=view.now_s + 1e-9)


class Broken(Policy):
    name = paper = objective = "broken"
    interval_s = 60.0

    def decide(self, view: ClusterView) -> Decision:
        raise LookupError("no such thing")


class Idle(Policy):
    """Gives nobody anything."""

    name = paper = objective = "idle"

    def decide(self, view: ClusterView) -> Decision:
        return Decision({})


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Restless(), "nothing it decides can run"),
        (Broken(), "no such thing"),
        (Idle(), "nothing it decides can run"),  # woken by failures of nodes
    ],
)
def test_a_policy_that_runs_nobody_is_stopped_with_the_reason(policy: Policy, why: str) -> None:
    workload = Workload("test", (opaque("a", 0.0, 1, 10.0),))
    with pytest.raises(NoProgress, match=why):
        Simulator(workload, {}, Cluster.parse("v100:1x4"), policy, Settings(node_mtbf_s=3600.0)).run()


def test_a_policy_that_never_lets_jobs_restart_is_stopped() -> None:
    with pytest.raises(NoProgress, match="made no progress"):
        run("las:interval=10", [toy("a", slots=8), toy("b", slots=8)], settings=Settings(rescale_s=60.0))


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "tiresias", "optimus", "sia", "pollux:generations=5"])
def test_every_policy_finishes_every_job_of_a_mixed_cluster_with_valid_decisions(policy: str) -> None:
    from geminid.sim.profiles import built_in_applications

    workload = built_in_workload("small", seed=2)
    workload = replace(workload, jobs=workload.jobs[:12])
    cluster = Cluster.parse("v100:4x4,t4:2x4")
    chosen = make_policy(policy)
    result = Simulator(workload, built_in_applications(), cluster, chosen, Settings()).run()
    assert not result.rejected
    assert all(job.completed_s is not None for job in result.jobs)
    assert summary(result)["utilization"] <= 1.0


def test_cost_is_hours_of_slots_times_what_they_cost() -> None:
    result = summary(run("fifo", [opaque("a", 0, 4, 3600), opaque("b", 0, 2, 7200)], "t4:1x4,v100:1x4"))
    by_type = {"t4": 0.14, "v100": 1.0}
    costs = {job["name"]: job["cost"] for job in result["per_job"]}
    assert costs["a"] / 4 in [pytest.approx(cost) for cost in by_type.values()]
    assert costs["b"] / 4 in [pytest.approx(cost) for cost in by_type.values()]
    assert result["cost"] == pytest.approx(sum(costs.values()))


def test_missed_deadlines_are_counted_and_those_without_one_are_not() -> None:
    jobs = [replace(opaque("a", 0, 8, 100), slo_s=100.0), replace(opaque("b", 10, 8, 50), slo_s=139.0)]
    result = summary(run("fifo", [*jobs, opaque("c", 20, 8, 5)]))
    assert [(job["deadline_s"], job["met"]) for job in result["per_job"]] == [(100, True), (149, False), (None, None)]
    assert result["deadlines_missed"] == 1
    assert summary(run("fifo", [opaque("a", 0, 8, 100)]))["deadlines_missed"] is None


def test_deadlines_that_cannot_be_met_are_a_reason_in_the_result() -> None:
    jobs = [replace(opaque(f"j{i}", 0, 8, 1000), slo_s=10.0) for i in range(2)]
    settings = Settings(model="pollux", oracle=True)
    result = summary(run("max_sum_throughput_normalized_by_cost_perf_SLOs", jobs, settings=settings))
    assert result["deadlines_missed"] == 2
    counts = {reason: count for reason, count in result["reasons"].items() if reason.startswith("infeasible_slo: ")}
    assert max(counts.values()) == 2  # both, and whoever comes second again when its deadline has passed


def test_reasons_are_counted_without_names_and_numbers() -> None:
    reasons = Reasons()
    reasons.add({"a": "shares its slots with b: 1.32 jobs' work on k80", "b": "x_y: no; u_v: of 3 types"}, {"a": "b"})
    reasons.add({"c-1": "shares its slots with d: 2 jobs' work on k80", "b": "x_y: no"}, {"c-1": "d"})
    assert reasons.counts() == {
        "shares its slots with …: … jobs' work on k80": 2,
        "u_v: of … types": 1,
        "x_y: no": 1,
    }
    assert [is_named(reason) for reason in reasons.counts()] == [False, True, True]


class Watching(Policy):
    """Runs everything at once on one slot, and notes what it is told of the future and of speeds."""

    name = "watching"
    needs_models = True

    def __init__(self) -> None:
        self.next_s: list[float | None] = []
        self.steps_s: list[float] = []

    def decide(self, view: ClusterView) -> Decision:
        self.next_s.append(view.next_arrival_s)
        for job in view.jobs:
            if job.model is not None and "v100" in job.model.fits:
                shape = Shape.of(1, 1, 100.0)
                self.steps_s.append(float(job.model.fits["v100"].step_times(shape).step_s))
        return Decision({job.id: Configuration(gpu_type="v100", nodes=1, slots=1) for job in view.jobs})


def test_schedulers_know_the_next_arrival_only_if_the_settings_say_so() -> None:
    jobs = [opaque("a", 0, 1, 5), opaque("b", 10, 1, 5), opaque("c", 30, 1, 5)]
    blind, seeing = Watching(), Watching()
    run(blind, jobs)
    run(seeing, jobs, settings=Settings(arrivals_known=True))
    assert set(blind.next_s) == {None}
    assert list(dict.fromkeys(seeing.next_s)) == [10.0, 30.0, float("inf")]


def test_known_speeds_are_there_before_a_job_runs_and_wrong_ones_are_wrong() -> None:
    known, exact, wrong = Watching(), Watching(), Watching()
    jobs = [toy("a"), toy("b", 400.0)]
    run(known, jobs, settings=Settings(model="pollux", speeds_known=True))
    run(exact, jobs, settings=Settings(model="pollux"))
    run(wrong, jobs, settings=Settings(model="pollux", speed_error=0.5))
    assert known.steps_s[0] == pytest.approx(0.2, rel=0.05)
    assert len(known.steps_s) > len(exact.steps_s)
    assert exact.steps_s[-1] != pytest.approx(wrong.steps_s[-1], rel=0.05)
