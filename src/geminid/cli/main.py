"""The ``geminid`` command: its top level, its version and its error contract."""

from __future__ import annotations

from typing import Annotated

import typer

from geminid import __version__

app = typer.Typer(
    name="geminid",
    help="Schedule deep-learning training on shared clusters of mixed accelerators.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"geminid {__version__}")
        raise typer.Exit


@app.callback()
def top_level(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedule deep-learning training on shared clusters of mixed accelerators."""


def main() -> None:
    """Entry point of the console script."""
    app()
