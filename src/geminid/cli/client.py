"""What commands that talk to the service share: finding it, and telling what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.markup import escape

from geminid.cli.output import error_console

if TYPE_CHECKING:
    from geminid.serve.client import Client, Trouble


def client() -> Client:
    """The service of this user."""
    from geminid.serve.client import Client

    return Client.here()


@contextlib.contextmanager
def reporting_trouble() -> Iterator[None]:
    """Trouble with the service within ends the command with its sentences and its exit code."""
    from geminid.serve.client import Trouble

    try:
        yield
    except Trouble as trouble:
        tell(trouble)
        raise typer.Exit(trouble.code) from None


def tell(trouble: Trouble) -> None:
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
