"""``geminid measure``: measure real training on this machine, fit the goodput model, and compare the two."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from geminid.train.measure import Recording
    from geminid.train.study import Design

#: More workers than this say nothing new in a minute.
MOST_SLOTS_UNASKED = 4


def measure_here(
    slots: Annotated[
        int | None,
        typer.Option(min=2, max=64, help="Most worker processes to use.", show_default="4, or 2 on a single core"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long to measure.")] = 40.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the model and its data.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Train a small model on this machine's CPU, fit the goodput model, and compare predictions with measurements."""
    if importlib.util.find_spec("torch") is None:
        _give_up("it trains with PyTorch, which is not installed: pip install 'geminid[torch]'")
    # What follows needs numpy and more; `geminid --help` should not.
    from geminid.cli.measure_report import MeasuringReport
    from geminid.cli.output import console, print_json
    from geminid.train.study import Design, study
    from geminid.train.workers import MeasuringFailed, own_cores

    cores = len(own_cores()) or 1
    slots = slots if slots is not None else min(MOST_SLOTS_UNASKED, 2 * cores)
    design = Design.of(slots)
    try:
        recording, parameters = _measure(design, slots, seconds, seed)
    except MeasuringFailed as problem:
        _give_up(f"could not measure: {problem}")
    report = MeasuringReport(
        study=study(design, recording), recording=recording, slots=slots, cores=cores, parameters=parameters, seed=seed
    )
    if as_json:
        print_json(report.document())
    else:
        report.show(console)


def _give_up(sentence: str) -> NoReturn:
    """End the command with one sentence and exit code 1."""
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(1)


def _measure(design: Design, slots: int, seconds: float, seed: int) -> tuple[Recording, int]:
    """Measure all points behind a progress bar on the error stream; the recording and the model's parameter count."""
    from rich.progress import Progress

    from geminid.cli.output import error_console
    from geminid.train.measure import ROUNDS, measure
    from geminid.train.study import LIMITS
    from geminid.train.workers import Workers

    with Progress(console=error_console, transient=True) as progress:
        task = progress.add_task(f"Starting {slots} workers", total=None)
        with Workers(slots, seed=seed) as workers:
            visits = len(design.points) * (ROUNDS + 1)
            progress.update(task, description=f"Training in {len(design.points)} configurations", total=visits)
            recording = measure(
                workers,
                design.points,
                seconds=seconds,
                initial_batch=LIMITS.initial,
                seed=seed,
                on_visit=lambda: progress.advance(task),
            )
            return recording, workers.parameter_count
