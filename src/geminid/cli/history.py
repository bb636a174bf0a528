"""``geminid history``: jobs that are over, for people, as JSON, and as CSV for spreadsheets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from geminid.cli.client import client, reporting_trouble
from geminid.cli.jobs import COLOURS, SHOWN, to_the_second
from geminid.cli.output import Column, JsonOption, WideOption, console, print_json, print_table
from geminid.cli.results import check_output_file

#: Jobs that are exported unless --limit says otherwise: all that a service answers with at once.
EXPORTED = 10_000

COLUMNS = (
    Column("job", text=True),
    Column("name", text=True, least=12),
    Column("owner", 4, text=True, least=8),
    Column("end", text=True),
    Column("ended", 1),
    Column("took", 2),
    Column("slot-hours", 3),
    Column("resizes", 6),
    Column("failures", 7),
    Column("reason", 5, text=True, least=12),
)


def history(
    name: Annotated[str | None, typer.Option(help="Only jobs with this in their name.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only jobs that ended this way: succeeded, failed or cancelled.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0.0, help="Only jobs that ended within this many days.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=EXPORTED, help="At most this many, the last first.", show_default=f"{SHOWN}, or all"),
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="OUT.csv", help="Write them for a spreadsheet.")] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List jobs that are over and retained, the last one first."""
    check_output_file("csv", csv)
    wanted: dict[str, Any] = {
        "name": name,
        "owner": owner,
        "queue": queue,
        "state": state,
        "from": None if days is None else time.time() - 86_400.0 * days,
        "limit": limit or (EXPORTED if json or csv else SHOWN),
    }
    with reporting_trouble():
        if csv is not None:
            csv.write_bytes(b"".join(client().stream("history", format="csv", **wanted)))
            console.print(f"wrote {csv}")
            return
        jobs, there_are = client().get_counted("history", **wanted)
    if json:
        print_json(jobs)
        return
    if not jobs:
        console.print("no job like this has ended, or it is not kept any more")
        return
    print_table("Jobs that are over", COLUMNS, [_row(job) for job in jobs])
    if there_are > len(jobs):
        console.print(f"{there_are - len(jobs):,} more are not shown: --limit {there_are} shows all")


def _row(job: dict[str, Any]) -> list[str]:
    colour = COLOURS.get(job["phase"])
    return [
        job["id"],
        escape(job["name"]),
        escape(job["owner"] or ""),
        f"[{colour}]{job['phase']}[/]" if colour else job["phase"],
        time.strftime("%Y-%m-%d %H:%M", time.localtime(job["finished_at_s"])),
        to_the_second(job["jct_s"]),
        f"{job['gpu_s'] / 3600.0:.3g}",
        f"{job['rescales']}",
        f"{job['failures']}",
        escape(job["reason"]),
    ]
