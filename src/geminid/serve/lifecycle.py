"""One job's life: what each record makes of a job. Pure functions; ``state.py`` holds all jobs.

Records about jobs come from processes that may die, repeat themselves or report late. A record that does not fit the
job's phase leaves the job as it is, or raises :class:`~geminid.jobstate.IllegalTransition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from geminid.configuration import BatchPlan, Placement
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Profile
from geminid.job import JobKind
from geminid.jobstate import TRANSITIONS, JobPhase, JobState
from geminid.serve import records as r
from geminid.serve.jobarray import INDEX, JobArray, element_id
from geminid.serve.livejob import LiveJob, ScriptFacts, Stretch, TimeUse, observation_of, printable, total_batch
from geminid.units import format_duration, humanize_duration

#: Pauses that are kept of a job, the latest ones.
MAX_PAUSES = 500

#: Combinations of slots and batch plan for which the training time of a job is kept, the latest ones.
MAX_STRETCHES = 32

#: First delay in seconds before a crashed job is started again; doubles with every further crash.
FIRST_RETRY_S = 1.0

#: Longest delay in seconds before a crashed job is started again.
MAX_RETRY_S = 60.0

#: Longest delay in seconds before a crashed job is started again whose retry rule sets the first one.
MAX_RULE_RETRY_S = 3600.0

#: How long in seconds a job that is queued again after its time limit lets others go first.
REQUEUE_S = 5.0

#: What is written into a job's story when its owner asks for something.
REQUESTS = {"run": "resumed", "pause": "paused", "cancel": "cancelled"}


def submitted(record: r.JobSubmitted, at_s: float) -> LiveJob:
    """A new job."""
    job = LiveJob(
        state=JobState.submitted(job_id=record.job_id, spec=record.spec, at_s=at_s),
        elastic=record.elastic,
        kind=JobKind(record.job_kind or JobKind.PLAIN),
        kind_reason=record.kind_reason or "an earlier version of geminid has decided so",
        request=record.request,
        digest=record.digest,
        code=record.code,
        blocked=bool(record.spec.after),
        array=None if record.spec.array is None else JobArray(total=len(record.spec.array)),
    )
    return job.with_story(at_s, f"submitted by {record.spec.owner or 'nobody'}")


def as_fast_as(job: LiveJob, at_s: float, like: LiveJob | None) -> LiveJob:
    """A new job that is taken to be as fast as ``like``, an earlier job of the same kind, until it is measured."""
    if like is None or like.limits is None or job.kind is JobKind.PLAIN or job.array is not None:
        return job
    limits = replace(like.limits, dataset_samples=None, work_samples=None)
    job = replace(job, limits=limits, measured=like.measured, gradient=like.gradient)
    return job.with_story(at_s, f"taken to be as fast as {like.id} until it is measured itself")


def element(array: LiveJob, number: int) -> LiveJob:
    """An element of an array, as it is made. It counts as submitted when its array was."""
    env = {**dict(array.spec.env), INDEX: str(number)}
    spec = replace(array.spec, array=None, after=(), env=tuple(env.items()))
    at_s = array.state.submitted_at_s
    return LiveJob(
        state=JobState.submitted(job_id=element_id(array.id, number), spec=spec, at_s=at_s),
        elastic=array.elastic,
        kind=array.kind,
        kind_reason=array.kind_reason,
        code=array.code,
    ).with_story(at_s, f"submitted by {spec.owner or 'nobody'}")


def counted(job: LiveJob, at_s: float, array: JobArray) -> LiveJob:
    """An array with other counts of its elements; it ends with the last of them."""
    state = job.state
    at_s = max(at_s, state.updated_at_s)
    if array.running and state.first_started_at_s is None:
        state = replace(state, first_started_at_s=at_s, phase_since_s=at_s, updated_at_s=at_s)
    if job.phase.is_terminal or not array.is_over:
        return replace(job, state=state, array=array)
    phase, reason = array.outcome(job.id)
    if job.wish == "cancel":
        phase, reason = JobPhase.CANCELLED, job.wished
    state = replace(state, phase=phase, phase_since_s=at_s, finished_at_s=at_s, updated_at_s=at_s, reason=reason)
    text = phase.value if not reason or reason.startswith(phase.value) else f"{phase.value}: {reason}"
    return replace(job, state=state, array=array).with_story(at_s, text)


def _out_of_time(job: LiveJob, at_s: float, *, requeue: bool) -> LiveJob:
    """The job at the end of its time limit: it saves, and ends or waits in the queue again."""
    text = f"its time limit of {format_duration(job.spec.time_limit_s or 0.0)} is over"
    if requeue:
        waits = replace(unplanned(job, at_s), held_until_s=at_s + REQUEUE_S, why=f"{text}: it is queued again")
        return replace(waits, time=TimeUse(from_s=waits.executed_s(at_s))).with_story(at_s, waits.why)
    ends = replace(unplanned(job, at_s), wish="cancel", wished=text, time=replace(job.time, is_up=True))
    if job.phase is JobPhase.PENDING:
        ends = replace(ends, state=job.state.move(JobPhase.FAILED, at_s=at_s, reason=text))
    return ends.with_story(at_s, text)


def _settled(job: LiveJob, at_s: float, record: r.DependenciesSettled) -> LiveJob:
    """The job after the jobs that it waits for are over."""
    if not job.blocked:
        return job
    if record.met:
        return replace(job, blocked=False).with_story(at_s, "the jobs that it waits for are over")
    reason = printable(record.reason)
    if job.array is not None:
        return counted(replace(job, wish="cancel", wished=reason), at_s, job.array.skip_all())
    cancelled = replace(job, state=job.state.move(JobPhase.CANCELLED, at_s=at_s, reason=reason), wish="cancel")
    return cancelled.with_story(at_s, f"cancelled: {reason}")


def continued(job: LiveJob, at_s: float) -> LiveJob:
    """A job that ran although the log does not know it: it has been started, and its folder is its own."""
    state = job.state
    if state.first_started_at_s is None:
        job = replace(job, state=replace(state, first_started_at_s=state.phase_since_s))
    restart = "begins again" if job.kind is JobKind.PLAIN else "continues from its newest checkpoint, if it has one"
    return job.with_story(at_s, f"the log was recovered and does not know how far this job had come: it {restart}")


def changed(job: LiveJob, at_s: float, record: r.Record, gpu_types: Mapping[str, str]) -> LiveJob:
    """The job after a record about it. ``gpu_types`` are those of the nodes, by name."""
    state = job.state
    match record:
        case r.JobStarting() if state.phase is JobPhase.PENDING:
            state = state.move(JobPhase.STARTING, at_s=at_s, placement=record.placement)
            return replace(job, state=state).with_story(at_s, f"starting on {_slots(record.placement.num_slots)}")
        case r.JobKindKnown():
            kind = JobKind(record.job_kind)
            known = replace(job, elastic=kind is JobKind.ELASTIC, kind=kind, kind_reason=record.reason)
            return known.with_story(at_s, f"{kind}: {printable(record.reason)}")
        case r.JobReady():
            said = {one.name: getattr(record, one.name) for one in fields(record) if one.name != "job_id"}
            return replace(job, limits=ScriptFacts.of(**said))
        case r.JobRescaling() if state.phase is JobPhase.RUNNING:
            return replace(job, state=state.move(JobPhase.RESCALING, at_s=at_s, placement=record.placement))
        case r.JobRescaling() if state.phase.holds_slots:  # it was on its way to other slots already
            return replace(job, state=replace(state.advance(at_s=at_s), placement=record.placement))
        case r.JobFormed() if state.phase.holds_slots and state.phase is not JobPhase.STOPPING:
            return _formed(job, at_s, record)
        case r.JobProgressed() if state.phase.holds_slots:
            return _progressed(job, at_s, record, gpu_types)
        case r.JobCheckpointed() if state.phase.holds_slots:
            share = min(1.0, record.samples / job.samples) if job.samples else 0.0
            durable = max(state.durable_samples, share * state.progress_samples)
            saved = max(job.saved_samples, min(record.samples, job.samples))
            return replace(job, state=state.advance(at_s=at_s, durable_samples=durable), saved_samples=saved)
        case r.WorkerLost() if state.phase.holds_slots:
            reason = printable(record.reason)
            how = reason if reason.startswith("ended") else f"ended: {reason}"
            return job.with_story(at_s, f"worker {record.worker} on {record.slot} {how}")
        case r.JobStopping() if state.phase.holds_slots and state.phase is not JobPhase.STOPPING:
            reason = printable(record.reason)
            state = state.move(JobPhase.STOPPING, at_s=at_s, reason=reason)
            return replace(job, state=state).with_story(at_s, f"stopping: {reason}")
        case r.JobEnded():
            return _ended(job, at_s, replace(record, reason=printable(record.reason)))
        case r.JobWished() if job.array is not None and record.wish == "cancel":
            text = f"cancelled by {record.by}"
            asked = replace(job, wish="cancel", wished=text).with_story(at_s, text)
            return counted(asked, at_s, job.array.skip_all())
        case r.ElementSkipped() if job.array is not None:
            skipped = job.with_story(at_s, f"element {record.element} cancelled by {record.by}")
            return counted(skipped, at_s, job.array.skip(record.element))
        case r.DependenciesSettled():
            return _settled(job, at_s, record)
        case r.TimeLimitNear():
            warned = replace(job, time=replace(job.time, warned=True))
            return warned.with_story(at_s, f"its time limit is over in {humanize_duration(round(record.left_s))}")
        case r.TimeLimitReached() if job.target is not None:
            return _out_of_time(job, at_s, requeue=record.requeue)
        case r.JobWished():
            return _requested(job, at_s, record)
        case r.JobHeld():
            return _held(job, at_s, record)
        case r.JobChanged():
            return _respecified(job, at_s, record)
        case _:
            return job


def planned(job: LiveJob, at_s: float, target: Placement | None, reason: str) -> LiveJob:
    """The job with another target: the slots that a plan gives it, or None."""
    if job.phase.is_terminal or target == job.target:
        return job
    before, after = (place.num_slots if place else 0 for place in (job.target, target))
    moved = job.target is not None and target is not None
    what = "to other slots" if before == after else f"{before} → {after} slots"
    text = f"planned: {what}" + (f" ({printable(reason)})" if reason else "")
    return replace(
        job.with_story(at_s, text),
        target=target,
        why=printable(reason),
        target_since_s=at_s,
        executed_before_s=job.executed_s(at_s),
        restarts=job.restarts + (moved or (target is not None and job.state.first_started_at_s is not None)),
    )


def without_slots(job: LiveJob, at_s: float, slots: set[tuple[str, int]], reason: str) -> LiveJob:
    """The job with a target without some slots; with none if it needs more than the rest of its slots."""
    target = set() if job.target is None else set(job.target.slots())
    if not target & slots:
        return job
    rest = target - slots
    enough = len(rest) >= job.spec.min_slots and job.elastic
    return planned(job, at_s, Placement.of_slots(rest) if enough else None, reason)


def unplanned(job: LiveJob, at_s: float) -> LiveJob:
    """The job without a target: its part in the plan ended with its processes."""
    if job.target is None:
        return job
    return replace(job, target=None, target_since_s=at_s, executed_before_s=job.executed_s(at_s))


def stays_on(job: LiveJob, record: r.JobHeld) -> Placement | None:
    """The slots that a running job stays on because it cannot get to its target; None if it does not stay."""
    place = record.placement or job.state.placement
    if job.phase is JobPhase.PENDING or not job.phase.holds_slots or job.phase is JobPhase.STOPPING:
        return None
    return place if place is not None and job.target is not None and place.num_slots >= job.spec.min_slots else None


def _formed(job: LiveJob, at_s: float, record: r.JobFormed) -> LiveJob:
    """The job's workers train together on exactly the slots of the record."""
    state, slots = job.state, record.placement.num_slots
    had_trained = job.samples > 0
    if record.restored and state.phase in (JobPhase.RUNNING, JobPhase.RESCALING):  # all of its workers were lost
        job = job.failed_again()
        state = state.crash(at_s=at_s, reason="all of its workers were lost", in_a_row=job.fruitless)
        job = replace(job, samples=job.saved_samples)
        if state.phase.is_terminal:
            return unplanned(replace(job, state=state), at_s).with_story(at_s, "failed: too many crashes")
        state = state.move(JobPhase.STARTING, at_s=at_s, placement=record.placement)
    if state.phase is JobPhase.RUNNING and state.placement != record.placement:
        state = state.move(JobPhase.RESCALING, at_s=at_s, placement=record.placement)
    most = state.spec.max_slots
    if state.phase is JobPhase.RUNNING:
        state = state.advance(at_s=at_s)
    elif state.spec.min_slots <= slots and (most is None or slots <= most):
        state = state.move(JobPhase.RUNNING, at_s=at_s, placement=record.placement)
    else:  # survivors of a job that needs more slots: they wait for new workers
        used = max(state.max_slots_used, slots)
        state = replace(state.advance(at_s=at_s), placement=record.placement, max_slots_used=used)
    text = f"{'training' if job.elastic else 'running'} on {_slots(slots)}"
    if job.elastic and slots < state.spec.min_slots:
        text = f"waiting on {_slots(slots)} for the workers it has lost: it needs {state.spec.min_slots}"
    if record.restored and had_trained:
        job, state, origin = _restored(job, state, record.samples)
        text += origin
    pause_s = record.pause_s
    if pause_s is not None and pause_s > at_s - (state.first_started_at_s or 0.0):
        pause_s = None  # the job reports it: no pause is longer than the time since its first start
    formed = replace(job, state=state, reported=None, formed_at_s=at_s).with_story(at_s, text, pause_s)
    if pause_s is None:
        return formed
    return replace(formed, pauses_s=(*job.pauses_s, max(pause_s, 0.0))[-MAX_PAUSES:])


