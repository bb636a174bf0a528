"""How well the simulator predicts a live service: the same real jobs live, twice simulated, and with fixed shares.

One job of each kind runs beforehand, as on any service that has seen its users' jobs before. Its speed on one slot sets
the work of the measured jobs, so that they take about as long on any machine. Then these are submitted one after the
other. The simulator gets their submission times and their numbers of samples, and:

- *fitted*: profiles fitted from the live run (step times by size and batch, as a model, and the noise of the gradients
  in each epoch), and what the service knew of each job when it was submitted. All else is from the jobs that ran
  beforehand: by how much training takes longer than the model says (evaluation, ends of epochs, checkpoints), the
  pauses of rescales, and the time that processes take to start.
- *foretold*: nothing of the live run; the profiles, too, are from the jobs that ran beforehand.

The simulator makes its own decisions, under the same policy with the service's guard (which protects a job that has
just changed), and its jobs tune their batches as the training library does. With fixed shares each job has the same
number of slots from beginning to end, first come, first served.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from geminid.bench.live_jobs import BenchmarkFailed, submit, submit_at, wait_for_end, wait_for_success
from geminid.cluster import Cluster
from geminid.goodput.efficiency import GradientStats
from geminid.jobstate import JobState
from geminid.node.machine import machine
from geminid.policies.base import ClusterView, Decision, JobView
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.client import Client
from geminid.serve.guard import AroundAPolicy, Guard
from geminid.serve.livejob import LiveJob
from geminid.serve.pacing import MEASUREMENT_GAP_S
from geminid.serve.protection import settled_s
from geminid.serve.server import Options
from geminid.serve.state import ServiceState
from geminid.serve.store import Entry, last_entries
from geminid.serve.translation import facts_of
from geminid.serve.whatif import application_of, fits_of, slower, start_up_s, times_of
from geminid.sim.application import GradientTruth
from geminid.sim.simjob import SimJob, Stint
from geminid.sim.simulator import Known, Settings, Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.supervise.protocol import REPORT_S, TUNE_S
from geminid.testing.scripts import PRETENDED_ACCELERATOR
from geminid.testing.service import temporary_service

#: A number of epochs that no job reaches.
ENDLESS = 1_000_000

#: The goal for the mean error of simulated completion times.
GOAL = 0.15

#: The benchmark fails if its jobs take longer than this, in seconds.
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Beforehand:
    """What a job of each kind does before the measured jobs are submitted, in seconds.

    It trains for ``alone_s`` on one slot, of which the last ``speed_s`` give its speed (by then its batch is tuned),
    and for ``together_s`` on all slots that it gets. Then the service idles for ``calm_s``, so that no decision is due.
    """

    alone_s: float
    speed_s: float
    together_s: float
    calm_s: float


BEFOREHAND = Beforehand(alone_s=10.0, speed_s=5.0, together_s=8.0, calm_s=3.0)
QUICK_BEFOREHAND = Beforehand(alone_s=1.5, speed_s=1.5, together_s=1.0, calm_s=0.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """A script, with the samples of its epochs."""

    name: str
    command: tuple[str, ...]
    dataset_samples: int

    def job(self, epochs: int) -> dict[str, object]:
        """The job as it is submitted."""
        command = [*self.command, "--epochs", str(epochs)]
        return {
            "name": self.name,
            "command": command,
            "dataset_samples": self.dataset_samples,
            "epochs": epochs,
        }


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of the workload: when it is submitted, its kind, and about how long it takes alone on one slot."""

    at_s: float
    kind: Kind
    alone_s: float

    def epochs(self, samples_per_s: float) -> int:
        """The number of epochs that take that long at this speed."""
        return max(1, round(self.alone_s * samples_per_s / self.kind.dataset_samples))


