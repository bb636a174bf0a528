"""The service on a Ray cluster: completion times against fixed shares, pauses of rescales, and latencies.

Also how soon a job trains again after one of its raylets is killed: with the workers that are left, or elsewhere from
its checkpoint if none is.

The cluster runs on loopback addresses of this machine (``testing/ray_cluster.py``). The jobs are real, but sleep for
the time of an accelerator (``testing/scripts/pretended_accelerator.py``). Times are read from the service's log.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from geminid.bench.live_jobs import submit, submit_at, wait_for_success, wait_until_jobs
from geminid.configuration import Placement
from geminid.serve import records as r
from geminid.serve.client import Client
from geminid.serve.server import DEFAULT_POLICY, Options
from geminid.serve.store import Entry, last_entries
from geminid.testing.ray_cluster import LoopbackCluster
from geminid.testing.scripts import PRETENDED_ACCELERATOR
from geminid.testing.service import temporary_service

#: Options of the jobs' script: steps take 4 ms per sample, and the noise scale lets batches grow eightfold.
OPTIONS = (
    *("--sample-ms", "4", "--step-ms", "0", "--batch", "16", "--max-batch", "128"),
    *("--label-noise", "2", "--momentum", "0.9", "--checkpoint-every", "5"),
)

#: The benchmark fails if its jobs take longer than this, in seconds.
TIMEOUT_S = 900.0

#: How many raylets are killed under a job with several nodes, and under a job with one.
KILLS = 3

#: The goal for the time from the death of a raylet until the job trains again.
RECOVERY_GOAL_S = 5.0

#: After a change to a job's limits, its slots change within this time, if they change.
SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class SmallJob:
    """When a job is submitted, and its work."""

    at_s: float
    samples: int
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way of running the jobs. Times are in seconds; latencies are from the plan until the job trains by it.

    The first way also has the times from each killed raylet until the job trained again: with the state of workers
    that were left, and from its checkpoint.
    """

    shares: str
    jobs: int
    avg_jct_s: float
    median_jct_s: float
    makespan_s: float
    rescales: int
    start_latency_s: float | None
    rescale_latency_s: float | None
    pauses_within_s: tuple[float, ...] = field(default=())
    pauses_across_s: tuple[float, ...] = field(default=())
    killed_from_memory_s: tuple[float, ...] = field(default=())
    killed_from_checkpoint_s: tuple[float, ...] = field(default=())


def small_jobs(count: int, length: float) -> list[SmallJob]:
    """Jobs of mixed sizes that arrive one after the other; a typical one takes 12 s × ``length`` on one slot."""
    draw = np.random.default_rng(5)
    sizes = np.exp(draw.normal(0.0, 0.7, count))
    arrivals = np.cumsum(draw.exponential(2.5, count)) - 2.0
    return [
        SmallJob(float(max(0.0, at)), 512, max(2, round(6 * length * float(size))))
        for at, size in zip(arrivals, sizes, strict=True)
    ]


