"""The bound of a simulated workload: what it counts, what it refuses, and that no policy is better."""

from __future__ import annotations

import numpy as np
import pytest

from geminid.cluster import Cluster
from geminid.fields import InvalidInput
from geminid.job import Adaptivity
from geminid.sim.bound import bound
from geminid.sim.bound.instance import instance
from geminid.sim.bound.results import check_whole, with_bounds
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.run import Experiment, named_policy
from geminid.sim.settings import Settings
from geminid.sim.simulator import Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.testing.applications import toy_application


def opaque(name: str, submit_s: float, slots: int, duration_s: float) -> TraceJob:
    return TraceJob(name=name, submit_s=submit_s, requested_slots=slots, duration_s=duration_s)


def simulator(jobs: list[TraceJob], cluster: str = "v100:1x4", **settings: float) -> Simulator:
    applications = {"toy": toy_application(), **built_in_applications()}
    workload = Workload("test", tuple(jobs))
    return Simulator(workload, applications, Cluster.parse(cluster), named_policy("fifo"), Settings(**settings))


def test_one_job_alone_takes_as_long_as_the_bound_says() -> None:
    found = bound(simulator([opaque("a", 50.0, 2, 100.0)], rescale_s=10.0), sharing=False)
    assert found.avg_jct_s == pytest.approx(110.0, rel=1e-5)
    assert found.makespan_s == pytest.approx(160.0, rel=1e-5)


def test_two_equal_jobs_on_the_same_slots_wait_for_each_other() -> None:
    found = bound(simulator([opaque("a", 0.0, 4, 100.0), opaque("b", 0.0, 4, 100.0)]), sharing=False)
    assert found.avg_jct_s == pytest.approx(150.0, rel=0.01)
    assert found.makespan_s == pytest.approx(200.0, rel=1e-5)


def test_shared_slots_are_a_class_of_their_own() -> None:
    jobs = [TraceJob(name=f"j{i}", submit_s=0.0, requested_slots=4, application="neumf-ml20m") for i in range(8)]
    alone = bound(simulator(jobs), sharing=False)
    shared = bound(simulator(jobs), sharing=True)
    assert shared.avg_jct_s < alone.avg_jct_s
    assert shared.makespan_s < alone.makespan_s


def test_a_job_that_uses_no_more_than_its_rates_never_beats_the_isolated_time() -> None:
    sim = simulator([TraceJob(name="a", submit_s=0.0, requested_slots=1, application="toy")])
    found = bound(sim, sharing=False)
    completed_s = sim.run().jobs[0].completed_s
    assert completed_s is not None
    assert found.avg_jct_s <= completed_s


@pytest.mark.parametrize("adaptivity", Adaptivity)
def test_kinds_keep_to_what_their_jobs_may_do(adaptivity: Adaptivity) -> None:
    jobs = [
        TraceJob(
            name="a", submit_s=0.0, requested_slots=2, requested_batch=200, application="toy", adaptivity=adaptivity
        )
    ]
    kind = instance(simulator(jobs), sharing=False).kinds[0]
    assert kind.rates.max(axis=1) == pytest.approx(1.0)
    assert kind.shares.sum() == pytest.approx(1.0)
    assert set(kind.slots) == {2.0} if adaptivity is Adaptivity.RIGID else kind.slots.max() <= 4.0
    assert np.all(np.diff(kind.gpu_type) >= 0)


def test_a_workload_of_which_jobs_were_left_out_is_refused() -> None:
    whole = Workload("whole", (opaque("a", 0.0, 1, 10.0), opaque("b", 0.0, 1, 10.0)))
    check_whole(whole, whole)
    with pytest.raises(InvalidInput, match="needs every job of the workload, and 1 of 2 were left out"):
        check_whole(whole, Workload("part", whole.jobs[:1]))


def test_where_jobs_did_not_finish_there_is_no_bound() -> None:
    workload = Workload("test", (opaque("a", 0.0, 1, 10.0),))
    experiment = Experiment(workload=workload, cluster=Cluster.parse("v100:1x4"))
    done = {"policy": "fifo", "avg_jct_s": 20.0, "unfinished_jobs": 0, "shared_slots": False}
    found = with_bounds([done, {**done, "unfinished_jobs": 1, "avg_jct_s": None}], experiment)
    assert found[0]["bound_avg_jct_s"] == pytest.approx(10.0, rel=1e-5)
    assert found[0]["avg_jct_to_bound"] == pytest.approx(2.0, rel=1e-5)
    assert [found[1][key] for key in ("bound_avg_jct_s", "bound_makespan_s", "avg_jct_to_bound")] == [None] * 3
