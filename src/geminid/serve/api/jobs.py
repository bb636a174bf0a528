"""Jobs: submitting, listing, waiting for them, and changing them."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import JSONResponse

from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.process.logfiles import last_lines
from geminid.serve import bodies, documents, schemas
from geminid.serve.api.context import ApiContext, Caller, Context, NamedJob, OwnJob, may_read
from geminid.serve.api.requests import MAX_ENVIRONMENT_LENGTH, JsonBody, body_schema, parse_environment
from geminid.serve.auth import Identity
from geminid.serve.client import TOTAL
from geminid.serve.dependencies import read_group
from geminid.serve.inbox import Refused
from geminid.serve.jobarray import array_of
from geminid.serve.livejob import LiveJob
from geminid.serve.queues import existing as existing_queues
from geminid.serve.queues import why_not_raised, why_not_submitted
from geminid.serve.rerun import changed_spec
from geminid.serve.service import Service
from geminid.supervise.setaside import set_checkpoints_aside

#: Forecasts after which a new job with a deadline is answered at the latest: it may start while one is made.
MAX_FORECASTS_OF_NEW_JOB = 3

#: Lines of its output that are shown of a job that failed.
LAST_LINES = 10

#: Longest time that a request waits for the end of a job; then it is answered, and the client asks again.
MAX_WAIT_S = 30.0

#: Time between two looks whether a job has ended, for requests that wait for it.
WAIT_POLL_S = 0.1

#: What of a job can be changed.
JOB_FIELDS = ("priority", "min_slots", "max_slots")

router = APIRouter()

# Handlers return JSONResponse: FastAPI would validate and copy every value of a document once more.


@router.post(
    "/jobs",
    status_code=201,
    response_model=schemas.Job | schemas.DryRun,
    openapi_extra=body_schema(bodies.JobFile),
)
async def submit(
    context: Context,
    caller: Caller,
    given: JsonBody,
    dry_run: bool = False,
    python: Annotated[str | None, Query(pattern="^/", max_length=4096)] = None,
    environment: Annotated[str | None, Query(max_length=MAX_ENVIRONMENT_LENGTH)] = None,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> JSONResponse:
    """Submit a job: the fields of a job file. ``Idempotency-Key`` makes it safe to send the request again.

    A key that was used for another job is refused. ``python`` is the path of the submitter's interpreter, which has the
    script's imports: it runs a command ``python`` where jobs run on this machine. ``environment``, a JSON object, is
    the submitter's: the job gets PATH, VIRTUAL_ENV, CONDA_PREFIX and LANG from it, unless its own ``env`` sets them.
    No job gets anything of the service's own environment.
    """
    spec, service = JobSpec.from_dict(given), context.service
    key = None if idempotency_key is None else f"{caller.user}:{idempotency_key}"
    digest = hashlib.sha256(json.dumps(spec.to_dict(), sort_keys=True).encode()).hexdigest()
    state = service.published.state
    submitted = state.jobs.get(state.requests.get(key or "", ""))
    if submitted is not None and submitted.digest == digest:  # all checks were made the first time
        return JSONResponse(context.views.summary(submitted), 201)
    queues = existing_queues(state.queues, state.quotas)
    if not caller.is_admin and (why := why_not_submitted(state.rules_of(spec.queue), spec, caller.user, queues)):
        raise Refused(403, why)
    accepted = await asyncio.to_thread(
        service.operations.accepted, spec, caller.user, python, parse_environment(environment)
    )
    if dry_run:
        return JSONResponse(await asyncio.to_thread(context.forecaster.dry_run, replace(accepted, array=None)))
    submit_once = functools.partial(service.operations.submit, request=key, digest=digest, checked=True)
    job = await asyncio.wrap_future(await asyncio.to_thread(submit_once, accepted, caller.user))
    context.forecaster.begin()  # submitters ask next when it will start
    if accepted.deadline_s is not None:
        job = await _with_forecast(context, job)
    return JSONResponse(context.views.summary(job), 201)


@router.post(
    "/jobs/{job_id}/rerun", status_code=201, response_model=schemas.Job, openapi_extra=body_schema(bodies.JobChanges)
)
async def rerun(
    context: Context,
    caller: Caller,
    job: OwnJob,
    given: JsonBody,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> JSONResponse:
    """Submit a job again, with its command, folder and environment, and with the fields that are given changed."""
    spec, service = changed_spec(job.spec, given), context.service
    state = service.published.state
    queues = existing_queues(state.queues, state.quotas)
    if not caller.is_admin and (why := why_not_submitted(state.rules_of(spec.queue), spec, caller.user, queues)):
        raise Refused(403, why)
    accepted = await asyncio.to_thread(service.operations.accepted, spec, caller.user)
    key = None if idempotency_key is None else f"{caller.user}:{idempotency_key}"
    digest = hashlib.sha256(json.dumps(spec.to_dict(), sort_keys=True).encode()).hexdigest()
    submit_once = functools.partial(service.operations.submit, request=key, digest=digest, checked=True)
    made = await asyncio.wrap_future(await asyncio.to_thread(submit_once, accepted, caller.user))
    context.forecaster.begin()
    return JSONResponse(context.views.summary(made), 201)


async def _with_forecast(context: ApiContext, job: LiveJob) -> LiveJob:
    """A new job as soon as a forecast says whether it can meet its deadline."""
    for _ in range(MAX_FORECASTS_OF_NEW_JOB):
        await context.forecaster.freshen()
        job = context.latest(job)
        if context.forecaster.knows(job):
            break
    return job


@router.post(
    "/job-groups",
    status_code=201,
    response_model=list[schemas.Job],
    openapi_extra=body_schema(bodies.JobGroup),
)
async def submit_group(
    context: Context,
    caller: Caller,
    given: JsonBody,
    python: Annotated[str | None, Query(pattern="^/", max_length=4096)] = None,
    environment: Annotated[str | None, Query(max_length=MAX_ENVIRONMENT_LENGTH)] = None,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> JSONResponse:
    """Submit several jobs, all or none: ``jobs`` is a list of job files, which may name each other in ``after``.

    The other parameters are those of a single job.
    """
    service, specs = context.service, read_group(given)
    state = service.published.state
    queues = existing_queues(state.queues, state.quotas)
    key = None if idempotency_key is None else f"{caller.user}:{idempotency_key}"
    digest = hashlib.sha256(json.dumps([spec.to_dict() for spec in specs], sort_keys=True).encode()).hexdigest()
    accepted = []
    for spec in specs:
        if not caller.is_admin and (why := why_not_submitted(state.rules_of(spec.queue), spec, caller.user, queues)):
            raise Refused(403, why)
        accept = functools.partial(service.operations.accepted, spec, caller.user, python)
        accepted.append(await asyncio.to_thread(accept, parse_environment(environment)))
    submit_once = functools.partial(service.operations.submit_group, request=key, digest=digest)
    jobs = await asyncio.wrap_future(await asyncio.to_thread(submit_once, accepted, caller.user))
    context.forecaster.begin()
    return JSONResponse(context.views.summaries(jobs, context.views.positions()), 201)


@router.get("/jobs", response_model=list[schemas.Job])
async def jobs(
    context: Context,
    state: str | None = None,
    owner: str | None = None,
    queue: str | None = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
    array: Annotated[str | None, Query(max_length=100)] = None,
    all: bool = False,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
) -> JSONResponse:
    """The jobs, newest last; those that are over only with ``all`` or their ``state``. An array is one job.

    ``name`` is a part of a name.
    With ``array``, the elements of this array, by its identifier, that have been queued.

    If there are more than ``limit``: the jobs that run and that start next; with jobs that are over, the newest. The
    header ``X-Total-Count`` says how many there are.
    """
    if state is not None and state not in set(JobPhase):
        raise Refused(422, f"state {state[:40]!r} must be one of {', '.join(JobPhase)}")
    chosen = [
        job
        for job in context.service.published.state.jobs.values()
        if array_of(job.id) == array
        and (name is None or name.lower() in job.spec.name.lower())
        and (owner is None or job.spec.owner == owner)
        and (queue is None or job.spec.queue == queue)
        and (job.shown_phase.value == state if state is not None else all or not job.phase.is_terminal)
    ]
    await context.forecaster.freshen()
    positions, total = context.views.positions(), len(chosen)
    some_are_over = all or (state is not None and JobPhase(state).is_terminal)
    if total > limit and not some_are_over:
        first = {job.id for job in sorted(chosen, key=lambda job: positions.get(job.id, 0))[:limit]}
        chosen = [job for job in chosen if job.id in first]
    return JSONResponse(context.views.summaries(chosen[-limit:], positions), headers={TOTAL: str(total)})


@router.get("/jobs/{job_id}", response_model=schemas.JobDetails)
async def job(
    context: Context, caller: Caller, job: NamedJob, wait_s: Annotated[float, Query(ge=0.0)] = 0.0
) -> JSONResponse:
    """One job; with ``wait_s``, when it is over, or after this time. Its command and last lines are its owner's."""
    clock = context.service.clock
    until_s = clock.monotonic_s() + min(wait_s, MAX_WAIT_S)
    while not (job := context.latest(job)).phase.is_terminal and clock.monotonic_s() < until_s:
        if context.is_ending():
            raise Refused(503, "the service is ending")
        await asyncio.sleep(WAIT_POLL_S)
    if not job.phase.is_terminal:
        await context.forecaster.freshen()
    job = context.latest(job)
    if not may_read(caller, job):
        made = context.views.details(job)
        return JSONResponse({**made, "spec": documents.without_private(made["spec"]), "last_lines": []})
    lines: list[str] = []
    if job.phase is JobPhase.FAILED or (job.phase is JobPhase.PENDING and job.state.failures):
        folder = context.service.executor.folders.folder_of(job.id) / "logs"
        lines = await asyncio.to_thread(last_lines, folder, LAST_LINES)
    return JSONResponse({**context.views.details(job), "last_lines": lines})