def _restored(job: LiveJob, state: JobState, samples: int | None) -> tuple[LiveJob, JobState, str]:
    """A job that continues from a checkpoint with these samples, and from which: the last, an older one, or none."""
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
    origin = " from an older checkpoint: the last could not be used"
    if not samples:
        origin = " from the beginning: no checkpoint was used"
    return replace(job, samples=samples, saved_samples=samples), state, origin


def _progressed(job: LiveJob, at_s: float, record: r.JobProgressed, gpu_types: Mapping[str, str]) -> LiveJob:
    """The job with its latest report."""
    plan = BatchPlan(per_slot_batch_samples=record.per_slot_batch, accumulation_steps=record.accumulation_steps)
    progress = max(job.state.progress_samples, record.progress)
    state = job.state.advance(at_s=at_s, progress_samples=progress, batch_plan=plan)
    retuned = job.state.batch_plan is not None and plan != job.state.batch_plan
    gradient = job.gradient
    if record.squared_gradient is not None and record.variance is not None:
        gradient = GradientStats.clamped(record.squared_gradient, record.variance)
    place, measured, stretches = job.state.placement, job.measured, job.stretches
    observation = observation_of(record)
    if place is not None and place.num_slots == record.slots:  # a report from before a resize says nothing of these
        gpu_type = gpu_types.get(place.node_names[0], "cpu")
        if observation is not None:
            profiles = dict(measured)
            profiles[gpu_type] = profiles.get(gpu_type, Profile()).record(observation)
            measured = tuple(sorted(profiles.items()))
        if job.reported is not None and not retuned and record.step > job.reported[1]:
            seconds, steps = at_s - job.reported[0], record.step - job.reported[1]
            batch = record.per_slot_batch, record.accumulation_steps
            stretches = _stretched(job, Stretch(gpu_type, record.slots, *batch, seconds, steps))
    result = replace(
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
        measured=measured,
    )
    if not retuned:
        return result
    passes = f" × {record.accumulation_steps + 1} passes" if record.accumulation_steps else ""
    batch_text = f"{total_batch(job, plan, record.slots)} ({record.per_slot_batch} a slot{passes})"
    return result.with_story(at_s, f"re-tuned: batch {batch_text}")


