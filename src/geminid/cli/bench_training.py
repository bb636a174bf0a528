"""``geminid bench rescale``, ``overhead``, ``data`` and ``saving``: claims about training, measured."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from typing import Annotated

import typer

from geminid.cli.bench import Json
from geminid.cli.output import console, error_console, print_json, print_table


def rescale(json: Json = False) -> None:
    """Pause of a live rescale of a ten-million-parameter job on CPU slots, beside the cold restart it replaces."""
    _need_torch()
    from geminid.bench.rescale import BenchmarkFailed, run

    try:
        with error_console.status("starting …") as status:
            rows = run(progress=status.update)
    except BenchmarkFailed as problem:
        error_console.print(f"error: {problem}")
        raise typer.Exit(1) from None
    if json:
        names = {"before": "from", "after": "to"}
        print_json([{names.get(name, name): value for name, value in asdict(row).items()} for row in rows])
        return
    print_table(
        "Training stands still while a job of 10 million parameters is resized (Adam, 120 MB of state, CPU slots)",
        ["slots", "live", "until first step", "cold restart", "until first step", "warm restart", "live is faster"],
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
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="About how long to measure.")] = 120.0,
    json: Json = False,
) -> None:
    """What the training library costs a step, and measuring the gradient noise in it: on against off, in turns."""
    _need_torch()
    from geminid.bench.overhead import MODELS, run

    if model is not None and model not in MODELS:
        error_console.print(f"error: model is {model!r}: it must be one of {', '.join(MODELS)}")
        raise typer.Exit(2)
    with error_console.status("building …") as status:
        rows = run(device=device, only=model, seconds=seconds, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"A training step on {rows[0].device} (medians; plain loop, with the library, measuring the noise)",
        [
            "model",
            "batch",
            "optimiser",
            "plain",
            "library",
            "measuring",
            "library costs",
            "measuring costs",
            "every",
            "turns",
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


def data(json: Json = False) -> None:
    """What the library costs the data path, in processor time for a sample, with datasets that do next to nothing."""
    _need_torch()
    from geminid.bench.data import run

    with error_console.status("loading …") as status:
        rows = run(progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"Loading one sample, in batches of {rows[0].batch}, in one process (medians of processor time)",
        ["dataset", "plain loader", "with the library", "times as long"],
        [
            [row.dataset, f"{1e6 * row.plain_s:.1f} µs", f"{1e6 * row.library_s:.1f} µs", f"{row.ratio:.2f}×"]
            for row in rows
        ],
    )


def saving(
    device: Annotated[str | None, typer.Option(help="Where: cuda or cpu. By default a GPU, if there is one.")] = None,
    json: Json = False,
) -> None:
    """What checkpoints of a ten-million-parameter job cost training: standing still, and being slower meanwhile."""
    _need_torch()
    from geminid.bench.saving import run

    with error_console.status("building …") as status:
        row = run(device=device, progress=status.update)
    if json:
        print_json([asdict(row)])
        return
    print_table(
        f"Checkpoints of {row.state_bytes / 1e6:.0f} MB on {row.device}, one every {row.interval_s:.0f} s (medians)",
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
