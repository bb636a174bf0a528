"""``geminid demo``: a service on this machine, six real training jobs, and what the scheduler does with them.

The jobs are the repository's examples. They come one after the other, grow and shrink as others come and go, re-tune
their batch sizes, and get over the death of a worker. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from geminid.cli.client import give_up, reporting_trouble
from geminid.cli.jobs import QUEUE_COLUMNS, job_row
from geminid.cli.output import (
    Column,
    WideOption,
    console,
    draw_table,
    error_console,
    print_json,
    print_table,
    table_width,
)

if TYPE_CHECKING:
    from geminid.serve.client import Client

EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass(frozen=True, slots=True)
class Programme:
    """What is submitted, and when, in seconds from the start; and when a worker of a job that has several is killed.

    Submissions that are due after the kill wait for it: on a busy machine the first jobs grow later.
    """

    submissions: tuple[tuple[float, str, int], ...]
    kill_after_s: float


#: When jobs come, what they are, and how many epochs they train.
FULL = Programme(
    (
        (0.0, "images", 24),
        (4.0, "language", 16),
        (12.0, "recommender", 32),
        (25.0, "images", 16),
        (40.0, "recommender", 24),
        (55.0, "language", 10),
    ),
    kill_after_s=20.0,
)
SHORT = Programme(((0.0, "images", 30), (10.0, "recommender", 4), (11.0, "language", 1)), kill_after_s=5.0)

#: Time after which the demo gives up, in seconds.
PATIENCE_S = 420.0

#: On a terminal, the web page stays up for this time at the end.
LINGER_S = 60.0

#: The table at the end. What is left out first where there is little room has the highest number.
RESULT_COLUMNS = (
    Column("job", text=True, least=16),
    Column("end", text=True),
    Column("JCT", 1),
    Column("slot-s", 7),
    Column("most slots", 4),
    Column("resizes", 2),
    Column("mean pause", 3),
    Column("longest", 6),
    Column("samples", 5),
    Column("loss", 8),
)

POLICY = "geminid:gap=2,refresh=10,fill=true"


@dataclass(slots=True)
class Show:
    """What has happened so far."""

    client: Client
    home: Path
    programme: Programme
    began_s: float = field(default_factory=time.monotonic)
    submitted: list[str] = field(default_factory=list)
    killed: dict[str, Any] | None = None
    lines_shown: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def at_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began_s

    def submit_due(self, jobs: list[dict[str, Any]]) -> None:
        """Submit what is due, given the jobs that have been submitted before."""
        a_job_runs = any(job["finished_at_s"] is None for job in jobs)
        for due_s, name, epochs in self.programme.submissions[len(self.submitted) :]:
            comes_after_the_kill = due_s > self.programme.kill_after_s
            if due_s > self.at_s or (comes_after_the_kill and self.killed is None and a_job_runs):
                break
            command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--epochs", str(epochs)]
            body = {"name": name, "command": command, "working_dir": str(EXAMPLES)}
            self.submitted.append(str(self.client.post("jobs", body)["id"]))

    def kill_one(self, jobs: list[dict[str, Any]]) -> None:
        """Kill one worker of the largest job that has several, once."""
        if self.killed is not None or self.at_s < self.programme.kill_after_s:
            return
        several = [job for job in jobs if job["slots"] > 1 and job["phase"] == "running" and (job["done"] or 0) < 0.8]
        if not several:
            return
        job = max(several, key=lambda job: job["slots"])
        with contextlib.suppress(OSError, ValueError, KeyError):
            saved = json.loads((self.home / "jobs" / job["id"] / "supervisor.json").read_text(encoding="utf-8"))
            worker = saved["members"][-1]
            os.kill(saved["workers"][worker]["pid"], signal.SIGKILL)
            self.killed = {"job": job["id"], "worker": worker, "at_s": self.at_s, "samples": job["samples"]}
            self.lines.append(f"{self.at_s:5.1f} s  [bold red]killed worker {worker} of {job['id']}[/] (SIGKILL)")

    def new_lines(self) -> list[str]:
        """New lines of the jobs' stories."""
        new = []
        for job_id in self.submitted:
            job = self.client.get(f"jobs/{job_id}")
            story, began_s = job["story"], job["now_s"] - self.at_s
            for line in story[self.lines_shown.get(job_id, 0) :]:
                pause = "" if line["pause_s"] is None else f" [dim](paused {line['pause_s']:.2f} s)[/]"
                new.append(f"{max(line['at_s'] - began_s, 0.0):5.1f} s  {job_id} {escape(line['text'])}{pause}")
            self.lines_shown[job_id] = len(story)
        self.lines += new
        return new


