"""The same real jobs live under a policy, twice in the simulator, and live with fixed shares.

One job of each kind runs beforehand, as on any service that has seen its users' jobs before; how much the jobs have to
do follows from its speed on one slot, so that they take about as long on any machine. Then they come one after the
other, live. The simulator is told when they came and how many samples they had to train, and besides:

- *fitted*: their profiles, fitted from the live run: step times by size and batch, as a model, and how noisy their
  gradients were in each epoch; and what the service knew of each job when it came. All else is from the jobs that ran
  beforehand: by how much training takes longer than that model says (evaluation, ends of epochs, checkpoints), what
  resizes pause, and how long processes take to start.
- *foretold*: nothing of the live run; the profiles, too, are from the jobs that ran beforehand.

It decides for itself who gets what, under the same policy with the service's own restraint (a job that has just changed
is left alone for a while), and its jobs tune their batches as the training library does. With fixed shares each job has
its part of the slots from beginning to end, first come, first served.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from geminid.cluster import Cluster
from geminid.goodput.efficiency import GradientStats
from geminid.jobstate import JobState
from geminid.policies.base import ClusterView, Decision
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.client import Client
from geminid.serve.executors.machine import machine
from geminid.serve.guard import AroundAPolicy, Guard
from geminid.serve.livejob import LiveJob
from geminid.serve.planner import NEWS_S, settled_s
from geminid.serve.server import Options
from geminid.serve.state import ServiceState
from geminid.serve.store import Entry, last_entries
from geminid.serve.temporary import temporary_service
from geminid.serve.translation import facts_of
from geminid.serve.whatif import application_of, fits_of, slower, start_up_s, times_of
from geminid.sim.application import GradientTruth
from geminid.sim.simjob import SimJob, Stint
from geminid.sim.simulator import Known, Settings, Simulator
from geminid.sim.workload import TraceJob, Workload
from geminid.train.messages import REPORT_S, TUNE_S

#: Beforehand a job of each kind trains so long on one slot, to be measured, and then so long on all that it gets.
ALONE_S, TOGETHER_S = 10.0, 8.0

#: Its speed on one slot is that of the last so many seconds there: by then it has found its batch.
SPEED_S = 5.0

#: So many epochs never end.
ENDLESS = 1_000_000

#: The service is left alone for so long before the jobs come, so that it owes nobody a decision.
CALM_S = 3.0

#: The simulation's completion times are to be off by less than this on average.
GOAL = 0.15

#: A run that takes longer than this is given up.
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A script, with the samples of its epochs."""

    name: str
    command: tuple[str, ...]
    dataset_samples: int

    def job(self, epochs: int) -> dict[str, object]:
        """What is to be submitted."""
        command = [*self.command, "--epochs", str(epochs)]
        return {
            "name": self.name,
            "command": command,
            "dataset_samples": self.dataset_samples,
            "epochs": epochs,
        }


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of the workload: when it comes, what it runs, and about how long that takes alone on one slot."""

    at_s: float
    kind: Kind
    alone_s: float

    def epochs(self, samples_per_s: float) -> int:
        """As many as that takes at this speed."""
        return max(1, round(self.alone_s * samples_per_s / self.kind.dataset_samples))


@dataclass(frozen=True, slots=True)
class Leg:
    """For how long a job trained in one way, since its submission, and how fast."""

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


class DidNotFinish(Exception):
    """A job failed or took too long; one sentence says which."""


@dataclass(slots=True)
class LiveRun:
    """What a live run left: its jobs, what was known of each when it came, and how noisy it was along the way.

    ``before`` are the jobs of the same kinds that ran beforehand, by job.
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
        told = {*ids, *before.values()}
        reports: dict[str, list[tuple[float, r.JobProgressed]]] = {}
        for entry in entries:
            record = entry.record
            state.apply(entry.seq, entry.at_s, record)
            if isinstance(record, r.JobSubmitted) and record.job_id in ids:
                job = state.jobs[record.job_id]
                run.known[job.id] = Known(dict(job.measured), job.gradient)
            elif isinstance(record, r.JobProgressed) and record.job_id in told:
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
    """How a job trained, by its reports."""
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
    """The noise that a job reported, by epoch; None where it did not know yet."""

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
    """What became of a job in the simulator."""

    jct_s: float
    waited_s: float
    resizes: int
    slower: float
    course: list[Leg]


@dataclass(slots=True)
class Attentive(AroundAPolicy):
    """Another policy that is asked again when jobs have had the time to report, as the service does."""

    name = "attentive"
    paper = "none"
    objective = "another policy's"

    def decide(self, view: ClusterView) -> Decision:
        """Ask the policy."""
        decision, news_s = self.policy.decide(view), view.now_s + NEWS_S
        return replace(decision, wake_at_s=news_s if decision.wake_at_s is None else min(decision.wake_at_s, news_s))