def compare(
    jobs: Sequence[SmallJob],
    *,
    nodes: int,
    slots: int,
    shares: Sequence[int],
    warm: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:
    """Run the jobs under the default policy, and with each of the fixed shares, on one cluster.

    Unless it is to be ``warm``, times include the first processes of each node, which take seconds longer.
    """
    progress(f"starting {nodes} raylets")
    is_alone = nodes == 1  # a cluster of one node is its head
    with LoopbackCluster(0 if is_alone else nodes, slots, head_slots=slots if is_alone else 0) as cluster:
        ways: list[tuple[str, str, int | None]] = [(DEFAULT_POLICY.partition(":")[0], DEFAULT_POLICY, None)]
        ways += [(f"fixed {share}", "fifo", share) for share in shares]
        found = []
        for name, policy, share in ways:
            progress(f"{len(jobs)} jobs: {name}")
            found.append(run(cluster, jobs, name, policy, nodes * slots, share, warm=warm))
        if nodes > 1:
            progress(f"killing {2 * KILLS} raylets")
            memory, checkpoint = kill_raylets(cluster, nodes, slots)
            found[0] = replace(found[0], killed_from_memory_s=memory, killed_from_checkpoint_s=checkpoint)
        return found


def run(
    cluster: LoopbackCluster,
    jobs: Sequence[SmallJob],
    name: str,
    policy: str,
    most: int,
    share: int | None,
    *,
    warm: bool = True,
) -> Measured:
    """Run the jobs in a new service, and read its log.

    If ``warm``, a job on all slots runs first and does not count: the first process of each node takes seconds longer.
    """
    options = Options(home=Path(), policy=policy, grace_s=20.0, executor="ray", address=cluster.address)
    with temporary_service(options) as (client, home):
        code = _warm_up(client, home, most) if warm else _code(home)
        before = last_entries(home, 1_000_000, after=0)[-1].seq
        ids = submit_at(((job.at_s, _job(job, code, most, share)) for job in jobs), client)
        wait_for_success(client, ids, TIMEOUT_S)
        entries = last_entries(home, 1_000_000, after=before)
    return _measure(name, entries)


def kill_raylets(cluster: LoopbackCluster, nodes: int, slots: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Kill raylets under jobs; seconds until they trained again, with workers that were left, and where none was."""
    most = nodes * slots
    options = Options(home=Path(), policy=DEFAULT_POLICY, grace_s=20.0, executor="ray", address=cluster.address)
    memory: list[float] = []
    checkpoint: list[float] = []
    with temporary_service(options) as (client, home):
        code = _warm_up(client, home, most)
        for _ in range(KILLS):
            for size, found in ((slots + 1, memory), (1, checkpoint)):
                job_id = submit(client, _job(SmallJob(0.0, 512, 100_000), code, most, size, "killed"))
                found.append(_kill_under(cluster, client, home, job_id, restored=size == 1))
                wait_until_jobs(
                    client,
                    lambda: sum(not node["down"] for node in client.get("nodes")) == nodes,
                    f"{nodes} nodes in service",
                    TIMEOUT_S,
                )
    return tuple(memory), tuple(checkpoint)


def _kill_under(cluster: LoopbackCluster, client: Client, home: Path, job_id: str, *, restored: bool) -> float:
    """Kill a raylet under a job that has a checkpoint; seconds until it trained again, from the checkpoint or not."""

    def job() -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", client.get(f"jobs/{job_id}"))

    def wait_for(reached: Callable[[], bool], expected: str) -> None:
        wait_until_jobs(client, reached, f"job {job_id} to {expected}", TIMEOUT_S)

    wait_for(lambda: job()["phase"] == "running" and job()["durable_samples"] > 0, "train and save")
    client.patch(f"jobs/{job_id}", {"min_slots": 1})  # the slots that are left are enough
    time.sleep(SETTLE_S)
    wait_for(lambda: job()["phase"] == "running", "train")
    victim, killed_at_s = sorted(job()["placement"])[-1], time.time()
    cluster.signal(victim, signal.SIGKILL)

    def formed() -> list[float]:
        return [
            entry.at_s
            for entry in last_entries(home, -1, after=0)
            if isinstance(entry.record, r.JobFormed) and entry.record.job_id == job_id and entry.at_s > killed_at_s
            if victim not in entry.record.placement.node_names and entry.record.restored == restored
        ]

    wait_for(lambda: bool(formed()), f"train without {victim}")
    client.post(f"jobs/{job_id}/cancel")
    cluster.kill(victim)
    cluster.start_node(victim)
    wait_for(lambda: job()["finished_at_s"] is not None, "end")
    return formed()[0] - killed_at_s


def _warm_up(client: Client, home: Path, most: int) -> Path:
    """Run a job on all slots; returns the folder with the script that jobs run."""
    code = _code(home)
    first = submit(client, _job(SmallJob(0.0, 512, 1), code, most, most, "first"))
    wait_for_success(client, [first], TIMEOUT_S)
    return code


def _code(home: Path) -> Path:
    """A folder with the script that jobs run."""
    code = home / "small"
    code.mkdir()
    shutil.copy(PRETENDED_ACCELERATOR, code)
    return code


def _job(job: SmallJob, code: Path, most: int, share: int | None, name: str = "small") -> dict[str, object]:
    """A job as it is submitted, with a folder that has to be brought to its nodes, as from the command line."""
    sizes = {"min_slots": 1, "max_slots": most} if share is None else {"min_slots": share, "max_slots": share}
    work = ("--samples", str(job.samples), "--epochs", str(job.epochs))
    command = [sys.executable, PRETENDED_ACCELERATOR.name, *OPTIONS, *work]
    return {"name": name, "command": command, "working_dir": str(code), **sizes}


def _measure(name: str, entries: Sequence[Entry]) -> Measured:
    submitted: dict[str, float] = {}
    ended: dict[str, float] = {}
    planned: dict[str, tuple[float, Placement]] = {}
    placed: dict[str, Placement] = {}
    within: list[float] = []
    across: list[float] = []
    starts: list[float] = []
    changes: list[float] = []
    for entry in entries:
        match entry.record:
            case r.JobSubmitted(job_id=job_id):
                submitted[job_id] = entry.at_s
            case r.Planned(targets=targets):
                planned |= {job_id: (entry.at_s, target) for job_id, target in targets.items() if target is not None}
            case r.JobFormed(job_id=job_id, placement=placement, pause_s=pause_s):
                at_s, target = planned.get(job_id, (entry.at_s, placement))
                before = placed.get(job_id)
                if placement == target and before != placement:
                    (starts if before is None else changes).append(entry.at_s - at_s)
                if pause_s is not None and before is not None:
                    nodes = {*before.node_names, *placement.node_names}
                    (within if len(nodes) == 1 else across).append(pause_s)
                placed[job_id] = placement
            case r.JobEnded(job_id=job_id, how="succeeded"):
                ended[job_id] = entry.at_s
    times = [ended[job_id] - submitted[job_id] for job_id in submitted]
    return Measured(
        shares=name,
        jobs=len(times),
        avg_jct_s=float(np.mean(times)),
        median_jct_s=float(np.median(times)),
        makespan_s=max(ended.values()) - min(submitted.values()),
        rescales=len(changes),
        start_latency_s=float(np.median(starts)) if starts else None,
        rescale_latency_s=float(np.median(changes)) if changes else None,
        pauses_within_s=tuple(within),
        pauses_across_s=tuple(across),
    )
