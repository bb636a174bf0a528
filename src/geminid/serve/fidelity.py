"""The same real jobs three times: live under a policy, in the simulator with what they measured, and with fixed shares.

The simulator is given when jobs came, how much they had to do, the step times and the noise that they measured in the
live run, what their resizes cost, and how long their processes took to start; it decides for itself who gets what. One
short job of each kind runs beforehand, so that the service knows as much as the simulator when the jobs come. With
fixed shares each job has its part of the slots from beginning to end, first come, first served.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from geminid.cluster import Cluster
from geminid.jobstate import JobState
from geminid.policies.registry import make_policy
from geminid.serve.client import Client
from geminid.serve.executors.machine import machine
from geminid.serve.server import Options
from geminid.serve.state import LiveJob, ServiceState
from geminid.serve.store import last_entries
from geminid.serve.temporary import temporary_service
from geminid.serve.translation import facts_of
from geminid.serve.whatif import application_of
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload

#: What each kind of job trains beforehand, to be measured.
WARM_UP_EPOCHS = "3"

#: A run that takes longer than this is given up.
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of the workload: when it comes, what it runs, and how much that is."""

    at_s: float
    name: str
    command: tuple[str, ...]
    dataset_samples: int
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One job: completion times live, simulated and with a fixed share. ``error`` is of the simulation."""

    job: str
    live_s: float
    simulated_s: float
    fixed_s: float
    error: float
    resizes: int
    start_up_s: float


class DidNotFinish(Exception):
    """A job failed or took too long; one sentence says which."""


def compare(
    arrivals: Sequence[Arrival], slots: int, policy: str, progress: Callable[[str], None] = lambda text: None
) -> list[Comparison]:
    """Run the jobs live, simulate them, and run them with fixed shares."""
    progress(f"live under {policy}")
    live = _run(arrivals, slots, policy)
    progress("simulating")
    simulated = _simulate(live, machine(slots), policy)
    progress("live with fixed shares")
    fixed = _run(arrivals, slots, "fifo", fixed_slots=max(1, slots // len(arrivals)))
    return [
        Comparison(
            job=f"{job.id} {job.spec.name}",
            live_s=job.state.jct_s or 0.0,
            simulated_s=simulated[job.id],
            fixed_s=other.state.jct_s or 0.0,
            error=abs(simulated[job.id] / (job.state.jct_s or 1.0) - 1.0),
            resizes=job.state.rescales,
            start_up_s=start_up_s(job),
        )
        for job, other in zip(live, fixed, strict=True)
    ]


def start_up_s(job: LiveJob) -> float:
    """How long a job's processes took from their first start to training."""
    lines = [line for line in job.story if line.text.startswith(("starting on", "training on"))]
    started = next((line.at_s for line in lines if line.text.startswith("starting on")), 0.0)
    return next((line.at_s for line in lines if line.text.startswith("training on")), started) - started


def _run(arrivals: Sequence[Arrival], slots: int, policy: str, fixed_slots: int | None = None) -> list[LiveJob]:
    """The jobs as they were when all were over."""
    options = Options(home=Path(), slots=slots, policy=policy)
    with temporary_service(options) as (client, home):
        for arrival in {arrival.name: arrival for arrival in arrivals}.values():
            _warm_up(client, arrival)
        began = time.monotonic()
        ids = []
        for arrival in arrivals:
            time.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
            command = [*arrival.command, "--epochs", str(arrival.epochs)]
            body: dict[str, object] = {"name": arrival.name, "command": command}
            body |= {"dataset_samples": arrival.dataset_samples, "epochs": arrival.epochs}
            if fixed_slots is not None:
                body["slots"] = fixed_slots
            ids.append(str(client.post("jobs", body)["id"]))
        for job_id in ids:
            _wait(client, job_id, began + PATIENCE_S)
        state = ServiceState()
        for entry in last_entries(home, -1, 0):
            state.apply(entry.seq, entry.at_s, entry.record)
    return [state.jobs[job_id] for job_id in ids]


def _warm_up(client: Client, arrival: Arrival) -> None:
    """Have one job of a kind measured before the clock starts: what the simulator knows, the service knows as well."""
    body = {"name": arrival.name, "command": [*arrival.command, "--epochs", WARM_UP_EPOCHS]}
    job_id = str(client.post("jobs", body)["id"])
    _wait(client, job_id, time.monotonic() + PATIENCE_S)


def _wait(client: Client, job_id: str, deadline_s: float) -> None:
    while True:
        job = client.get(f"jobs/{job_id}", wait_s=20.0)
        if job["finished_at_s"] is not None:
            break
        if time.monotonic() > deadline_s:
            raise DidNotFinish(f"job {job_id} was still {job['phase']} after {PATIENCE_S:g} s")
    if job["phase"] != "succeeded":
        raise DidNotFinish(f"job {job_id} is {job['phase']}: {job['reason']}")


def _simulate(live: Sequence[LiveJob], cluster: Cluster, policy: str) -> dict[str, float]:
    """Completion times in the simulator, start-up included."""
    first_s = min(job.state.submitted_at_s for job in live)
    applications, traces = {}, []
    for job in live:
        fresh = JobState.submitted(job_id=job.id, spec=job.spec, at_s=job.state.submitted_at_s)
        application = application_of(job, replace(job, state=fresh), cluster, 0.0)
        if application is None:
            raise DidNotFinish(f"job {job.id} ended before its speed was measured: give it more to do")
        applications[job.id] = application
        traces.append(
            TraceJob(
                name=job.id,
                submit_s=job.state.submitted_at_s - first_s + start_up_s(job),
                requested_slots=1,
                application=job.id,
                adaptivity=facts_of(job, cluster).adaptivity,
            )
        )
    traces.sort(key=lambda trace: trace.submit_s)
    workload = Workload("the live jobs", tuple(traces))
    result = Simulator(workload, applications, cluster, make_policy(policy), Settings()).run()
    starts = {job.id: start_up_s(job) for job in live}
    return {
        job.facts.id: (job.completed_s or 0.0) - job.facts.submitted_s + starts[job.facts.id] for job in result.jobs
    }


def example_jobs(examples: Path) -> list[Arrival]:
    """Four jobs of three kinds that overlap."""
    made = (
        (0.0, "images", 4096, 16),
        (3.0, "recommender", 20_000, 30),
        (8.0, "language", 2048, 8),
        (14.0, "images", 4096, 8),
    )
    return [
        Arrival(at_s, name, (sys.executable, str(examples / f"{name}.py")), samples, epochs)
        for at_s, name, samples, epochs in made
    ]
