"""The ``geminid`` command: its top level, its version and its error contract.

A command's module is loaded when it is used, or when all are listed: most of what a short command costs is loading.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from geminid import __version__
from geminid.cli import ends_when_interrupted
from geminid.fields import InvalidInput

MARKUP: Final = "rich"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is: a function of a module of the command line, or a whole group of them (``app``)."""

    module: str
    attribute: str
    panel: str | None = None

    def load(self, name: str) -> Any:
        """The command."""
        found = getattr(import_module(f"geminid.cli.{self.module}"), self.attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
            found.command(name=name, rich_help_panel=self.panel)(function)
        command = get_command(found)
        command.name = name
        return command


def _places() -> Iterator[tuple[str, Place]]:
    for panel, module, names in (
        ("The service", "service", "up down status"),
        ("Jobs", "submit", "submit"),
        ("Jobs", "jobs", "show explain wait cancel pause resume"),
        ("Jobs", "rerun", "rerun"),
        ("Jobs", "queue", "queue"),
        ("Jobs", "logs", "logs"),
        ("Jobs", "top", "top"),
    ):
        yield from ((name, Place(module, name, panel)) for name in names.split())
    yield "open", Place("open", "open_page", "The service")
    yield "set", Place("jobs", "set_job", "Jobs")
    yield "history", Place("history", "history", "Jobs")
    operating = ["nodes", "drain", "cordon", "quota", "queue-members", "queue-priority"]
    for name in [*operating, "usage", "events", "replay", "token"]:
        yield name, Place("operate", name.replace("-", "_"), "For operators")
    for name in ["backup", "restore", "recover"]:
        yield name, Place("keeping", name, "For operators")
    yield "demo", Place("demo", "demo")
    yield "simulate", Place("simulate", "simulate")
    yield from ((name, Place("catalogue", name)) for name in ("policies", "workloads"))
    yield "validate", Place("validate", "validate")
    yield "profile", Place("profile", "profile")
    yield "bench", Place("benches", "app")


class Loading(MutableMapping[str, Any]):
    """Commands by name, each of them loaded when somebody asks for it."""

    def __init__(self) -> None:
        self._places, self._loaded = dict(_places()), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._places[name].load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._places, **self._loaded})

    def __len__(self) -> int:
        return len({**self._places, **self._loaded})


class Commands(TyperGroup):
    """All commands. An interrupt is handled here, before Typer handles it in its own way."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Loading()

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, without loading any."""
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with ends_when_interrupted():
            try:
                return super().invoke(ctx)
            except Exception as error:
                _suggest_slots(error)
                raise


def _suggest_slots(error: Exception) -> None:
    """Where somebody typed an option about GPUs that does not exist, name the command's options about slots."""
    name, command = getattr(error, "option_name", ""), getattr(getattr(error, "ctx", None), "command", None)
    if "gpu" not in name or command is None or not hasattr(error, "possibilities"):
        return
    known = [option for param in command.params for option in param.opts if "slots" in option]
    same = name.replace("gpus", "slots").replace("gpu", "slots")
    error.possibilities = [same] if same in known else known or error.possibilities


app = typer.Typer(
    name="geminid",
    cls=Commands,
    help="Schedule deep-learning training on shared clusters of mixed accelerators.",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
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
    """Run the command line: bad input is reported in one sentence per mistake, with exit code 2."""
    try:
        app()
    except InvalidInput as error:
        from rich.markup import escape

        from geminid.cli.output import error_console

        for problem in error.problems:
            error_console.print(f"[red]error:[/] {escape(str(problem))}", soft_wrap=True)
        raise SystemExit(2) from None
