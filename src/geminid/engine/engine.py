"""The state machine: it knows every active job, asks the policy, checks its answer and gives commands.

The simulator drives it in virtual time, the service in real time; neither the engine nor a policy sees a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import sub

from geminid.cluster import Cluster
from geminid.engine.commands import Command, Limit, Rescale, Share, Start, Stop
from geminid.engine.events import (
    Completed,
    Event,
    Failed,
    NodeDown,
    NodeDrained,
    NodeUp,
    Reported,
    Revised,
    SlotsCordoned,
    Submitted,
    Tick,
    Withdrawn,
)
from geminid.engine.models import ModelKeeper
from geminid.engine.plan import Rejected, make_plan
from geminid.engine.reconcile import reconcile
from geminid.policies.base import (
    Allocation,
    ClusterView,
    JobView,
    NotADecision,
    Oracle,
    Policy,
    SharingModel,
    slots_of,
)


class InvariantBroken(AssertionError):
    """The engine's own state is inconsistent: a bug, never a user's mistake."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event led to: commands, when to wake the engine next, and a rejected decision's reasons.

    ``reasons`` are those of a decision that was carried out, by job.
    """

    commands: tuple[Command, ...] = ()
    wake_at_s: float | None = None
    rejected: tuple[str, ...] = ()
    decided: bool = False
    desired_nodes: Mapping[str, int] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Engine:
    """Events go in through :meth:`handle`, commands come out.

    With a policy that has rounds, decisions are made at ticks only; otherwise at every event that may change
    which jobs run.
    With many events at a time, call :meth:`take` for each and :meth:`decide` once after them.
    ``behind`` are waiting jobs that it does not know one by one, ``next_arrival_s`` is when the next job will arrive
    where a simulation says so (see ``ClusterView``).
    ``debug`` checks all invariants after every event.
    """

    cluster: Cluster
    policy: Policy
    models: ModelKeeper
    oracle: Oracle | None = None
    sharing: SharingModel | None = None
    debug: bool = False
    now_s: float = 0.0
    behind: Mapping[str, Sequence[float]] = field(default_factory=dict)
    next_arrival_s: float | None = None
    _jobs: dict[str, JobView] = field(default_factory=dict)
    _is_sorted: bool = True
    _down: set[int] = field(default_factory=set)
    _drained: set[int] = field(default_factory=set)
    _cordoned: dict[int, int] = field(default_factory=dict)
    _usable: tuple[int, ...] = ()
    _held: list[int] = field(default_factory=list)
    _ended: list[JobView] = field(default_factory=list)
    _left: list[JobView] = field(default_factory=list)
    _limited: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._held = [0] * len(self.cluster.nodes)
        self._count_usable()

    def handle(self, event: Event) -> Outcome:
        """Take in what happened, and decide if it is time to; the outcome says what to do."""
        commands = self.take(event)
        outcome = Outcome(commands)
        if self.asks_for_decision(event):
            decided = self.decide()
            outcome = replace(decided, commands=(*commands, *decided.commands))
        if self.debug:
            self.check()
        return outcome

    def asks_for_decision(self, event: Event) -> bool:
        """Whether a decision should follow this event: at ticks if the policy has rounds, after news of jobs if not."""
        return isinstance(event, Tick) or (self.policy.interval_s is None and not isinstance(event, Reported))

    def restore(self, job: JobView) -> None:
        """Put back a job that an earlier engine had, as it was: with its service, its allocation and its counts."""
        if job.id in self._jobs:
            raise InvariantBroken(f"job {job.id} is here already")
        last = next(reversed(self._jobs.values()), None)
        self._jobs[job.id] = job
        self._is_sorted &= last is None or last.facts.submitted_s <= job.facts.submitted_s
        self._count_held(job, +1)
        self.models.revised(job.id)

    def take(self, event: Event) -> tuple[Command, ...]:
        """Take in what happened without deciding anything; the commands are those that follow of themselves."""
        if event.at_s < self.now_s:
            raise InvariantBroken(f"event at {event.at_s} s after {self.now_s} s")
        self.now_s = event.at_s
        commands: list[Command] = []
        match event:
            case Submitted(job=facts):
                self._jobs.setdefault(facts.id, JobView(facts=facts, since_s=event.at_s))
            case Completed(job_id=job_id, progress=progress):
                commands += self._part(job_id)
                if job_id in self._jobs:
                    done = self._jobs[job_id].progress if progress is None else progress
                    self._release(job_id)
                    self._ended.append(replace(self._jobs[job_id], progress=done))
                self._forget(job_id)
            case Failed(job_id=job_id, final=final):
                commands += self._part(job_id)
                if final:
                    self._forget(job_id)
                elif job_id in self._jobs:
                    self._release(job_id)
            case Reported(job_id=job_id, observation=observation, gradient=gradient):
                if job_id in self._jobs:
                    self.models.report(self._jobs[job_id], observation, gradient)
                    self._jobs[job_id] = _with_news(self._jobs[job_id], event)
            case NodeDown(node=node):
                self._down.add(node)
                for job in list(self._jobs.values()):
                    if any(n == node for n, _ in job.allocation):
                        reason = f"node {self.cluster.nodes[node].name} is down"
                        commands.append(Stop(job.id, job.allocation, reason, lost=True))
                        self._release(job.id)
                self._count_usable()
            case NodeDrained(node=node):
                self._drained.add(node)
                self._count_usable()
            case SlotsCordoned(node=node, slots=slots):
                self._cordoned[node] = slots
                self._count_usable()
            case Revised(job=facts):
                if facts.id in self._jobs:
                    self._jobs[facts.id] = replace(self._jobs[facts.id], facts=facts)
                    self.models.revised(facts.id)
            case Withdrawn(job_id=job_id):
                commands += self._part(job_id)
                self._remove(job_id)
            case NodeUp(node=node):
                self._down.discard(node)
                self._drained.discard(node)
                self._count_usable()
        return tuple(commands)

    @property
    def jobs(self) -> Mapping[str, JobView]:
        """The active jobs, by identifier, in the order of their arrival."""
        if not self._is_sorted:  # some were restored late: not at once, for there may be thousands of them
            self._jobs = dict(sorted(self._jobs.items(), key=lambda item: item[1].facts.submitted_s))
            self._is_sorted = True
        return self._jobs

    def knows(self, job_id: str) -> bool:
        """Whether a job is active."""
        return job_id in self._jobs

    def cordoned(self, node: int) -> int:
        """How many slots of a node are out of service one by one."""
        return self._cordoned.get(node, 0)

    def view(self) -> ClusterView:
        """What the policy would see now."""
        jobs: Sequence[JobView] = tuple(self.jobs.values())
        if self.policy.needs_models:
            jobs = self.models.attach(jobs)
            self._jobs.update((job.id, job) for job in jobs)
        free = tuple(map(sub, self._usable, self._held))
        known = self.oracle, self.sharing, tuple(self._ended), self.behind
        now = self.now_s, self.cluster, tuple(jobs), self._usable, free
        return ClusterView(*now, *known, next_arrival_s=self.next_arrival_s, charged=tuple(self._left))

    def _count_usable(self) -> None:
        gone = self._down | self._drained
        self._usable = tuple(
            0 if node in gone else max(n - self._cordoned.get(node, 0), 0)
            for node, n in enumerate(self.cluster.node_slots.tolist())
        )

    def decide(self) -> Outcome:
        """Ask the policy, check its answer, and say what has to be done to get there."""
        if not self._jobs:
            return Outcome()
        view = self.view()
        self._ended, self._left = [], []
        try:
            decision = self.policy.decide(view)
            plan = make_plan(decision, view, self._jobs)
        except (Exception, SystemExit) as error:  # a policy may do anything; the cluster must go on
            plan = Rejected((f"{type(error).__name__}: {error} ({_origin(error)})",))
            if self.debug:
                raise
        if isinstance(plan, Rejected):
            return Outcome(rejected=plan.reasons, decided=True)
        commands = reconcile(plan, self._jobs, self._usable, self._limited)
        for command in commands:
            self._apply(command)
        self._limited = {job_id for job_id in self._limited if self._is_limited(job_id)}
        return Outcome(
            tuple(commands), plan.wake_at_s, decided=True, desired_nodes=plan.desired_nodes, reasons=plan.reasons
        )

    def _is_limited(self, job_id: str) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and (job.cap, job.memory_cap) != (1.0, None)

    def _apply(self, command: Command) -> None:
        """Change the jobs as a command says."""
        match command:
            case Stop():
                self._release(command.job_id)
            case Start() | Rescale():
                self._grant(self._jobs[command.job_id], command.allocation)
            case Share():
                self._share(command.job_id, command.partner)
            case Limit():
                job = self._jobs[command.job_id]
                self._jobs[job.id] = replace(job, cap=command.cap, memory_cap=command.memory_cap)
                self._limited.add(job.id)

    def _put(self, job: JobView) -> None:
        self._count_held(self._jobs[job.id], -1)
        self._count_held(job, +1)
        self._jobs[job.id] = job

    def _forget(self, job_id: str) -> None:
        self._remove(job_id)
        self.models.forget(job_id)

    def _remove(self, job_id: str) -> None:
        if job_id in self._jobs:
            self._release(job_id)
            self._left.append(self._jobs.pop(job_id))

    def _count_held(self, job: JobView, sign: int) -> None:
        """Count a job's slots in or out; those of two that share, with the first by name."""
        if job.partner is None or job.id < job.partner:
            for node, slots in job.allocation:
                self._held[node] += sign * slots

    def _share(self, job_id: str, partner: str | None) -> None:
        self._put(replace(self._settled(self._jobs[job_id]), partner=partner, relative_speed=None))

    def _part(self, job_id: str) -> list[Command]:
        """A job is about to go: the job that shares its slots has them alone from now on."""
        job = self._jobs.get(job_id)
        if job is None or job.partner is None:
            return []
        self._share(job.partner, None)
        return [Share(job.partner, None)]

    def _settled(self, job: JobView) -> JobView:
        """The job with its service and run time up to now added in."""
        return replace(
            job,
            executed_before_s=job.executed_s(self.now_s),
            service_before_gpu_s=job.attained_service_gpu_s(self.now_s),
            since_s=self.now_s,
        )

    def _release(self, job_id: str) -> None:
        job = self._settled(self._jobs[job_id])
        nothing = replace(job, allocation=(), slots=0, gpu_type=None, partner=None, paused_until_s=0.0)
        self._put(replace(nothing, cap=1.0, memory_cap=None, relative_speed=None, observed=None))

    def _grant(self, job: JobView, allocation: Allocation) -> None:
        first = job.started_s is None
        granted = replace(
            self._settled(job),
            allocation=allocation,
            slots=slots_of(allocation),
            gpu_type=self.cluster.nodes[allocation[0][0]].gpu_type,
            partner=None,
            cap=1.0,
            memory_cap=None,
            relative_speed=None,
            observed=None,
            started_s=self.now_s if first else job.started_s,
            restarts=job.restarts + (not first),
            paused_until_s=self.now_s + job.facts.rescale_s,
        )
        self._put(granted)

    def check(self) -> None:
        """Raise if any invariant is broken: slots granted twice, jobs out of bounds, slots on nodes that are gone."""
        free = [int(slots) for slots in self.cluster.node_slots]
        for job in self._jobs.values():
            partner = self._jobs.get(job.partner) if job.partner is not None else None
            if job.partner is not None:
                same = partner is not None and partner.partner == job.id and partner.allocation == job.allocation
                if not job.allocation or not same:
                    raise InvariantBroken(f"job {job.id} shares no slots with {job.partner}, its partner")
            counted = partner is not None and partner.id < job.id
            for node, slots in job.allocation:
                free[node] -= 0 if counted else slots
                if node in self._down:
                    raise InvariantBroken(f"job {job.id} holds slots on node {node}, which is down")
            if job.allocation and not job.facts.min_slots <= job.slots <= job.facts.max_slots:
                raise InvariantBroken(f"job {job.id} holds {job.slots} slots")
            types = {self.cluster.nodes[node].gpu_type for node, _ in job.allocation}
            if types and types != {job.gpu_type}:
                raise InvariantBroken(f"job {job.id} is on {job.gpu_type} but holds slots of {sorted(types)}")
            if types and job.facts.gpu_types is not None and not types <= job.facts.gpu_types:
                raise InvariantBroken(f"job {job.id} holds slots of a type that it does not allow")
            if job.slots != slots_of(job.allocation):
                raise InvariantBroken(f"job {job.id} counts {job.slots} slots but holds {slots_of(job.allocation)}")
            if job.attained_service_gpu_s(self.now_s) < 0:
                raise InvariantBroken(f"job {job.id} has negative service")
        if min(free, default=0) < 0:
            raise InvariantBroken("a slot is granted twice")
        if free != list(map(sub, self.cluster.node_slots.tolist(), self._held)):
            raise InvariantBroken("the count of held slots is wrong")


def _with_news(job: JobView, report: Reported) -> JobView:
    """A job with what it reports of its progress, its loss, its speed and its step times, where that makes sense."""
    progress, loss, speed, observed = job.progress, job.loss, job.relative_speed, job.observed
    if report.observation is not None and job.allocation and report.observation.problem() is None:
        observed = report.observation
    if report.progress is not None and 0.0 <= report.progress < math.inf:
        progress = report.progress
    if report.loss is not None and math.isfinite(report.loss):
        loss = report.loss
    if report.relative_speed is not None and job.partner is not None and 0.0 <= report.relative_speed < math.inf:
        speed = report.relative_speed
    return replace(job, progress=progress, loss=loss, relative_speed=speed, observed=observed)


def _origin(error: BaseException) -> str:
    """Where in a policy's code an error arose."""
    if isinstance(error, NotADecision):
        return error.origin
    trace, where = error.__traceback__, "unknown"
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f"{code.co_filename}, line {trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    return where
