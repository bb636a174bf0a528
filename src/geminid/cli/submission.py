"""Submitting once: where a connection breaks, the key of the request tells whether there is a job."""

from __future__ import annotations

import shlex
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any

from geminid.cli.client import away_s, client
from geminid.cli.output import error_console

#: Time between two attempts to learn what has become of a request.
RETRY_S = 0.3


def submitter() -> dict[str, str]:
    """What a service is told of whoever submits a job: which Python is theirs, and some of their environment."""
    from geminid.serve.client import submitters_environment

    return {"python": sys.executable, "environment": submitters_environment()}


def try_out(document: Mapping[str, Any]) -> dict[str, Any]:
    """What would become of a job if it were submitted now."""
    told: dict[str, Any] = client().post("jobs", document, dry_run=True, headers=None, **submitter())
    return told


def submit_once(document: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Submit a job under a key, a new one if none is given; the job.

    The service knows a key that it has seen, and answers with the job that it has made for it. If the connection
    breaks before the answer is there, the same is asked again for a while.

    Raises:
        ServiceError: it was refused; or nobody knows whether it was submitted, and the command that settles it.
    """
    from geminid.serve.client import NO_SERVICE, NoAnswer, ServiceError

    used = key or uuid.uuid4().hex
    deadline: float | None = None
    while True:
        try:
            made: dict[str, Any] = client().post("jobs", document, headers={"Idempotency-Key": used}, **submitter())
        except ServiceError as trouble:
            unanswered = isinstance(trouble, NoAnswer) or (deadline is not None and trouble.code == NO_SERVICE)
            if not unanswered:
                raise
            if deadline is None:
                deadline = time.monotonic() + away_s()
                error_console.print("the connection broke before the answer: asking whether the job was submitted")
            if time.monotonic() >= deadline:
                settle = f"run this command in this folder, which submits it at most once: {_same_command(used)}"
                told = f"the job may have been submitted, or not: {settle}"
                raise ServiceError(NO_SERVICE, *trouble.sentences, told) from None
            time.sleep(RETRY_S)
        else:
            return made


def _same_command(key: str) -> str:
    """The command that was typed, with its key."""
    words = sys.argv[sys.argv.index("submit") + 1 :] if "submit" in sys.argv else []
    while "--key" in words[: words.index("--") if "--" in words else None]:
        at = words.index("--key")
        words = words[:at] + words[at + 2 :]
    return shlex.join(["geminid", "submit", "--key", key, *words])
