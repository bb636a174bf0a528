"""What jobs print, read once or followed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from geminid.process.logfiles import LogReader, Tails
from geminid.serve.api.access import sender_of
from geminid.serve.api.context import ApiContext, Caller, Context, NamedJob, may_read
from geminid.serve.inbox import Refused
from geminid.serve.livejob import LiveJob

#: Mean time between two looks for new output, for requests that follow a log.
FOLLOW_S = 0.5

#: Positions in logs, such as ``w1:312,w2:-40``; negative ones are in the part that was rotated out.
POSITIONS = r"^[^,:/]{1,100}:-?\d{1,15}(,[^,:/]{1,100}:-?\d{1,15})*$"

router = APIRouter()


@router.get(
    "/jobs/{job_id}/logs",
    response_class=PlainTextResponse,
    responses={200: {"description": "What it printed, as plain text"}},
)
async def logs(
    context: Context,
    request: Request,
    caller: Caller,
    job: NamedJob,
    follow: bool = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    worker: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9]{1,16}$")] = None,
    frames: bool = False,
    at: Annotated[str | None, Query(pattern=POSITIONS, max_length=50_000)] = None,
) -> StreamingResponse:
    """What a job printed, or the last lines (``tail``) of each worker. With ``follow``, to the end of the job.

    With ``frames``, each piece follows a line of JSON that says which ``log`` it is from, how many ``bytes`` it has
    and where it ends there; a client whose connection broke continues from these positions: ``at=w1:312,w2:40``.
    """
    if not may_read(caller, job):
        owner = job.spec.owner
        raise Refused(403, f"job {job.id} belongs to {owner}, and only {owner} and admins may read its logs")
    folder = context.service.executor.folders.folder_of(job.id) / "logs"
    if worker is not None and not (folder / f"{worker}.log").exists() and not follow:
        known = sorted(path.stem for path in folder.glob("*.log"))
        raise Refused(404, f"job {job.id} has no log of a worker {worker}; it has {', '.join(known) or 'none yet'}")
    reader = LogReader(folder, worker, context.tails if follow else Tails())
    if at is not None:
        reader.go_on({name: int(position) for name, _, position in (part.partition(":") for part in at.split(","))})
    else:
        await asyncio.to_thread(reader.start, tail)

    def still_may() -> bool:  # the token may be revoked and the session ended while somebody follows
        sender = sender_of(request)[0]
        return sender is not None and may_read(sender, job)

    pieces = _pieces(context, job, reader, still_may if follow else lambda: False)
    stream = _framed(reader.positions(), pieces) if frames else (piece async for _, _, piece in pieces)
    return StreamingResponse(stream, media_type="text/plain; charset=utf-8")


async def _pieces(
    context: ApiContext, job: LiveJob, reader: LogReader, goes_on: Callable[[], bool]
) -> AsyncIterator[tuple[str, int, bytes]]:
    """What is printed, piece by piece: the name of the log, where the piece ends in it, and its bytes.

    At the end of a log that a job still writes, ``goes_on`` says whether to wait for more.
    """
    while True:
        is_over = context.latest(job).phase.is_terminal
        if is_over:
            reader.tails = Tails()  # the shared ones may lag behind the end
        for piece in reader.pieces():
            yield piece
        if is_over or not context.service.alive or context.is_ending() or not goes_on():
            return
        await asyncio.sleep(FOLLOW_S * random.uniform(0.5, 1.5))  # followers of one log not all at once
        if not goes_on():
            return


async def _framed(positions: dict[str, int], pieces: AsyncIterator[tuple[str, int, bytes]]) -> AsyncIterator[bytes]:
    """Each piece after its head; first an empty one for each log, which says where it begins."""

    def head(log: str, end: int, length: int) -> bytes:
        return json.dumps({"log": log, "end": end, "bytes": length}).encode() + b"\n"

    for log, begin in positions.items():
        yield head(log, begin, 0)
    async for log, end, piece in pieces:
        yield head(log, end, len(piece)) + piece
