"""``geminid backup``, ``restore`` and ``recover``: keeping what the service knows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from geminid.cli.client import give_up
from geminid.cli.output import console, print_json

#: How many jobs and folders are listed by name.
MOST_LISTED = 20

#: What becomes of jobs whose processes run without the log knowing it.
TAKEN_OVER = "started after the log was written; their processes run on, and `geminid up` takes them over"


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist, and holds secrets.")],
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Include the newest checkpoint of every job.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Copy the log, tokens and settings into one file; the service may be running."""
    from geminid.serve.backup import backup as copy
    from geminid.serve.client import home
    from geminid.serve.store import StoreProblem

    try:
        made = copy(home(), file.absolute(), jobs=checkpoints)
    except StoreProblem as problem:
        give_up(str(problem))
    if as_json:
        print_json({"file": str(made.path), "seq": made.seq, "jobs": made.jobs, "size_bytes": made.size_bytes})
    else:
        what = f"the log up to record {made.seq} with {made.jobs} jobs, {made.size_bytes:,} bytes"
        console.print(f"{escape(str(file))} written: {what}; it holds secrets", soft_wrap=True)


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `geminid backup` has written.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Move what is in the home now aside; nothing is deleted.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="End processes of jobs that are not in the backup without asking.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Make the home of a service from a backup; no service may be running on it."""
    from geminid.serve.backup import restore as put_back
    from geminid.serve.client import home
    from geminid.serve.executors.local import end_all, runs
    from geminid.serve.store import StoreProblem

    def may_end(job_ids: list[str]) -> bool:
        question = f"{_some(job_ids)} run, and {file} does not know that: end their processes?"
        return yes or (not as_json and sys.stdin.isatty() and typer.confirm(question))

    try:
        done = put_back(home(), file, replace=replace, may_end=may_end, runs=runs, end_processes=end_all)
    except StoreProblem as problem:
        give_up(str(problem))
    if as_json:
        aside = None if done.aside is None else str(done.aside)
        since = {"continued_jobs": list(done.continued), "taken_over_jobs": list(done.taken_over)}
        print_json({"home": str(home()), "seq": done.seq, "jobs": done.jobs, "aside": aside, **since})
        return
    console.print(f"{home()} restored: {done.jobs} jobs up to record {done.seq}", soft_wrap=True)
    if done.continued:
        ran = "ran after the backup was made: elastic ones continue from their newest checkpoints, others begin again"
        console.print(f"{_some(list(done.continued))} {ran}", soft_wrap=True)
    if done.taken_over:
        console.print(f"{_some(list(done.taken_over))}: {TAKEN_OVER}", soft_wrap=True)
    if done.aside is not None:
        console.print(f"what was there before is in {done.aside}", soft_wrap=True)


def recover(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what can be saved.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs; needs --yes or --dry-run.")] = False,
) -> None:
    """Continue with what is left of a damaged log; damaged files are moved aside, and never deleted."""
    from geminid.fields import InvalidInput, Problem
    from geminid.serve.client import home
    from geminid.serve.executors.folders import JOBS
    from geminid.serve.executors.local import end_all, runs
    from geminid.serve.recovery import recover as continue_with_the_rest
    from geminid.serve.recovery import salvage
    from geminid.serve.store import StoreProblem

    if as_json and not (yes or dry_run):
        raise InvalidInput([Problem("json", True, "goes with --yes or --dry-run: nobody is asked")])
    try:
        found = salvage(home())
        findings, jobs = found.findings, found.state.jobs.values()
        report = {
            "damage": [damage.text for damage in findings.damage],
            "last_record": findings.last.seq,
            "jobs": [job.id for job in jobs],
            "lost": findings.lost(),
            "unknown_folders": list(found.unknown_folders),
            "jobs_ahead": [job.job_id for job in found.ahead if job.placement is None],
            "taken_over": [job.job_id for job in found.ahead if job.placement is not None],
            "running": [name for name in found.unknown_folders if runs(home() / JOBS / name)]
            + [job.job_id for job in found.ahead if job.runs and job.placement is None],
        }
        if not as_json:
            _tell(report, [f"{job.id} {job.phase.value}" for job in jobs])
        if not found.is_needed:
            if as_json:
                print_json(report)
            return
        if dry_run or not (yes or typer.confirm("continue with what can be saved?")):
            print_json(report) if as_json else console.print("nothing was changed")
            return
        aside = continue_with_the_rest(home(), end_all)
    except StoreProblem as problem:
        give_up(str(problem))
    if as_json:
        print_json({**report, "aside": str(aside)})
    else:
        console.print(f"done; the damaged files are in {aside}; `geminid up` starts the service", soft_wrap=True)


def _tell(report: dict[str, object], jobs: list[str]) -> None:
    named = ("damage", "unknown_folders", "jobs_ahead", "taken_over", "running")
    damage, folders, ahead, taken_over, running = (report[name] for name in named)
    assert isinstance(damage, list)
    assert isinstance(folders, list)
    assert isinstance(ahead, list)
    assert isinstance(taken_over, list)
    assert isinstance(running, list)
    nothing = "none in the log" if ahead or taken_over else "none: there is nothing to recover"
    continues = (
        "ran without the log knowing it; elastic ones continue from their newest checkpoints, others begin again"
    )
    facts = {
        "damage": "; ".join(damage) or nothing,
        "saved": f"records up to {report['last_record']}, and {len(jobs)} jobs: {_some(jobs)}",
        "lost": str(report["lost"]) or "nothing that is known of",
        "folders": f"{_some(folders)}: no record, so they are moved aside, and their processes ended"
        if folders
        else "",
        "ahead": f"{_some(ahead)}: {continues}" if ahead else "",
        "run on": f"{_some(taken_over)}: {TAKEN_OVER}" if taken_over else "",
        "running": f"{_some(running)}: their processes are ended" if running else "",
    }
    for name, fact in facts.items():
        if fact:
            console.print(f"{name + ':':<9}{escape(fact)}", soft_wrap=True)


def _some(names: list[str]) -> str:
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "") if names else "none"
