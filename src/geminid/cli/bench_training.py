"""``geminid bench rescale``, ``overhead``, ``data`` and ``saving``: claims about training, measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from geminid.cli import ends_when_terminated
from geminid.cli.bench import Json, Quick, Target, conclude, sized, titled
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table

if TYPE_CHECKING:
    from geminid.bench.overhead import OverheadRow
    from geminid.bench.rescale import RescaleRow
    from geminid.bench.saving import SavingRow


def rescale(quick: Quick = False, wide: WideOption = False, json: Json = False) -> None:
    """Pause of a live rescale of a ten-million-parameter job on CPU slots, beside the cold restart it replaces.

    Ends with 1 if a live rescale pauses training for a second or more.
    """
    _need_torch()
    from geminid.bench.live_jobs import BenchmarkFailed
    from geminid.bench.rescale import GOAL_S, QUICK_SIZES, SIZES, run

    try:
        with error_console.status("starting …") as status, ends_when_terminated():
            rows = run(sizes=QUICK_SIZES if quick else SIZES, progress=status.update)
    except BenchmarkFailed as problem:
        error_console.print(f"[red]error:[/] {escape(str(problem))}", soft_wrap=True)
        raise typer.Exit(1) from None
    if json:
        names = {"before": "from", "after": "to"}
        print_json([{names.get(name, name): value for name, value in asdict(row).items()} for row in rows])
    else:
        _print_rescales(rows, quick)
    longest_s = max(row.live_pause_s for row in rows)
    wanted = f"every live rescale pauses training for less than {GOAL_S:g} s"
    conclude([Target(wanted, longest_s < GOAL_S, f"{longest_s:.2f} s at most")], quick=quick, json=json)


def _print_rescales(rows: Sequence[RescaleRow], quick: bool) -> None:
    what = "Training stands still while a job of 10 million parameters is resized"
    print_table(
        titled(f"{what} (Adam, 120 MB of state, CPU slots)", quick),
        [
            Column("slots", text=True),
            Column("live"),
            Column("until first step", 3),
            Column("cold restart"),
            Column("until first step", 3),
            Column("warm restart", 2),
            Column("live is faster", 1),
        ],
        [
            [
                f"{row.before} → {row.after}",
                f"{row.live_pause_s:.2f} s",
                f"{row.live_first_step_s:.2f} s",
                f"{row.cold_pause_s:.1f} s",
                f"{row.cold_first_step_s:.1f} s",
                f"{row.warm_pause_s:.1f} s",
                f"{row.times_faster:.0f}×",
            ]
            for row in rows
        ],
    )
    console.print(
        "A warm restart forks its processes from one that has PyTorch imported; a cold one starts them afresh."
    )


def overhead(
    device: Annotated[str | None, typer.Option(help="Where: cuda or cpu. By default a GPU, if there is one.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1.0, max=3600.0, help="About how long to measure.", show_default="120.0")
    ] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """What the training library costs a step, and measuring the gradient noise in it: on against off, in turns.

    Ends with 1 if measuring costs 2 % of a step or more on a GPU, with a model that keeps it busy.
    """
    _need_torch()
    from geminid.bench.overhead import BUSY_MODELS, GOAL, MODELS, ON_CPU, OPTIMIZERS, QUICK_MODEL, QUICK_OPTIMIZERS, run

    if model is not None and model not in MODELS:
        error_console.print(f"error: model is {model!r}: it must be one of {', '.join(MODELS)}")
        raise typer.Exit(2)
    with error_console.status("building …") as status:
        rows = run(
            device=device,
            only=sized(model, quick, QUICK_MODEL, None),
            optimizers=QUICK_OPTIMIZERS if quick else OPTIMIZERS,
            seconds=sized(seconds, quick, 3.0, 120.0),
            progress=status.update,
        )
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_overheads(rows, quick)
    busy = [row.measuring_overhead for row in rows if row.model in BUSY_MODELS and row.device != ON_CPU]
    if busy:
        wanted = f"measuring the gradient noise costs less than {GOAL:.0%} of a step of a model that keeps a GPU busy"
        conclude([Target(wanted, max(busy) < GOAL, f"{max(busy):+.2%} at most")], quick=quick, json=json)


def _print_overheads(rows: Sequence[OverheadRow], quick: bool) -> None:
    what = f"A training step on {rows[0].device} (medians; plain loop, with the library, measuring the noise)"
    print_table(
        titled(what, quick),
        [
            Column("model", text=True),
            Column("batch", 4),
            Column("optimiser", 1),
            Column("plain", 2),
            Column("library", 3),
            Column("measuring", 3),
            Column("library costs"),
            Column("measuring costs"),
            Column("every", 5),
            Column("turns", 6),
        ],
        [
            [
                row.model,
                str(row.batch),
                row.optimizer,
                f"{1000 * row.plain_s:.2f} ms",
                f"{1000 * row.library_s:.2f} ms",
                f"{1000 * row.measuring_s:.2f} ms",
                f"{100 * row.library_overhead:+.2f} %",
                f"{100 * row.measuring_overhead:+.2f} %",
                f"{row.interval} steps",
                str(row.rounds),
            ]
            for row in rows
        ],
    )


def data(quick: Quick = False, wide: WideOption = False, json: Json = False) -> None:
    """What the library costs the data path, in processor time for a sample, with datasets that do next to nothing."""
    _need_torch()
    from geminid.bench.data import run

    with error_console.status("loading …") as status:
        rows = run(samples=640 if quick else 6400, rounds=3 if quick else 7, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        titled(f"Loading one sample, in batches of {rows[0].batch}, in one process (medians of processor time)", quick),
        ["dataset", "plain loader", "with the library", "times as long"],
        [
            [row.dataset, f"{1e6 * row.plain_s:.1f} µs", f"{1e6 * row.library_s:.1f} µs", f"{row.ratio:.2f}×"]
            for row in rows
        ],
    )


def saving(
    device: Annotated[str | None, typer.Option(help="Where: cuda or cpu. By default a GPU, if there is one.")] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """What checkpoints of a ten-million-parameter job cost training: standing still, and being slower meanwhile.

    Ends with 1 if they cost 1 % of the time or more.
    """
    _need_torch()
    from geminid.bench.saving import FULL, GOAL, QUICK, run

    with error_console.status("building …") as status:
        row = run(device=device, extent=QUICK if quick else FULL, progress=status.update)
    if json:
        print_json([asdict(row)])
    else:
        _print_saving(row, quick)
    wanted = f"checkpoints cost less than {GOAL:.0%} of the time"
    conclude([Target(wanted, row.overhead < GOAL, f"{row.overhead:.2%}")], quick=quick, json=json)


def _print_saving(row: SavingRow, quick: bool) -> None:
    what = f"Checkpoints of {row.state_bytes / 1e6:.0f} MB on {row.device}, one every {row.interval_s:.0f} s (medians)"
    print_table(
        titled(what, quick),
        ["a step", "training stands still", "written in the background in", "a step meanwhile", "of all time"],
        [
            [
                f"{1000 * row.step_s:.1f} ms",
                f"{1000 * row.pause_s:.1f} ms",
                f"{row.write_s:.2f} s",
                f"{1000 * row.step_while_writing_s:.1f} ms",
                f"{100 * row.overhead:.2f} %",
            ]
        ],
    )


def _need_torch() -> None:
    """End with one sentence where PyTorch is missing."""
    if importlib.util.find_spec("torch") is None:
        error_console.print("error: this needs PyTorch, which is not installed: pip install 'geminid\\[torch]'")
        raise typer.Exit(1)
