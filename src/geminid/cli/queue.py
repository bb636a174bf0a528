"""``geminid queue``: lists jobs once, or again and again."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.markup import escape

from geminid.cli.client import Absence, client, of, reporting_trouble
from geminid.cli.completion import complete_jobs
from geminid.cli.jobs import QUEUE_COLUMNS, SHOWN, about_deadline, about_times, job_row
from geminid.cli.output import JsonOption, WideOption, console, print_json, print_table
from geminid.cli.topview import SORTS, sorted_jobs
from geminid.fields import InvalidInput, Problem

#: Number of deadlines that may not be met which are explained below the queue's table.
MOST_DEADLINES = 5

#: Time between two lists with --watch, in seconds.
WATCH_S = 2.0


def queue(
    state: Annotated[str | None, typer.Option(help="Only jobs in this phase, such as running or failed.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs with this text in their name.")] = None,
    array: Annotated[
        str | None, typer.Option(metavar="JOB", help="The elements of this array.", autocompletion=complete_jobs)
    ] = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that are over.")] = False,
    sort: Annotated[
        str | None, typer.Option(metavar="|".join(SORTS), help="The order; a minus before it reverses it.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print the list again every 2 seconds, until you interrupt it.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="Show at most this many: those that run, then those that start next.",
            show_default=f"{SHOWN} in the table, 1000 as JSON",
        ),
    ] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List jobs: what they do, what they have, and when they will be done."""
    if sort is not None and sort.removeprefix("-") not in SORTS:
        raise InvalidInput([Problem("option --sort", sort, f"must be one of {', '.join(SORTS)}")])
    most = limit or (None if json else SHOWN)
    absence = Absence()

    def listed() -> tuple[list[dict[str, Any]], int]:
        array_id = None if array is None else client().get(of("jobs", array))["id"]
        jobs, count = client().get_counted(
            "jobs", state=state, owner=owner, queue=queue, name=name, array=array_id, all=all, limit=most
        )
        absence.over()
        if sort is not None:
            jobs = sorted_jobs(jobs, sort.removeprefix("-"))
        return jobs[::-1] if sort is not None and sort.startswith("-") else jobs, count

    with reporting_trouble():
        while True:
            found = _patiently(listed, absence) if watch else listed()
            if watch and console.is_terminal:
                console.clear()
            if json:
                print_json(found[0])
            else:
                _print(*found, anything=all or state is not None)
            if not watch:
                return
            time.sleep(WATCH_S)


def _patiently(listed: Any, absence: Absence) -> Any:
    """What the service answers; one that is restarted is waited for."""
    from geminid.serve.client import ServiceError

    while True:
        try:
            return listed()
        except ServiceError as trouble:
            absence.wait_or_raise(trouble)


def _print(jobs: list[dict[str, Any]], there_are: int, *, anything: bool) -> None:
    """Print jobs as a table, with what there is to say about their forecasts and deadlines."""
    if not jobs:
        console.print("no jobs" if anything else "no jobs are waiting or running (--all shows those that are over)")
        return
    print_table("Jobs", QUEUE_COLUMNS, [job_row(job) for job in jobs])
    for line in about_times(jobs):
        console.print(line)
    late = [line for job in jobs for line in about_deadline(job, f"{job['id']}: its")[:1]]
    for line in [
        *late[:MOST_DEADLINES],
        *([f"and {len(late) - MOST_DEADLINES} more"] if late[MOST_DEADLINES:] else []),
    ]:
        console.print(escape(line), soft_wrap=True)
    if any(job["deadline"] and job["deadline"]["help"] for job in jobs):
        console.print("`geminid explain JOB` says what would help", soft_wrap=True)
    if there_are > len(jobs):
        console.print(f"{there_are - len(jobs):,} more are not shown: --limit {there_are} shows all")