def _stretched(job: LiveJob, latest: Stretch) -> tuple[Stretch, ...]:
    """The job's training times, with the latest one added to those with the same slots and batch plan."""
    before = next((known for known in job.stretches if known.alike(latest)), None)
    if before is not None:
        latest = replace(latest, seconds=before.seconds + latest.seconds, steps=before.steps + latest.steps)
    return (*(known for known in job.stretches if known is not before), latest)[-MAX_STRETCHES:]


def _ended(job: LiveJob, at_s: float, record: r.JobEnded) -> LiveJob:
    """The job without processes: over, waiting to be started again, paused or cancelled."""
    state = job.state
    if not state.phase.holds_slots and record.how != "failed":
        return job
    held_until_s = job.held_until_s
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
        if counts:
            crashes = job.fruitless if job.elastic else state.failures
            longest_s = MAX_RETRY_S if record.retry_s is None else MAX_RULE_RETRY_S
            held_until_s = at_s + min((record.retry_s or FIRST_RETRY_S) * 2 ** min(crashes - 1, 10), longest_s)
        elif record.how == "unstarted":
            held_until_s = at_s + FIRST_RETRY_S
    elif record.how == "held":
        if job.wish == "run":
            job = replace(job, wish="pause", wished=f"paused: {record.reason}", rests_since_s=at_s)
        state = state.move(JobPhase.PENDING, at_s=at_s, reason=record.reason)
    else:
        state = state.move(JobPhase.PENDING, at_s=at_s, reason=record.reason or state.reason)
    ended = replace(job, state=state, held_until_s=held_until_s)
    if state.phase is JobPhase.PENDING and job.wish != "run":
        to = JobPhase.PAUSED if job.wish == "pause" else JobPhase.CANCELLED
        to = JobPhase.FAILED if job.time.is_up else to
        ended = replace(ended, state=state.move(to, at_s=at_s, reason=job.wished or record.reason))
    if record.how in ("crashed", "lost", "unstarted", "held"):
        ended = replace(ended, samples=ended.saved_samples)
    if ended.phase is not JobPhase.PENDING or job.phase is not JobPhase.STOPPING:
        ended = unplanned(ended, at_s)
    why = ended.state.reason or record.reason
    text = ended.phase.value if not why or why.startswith(ended.phase.value) else f"{ended.phase.value}: {why}"
    return ended.with_story(at_s, text)


