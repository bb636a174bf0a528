"""The past: curves of jobs, who held which slots, jobs that are over, and what was used in each period."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from geminid.jobstate import JobPhase
from geminid.serve import schemas
from geminid.serve.api.context import Context, NamedJob
from geminid.serve.client import TOTAL
from geminid.serve.fairness import shares
from geminid.serve.inbox import Refused
from geminid.serve.observe.store import MAX_ROWS

#: Stints shorter than this share of the time that is asked for cannot be seen, and are left out.
SHORTEST_SHARE = 1.0 / 4000.0

#: Periods that one question about usage may have.
MAX_PERIODS = 400

#: What is exported of a job that is over.
EXPORTED = (
    "id",
    "name",
    "owner",
    "queue",
    "phase",
    "kind",
    "submitted_at_s",
    "started_at_s",
    "finished_at_s",
    "jct_s",
    "gpu_s",
    "samples",
    "rescales",
    "failures",
    "reason",
)

#: Characters at the beginning of a cell that spreadsheet programs take for a formula.
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")

#: How lines of a job's history begin that tell of a fault.
FAULTS = ("worker ", "failed", "crashed")

router = APIRouter()


@router.get("/jobs/{job_id}/series", response_model=schemas.Series)
async def series(context: Context, job: NamedJob) -> JSONResponse:
    """The curves of a job, down-sampled: at most 256 points over its whole life, a list per column."""
    curve = await asyncio.to_thread(context.recorder.curve, job.id)
    marks = [{"at_s": line.at_s, "text": line.text, "slots": line.slots, "pause_s": line.pause_s} for line in job.story]
    return JSONResponse({"job": job.id, "every_s": curve.every_s, **curve.to_columns(), "history": marks})


@router.get("/lanes", response_model=schemas.Lanes)
async def lanes(
    context: Context,
    from_s: Annotated[float | None, Query(alias="from")] = None,
    to_s: Annotated[float | None, Query(alias="to")] = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
) -> JSONResponse:
    """Which job was on which slot when: stints within a time (of the last hour), too short ones left out.

    ``complete`` is false if there are more than can be answered with; the oldest are missing then.
    """
    now_s = context.service.clock.now_s()
    until_s = now_s if to_s is None else to_s
    since_s = until_s - 3600.0 if from_s is None else from_s
    if not since_s < until_s:
        raise Refused(422, f"from ({since_s:g}) must be before to ({until_s:g}), both in seconds since the epoch")
    found = await asyncio.to_thread(
        lambda: context.recorder.store.stints(
            since_s, until_s, shortest_s=(until_s - since_s) * SHORTEST_SHARE, job_id=job
        )
    )
    jobs = context.service.published.state.jobs
    names = {one.job_id: jobs[one.job_id].spec.name for one in found if one.job_id in jobs}
    return JSONResponse(
        {
            "now_s": now_s,
            "from_s": since_s,
            "to_s": until_s,
            "names": names,
            "goodputs": await asyncio.to_thread(context.recorder.goodputs),
            "faults": [
                [line.at_s, one.id, line.text]
                for one in jobs.values()
                for line in one.story
                if since_s <= line.at_s <= until_s and line.text.startswith(FAULTS) and (job is None or one.id == job)
            ],
            "stints": [[one.job_id, one.node, one.slot, one.from_s, one.to_s, one.job_slots] for one in found],
            "complete": len(found) < MAX_ROWS,
        }
    )


@router.get("/history", response_model=list[schemas.Job])
async def history(
    context: Context,
    owner: Annotated[str | None, Query(max_length=200)] = None,
    queue: Annotated[str | None, Query(max_length=200)] = None,
    state: Annotated[str | None, Query(max_length=40)] = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
    from_s: Annotated[float | None, Query(alias="from")] = None,
    to_s: Annotated[float | None, Query(alias="to")] = None,
    after: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    format: Literal["json", "csv"] = "json",
) -> Response:
    """Jobs that are over and retained, the last first; ``name`` is a part of a name, ``from`` and ``to`` times of ends.

    ``after`` skips that many; ``X-Total-Count`` says how many there are. ``format=csv`` is for spreadsheets.
    """
    over = {phase.value for phase in JobPhase if phase.is_terminal}
    if state is not None and state not in over:
        raise Refused(422, f"state {state[:40]!r} must be one of {', '.join(sorted(over))}")
    chosen = [
        job
        for job in context.service.published.state.jobs.values()
        if (ended_s := job.state.finished_at_s) is not None
        and (owner is None or job.spec.owner == owner)
        and (queue is None or job.spec.queue == queue)
        and (state is None or job.phase.value == state)
        and (name is None or name.lower() in job.spec.name.lower())
        and (from_s is None or ended_s >= from_s)
        and (to_s is None or ended_s < to_s)
    ]
    chosen.sort(key=lambda job: job.state.finished_at_s or 0.0, reverse=True)
    page = context.views.summaries(chosen[after : after + limit], context.views.positions())
    headers = {TOTAL: str(len(chosen))}
    if format == "json":
        return JSONResponse(page, headers=headers)
    headers["Content-Disposition"] = 'attachment; filename="geminid-history.csv"'
    return Response(_csv(page), media_type="text/csv; charset=utf-8", headers=headers)


def _csv(jobs: Sequence[dict[str, Any]]) -> str:
    """A table for spreadsheets, in which no text can be taken for a formula."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(EXPORTED)
    for job in jobs:
        writer.writerow([_harmless(job[column]) for column in EXPORTED])
    return file.getvalue()


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else value


@router.get("/usage/periods", response_model=schemas.UsagePeriods)
async def usage_by_period(
    context: Context,
    period: Literal["hour", "day", "week"] = "day",
    periods: Annotated[int, Query(ge=1, le=MAX_PERIODS)] = 14,
) -> JSONResponse:
    """Slot-hours by owner in each of the last periods, the current one last."""
    length_s = {"hour": 3600.0, "day": 86_400.0, "week": 604_800.0}[period]
    now_s = context.service.clock.now_s()
    from_s = now_s - periods * length_s
    found = await asyncio.to_thread(context.recorder.store.slot_seconds, from_s, now_s, length_s)
    owners = sorted({owner for _, owner, _ in found})
    table = {owner: [0.0] * periods for owner in owners}
    for number, owner, seconds in found:
        table[owner][min(number, periods - 1)] += seconds / 3600.0
    return JSONResponse(
        {"from_s": from_s, "period_s": length_s, "slot_hours": {owner: table[owner] for owner in owners}}
    )


@router.get("/fairness", response_model=list[schemas.Share])
async def fairness(context: Context) -> JSONResponse:
    """Every owner's share of the slots beside an equal share, and the finish-time ratios of the owner's ended jobs."""
    service = context.service
    jobs, slots = list(service.published.state.jobs.values()), service.cluster.total_slots
    return JSONResponse(await asyncio.to_thread(shares, jobs, slots, service.clock.now_s()))
