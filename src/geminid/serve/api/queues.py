"""Queues with their rules, quotas of queues and owners, and what owners have used."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from geminid.nodes import MAX_SLOTS
from geminid.serve import documents, schemas
from geminid.serve.api.context import Admin, Context
from geminid.serve.api.requests import JsonBody, body_schema
from geminid.serve.inbox import Refused

#: What of a queue can be changed.
QUEUE_FIELDS = ("max_priority", "add_members", "remove_members", "open")

router = APIRouter()


@router.get("/quotas", response_model=list[schemas.QuotaLine])
async def quotas(context: Context) -> JSONResponse:
    """The quotas."""
    return JSONResponse(documents.quota_documents(context.service.published.state))


@router.put("/quotas/{of}/{name}", response_model=list[schemas.QuotaLine])
async def set_quota(
    context: Context,
    admin: Admin,
    of: str,
    name: str,
    slots: Annotated[int | None, Query(ge=0, le=MAX_SLOTS)] = None,
    borrow: bool = False,
) -> JSONResponse:
    """Set the quota of a queue or an owner; without a number, lift it.

    With ``borrow``, it may be exceeded for as long as the jobs of others, within their quotas, cannot use the slots.
    """
    await asyncio.wrap_future(context.service.operations.set_quota(of, name, slots, admin, borrow=borrow))
    return JSONResponse(documents.quota_documents(context.service.published.state))


@router.get("/queues", response_model=list[schemas.QueueRules])
async def queues(context: Context) -> JSONResponse:
    """The queues that have rules."""
    return JSONResponse(documents.queue_documents(context.service.published.state))


@router.patch(
    "/queues/{queue}", response_model=list[schemas.QueueRules], openapi_extra=body_schema(schemas.QueueChange)
)
async def change_queue(context: Context, admin: Admin, queue: str, given: JsonBody) -> JSONResponse:
    """Set the highest priority that users of a queue may choose, add or remove members, or open it to everybody.

    A queue whose last member was removed takes jobs of admins only, until it is opened.
    """
    if not isinstance(given, dict) or not given or not set(given) <= set(QUEUE_FIELDS):
        raise Refused(422, f"what can be changed is {', '.join(QUEUE_FIELDS)}")
    add, remove = given.get("add_members", []), given.get("remove_members", [])
    for name, users in (("add_members", add), ("remove_members", remove)):
        if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
            raise Refused(422, f"{name} must be a list of users")
    everybody = "open" in given
    if everybody and (given["open"] is not True or add):
        raise Refused(422, "open must be true or left out, and without add_members: an open queue has no members")
    max_priority = given.get("max_priority")
    changed = context.service.operations.set_queue(
        queue, admin, max_priority=max_priority, add=set(add), remove=set(remove), everybody=everybody
    )
    await asyncio.wrap_future(changed)
    return JSONResponse(documents.queue_documents(context.service.published.state))


@router.get("/usage", response_model=list[schemas.Usage])
async def usage(context: Context) -> JSONResponse:
    """What each owner has used."""
    service = context.service
    return JSONResponse(documents.usage_documents(service.published.state, service.clock.now_s()))