@router.post("/jobs/{job_id}/cancel", response_model=schemas.Job)
async def cancel(context: Context, caller: Caller, job: OwnJob) -> JSONResponse:
    """Give a job up."""
    return await _with_request(context, caller, job, "cancel")


@router.post("/jobs/{job_id}/pause", response_model=schemas.Job)
async def pause(context: Context, caller: Caller, job: OwnJob) -> JSONResponse:
    """Have a job save a checkpoint, stop, and wait."""
    return await _with_request(context, caller, job, "pause")


@router.post("/jobs/{job_id}/resume", response_model=schemas.Job)
async def resume(context: Context, caller: Caller, job: OwnJob, from_scratch: bool = False) -> JSONResponse:
    """Let a paused job run again; with ``from_scratch`` from the beginning: its checkpoints are set aside."""
    if from_scratch:
        await asyncio.to_thread(_set_checkpoints_aside, context.service, job)
    return await _with_request(context, caller, job, "run", from_scratch=from_scratch)


async def _with_request(
    context: ApiContext, caller: Identity, job: LiveJob, wish: str, *, from_scratch: bool = False
) -> JSONResponse:
    request = context.service.operations.request(job.id, wish, caller.user, from_scratch=from_scratch)
    changed = await asyncio.wrap_future(request)
    return JSONResponse(context.views.summary(changed))


