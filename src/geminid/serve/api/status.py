"""The service as a whole: its state for people, for Prometheus and for simulations, and ending it."""

from __future__ import annotations

import os
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse

from geminid import __version__
from geminid.serve import documents, schemas
from geminid.serve.api.context import Admin, ApiContext, Caller, Context, may_read
from geminid.serve.auth import Identity
from geminid.serve.forecast import in_service
from geminid.serve.livejob import job_to_dict
from geminid.serve.metrics import metrics_text
from geminid.serve.whatif import with_forerunners

router = APIRouter()

#: Prometheus expects its path without the interface's prefix.
metrics_router = APIRouter()


@router.get("/status", response_model=schemas.Status)
async def status(context: Context, caller: Caller) -> JSONResponse:
    """The service at a glance."""
    service = context.service
    extra = {
        "url": context.url,
        "pid": os.getpid(),
        "version": __version__,
        "uptime_s": service.clock.monotonic_s() - context.started_s,
        "user": caller.user,
        "role": caller.role,
        "ending": service.ending,
        "awaited": service.awaited,
        **documents.market_document(service.market, service.cluster),
    }
    return JSONResponse(documents.status_document(service.published, service.cluster, service.policy_text, extra))


@router.get("/snapshot", response_model=schemas.Snapshot)
async def snapshot(context: Context, caller: Caller) -> JSONResponse:
    """All active jobs with what has been measured of them, for what-if simulations; without secrets.

    Of jobs that are over, the last one of each name and owner.
    """
    return JSONResponse(snapshot_document(context, caller))


def snapshot_document(context: ApiContext, caller: Identity) -> dict[str, Any]:
    """What a simulation of the live jobs needs to know."""
    service = context.service
    state = service.published.state
    cluster = in_service(service.cluster, state)
    chosen = with_forerunners(state.jobs.values())
    quotas = {job.id: dict(state.quotas_of(job.id)) for job in chosen if job.wants_slots}
    jobs = []
    for job in chosen:
        plain = job_to_dict(job)
        del plain["digest"]
        spec = plain["state"]["spec"]
        spec.pop("env", None)
        if not may_read(caller, job):  # a specification without a command would be invalid
            plain["state"]["spec"] = {**documents.without_private(spec), "command": ["hidden"]}
        jobs.append(plain)
    return {
        "now_s": service.clock.now_s(),
        "cluster": None if cluster is None else cluster.to_dict(),
        "policy": service.policy_text,
        "patience_s": service.patience_s,
        "quotas": quotas,
        "may_borrow": sorted({name for limits in quotas.values() for name in limits if state.may_borrow(name)}),
        "jobs": jobs,
    }


@router.post("/shutdown", response_model=schemas.Ending)
async def shutdown(context: Context, admin: Admin, detach: bool = False) -> JSONResponse:
    """End the service; with ``detach``, jobs train on and the next service takes them over."""
    context.refusals.close()
    context.shut_down(detach)
    return JSONResponse({"ending": True})


@metrics_router.get("/metrics", response_class=PlainTextResponse)
async def metrics(context: Context) -> PlainTextResponse:
    """The state for Prometheus."""
    return PlainTextResponse(metrics_text(context.service.published, context.service.cluster))
