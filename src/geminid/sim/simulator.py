"""Drive the engine in virtual time with simulated jobs, event by event.

A scheduler in the simulator knows only what its jobs have measured: step times of configurations they have run, and the
gradient noise of the epoch they are in. Time jumps from event to event; between two events nothing is computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from geminid.cluster import Cluster
from geminid.engine.engine import Engine, Outcome
from geminid.engine.events import Event, NodeUp, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.policies.base import JobView, Policy
from geminid.sim.agenda import Agenda, Order
from geminid.sim.application import Application
from geminid.sim.executor import SimulatedExecutor
from geminid.sim.foreknowledge import Known, add_profiles, add_true_models, one_slot_profiles
from geminid.sim.nodepool import NodePool
from geminid.sim.oracle import Oracle
from geminid.sim.profiles.gavel import ThroughputTable
from geminid.sim.profiles.planspeeds import PlanProfiles
from geminid.sim.result import NoProgress, Result
from geminid.sim.settings import Settings
from geminid.sim.setup import JobMaker
from geminid.sim.sharing import ApplicationSharing
from geminid.sim.simjob import SimJob
from geminid.sim.workload import Workload

__all__ = ["Known", "NoProgress", "Result", "Settings", "Simulator"]

#: Number of decisions without any progress after which a simulation gives up: no job runs, or jobs are interrupted
#: before their pauses end.
MOST_FRUITLESS_DECISIONS = 2000

#: Shortest time after a decision at which a policy can ask for the next one.
SHORTEST_WAKE_S = 1.0


class Simulator:
    """One run of one policy over one workload. Deterministic: the same inputs give the same result.

    ``known`` is what the scheduler knows about jobs before they arrive. ``standing`` are jobs that exist when the
    simulation begins, as a scheduler sees them: limits, allocation, age and attained service. Their entries in the
    workload say what they have left to do. The policy decides about them at once; those that run continue without a
    pause.
    """

    def __init__(
        self,
        workload: Workload,
        applications: Mapping[str, Application],
        cluster: Cluster,
        policy: Policy,
        settings: Settings | None = None,
        throughputs: ThroughputTable | None = None,
        known: Mapping[str, Known] | None = None,
        standing: Mapping[str, JobView] | None = None,
        plan_profiles: PlanProfiles | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.known = known or {}
        self.standing = standing or {}
        self.cluster = cluster
        self.policy = policy
        self.agenda = Agenda()
        maker = JobMaker(
            *(cluster, applications, self.settings, throughputs, self.standing, plan_profiles, policy.chooses_plans)
        )
        self.jobs = maker.jobs(workload.jobs)
        self.engine = Engine(
            cluster,
            policy,
            ModelKeeper(self.settings.model),
            oracle=Oracle(self.jobs, cluster, self.agenda) if policy.needs_oracle or self.settings.oracle else None,
            sharing=throughputs or ApplicationSharing(applications),
            debug=self.settings.debug,
        )
        self.result = Result(policy.name, cluster, list(self.jobs.values()))
        self.executor = SimulatedExecutor(self.jobs, self.engine, self.settings, self.agenda)
        self.nodes = NodePool(cluster, self.settings, self.agenda, self.result)
        self._not_yet_arrived = 0
        self._round_is_scheduled = False
        self._wake_at_s = math.inf
        self._fruitless_decisions = 0

    @property
    def now_s(self) -> float:
        """The simulated time."""
        return self.agenda.now_s

    def run(self, progress: Callable[[int], None] | None = None) -> Result:
        """Simulate until every job is done; ``progress`` is called with the number of jobs that are."""
        started = time.perf_counter()
        for job in self.jobs.values():
            if job.facts.id in self.standing:
                self._restore(job, self.standing[job.facts.id])
            else:
                self._not_yet_arrived += 1
                self.agenda.at(job.facts.submitted_s, Order.ARRIVAL, partial(self._arrive, job))
        if self.standing:
            self._schedule_round()
            self.agenda.at(self.now_s, Order.TICK, partial(Tick, self.now_s))
        self.nodes.schedule_failures()
        done = 0
        agenda, engine, uplinks = self.agenda, self.engine, self.executor.uplinks
        while agenda.scheduled and (engine.jobs or self._not_yet_arrived):
            event = agenda.next()()
            self.result.events += 1
            if event is not None:
                self._handle(event)
            if uplinks.changed:
                self.executor.share_uplinks()
            if progress is not None:
                finished = len(self.jobs) - len(engine.jobs) - self._not_yet_arrived
                if finished != done:
                    done = finished
                    progress(done)
        self.nodes.count_rent()
        self.result.wall_s = time.perf_counter() - started
        return self.result

    # --- Jobs come ---

    def _restore(self, job: SimJob, view: JobView) -> None:
        """Let a job that exists when the simulation begins continue as it was."""
        self._add_foreknowledge(job)
        self.engine.restore(replace(view, facts=job.facts))
        if view.allocation and view.gpu_type is not None:
            self.executor.begin(job, view.gpu_type, view.allocation, 0.0)
            self.executor.uplinks.note_change(job)
        elif job.application is None:
            job.start_up_s = 0.0  # its duration includes the start

    def _arrive(self, job: SimJob) -> Event:
        self._not_yet_arrived -= 1
        if self.settings.arrivals_known:
            later_s = (other.facts.submitted_s for other in self.jobs.values())
            self.engine.next_arrival_s = min((time_s for time_s in later_s if time_s > self.now_s), default=math.inf)
        job.at_s = self.now_s
        self._add_foreknowledge(job)
        self._schedule_round()
        return Submitted(self.now_s, job.facts)

    def _add_foreknowledge(self, job: SimJob) -> None:
        """Give the scheduler what it knows about a job's speed before the job runs here."""
        models, job_id = self.engine.models, job.facts.id
        if self.settings.oracle or self.settings.speeds_known:
            if add_true_models(models, job, self.cluster):
                self.executor.exactly_known.add(job_id)
        elif job_id in self.known:
            self.known[job_id].add_to(models, job_id)
        elif self.policy.brings_profiles:
            add_profiles(models, job_id, one_slot_profiles(job))

    # --- Decisions ---

    def _schedule_round(self) -> None:
        """Schedule the end of the current round, if the policy decides in rounds and it is not scheduled yet."""
        interval_s = self.policy.interval_s
        if interval_s is not None and not self._round_is_scheduled:
            self._round_is_scheduled = True
            at_s = max(1, math.ceil(self.now_s / interval_s - 1e-9)) * interval_s
            self.agenda.at(at_s, Order.TICK, partial(self._end_round, interval_s))

    def _end_round(self, interval_s: float) -> Event | None:
        self._round_is_scheduled = bool(self.engine.jobs)
        if not self.engine.jobs:
            return None
        self.agenda.at(self.now_s + interval_s, Order.TICK, partial(self._end_round, interval_s))
        return Tick(self.now_s)

    def _wake(self) -> Event | None:
        """A wake-up that the policy asked for; only the last one it asked for counts."""
        return Tick(self.now_s) if self.engine.jobs and self.now_s == self._wake_at_s else None

    def _handle(self, event: Event) -> None:
        """Give the engine an event and carry out its answer.

        Raises:
            NoProgress: too many decisions in a row without any job working.
        """
        works_from_s = self._works_from_s() if isinstance(event, Tick | NodeUp) else -math.inf
        deciding = self.policy.interval_s is None or isinstance(event, Tick)
        if deciding and (self.policy.needs_models or self.policy.needs_reports):
            for report in self.executor.reports():
                self.engine.handle(report)
        started = time.perf_counter()
        outcome = self.engine.handle(event)
        if outcome.decided:
            self.result.decision_s.append(time.perf_counter() - started)
        self._carry_out(outcome)
        if deciding and self.policy.adapts_batch and self.settings.tune_s is None:
            self.executor.retune_all()
        if isinstance(event, Tick | NodeUp):
            self._check_progress(works_from_s)

    def _carry_out(self, outcome: Outcome) -> None:
        for reason in outcome.rejected:
            self.result.rejected.append((self.now_s, reason))
        if outcome.reasons:
            jobs = self.engine.jobs
            partners = {job_id: jobs[job_id].partner for job_id in outcome.reasons if job_id in jobs}
            self.result.reasons.add(outcome.reasons, partners)
        for command in outcome.commands:
            self.executor.execute(command)
        if outcome.desired_nodes is not None:
            self.nodes.scale(outcome.desired_nodes, self.engine.jobs)
        self.executor.after_commands()
        if outcome.decided and not outcome.rejected and self.policy.interval_s is None:
            self._wake_at_s = math.inf
            if outcome.wake_at_s is not None and self.now_s < outcome.wake_at_s < math.inf:
                self._wake_at_s = max(outcome.wake_at_s, self.now_s + SHORTEST_WAKE_S)
                self.agenda.at(self._wake_at_s, Order.TICK, self._wake)

    def _works_from_s(self) -> float:
        """The time from which the first of the running jobs works, which may be to come."""
        return min((job.stint.works_from_s for job in self.executor.running.values() if job.stint), default=math.inf)

    def _check_progress(self, worked_from_s: float) -> None:
        """Count decisions before which no job worked; ``worked_from_s`` is what ``_works_from_s`` was before."""
        self._fruitless_decisions = 0 if worked_from_s < self.now_s else self._fruitless_decisions + 1
        if self._fruitless_decisions <= MOST_FRUITLESS_DECISIONS:
            return
        waiting = ", ".join(list(self.engine.jobs)[:5])
        why = "Either nothing it decides can run, or it stops jobs before their restart is over."
        if self.result.rejected:
            why = f"Its last decision that could not be carried out: {self.result.rejected[-1][1]}."
        raise NoProgress(
            f"policy {self.policy.name} made no progress in {MOST_FRUITLESS_DECISIONS} decisions; "
            f"waiting: {waiting}. {why}"
        )
