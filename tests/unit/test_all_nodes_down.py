"""What the named policies do while no node is up: nothing, without a mistake, until nodes are back."""

from __future__ import annotations

import pytest

from geminid.cluster import Cluster
from geminid.engine.engine import Engine
from geminid.engine.events import NodeDown, NodeUp, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.policies.base import JobFacts
from geminid.policies.registry import make_policy
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload

POLICIES = ["gandiva", "dally", "antman:opportunistic=0.5", "lucid", "slaq", "shockwave"]


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_runs_while_all_nodes_are_down_and_everybody_afterwards(policy: str) -> None:
    engine = Engine(Cluster.parse("v100:2x2"), make_policy(policy), ModelKeeper(), debug=True)
    for name in "abc":
        facts = JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=1)
        assert not engine.handle(Submitted(0.0, facts)).rejected
    events = [Tick(120.0), NodeDown(130.0, 0), NodeDown(131.0, 1), Tick(240.0), Tick(360.0)]
    for event in events:
        assert not engine.handle(event).rejected
    assert not any(job.allocation for job in engine.jobs.values())
    for event in (NodeUp(400.0, 0), NodeUp(401.0, 1), Tick(480.0), Tick(600.0)):
        assert not engine.handle(event).rejected
    assert all(job.allocation for job in engine.jobs.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_workload_is_finished_although_the_only_node_fails_again_and_again(policy: str) -> None:
    names = ("resnet18-cifar10", "dlrm-small", "lstm-wikitext2", "neumf-ml20m")
    jobs = tuple(
        TraceJob(name=f"j{i}", submit_s=60.0 * i, requested_slots=1, application=name) for i, name in enumerate(names)
    )
    settings = Settings(rescale_s=1.0, node_mtbf_s=300.0, repair_s=120.0, checkpoint_s=30.0, debug=True)
    world = Simulator(
        Workload("w", jobs), built_in_applications(), Cluster.parse("v100:1x2"), make_policy(policy), settings
    )
    result = world.run()
    assert result.failures > 0
    assert not result.rejected
    assert all(job.completed_s is not None for job in result.jobs)
