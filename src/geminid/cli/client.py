"""What commands that talk to the service share: finding it, and telling what went wrong."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.markup import escape

from geminid.cli.output import error_console

if TYPE_CHECKING:
    from geminid.serve.client import Client, ServiceError


#: A service that has answered before may be away for so many seconds before ``wait`` and ``logs --follow`` give up.
AWAY = "GEMINID_AWAY"
AWAY_S = 60.0

#: Time for an answer to a question of somebody who waits at a terminal.
ANSWER_S = 10.0


def client() -> Client:
    """The service of this user."""
    from geminid.serve.client import Client

    return Client.here(timeout_s=ANSWER_S)


@contextlib.contextmanager
def reporting_trouble() -> Iterator[None]:
    """An error of the service within ends the command with its sentences and its exit code."""
    from geminid.serve.client import ServiceError

    try:
        yield
    except ServiceError as trouble:
        tell(trouble)
        raise typer.Exit(trouble.code) from None


class Absence:
    """How long a command bears that a service is away which has answered it before: one restarted comes back."""

    def __init__(self) -> None:
        self._until_s = 0.0  # at once, if there never was a service
        self._longest_s = away_s()

    def over(self) -> None:
        """The service has answered."""
        self._until_s = math.inf

    def bear(self, trouble: ServiceError) -> None:
        """Wait a little before it is asked again.

        Raises:
            ServiceError: the service has been away for too long, or it is something else.
        """
        from geminid.serve.client import NO_SERVICE

        just_gone = self._until_s == math.inf
        self._until_s = min(self._until_s, time.monotonic() + self._longest_s)
        if trouble.code != NO_SERVICE or time.monotonic() >= self._until_s:
            raise trouble
        if just_gone:
            error_console.print(f"the service is away; waiting for {self._longest_s:g} s for it to come back")
        time.sleep(0.2)


def away_s() -> float:
    """How long a service may be away that has answered before, in seconds."""
    try:
        return float(os.environ.get(AWAY, AWAY_S))
    except ValueError:
        give_up(f"{AWAY} is {os.environ[AWAY]!r}, but must be a number of seconds", 2)


def tell(trouble: ServiceError) -> None:
    """Say what went wrong."""
    for sentence in trouble.sentences:
        error_console.print(f"[red]error:[/] {escape(sentence)}", soft_wrap=True)


def of(*parts: str) -> str:
    """Where the service has something, by the names that were typed."""
    from geminid.serve.client import address

    return address(*parts)


def give_up(sentence: str, code: int = 1) -> NoReturn:
    """End the command with one sentence."""
    error_console.print(f"[red]error:[/] {escape(sentence)}", soft_wrap=True)
    raise typer.Exit(code)