@dataclass(frozen=True, slots=True)
class Leg:
    """A period with the same slots and batch, in seconds since the submission, and the speed in it."""

    from_s: float
    until_s: float
    slots: int
    batch: int
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One job: completion times live, simulated, foretold and with a fixed share, and what the live one is made of.

    ``error`` is of the simulation with profiles of the live run, ``foretold_error`` of the one without. Of the time
    live, the job waited ``waited_s`` for slots, its processes took ``start_up_s`` to start, its resizes paused it for
    ``paused_s``, and the rest it trained: ``slower`` times as long as its model says, where the simulation had
    ``simulated_slower``. ``course`` is how it trained.
    """

    job: str
    live_s: float
    simulated_s: float
    foretold_s: float
    fixed_s: float
    error: float
    foretold_error: float
    resizes: int
    simulated_resizes: int
    waited_s: float
    simulated_waited_s: float
    start_up_s: float
    paused_s: float
    slower: float
    simulated_slower: float
    epochs: int
    course: list[Leg]
    simulated_course: list[Leg]


@dataclass(slots=True)
class LiveRun:
    """A live run: its jobs, what was known of each when it was submitted, and its reports of gradient noise.

    ``before`` has, for each job, the job of the same kind that ran beforehand.
    """

    jobs: list[LiveJob] = field(default_factory=list)
    before: dict[str, LiveJob] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    noise: dict[str, list[tuple[float, GradientStats]]] = field(default_factory=dict)
    courses: dict[str, list[Leg]] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[Entry], ids: Sequence[str], before: Mapping[str, str] | None = None) -> LiveRun:
        """Read a service's log; ``before`` says which job ran before each of the jobs."""
        state, run, before = ServiceState(), cls(), before or {}
        wanted = {*ids, *before.values()}
        reports: dict[str, list[tuple[float, r.JobProgressed]]] = {}
        for entry in entries:
            record = entry.record
            state.apply(entry.seq, entry.at_s, record)
            if isinstance(record, r.JobSubmitted) and record.job_id in ids:
                job = state.jobs[record.job_id]
                run.known[job.id] = Known(dict(job.measured), job.gradient)
            elif isinstance(record, r.JobProgressed) and record.job_id in wanted:
                job = state.jobs[record.job_id]
                reports.setdefault(job.id, []).append((entry.at_s - job.state.submitted_at_s, record))
                if record.squared_gradient is not None:
                    stats = GradientStats.clamped(record.squared_gradient, record.variance or 0.0)
                    run.noise.setdefault(job.id, []).append((float(record.samples), stats))
        run.jobs = [state.jobs[job_id] for job_id in ids]
        run.before = {job_id: state.jobs[other] for job_id, other in before.items()}
        run.courses = {job_id: _legs(found) for job_id, found in reports.items()}
        return run


def _legs(reports: Sequence[tuple[float, r.JobProgressed]]) -> list[Leg]:
    """The periods of a job, from its reports."""
    legs: list[Leg] = []
    for (since_s, before), (at_s, now) in pairwise(reports):
        batch = now.slots * now.per_slot_batch * (now.accumulation_steps + 1)
        seconds, samples = at_s - since_s, now.samples - before.samples
        last = legs[-1] if legs else None
        if last is not None and (last.slots, last.batch) == (now.slots, batch):
            samples += round(last.samples_per_s * (last.until_s - last.from_s))
            since_s = legs.pop().from_s
            seconds = at_s - since_s
        legs.append(Leg(since_s, at_s, now.slots, batch, samples / max(seconds, 1e-9)))
    return legs


@dataclass(frozen=True, slots=True)
class MeasuredNoise(GradientTruth):
    """The noise that a job reported, by epoch; None before its first report."""

    by_epoch: tuple[GradientStats | None, ...]

    @classmethod
    def of(cls, reports: Sequence[tuple[float, GradientStats]], work: float, epochs: int) -> MeasuredNoise:
        """The last report in each epoch, or before it."""
        ends = [work * (epoch + 1) / epochs for epoch in range(epochs)]
        latest = [[stats for samples, stats in reports if samples <= end] for end in ends]
        return cls(tuple(before[-1] if before else None for before in latest))

    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """As reported then."""
        return self.by_epoch[min(epoch, len(self.by_epoch) - 1)] or GradientStats()

    def is_measured(self, epoch: int) -> bool:
        """Whether it had been reported by then."""
        return self.by_epoch[min(epoch, len(self.by_epoch) - 1)] is not None


@dataclass(frozen=True, slots=True)
class Simulated:
    """A job's result in the simulator."""

    jct_s: float
    waited_s: float
    resizes: int
    slower: float
    course: list[Leg]


@dataclass(slots=True)
class Attentive(AroundAPolicy):
    """A policy that is also asked after every interval of reports, as the service does."""

    name = "attentive"
    paper = "none"
    objective = "another policy's"

    def decide(self, view: ClusterView) -> Decision:
        """Ask the policy."""
        decision, news_s = self.policy.decide(view), view.now_s + MEASUREMENT_GAP_S
        return replace(decision, wake_at_s=news_s if decision.wake_at_s is None else min(decision.wake_at_s, news_s))