def demo(
    slots: Annotated[int, typer.Option(min=2, max=64, help="CPU slots to offer.")] = 4,
    wide: WideOption = False,
    short: Annotated[bool, typer.Option("--short", help="Three short jobs, in about half a minute.")] = False,
    linger: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Seconds to keep the web page up at the end.", show_default="60 on a terminal, else 0"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end instead of tables.")
    ] = False,
) -> None:
    """Run the scheduler on this machine with six real elastic training jobs: two to four minutes (at most seven)."""
    if importlib.util.find_spec("torch") is None:
        give_up("the demo trains with PyTorch, which is not installed: pip install 'geminid[torch]'")
    if not (EXAMPLES / "images.py").is_file():
        give_up("the demo needs the examples folder of the repository: run it from a clone")
    from geminid.serve.server import Options
    from geminid.testing.service import temporary_service

    options = Options(home=Path(), slots=slots, policy=POLICY, grace_s=5.0)
    with reporting_trouble(), temporary_service(options) as (client, home):
        error_console.print(f"[dim]service at {client.url}, {slots} CPU slots, policy {POLICY}[/]")
        _offer_page(client)
        show = Show(client, home, SHORT if short else FULL)
        jobs = _watch(show, quiet=as_json)
        result = _result(show, jobs, client.get("status"))
        if as_json:
            print_json(result)
        else:
            _print(result)
        _linger(client, linger if linger is not None else LINGER_S if console.is_terminal else 0.0)
    if any(job["phase"] != "succeeded" for job in jobs):
        raise typer.Exit(1)


def _offer_page(client: Client) -> None:
    """Print a link to the web page, which logs the browser in."""
    link = client.post("login-links")
    error_console.print(f"watch it in a browser: {link['url']} (works once, within a minute)", soft_wrap=True)


def _linger(client: Client, seconds: float) -> None:
    """Keep the web page up for a while after the end, so that people can look at it."""
    if seconds <= 0.0:
        return
    _offer_page(client)
    with contextlib.suppress(KeyboardInterrupt), error_console.status("") as status:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0.0:
            status.update(f"the page stays up for {left_s:.0f} s (Ctrl-C ends it)")
            time.sleep(min(left_s, 1.0))


def _watch(show: Show, *, quiet: bool) -> list[dict[str, Any]]:
    """Submit, watch and disturb until all jobs are over; the jobs then."""
    live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal and not quiet else None
    with live or contextlib.nullcontext():
        jobs: list[dict[str, Any]] = []
        while True:
            show.submit_due(jobs)
            jobs = show.client.get("jobs", all=True)
            show.kill_one(jobs)
            new = show.new_lines()
            if live is not None:
                live.update(_picture(show, jobs))
            elif not quiet:
                for line in new:
                    console.print(line, soft_wrap=True)
            over = len(jobs) == len(show.programme.submissions) and all(
                job["finished_at_s"] is not None for job in jobs
            )
            if over or show.at_s > PATIENCE_S:
                return [show.client.get(f"jobs/{job['id']}") for job in jobs]
            time.sleep(0.5)


