"""The same real jobs three times: live under a policy, in the simulator with what they measured, and with fixed shares.

What the simulator is given is what was measured in the live run, apart from who had which slots when and when jobs
ended: when jobs came and how much they had to do; their step times by size and batch, as a model fitted to them; how
much longer training takes than its steps do (evaluation, ends of epochs, checkpoints); how noisy their gradients were
in each epoch; what their resizes paused and how long their first processes took to start; and what the service knew of
each job when it came, from those like it before. It decides for itself who gets what, under the same policy with the
service's own restraint (a job that has just changed is left alone for a while). One short job of each kind runs
beforehand, as on any service that has seen its users' jobs before. With fixed shares each job has its part of the slots
from beginning to end, first come, first served.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from geminid.cluster import Cluster
from geminid.goodput.efficiency import GradientStats
from geminid.jobstate import JobState
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.client import Client
from geminid.serve.executors.machine import machine
from geminid.serve.guard import Guard
from geminid.serve.planner import settled_s
from geminid.serve.server import Options
from geminid.serve.state import LiveJob, ServiceState
from geminid.serve.store import Entry, last_entries
from geminid.serve.temporary import temporary_service
from geminid.serve.translation import facts_of
from geminid.serve.whatif import application_of
from geminid.sim.application import GradientTruth
from geminid.sim.simulator import Known, Settings, Simulator
from geminid.sim.workload import TraceJob, Workload

#: What each kind of job trains beforehand, to be measured.
WARM_UP_EPOCHS = "3"

#: The service is left alone for so long before the jobs come, so that it owes nobody a decision.
CALM_S = 3.0

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
    """One job: completion times live, simulated and with a fixed share, and what the live one is made of.

    ``error`` is of the simulation. Of the time live, the job waited ``waited_s`` for slots, its processes took
    ``start_up_s`` to start, its resizes paused it for ``paused_s``, and the rest it trained: ``slower`` times as long
    as its steps alone took.
    """

    job: str
    live_s: float
    simulated_s: float
    fixed_s: float
    error: float
    resizes: int
    simulated_resizes: int
    waited_s: float
    simulated_waited_s: float
    start_up_s: float
    paused_s: float
    slower: float


class DidNotFinish(Exception):
    """A job failed or took too long; one sentence says which."""


@dataclass(slots=True)
class LiveRun:
    """What a live run left: its jobs, what was known of each when it came, and how noisy it was along the way."""

    jobs: list[LiveJob] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    noise: dict[str, list[tuple[float, GradientStats]]] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[Entry], ids: Sequence[str]) -> LiveRun:
        """Read a service's log."""
        state, run = ServiceState(), cls()
        for entry in entries:
            record = entry.record
            state.apply(entry.seq, entry.at_s, record)
            if isinstance(record, r.JobSubmitted) and record.job_id in ids:
                job = state.jobs[record.job_id]
                run.known[job.id] = Known(dict(job.measured), job.gradient)
            elif isinstance(record, r.JobProgressed) and record.squared_gradient is not None:
                stats = GradientStats.clamped(record.squared_gradient, record.variance or 0.0)
                run.noise.setdefault(record.job_id, []).append((float(record.samples), stats))
        run.jobs = [state.jobs[job_id] for job_id in ids]
        return run


