"""The state of the service, as a function of its records: no clock, no file, no thread.

``ServiceState.apply`` takes records in their order. Records about jobs come from processes that may die, repeat
themselves or speak late, so a record that does not fit the job's phase changes nothing. A job has two placements: its
*target*, which is what the last plan says, and the placement of its :class:`~geminid.jobstate.JobState`, which is what
its processes hold. Neither ever gives a slot to two jobs; the executor leads from one to the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import islice
from typing import Any

from geminid.configuration import BatchPlan, Placement, double_grants
from geminid.fields import InvalidInput
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Profile
from geminid.job import JobKind, JobSpec
from geminid.jobstate import TRANSITIONS, IllegalTransition, JobPhase, JobState
from geminid.serve import records as r
from geminid.serve.livejob import (
    Limits,
    LiveJob,
    Stretch,
    job_to_dict,
    observation_of,
    printable,
    total_batch,
)
from geminid.serve.quarantine import check_numbers, number_of, quarantined, read_job, reason_of
from geminid.serve.queues import QueueRules

#: So many jobs are looked at for one that a new job is like.
MOST_FORERUNNERS = 1000

#: So many of a job's pauses are kept.
MOST_PAUSES = 500

#: Of so many ways to train, by slots and batch, it is kept how long a job trained in them.
MOST_STRETCHES = 32

#: How many notes for operators are kept.
MOST_NOTES = 200

#: A job that crashed waits so long before it is tried again, twice as long after each further crash, at most a minute.
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Totals:
    """What jobs have used and been through, together."""

    jobs: int = 0
    gpu_s: float = 0.0
    rescales: int = 0
    failures: int = 0
    paused_s: float = 0.0

    def plus(self, job: LiveJob, now_s: float) -> Totals:
        """With one job more."""
        return Totals(
            self.jobs + 1,
            self.gpu_s + job.service_gpu_s(now_s),
            self.rescales + job.state.rescales,
            self.failures + job.state.failures,
            self.paused_s + sum(job.pauses_s),
        )


@dataclass(slots=True)
class ServiceState:
    """Everything that the service knows. Only ``apply`` changes it; values within never change.

    ``quotas`` are by kind (``queue`` or ``owner``) and name, and ``borrowers`` those that may have more for a while.
    ``notes`` are for operators, newest last, without what was audited. ``forgotten`` is what is left of jobs that are
    not kept any more, by owner. ``down`` are nodes that are gone, ``leaving`` those that are about to go, and ``taken``
    slots that are used by somebody who does not ask us; or that cannot be used, if their node is ``unfit``, for a
    reason. ``slots`` is how many there are, by node. ``queues`` are the rules of queues for which there are some.
    """

    seq: int = 0
    at_s: float = 0.0
    epoch: int = 0
    jobs: dict[str, LiveJob] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    submitted: int = 0
    drained: frozenset[str] = frozenset()
    cordoned: frozenset[tuple[str, int]] = frozenset()
    quotas: dict[tuple[str, str], int] = field(default_factory=dict)
    borrowers: frozenset[tuple[str, str]] = frozenset()
    notes: tuple[tuple[float, str, str], ...] = ()
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    forgotten: dict[str, Totals] = field(default_factory=dict)
    down: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    taken: frozenset[tuple[str, int]] = frozenset()
    unfit: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[str, QueueRules] = field(default_factory=dict)

    @property
    def emptied(self) -> frozenset[str]:
        """Nodes that jobs have to leave: an operator drained them, or they are about to go."""
        return self.drained | self.leaving

    @property
    def out_of_service(self) -> frozenset[tuple[str, int]]:
        """Slots that are nobody's to have: cordoned by an operator, or used by others.

        A slot may be cordoned and not be there for now.
        """
        closed = self.cordoned | self.taken
        return frozenset((node, slot) for node, slot in closed if slot < self.slots.get(node, slot + 1))

    def copy(self) -> ServiceState:
        """A state that does not change when this one does."""
        return replace(
            self,
            jobs=dict(self.jobs),
            requests=dict(self.requests),
            quotas=dict(self.quotas),
            gpu_types=dict(self.gpu_types),
            slots=dict(self.slots),
            forgotten=dict(self.forgotten),
        )

    # --- Changes ---

    def apply(self, seq: int, at_s: float, record: r.Record) -> None:
        """Take in the next record. A job whose record cannot be applied is put into quarantine."""
        try:
            self.apply_or_raise(seq, at_s, record)
        except Exception as problem:
            if not (about := r.jobs_of(record)):
                raise
            self.seq, self.at_s = seq, max(self.at_s, at_s)
            for job_id in sorted(about):
                self._quarantine(job_id, reason_of(record, problem))

    def apply_or_raise(self, seq: int, at_s: float, record: r.Record) -> None:
        """Take in the next record, or raise whatever keeps it from being applied."""
        check_numbers(record)
        self.seq, self.at_s = seq, max(self.at_s, at_s)
        at_s = self.at_s
        match record:
            case r.ServiceStarted():
                self.epoch = record.epoch
                nodes = record.cluster.get("gpu_types_by_node", {})
                self.gpu_types = dict(nodes)
                self.down, self.leaving, self.taken, self.unfit = frozenset(), frozenset(), frozenset(), {}
                self.slots = dict(record.cluster.get("slots", {}))
                for held in list(self.jobs.values()):
                    gone = set(held.target.node_names) - set(nodes) if held.target else set()
                    self._lose_nodes(at_s, held, gone, "its node was gone when the service came back")
            case r.JobSubmitted():
                self._submit(at_s, record)
            case r.Planned():
                for job_id, target in record.targets.items():
                    self._plan(at_s, job_id, target, record.reasons.get(job_id, ""))
            case r.NodeJoined():
                self.gpu_types = {**self.gpu_types, record.node: record.gpu_type}
                self.slots = {**self.slots, record.node: record.slots}
                self.down -= {record.node}
            case r.NodeLeft():
                self.down |= {record.node}
                self.leaving -= {record.node}
                self._take(record.node, (), "")
                self.notes = (*self.notes, (at_s, "warning", record.reason))[-MOST_NOTES:]
                for held in list(self.jobs.values()):
                    self._lose_nodes(at_s, held, {record.node}, record.reason)
            case r.NodeForgotten():
                self.down -= {record.node}
                self.slots = {node: slots for node, slots in self.slots.items() if node != record.node}
            case r.SlotsTaken():
                self._take(record.node, record.slots, printable(record.reason))
            case r.NodeLeaving():
                self.leaving = self.leaving | {record.node} if record.leaving else self.leaving - {record.node}
            case r.NodeDrained():
                self.drained = self.drained | {record.node} if record.drained else self.drained - {record.node}
            case r.SlotCordoned():
                slot = {(record.node, record.slot)}
                self.cordoned = self.cordoned | slot if record.cordoned else self.cordoned - slot
            case r.QuotaSet():
                named = (record.of, record.name)
                self.quotas.pop(named, None)
                self.borrowers -= {named}
                if record.slots is not None:
                    self.quotas[named] = record.slots
                    self.borrowers |= {named} if record.borrow else set()
            case r.QueueRulesSet():
                members = frozenset(record.members)
                rules = QueueRules(max_priority=record.max_priority, members=members, open=record.open)
                others = {name: known for name, known in self.queues.items() if name != record.queue}
                self.queues = others if rules.is_default else {**others, record.queue: rules}
            case r.JobsForgotten():
                self._forget(record.job_ids)
            case r.LogRecovered():
                self.submitted = max(self.submitted, record.submitted)
                text = f"the log was recovered; {record.lost}" if record.lost else "the log was recovered"
                self.notes = (*self.notes, (at_s, "warning", text))[-MOST_NOTES:]
            case r.JobQuarantined():
                self._quarantine(record.job_id, record.reason)
            case r.Noted() if record.level == "audit":
                pass  # the log has it; there may be many
            case r.Noted():
                self.notes = (*self.notes, (at_s, record.level, record.text))[-MOST_NOTES:]
            case _:
                job = self.jobs.get(record.job_id)
                if job is not None and not job.phase.is_terminal:
                    with suppress(IllegalTransition, InvalidInput):  # a process may say anything
                        self.jobs[job.id] = self._change(at_s, job, record)

    def _quarantine(self, job_id: str, reason: str) -> None:
        job = self.jobs.get(job_id)
        number = number_of(job_id)
        if job is None and number > self.submitted:  # even what was submitted cannot be read: it is shown all the same
            self.submitted = number
            spec = JobSpec(name="unreadable", command=("false",))
            job = LiveJob(state=JobState.submitted(job_id=job_id, spec=spec, at_s=self.at_s), elastic=False)
        if job is not None and not job.phase.is_terminal:
            self.jobs[job_id] = quarantined(job, self.at_s, reason)

    def _take(self, node: str, slots: Sequence[int], reason: str) -> None:
        """These slots of a node are not ours to give, and no others."""
        others = {slot for slot in self.taken if slot[0] != node}
        self.taken = frozenset(others | {(node, slot) for slot in slots})
        unfit = {name: why for name, why in self.unfit.items() if name != node}
        self.unfit = {**unfit, node: reason} if reason else unfit

    def _submit(self, at_s: float, record: r.JobSubmitted) -> None:
        self.submitted += 1
        if record.job_id in self.jobs:
            return
        state = JobState.submitted(job_id=record.job_id, spec=record.spec, at_s=at_s)
        job = LiveJob(
            state=state,
            elastic=record.elastic,
            kind=JobKind(record.job_kind or JobKind.PLAIN),
            kind_reason=record.kind_reason or "an earlier version of geminid has decided so",
            request=record.request,
            digest=record.digest,
            code=record.code,
        )
        job = job.told(at_s, f"submitted by {record.spec.owner or 'nobody'}")
        like = self._forerunner(job)
        if like is not None and like.limits is not None:
            limits = replace(like.limits, dataset_samples=None, work_samples=None)
            job = replace(job, limits=limits, measured=like.measured, gradient=like.gradient)
            job = job.told(at_s, f"taken to be as fast as {like.id} until it is measured itself")
        self.jobs[record.job_id] = job
        if record.request is not None:
            self.requests[record.request] = record.job_id

    def _forget(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            job = self.jobs.get(job_id)
            if job is None or not job.phase.is_terminal:
                continue
            del self.jobs[job_id]
            if job.request is not None:
                self.requests.pop(job.request, None)
            owner = job.spec.owner or ""
            self.forgotten[owner] = self.forgotten.get(owner, Totals()).plus(job, self.at_s)

    def totals(self, now_s: float) -> dict[str, Totals]:
        """What all jobs have used so far, by owner."""
        found = dict(self.forgotten)
        for job in self.jobs.values():
            owner = job.spec.owner or ""
            found[owner] = found.get(owner, Totals()).plus(job, now_s)
        return found

    def quotas_of(self, job_id: str) -> dict[str, int]:
        """The quotas that a job falls under, by what they are called."""
        job = self.jobs.get(job_id)
        if job is None or not self.quotas:
            return {}
        names = (("queue", job.spec.queue), ("owner", job.spec.owner or ""))
        return {f"{of} {name}": self.quotas[of, name] for of, name in names if (of, name) in self.quotas}

    def rules_of(self, queue: str) -> QueueRules:
        """The rules of a queue."""
        return self.queues.get(queue, QueueRules())

    def may_borrow(self, name: str) -> bool:
        """Whether those under a quota, by what it is called, may have more where nobody else can use it."""
        of, _, whose = name.partition(" ")
        return (of, whose) in self.borrowers

    def _forerunner(self, job: LiveJob) -> LiveJob | None:
        """The last job of the same owner, name and script that has been measured."""
        if job.kind is JobKind.PLAIN:
            return None
        recent = islice(reversed(self.jobs.values()), MOST_FORERUNNERS)
        return next((other for other in recent if other.measured and _kind(other) == _kind(job)), None)

    def _plan(self, at_s: float, job_id: str, target: Placement | None, reason: str) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.phase.is_terminal or target == job.target:
            return
        before, after = (place.num_slots if place else 0 for place in (job.target, target))
        executed = job.executed_before_s + (at_s - job.target_since_s if job.target else 0.0)
        moved = job.target is not None and target is not None
        what = "to other slots" if before == after else f"{before} → {after} slots"
        text = f"planned: {what}" + (f" ({printable(reason)})" if reason else "")
        self.jobs[job_id] = replace(
            job.told(at_s, text),
            target=target,
            why=printable(reason),
            target_since_s=at_s,
            executed_before_s=executed,
            restarts=job.restarts + (moved or (target is not None and job.state.first_started_at_s is not None)),
        )

    def _lose_nodes(self, at_s: float, job: LiveJob, nodes: Set[str], reason: str) -> None:
        """A job's target without the nodes that are gone."""
        if job.target is not None:
            self._withdraw(at_s, job, {slot for slot in job.target.slots() if slot[0] in nodes}, reason)

    def _withdraw(self, at_s: float, job: LiveJob, slots: Set[tuple[str, int]], reason: str) -> None:
        """A job's target without some slots; none at all if it needs more than is left."""
        wanted = set() if job.target is None else set(job.target.slots())
        if wanted & slots:
            left = wanted - slots
            enough = len(left) >= job.spec.min_slots and job.elastic
            self._plan(at_s, job.id, Placement.of_slots(left) if enough else None, reason)

    def _change(self, at_s: float, job: LiveJob, record: r.Record) -> LiveJob:
        state = job.state
        match record:
            case r.JobStarting() if state.phase is JobPhase.PENDING:
                state = state.move(JobPhase.STARTING, at_s=at_s, placement=record.placement)
                slots = record.placement.num_slots
                return replace(job, state=state).told(at_s, f"starting on {slots} slot{'s' if slots > 1 else ''}")
            case r.JobKindKnown():
                kind = JobKind(record.job_kind)
                known = replace(job, elastic=kind is JobKind.ELASTIC, kind=kind, kind_reason=record.reason)
                return known.told(at_s, f"{kind}: {printable(record.reason)}")
            case r.JobReady():
                values = {one.name: getattr(record, one.name) for one in fields(Limits)}
                return replace(job, limits=Limits(**values))
            case r.JobRescaling() if state.phase is JobPhase.RUNNING:
                return replace(job, state=state.move(JobPhase.RESCALING, at_s=at_s, placement=record.placement))
            case r.JobRescaling() if state.phase.holds_slots:  # what it holds on its way, whichever that is
                return replace(job, state=replace(state.advance(at_s=at_s), placement=record.placement))
            case r.JobFormed() if state.phase.holds_slots and state.phase is not JobPhase.STOPPING:
                return self._form(at_s, job, record)
            case r.JobProgressed() if state.phase.holds_slots:
                return self._progress(at_s, job, record)
            case r.JobCheckpointed() if state.phase.holds_slots:
                share = min(1.0, record.samples / job.samples) if job.samples else 0.0
                durable = max(state.durable_samples, share * state.progress_samples)
                saved = max(job.saved_samples, min(record.samples, job.samples))
                return replace(job, state=state.advance(at_s=at_s, durable_samples=durable), saved_samples=saved)
            case r.WorkerLost() if state.phase.holds_slots:
                reason = printable(record.reason)
                how = reason if reason.startswith("ended") else f"ended: {reason}"
                return job.told(at_s, f"worker {record.worker} on {record.slot} {how}")
            case r.JobStopping() if state.phase.holds_slots and state.phase is not JobPhase.STOPPING:
                reason = printable(record.reason)
                state = state.move(JobPhase.STOPPING, at_s=at_s, reason=reason)
                return replace(job, state=state).told(at_s, f"stopping: {reason}")
            case r.JobEnded():
                return self._end(at_s, job, replace(record, reason=printable(record.reason)))
            case r.JobWished():
                return self._wish(at_s, job, record)
            case r.JobHeld():
                return self._hold(at_s, job, record)
            case r.JobChanged():
                asked = ((name, getattr(record, name)) for name in ("priority", "min_slots", "max_slots"))
                changes: dict[str, Any] = {name: value for name, value in asked if value is not None}
                text = ", ".join(f"{name} = {value}" for name, value in changes.items())
                if (resizes := changes.keys() != {"priority"}) and not job.elastic and state.phase.holds_slots:
                    text += "; its size changes when its script has called geminid.init()"
                if resizes:  # what could not be done before may be possible now
                    job = replace(job, held_until_s=0.0, stays_until_s=0.0, stays_put_until_s=0.0)
                changed = replace(job, state=replace(state, spec=replace(job.spec, **changes)))
                return changed.told(at_s, f"{record.by} set {text}")
            case _:
                return job

    def _form(self, at_s: float, job: LiveJob, record: r.JobFormed) -> LiveJob:
        state, slots = job.state, record.placement.num_slots
        had_trained = job.samples > 0
        if record.restored and state.phase in (JobPhase.RUNNING, JobPhase.RESCALING):  # all of its workers were lost
            job = job.failed_again()
            state = state.crash(at_s=at_s, reason="all of its workers were lost", in_a_row=job.fruitless)
            job = replace(job, samples=job.saved_samples)
            if state.phase.is_terminal:
                return self._unplanned(at_s, replace(job, state=state)).told(at_s, "failed: too many crashes")
            state = state.move(JobPhase.STARTING, at_s=at_s, placement=record.placement)
        if state.phase is JobPhase.RUNNING and state.placement != record.placement:
            state = state.move(JobPhase.RESCALING, at_s=at_s, placement=record.placement)
        most = state.spec.max_slots
        if state.phase is JobPhase.RUNNING:
            state = state.advance(at_s=at_s)
        elif state.spec.min_slots <= slots and (most is None or slots <= most):
            state = state.move(JobPhase.RUNNING, at_s=at_s, placement=record.placement)
        else:  # survivors of a job that needs more: they wait for others, and it is not yet what it should be
            state = replace(
                state.advance(at_s=at_s),
                placement=record.placement,
                max_slots_used=max(state.max_slots_used, slots),
            )
        where = f"{'training' if job.elastic else 'running'} on {slots} slot{'s' if slots > 1 else ''}"
        if job.elastic and slots < state.spec.min_slots:
            left = f"{slots} slot{'s' if slots > 1 else ''}"
            where = f"waiting on {left} for the workers it has lost: it needs {state.spec.min_slots}"
        how = ""
        if record.restored and had_trained:
            job, state, how = self._restored(job, state, record.samples)
        pause_s = record.pause_s
        if pause_s is not None and pause_s > at_s - (state.first_started_at_s or 0.0):
            pause_s = None  # a job says so itself: it cannot have stood still for longer than it has run
        formed = replace(job, state=state, reported=None, formed_at_s=at_s).told(at_s, where + how, pause_s)
        if pause_s is None:
            return formed
        return replace(formed, pauses_s=(*job.pauses_s, max(pause_s, 0.0))[-MOST_PAUSES:])

    @staticmethod
    def _restored(job: LiveJob, state: JobState, samples: int | None) -> tuple[LiveJob, JobState, str]:
        """A job that goes on from a checkpoint: the last one, an older one or, if none could be used, none at all."""
        if not job.saved_samples and not samples:
            return job, state, " from the beginning: nothing was saved"
        if samples is None or samples >= job.saved_samples:
            return job, state, " from its last checkpoint"
        share = samples / job.saved_samples
        state = replace(
            state,
            progress_samples=share * min(state.progress_samples, state.durable_samples),
            durable_samples=share * state.durable_samples,
        )
        how = " from an older checkpoint: the last could not be used"
        if not samples:
            how = " from the beginning: no checkpoint was used"
        return replace(job, samples=samples, saved_samples=samples), state, how

    def _progress(self, at_s: float, job: LiveJob, record: r.JobProgressed) -> LiveJob:
        state = job.state
        plan = BatchPlan(per_slot_batch_samples=record.per_slot_batch, accumulation_steps=record.accumulation_steps)
        state = state.advance(at_s=at_s, progress_samples=max(state.progress_samples, record.progress), batch_plan=plan)
        retuned = job.state.batch_plan is not None and plan != job.state.batch_plan
        gradient = job.gradient
        if record.squared_gradient is not None and record.variance is not None:
            gradient = GradientStats.clamped(record.squared_gradient, record.variance)
        stretches = job.stretches
        if job.reported is not None and not retuned and record.step > job.reported[1]:
            stretches = self._stretched(job, record, at_s - job.reported[0], record.step - job.reported[1])
        changed = replace(
            job,
            state=state,
            stretches=stretches,
            reported=(at_s, record.step),
            samples=max(job.samples, record.samples),
            step=record.step,
            epoch=record.epoch,
            learning_rate_factor=record.learning_rate_factor,
            metrics=tuple(sorted((printable(name), value) for name, value in record.metrics.items())),
            gradient=gradient,
            measured=self._measured(job, record),
        )
        if retuned:
            total = total_batch(job, plan, record.slots)
            passes = f" × {record.accumulation_steps + 1} passes" if record.accumulation_steps else ""
            changed = changed.told(at_s, f"re-tuned: batch {total} ({record.per_slot_batch} a slot{passes})")
        return changed

    def _measured(self, job: LiveJob, record: r.JobProgressed) -> tuple[tuple[str, Profile], ...]:
        seen, place = observation_of(record), job.state.placement
        if seen is None or place is None or place.num_slots != record.slots:
            return job.measured
        gpu_type = self.gpu_types.get(place.node_names[0], "cpu")
        profiles = dict(job.measured)
        profiles[gpu_type] = profiles.get(gpu_type, Profile()).record(seen)
        return tuple(sorted(profiles.items()))

    def _stretched(self, job: LiveJob, record: r.JobProgressed, seconds: float, steps: int) -> tuple[Stretch, ...]:
        """The job's stretches with so many more steps."""
        place = job.state.placement
        if place is None or place.num_slots != record.slots:
            return job.stretches
        gpu_type = self.gpu_types.get(place.node_names[0], "cpu")
        now = Stretch(gpu_type, record.slots, record.per_slot_batch, record.accumulation_steps, seconds, steps)
        before = next((known for known in job.stretches if known.alike(now)), None)
        if before is not None:
            now = replace(now, seconds=before.seconds + seconds, steps=before.steps + steps)
        return (*(known for known in job.stretches if known is not before), now)[-MOST_STRETCHES:]

    def _end(self, at_s: float, job: LiveJob, record: r.JobEnded) -> LiveJob:
        state = job.state
        if not state.phase.holds_slots and record.how != "failed":
            return job
        if record.how == "succeeded":
            state = state.move(JobPhase.SUCCEEDED, at_s=at_s, reason=record.reason)
        elif record.how == "failed":
            if JobPhase.FAILED not in TRANSITIONS[state.phase]:
                return job
            state = state.move(JobPhase.FAILED, at_s=at_s, reason=record.reason)
            state = replace(state, failures=max(state.failures, record.failures))
        elif record.how in ("crashed", "lost", "unstarted"):
            counts = record.how == "crashed"
            job = job.failed_again() if counts else job
            in_a_row = job.fruitless if job.elastic else None
            state = state.crash(at_s=at_s, reason=record.reason, counts=counts, in_a_row=in_a_row)
        elif record.how == "held":
            if job.wish == "run":
                job = replace(job, wish="pause", wished=f"paused: {record.reason}", rests_since_s=at_s)
            state = state.move(JobPhase.PENDING, at_s=at_s, reason=record.reason)
        else:
            state = state.move(JobPhase.PENDING, at_s=at_s, reason=record.reason or state.reason)
        held_until_s = job.held_until_s
        if record.how == "crashed":
            in_a_row = job.fruitless if job.elastic else state.failures
            held_until_s = at_s + min(FIRST_RETRY_S * 2 ** min(in_a_row - 1, 10), LAST_RETRY_S)
        elif record.how == "unstarted":
            held_until_s = at_s + FIRST_RETRY_S
        ended = replace(job, state=state, held_until_s=held_until_s)
        if state.phase is JobPhase.PENDING and job.wish != "run":
            to = JobPhase.PAUSED if job.wish == "pause" else JobPhase.CANCELLED
            ended = replace(ended, state=state.move(to, at_s=at_s, reason=job.wished or record.reason))
        if record.how in ("crashed", "lost", "unstarted", "held"):
            ended = replace(ended, samples=ended.saved_samples)
        if ended.phase is not JobPhase.PENDING or job.phase is not JobPhase.STOPPING:
            ended = self._unplanned(at_s, ended)
        why = ended.state.reason or record.reason
        text = ended.phase.value if not why or why.startswith(ended.phase.value) else f"{ended.phase.value}: {why}"
        return ended.told(at_s, text)

    def _hold(self, at_s: float, job: LiveJob, record: r.JobHeld) -> LiveJob:
        """The job where it is, or waiting: it could not come to the slots that it was planned for."""
        reason, until_s = printable(record.reason), at_s + record.for_s
        if job.phase is JobPhase.PENDING:
            held = replace(job, state=replace(job.state, reason=reason), held_until_s=until_s)
            return self._unplanned(at_s, held).told(at_s, f"pending: {reason}; it is tried again in {record.for_s:g} s")
        place = record.placement or job.state.placement
        if place is None or job.target is None or not job.phase.holds_slots or job.phase is JobPhase.STOPPING:
            return job
        if place.num_slots < job.spec.min_slots:
            waits = replace(self._unplanned(at_s, job), held_until_s=until_s, why=reason)
            return waits.told(at_s, f"it waits for {record.for_s:g} s: {reason}")
        slots = f"{place.num_slots} slot{'s' if place.num_slots > 1 else ''}"
        told = job.told(at_s, f"it stays on {slots} for {record.for_s:g} s: {reason}")
        for other in list(self.jobs.values()):  # they do without the slots that it stays on, or are planned anew
            if other.id != job.id:
                self._withdraw(at_s, other, set(place.slots()), f"{job.id} stays where it is")
        was_to_grow = set(place.slots()) <= set(job.target.slots())
        return replace(
            told,
            target=place,
            target_since_s=at_s,
            stays_until_s=until_s,
            stays_put_until_s=job.stays_put_until_s if was_to_grow else until_s,
            executed_before_s=job.executed_s(at_s),
        )

    def _unplanned(self, at_s: float, job: LiveJob) -> LiveJob:
        """The job without a target: its place in the plan ended with its processes."""
        if job.target is None:
            return job
        executed = job.executed_before_s + at_s - job.target_since_s
        return replace(job, target=None, target_since_s=at_s, executed_before_s=executed)

    def _wish(self, at_s: float, job: LiveJob, record: r.JobWished) -> LiveJob:
        state = job.state
        words = {"run": "resumed", "pause": "paused", "cancel": "cancelled"}
        told = f"{words[record.wish]} by {record.by}"
        if record.over_budget:
            told = f"its gpu_time_budget of {job.spec.budget_gpu_s:g} slot-seconds is used up"
        if record.wish == "run" and state.phase is JobPhase.PAUSED:
            state = state.move(JobPhase.PENDING, at_s=at_s, reason=told)
        elif record.wish == "pause" and state.phase is JobPhase.PENDING:
            state = state.move(JobPhase.PAUSED, at_s=at_s, reason=told)
        elif record.wish == "cancel" and state.phase in (JobPhase.PENDING, JobPhase.PAUSED):
            state = state.move(JobPhase.CANCELLED, at_s=at_s, reason=told)
        wish = "cancel" if job.wish == "cancel" else record.wish  # nothing calls a cancelled job back
        wished = replace(job, state=state, wish=wish, wished=told, over_budget=job.over_budget or record.over_budget)
        if record.wish == "pause" and job.rests_since_s is None:
            wished = replace(wished, rests_since_s=at_s)
        elif record.wish == "run" and job.rests_since_s is not None:
            wished = replace(wished, rested_s=job.rested_s + at_s - job.rests_since_s, rests_since_s=None)
        wished = replace(wished, held_until_s=0.0) if record.wish == "run" else self._unplanned(at_s, wished)
        return wished.told(at_s, told)

    # --- What must hold ---

    def plan_problems(self, targets: Mapping[str, Placement | None], placed: Iterable[str] | None = None) -> list[str]:
        """What is wrong with a plan, in sentences: sizes that were not asked for, and more slots than a quota has.

        Where a quota was lowered below what is in use, a plan must not use more of it than before; those who may borrow
        are not bound by theirs. ``placed`` are the jobs that have slots, where that is known.
        """
        problems = []
        used_before: Counter[str] = Counter()
        used: Counter[str] = Counter()
        quotas: dict[str, int] = {}
        involved = self.jobs if placed is None else {**dict.fromkeys(placed), **targets}
        for job in (self.jobs[job_id] for job_id in involved):
            target = targets.get(job.id, job.target)
            before, after = (place.num_slots if place else 0 for place in (job.target, target))
            least, most = job.spec.min_slots, job.spec.max_slots
            if after not in (0, before) and not (least <= after and (most is None or after <= most)):
                problems.append(f"job {job.id} was given {after} slots, and asked for {least} to {most or 'any'}")
            for name, slots in self.quotas_of(job.id).items():
                quotas[name] = slots
                used_before[name] += before
                used[name] += after
        problems += [
            f"the quota of {name} is {slots} slots, and {used[name]} were given"
            for name, slots in quotas.items()
            if used[name] > max(slots, used_before[name]) and not self.may_borrow(name)
        ]
        return problems

    def check(self) -> None:
        """Raise if a slot is planned for two jobs, held by two, or by one that is over."""
        active = [job for job in self.jobs.values() if not job.phase.is_terminal]
        for what, placements in (
            ("planned for", [job.target for job in active if job.target]),
            ("held by", [job.state.placement for job in active if job.state.placement]),
        ):
            if twice := double_grants(placements):
                raise AssertionError(f"slots {sorted(twice)} are {what} two jobs")
        for job in self.jobs.values():
            if job.phase.is_terminal and (job.target or job.state.placement):
                raise AssertionError(f"job {job.id} is {job.phase} and has slots")

    # --- How it is written ---

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, with the jobs' secrets."""
        return {
            "seq": self.seq,
            "at_s": self.at_s,
            "epoch": self.epoch,
            "submitted": self.submitted,
            "jobs": [job_to_dict(job) for job in self.jobs.values()],
            "requests": self.requests,
            "drained": sorted(self.drained),
            "cordoned": sorted([node, slot] for node, slot in self.cordoned),
            "quotas": [[of, name, slots] for (of, name), slots in sorted(self.quotas.items())],
            "borrowers": sorted([of, name] for of, name in self.borrowers),
            "notes": [list(note) for note in self.notes],
            "gpu_types": dict(self.gpu_types),
            "forgotten": {owner: list(astuple(totals)) for owner, totals in self.forgotten.items()},
            "down": sorted(self.down),
            "leaving": sorted(self.leaving),
            "taken": sorted([node, slot] for node, slot in self.taken),
            "unfit": dict(self.unfit),
            "slots": dict(self.slots),
            "queues": {name: rules.to_dict() for name, rules in sorted(self.queues.items())},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ServiceState:
        """The state that was written."""
        jobs = [read_job(entry) for entry in plain["jobs"]]
        return cls(
            seq=plain["seq"],
            at_s=plain["at_s"],
            epoch=plain["epoch"],
            submitted=plain["submitted"],
            jobs={job.id: job for job in jobs},
            requests=dict(plain["requests"]),
            drained=frozenset(plain["drained"]),
            cordoned=frozenset((node, slot) for node, slot in plain["cordoned"]),
            quotas={(of, name): slots for of, name, slots in plain["quotas"]},
            borrowers=frozenset((of, name) for of, name in plain.get("borrowers", ())),
            notes=tuple((at_s, level, text) for at_s, level, text in plain["notes"]),
            gpu_types=dict(plain["gpu_types"]),
            forgotten={owner: Totals(*totals) for owner, totals in plain.get("forgotten", {}).items()},
            down=frozenset(plain.get("down", ())),
            leaving=frozenset(plain.get("leaving", ())),
            taken=frozenset((node, slot) for node, slot in plain.get("taken", ())),
            unfit=dict(plain.get("unfit", {})),
            slots=dict(plain.get("slots", {})),
            queues={name: QueueRules.from_dict(rules) for name, rules in plain.get("queues", {}).items()},
        )


def _kind(job: LiveJob) -> tuple[str | None, str, tuple[str, ...], str | None]:
    """What jobs have in common that should be equally fast."""
    return (job.spec.owner, job.spec.name, job.spec.command[:2], job.spec.working_dir)