def compare(
    arrivals: Sequence[Arrival], slots: int, policy: str, progress: Callable[[str], None] = lambda text: None
) -> list[Comparison]:
    """Run the jobs live, simulate them, and run them with fixed shares."""
    with temporary_service(Options(home=Path(), slots=slots, policy=policy, grace_s=5.0)) as (client, home):
        speeds, measured = {}, {}
        kinds = {arrival.kind.name: arrival.kind for arrival in arrivals}
        progress("starting the first process")  # it takes seconds that no later one does
        _ended(client, str(client.post("jobs", arrivals[0].kind.job(1))["id"]), time.monotonic() + PATIENCE_S)
        for kind in kinds.values():
            progress(f"measuring {kind.name}")
            measured[kind.name], speeds[kind.name] = _measure(client, home, kind, slots)
        epochs = [arrival.epochs(speeds[arrival.kind.name]) for arrival in arrivals]
        time.sleep(CALM_S)
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
    """Have a service run the jobs as they come; ``measured`` are the jobs that ran beforehand, by kind."""
    began, ids = time.monotonic(), []
    for arrival, count in zip(arrivals, epochs, strict=True):
        time.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
        body = arrival.kind.job(count) | ({} if fixed_slots is None else {"slots": fixed_slots})
        ids.append(str(client.post("jobs", body)["id"]))
    for job_id in ids:
        if (job := _ended(client, job_id, began + PATIENCE_S))["phase"] != "succeeded":
            raise DidNotFinish(f"job {job_id} is {job['phase']}: {job['reason']}")
    kinds = zip(ids, (arrival.kind.name for arrival in arrivals), strict=True)
    before = {job_id: measured[kind] for job_id, kind in kinds if kind in measured}
    return LiveRun.of(last_entries(home, -1, 0), ids, before)


def _measure(client: Client, home: Path, kind: Kind, slots: int) -> tuple[str, float]:
    """Have a job of a kind measured, on one slot and on more: which, and how many samples a second it trains on one."""
    job_id = str(client.post("jobs", kind.job(ENDLESS) | {"max_slots": 1})["id"])
    deadline_s = time.monotonic() + PATIENCE_S
    reports: list[tuple[float, int]] = []
    while not reports or reports[-1][0] < reports[0][0] + ALONE_S:
        job = client.get(f"jobs/{job_id}")
        if job["finished_at_s"] is not None or time.monotonic() > deadline_s:
            raise DidNotFinish(f"job {job_id} is {job['phase']} and was to be measured: {job['reason']}")
        time.sleep(0.5)
        found = last_entries(home, -1, 0, job_id)
        reports = [(one.at_s, one.record.samples) for one in found if isinstance(one.record, r.JobProgressed)]
    if slots > 1:
        client.patch(f"jobs/{job_id}", {"max_slots": slots})
        time.sleep(TOGETHER_S)
    client.post(f"jobs/{job_id}/cancel")
    _ended(client, job_id, deadline_s)
    until_s, samples = reports[-1]
    since_s, before = next(report for report in reports if report[0] >= until_s - SPEED_S)
    return job_id, max((samples - before) / (until_s - since_s), 1e-9)


def _ended(client: Client, job_id: str, deadline_s: float) -> dict[str, Any]:
    while True:
        job: dict[str, Any] = client.get(f"jobs/{job_id}", wait_s=20.0)
        if job["finished_at_s"] is not None:
            return job
        if time.monotonic() > deadline_s:
            raise DidNotFinish(f"job {job_id} was still {job['phase']} after {PATIENCE_S:g} s")


def simulate(live: LiveRun, cluster: Cluster, policy: str, *, foretell: bool = False) -> dict[str, Simulated]:
    """The same jobs in the simulator, with their profiles or, to ``foretell``, with those of the jobs before them."""
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
            raise DidNotFinish(f"job {job.id} ended before its speed was measured: give it more to do")
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
    restrained = Attentive(Guard(make_policy(policy), protected=settled_s))
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
    """How a job trained in a stint of a simulation."""
    assert job.application is not None
    app, batch = job.application.value, stint.batch
    assert batch is not None
    accumulation_s, step_s = app.truth[stint.gpu_type].step_times(stint.placement, batch.per_slot)
    speed = batch.total / ((batch.accumulation * accumulation_s + step_s) * app.speed_divisor)
    submitted_s, until_s = job.facts.submitted_s, stint.end_s if stint.end_s is not None else stint.start_s
    return Leg(stint.start_s - submitted_s, until_s - submitted_s, sum(stint.placement), batch.total, speed)


def example_jobs(examples: Path) -> list[Arrival]:
    """Four jobs of three kinds that overlap.

    Whenever one comes, what the others have left differs by a third or more: who is to wait for whom must not hang on a
    few percent of somebody's speed, or the simulator is asked to foretell how a coin falls.
    """
    kinds = {
        name: Kind(name, (sys.executable, str(examples / f"{name}.py")), samples)
        for name, samples in (("images", 4096), ("recommender", 20_000), ("language", 2048))
    }
    made = ((0.0, "images", 55.0), (3.0, "recommender", 32.0), (8.0, "language", 20.0), (14.0, "images", 32.0))
    return [Arrival(at_s, kinds[name], alone_s) for at_s, name, alone_s in made]


def waiting_jobs() -> list[Arrival]:
    """Four jobs of three kinds on accelerators that are pretended (``bench/scripts/waiting.py``).

    They scale well, a little and hardly: on one slot, an eighth, a quarter and half of a step do not get shorter with
    more.
    """
    script = str(Path(__file__).parents[1] / "bench" / "scripts" / "waiting.py")
    kinds = {
        name: Kind(name, (sys.executable, script, "--sample-ms", str(sample_ms), "--step-ms", str(step_ms)), 600)
        for name, sample_ms, step_ms in (("wide", 3.5, 16.0), ("middle", 3.0, 32.0), ("narrow", 2.0, 64.0))
    }
    made = ((0.0, "wide", 55.0), (3.0, "narrow", 32.0), (8.0, "middle", 20.0), (14.0, "wide", 32.0))
    return [Arrival(at_s, kinds[name], alone_s) for at_s, name, alone_s in made]