def _held(job: LiveJob, at_s: float, record: r.JobHeld) -> LiveJob:
    """The job where it is, or waiting: it could not get to its target."""
    reason, until_s = printable(record.reason), at_s + record.for_s
    if job.phase is JobPhase.PENDING:
        held = replace(job, state=replace(job.state, reason=reason), held_until_s=until_s)
        text = f"pending: {reason}; it is tried again in {record.for_s:g} s"
        return unplanned(held, at_s).with_story(at_s, text)
    place = record.placement or job.state.placement
    if place is None or job.target is None or not job.phase.holds_slots or job.phase is JobPhase.STOPPING:
        return job
    if place.num_slots < job.spec.min_slots:
        waits = replace(unplanned(job, at_s), held_until_s=until_s, why=reason)
        return waits.with_story(at_s, f"it waits for {record.for_s:g} s: {reason}")
    was_to_grow = set(place.slots()) <= set(job.target.slots())
    return replace(
        job.with_story(at_s, f"it stays on {_slots(place.num_slots)} for {record.for_s:g} s: {reason}"),
        target=place,
        target_since_s=at_s,
        stays_until_s=until_s,
        stays_put_until_s=job.stays_put_until_s if was_to_grow else until_s,
        executed_before_s=job.executed_s(at_s),
    )


