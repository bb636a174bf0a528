"""``geminid top``: the queue on a full screen, live, with keys."""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from geminid.cli.client import client, give_up, of, reporting_trouble
from geminid.cli.jobs import QUEUE_COLUMNS, job_row
from geminid.cli.topview import KEYS, Mode, Request, TopView

#: Codes that terminals send for keys.
CODES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}

#: Lines of the screen around the list: status, head, and keys.
FRAME_LINES = 4


def top(
    interval: Annotated[float, typer.Option(min=0.2, metavar="S", help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch the queue on a full screen; keys sort, filter, explain, pause, resume and cancel."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        give_up("geminid top needs a terminal; geminid queue --watch prints the queue again and again", 2)
    view = TopView()
    with reporting_trouble():
        client().get("status")
        with _full_screen():
            look_at_s = 0.0
            while True:
                if time.monotonic() >= look_at_s:
                    view, status = _looked(view)
                    look_at_s = time.monotonic() + interval
                _draw(view, status)
                for key in _keys(max(look_at_s - time.monotonic(), 0.0)):
                    view, request = view.key(key)
                    if request is not None and request.what == "quit":
                        return
                    view = view if request is None else _asked(view, request)
                    look_at_s = 0.0


def _looked(view: TopView) -> tuple[TopView, str]:
    """With the jobs as they are now, and a line about the service."""
    from geminid.serve.client import ServiceError

    try:
        jobs, count = client().get_counted("jobs", all=view.all, limit=1000)
        status = client().get("status")
    except ServiceError as trouble:
        return view, f"no answer: {trouble.sentences[0]}"
    held = f"{status['slots_held']} of {status['slots']} slots in use"
    return view.with_jobs(jobs), f"{held}, {count} jobs, policy {status['policy']}"


def _asked(view: TopView, request: Request) -> TopView:
    """After the service was asked for something."""
    from geminid.serve.client import ServiceError

    try:
        if request.what != "explain":
            job = client().post(of("jobs", request.job, request.what))
            return replace(view, message=f"{job['id']}: {request.what} was requested")
        found = client().get(of("jobs", request.job, "explain"))
        story = client().get(of("jobs", request.job))["story"][-20:]
    except ServiceError as trouble:
        return replace(view, mode=Mode.LIST, message=trouble.sentences[0])
    times = (time.strftime("%H:%M:%S", time.localtime(line["at_s"])) for line in story)
    lines = [f"{at}  {line['text']}" for at, line in zip(times, story, strict=True)]
    hints = [f"→ {hint}" for hint in found["suggestions"]]
    details = [found["explanation"], *(f"· {number}" for number in found["numbers"]), *hints, "", *lines]
    return replace(view, details=tuple(details))


def _draw(view: TopView, status: str) -> None:
    """Show a view on the whole screen."""
    size = shutil.get_terminal_size()
    width, height = max(size.columns, 40), max(size.lines, 8)
    file = io.StringIO()
    screen = Console(file=file, width=width, force_terminal=True, highlight=False)
    screen.print(f"[bold]geminid[/] {escape(status)}", no_wrap=True, overflow="ellipsis")
    if view.mode is Mode.DETAILS:
        screen.print(f"[bold]{escape(view.selected)}[/]")
        for line in view.details[: height - FRAME_LINES]:
            screen.print(escape(line), no_wrap=True, overflow="ellipsis")
    else:
        screen.print(_table(view, width, height - FRAME_LINES))
    text = view.message or (f"filter: {view.text}▏" if view.mode is Mode.FILTER else _last_line(view))
    lines = file.getvalue().rstrip("\n").split("\n")[: height - 1]
    lines += [""] * (height - 1 - len(lines)) + [text[: width - 1]]
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines[:-1]) + f"{lines[-1]}\x1b[K")
    sys.stdout.flush()


def _last_line(view: TopView) -> str:
    filtered = f"  (filter: {view.text})" if view.text else ""
    return f"sorted by {view.sort}{filtered}  {KEYS}"


def _table(view: TopView, width: int, rows: int) -> Table:
    """The part of the list around the selected job that has room, and the columns that have."""
    columns = [i for i, one in enumerate(QUEUE_COLUMNS) if one.drop <= (8 if width >= 130 else 3 if width >= 90 else 1)]
    table = Table(box=None, expand=False, pad_edge=False)
    for i in columns:
        table.add_column(QUEUE_COLUMNS[i].name, no_wrap=True, overflow="ellipsis")
    shown = view.shown
    first = min(max(view.position - rows // 2, 0), max(len(shown) - rows, 0))
    for job in shown[first : first + rows]:
        cells = job_row(dict(job))
        style: Any = "reverse" if job["id"] == view.selected else None
        table.add_row(*(cells[i] for i in columns), style=style)
    return table


@contextlib.contextmanager
def _full_screen() -> Iterator[None]:
    """The terminal's other screen, without echo, until the block ends."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def _keys(timeout_s: float) -> list[str]:
    """The keys that are pressed within a time."""
    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return []
    typed = os.read(sys.stdin.fileno(), 1024).decode("utf-8", "replace")
    found = []
    while typed:
        code = next((code for code in CODES if typed.startswith(code) and len(code) > 1), typed[0])
        found.append(CODES.get(code, code))
        typed = typed[len(code) :]
    return found
