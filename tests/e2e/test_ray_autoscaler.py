"""The service on a Ray cluster that Ray's own autoscaler makes larger and smaller, as Geminid's jobs need it."""

from __future__ import annotations

import os
import signal
import time

import pytest
from live import check_invariants
from onray import OnRay
from scaled import ScaledCluster

pytestmark = pytest.mark.xdist_group("ray")

#: Of Ray's autoscaler: the second is KubeRay's, the first that of clusters on machines.
VERSION = int(os.environ.get("GEMINID_TEST_AUTOSCALER", "2"))

TYPES = {
    "small": {"resources": {"CPU": 2, "geminid_slot": 2}, "min_workers": 1, "max_workers": 2},
    "large": {
        "resources": {"CPU": 2, "GPU": 2, "accelerator_type:A100": 1},
        "labels": {"ray.io/accelerator-type": "A100"},
        "max_workers": 2,
    },
}


def kinds(ray: OnRay) -> list[str]:
    """The types of the nodes that are there."""
    return sorted(node["gpu_type"] for node in ray.nodes().values() if not node["down"])


def test_nodes_of_a_type_come_when_jobs_wait_for_it_and_go_when_they_are_done():
    with ScaledCluster(TYPES, version=VERSION) as cluster, OnRay(cluster, "--autoscale") as ray:
        ray.wait_for(lambda: kinds(ray) == ["cpu"])
        bridge = ray.bridge()
        os.kill(bridge, signal.SIGSTOP)  # what is wished for meanwhile is told to the next one
        job = ray.submit("sh", "-c", "echo on $GEMINID_NODE", gpu_types=["a100"], min_slots=3, max_slots=3)
        time.sleep(2.0)
        os.kill(bridge, signal.SIGKILL)
        assert ray.job(job)["phase"] == "pending"
        assert ray.over(job)["phase"] == "succeeded"
        assert len(ray.log_files(job)) == 2  # on both nodes that have come
        ray.wait_for(lambda: kinds(ray) == ["cpu"])
        again = ray.submit("sh", "-c", "echo on $GEMINID_NODE", min_slots=2, max_slots=2)  # its agent had been let go
        assert ray.over(again)["phase"] == "succeeded"
        check_invariants(ray.home)
