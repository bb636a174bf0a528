"""The engine, with what it must know of the live jobs and nodes: from the service's state to the engine's events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf

from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.engine import events as e
from geminid.engine.engine import Engine
from geminid.engine.models import ModelKeeper
from geminid.jobstate import JobPhase
from geminid.policies.base import ClusterView, JobFacts, JobView, Policy
from geminid.serve import records as r
from geminid.serve.cordons import kept_slots
from geminid.serve.livejob import LiveJob, observation_of
from geminid.serve.protection import standing_now
from geminid.serve.state import ServiceState, Slot
from geminid.serve.translation import facts_of, fits, view_of
from geminid.serve.waiting import WaitingJobs


class LiveEngine:
    """An engine that knows what the service's state says of jobs and nodes.

    ``staying`` are jobs that must not grow for a while because they could not.
    """

    def __init__(self, cluster: Cluster, policy: Policy, state: ServiceState, clock: Clock) -> None:
        self.cluster, self.policy, self.clock = cluster, policy, clock
        self._state = state
        self.staying: set[str] = set()
        self._kept: Mapping[str, frozenset[Slot]] = {}  # closed slots that jobs stay on
        self.start_over()

    def start_over(self) -> None:
        """Make a new engine from the state."""
        now_s, state = max(self.clock.now_s(), self._state.at_s), self._state
        self.engine = Engine(self.cluster, self.policy, ModelKeeper("geminid"), now_s=now_s)
        self.waiting = WaitingJobs(
            self.cluster, self.policy, self.facts, state.quotas_of, show=self._show, hide=self._hide
        )
        for nodes, event in ((state.emptied, e.NodeDrained), (state.down, e.NodeDown)):
            for node in nodes & set(self.cluster.node_index):
                self.engine.take(event(now_s, self.cluster.node_index[node]))
        for job in sorted(state.jobs.values(), key=lambda job: job.state.submitted_at_s):
            if self.can_run(job):
                self.enter(job)
        self.refresh()

    @property
    def jobs(self) -> Mapping[str, JobView]:
        """The jobs that the engine knows."""
        return self.engine.jobs

    def now_s(self) -> float:
        """The time: never before the engine's last event."""
        return max(self.clock.now_s(), self.engine.now_s)

    def can_run(self, job: LiveJob) -> bool:
        """Whether the engine is to know a job: it may run now, and the cluster has as many slots as it needs."""
        fits_now = job.target is not None or fits(job, self.cluster)
        return job.wants_slots and fits_now and job.held_until_s <= self.now_s()

    def enter(self, job: LiveJob) -> None:
        """Show a job to the engine: now, or when those that go before it have started."""
        if not self.waiting.put(job, self.facts(job.id)):
            self._show(job.id)

    def leave(self, job: LiveJob) -> bool:
        """A job has ended, or must not run for now; whether the engine knew it."""
        self.waiting.remove(job.id)
        if job.id not in self.engine.jobs:
            return False
        now_s = self.now_s()
        event: e.Event = e.Withdrawn(now_s, job.id)
        if job.phase is JobPhase.SUCCEEDED:
            event = e.Completed(now_s, job.id, job.state.progress_samples)
        elif job.phase.is_terminal:
            event = e.Failed(now_s, job.id, "", final=True)
        self.engine.take(event)
        return True

    def revise(self, job: LiveJob) -> bool:
        """Pass on what is known of a job now; whether it asks for other slots, or counts more or less than before."""
        view, facts = self.engine.jobs[job.id], self.facts(job.id)
        self.waiting.put(job, facts)
        if facts.limits and not view.facts.limits and not job.samples:
            self._add_measurements(job, facts)
        if facts == view.facts or job.id not in self.engine.jobs:
            return False
        self.engine.take(e.Revised(self.now_s(), facts))
        before = view.facts
        resizes = (facts.min_slots, facts.max_slots) != (before.min_slots, before.max_slots)
        return resizes or facts.weight != before.weight

    def report(self, record: r.JobProgressed) -> None:
        """Pass on what a job reports."""
        job, loss = self._state.jobs[record.job_id], record.metrics.get("loss")
        report = e.Reported(
            self.now_s(),
            record.job_id,
            observation_of(record) if job.state.num_slots == record.slots else None,
            job.gradient,
            job.done_samples,
            loss if isinstance(loss, int | float) else None,
        )
        self.engine.take(report)

    def refresh(self) -> None:
        """Show the waiting jobs that could be next, and count the slots that are out of service."""
        self.waiting.refresh()
        self.count_closed_slots()

    def facts(self, job_id: str) -> JobFacts:
        """What the policy may know of a job: one that could not grow must not for a while, but may shrink."""
        job = self._state.jobs[job_id]
        facts, place = facts_of(job, self.cluster), job.state.placement
        if place is None or job.stays_until_s <= self.clock.now_s():
            return facts
        self.staying.add(job_id)
        return replace(facts, max_slots=min(facts.max_slots, max(place.num_slots, facts.min_slots)))

    def closed_slots(self) -> frozenset[Slot]:
        """Slots that no job may be given, but for those that jobs stay on."""
        return self._state.out_of_service.difference(*self._kept.values())

    def count_closed_slots(self) -> None:
        """Pass on how many slots of each node are out of service."""
        now_s = self.now_s()

        def least_slots(job: LiveJob) -> int:
            view = self.engine.jobs.get(job.id)
            fixed = view is not None and standing_now(job, view).protected_until_s > now_s
            return job.target.num_slots if fixed and job.target is not None else job.spec.min_slots

        self._kept = kept_slots(self._state, self.cluster, least_slots)
        index = self.cluster.node_index
        counts = Counter(index[node] for node, _ in self.closed_slots() if node in index)
        for node in range(len(self.cluster.nodes)):
            if counts[node] != self.engine.cordoned(node):
                self.engine.take(e.SlotsCordoned(now_s, node, counts[node]))

    def protected_until_s(self, view: JobView) -> float:
        """Until when a running job keeps its slots, whatever the policy decides."""
        job = self._state.jobs.get(view.id)
        if view.id in self._kept:
            return inf
        return 0.0 if job is None else standing_now(job, view).protected_until_s

    def view_with(self, job_id: str) -> tuple[ClusterView, str]:
        """What the policy would see now, with a job even if it waits behind others; and the job shown for it."""
        self.engine.behind = self.waiting.behind()
        view, job = self.engine.view(), self._state.jobs.get(job_id)
        if job is None or not self.waiting.hides(job_id):
            return view, job_id
        hidden = replace(view_of(job, self.cluster, self.engine.now_s), facts=self.facts(job_id))
        shown_for = self.waiting.shown_for(job_id)
        others = tuple(at_s for at_s in view.behind[shown_for] if at_s != hidden.facts.submitted_s)
        jobs = sorted((*view.jobs, hidden), key=lambda job: job.facts.submitted_s)
        return replace(view, jobs=tuple(jobs), behind={**view.behind, shown_for: others}), shown_for

    def _show(self, job_id: str) -> None:
        if not self.engine.knows(job_id):
            job, facts = self._state.jobs[job_id], self.facts(job_id)
            self._add_measurements(job, facts)
            self.engine.restore(replace(view_of(job, self.cluster, self.now_s()), facts=facts))

    def _hide(self, job_id: str) -> None:
        self.engine.take(e.Withdrawn(self.now_s(), job_id))

    def _add_measurements(self, job: LiveJob, facts: JobFacts) -> None:
        """Give the engine what was measured of a job, or of one like it, once its batch limits are known.

        Without them (before its kind is known) a model could not say what the job does on any number of slots, and a
        policy would never start it.
        """
        if facts.limits:
            for gpu_type, profile in job.measured:
                self.engine.models.add_profile(job.id, gpu_type, profile)
            if job.gradient is not None:
                self.engine.models.add_gradient(job.id, job.gradient)
