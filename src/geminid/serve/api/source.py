"""Which code a job was submitted with: recorded by its submitter, once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from geminid.serve import schemas
from geminid.serve.api.context import ApiContext, Caller, Context, NamedJob, OwnJob, may_read
from geminid.serve.api.requests import JsonBody, body_schema
from geminid.serve.auth import write_private
from geminid.serve.inbox import Refused
from geminid.serve.jobarray import array_of
from geminid.serve.livejob import LiveJob
from geminid.serve.source import SOURCE

router = APIRouter()

#: The fields of a source, and their types.
FIELDS = {"commit": str, "branch": str, "diff": str, "complete": bool, "untracked": list}


@router.post(
    "/jobs/{job_id}/source",
    status_code=201,
    response_model=schemas.Source,
    openapi_extra=body_schema(schemas.Source),
)
async def record(context: Context, job: OwnJob, given: JsonBody) -> JSONResponse:
    """Keep which code a job was submitted with. What is kept once does not change."""
    if not isinstance(given, dict) or {name: type(value) for name, value in given.items()} != FIELDS:
        raise Refused(422, f"a source has exactly {', '.join(FIELDS)}")
    file = _file(context, job)

    def keep() -> None:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(file, json.dumps(given))

    await asyncio.to_thread(keep)
    return JSONResponse(await asyncio.to_thread(_read, file), 201)


@router.get("/jobs/{job_id}/source", response_model=schemas.Source)
async def source(context: Context, caller: Caller, job: NamedJob) -> JSONResponse:
    """Which code a job was submitted with; only its owner and admins may see it. Of an element, that of its array."""
    found = await asyncio.to_thread(_read, _file(context, job)) if may_read(caller, job) else None
    if found is None:
        raise Refused(404, f"it is not known here which code {job.id} was submitted with")
    return JSONResponse(found)


def _file(context: ApiContext, job: LiveJob) -> Path:
    return context.service.executor.folders.folder_of(array_of(job.id) or job.id) / SOURCE


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
