"""The service on a Ray cluster whose nodes are cut off by their network for a moment, for too long, and made slow."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from isolated import IsolatedCluster
from live import check_invariants
from onray import OnRay, is_stopped

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.needs_network_namespaces,
]

#: Appends a line every tenth of a second, and at its end says so.
TICKING = 'i=0; while [ ! -e "$1" ]; do echo "$GEMINID_NODE $(date +%s.%N)" >> "$0"; sleep 0.1; done; echo done'


@pytest.fixture(scope="module")
def ray():
    with IsolatedCluster(nodes=3, slots=2, patience_s=4.0) as cluster, OnRay(cluster) as made:
        made.wait_for(lambda: len(made.nodes()) == 3)
        yield made


def test_a_short_cut_moves_nobody_and_a_slow_line_only_slows(ray):
    sizes = {"min_slots": 3, "max_slots": 3, "kind": "elastic"}
    job = ray.counting("a", "--samples", 400, "--epochs", 30, "--max-batch", 64, **sizes)
    ray.settled(job, 3)
    workers, victim = ray.worker_pids(job), sorted(ray.on(job))[0]
    ray.cluster.cut(victim)
    time.sleep(1.5)
    ray.cluster.heal(victim)
    ray.cluster.slow(victim, "300kbit")
    step = ray.job(job)["step"]
    ray.until(job, lambda job: job["step"] > step + 20)
    assert ray.worker_pids(job) == workers
    ray.cluster.slow(victim, "1gbit")
    done = ray.over(job)
    assert (done["phase"], done["failures"]) == ("succeeded", 0)
    assert ray.exactly_once("a", 400, 30)
    assert not [node for node in ray.nodes().values() if node["down"]]


def test_a_job_whose_nodes_do_not_reach_each_other_trains_on_one_of_them_and_says_why(ray):
    """Only the newcomer knows that it cannot come; whoever has the state waits for it, and keeps it."""
    assert ray.run("drain", "n3").returncode == 0
    ray.cluster.part("n1", "n2")
    slowly = ("--pause", 0.2, "--until", ray.home / "p-enough")
    own = {"name": "one-of-its-kind", "min_slots": 1, "max_slots": 1}  # no measurements tell it to stay on one node
    job = ray.counting("p", "--samples", 400, "--epochs", 60, "--max-batch", 64, *slowly, **own)
    ray.settled(job, 1)
    assert ray.run("set", job, "--max-slots", 4).returncode == 0
    ray.until(job, lambda job: any("it could not go on to" in line["text"] for line in job["story"]))
    told = ray.until(job, lambda job: job["phase"] == "running" and len(job["placement"]) == 1)
    assert any("it could not go on to" in note["text"] for note in ray.json("status")["notes"])
    ray.until(job, lambda job: job["step"] > told["step"] + 10)
    assert "from the beginning" not in ray.story(job)
    ray.finish("p", job)
    ray.cluster.rejoin("n1", "n2")
    assert ray.run("drain", "--undo", "n3").returncode == 0


def test_whoever_is_cut_off_for_too_long_stops_before_others_go_on(ray, tmp_path):
    log, enough = tmp_path / "ticks", tmp_path / "enough"
    slowly = ("--pause", 0.05, "--until", enough, "--every", 1)
    victim, *others = sorted(ray.nodes())
    for name in others:
        assert ray.run("drain", name).returncode == 0
    plain = ray.submit("sh", "-c", TICKING, str(log), str(enough), name="ticking", min_slots=1, max_slots=1)
    job = ray.counting("b", "--samples", 200, "--epochs", 20, *slowly, min_slots=1, max_slots=1)
    ray.until(job, lambda job: job["durable_samples"] > 0)
    ray.until(plain, lambda job: job["phase"] == "running" and log.exists())
    assert ray.on(job) == ray.on(plain) == {victim}
    for name in others:
        assert ray.run("drain", "--undo", name).returncode == 0
    workers = ray.worker_pids(job)
    ray.cluster.cut(victim)
    cut = time.monotonic()
    ray.until(job, lambda job: job["phase"] == "starting" or victim not in (job["placement"] or {victim}))
    assert all(map(is_stopped, workers))
    ray.until(job, lambda job: job["phase"] == "running" and victim not in (job["placement"] or {victim}))
    print(f"training went on elsewhere {time.monotonic() - cut:.1f} s after the cut")
    ray.wait_for(lambda: ray.nodes()[victim]["down"])
    ray.until(plain, lambda job: job["phase"] == "running" and victim not in (job["placement"] or {victim}))
    ray.cluster.heal(victim)  # its raylet learns that it was given up, and everything of it ends
    ray.wait_for(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()])
    ray.cluster.kill(victim)
    ray.cluster.start_node(victim, wait=False)
    ray.wait_for(lambda: not ray.nodes()[victim]["down"])
    enough.touch()
    assert ray.over(job)["phase"] == "succeeded"
    assert ray.exactly_once("b", 200, 20)
    assert ray.over(plain)["phase"] == "succeeded"
    lines = [line.split() for line in log.read_text().splitlines()]
    starts = 1 + sum(one[0] != other[0] for one, other in pairwise(lines))
    assert starts == 2  # one after the other, and not beside each other
    check_invariants(ray.home)


@pytest.mark.slow("two minutes")
def test_a_head_that_comes_back_without_its_tables_costs_what_was_not_saved(ray, tmp_path):
    enough = tmp_path / "enough"
    slowly = ("--pause", 0.05, "--until", enough, "--every", 0.5)
    job = ray.counting("c", "--samples", 200, "--epochs", 80, *slowly, min_slots=2, max_slots=2)
    ray.until(job, lambda job: job["durable_samples"] > 0)
    ray.cluster.restart_head(wait=False)
    names = ("head", "n1", "n2", "n3")  # Ray ends them all: the new head does not know them
    ray.wait_for(lambda: not [word for name in names for word in ray.commands(name) if "raylet/raylet" in word])
    for name in names:
        ray.cluster.kill(name)
    ray.cluster.start_head()
    for name in names[1:]:
        ray.cluster.start_node(name, wait=False)
    ray.until(job, lambda job: job["phase"] == "running")
    enough.touch()
    assert ray.over(job)["phase"] == "succeeded"
    assert ray.exactly_once("c", 200, 80)
    assert "from its last checkpoint" in ray.story(job)
    check_invariants(ray.home)
