"""Logging in with a browser: one-time links, and the session that a link or a token opens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from geminid.serve import pageschemas
from geminid.serve.api.context import ApiContext, Caller, Context
from geminid.serve.api.requests import JsonBody, body_schema, client_address, refuse
from geminid.serve.auth import Identity
from geminid.serve.inbox import Refused
from geminid.serve.sessions import CODE_LIFETIME_S, SESSION_LIFETIME_S, Opened

#: Longest code or token that is looked at, in characters.
MAX_SECRET_LENGTH = 200

router = APIRouter()


@router.post("/login-links", status_code=201, response_model=pageschemas.LoginLink)
async def make_login_link(context: Context, caller: Caller) -> JSONResponse:
    """Make a link that logs a browser in as the sender: good once, for a minute.

    The code stands behind ``#``, which browsers do not send: no proxy and no log sees it.
    """
    code = context.sessions.make_code(caller)
    link = f"{context.public_url or context.url}/login#{code}"
    return JSONResponse({"url": link, "expires_in_s": CODE_LIFETIME_S}, 201)


@router.post(
    "/session", status_code=201, response_model=pageschemas.NewSession, openapi_extra=body_schema(pageschemas.LogIn)
)
async def log_in(context: Context, request: Request, given: JsonBody) -> JSONResponse:
    """Begin a browser session with the ``code`` of a login link, or with a ``token``.

    The cookie of the answer counts only together with its ``secret``, which is sent as ``X-Geminid-Session``.
    """
    fields = given if isinstance(given, dict) else {}
    if len(fields) != 1 or not fields.keys() <= {"code", "token"}:
        raise Refused(422, "the body must have one field: code or token")
    ((name, secret),) = fields.items()
    if not isinstance(secret, str) or len(secret) > MAX_SECRET_LENGTH:
        raise Refused(422, f"{name} must be a text of at most {MAX_SECRET_LENGTH} characters")
    address = client_address(request)
    if name == "token" and context.failed_log_ins.are_too_many(address):
        raise Refused(429, "too many log-ins failed: wait a minute, or use a link that `geminid open` prints")
    opened = _opened(context, name, secret)
    if opened is None:
        context.failed_log_ins.note(address)
        wrong = "this link was used already, or is older than a minute: `geminid open` makes a new one"
        return refuse(request, 401, wrong if name == "code" else "this token is not known here, or not valid any more")
    context.audit(f"{opened.identity.user} logged in with a browser from {address}")
    answer = JSONResponse({**_document(opened.identity), "secret": opened.secret}, 201)
    answer.set_cookie(
        context.sessions.cookie_name,
        opened.cookie,
        max_age=int(SESSION_LIFETIME_S),
        path="/",
        secure=True,
        httponly=True,
        samesite="strict",
    )
    return answer


def _opened(context: ApiContext, name: str, secret: str) -> Opened | None:
    """Open a session; None if the secret is not good."""
    if name == "code":
        return context.sessions.redeem(secret)
    identity = context.tokens.identify(secret.strip())
    return None if identity is None else context.sessions.open(identity.hash)


@router.get("/session", response_model=pageschemas.Session)
async def session(caller: Caller) -> JSONResponse:
    """Who is logged in."""
    return JSONResponse(_document(caller))


@router.delete("/session", status_code=204)
async def log_out(context: Context, request: Request) -> JSONResponse:
    """End the browser session of this request."""
    name = context.sessions.cookie_name
    if (cookie := request.cookies.get(name)) is not None:
        context.sessions.close(cookie)
    answer = JSONResponse(None, 204)
    answer.body = b""
    answer.headers["content-length"] = "0"
    answer.delete_cookie(name, path="/", secure=True, httponly=True, samesite="strict")
    return answer


def _document(identity: Identity) -> dict[str, Any]:
    return {"user": identity.user, "role": identity.role}
