"""Watching the service: all jobs as short rows, and a stream of what changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from geminid.serve import documents, pageschemas
from geminid.serve.api.access import sender_of
from geminid.serve.api.context import Context
from geminid.serve.api.requests import large_response
from geminid.serve.observe.rows import COLUMNS

router = APIRouter()


@router.get("/rows", response_model=pageschemas.Rows)
async def rows(context: Context, request: Request, all: bool = False) -> Response:
    """All jobs that are not over, one short row each; with ``all``, also those that are over and retained.

    ``last_id`` names the change after which the rows are true: ``/stream`` continues from there.
    """
    context.forecaster.begin()  # what it finds comes with the stream
    table = context.broadcast.table()
    over = COLUMNS.index("finished_at_s")
    found = table.rows if all else [row for row in table.rows if row[over] is None]
    published = context.service.published
    return large_response(
        request,
        {
            "last_id": table.last_id,
            "now_s": context.service.clock.now_s(),
            "seq": published.state.seq,
            "columns": COLUMNS,
            "rows": found,
            "lines": table.lines,
            "status": documents.glance_document(published, context.service),
        },
    )


@router.get("/stream", response_class=StreamingResponse)
async def stream(
    context: Context,
    request: Request,
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> StreamingResponse:
    """Server-sent events: what changes in the rows, the service and the histories of jobs, at most four times a second.

    Each event is a JSON object with some of ``new`` (whole rows), ``changed`` (fields by job), ``gone`` (jobs),
    ``lines`` (of histories), ``status`` and ``seq``. ``after``, or the header ``Last-Event-ID``, is the identifier of
    the last event that the client has seen. An event ``reset`` says that it has missed some: read ``/rows`` again.
    """
    context.forecaster.begin()
    # The token may be revoked and the session ended while somebody watches.
    events = context.broadcast.watch(last_event_id or after, lambda: sender_of(request)[0] is not None)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)
