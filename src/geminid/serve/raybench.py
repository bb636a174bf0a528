"""The service on a Ray cluster, measured: completion times against fixed shares, pauses of rescales, and latencies.

And how soon a job trains on after a raylet of its was killed: with the workers that are left, or elsewhere if none is.

The cluster is one of loopback addresses on this machine (``raycluster.py``), the jobs are real but sleep for what a
device would compute (``slotjob.py``). Everything is read from the service's log afterwards.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from geminid.configuration import Placement
from geminid.serve import records as r
from geminid.serve.client import Client
from geminid.serve.raycluster import LoopbackCluster
from geminid.serve.server import DEFAULT_POLICY, Options
from geminid.serve.store import Entry, last_entries
from geminid.serve.temporary import temporary_service

#: The script that jobs run.
SCRIPT = Path(__file__).with_name("slotjob.py")

#: A run that takes longer than this is given up.
PATIENCE_S = 900.0

#: How many raylets are killed under a job of each kind, and within which time it is to train on.
KILLS, GOES_ON_S = 3, 5.0

#: After what a job asks for was changed, it has other slots within so long, if it is to have any.
SETTLES_S = 3.0


class DidNotFinish(Exception):
    """A job did not end well."""


@dataclass(frozen=True, slots=True)
class SmallJob:
    """When a job comes, and how much it has to do."""

    at_s: float
    samples: int
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way of running the jobs. Times are in seconds; latencies are from the plan to the job training by it.

    Of the first way, also how long after each killed raylet a job trained: from memory, and from its checkpoint.
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
    """Jobs of mixed sizes that come one after the other; a middling one takes 12 s × ``length`` on one slot."""
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
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:
    """The jobs under the default policy, and with each of some fixed shares, on one cluster."""
    progress(f"starting {nodes} raylets")
    with LoopbackCluster(nodes, slots) as cluster:
        ways: list[tuple[str, str, int | None]] = [(DEFAULT_POLICY.partition(":")[0], DEFAULT_POLICY, None)]
        ways += [(f"fixed {share}", "fifo", share) for share in shares]
        found = []
        for name, policy, share in ways:
            progress(f"{len(jobs)} jobs: {name}")
            found.append(run(cluster, jobs, name, policy, nodes * slots, share))
        if nodes > 1:
            progress(f"killing {2 * KILLS} raylets")
            memory, checkpoint = kill_raylets(cluster, nodes, slots)
            found[0] = replace(found[0], killed_from_memory_s=memory, killed_from_checkpoint_s=checkpoint)
        return found


def run(
    cluster: LoopbackCluster, jobs: Sequence[SmallJob], name: str, policy: str, most: int, share: int | None
) -> Measured:
    """Run the jobs in a service of their own, and read its log.

    A job on all slots comes first and does not count: each node's first process takes seconds that no later one does.
    """
    options = Options(home=Path(), policy=policy, grace_s=20.0, executor="ray", address=cluster.address)
    with temporary_service(options) as (client, home):
        code = _warm_up(client, home, most)
        before = last_entries(home, 1_000_000, after=0)[-1].seq
        began_s, ids = time.monotonic(), []
        for job in jobs:
            time.sleep(max(0.0, began_s + job.at_s - time.monotonic()))
            ids.append(_submit(client, job, code, most, share))
        _wait(client, ids)
        entries = last_entries(home, 1_000_000, after=before)
    return _measure(name, entries)


def kill_raylets(cluster: LoopbackCluster, nodes: int, slots: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Kill raylets under jobs: how long after that they trained, with workers that were left, and where none was."""
    most = nodes * slots
    options = Options(home=Path(), policy=DEFAULT_POLICY, grace_s=20.0, executor="ray", address=cluster.address)
    memory: list[float] = []
    checkpoint: list[float] = []
    with temporary_service(options) as (client, home):
        code = _warm_up(client, home, most)
        for _ in range(KILLS):
            for size, found in ((slots + 1, memory), (1, checkpoint)):
                job_id = _submit(client, SmallJob(0.0, 512, 100_000), code, most, size, "killed")
                found.append(_kill_under(cluster, client, home, job_id, restored=size == 1))
                _until(client, lambda: sum(not node["down"] for node in client.get("nodes")) == nodes)
    return tuple(memory), tuple(checkpoint)


def _kill_under(cluster: LoopbackCluster, client: Client, home: Path, job_id: str, *, restored: bool) -> float:
    """Kill a raylet under a job that trains and has saved; after how long it trained, from its checkpoint or not."""

    def job() -> Mapping[str, Any]:
        told: Mapping[str, Any] = client.get(f"jobs/{job_id}")
        return told

    _until(client, lambda: job()["phase"] == "running" and job()["durable_samples"] > 0)
    client.patch(f"jobs/{job_id}", {"min_slots": 1})  # what is left is enough
    time.sleep(SETTLES_S)
    _until(client, lambda: job()["phase"] == "running")
    victim, killed_at_s = sorted(job()["placement"])[-1], time.time()
    cluster.signal(victim, signal.SIGKILL)

    def formed() -> list[float]:
        return [
            entry.at_s
            for entry in last_entries(home, -1, after=0)
            if isinstance(entry.record, r.JobFormed) and entry.record.job_id == job_id and entry.at_s > killed_at_s
            if victim not in entry.record.placement.node_names and entry.record.restored == restored
        ]

    _until(client, lambda: bool(formed()))
    client.post(f"jobs/{job_id}/cancel")
    cluster.kill(victim)
    cluster.start_node(victim)
    _until(client, lambda: job()["finished_at_s"] is not None)
    return formed()[0] - killed_at_s


def _warm_up(client: Client, home: Path, most: int) -> Path:
    """Have a job run on all slots; the folder with what jobs run."""
    code = home / "small"
    code.mkdir()
    shutil.copy(SCRIPT, code)
    _wait(client, [_submit(client, SmallJob(0.0, 512, 1), code, most, most, "first")])
    return code


def _submit(client: Client, job: SmallJob, code: Path, most: int, share: int | None, name: str = "small") -> str:
    """Submit a job with a folder that has to be brought to its nodes, as from the command line."""
    sizes = {"min_slots": 1, "max_slots": most} if share is None else {"min_slots": share, "max_slots": share}
    command = [sys.executable, SCRIPT.name, "--samples", str(job.samples), "--epochs", str(job.epochs)]
    return str(client.post("jobs", {"name": name, "command": command, "working_dir": str(code), **sizes})["id"])


def _until(client: Client, reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline_s:
            bad = [f"{job['id']} is {job['phase']}: {job['reason']}" for job in client.get("jobs")]
            raise DidNotFinish(f"something took longer than {PATIENCE_S:g} s; {'; '.join(bad)}")
        time.sleep(0.1)


def _wait(client: Client, ids: Sequence[str]) -> None:
    def jobs() -> dict[str, Mapping[str, Any]]:
        told = {job["id"]: job for job in client.get("jobs", all=True)}
        return {job_id: told[job_id] for job_id in ids}

    _until(client, lambda: all(job["finished_at_s"] is not None for job in jobs().values()))
    bad = [job for job in jobs().values() if job["phase"] != "succeeded"]
    if bad:
        raise DidNotFinish(f"job {bad[0]['id']} is {bad[0]['phase']}: {bad[0]['reason']}")


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
