"""What racks and uplinks do to simulated jobs, on jobs small enough to compute by hand.

A pass of the job takes 0.15 s, and synchronising over a link of 1 GB/s adds 0.1 s: 100 MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import pytest

from geminid.bench.decisions import in_racks
from geminid.cluster import Cluster
from geminid.gputypes import LinkClass
from geminid.job import Adaptivity
from geminid.network import Path
from geminid.policies.base import Allocation
from geminid.policies.registry import make_policy
from geminid.sim.application import FROM_VOLUME, MEASURED
from geminid.sim.metrics import summary
from geminid.sim.profiles import load_applications
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.run import Experiment, simulate, sync_sources
from geminid.sim.simulator import Result, Settings, Simulator
from geminid.sim.timeuse import iteration_times
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.generate import built_in_workload
from geminid.testing.applications import toy_application
from geminid.testing.policies import ScriptedPolicy

TOY = toy_application()


def cluster(uplink: str = "", zone: str = "1GB/s", rack: str = "1GB/s") -> Cluster:
    """Four racks of two nodes with two slots each; the toy was profiled over 1 GB/s."""
    uplinks = f"rack_uplink: {uplink}" if uplink else ""
    return Cluster.from_yaml(
        "gpu_types: {v100: {interconnect: {node: 10GB/s, rack: 1GB/s, zone: 1GB/s, cluster: 1GB/s, efficiency: 1}}}\n"
        f"network: {{rack: {rack}, zone: {zone}, {uplinks}}}\n"
        "nodes: [{type: v100, count: 8, slots: 2, nodes_per_rack: 2}]"
    )


def run(where: Cluster, wanted: Mapping[str, Allocation], starts: Sequence[float] = ()) -> Result:
    jobs = [
        TraceJob(
            name=name,
            submit_s=start_s,
            requested_slots=2,
            application="toy",
            requested_batch=100,
            adaptivity=Adaptivity.RIGID,
        )
        for name, start_s in zip(wanted, [*starts, *[0.0] * len(wanted)], strict=False)
    ]
    settings = Settings(debug=True, rescale_s=0.0)
    return Simulator(Workload("test", tuple(jobs)), {"toy": TOY}, where, ScriptedPolicy.always(wanted), settings).run()


def ends(result: Result) -> dict[str, float]:
    return {job.facts.id: round(job.completed_s or -1.0, 6) for job in result.jobs}


ONE_NODE, ONE_RACK, TWO_RACKS = ((0, 2),), ((0, 1), (1, 1)), ((0, 1), (2, 1))


def test_a_slower_link_between_racks_slows_the_synchronisation_of_who_crosses_it() -> None:
    slow = cluster(zone="0.25GB/s")
    assert ends(run(slow, {"a": ONE_NODE})) == {"a": 500.0}
    assert ends(run(slow, {"a": ONE_RACK})) == {"a": 500.0}
    assert ends(run(slow, {"a": TWO_RACKS})) == {"a": 2000 * (0.15 + 4 * 0.1)}


def test_a_slower_link_within_racks_slows_everybody_on_several_nodes() -> None:
    slow = cluster(rack="0.5GB/s")
    assert ends(run(slow, {"a": ONE_NODE})) == {"a": 500.0}
    assert ends(run(slow, {"a": ONE_RACK})) == {"a": 2000 * (0.15 + 2 * 0.1)}
    assert ends(run(slow, {"a": TWO_RACKS})) == {"a": 2000 * (0.15 + 2 * 0.1)}  # it goes through both racks
    fast = cluster(rack="2GB/s")
    assert ends(run(fast, {"a": ONE_RACK})) == {"a": 2000 * (0.15 + 0.5 * 0.1)}
    assert ends(run(fast, {"a": TWO_RACKS})) == {"a": 500.0}


def test_two_equal_jobs_get_half_of_an_uplink_each_and_one_elsewhere_is_unaffected() -> None:
    where = cluster(uplink="0.4GB/s")
    alone = {"a": TWO_RACKS}
    assert ends(run(where, alone)) == {"a": 800.0}  # 0.15 s, and 100 MB over 0.4 GB/s
    both = {"a": TWO_RACKS, "b": ((0, 1), (3, 1)), "c": ((4, 1), (6, 1)), "d": ((5, 2),)}
    assert ends(run(where, both)) == {"a": 1000.0, "b": 1000.0, "c": 800.0, "d": 500.0}  # 0.2 GB/s each: 0.5 s a step


@pytest.mark.parametrize("application", ["bert-base-squad", "gpt2-124m"])
def test_two_equal_jobs_of_a_built_in_application_get_half_of_an_uplink_each(application: str) -> None:
    """Alone, a job that the network limits fills its uplink: NICs of 50 % efficiency do not halve it again."""
    where = in_racks(Cluster.parse("v100:8x4"), 4, 32.0)
    capacity = float(where.links.capacity[0])
    app = built_in_applications()[application]
    assert app.gradient_bytes is not None

    def sent(wanted: Mapping[str, Allocation]) -> list[float]:
        """Bytes per second over the uplink of the first rack, by job."""
        jobs = tuple(
            TraceJob(name=name, submit_s=0.0, requested_slots=8, application=application, adaptivity=Adaptivity.RIGID)
            for name in wanted
        )
        result = Simulator(
            Workload("test", jobs), {application: app}, where, ScriptedPolicy.always(wanted), Settings(rescale_s=0.0)
        ).run()
        assert app.gradient_bytes is not None
        iterations_s = [iteration_times(app, job.stints[0])[0] for job in result.jobs]
        return [2 * 7 / 8 * app.gradient_bytes / iteration_s for iteration_s in iterations_s]

    (alone,) = sent({"a": ((0, 4), (4, 4))})
    both = sent({"a": ((0, 4), (4, 4)), "b": ((1, 4), (5, 4))})
    assert 0.8 * capacity < alone <= capacity * (1 + 1e-9)
    assert both == pytest.approx([capacity / 2, capacity / 2])


def test_an_uplink_is_shared_while_both_send_and_no_longer() -> None:
    where = cluster(uplink="0.4GB/s")
    result = run(where, {"a": TWO_RACKS, "b": ((0, 1), (3, 1))}, starts=[0.0, 400.0])
    assert ends(result) == {"a": 900.0, "b": 1300.0}
    assert [round(stint.contention, 6) for stint in result.jobs[0].stints] == [1.0, 1.25]


def test_a_wide_uplink_slows_nobody() -> None:
    where = cluster(uplink="100GB/s")
    assert ends(run(where, {"a": TWO_RACKS, "b": ((0, 1), (3, 1))})) == {"a": 500.0, "b": 500.0}


def test_the_share_of_time_in_communication_is_told_for_every_job() -> None:
    told = summary(run(cluster(uplink="0.4GB/s"), {"a": TWO_RACKS, "b": ((4, 2),)}), stints=True)
    shares = {job["name"]: job["communication_share"] for job in told["per_job"]}
    assert shares == {"a": pytest.approx(0.25 / 0.4), "b": pytest.approx(0.1 / 0.25)}
    assert told["communication_share"] == pytest.approx((800 * 0.625 + 500 * 0.4) / 1300)
    assert [job["stints"][0]["tier"] for job in told["per_job"]] == ["zone", "node"]


def test_jobs_report_the_link_that_they_were_measured_on() -> None:
    simulator = Simulator(
        Workload("test", (TraceJob(name="a", submit_s=0.0, requested_slots=2, application="toy"),)),
        {"toy": TOY},
        cluster(zone="0.25GB/s"),
        ScriptedPolicy.always({"a": TWO_RACKS}),
    )
    simulator.run()
    job = simulator.jobs["a"]
    job.begin(0.0, 0.0, TWO_RACKS, "v100", job.fixed_batch("v100", 2), 1.0, simulator.cluster.links.crossing((0, 2)))
    seen = job.observation()
    assert seen is not None
    assert (seen.link_slowdown, seen.step_s) == (4.0, pytest.approx(0.15 + 0.4))


def test_built_in_profiles_know_overlap_and_say_where_their_times_come_from() -> None:
    app = next(iter(built_in_applications().values()))
    truth = app.truth["v100"]
    near, far = truth.step_times((1, 1), 16), truth.step_times_over((1, 1), 16, Path(LinkClass.ZONE, 8.0))
    assert far[0] == near[0]
    assert far[1] > near[1]
    assert app.sync_source("v100", Path(LinkClass.RACK, 1.0)) == MEASURED
    assert app.sync_source("v100", Path(LinkClass.RACK, 2.0)) == FROM_VOLUME
    assert app.sync_source("v100", Path(LinkClass.ZONE, 2.0)) == FROM_VOLUME


def test_times_measured_across_racks_are_used_as_they_are(tmp_path: FilePath) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time,tier\n1,32,0.1,0.0,node\n11,32,0.2,0.1,rack\n11,32,0.9,0.8,zone\n"
    )
    (folder / "validation-32.csv").write_text("progress,grad_sqr,grad_var\n100,1,1\n")
    (folder / "application.yaml").write_text("{epochs: 1, gradient_bytes: 100MB}")
    app = load_applications(tmp_path)["mine"]
    truth = app.truth["v100"]
    assert truth.step_times_over((1, 1), 32, Path(LinkClass.RACK, 1.0)) == (0.1, 0.2)
    assert truth.step_times_over((1, 1), 32, Path(LinkClass.ZONE, 2.0)) == pytest.approx((0.1, 0.9))
    assert truth.step_times_over((1, 1), 32, Path(LinkClass.CLUSTER, 3.0)) == pytest.approx((0.1, 0.4))
    assert truth.step_times_over((2,), 32, Path(LinkClass.NODE, 1.0)) == truth.step_times((2,), 32)
    assert app.sync_source("v100", Path(LinkClass.ZONE, 2.0)) == MEASURED
    assert app.sync_source("v100", Path(LinkClass.CLUSTER, 2.0)) == FROM_VOLUME
    assert app.gradient_bytes == 100_000_000


def test_results_name_the_source_of_synchronisation_times_beyond_a_rack() -> None:
    jobs = (TraceJob(name="a", submit_s=0.0, requested_slots=2, application="toy"),)
    far = Simulator(Workload("test", jobs), {"toy": TOY}, cluster(), ScriptedPolicy.always({"a": TWO_RACKS}))
    near = Simulator(
        Workload("test", jobs), {"toy": TOY}, Cluster.parse("v100:2x2"), ScriptedPolicy.always({"a": ONE_NODE})
    )
    assert sync_sources(far) == {"toy": {"rack": MEASURED, "zone": FROM_VOLUME}}
    assert sync_sources(near) == {}


@pytest.mark.parametrize("policy", ["geminid", "sia", "dally", "tiresias"])
def test_policies_run_in_racks_with_shared_uplinks_and_nothing_they_decide_is_refused(policy: str) -> None:
    jobs = [
        TraceJob(name=f"{slots}-{i}", submit_s=100.0 * i, requested_slots=slots, application="toy")
        for i, slots in enumerate((4, 2, 8, 1, 4, 2, 6, 4))
    ]
    where = cluster(uplink="{oversubscription: 8}", zone="0.5GB/s")
    settings = Settings(debug=True, rescale_s=5.0)
    result = Simulator(Workload("test", tuple(jobs)), {"toy": TOY}, where, make_policy(policy), settings).run()
    assert not result.rejected
    assert all(job.completed_s is not None for job in result.jobs)


#: Mean JCT and makespan of the built-in workload `small` before there was a network model.
BEFORE_THE_NETWORK = {
    "fifo": (15296.683121413236, 54114.22507635072),
    "tiresias": (14074.601816986153, 54212.112444132974),
}


def in_one_rack(policy: str, load: float) -> list[dict[str, object]]:
    """The results of the workload `small` in one rack, without a network and with one that is narrow between racks."""
    narrow = "network: {zone: 1MB/s, cluster: 1MB/s, rack_uplink: 1MB/s, zone_uplink: 1MB/s}\n"
    nodes = "nodes: [{type: v100, count: 4, slots: 4}]"
    results = []
    for where in (Cluster.parse("v100:4x4"), Cluster.from_yaml(narrow + nodes)):
        workload = built_in_workload("small", load=load)
        result = simulate(policy, Experiment(workload=workload, cluster=where, timings=False))
        results.append({key: value for key, value in result.items() if key != "setup"})
    return results


@pytest.mark.parametrize("policy", ["sia", "geminid"])
def test_in_one_rack_policies_with_models_decide_the_same_whatever_its_network(policy: str) -> None:
    plain, networked = in_one_rack(policy, load=0.2)
    assert plain == networked


@pytest.mark.parametrize("policy", BEFORE_THE_NETWORK)
def test_in_one_rack_everything_is_as_before_whatever_its_network(policy: str) -> None:
    results = in_one_rack(policy, load=1.0)
    assert results[0] == results[1]
    assert (results[0]["avg_jct_s"], results[0]["makespan_s"]) == pytest.approx(BEFORE_THE_NETWORK[policy], rel=1e-12)
