"""``geminid bench paper``: the comparison with seeds, intervals, ablation, sensitivity and the bound."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from geminid.cli.bench import Json, Quick, sized, titled
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table
from geminid.fields import InvalidInput, Problem


def paper(
    workload: Annotated[str, typer.Option(help="A built-in workload (see `geminid workloads`).")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Workloads drawn.", show_default="5")] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(help="Only this one (repeatable): comparison, knowledge, ablation, sensitivity or tenants."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.md and the figures.")] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Policies under several seeds with paired differences, what each part of `geminid` brings, and where it fails.

    Knowledge: what it would gain if it knew speeds and arrivals, or changes were free. Sensitivity: to load, wrong
    speeds, wrong or unknown estimates of work, interference, failures and GPU types. Tenants: what owners get. All of
    it is on generated workloads, beside the bound on every schedule.
    """
    from geminid.bench.paper import QUICK, QUICK_SCALE, SECTIONS, run, table, write

    sections = QUICK if quick else SECTIONS
    if unknown := [name for name in section or () if name not in sections]:
        raise InvalidInput([Problem("section", unknown[0], f"must be one of {', '.join(sections)}")])
    chosen = {name: cases for name, cases in sections.items() if not section or name in section}
    with error_console.status("simulating …") as status:
        rows = run(
            chosen,
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
    for name in dict.fromkeys(row.section for row in rows):
        header, body = table([row for row in rows if row.section == name])
        optional = {"case": 2, "to the first": 1, "to bound": 3}
        print_table(
            titled(f"{name.capitalize()} on {workload}, {rows[0].seeds} seeds", quick),
            [Column(name, optional.get(name, 0), text=name in ("case", "policy"), least=14) for name in header],
            [[cell.replace("`", "") for cell in cells] for cells in body],
        )
    console.print("Brackets hold 95 % intervals; differences are paired by seed.")
