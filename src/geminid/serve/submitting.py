"""Submitting a job at most once, although the connection may break before the answer arrives."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from geminid.clock import Clock
from geminid.serve.client import NO_SERVICE, Client, NoAnswer, ServiceError, submitters_environment

#: Time between two attempts to find out whether a job was submitted.
RETRY_S = 0.3

#: Time for which it is tried by default.
PATIENCE_S = 30.0


def submitter() -> dict[str, str]:
    """What the service needs to know about the submitter: the Python in use, and some of the environment."""
    return {"python": sys.executable, "environment": submitters_environment()}


def submit_once(
    find_client: Callable[[], Client],
    document: Mapping[str, Any],
    key: str | None = None,
    *,
    patience_s: float = PATIENCE_S,
    on_break: Callable[[], None] = lambda: None,
    clock: Clock | None = None,
    to: str = "jobs",
) -> Any:
    """Submit a job at most once, under the given key or a new one; returns the job.

    With ``to="job-groups"`` the document has several jobs, and so has the answer.

    The service answers a key that it has seen with the job that it created for it. If the connection breaks before the
    answer arrives, ``on_break`` is called and the request is repeated for ``patience_s``; a service that was restarted
    meanwhile is found by ``find_client``.

    Raises:
        Unknown: it is not known whether the job was submitted.
        ServiceError: the service refused it.
    """
    clock = clock or Clock()
    used = key or uuid.uuid4().hex
    deadline_s: float | None = None
    while True:
        try:
            made = find_client().post(to, document, headers={"Idempotency-Key": used}, **submitter())
        except ServiceError as trouble:
            unanswered = isinstance(trouble, NoAnswer) or (deadline_s is not None and trouble.code == NO_SERVICE)
            if not unanswered:
                raise
            if deadline_s is None:
                deadline_s = clock.monotonic_s() + patience_s
                on_break()
            if clock.monotonic_s() >= deadline_s:
                raise Unknown(used, *trouble.sentences) from None
            clock.sleep(RETRY_S)
        else:
            return made


class Unknown(ServiceError):
    """It is not known whether a job was submitted. Submitting it again with ``key`` submits it at most once."""

    def __init__(self, key: str, *sentences: str) -> None:
        super().__init__(NO_SERVICE, *sentences)
        self.key = key