def compare(
    arrivals: Sequence[Arrival],
    slots: int,
    policy: str,
    progress: Callable[[str], None] = lambda text: None,
    beforehand: Beforehand = BEFOREHAND,
) -> list[Comparison]:
    """Run the jobs live, simulate them, and run them with fixed shares."""
    with temporary_service(Options(home=Path(), slots=slots, policy=policy, grace_s=5.0)) as (client, home):
        speeds, measured = {}, {}
        kinds = {arrival.kind.name: arrival.kind for arrival in arrivals}
        progress("starting the first process")  # it takes seconds longer than later ones
        wait_for_end(client, submit(client, arrivals[0].kind.job(1)), TIMEOUT_S)
        for kind in kinds.values():
            progress(f"measuring {kind.name}")
            measured[kind.name], speeds[kind.name] = _measure(client, home, kind, slots, beforehand)
        epochs = [arrival.epochs(speeds[arrival.kind.name]) for arrival in arrivals]
        time.sleep(beforehand.calm_s)
        progress(f"live under {policy}")
        live = _run(client, home, arrivals, epochs, measured)
    progress("simulating")
    simulated, foretold = (simulate(live, machine(slots), policy, foretell=foretell) for foretell in (False, True))
    progress("live with fixed shares")
    share = max(1, slots // len(arrivals))
    with temporary_service(Options(home=Path(), slots=slots, policy="fifo", grace_s=5.0)) as (client, home):
        fixed = _run(client, home, arrivals, epochs, {}, fixed_slots=share)
    return [
        Comparison(
            job=f"{job.id} {job.spec.name}",
            live_s=job.state.jct_s or 0.0,
            simulated_s=simulated[job.id].jct_s,
            foretold_s=foretold[job.id].jct_s,
            fixed_s=other.state.jct_s or 0.0,
            error=abs(simulated[job.id].jct_s / (job.state.jct_s or 1.0) - 1.0),
            foretold_error=abs(foretold[job.id].jct_s / (job.state.jct_s or 1.0) - 1.0),
            resizes=job.state.rescales,
            simulated_resizes=simulated[job.id].resizes,
            waited_s=_waited_s(job),
            simulated_waited_s=simulated[job.id].waited_s,
            start_up_s=start_up_s(job) or 0.0,
            paused_s=sum(job.pauses_s),
            slower=slower(times_of(job, fits_of(job))),
            simulated_slower=simulated[job.id].slower,
            epochs=count,
            course=live.courses.get(job.id, []),
            simulated_course=simulated[job.id].course,
        )
        for job, other, count in zip(live.jobs, fixed.jobs, epochs, strict=True)
    ]


def _waited_s(job: LiveJob) -> float:
    """How long a job waited for its first slots."""
    begun = (line.at_s for line in job.story if line.text.startswith("starting on"))
    return next(begun, job.state.submitted_at_s) - job.state.submitted_at_s


def _run(
    client: Client,
    home: Path,
    arrivals: Sequence[Arrival],
    epochs: Sequence[int],
    measured: Mapping[str, str],
    fixed_slots: int | None = None,
) -> LiveRun:
    """Run the jobs in a service; ``measured`` are the jobs that ran beforehand, by kind."""
    fixed: dict[str, object] = {} if fixed_slots is None else {"slots": fixed_slots}
    jobs = [arrival.kind.job(count) | fixed for arrival, count in zip(arrivals, epochs, strict=True)]
    ids = submit_at(zip((arrival.at_s for arrival in arrivals), jobs, strict=True), client)
    wait_for_success(client, ids, TIMEOUT_S)
    kinds = zip(ids, (arrival.kind.name for arrival in arrivals), strict=True)
    before = {job_id: measured[kind] for job_id, kind in kinds if kind in measured}
    return LiveRun.of(last_entries(home, -1, 0), ids, before)


def _measure(client: Client, home: Path, kind: Kind, slots: int, beforehand: Beforehand) -> tuple[str, float]:
    """Run a job of a kind on one slot and then on more; its id, and its samples per second on one slot."""
    job_id = submit(client, kind.job(ENDLESS) | {"max_slots": 1})
    deadline_s = time.monotonic() + TIMEOUT_S
    reports: list[tuple[float, int]] = []
    while not reports or reports[-1][0] < reports[0][0] + beforehand.alone_s:
        job = client.get(f"jobs/{job_id}")
        if job["finished_at_s"] is not None or time.monotonic() > deadline_s:
            raise BenchmarkFailed(f"job {job_id} is {job['phase']} and was to be measured: {job['reason']}")
        time.sleep(0.5)
        found = last_entries(home, -1, 0, job_id)
        reports = [(one.at_s, one.record.samples) for one in found if isinstance(one.record, r.JobProgressed)]
    if slots > 1:
        client.patch(f"jobs/{job_id}", {"max_slots": slots})
        time.sleep(beforehand.together_s)
    client.post(f"jobs/{job_id}/cancel")
    wait_for_end(client, job_id, TIMEOUT_S)
    until_s, samples = reports[-1]
    since_s, before = next(report for report in reports if report[0] >= until_s - beforehand.speed_s)
    return job_id, max((samples - before) / (until_s - since_s), 1e-9)


def _settled_s(view: JobView) -> float:
    """Until when a simulated job keeps slots that it has just got, as in the service."""
    return settled_s(max(view.since_s, view.paused_until_s), view.facts.rescale_s)


def simulate(live: LiveRun, cluster: Cluster, policy: str, *, foretell: bool = False) -> dict[str, Simulated]:
    """Simulate the same jobs, with their own profiles or, to ``foretell``, with those of the earlier jobs."""
    first_s = min(job.state.submitted_at_s for job in live.jobs)
    applications, traces, known = {}, [], dict(live.known)
    for job in live.jobs:
        fresh = replace(job, state=JobState.submitted(job_id=job.id, spec=job.spec, at_s=job.state.submitted_at_s))
        fresh = replace(fresh, samples=0)
        before = live.before[job.id]
        like = replace(before, state=fresh.state, limits=job.limits, samples=0)
        earlier, own = (application_of(one, fresh, cluster, 0.0) for one in (like, job))
        work, epochs = job.work_samples, max(1, round(job.spec.epochs or 1))
        if earlier is None or own is None or work is None or not job.samples:
            raise BenchmarkFailed(f"job {job.id} ended before its speed was measured: give it more to do")
        if foretell:
            known[job.id] = Known(dict(before.measured), before.gradient)
        noise = live.noise.get(before.id if foretell else job.id, [])
        applications[job.id] = replace(
            earlier,
            truth=earlier.truth if foretell else own.truth,
            progress_steps=work / own.initial_batch * np.arange(1, epochs + 1) / epochs,
            gradient=MeasuredNoise.of(noise, work, epochs),
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
    restrained = Attentive(Guard(make_policy(policy), protected=_settled_s))
    workload = Workload("the live jobs", tuple(traces))
    settings = Settings(tune_s=TUNE_S, report_s=REPORT_S)
    result = Simulator(workload, applications, cluster, restrained, settings, known=known).run()
    return {
        job.facts.id: Simulated(
            jct_s=(job.completed_s or 0.0) - job.facts.submitted_s,
            waited_s=job.stints[0].start_s - job.facts.submitted_s,
            resizes=sum(a.allocation != b.allocation for a, b in pairwise(job.stints)),
            slower=applications[job.facts.id].speed_divisor,
            course=[_leg(job, stint) for stint in job.stints],
        )
        for job in result.jobs
    }


def _leg(job: SimJob, stint: Stint) -> Leg:
    """A stint of a simulated job as a period."""
    assert job.application is not None
    app, batch = job.application.value, stint.batch
    assert batch is not None
    accumulation_s, step_s = app.truth[stint.gpu_type].step_times(stint.placement, batch.per_slot)
    speed = batch.total / ((batch.accumulation * accumulation_s + step_s) * app.speed_divisor)
    submitted_s, until_s = job.facts.submitted_s, stint.end_s if stint.end_s is not None else stint.start_s
    return Leg(stint.start_s - submitted_s, until_s - submitted_s, sum(stint.placement), batch.total, speed)


def example_jobs(examples: Path) -> list[Arrival]:
    """Four jobs of three kinds that overlap.

    Whenever one arrives, the remaining work of the others differs by a third or more. Otherwise a few percent of a
    job's speed would decide who waits, which no simulator can predict.
    """
    kinds = {
        name: Kind(name, (sys.executable, str(examples / f"{name}.py")), samples)
        for name, samples in (("images", 4096), ("recommender", 20_000), ("language", 2048))
    }
    made = ((0.0, "images", 55.0), (3.0, "recommender", 32.0), (8.0, "language", 20.0), (14.0, "images", 32.0))
    return [Arrival(at_s, kinds[name], alone_s) for at_s, name, alone_s in made]


def quick_jobs() -> list[Arrival]:
    """Two short jobs of one kind, for a quick run."""
    (kind,) = {arrival.kind for arrival in waiting_jobs() if arrival.kind.name == "wide"}
    kind = replace(kind, command=(*kind.command, "--samples", "200"), dataset_samples=200)
    return [Arrival(0.0, kind, 1.2), Arrival(0.3, kind, 1.2)]


def waiting_jobs() -> list[Arrival]:
    """Four jobs of three kinds on pretended accelerators (``testing/scripts/pretended_accelerator.py``).

    They scale well, a little and hardly: an eighth, a quarter and half of a step on one slot is the same on more slots.
    """
    script = (sys.executable, str(PRETENDED_ACCELERATOR))
    kinds = {
        name: Kind(name, (*script, "--sample-ms", str(sample_ms), "--step-ms", str(step_ms)), 600)
        for name, sample_ms, step_ms in (("wide", 3.5, 16.0), ("middle", 3.0, 32.0), ("narrow", 2.0, 64.0))
    }
    made = ((0.0, "wide", 55.0), (3.0, "narrow", 32.0), (8.0, "middle", 20.0), (14.0, "wide", 32.0))
    return [Arrival(at_s, kinds[name], alone_s) for at_s, name, alone_s in made]