def _set_checkpoints_aside(service: Service, job: LiveJob) -> None:
    """Keep a paused job from continuing from its checkpoints.

    Raises:
        Refused: it is not paused, or its checkpoints cannot be moved.
    """
    if job.phase is not JobPhase.PAUSED:
        raise Refused(409, f"job {job.id} is {job.phase}: only a paused job can begin from the beginning")
    place = service.executor.folders.checkpoints_of(job.id)
    try:
        set_checkpoints_aside(place)
    except Exception as problem:  # remote storage has errors of its own
        raise Refused(409, f"the checkpoints of {job.id} in {place} cannot be moved: {problem}") from None


@router.patch("/jobs/{job_id}", response_model=schemas.Job, openapi_extra=body_schema(bodies.JobChange))
async def change(context: Context, caller: Caller, job: OwnJob, given: JsonBody) -> JSONResponse:
    """Change a job's priority, min_slots or max_slots."""
    if not isinstance(given, dict) or not set(given) <= set(JOB_FIELDS):
        raise Refused(422, f"what can be changed is {', '.join(JOB_FIELDS)}")
    if any(not isinstance(value, int) or isinstance(value, bool) for value in given.values()):
        raise Refused(422, f"{', '.join(given)} must be whole numbers")
    values: dict[str, Any] = {name: given.get(name) for name in JOB_FIELDS}
    if values["priority"] is not None and not caller.is_admin:
        rules = context.service.published.state.rules_of(job.spec.queue)
        if why := why_not_raised(rules, job.spec.queue, values["priority"], job.spec.priority):
            raise Refused(403, why)
    changed = await asyncio.wrap_future(context.service.operations.change(job.id, caller.user, **values))
    return JSONResponse(context.views.summary(changed))


@router.get("/jobs/{job_id}/story", response_model=list[schemas.StoryLine])
async def story(job: NamedJob) -> JSONResponse:
    """What happened to a job."""
    return JSONResponse([asdict(line) for line in job.story])
