"""Commands for submitters, from ``geminid submit`` to ``geminid set``: they talk to the service."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import typer
from rich.markup import escape

from geminid.cli.client import Absence, client, of, print_error, reporting_trouble
from geminid.cli.completion import complete_jobs
from geminid.cli.output import Column, JsonOption, WideOption, console, print_json, print_table
from geminid.units import humanize_duration

JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's identifier, such as j7, or its name.", autocompletion=complete_jobs),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(metavar="JOB …", help="Identifiers, such as j7, or names.", autocompletion=complete_jobs),
]

#: Number of jobs in the queue's table unless --limit says otherwise: short enough to appear at once.
SHOWN = 100

#: Age from which a forecast is shown together with its age, in seconds.
OLD_FORECAST_S = 5.0

#: What tables show for a forecast that is being computed.
BEING_COMPUTED = "…"

#: Columns of the queue's table. On a narrow terminal those with the highest numbers are left out first.
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

#: How phases look in tables.
COLOURS = {"running": "green", "succeeded": "green", "failed": "red", "cancelled": "red", "pending": "yellow"}


def about_deadline(job: dict[str, Any], whose: str = "its") -> list[str]:
    """Why a job's deadline may not be met, and what would help; empty if it can be met."""
    deadline = job.get("deadline")
    if deadline is None or deadline["verdict"] == "can be met":
        return []
    earliest = ""
    if deadline["earliest_finish_at_s"] is not None:
        at = time.localtime(deadline["earliest_finish_at_s"])
        earliest = time.strftime(" (earliest finish: %Y-%m-%d %H:%M:%S)", at)
    lines = [f"{whose} deadline {deadline['verdict']}: {deadline['why']}{earliest}"]
    return [*lines, *(f"→ {text}" for text in deadline["help"])]


