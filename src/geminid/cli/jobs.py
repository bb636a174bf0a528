"""Commands for submitters, from ``geminid submit`` to ``geminid set``: they talk to the service."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.markup import escape

from geminid.cli.client import Absence, client, of, reporting_trouble, tell
from geminid.cli.output import Column, WideOption, console, print_json, print_table
from geminid.fields import InvalidInput, Problem
from geminid.units import humanize_duration

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's identifier, such as j7, or its name.")]
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB …", help="Identifiers, such as j7, or names.")]

#: The queue's table shows so many jobs unless asked for more: it is there at once, however many there are.
SHOWN = 100

#: Times to come are told with their age if they were foretold so long ago, or longer.
OLD_S = 5.0

#: A time to come that is being computed, in tables.
TO_COME = "…"

#: The queue's table. What is left out first where there is little room has the highest number.
QUEUE_COLUMNS = (
    Column("job", text=True),
    Column("name", text=True, least=12),
    Column("owner", 6, text=True, least=8),
    Column("phase", text=True),
    Column("slots", 1),
    Column("done", 2),
    Column("batch", 8),
    Column("age", 5),
    Column("starts in", 4),
    Column("ends in", 3),
    Column("resizes", 7),
)

#: Below the queue's table, so many deadlines that may not be met are explained.
MOST_DEADLINES = 5

#: How phases look in tables.
COLOURS = {"running": "green", "succeeded": "green", "failed": "red", "cancelled": "red", "pending": "yellow"}


def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE.yaml | -- COMMAND …", help="A job file, or a command after two dashes."),
    ],
    name: Annotated[str | None, typer.Option(help="What to call the job.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="elastic|plain", help="How it is launched; left out, what the script does decides."),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Exactly so many slots.")] = None,
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
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="When it should be over, such as 12h.")] = None,
    gpu_time_budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="The most slots × time that it may use, such as 2d.")
    ] = None,
    min_runtime: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it runs before it may be preempted.")
    ] = None,
    checkpoint_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="The longest time between two checkpoints.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Submit at most once under this key: given again, it names the job that there is."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, and when; change nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Submit a job: from a file, or a command with flags."""
    from geminid.cli.submission import submit_once, try_out

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
        "env": _environment(env or []),
    }
    document = _from_file(Path(words[0])) if _is_file(words) else _from_command(words, working_dir or Path())
    if slots is not None:  # what is typed counts for more than the file
        document = {name: value for name, value in document.items() if name not in ("min_slots", "max_slots")}
    elif min_slots is not None or max_slots is not None:
        document.pop("slots", None)
    given["env"] = {**document.get("env", {}), **given["env"]} if given["env"] else None
    document |= {field: value for field, value in given.items() if value is not None}
    hint = _count_processes(document)
    document["working_dir"] = str(Path(document.get("working_dir") or ".").absolute())
    with reporting_trouble():
        told = try_out(document) if dry_run else submit_once(document, key)
    if json:
        print_json(told)
    elif dry_run:
        _print_dry_run(told)
        if hint:
            console.print(escape(hint), soft_wrap=True)
    else:
        what = f"({told['name']}, {_kind(told)})"
        console.print(f"submitted [bold]{told['id']}[/] {escape(what)}", soft_wrap=True)
        if hint:
            console.print(escape(hint), soft_wrap=True)
        if told["kind"] == "plain" and "max_retries" not in document:
            from geminid.job import DEFAULT_MAX_RETRIES

            times = f"up to {DEFAULT_MAX_RETRIES} times"
            again = f"if it fails, it is started again from its beginning, {times} (--retries 0 turns that off)"
            console.print(again, soft_wrap=True)
        for line in about_deadline(told):
            console.print(escape(line), soft_wrap=True)


def about_deadline(told: dict[str, Any], whose: str = "its") -> list[str]:
    """What is to be said of a job's deadline, unless it can be met: why not, and what would help."""
    deadline = told.get("deadline")
    if deadline is None or deadline["verdict"] == "can be met":
        return []
    lines = [f"{whose} deadline {deadline['verdict']}: {deadline['why']}"]
    return [*lines, *(f"→ {text}" for text in deadline["help"])]


