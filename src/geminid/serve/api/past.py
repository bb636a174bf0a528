"""The past: curves of jobs, who held which slots, jobs that are over, and what was used in each period."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from geminid.jobstate import JobPhase
from geminid.serve import pageschemas, schemas
from geminid.serve.api.context import ApiContext, Context, NamedJob
from geminid.serve.api.requests import large_response
from geminid.serve.client import TOTAL
from geminid.serve.fairness import shares
from geminid.serve.inbox import Refused
from geminid.serve.jobarray import array_of
from geminid.serve.observe.stints import Stint
from geminid.serve.observe.store import MAX_ROWS
from geminid.serve.observe.usage import LENGTHS_S, Period, by_period, period_starts

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

router = APIRouter()


@router.get("/jobs/{job_id}/series", response_model=pageschemas.Series)
async def series(context: Context, job: NamedJob) -> JSONResponse:
    """The curves of a job, down-sampled: at most 256 points over its whole life, a list per column."""
    curve = await asyncio.to_thread(context.recorder.curve, job.id)
    marks = [{"at_s": line.at_s, "text": line.text, "slots": line.slots, "pause_s": line.pause_s} for line in job.story]
    return JSONResponse({"job": job.id, "every_s": curve.every_s, **curve.to_columns(), "history": marks})


@router.get("/lanes", response_model=pageschemas.Lanes)
async def lanes(
    context: Context,
    request: Request,
    from_s: Annotated[float | None, Query(alias="from")] = None,
    to_s: Annotated[float | None, Query(alias="to")] = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    """Which job was on which slot when: stints within a time (of the last hour), too short ones left out.

    ``complete`` is false if there are more than can be answered with; the oldest are missing then.
    """
    now_s = context.service.clock.now_s()
    until_s = now_s if to_s is None else to_s
    since_s = until_s - 3600.0 if from_s is None else from_s
    if not since_s < until_s:
        raise Refused(422, f"from ({since_s:g}) must be before to ({until_s:g}), both in seconds since the epoch")
    return await asyncio.to_thread(lambda: large_response(request, _lanes(context, now_s, since_s, until_s, job)))


def _lanes(context: ApiContext, now_s: float, from_s: float, to_s: float, job: str | None) -> dict[str, Any]:
    """The answer, in a thread: there may be many stints."""
    store = context.recorder.store
    found = store.stints(from_s, to_s, shortest_s=(to_s - from_s) * SHORTEST_SHARE, job_id=job)
    jobs = context.service.published.state.jobs
    current = context.recorder.measured({one.job_id: one.job_slots for one in found if one.to_s is None})

    def row(one: Stint) -> list[Any]:
        measured = (one.batch, one.goodput) if one.to_s is not None else current[one.job_id]
        return [one.job_id, one.node, one.slot, one.from_s, one.to_s, one.job_slots, *measured]

    return {
        "now_s": now_s,
        "from_s": from_s,
        "to_s": to_s,
        "names": {one.job_id: jobs[one.job_id].spec.name for one in found if one.job_id in jobs},
        "faults": [[one.at_s, one.job_id, one.text] for one in store.faults(from_s, to_s, job)],
        "stints": [row(one) for one in found],
        "complete": len(found) < MAX_ROWS,
    }


@router.get("/history", response_model=list[schemas.Job])
async def history(
    context: Context,
    request: Request,
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
        and array_of(job.id) is None
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
        return large_response(request, page, headers)
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


@router.get("/usage/periods", response_model=pageschemas.UsagePeriods)
async def usage_by_period(
    context: Context,
    period: Period = "day",
    periods: Annotated[int, Query(ge=1, le=MAX_PERIODS)] = 14,
    zone_s: Annotated[float, Query(ge=-86_400.0, le=86_400.0)] = 0.0,
) -> JSONResponse:
    """Slot-hours by owner in each of the last hours, days or weeks of a time zone ``zone_s`` ahead of UTC.

    Jobs that are forgotten count, too, for the last 400 days.
    """
    now_s = context.service.clock.now_s()
    starts_s = period_starts(period, periods, now_s, zone_s)
    used = await asyncio.to_thread(context.recorder.store.usage, starts_s[0], now_s)
    return JSONResponse({"starts_s": starts_s, "period_s": LENGTHS_S[period], "slot_hours": by_period(used, starts_s)})


@router.get("/fairness", response_model=list[pageschemas.Share])
async def fairness(context: Context) -> JSONResponse:
    """Every owner's share of the slots beside an equal share, and the finish-time ratios of the owner's ended jobs."""
    service = context.service
    jobs, slots = list(service.published.state.jobs.values()), service.cluster.total_slots
    return JSONResponse(await asyncio.to_thread(shares, jobs, slots, service.clock.now_s()))
