"""Whatever the jobs and the cluster, and though nodes fail, the named systems finish every job by valid decisions."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.cluster import Cluster
from geminid.job import Adaptivity
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.run import named_policy
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload

POLICIES = ("gandiva", "gandiva:published=true", "antman:opportunistic=0.4", "slaq:interval=60", "shockwave", "lucid")

CLUSTERS = ("v100:2x4", "v100:1x4,t4:2x2", "v100:1x3,v100:1x8", "a100-40gb:4x1")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    jobs = []
    for i in range(draw(st.integers(1, 8))):
        opaque = draw(st.booleans())
        application = draw(st.sampled_from(["resnet18-cifar10", "neumf-ml20m", "lstm-wikitext2"]))
        rigid = opaque or draw(st.booleans())
        jobs.append(
            TraceJob(
                name=f"j{i}",
                submit_s=draw(st.integers(0, 600)) * 1.0,
                requested_slots=draw(st.integers(1, 4)),
                application=None if opaque else application,
                duration_s=draw(st.floats(1.0, 2000.0)) if opaque else None,
                adaptivity=Adaptivity.RIGID if rigid else draw(st.sampled_from(Adaptivity)),
                opportunistic=draw(st.booleans()),
            )
        )
    return Workload("drawn", tuple(sorted(jobs, key=lambda job: job.submit_s)))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(
    workload=workloads(),
    cluster=st.sampled_from(CLUSTERS),
    rescale_s=st.sampled_from([0.0, 1.0, 20.0]),
    fails=st.booleans(),
)
def test_every_job_is_finished(policy: str, workload: Workload, cluster: str, rescale_s: float, fails: bool) -> None:
    world = Settings(
        rescale_s=rescale_s, node_mtbf_s=20_000.0 if fails else None, repair_s=300.0, checkpoint_s=60.0, debug=True
    )
    result = Simulator(workload, built_in_applications(), Cluster.parse(cluster), named_policy(policy), world).run()
    assert not result.rejected
    assert all(job.completed_s is not None for job in result.jobs)