def queue(
    state: Annotated[str | None, typer.Option(help="Only jobs in this phase, such as running or failed.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this user.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="Jobs that are over, too.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="At most so many, those first that run and start next.",
            show_default=f"{SHOWN} in the table, 1000 as JSON",
        ),
    ] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List jobs: what they do, what they have, and when they will be done."""
    most = limit or (None if json else SHOWN)
    with reporting_trouble():
        jobs, there_are = client().get_counted("jobs", state=state, owner=owner, queue=queue, all=all, limit=most)
    if json:
        print_json(jobs)
        return
    if not jobs:
        console.print("no jobs" if all or state else "no jobs are waiting or running (--all shows those that are over)")
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


def job_row(job: dict[str, Any]) -> list[str]:
    """A job as a row of the queue's table."""
    phase = job["phase"] if job["position"] is None else f"{job['phase']} (#{job['position']})"
    phase += " (over budget)" if job["over_budget"] else ""
    colour = COLOURS.get(job["phase"])
    most = job["max_slots"]
    size = f"{job['slots']}" if most == job["min_slots"] else f"{job['slots']} of {job['min_slots']}–{most or 'any'}"
    size = f"needs {needed(job['needs'])}" if job["needs"] is not None else size
    return [
        job["id"],
        escape(job["name"]),
        escape(job["owner"] or ""),
        f"[{colour}]{phase}[/]" if colour else phase,
        size,
        "" if job["done"] is None else f"{100 * job['done']:.0f} %",
        "" if job["batch"] is None else f"{job['batch']}",
        _seconds(job["age_s"]),
        interval(job, "start_at_s") if job["slots"] == 0 else "",
        interval(job, "finish_at_s"),
        f"{job['rescales']}",
    ]


def needed(needs: dict[str, Any]) -> str:
    """The slots that a waiting job needs, in short: ``2 a100|t4``."""
    return " ".join([str(needs["slots"]), *(["|".join(needs["gpu_types"])] if needs["gpu_types"] else [])])


def _needs(needs: dict[str, Any]) -> str:
    """What a waiting job needs, and what there is."""
    types = f" of {' or '.join(needs['gpu_types'])}" if needs["gpu_types"] else ""
    slots = f"{needs['slots']} slot{'' if needs['slots'] == 1 else 's'}{types}"
    return f"{slots}; {needs['free']} of {needs['in_service']} in service {'is' if needs['free'] == 1 else 'are'} free"


def _seconds(seconds: float) -> str:
    """A duration to the second."""
    return humanize_duration(round(seconds)) if seconds >= 0.5 else "0s"


def interval(job: dict[str, Any], what: str) -> str:
    """From when to when something of a job will be, seen from the service's now; "?" if something had to be guessed.

    If that is not known it says so; of what is over, or not to be for now, it says nothing.
    """
    eta = job["eta"]
    if eta is None:
        return {None: "", "being computed": TO_COME}.get(job["eta_missing"], str(job["eta_missing"]))
    if eta[what] is None:
        return ""
    early, late = (_seconds(max(0.0, at_s - job["now_s"])) for at_s in eta[what])
    return (early if early == late else f"{early}–{late}") + (" ?" if eta["guessed"] else "")


def about_times(jobs: list[dict[str, Any]]) -> list[str]:
    """What is to be said of the times to come of a table's jobs: how old they are, and that some are to come."""
    age_s = max((job["eta"]["age_s"] for job in jobs if job["eta"] is not None), default=0.0)
    lines = [] if age_s < OLD_S else [f"starts and ends are as foretold {_seconds(age_s)} ago"]
    if any(job["eta_missing"] == "being computed" for job in jobs):
        lines.append(f"{TO_COME} is being computed: look again in a moment")
    return lines


def _told_interval(job: dict[str, Any], what: str) -> str:
    """An interval where there is room for words."""
    told = interval(job, what)
    if job["eta"] is None or not told or job["eta"]["age_s"] < OLD_S:
        return "being computed" if told == TO_COME else told
    return f"{told} (as foretold {_seconds(job['eta']['age_s'])} ago)"


def show(job: JobArgument, json: JsonOption = False) -> None:
    """Show one job: everything that is known of it, and its story."""
    with reporting_trouble():
        told = client().get(of("jobs", job))
    if json:
        print_json(told)
        return
    limits = told["limits"]
    is_done = told["phase"] == "succeeded"  # what it had to do was foretold, and is known now
    work = "" if told["work_samples"] is None or is_done else f" of {told['work_samples']:,.0f}"
    budget = "" if told["budget_gpu_s"] is None else f" of its budget of {told['budget_gpu_s']:g}"
    sizes = f"{told['min_slots']} to {told['max_slots'] or 'any'}"
    unheard = ", when it was last heard of" if told["reason"].endswith("while the service was away") else ""
    facts = {
        "job": f"{told['id']} {told['name']} of {told['owner']}, queue {told['queue']}, priority {told['priority']}",
        "phase": _why(told["phase"], told["reason"]),
        "command": shlex.join(told["spec"].get("command", [])) or f"only for {told['owner']} and admins to see",
        "kind": _kind(told),
        "slots": f"{told['slots']} (planned {told['target_slots']}, may have {sizes})",
        "on": "; ".join(
            f"{node}: {', '.join(map(str, slots))}" for node, slots in sorted((told["placement"] or {}).items())
        ),
        "progress": f"{told['progress_samples']:,.0f}{work} useful samples, {told['samples']:,} consumed,"
        f" epoch {told['epoch']}, step {told['step']}{unheard}"
        if told["elastic"]
        else "",
        "batch": ""
        if told["batch"] is None
        else f"{told['batch']} (learning rate × {told['learning_rate_factor']:.3g})",
        "limits": ""
        if limits is None
        else f"batches of {limits['initial_batch']} at first, at most {limits['largest_batch']},"
        f" {limits['smallest_per_slot']} to {limits['largest_per_slot']} a slot,"
        f" {limits['parameter_count']:,} parameters",
        "metrics": ", ".join(f"{name} {float(value):.4g}" for name, value in told["metrics"].items()),
        "used": f"{told['gpu_s']:.0f} slot-seconds{budget}; {told['rescales']} × resized, {told['failures']} × failed",
        "needs": "" if told["needs"] is None else _needs(told["needs"]),
        "deadline": f"missed by {humanize_duration(round(told['late_s'], 1))}"
        if told["late_s"] is not None
        else f"{told['deadline']['verdict']}: {told['deadline']['why']}"
        if told["deadline"] is not None
        else "",
        "starts in": _told_interval(told, "start_at_s") if told["slots"] == 0 else "",
        "ends in": _told_interval(told, "finish_at_s"),
    }
    for name, fact in facts.items():
        if fact:
            console.print(f"{name + ':':<11}{escape(fact)}", soft_wrap=True)
    if told["last_lines"]:
        console.print("\n[bold]its last lines[/] [dim](geminid logs shows all)[/]")
        for line in told["last_lines"]:
            console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    console.print("\n[bold]story[/]")
    for line in told["story"]:
        pause = "" if line["pause_s"] is None else f" [dim](paused {line['pause_s']:.2f} s)[/]"
        at = time.strftime("%H:%M:%S", time.localtime(line["at_s"]))
        console.print(f"{at}  {escape(line['text'])}{pause}", soft_wrap=True)


def _why(phase: str, reason: str) -> str:
    """A phase and its reason, without saying it twice."""
    return reason if reason.startswith(phase) else f"{phase}: {reason}" if reason else phase


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, metavar="LINES", help="Only so many last lines of each log.")
    ] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker's, such as w2.")] = None,
) -> None:
    """Print what a job printed."""
    from geminid.serve.client import NO_SERVICE, ServiceError

    absence, places = Absence(), dict[str, int]()

    def read() -> None:
        nonlocal job
        client().get("status")
        absence.over()
        if not places:  # a name may mean another job later on
            job = client().get(of("jobs", job))["id"]
        at = ",".join(f"{log}:{place}" for log, place in places.items())
        begin: dict[str, Any] = {"at": at} if at else {"tail": tail}
        for log, end, piece in client().frames(of("jobs", job, "logs"), follow=follow, worker=worker, **begin):
            places[log] = end
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        if follow and client().get(of("jobs", job))["finished_at_s"] is None:
            raise ServiceError(NO_SERVICE, f"the service is ending, and job {job} is not over")

    with reporting_trouble():
        while True:
            try:
                return read()
            except ServiceError as trouble:
                if not follow:
                    raise
                absence.bear(trouble)