def job_row(job: dict[str, Any]) -> list[str]:
    """A job as a row of the queue's table."""
    phase = job["phase"] if job["position"] is None else f"{job['phase']} (#{job['position']})"
    phase += " (over budget)" if job["over_budget"] else " (over time)" if job["over_time"] else ""
    if job["array"] is not None:
        phase += f" ({job['array']['running']} of {job['array']['total']})"
    colour = COLOURS.get(job["phase"])
    most = job["max_slots"]
    size = f"{job['slots']}" if most == job["min_slots"] else f"{job['slots']} of {job['min_slots']}–{most or 'any'}"
    size = f"{job['slots']}" if job["array"] is not None else size
    size = f"needs {needed(job['needs'])}" if job["needs"] is not None else size
    return [
        job["id"],
        escape(job["name"]),
        escape(job["owner"] or ""),
        f"[{colour}]{phase}[/]" if colour else phase,
        size,
        "" if job["done"] is None else f"{100 * job['done']:.0f} %",
        "" if job["batch"] is None else f"{job['batch']}",
        to_the_second(job["age_s"]),
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


def to_the_second(seconds: float) -> str:
    """A duration, rounded to the second."""
    return humanize_duration(round(seconds)) if seconds >= 0.5 else "0s"


def launched_as(job: dict[str, Any]) -> str:
    """How a job is launched, and why."""
    return f"{job['kind']}: {job['kind_reason']}"


def interval(job: dict[str, Any], what: str) -> str:
    """How long until a job starts or ends, as an interval; "?" marks a forecast that is partly a guess.

    Says why if there is no forecast; empty if there is nothing to forecast.
    """
    eta = job["eta"]
    if eta is None:
        return {None: "", "being computed": BEING_COMPUTED}.get(job["eta_missing"], str(job["eta_missing"]))
    if eta[what] is None:
        return ""
    early, late = (to_the_second(max(0.0, at_s - job["now_s"])) for at_s in eta[what])
    return (early if early == late else f"{early}–{late}") + (" ?" if eta["guessed"] else "")


def about_times(jobs: list[dict[str, Any]]) -> list[str]:
    """Sentences about the forecasts in a table: how old they are, and that some are being computed."""
    age_s = max((job["eta"]["age_s"] for job in jobs if job["eta"] is not None), default=0.0)
    lines = [] if age_s < OLD_FORECAST_S else [f"starts and ends are from a forecast of {to_the_second(age_s)} ago"]
    if any(job["eta_missing"] == "being computed" for job in jobs):
        lines.append(f"{BEING_COMPUTED} is being computed: look again in a moment")
    return lines


def _long_interval(job: dict[str, Any], what: str) -> str:
    """An interval in words, with the age of the forecast if it is old."""
    short = interval(job, what)
    if job["eta"] is None or not short or job["eta"]["age_s"] < OLD_FORECAST_S:
        return "being computed" if short == BEING_COMPUTED else short
    return f"{short} (forecast of {to_the_second(job['eta']['age_s'])} ago)"


def show(
    job: JobArgument,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print what was changed in its folder since the commit.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show one job: everything that is known about it, and its history."""
    with reporting_trouble():
        if diff:
            source = client().get(of("jobs", job, "source"))
            print_json(source) if json else print(source["diff"], end="")
            return
        full = client().get(of("jobs", job))
        source = None if json else _source_of(full["id"])
    if json:
        print_json(full)
        return
    limits = full["limits"]
    is_done = full["phase"] == "succeeded"  # the declared work was an estimate
    work = "" if full["work_samples"] is None or is_done else f" of {full['work_samples']:,.0f}"
    budget = "" if full["budget_gpu_s"] is None else f" of its budget of {full['budget_gpu_s']:g}"
    sizes = f"{full['min_slots']} to {full['max_slots'] or 'any'}"
    stale = ", in its last report" if full["reason"].endswith("while the service was away") else ""
    facts = {
        "job": f"{full['id']} {full['name']} of {full['owner']}, queue {full['queue']}, priority {full['priority']}",
        "phase": _why(full["phase"], full["reason"]),
        "command": shlex.join(full["spec"].get("command", [])) or f"only for {full['owner']} and admins to see",
        "array": "" if full["array"] is None else _about_array(full),
        "after": ", ".join(full["after"]),
        "code": "" if source is None else _about_source(source),
        "kind": launched_as(full),
        "slots": f"{full['slots']} (planned {full['target_slots']}, may have {sizes})",
        "on": "; ".join(
            f"{node}: {', '.join(map(str, slots))}" for node, slots in sorted((full["placement"] or {}).items())
        ),
        "progress": f"{full['progress_samples']:,.0f}{work} useful samples, {full['samples']:,} consumed,"
        f" epoch {full['epoch']}, step {full['step']}{stale}"
        if full["elastic"]
        else "",
        "batch": ""
        if full["batch"] is None
        else f"{full['batch']} (learning rate × {full['learning_rate_factor']:.3g})",
        "limits": ""
        if limits is None
        else f"batches of {limits['initial_batch']} at first, at most {limits['largest_batch']},"
        f" {limits['smallest_per_slot']} to {limits['largest_per_slot']} a slot,"
        f" {limits['parameter_count']:,} parameters",
        "metrics": ", ".join(f"{name} {float(value):.4g}" for name, value in full["metrics"].items()),
        "used": f"{full['gpu_s']:.0f} slot-seconds{budget}; {full['rescales']} × resized, {full['failures']} × failed",
        "time limit": ""
        if full["time_limit_s"] is None
        else f"{humanize_duration(full['time_limit_s'])}, {to_the_second(max(full['time_left_s'], 0.0))} left",
        "needs": "" if full["needs"] is None else _needs(full["needs"]),
        "deadline": f"missed by {humanize_duration(round(full['late_s'], 1))}"
        if full["late_s"] is not None
        else f"{full['deadline']['verdict']}: {full['deadline']['why']}"
        if full["deadline"] is not None
        else "",
        "starts in": _long_interval(full, "start_at_s") if full["slots"] == 0 else "",
        "ends in": _long_interval(full, "finish_at_s"),
    }
    for name, fact in facts.items():
        if fact:
            console.print(f"{name + ':':<12}{escape(fact)}", soft_wrap=True)
    if full["last_lines"]:
        console.print("\n[bold]its last lines[/] [dim](geminid logs shows all)[/]")
        for line in full["last_lines"]:
            console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    console.print("\n[bold]story[/]")
    for line in full["story"]:
        pause = "" if line["pause_s"] is None else f" [dim](paused {line['pause_s']:.2f} s)[/]"
        at = time.strftime("%H:%M:%S", time.localtime(line["at_s"]))
        console.print(f"{at}  {escape(line['text'])}{pause}", soft_wrap=True)


def _source_of(job_id: str) -> dict[str, Any] | None:
    """Which code a job was submitted with; None if nobody knows, or it is somebody else's."""
    from geminid.serve.client import ServiceError

    try:
        found: dict[str, Any] = client().get(of("jobs", job_id, "source"))
    except ServiceError:
        return None
    return found


def _about_source(source: dict[str, Any]) -> str:
    """Which code a job was submitted with, in a line."""
    files = source["diff"].count("\ndiff --git ") + source["diff"].startswith("diff --git ")
    changed = f", {files} file{'s' if files > 1 else ''} changed (--diff shows them)" if files else ""
    new = f", {len(source['untracked'])} not tracked" if source["untracked"] else ""
    return f"commit {source['commit'][:12]} of {source['branch'] or 'no branch'}{changed}{new}"


def _about_array(job: dict[str, Any]) -> str:
    """How many elements of an array are in which state."""
    array = job["array"]
    states = ("running", "queued", "succeeded", "failed", "cancelled")
    counts = [f"{array[state]} {state}" for state in states if array[state]]
    counts += [f"{array['unqueued']} not queued yet"] if array["unqueued"] else []
    return f"{array['elements']}: {', '.join(counts)} (geminid queue --all --array {job['id']} lists them)"


def _why(phase: str, reason: str) -> str:
    """A phase and its reason, without saying it twice."""
    return reason if reason.startswith(phase) else f"{phase}: {reason}" if reason else phase


def explain(job: JobArgument, wide: WideOption = False, json: JsonOption = False) -> None:
    """Say why a job waits or has its number of slots, with figures, and what would change that."""
    with reporting_trouble():
        answer = client().get(of("jobs", job, "explain"))
    if json:
        print_json(answer)
        return
    if answer["finished_at_s"] is not None:
        what = "is over"
    elif answer["phase"] in ("paused", "stopping"):
        what = f"is {answer['phase']}"
    else:
        what = "waits" if answer["slots"] == 0 else f"has {answer['slots']} slot{'s' if answer['slots'] > 1 else ''}"
    console.print(f"[bold]{answer['id']} {what}[/]: {escape(answer['explanation'])}", soft_wrap=True)
    console.print(f"  · {escape(launched_as(answer))}", soft_wrap=True)
    for number in answer["numbers"]:
        console.print(f"  · {escape(number)}", soft_wrap=True)
    if answer["factors"]:
        factors = [f"{name} {value:.3g}" for name, value in answer["factors"].items() if f"{value:.3g}" != "1"]
        product = f": {' × '.join(factors)}" if factors else ""
        counts = f"{math.prod(answer['factors'].values()):.3g} in the policy's decision"
        console.print(f"  · its weight is {counts}{product} (1 is neutral)", soft_wrap=True)
    for name, price in answer["prices"].items():
        console.print(f"  · a slot of {name} is worth {price:.4g} to the jobs that want one more (the policy's price)")
    if answer["sizes"]:
        console.print()
        least = answer["sizes"][0]["goodput"]
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
                for size in answer["sizes"]
            ],
            text_columns=2,
        )
    for suggestion in answer["suggestions"]:
        console.print(f"[bold]→[/] {escape(suggestion)}", soft_wrap=True)