def _requested(job: LiveJob, at_s: float, record: r.JobWished) -> LiveJob:
    """The job after its owner, an operator or its budget asked it to run, to pause or to be cancelled."""
    text = f"{REQUESTS[record.wish]} by {record.by}"
    if record.from_scratch and job.phase is JobPhase.PAUSED:
        none_left = replace(job.state, progress_samples=0.0, durable_samples=0.0)
        job, text = replace(job, state=none_left, samples=0, saved_samples=0), f"{text}, from the beginning"
    state = job.state
    if record.over_budget:
        text = f"its gpu_time_budget of {job.spec.budget_gpu_s:g} slot-seconds is used up"
    if record.wish == "run" and state.phase is JobPhase.PAUSED:
        state = state.move(JobPhase.PENDING, at_s=at_s, reason=text)
    elif record.wish == "pause" and state.phase is JobPhase.PENDING:
        state = state.move(JobPhase.PAUSED, at_s=at_s, reason=text)
    elif record.wish == "cancel" and state.phase in (JobPhase.PENDING, JobPhase.PAUSED):
        state = state.move(JobPhase.CANCELLED, at_s=at_s, reason=text)
    wish = "cancel" if job.wish == "cancel" else record.wish  # a cancelled job stays cancelled
    result = replace(job, state=state, wish=wish, wished=text, over_budget=job.over_budget or record.over_budget)
    if record.wish == "pause" and job.rests_since_s is None:
        result = replace(result, rests_since_s=at_s)
    elif record.wish == "run" and job.rests_since_s is not None:
        result = replace(result, rested_s=job.rested_s + at_s - job.rests_since_s, rests_since_s=None)
    result = replace(result, held_until_s=0.0) if record.wish == "run" else unplanned(result, at_s)
    return result.with_story(at_s, text)


def _respecified(job: LiveJob, at_s: float, record: r.JobChanged) -> LiveJob:
    """The job after somebody changed its priority or its sizes."""
    given = ((name, getattr(record, name)) for name in ("priority", "min_slots", "max_slots"))
    changes: dict[str, Any] = {name: value for name, value in given if value is not None}
    text = ", ".join(f"{name} = {value}" for name, value in changes.items())
    resizes = changes.keys() != {"priority"}
    if resizes and not job.elastic and job.phase.holds_slots:
        text += "; its size changes when its script has called geminid.init()"
    if resizes:  # what failed at its earlier size may work now
        job = replace(job, held_until_s=0.0, stays_until_s=0.0, stays_put_until_s=0.0)
    result = replace(job, state=replace(job.state, spec=replace(job.spec, **changes)))
    return result.with_story(at_s, f"{record.by} set {text}")


def _slots(count: int) -> str:
    return f"{count} slot{'s' if count > 1 else ''}"
