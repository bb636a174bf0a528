"""``geminid submit``: turns a file or a command with flags into a job, and submits it at most once."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from geminid.cli.client import away_s, client, reporting_trouble
from geminid.cli.jobs import about_deadline, launched_as, to_the_second
from geminid.cli.output import JsonOption, console, error_console, print_json
from geminid.fields import InvalidInput, Problem
from geminid.retryrule import RetryRule
from geminid.units import humanize_duration


def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE.yaml | -- COMMAND …", help="A job file, or a command after two dashes."),
    ],
    name: Annotated[str | None, typer.Option(help="What to call the job.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="elastic|plain", help="How it is launched; by default decided from what the script does."),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Exactly this many slots.")] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", "--gpu", hidden=True)] = None,
    min_slots: Annotated[int | None, typer.Option(min=1, help="The fewest slots it runs on.")] = None,
    max_slots: Annotated[int | None, typer.Option(min=1, help="The most slots it may get.")] = None,
    priority: Annotated[int | None, typer.Option(help="From -1000 to 1000; higher goes first.")] = None,
    queue: Annotated[str | None, typer.Option(help="The queue, which may have a quota.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Environment of the command; without a value, yours. Repeatable."),
    ] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="How often it is restarted after a failure.")] = None,
    gpu_type: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="A GPU type that it may run on. Repeatable.")
    ] = None,
    working_dir: Annotated[Path | None, typer.Option(help="Where the command runs; here when left out.")] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time within which it should end, such as 12h.")
    ] = None,
    gpu_time_budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="The most slots × time that it may use, such as 2d.")
    ] = None,
    min_runtime: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it runs before it may be preempted.")
    ] = None,
    checkpoint_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="The longest time between two checkpoints.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long it may have slots; then it saves what it has done, and ends."),
    ] = None,
    requeue: Annotated[
        bool | None, typer.Option("--requeue", help="After --time, wait in the queue again instead of ending.")
    ] = None,
    retry: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE", help="After a failure: exit=75,137:retry:5m or log=out of memory:stop. Repeatable."
        ),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(metavar="start,end,failure,deadline,time", help="Notify you on these occasions."),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            metavar="0-99%8",
            help="Run it once for each number, in GEMINID_ARRAY_INDEX; after %, how many are active at a time.",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB[:ok|any|failed]", help="Start only when this job has succeeded, ended or failed. Repeatable."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Submit at most once under this key; used again, it returns the job submitted before."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, and when; change nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Submit a job: from a file, or a command with flags."""
    if gpus is not None:
        number = gpus if gpus.isdigit() else "N"
        raise InvalidInput(
            [Problem("option --gpus", gpus, f"must be --slots {number}: a slot is a GPU, or a CPU core without any")]
        )
    given: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "slots": slots,
        "min_slots": min_slots,
        "max_slots": max_slots,
        "priority": priority,
        "queue": queue,
        "max_retries": retries,
        "gpu_types": gpu_type,
        "working_dir": None if working_dir is None else str(working_dir),
        "deadline": deadline,
        "gpu_time_budget": gpu_time_budget,
        "min_runtime": min_runtime,
        "checkpoint_interval": checkpoint_interval,
        "time_limit": time,
        "requeue": requeue,
        "retry": [RetryRule.parse(rule).to_dict() for rule in retry] if retry else None,
        "notify": notify.split(",") if notify else None,
        "array": array,
        "after": after,
        "env": _environment(env or []),
    }
    if _is_file(words) and (group := _group(Path(words[0]))) is not None:
        _submit_group(group, [field for field, value in given.items() if value], key, dry_run, json)
        return
    document = _from_file(Path(words[0])) if _is_file(words) else _from_command(words, working_dir or Path())
    if slots is not None:  # options override the file
        document = {name: value for name, value in document.items() if name not in ("min_slots", "max_slots")}
    elif min_slots is not None or max_slots is not None:
        document.pop("slots", None)
    given["env"] = {**document.get("env", {}), **given["env"]} if given["env"] else None
    document |= {field: value for field, value in given.items() if value is not None}
    hint = _count_processes(document)
    document["working_dir"] = str(Path(document.get("working_dir") or ".").absolute())
    with reporting_trouble():
        answer = _try_out(document) if dry_run else _submit_once(document, key)
    if not dry_run:
        _record_source(answer, document["working_dir"])
    if json:
        print_json(answer)
        return
    if dry_run:
        _print_dry_run(answer)
    else:
        many = "" if answer["array"] is None else f"{answer['array']['total']} elements, "
        what = f"({answer['name']}, {many}{launched_as(answer)})"
        console.print(f"submitted [bold]{answer['id']}[/] {escape(what)}", soft_wrap=True)
    if hint:
        console.print(escape(hint), soft_wrap=True)
    if not dry_run:
        if answer["kind"] == "plain" and "max_retries" not in document:
            from geminid.job import DEFAULT_MAX_RETRIES

            times = f"up to {DEFAULT_MAX_RETRIES} times"
            again = f"if it fails, it is started again from the beginning, {times} (--retries 0 turns that off)"
            console.print(again, soft_wrap=True)
        for line in about_deadline(answer):
            console.print(escape(line), soft_wrap=True)