def wait(
    jobs: JobsArgument,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, metavar="S", help="Give up after this many seconds.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Wait until jobs are over; ends with 0 if all succeeded, 1 if one failed or was cancelled, 6 if one used up its
    gpu_time_budget or its time limit, 124 if it took too long.
    """
    from geminid.serve.client import FAILED, OVER_BUDGET, TIMED_OUT, ServiceError

    deadline = None if timeout is None else time.monotonic() + timeout
    absence = Absence()

    def over(job: str) -> dict[str, Any]:
        while True:
            left_s = 25.0 if deadline is None else min(25.0, max(deadline - time.monotonic(), 0.0))
            try:
                client().get("status")  # fails at once if there is no service
                absence.over()
                state: dict[str, Any] = client().get(of("jobs", job), wait_s=left_s)
                job = state["id"]  # the name may later belong to another job
            except ServiceError as trouble:
                absence.wait_or_raise(trouble)
                continue
            if state["finished_at_s"] is not None:
                return state
            if deadline is not None and time.monotonic() >= deadline:
                raise ServiceError(TIMED_OUT, f"job {job} is still {state['phase']} after {timeout:g} s")

    answers, code = _each(jobs, over)
    if json:
        print_json(answers)
    for state in answers:
        if not json:
            why = f": {state['reason']}" if state["reason"] else ""
            console.print(f"{state['id']} {state['phase']} after {state['jct_s']:.1f} s{escape(why)}", soft_wrap=True)
    if any(state["phase"] != "succeeded" for state in answers):
        used_up = any(state["over_budget"] or state["over_time"] for state in answers)
        code = max(code, OVER_BUDGET if used_up else FAILED)
    if code:
        raise typer.Exit(code)


def cancel(jobs: JobsArgument, json: JsonOption = False) -> None:
    """Cancel jobs."""
    _act(jobs, "cancel", json)


def pause(jobs: JobsArgument, json: JsonOption = False) -> None:
    """Save jobs and stop them until they are resumed."""
    _act(jobs, "pause", json)


def resume(
    jobs: JobsArgument,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Start from the beginning; checkpoints are moved aside, not deleted.")
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
        state = client().patch(of("jobs", job), {name: value for name, value in changes.items() if value is not None})
    print_json(state) if json else console.print(f"changed {state['id']}")


def _act(jobs: list[str], action: str, json: bool, options: Mapping[str, Any] = MappingProxyType({})) -> None:
    answers, code = _each(jobs, lambda job: client().post(of("jobs", job, action), **options))
    if json:
        print_json(answers)
    for job in () if json else answers:
        console.print(f"{job['id']} {_outcome(job, action)}")
    if code:
        raise typer.Exit(code)


def _outcome(job: dict[str, Any], action: str) -> str:
    """What has happened to a job, or is about to."""
    done = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}[action]
    if action == "resume":
        return "is resumed, and " + ("waits for slots" if job["phase"] == "pending" else f"is {job['phase']}")
    return f"is {done}" if job["phase"] == done else f"is being {done}: its processes are ending"


def _each(jobs: list[str], do: Callable[[str], dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Do something with every job, even if it fails for some; returns the answers and the highest exit code."""
    from geminid.serve.client import NO_SERVICE, ServiceError

    done, code = [], 0
    for job in jobs:
        try:
            done.append(do(job))
        except ServiceError as trouble:
            print_error(trouble)
            code = max(code, trouble.code)
            if trouble.code == NO_SERVICE:  # the others would get no answer either
                break
    return done, code
