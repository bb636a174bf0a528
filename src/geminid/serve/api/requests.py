"""How requests are read and refused: limits of their size, and one form for errors.

An error is a status code and ``{"errors": [...]}`` with one sentence for each mistake.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect

from geminid.documents import load_json
from geminid.fields import MAX_TEXT_LENGTH, InvalidInput
from geminid.serve.api.context import context_of
from geminid.serve.inbox import Refused
from geminid.serve.livejob import printable
from geminid.serve.refusals import NOBODY
from geminid.serve.store import StoreProblem

#: Characters that a submitter's environment may have, as JSON.
MAX_ENVIRONMENT_LENGTH = 32_768

#: Answers at least this long are compressed.
MIN_COMPRESSED_BYTES = 20_000

#: How hard (1 to 9): a local browser should not wait for it.
COMPRESSION_LEVEL = 1

#: Why a body that is too long is refused.
TOO_LONG = f"a request has at most {MAX_TEXT_LENGTH:,} bytes"


async def _json_body(request: Request) -> Any:
    body = bytearray()
    async for piece in request.stream():  # it may be longer than its header says
        body += piece
        if len(body) > MAX_TEXT_LENGTH:
            raise Refused(413, TOO_LONG)
    return load_json(bytes(body).decode("utf-8", "replace"))


#: The request's body, read and checked in the same way as a job file.
JsonBody = Annotated[Any, Depends(_json_body)]


def body_schema(model: type[Any]) -> dict[str, Any]:
    """What the description of a route says of its ``JsonBody``."""
    schema = TypeAdapter(model).json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def parse_environment(text: str | None) -> dict[str, str]:
    """The submitter's environment. Which of its variables a job gets is decided with the job's specification.

    Raises:
        Refused: it is not a JSON object of strings.
    """
    try:
        environment = json.loads(text or "{}")
    except ValueError:
        environment = None
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise Refused(422, 'environment: must be a JSON object of strings, such as {"LANG": "C.UTF-8"}')
    return environment


def large_response(request: Request, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A response with much JSON, compressed if it is long and the client can read that."""
    body = msgspec.json.encode(content)
    known = {**(headers or {}), "Vary": "Accept-Encoding"}
    if len(body) >= MIN_COMPRESSED_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, COMPRESSION_LEVEL)
        known["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=known)


def error_response(status: int, *sentences: str) -> JSONResponse:
    """A response that says why a request was not met."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"errors": list(sentences)}, status, headers)


def client_address(request: Request) -> str:
    """The address that a request came from."""
    return request.client.host if request.client is not None else "?"


def refuse(request: Request, status: int, sentence: str, user: str = NOBODY) -> JSONResponse:
    """Refuse a request that its sender has no right to make, and note that for the operator."""
    noted = f"{status} for {user} at {client_address(request)}: {request.method} {printable(request.url.path)[:200]}"
    context_of(request).refusals.refused(user, noted)
    return error_response(status, sentence)


def install_error_handlers(app: FastAPI) -> None:
    """Have the application answer every kind of refusal in the same form."""

    @app.exception_handler(Refused)
    async def on_refused(request: Request, problem: Refused) -> JSONResponse:
        if problem.status == 403:
            return refuse(request, 403, str(problem), request.state.identity.user)
        return error_response(problem.status, str(problem))

    @app.exception_handler(InvalidInput)
    async def on_invalid(request: Request, problem: InvalidInput) -> JSONResponse:
        return error_response(422, *map(str, problem.problems))

    @app.exception_handler(RequestValidationError)
    async def on_malformed(request: Request, problem: RequestValidationError) -> JSONResponse:
        sentences = [
            f"{entry['loc'][-1]} is {str(entry.get('input'))[:100]!r}, but {_requirement(entry['msg'])}"
            for entry in problem.errors()
        ]
        return error_response(422, *sentences)

    @app.exception_handler(StoreProblem)
    async def on_store_problem(request: Request, problem: StoreProblem) -> JSONResponse:
        return error_response(507, str(problem))

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(request: Request, problem: ClientDisconnect) -> JSONResponse:
        return error_response(400, "the request did not arrive in full")


def _requirement(message: str) -> str:
    """What a parameter must be, from FastAPI's message about it ("Input should be a valid integer")."""
    subject, should, rest = message.partition(" should ")
    return f"must {rest}" if should and subject in ("Input", "String") else f"{message[:1].lower()}{message[1:]}"