def _picture(show: Show, jobs: list[dict[str, Any]]) -> Group:
    """The queue as it is now, with a bar for the slots of each job, above the last lines of the jobs' stories."""
    columns = [*QUEUE_COLUMNS, Column("loss", 4)]
    rows = []
    for job in jobs:
        loss = job["metrics"].get("loss")
        row = dict(zip((column.name for column in QUEUE_COLUMNS), job_row(job), strict=True))
        rows.append([*{**row, "slots": "█" * job["slots"]}.values(), "" if loss is None else f"{float(loss):.3f}"])
    shown = [i for i, column in enumerate(columns) if column.name not in ("owner", "starts in")]
    table, _ = draw_table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows], table_width())
    lines = (Text.from_markup(line) for line in show.lines[-8:])
    return Group(Text(f"{show.at_s:.0f} s", style="bold"), table, Text(), *lines)


def _result(show: Show, jobs: list[dict[str, Any]], status: dict[str, Any]) -> dict[str, Any]:
    pauses = [pause for job in jobs for pause in job["pauses_s"]]
    killed = show.killed
    if killed is not None:
        job = next(job for job in jobs if job["id"] == killed["job"])
        lost = next((line for line in job["story"] if line["text"].startswith("worker ")), None)
        after = [] if lost is None else [line for line in job["story"] if line["at_s"] >= lost["at_s"]]
        formed = next((line for line in after if line["text"].startswith("training on")), None)
        killed = {**killed, "training_again_after_s": None if not formed or not lost else formed["at_s"] - lost["at_s"]}
    began_s = min((line["at_s"] for job in jobs for line in job["story"]), default=0.0)
    return {
        "seconds": show.at_s,
        "slots": status["slots"],
        "decisions": status["decisions"],
        "resizes": sum(job["rescales"] for job in jobs),
        "pauses_s": pauses,
        "killed": killed,
        "jobs": [
            {
                **{name: job[name] for name in ("id", "name", "phase", "jct_s", "rescales", "pauses_s", "gpu_s")},
                **{name: job[name] for name in ("samples", "work_samples", "metrics")},
                "most_slots": max(line["slots"] for line in job["story"]),
                "story": [{**line, "at_s": line["at_s"] - began_s} for line in job["story"]],
            }
            for job in jobs
        ],
    }


def _print(result: dict[str, Any]) -> None:
    rows = []
    for job in result["jobs"]:
        pauses = job["pauses_s"]
        loss = job["metrics"].get("loss")
        rows.append(
            [
                f"{job['id']} {job['name']}",
                job["phase"],
                f"{job['jct_s']:.1f} s" if job["jct_s"] is not None else "",
                f"{job['gpu_s']:.0f}",
                f"{job['most_slots']}",
                f"{job['rescales']}",
                f"{1e3 * sum(pauses) / len(pauses):.0f} ms" if pauses else "",
                f"{1e3 * max(pauses):.0f} ms" if pauses else "",
                f"{job['samples']:,} of {job['work_samples']:,.0f}" if job["work_samples"] else "",
                "" if loss is None else f"{float(loss):.4f}",
            ]
        )
    print_table(f"{len(rows)} training jobs", RESULT_COLUMNS, rows)
    pauses = result["pauses_s"]
    if pauses:
        console.print(
            f"{result['resizes']} live resizes: training stood still for"
            f" {1e3 * sum(pauses) / len(pauses):.0f} ms on average, {1e3 * max(pauses):.0f} ms at most"
        )
    killed = result["killed"]
    if killed is not None and killed["training_again_after_s"] is not None:
        job = next(job for job in result["jobs"] if job["id"] == killed["job"])
        exact = "every sample was taken exactly as often as asked for"
        counted = exact if job["samples"] == job["work_samples"] else f"it consumed {job['samples']:,} samples"
        console.print(
            f"worker {killed['worker']} of {killed['job']} was killed; its peers trained on"
            f" {killed['training_again_after_s']:.2f} s later, and {counted}"
        )
    console.print(f"{result['seconds']:.0f} s, {result['decisions']} decisions on {result['slots']} slots")
