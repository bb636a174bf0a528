"""Who may send requests.

Every request has a bearer token; users change their own jobs, admins everything. ``Host`` must name this machine, and
so must ``Origin`` where a web page sends the request: other pages cannot use a browser to get here, not even by making
a name point to this machine. What is refused is noted or counted for the operator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from geminid.fields import MAX_TEXT_LENGTH
from geminid.serve import schemas
from geminid.serve.api.context import Context, context_of
from geminid.serve.api.requests import TOO_LONG, error_response, refuse
from geminid.serve.auth import DamagedTokens
from geminid.serve.connections import CONNECTION
from geminid.serve.service import Refused

PREFIX = "/api/v1"

#: Where a service proves that it knows a token.
PROOF = f"{PREFIX}/proof"

#: Names that stand for this machine.
OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

router = APIRouter()


@router.get("/proof", response_model=schemas.Proof)
async def proof(
    context: Context,
    of: Annotated[str, Query(max_length=64)],
    challenge: Annotated[str, Query(max_length=64)],
) -> JSONResponse:
    """Prove that the service knows the token with a fingerprint. The one request that needs no token."""
    made = context.tokens.prove(of, challenge)
    if made is None:
        raise Refused(401, "this token is not known here")
    return JSONResponse({"proof": made})


async def check_access(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Pass a request on if it may be sent, with the identity of its sender; otherwise refuse it."""
    context = context_of(request)
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:  # half an address in brackets
        host = None
    if host not in OWN_NAMES:
        return refuse(request, 403, f"requests must be to this machine, not to {str(host)[:100]!r}")
    origin = request.headers.get("origin")
    if origin is not None and origin != context.url:
        return refuse(request, 403, f"requests from pages of {origin[:100]!r} are refused")
    if request.url.path == PROOF:
        return await call_next(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    try:
        identity = context.tokens.identify(token.strip()) if scheme.lower() == "bearer" else None
        context.audit_token_changes()
    except DamagedTokens as problem:
        return error_response(503, str(problem))
    if identity is None:
        return refuse(request, 401, "a valid token is needed, as in Authorization: Bearer TOKEN")
    connection = getattr(request.state, CONNECTION, None)
    if connection is not None and not connection.identified(identity.user):
        most = connection.all_connections.limits.per_user
        sentence = f"{identity.user} has too many connections open (at most {most})"
        return error_response(429, f"{sentence}: close some of them, such as `geminid logs --follow`")
    if int(request.headers.get("content-length") or 0) > MAX_TEXT_LENGTH:
        return error_response(413, TOO_LONG)
    request.state.identity = identity
    return await call_next(request)