def _is_file(words: list[str]) -> bool:
    return len(words) == 1 and words[0].endswith((".yaml", ".yml", ".json"))


def _from_file(file: Path) -> dict[str, Any]:
    from geminid.job import JobSpec
    from geminid.sim.files import read_data

    data = read_data(file)
    spec = JobSpec.from_dict(data)  # mistakes are reported here, before anything is sent
    folder = file.absolute().parent
    return {**spec.to_dict(), "working_dir": str(folder / (spec.working_dir or ""))}


def _group(file: Path) -> list[dict[str, Any]] | None:
    """The jobs of a file that has several; None if it has one."""
    from geminid.serve.dependencies import read_group
    from geminid.sim.files import read_data

    data = read_data(file)
    if not isinstance(data, Mapping) or "jobs" not in data:
        return None
    folder = file.absolute().parent
    return [{**spec.to_dict(), "working_dir": str(folder / (spec.working_dir or ""))} for spec in read_group(data)]


def _submit_group(jobs: list[dict[str, Any]], options: list[str], key: str | None, dry_run: bool, json: bool) -> None:
    """Submit several jobs: all of them, or none."""
    if options or dry_run:
        named = "--dry-run" if dry_run else f"--{options[0].replace('_', '-')}"
        raise InvalidInput([Problem("option", named, "must be left out: the file has several jobs")])
    with reporting_trouble():
        answer = _submit_once({"jobs": jobs}, key, to="job-groups")
    for made, document in zip(answer, jobs, strict=True):
        _record_source(made, document["working_dir"])
    if json:
        print_json(answer)
        return
    for job in answer:
        after = f", after {', '.join(job['after'])}" if job["after"] else ""
        console.print(f"submitted [bold]{job['id']}[/] ({escape(job['name'] + after)})", soft_wrap=True)


def _from_command(words: list[str], folder: Path) -> dict[str, Any]:
    script = next((word for word in words[1:] if not word.startswith("-")), None)
    if Path(words[0]).name.startswith("python") and script is not None and script.endswith(".py"):
        if not (folder / script).is_file():
            raise InvalidInput(
                [Problem("script", script, f"must be a file; there is none of this name in {folder.absolute()}")]
            )
    elif words[0].endswith(".py") and (folder / words[0]).is_file() and not os.access(folder / words[0], os.X_OK):
        hint = f"is a script and not a program; say: geminid submit -- python {' '.join(words)}"
        raise InvalidInput([Problem("command", words[0], hint)])
    is_python = Path(words[0]).name.startswith("python")
    name = Path(script if is_python and script is not None else words[0]).stem
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip("-._")[:63]
    return {"name": safe or "job", "command": words}


