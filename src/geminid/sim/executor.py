"""The simulated executor: carries out the engine's commands on simulated jobs, in virtual time.

It schedules what happens to running jobs by themselves (the end of an epoch, the next look for a better batch) on the
agenda. When a job completes, its scheduled action returns the event that the engine receives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from geminid.engine.commands import Command, Limit, Rescale, Share, Start, Stop
from geminid.engine.engine import Engine
from geminid.engine.events import Completed, Event, Reported, Revised
from geminid.engine.models import ModelKeeper
from geminid.goodput.profile import Observation
from geminid.job import Adaptivity
from geminid.policies.base import Allocation
from geminid.sim.agenda import Agenda, Order
from geminid.sim.contention import Uplinks
from geminid.sim.settings import Settings
from geminid.sim.sharing import speed_beside
from geminid.sim.simjob import SimJob, Stint
from geminid.sim.tuner import Batch

#: A job is complete when less than this fraction of its work is left.
ROUNDING = 1e-9


class SimulatedExecutor:
    """Runs simulated jobs as the engine commands, and lets them tune their batch sizes."""

    def __init__(self, jobs: Mapping[str, SimJob], engine: Engine, settings: Settings, agenda: Agenda) -> None:
        self.jobs = jobs
        self.engine = engine
        self.cluster = engine.cluster
        self.policy = engine.policy
        self.settings = settings
        self.agenda = agenda
        self.running: dict[str, SimJob] = {}
        self.uplinks = Uplinks(engine.cluster)
        self.exactly_known: set[str] = set()  # jobs whose throughput model the scheduler knows without measurements
        self._own_models = engine.models if settings.tune_s is None else ModelKeeper(settings.model)
        self._starts: Counter[str] = Counter()
        self._errors = np.random.default_rng([settings.seed, 2])

    # --- Commands ---

    def execute(self, command: Command) -> None:
        """Carry out one command of the engine now."""
        job = self._up_to_date(self.jobs[command.job_id])
        self.uplinks.note_change(job)
        match command:
            case Start(allocation=allocation) | Rescale(allocation=allocation):
                self._learn(job)
                stint = self.begin(job, self.cluster.nodes[allocation[0][0]].gpu_type, allocation, job.pause_s)
                if stint.crossing.uplinks:
                    self.agenda.at(stint.works_from_s, Order.JOB, partial(self.uplinks.note_change, job))
                self._declare_work(job)
                if isinstance(command, Start):
                    self._start_tuning(job, stint)
            case Share(partner=partner):
                self._share(job, partner)
            case Limit(cap=cap, memory_cap=memory_cap):
                job.limit(self.agenda.now_s, cap, memory_cap)
                self._update_speeds(job)
            case Stop(lost=lost):
                if lost:
                    job.crash(self.agenda.now_s)
                else:
                    job.finish_stint(self.agenda.now_s)
                self.running.pop(job.facts.id, None)

    def begin(self, job: SimJob, gpu_type: str, allocation: Allocation, pause_s: float) -> Stint:
        """Let a job run on these slots after a pause."""
        batch = self._batch(job, gpu_type, allocation)
        steps_per_s = self._steps_per_s(job, gpu_type, allocation)
        crossing = self.uplinks.crossing(allocation)
        stint = job.begin(self.agenda.now_s, pause_s, allocation, gpu_type, batch, steps_per_s, crossing)
        if job.facts.plan_speeds is not None:
            stint.plan = job.facts.plan_speeds.plan(stint.placement)
        self.running[job.facts.id] = job
        self._schedule(job)
        return stint

    def after_commands(self) -> None:
        """Update the interference between distributed jobs; called when all commands of a decision are executed."""
        if self.settings.interference:
            self._update_interference()

    def _up_to_date(self, job: SimJob) -> SimJob:
        job.advance(self.agenda.now_s)
        return job

    def _declare_work(self, job: SimJob) -> None:
        """A job from before the simulation that has not declared its work does so when it starts."""
        if job.done_before is not None and job.application is not None and job.facts.work is None:
            job.facts = replace(job.facts, work=job.done_before + job.work)
            self.engine.take(Revised(self.agenda.now_s, job.facts))

    def _steps_per_s(self, job: SimJob, gpu_type: str, allocation: Allocation) -> float:
        """Speed of a job without an application: from the table of throughputs, or one second of work per second."""
        if job.trace.steps is None or not job.facts.throughputs:
            return 1.0
        if job.facts.plan_speeds is not None:
            return job.facts.plan_speeds.steps_per_s(tuple(slots for _, slots in allocation))
        spread = len(allocation) > -(-job.facts.requested_slots // self.cluster.largest_node_slots[gpu_type])
        speed = job.facts.throughputs[gpu_type]
        return job.facts.spread_throughputs.get(gpu_type, speed) if spread else speed

    # --- What happens to running jobs by themselves ---

    def _schedule(self, job: SimJob) -> None:
        """Schedule the next change that happens to a running job by itself."""
        if job.stint is not None and job.stint.cap == 0.0:
            return
        if self.policy.adapts_batch and job.application is not None:
            at_s, epoch = job.end_of_epoch_s(), job.epoch()
        else:
            at_s, epoch = job.completion_s(), -1
        self.agenda.at(at_s, Order.JOB, partial(self._end_of_epoch, job, job.version, epoch))

    def _end_of_epoch(self, job: SimJob, version: int, epoch: int) -> Event | None:
        """A job finishes an epoch (-1: the last), unless its speed has changed since this was scheduled."""
        if job.version != version:
            return None
        self._up_to_date(job).finish_epoch(epoch)
        if job.progress >= job.total * (1.0 - ROUNDING):
            now_s = self.agenda.now_s
            job.progress = job.total
            job.completed_s = now_s
            self.uplinks.note_change(job)
            job.finish_stint(now_s)
            self.running.pop(job.facts.id, None)
            return Completed(now_s, job.facts.id, _reported_progress(job, job.work))
        if self.settings.tune_s is None:
            self._retune(job)
        if job.version == version:
            self._schedule(job)
        return None

    # --- Jobs that share slots, nodes or uplinks ---

    def _share(self, job: SimJob, partner: str | None) -> None:
        """Let a job share its slots with a partner (None: have them alone)."""
        stint = job.share(self.agenda.now_s, partner, 1.0)
        if stint.batch is not None and job.facts.adaptivity is Adaptivity.ADAPTIVE:
            stint.batch = self._batch(job, stint.gpu_type, stint.allocation, shared=partner is not None) or stint.batch
        self._update_speeds(job)

    def _update_speeds(self, job: SimJob) -> None:
        """Set the speeds of a job and its partner from what both run now."""
        stint = job.stint
        assert stint is not None
        other = self.jobs[stint.partner] if stint.partner is not None else None
        if other is None or other.stint is None:
            self._schedule(job)
            return
        assert self.engine.sharing is not None
        for one, beside in ((job, other), (other, job)):
            if one.stint is not None and one.stint.partner == beside.facts.id:
                self._up_to_date(one)
                one.share(self.agenda.now_s, beside.facts.id, speed_beside(self.engine.sharing, one, beside))
                self._schedule(one)

    def share_uplinks(self) -> None:
        """Divide the uplinks among the jobs that send over them now."""
        for job, contention in list(self.uplinks.contentions(self.running.values(), self.agenda.now_s)):
            self._up_to_date(job).contend(self.agenda.now_s, contention)
            self._schedule(job)

    def _update_interference(self) -> None:
        """Distributed jobs that share a node slow each other down."""
        distributed = [job for job in self.running.values() if job.stint and len(job.stint.allocation) > 1]
        users = Counter(node for job in distributed if job.stint for node, _ in job.stint.allocation)
        for job in self.running.values():
            stint = job.stint
            assert stint is not None
            shares = len(stint.allocation) > 1 and any(users[node] > 1 for node, _ in stint.allocation)
            slowdown = 1.0 / (1.0 - self.settings.interference) if shares else 1.0
            if slowdown != stint.slowdown:
                self._up_to_date(job)
                stint.slowdown = slowdown
                job.version += 1
                self._schedule(job)

    # --- Batch sizes ---

    def _batch(self, job: SimJob, gpu_type: str, allocation: Allocation, *, shared: bool = False) -> Batch | None:
        """The batch plan with which a job starts on these slots."""
        if job.application is None:
            return None
        placement = tuple(slots for _, slots in allocation)
        if not self.policy.adapts_batch or job.facts.adaptivity is not Adaptivity.ADAPTIVE:
            return job.fixed_batch(gpu_type, sum(placement))
        slowdown = self.uplinks.crossing(allocation).path.slowdown
        known = self.engine.jobs[job.facts.id].model
        gradient = known.gradient if known is not None else None
        fitted = self._own_models.fit_of(job.facts.id, gpu_type)
        if gradient is None or fitted is None:
            return job.tuned_batch(None, job.application.value.gradient.at(0, 1.0), gpu_type, placement, shared=shared)
        return job.tuned_batch(fitted, gradient, gpu_type, placement, shared=shared, link_slowdown=slowdown)

    def retune_all(self) -> None:
        """Let all running jobs choose their batch sizes again."""
        for job in list(self.running.values()):
            self._retune(self._up_to_date(job))

    def _retune(self, job: SimJob) -> None:
        """Let a job choose its batch size again, as the training library does; a change starts a new stint."""
        stint = job.stint
        if stint is None or stint.batch is None or job.facts.adaptivity is not Adaptivity.ADAPTIVE:
            return
        fitted = self._own_models.fit_of(job.facts.id, stint.gpu_type)
        gradient = job.gradient()
        if fitted is None or gradient is None or self.agenda.now_s < stint.works_from_s:
            return
        batch = job.tuned_batch(
            fitted,
            gradient,
            stint.gpu_type,
            stint.placement,
            shared=stint.partner is not None,
            current=None if self.settings.tune_s is None else stint.batch,
            link_slowdown=stint.crossing.path.slowdown,
        )
        if batch is not None and batch != stint.batch:
            job.retune(self.agenda.now_s, batch)
            self.uplinks.note_change(job)
            self._update_speeds(job)

    def _start_tuning(self, job: SimJob, stint: Stint) -> None:
        """Let a job look for a better batch at regular intervals until its processes end."""
        self._starts[job.facts.id] += 1
        if self.settings.tune_s is not None and self.policy.adapts_batch:
            at_s = stint.works_from_s + self.settings.tune_s
            self.agenda.at(at_s, Order.JOB, partial(self._tune, job, self._starts[job.facts.id]))

    def _tune(self, job: SimJob, start: int) -> None:
        """One look for a better batch, unless the job has been stopped since the start that this belongs to."""
        if job.stint is None or self._starts[job.facts.id] != start or self.settings.tune_s is None:
            return
        self._learn(self._up_to_date(job))
        self._retune(job)
        self.agenda.at(self.agenda.now_s + self.settings.tune_s, Order.JOB, partial(self._tune, job, start))

    # --- Measurements ---

    def _learn(self, job: SimJob) -> None:
        """A job that tunes itself adds its measurements on its current slots to its own model."""
        stint = job.stint
        if self.settings.tune_s is not None and stint is not None and self._has_measured(stint):
            view = replace(self.engine.jobs[job.facts.id], gpu_type=stint.gpu_type)
            self._own_models.report(view, job.observation(), None)

    def _has_measured(self, stint: Stint) -> bool:
        return self.agenda.now_s > stint.works_from_s + self.settings.report_s

    def _measurement(self, job: SimJob) -> Observation | None:
        """Step times as a job reports them, which may be wrong."""
        seen, error = job.observation(), self.settings.speed_error
        if seen is None or error == 0.0:
            return seen
        factor = math.exp(error * float(self._errors.standard_normal()))
        return replace(seen, accumulation_s=seen.accumulation_s * factor, step_s=seen.step_s * factor)

    def reports(self) -> Iterator[Reported]:
        """What the running jobs report: progress, gradient noise, and step times that they have not yet reported."""
        now_s = self.agenda.now_s
        for job in list(self.running.values()):
            stint = job.stint
            if stint is None or now_s <= stint.works_from_s:
                continue
            self._up_to_date(job)
            measured = self._has_measured(stint) and job.facts.id not in self.exactly_known
            observation = self._measurement(job) if measured and not stint.reported else None
            stint.reported |= measured
            done = _reported_progress(job, job.work * job.progress / job.total)
            speed = stint.speed if stint.partner is not None and measured else None
            yield Reported(now_s, job.facts.id, observation, job.gradient(), done, job.loss(), speed)


def _reported_progress(job: SimJob, done: float) -> float:
    """The progress that a job reports, including progress before the simulation.

    A job from before the simulation that has no application stands for a plain command, which reports no progress.
    """
    if job.done_before is None:
        return done
    return job.done_before + (0.0 if job.application is None else done)