def explain(job: JobArgument, wide: WideOption = False, json: JsonOption = False) -> None:
    """Say why a job waits or has the size it has, with numbers, and what would change it."""
    with reporting_trouble():
        told = client().get(of("jobs", job, "explain"))
    if json:
        print_json(told)
        return
    if told["finished_at_s"] is not None:
        what = "is over"
    elif told["phase"] in ("paused", "stopping"):
        what = f"is {told['phase']}"
    else:
        what = "waits" if told["slots"] == 0 else f"has {told['slots']} slot{'s' if told['slots'] > 1 else ''}"
    console.print(f"[bold]{told['id']} {what}[/]: {escape(told['explanation'])}", soft_wrap=True)
    console.print(f"  · {escape(_kind(told))}", soft_wrap=True)
    for number in told["numbers"]:
        console.print(f"  · {escape(number)}", soft_wrap=True)
    if told["factors"]:
        factors = [f"{name} {value:.3g}" for name, value in told["factors"].items() if f"{value:.3g}" != "1"]
        product = f": {' × '.join(factors)}" if factors else ""
        counts = f"{math.prod(told['factors'].values()):.3g} in the policy's decision"
        console.print(f"  · it counts {counts}{product} (1 is neither more nor less)", soft_wrap=True)
    for name, price in told["prices"].items():
        console.print(f"  · a slot of {name} is worth {price:.4g} to the jobs that want one more (the policy's price)")
    if told["sizes"]:
        console.print()
        least = told["sizes"][0]["goodput"]
        print_table(
            "What its model predicts",
            ["slots", "type", "useful samples/s", "speed-up", "samples/s", "efficiency", "batch"],
            [
                [
                    f"{size['slots']}{' ←' if size['current'] else ''}",
                    size["gpu_type"],
                    f"{size['goodput']:.4g}",
                    f"{size['goodput'] / least:.2f}",
                    f"{size['throughput']:.4g}",
                    f"{size['efficiency']:.2f}",
                    f"{size['batch']}",
                ]
                for size in told["sizes"]
            ],
            text_columns=2,
        )
    for suggestion in told["suggestions"]:
        console.print(f"[bold]→[/] {escape(suggestion)}", soft_wrap=True)