@dataclass(frozen=True, slots=True)
class MeasuredNoise(GradientTruth):
    """The noise that a job reported, by epoch."""

    by_epoch: tuple[GradientStats, ...]

    @classmethod
    def of(cls, reports: Sequence[tuple[float, GradientStats]], work: float, epochs: int) -> MeasuredNoise:
        """The last report in each epoch, or before it; for the first ones, the first report."""
        known = list(reports) or [(0.0, GradientStats())]
        ends = [work * (epoch + 1) / epochs for epoch in range(epochs)]
        latest = [[stats for samples, stats in known if samples <= end] for end in ends]
        return cls(tuple(before[-1] if before else known[0][1] for before in latest))

    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """As reported then."""
        return self.by_epoch[min(epoch, len(self.by_epoch) - 1)]


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of a job in the simulator."""

    jct_s: float
    waited_s: float
    resizes: int


def compare(
    arrivals: Sequence[Arrival], slots: int, policy: str, progress: Callable[[str], None] = lambda text: None
) -> list[Comparison]:
    """Run the jobs live, simulate them, and run them with fixed shares."""
    progress(f"live under {policy}")
    live = run_live(arrivals, slots, policy)
    progress("simulating")
    simulated = simulate(live, machine(slots), policy)
    progress("live with fixed shares")
    fixed = run_live(arrivals, slots, "fifo", fixed_slots=max(1, slots // len(arrivals)))
    return [
        Comparison(
            job=f"{job.id} {job.spec.name}",
            live_s=job.state.jct_s or 0.0,
            simulated_s=simulated[job.id].jct_s,
            fixed_s=other.state.jct_s or 0.0,
            error=abs(simulated[job.id].jct_s / (job.state.jct_s or 1.0) - 1.0),
            resizes=job.state.rescales,
            simulated_resizes=simulated[job.id].resizes,
            waited_s=_since(job, "starting on"),
            simulated_waited_s=simulated[job.id].waited_s,
            start_up_s=start_up_s(job),
            paused_s=sum(job.pauses_s),
            slower=job.slower,
        )
        for job, other in zip(live.jobs, fixed.jobs, strict=True)
    ]


def start_up_s(job: LiveJob) -> float:
    """How long a job's processes took from their first start to training."""
    return _since(job, "training on") - _since(job, "starting on")


def _since(job: LiveJob, text: str) -> float:
    """When the first line of a job's story that begins like this was told, after its submission."""
    found = next((line.at_s for line in job.story if line.text.startswith(text)), job.state.submitted_at_s)
    return found - job.state.submitted_at_s


def run_live(arrivals: Sequence[Arrival], slots: int, policy: str, fixed_slots: int | None = None) -> LiveRun:
    """Run the jobs on a service of their own."""
    with temporary_service(Options(home=Path(), slots=slots, policy=policy, grace_s=5.0)) as (client, home):
        for kind in {arrival.name: arrival for arrival in arrivals}.values():
            _warm_up(client, kind)
        time.sleep(CALM_S)
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
        return LiveRun.of(last_entries(home, -1, 0), ids)


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


def simulate(live: LiveRun, cluster: Cluster, policy: str) -> dict[str, Simulated]:
    """The same jobs in the simulator."""
    first_s = min(job.state.submitted_at_s for job in live.jobs)
    applications, traces = {}, []
    for job in live.jobs:
        fresh = JobState.submitted(job_id=job.id, spec=job.spec, at_s=job.state.submitted_at_s)
        application = application_of(job, replace(job, state=fresh, samples=0), cluster, 0.0)
        work, epochs = job.work_samples, max(1, round(job.spec.epochs or 1))
        if application is None or work is None or not job.samples:
            raise DidNotFinish(f"job {job.id} ended before its speed was measured: give it more to do")
        useful = work * min(job.state.progress_samples / job.samples, 1.0)
        applications[job.id] = replace(
            application,
            progress_steps=useful / application.initial_batch * np.arange(1, epochs + 1) / epochs,
            gradient=MeasuredNoise.of(live.noise.get(job.id, []), work, epochs),
            start_up_s=start_up_s(job),
        )
        traces.append(
            TraceJob(
                name=job.id,
                submit_s=job.state.submitted_at_s - first_s,
                requested_slots=1,
                application=job.id,
                adaptivity=facts_of(job, cluster).adaptivity,
            )
        )
    traces.sort(key=lambda trace: trace.submit_s)
    restrained = Guard(make_policy(policy), protected=settled_s)
    workload = Workload("the live jobs", tuple(traces))
    result = Simulator(workload, applications, cluster, restrained, Settings(), known=live.known).run()
    return {
        job.facts.id: Simulated(
            jct_s=(job.completed_s or 0.0) - job.facts.submitted_s,
            waited_s=job.stints[0].start_s - job.facts.submitted_s,
            resizes=sum(a.allocation != b.allocation for a, b in pairwise(job.stints)),
        )
        for job in result.jobs
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
