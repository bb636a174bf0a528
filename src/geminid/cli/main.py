"""The ``geminid`` command: its top level, its version and its error contract."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from geminid import __version__
from geminid.cli import bench, bench_service, bench_training, ends_when_interrupted, jobs, operate, service
from geminid.cli.demo import demo
from geminid.cli.measure import measure_here
from geminid.cli.output import error_console
from geminid.cli.profile import profile
from geminid.cli.simulate import policies, simulate, workloads
from geminid.cli.validate import validate
from geminid.fields import InvalidInput


class Commands(TyperGroup):
    """All commands; an interrupt is told here, before Typer sees it and ends in its own way."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with ends_when_interrupted():
            return super().invoke(ctx)


app = typer.Typer(
    name="geminid",
    cls=Commands,
    help="Schedule deep-learning training on shared clusters of mixed accelerators.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

bench.app.command()(bench_training.rescale)
bench.app.command()(bench_training.overhead)
bench.app.command()(bench_training.data)
bench.app.command()(bench_training.saving)
bench.app.command()(bench_service.service)
bench.app.command()(bench_service.live)
bench.app.command()(bench_service.ray)
bench.app.command()(bench_service.scale)
app.add_typer(bench.app, name="bench")


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


_PANELS: dict[str, tuple[Any, ...]] = {
    "The service": (service.up, service.down, service.status),
    "Jobs": (
        *(jobs.submit, jobs.queue, jobs.show, jobs.logs, jobs.explain),
        *(jobs.wait, jobs.cancel, jobs.pause, jobs.resume, jobs.set_job),
    ),
    "For operators": (
        *(operate.nodes, operate.drain, operate.cordon, operate.quota),
        *(operate.usage, operate.events, operate.replay, operate.token),
    ),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(name=command.__name__.removesuffix("_job"), rich_help_panel=panel)(command)
app.command()(demo)
app.command(name="measure")(measure_here)
app.command()(simulate)
app.command()(policies)
app.command()(workloads)
app.command()(validate)
app.command()(profile)


def main() -> None:
    """Run the command line: bad input is told in one sentence per mistake, with exit code 2."""
    try:
        app()
    except InvalidInput as error:
        for problem in error.problems:
            error_console.print(f"[red]error:[/] {escape(str(problem))}", soft_wrap=True)
        raise SystemExit(2) from None