def _environment(pairs: list[str]) -> dict[str, str]:
    unset = [pair for pair in pairs if "=" not in pair and pair not in os.environ]
    if unset:
        raise InvalidInput([Problem("env", unset[0], "must have the form NAME=VALUE, or be set in your environment")])
    return {
        name: value if given else os.environ[name] for name, given, value in (pair.partition("=") for pair in pairs)
    }


def _count_processes(document: dict[str, Any]) -> str:
    """Give a torchrun command one slot per process, unless the slots are given; returns a sentence about it."""
    from geminid.cli.torchrun import PROCESSES, processes_asked_for

    asked = processes_asked_for(document.get("command") or ())
    if asked is None or any(name in document for name in ("slots", "min_slots", "max_slots", "slots_per_replica")):
        return ""
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        document["slots"] = int(asked)
        return f"slots: {int(asked)}, from {PROCESSES}; --slots overrides it"
    return f"slots: 1; {PROCESSES} {asked} depends on the machine, so give the number with --slots"


def _try_out(document: Mapping[str, Any]) -> dict[str, Any]:
    """What would happen to a job if it were submitted now."""
    from geminid.serve.submitting import submitter

    forecast: dict[str, Any] = client().post("jobs", document, dry_run=True, headers=None, **submitter())
    return forecast


def _submit_once(document: Mapping[str, Any], key: str | None, to: str = "jobs") -> Any:
    """Submit a job at most once, under the given key or a new one; returns the job, or those of a group.

    Raises:
        ServiceError: the service refused it; or it is unknown whether it was submitted, with a command that finds out.
    """
    from geminid.serve.client import NO_SERVICE, ServiceError
    from geminid.serve.submitting import Unknown, submit_once

    def say_so() -> None:
        error_console.print("the connection broke before the answer: asking whether the job was submitted")

    try:
        return submit_once(client, document, key, patience_s=away_s(), on_break=say_so, to=to)
    except Unknown as trouble:
        again = f"run this command in this folder, which submits it at most once: {_same_command(trouble.key)}"
        raise ServiceError(
            NO_SERVICE, *trouble.sentences, f"the job may have been submitted, or not: {again}"
        ) from None


def _record_source(job: Mapping[str, Any], folder: str) -> None:
    """Have the service keep the commit and the changes of the job's folder."""
    from geminid.serve.client import ServiceError
    from geminid.serve.source import record_source

    with contextlib.suppress(ServiceError):
        record_source(client(), job, folder)


def _same_command(key: str) -> str:
    """The command that was typed, with its key."""
    words = sys.argv[sys.argv.index("submit") + 1 :] if "submit" in sys.argv else []
    while "--key" in words[: words.index("--") if "--" in words else None]:
        at = words.index("--key")
        words = words[:at] + words[at + 2 :]
    return shlex.join(["geminid", "submit", "--key", key, *words])


def _print_dry_run(answer: dict[str, Any]) -> None:
    console.print(f"nothing was submitted; this would be number {answer['position']} in the queue")
    console.print(escape(launched_as(answer)), soft_wrap=True)
    if answer["never"] is not None:
        console.print(escape(answer["never"]))
    elif answer["finish_s"] is None:
        console.print("there is no forecast for it")
    else:
        for what, times in (("starts", answer["start_s"]), ("ends", answer["finish_s"])):
            early, late = map(to_the_second, times)
            console.print(f"{what} in {early}" if early == late else f"{what} in {early} to {late}")
        if answer["unlike"]:
            console.print("nothing like it has run before: how long it takes is a guess")
        elif answer["guessed"]:
            console.print("how long other jobs take, or others like it took, is not known well: this is partly a guess")
    for line in about_deadline(answer):
        console.print(escape(line), soft_wrap=True)
    for job_id, late_s in answer["delays_s"].items():
        console.print(f"{job_id} would end {humanize_duration(round(late_s))} later")
    if not answer["delays_s"]:
        console.print("no other job would end later")
