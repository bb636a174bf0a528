"""The application: all routers behind the access check, with one form for errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from geminid import __version__
from geminid.serve import schemas
from geminid.serve.api import (
    access,
    events,
    explain,
    jobs,
    logs,
    nodes,
    past,
    queues,
    session,
    source,
    status,
    watch,
    whatif,
)
from geminid.serve.api.access import PREFIX, PROOF
from geminid.serve.api.context import ApiContext
from geminid.serve.api.requests import install_error_handlers


def make_app(context: ApiContext) -> FastAPI:
    """The interface of a service."""
    app = FastAPI(
        title="Geminid",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": schemas.Errors}, "5XX": {"model": schemas.Errors}},
    )
    app.state.context = context
    app.middleware("http")(access.check_access)
    install_error_handlers(app)
    for subject in (access, session, jobs, source, explain, logs, past, watch, nodes, queues, events, status, whatif):
        app.include_router(subject.router, prefix=PREFIX)
    app.include_router(status.metrics_router)
    _describe_tokens(app)
    return app


def _describe_tokens(app: FastAPI) -> None:
    """Say in the description that every request but one needs a token."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        description["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"token": []}]
        for operation in description["paths"][PROOF].values():
            operation["security"] = []
        return description

    app.openapi = openapi  # type: ignore[method-assign]
