"""The log of everything that happened."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from geminid.serve import documents, schemas
from geminid.serve import records as r
from geminid.serve.api.context import Caller, Context
from geminid.serve.client import LAST_SEQ
from geminid.serve.inbox import Refused
from geminid.serve.jobnames import IDENTIFIER
from geminid.serve.store import last_entries

#: No record has a larger number.
MAX_SEQ = (1 << 63) - 1

router = APIRouter()


@router.get("/events", response_model=list[schemas.Event])
async def events(
    context: Context,
    caller: Caller,
    after: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    progress: bool = True,
) -> JSONResponse:
    """The log: the newest records, or those after a number; with ``job``, those about it.

    Without ``progress``, reports of progress are left out. The header ``X-Last-Seq`` is the number after which to
    ask for more. A job's command is shown to its owner and to admins.
    """
    if job is not None and not IDENTIFIER.fullmatch(job):
        job = context.find_job(job, caller).id
    written = context.service.published.state.seq
    hidden = () if progress else (r.JobProgressed.__name__,)
    entries = await asyncio.to_thread(last_entries, context.home, limit, after, job, hidden)
    if job is not None and after is None and not entries and job not in context.service.published.state.jobs:
        raise Refused(404, f"there is no job {job}")
    shown = [entry.to_plain() for entry in entries]
    for plain in shown:
        if "spec" in plain and not (caller.is_admin or plain["spec"].get("owner") == caller.user):
            plain["spec"] = documents.without_private(plain["spec"])
    last = max([after or 0, *(entry.seq for entry in entries)])
    last = max(last, written) if len(entries) < limit else last
    return JSONResponse(shown, headers={LAST_SEQ: str(last)})
