"""Nodes and slots: what is on them, and taking them out of service."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from geminid.serve import documents, schemas
from geminid.serve.api.context import Admin, Context

router = APIRouter()


@router.get("/nodes", response_model=list[schemas.Node])
async def nodes(context: Context) -> JSONResponse:
    """The nodes and which jobs are on their slots."""
    service = context.service
    return JSONResponse(
        documents.node_documents(service.published.state, service.cluster, service.executor.agent_versions)
    )


@router.post("/nodes/{node}/drain", response_model=schemas.Drain)
async def drain(context: Context, admin: Admin, node: str, yes: bool = False) -> JSONResponse:
    """Let a node take no more work; jobs move off it.

    Plain commands on it are stopped and start again from their beginning: unless ``yes``, that is refused (409) with
    their list.
    """
    state = context.service.published.state
    affected = documents.drain_document(state, node)
    if affected["stops"] and not yes:
        sentence = documents.drain_warning(state, context.service.cluster, node, affected["stops"])
        return JSONResponse({"errors": [f"{sentence}: nothing was changed; confirm with --yes"], **affected}, 409)
    await asyncio.wrap_future(context.service.operations.drain(node, True, admin))
    return JSONResponse(affected)


@router.post("/nodes/{node}/undrain")
async def undrain(context: Context, admin: Admin, node: str) -> None:
    """Let a node take work again."""
    await asyncio.wrap_future(context.service.operations.drain(node, False, admin))


@router.post("/slots/{node}/{slot}/cordon")
async def cordon(context: Context, admin: Admin, node: str, slot: int) -> None:
    """Let a slot take no more work."""
    await asyncio.wrap_future(context.service.operations.cordon(node, slot, True, admin))


@router.post("/slots/{node}/{slot}/uncordon")
async def uncordon(context: Context, admin: Admin, node: str, slot: int) -> None:
    """Let a slot take work again."""
    await asyncio.wrap_future(context.service.operations.cordon(node, slot, False, admin))
