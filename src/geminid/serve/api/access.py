"""Who may send requests.

Every request has a bearer token, or the cookie and the secret of a browser session; viewers change nothing, users their
own jobs, admins everything. ``Host`` must name this machine or the public address of the service, and so must
``Origin`` where a web page sends the request: other pages cannot use a browser to get here, not even by making a name
point to this machine. The secret of a session is in a header, because browsers send cookies to all ports of a machine;
a change has another header that only pages of the service can send. What is refused is noted or counted for the
operator.
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
from geminid.serve.auth import DamagedTokens, Identity
from geminid.serve.connections import CONNECTION
from geminid.serve.inbox import Refused

PREFIX = "/api/v1"

#: Where a service proves that it knows a token.
PROOF = f"{PREFIX}/proof"

#: What viewers may send, too: simulations of the live jobs, and links and sessions of their own browsers.
FOR_VIEWERS = frozenset({f"{PREFIX}/what-if", f"{PREFIX}/login-links", f"{PREFIX}/session"})

#: Where a browser session begins: with a code or a token in the body, and no other proof.
SESSION = f"{PREFIX}/session"

#: The header of requests by the service's own pages.
PAGE_HEADER = "x-geminid-page"

#: The header with the secret of a browser session: cookies reach every port of this machine, so one alone is no proof.
SESSION_HEADER = "x-geminid-session"

#: Headers of every answer: nothing is stored by browsers and proxies, or taken for another kind of content.
ANSWER_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

#: Methods that change nothing.
READING = frozenset({"GET", "HEAD", "OPTIONS"})

Handler = Callable[[Request], Awaitable[Response]]

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


async def check_access(request: Request, call_next: Handler) -> Response:
    """Pass a request on if it may be sent, with the identity of its sender; otherwise refuse it."""
    answer = await _checked(request, call_next)
    answer.headers.update(ANSWER_HEADERS)
    return answer


async def _checked(request: Request, call_next: Handler) -> Response:
    context = context_of(request)
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:  # half an address in brackets
        host = None
    if host is None or host not in context.hosts:
        return refuse(request, 403, f"requests must be to this machine, not to {str(host)[:100]!r}")
    origin = request.headers.get("origin")
    if origin is not None and origin not in context.origins:
        return refuse(request, 403, f"requests from pages of {origin[:100]!r} are refused (--public-url allows one)")
    by_own_page = origin is not None and request.headers.get(PAGE_HEADER) == "1"
    begins_session = request.url.path == SESSION and request.method == "POST" and by_own_page
    if request.url.path == PROOF or begins_session:
        return await call_next(request)
    try:
        identity, by_cookie = sender_of(request)
        context.audit_token_changes()
    except DamagedTokens as problem:
        return error_response(503, str(problem))
    if identity is None:
        return refuse(request, 401, "a valid token is needed, as in Authorization: Bearer TOKEN")
    reads = request.method in READING
    if by_cookie and not reads and not by_own_page:
        return refuse(request, 403, "a browser may change something only from a page of this service")
    if identity.is_viewer and not reads and request.url.path not in FOR_VIEWERS:
        return error_response(403, f"{identity.user} has role viewer, which may only read")
    connection = getattr(request.state, CONNECTION, None)
    if connection is not None and not connection.identified(identity.user):
        most = connection.all_connections.limits.per_user
        sentence = f"{identity.user} has too many connections open (at most {most})"
        return error_response(429, f"{sentence}: close some of them, such as `geminid logs --follow`")
    if int(request.headers.get("content-length") or 0) > MAX_TEXT_LENGTH:
        return error_response(413, TOO_LONG)
    request.state.identity = identity
    return await call_next(request)


def sender_of(request: Request) -> tuple[Identity | None, bool]:
    """Who sends a request, None if nobody knows; and whether a browser session says so."""
    context = context_of(request)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme:
        return (context.tokens.identify(token.strip()) if scheme.lower() == "bearer" else None), False
    cookie = request.cookies.get(context.sessions.cookie_name)
    secret = request.headers.get(SESSION_HEADER, "")
    return (None if cookie is None else context.sessions.identify(cookie, secret)), True
