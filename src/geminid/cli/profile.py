"""``geminid profile -- python train.py``: measure a script, fit the goodput model, say what more slots would bring."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from msgspec import to_builtins

from geminid.cli import ends_when_terminated
from geminid.cli.output import WideOption

if TYPE_CHECKING:
    from geminid.train.profiling import ScriptProfile

#: More CPU slots than this say nothing new in a minute.
MOST_CPU_SLOTS_UNASKED = 4


def profile(
    command: Annotated[
        list[str],
        typer.Argument(
            help="The training command, after --. A plain python is the one that geminid runs in.", show_default=False
        ),
    ],
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Most slots to use.", show_default="all GPUs, or up to 4 cores"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long to measure.")] = 40.0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the profile to, for `geminid simulate --profiles`. Its name is the model's."
        ),
    ] = None,
    gpu_type: Annotated[str | None, typer.Option("--type", help="GPU type that the slots are of.")] = None,
    wide: WideOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure a training script on this machine's slots, fit the goodput model, and compare the two."""
    if importlib.util.find_spec("torch") is None:
        _give_up("profiling trains with PyTorch, which is not installed: pip install 'geminid[torch]'")
    from geminid.cli.output import error_console, print_json
    from geminid.train.profiling import ProfilingFailed, profile_script, write_profile

    if command[0] in ("python", "python3"):
        command = [sys.executable, *command[1:]]
    gpus = _gpus()
    cores = len(os.sched_getaffinity(0))
    wanted = slots or len(gpus) or min(MOST_CPU_SLOTS_UNASKED, cores)
    if not gpus and wanted > cores:
        warning = f"warning: {wanted} CPU slots share {cores} cores: a slot is slower the more of them are in use"
        error_console.print(warning, highlight=False, soft_wrap=True)
    if gpus and wanted > len(gpus):
        _give_up(f"--slots is {wanted}: this machine has {len(gpus)} GPUs")
    names = gpus[:wanted] if gpus else [f"cpu{i}" for i in range(wanted)]
    try:
        with error_console.status("starting …") as status, ends_when_terminated():
            measured = profile_script(
                command,
                slots=names,
                seconds=seconds,
                slot_environment=lambda slot: {"CUDA_VISIBLE_DEVICES": slot} if gpus else {"OMP_NUM_THREADS": "1"},
                progress=status.update,
            )
    except ProfilingFailed as problem:
        _give_up(str(problem))
    gpu_type = gpu_type or ("gpu" if gpus else "cpu")
    if out is not None:
        write_profile(measured, out, gpu_type)
    if as_json:
        print_json(_document(measured))
    else:
        _show(measured, out, gpu_type)


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name for name in allowed.split(",") if name not in ("", "-1")]
    found = [path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(i) for i in range(len(found))]


def _give_up(sentence: str) -> NoReturn:
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(1)


def _document(measured: ScriptProfile) -> dict[str, object]:
    return {
        "limits": asdict(measured.limits),
        "parameters": measured.ready.parameter_count,
        "dataset_samples": measured.ready.dataset_samples,
        "points": [{**to_builtins(visit), "error": visit.error} for visit in measured.visits],
        "fit": {"model": measured.fitted.model, "parameters": list(measured.fitted.parameters)},
        "fitted_error": measured.mean_error(held_out=False),
        "held_out_error": measured.mean_error(held_out=True),
        "noise": {
            "known": measured.noise_known,
            "scale": measured.noise_scale,
            "squared_gradient": measured.gradient.squared_gradient,
            "variance": measured.gradient.variance,
        },
        "goodput": [
            {"slots": row.slots, "measured": row.measured, "speedup": row.speedup, **asdict(row.plan)}
            for row in measured.outlooks
        ],
    }


def _show(measured: ScriptProfile, out: Path | None, gpu_type: str) -> None:
    from geminid.cli.output import console, print_table
    from geminid.goodput.throughput import MODELS
    from geminid.train.profiling import WORKLOAD

    print_table(
        "Step times, measured and predicted by a fit that was not shown the rows marked *",
        ["slots", "per slot", "passes", "steps timed", "a pass", "a step", "predicted", "error"],
        [
            [
                str(visit.slots),
                f"{visit.plan.per_slot_batch}{' *' if visit.held_out else ''}",
                str(visit.plan.accumulation_steps + 1),
                str(visit.steps),
                f"{1000 * visit.accumulation_s:.2f} ms",
                f"{1000 * visit.step_s:.2f} ms",
                f"{1000 * visit.predicted_s:.2f} ms",
                f"{100 * visit.error:+.1f} %",
            ]
            for visit in measured.visits
        ],
    )
    names = [parameter.name for parameter in MODELS[measured.fitted.model].parameters]
    shown = ", ".join(f"{name} {value:.3g}" for name, value in zip(names, measured.fitted.parameters, strict=True))
    console.print(f"The fit ({measured.fitted.model}): {shown}.", soft_wrap=True)
    for held_out, label in ((False, "fitted rows"), (True, "rows held out")):
        if (error := measured.mean_error(held_out=held_out)) == error:
            console.print(f"Mean error on the {label}: {100 * error:.1f} %.")
    noise = f"{measured.noise_scale:,.0f} samples" if measured.noise_known else "not measured (taken to be M0)"
    console.print(f"Gradient noise scale: {noise}; initial batch {measured.limits.initial}.")
    console.print()
    top = max((row.plan.goodput for row in measured.outlooks), default=1.0)
    print_table(
        "Goodput (useful samples per second) with the best batch plan on each number of slots",
        ["slots", "batch", "per slot × passes", "throughput", "efficiency", "goodput", "speed-up", ""],
        [
            [
                f"{row.slots}{'' if row.measured else ' (not run)'}",
                str(row.plan.total_batch),
                f"{row.plan.per_slot_batch} × {row.plan.accumulation_steps + 1}",
                f"{row.plan.throughput:,.1f}/s",
                f"{100 * row.plan.efficiency:.0f} %",
                f"{row.plan.goodput:,.1f}/s",
                f"{row.speedup:.2f}×",
                "█" * max(1, round(24 * row.plan.goodput / top)),
            ]
            for row in measured.outlooks
        ],
    )
    if out is not None:
        console.print(
            f"The profile is in {out}. Try: geminid simulate --profiles {out.absolute().parent} --workload "
            f"{out / WORKLOAD} --cluster {gpu_type}:2x4",
            soft_wrap=True,
        )