def wait(
    jobs: JobsArgument,
    timeout: Annotated[float | None, typer.Option(min=0.0, metavar="S", help="Give up after so many seconds.")] = None,
    json: JsonOption = False,
) -> None:
    """Wait until jobs are over; ends with 0 if all succeeded, 1 if one failed or was cancelled, 6 if one used up its
    gpu_time_budget, 124 if it took too long.
    """
    from geminid.serve.client import FAILED, OVER_BUDGET, TIMED_OUT, ServiceError

    deadline = None if timeout is None else time.monotonic() + timeout
    absence = Absence()

    def over(job: str) -> dict[str, Any]:
        while True:
            left_s = 25.0 if deadline is None else min(25.0, max(deadline - time.monotonic(), 0.0))
            try:
                client().get("status")  # that it is there is known at once, and not only when the job is over
                absence.over()
                state: dict[str, Any] = client().get(of("jobs", job), wait_s=left_s)
                job = state["id"]  # a name may mean another job later on
            except ServiceError as trouble:
                absence.bear(trouble)
                continue
            if state["finished_at_s"] is not None:
                return state
            if deadline is not None and time.monotonic() >= deadline:
                raise ServiceError(TIMED_OUT, f"job {job} is still {state['phase']} after {timeout:g} s")

    told, code = _each(jobs, over)
    if json:
        print_json(told)
    for state in told:
        if not json:
            why = f": {state['reason']}" if state["reason"] else ""
            console.print(f"{state['id']} {state['phase']} after {state['jct_s']:.1f} s{escape(why)}", soft_wrap=True)
    if any(state["phase"] != "succeeded" for state in told):
        code = max(code, OVER_BUDGET if any(state["over_budget"] for state in told) else FAILED)
    if code:
        raise typer.Exit(code)


def cancel(jobs: JobsArgument, json: JsonOption = False) -> None:
    """Give jobs up."""
    _act(jobs, "cancel", json)


def pause(jobs: JobsArgument, json: JsonOption = False) -> None:
    """Have jobs save, stop, and wait until they are resumed."""
    _act(jobs, "pause", json)


