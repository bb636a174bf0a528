"""Logging in with a browser: one-time links, and the session that a link or a token opens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from geminid.serve import schemas
from geminid.serve.api.context import ApiContext, Caller, Context
from geminid.serve.api.requests import JsonBody, body_schema
from geminid.serve.auth import Identity
from geminid.serve.inbox import Refused
from geminid.serve.sessions import CODE_LIFETIME_S, SESSION_LIFETIME_S

#: Longest code or token that is looked at, in characters.
MAX_SECRET_LENGTH = 200

router = APIRouter()


@router.post("/login-links", status_code=201, response_model=schemas.LoginLink)
async def make_login_link(context: Context, caller: Caller) -> JSONResponse:
    """Make a link that logs a browser in as the sender: good once, for a minute.

    The code stands behind ``#``, which browsers do not send: no proxy and no log sees it.
    """
    code = context.sessions.make_code(caller)
    link = f"{context.public_url or context.url}/login#{code}"
    return JSONResponse({"url": link, "expires_in_s": CODE_LIFETIME_S}, 201)


@router.post("/session", status_code=201, response_model=schemas.Session, openapi_extra=body_schema(schemas.LogIn))
async def log_in(context: Context, given: JsonBody) -> JSONResponse:
    """Begin a browser session with the ``code`` of a login link, or with a ``token``."""
    fields = given if isinstance(given, dict) else {}
    if len(fields) != 1 or not fields.keys() <= {"code", "token"}:
        raise Refused(422, "the body must have one field: code or token")
    ((name, secret),) = fields.items()
    if not isinstance(secret, str) or len(secret) > MAX_SECRET_LENGTH:
        raise Refused(422, f"{name} must be a text of at most {MAX_SECRET_LENGTH} characters")
    cookie = _cookie(context, name, secret)
    if cookie is None:
        wrong = "this link was used already, or is older than a minute: `geminid open` makes a new one"
        raise Refused(401, wrong if name == "code" else "this token is not known here, or is not valid any more")
    identity = context.sessions.identify(cookie)
    if identity is None:
        raise Refused(401, "this token is not valid any more")
    answer = JSONResponse(_document(identity), 201)
    answer.set_cookie(
        context.sessions.cookie_name,
        cookie,
        max_age=int(SESSION_LIFETIME_S),
        path="/",
        secure=True,
        httponly=True,
        samesite="strict",
    )
    return answer


def _cookie(context: ApiContext, name: str, secret: str) -> str | None:
    """Open a session; the value of its cookie, None if the secret is not good."""
    if name == "code":
        return context.sessions.redeem(secret)
    identity = context.tokens.identify(secret.strip())
    return None if identity is None else context.sessions.open(identity.hash)


@router.get("/session", response_model=schemas.Session)
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
