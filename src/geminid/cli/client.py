"""What commands that talk to the service share: finding it, and reporting errors."""

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


#: Environment variable that overrides ``AWAY_S``.
AWAY = "GEMINID_AWAY"

#: Time for which a service that has answered before may be unreachable before a command gives up, in seconds.
AWAY_S = 60.0

#: Timeout of a request of a command, in seconds.
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
        print_error(trouble)
        raise typer.Exit(trouble.code) from None


class Absence:
    """How long a command waits for a service that has answered it before: one that is restarted comes back."""

    def __init__(self) -> None:
        self._until_s = 0.0  # give up at once if no service has ever answered
        self._longest_s = away_s()

    def over(self) -> None:
        """The service has answered."""
        self._until_s = math.inf

    def wait_or_raise(self, trouble: ServiceError) -> None:
        """Wait a little before the next attempt.

        Raises:
            ServiceError: the service has been unreachable for too long, or the error is a different one.
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
    """How long a service that has answered before may be unreachable, in seconds."""
    try:
        return float(os.environ.get(AWAY, AWAY_S))
    except ValueError:
        give_up(f"{AWAY} is {os.environ[AWAY]!r}, but must be a number of seconds", 2)


def print_error(trouble: ServiceError) -> None:
    """Print the sentences of an error."""
    for sentence in trouble.sentences:
        error_console.print(f"[red]error:[/] {escape(sentence)}", soft_wrap=True)


def of(*parts: str) -> str:
    """The path of a resource of the service, with every part quoted."""
    from geminid.serve.client import address

    return address(*parts)


def give_up(sentence: str, code: int = 1) -> NoReturn:
    """End the command with one sentence."""
    error_console.print(f"[red]error:[/] {escape(sentence)}", soft_wrap=True)
    raise typer.Exit(code)