def resume(
    jobs: JobsArgument,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Begin from the beginning: checkpoints are put aside, not deleted.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Let paused jobs run again."""
    _act(jobs, "resume", json, {"from_scratch": True} if from_scratch else {})


def set_job(
    job: JobArgument,
    priority: Annotated[int | None, typer.Option(help="From -1000 to 1000; higher goes first.")] = None,
    min_slots: Annotated[int | None, typer.Option(min=1, help="The fewest slots it runs on.")] = None,
    max_slots: Annotated[int | None, typer.Option(min=1, help="The most slots it may get.")] = None,
    json: JsonOption = False,
) -> None:
    """Change a job's priority or size while it waits or runs."""
    changes = {"priority": priority, "min_slots": min_slots, "max_slots": max_slots}
    with reporting_trouble():
        told = client().patch(of("jobs", job), {name: value for name, value in changes.items() if value is not None})
    print_json(told) if json else console.print(f"changed {told['id']}")


def _act(jobs: list[str], action: str, json: bool, options: Mapping[str, Any] = MappingProxyType({})) -> None:
    told, code = _each(jobs, lambda job: client().post(of("jobs", job, action), **options))
    if json:
        print_json(told)
    for job in () if json else told:
        console.print(f"{job['id']} {_told(job, action)}")
    if code:
        raise typer.Exit(code)


def _told(job: dict[str, Any], action: str) -> str:
    """What has become of a job, or is about to."""
    done = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}[action]
    if action == "resume":
        return "is resumed, and " + ("waits for slots" if job["phase"] == "pending" else f"is {job['phase']}")
    return f"is {done}" if job["phase"] == done else f"is being {done}: its processes are told to end"


def _each(jobs: list[str], do: Callable[[str], dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Do something with every job, whatever becomes of the others: what came of it, and the worst exit code."""
    from geminid.serve.client import NO_SERVICE, ServiceError

    done, code = [], 0
    for job in jobs:
        try:
            done.append(do(job))
        except ServiceError as trouble:
            tell(trouble)
            code = max(code, trouble.code)
            if trouble.code == NO_SERVICE:  # there is nobody to ask about the others
                break
    return done, code


def _is_file(words: list[str]) -> bool:
    return len(words) == 1 and words[0].endswith((".yaml", ".yml", ".json"))


def _from_file(file: Path) -> dict[str, Any]:
    from geminid.job import JobSpec
    from geminid.sim.files import read_data

    data = read_data(file)
    spec = JobSpec.from_dict(data)  # mistakes are told here, before the service hears of it
    folder = file.absolute().parent
    return {**spec.to_dict(), "working_dir": str(folder / (spec.working_dir or ""))}


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
    """Give a command for torchrun a slot for each of its processes, if nobody said how many; what to tell of that."""
    from geminid.cli.torchrun import PROCESSES, processes_asked_for

    asked = processes_asked_for(document.get("command") or ())
    if asked is None or any(name in document for name in ("slots", "min_slots", "max_slots", "slots_per_replica")):
        return ""
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        document["slots"] = int(asked)
        return f"slots: {int(asked)}, as {PROCESSES} says; --slots says otherwise"
    return f"slots: 1; {PROCESSES} {asked} is as many as there are, so say how many with --slots"


def _kind(job: dict[str, Any]) -> str:
    """How a job is launched, and why."""
    return f"{job['kind']}: {job['kind_reason']}"


def _print_dry_run(told: dict[str, Any]) -> None:
    console.print(f"nothing was submitted; this would be number {told['position']} in the queue")
    console.print(escape(_kind(told)), soft_wrap=True)
    if told["never"] is not None:
        console.print(escape(told["never"]))
    elif told["finish_s"] is None:
        console.print("there is no forecast for it")
    else:
        for what, times in (("starts", told["start_s"]), ("ends", told["finish_s"])):
            early, late = map(_seconds, times)
            console.print(f"{what} in {early}" if early == late else f"{what} in {early} to {late}")
        if told["unlike"]:
            console.print("nothing like it has run before: how long it takes is a guess")
        elif told["guessed"]:
            console.print("how long other jobs take, or others like it took, is not known well: this is partly a guess")
    for line in about_deadline(told):
        console.print(escape(line), soft_wrap=True)
    for job_id, late_s in told["delays_s"].items():
        console.print(f"{job_id} would end {humanize_duration(round(late_s))} later")
    if not told["delays_s"]:
        console.print("no other job would end later")
