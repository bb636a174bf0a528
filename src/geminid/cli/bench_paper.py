"""``geminid bench paper``: the comparison with seeds, intervals, ablation, sensitivity and the bound."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from geminid.cli.bench import Json, Quick, sized, titled
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table


def paper(
    workload: Annotated[str, typer.Option(help="A built-in workload (see `geminid workloads`).")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Workloads drawn.", show_default="5")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.md and the figures.")] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Policies under several seeds with paired differences, what each part of `geminid` brings, and where it fails.

    Sensitivity is to load, wrong or unknown estimates of work, interference, failures and GPU types. All of it is on
    generated workloads, beside the bound on every schedule.
    """
    from geminid.bench.paper import QUICK, QUICK_SCALE, SECTIONS, change, interval_h, run, write

    with error_console.status("simulating …") as status:
        rows = run(
            QUICK if quick else SECTIONS,
            workload=workload,
            seeds=range(sized(seeds, quick, 2, 5)),
            scale=QUICK_SCALE if quick else 1.0,
            workers=1 if quick else os.cpu_count() or 1,
            progress=status.update,
        )
    if out is not None:
        for path in write(rows, out):
            error_console.print(f"wrote {path}", soft_wrap=True)
    if json:
        print_json([asdict(row) for row in rows])
        return
    for section in dict.fromkeys(row.section for row in rows):
        print_table(
            titled(f"{section.capitalize()} on {workload}, {rows[0].seeds} seeds", quick),
            [
                Column("case", 2, text=True, least=16),
                Column("policy", text=True, least=20),
                Column("mean JCT, h"),
                Column("to the first", 1),
                Column("to bound", 3),
            ],
            [
                [
                    row.case,
                    row.policy,
                    interval_h(row),
                    change(row),
                    "–" if row.to_bound is None else f"{row.to_bound:.2f}×",
                ]
                for row in rows
                if row.section == section
            ],
        )
    console.print("Brackets hold 95 % intervals; differences are paired by seed.")
