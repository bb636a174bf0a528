"""What all of ``geminid bench`` shares: common options, quick runs, targets, and the command group itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.markup import escape

from geminid.cli.output import console, error_console
from geminid.fields import InvalidInput, Problem

app = typer.Typer(
    help="Measure the claims about accuracy and speed, on this machine, now.",
    no_args_is_help=True,
    add_completion=False,
)

PEERS = Path("../shared/peers")

Json = Annotated[bool, typer.Option("--json", help="Print a list of rows for programs instead of tables.")]
Peers = Annotated[Path, typer.Option(help="Folder that holds the peers' workloads, profiles and tables.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Small sizes, in seconds: to see that it works. Targets of speed are not judged."),
]

T = TypeVar("T")


def sized(given: T | None, quick: bool, small: T, full: T) -> T:
    """What was typed; otherwise the small size of a quick run, or the full one."""
    return given if given is not None else small if quick else full


def titled(title: str, quick: bool) -> str:
    """A table's title, which says if the run was a quick one."""
    return f"{title} (quick run)" if quick else title


def whole_numbers(name: str, text: str, smallest: int) -> list[int]:
    """Numbers separated by commas, or a sentence on what is wrong with them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) >= smallest for part in parts):
        raise InvalidInput([Problem(name, text, f"must be whole numbers of at least {smallest}, separated by commas")])
    return [int(part) for part in parts]


@dataclass(frozen=True, slots=True)
class Target:
    """What a bench should show, whether it did, and the figure that was seen.

    Targets of ``full_size`` are about speed or about results at full size: a quick run does not judge them.
    """

    wanted: str
    met: bool
    seen: str
    full_size: bool = True


def conclude(targets: Iterable[Target], *, quick: bool, json: bool) -> None:
    """Say of each target whether it was met (on standard error beside JSON); end with 1 if one was missed."""
    out = error_console if json else console
    judged = []
    for target in targets:
        if quick and target.full_size:
            verdict = "[yellow]not judged in a quick run[/]"
        else:
            judged.append(target.met)
            verdict = "[green]met[/]" if target.met else "[red]missed[/]"
        out.print(f"{verdict}: {escape(target.wanted)} ({escape(target.seen)})", soft_wrap=True)
    if not all(judged):
        raise typer.Exit(1)


def skip(sentence: str, *, json: bool) -> None:
    """Say why a quick run measures nothing here; programs get an empty list."""
    error_console.print(f"skipped: {escape(sentence)}", soft_wrap=True)
    if json:
        print("[]")
