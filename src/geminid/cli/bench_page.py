"""``geminid bench page``: the web page in a real browser, measured."""

from __future__ import annotations

from dataclasses import asdict

from geminid.cli import ends_when_terminated
from geminid.cli.bench import Json, Quick, Target, conclude, titled
from geminid.cli.client import reporting_trouble
from geminid.cli.output import WideOption, error_console, print_json, print_table

#: What each figure is, for people.
TITLES = {
    "script_gzip_kb": "scripts, compressed (kB)",
    "first_paint_ms": "first paint (ms)",
    "jobs_1000_ms": "1,000 jobs shown (ms)",
    "jobs_10000_ms": "10,000 jobs shown (ms)",
    "frame_p95_ms": "95th percentile of a frame while scrolling (ms)",
    "stream_kb_per_s": "stream to a viewer, 1,000 jobs (kB/s)",
    "slowdown_50_viewers": "answers slower with 50 viewers (share)",
}


def page(quick: Quick = False, wide: WideOption = False, json: Json = False) -> None:
    """The web page in this machine's Chromium: how soon it shows jobs, how it scrolls, and what watching costs."""
    from geminid.bench.page import TARGETS, NoBrowser, measure

    try:
        with ends_when_terminated(), reporting_trouble(), error_console.status("a service and a browser …"):
            figures = measure(repeats=1, jobs=200, many_jobs=None) if quick else measure()
    except NoBrowser as problem:
        error_console.print(f"skipped: {problem}")
        if json:
            print_json([])
        return
    values = asdict(figures)
    if json:
        print_json([values])
    else:
        rows = [
            [title, "" if values[name] is None else f"{values[name]:.3g}", f"{TARGETS[name]:g}"]
            for name, title in TITLES.items()
        ]
        print_table(titled("The web page", quick), ["figure", "measured", "at most"], rows)
    missed = figures.missed()
    size = values["script_gzip_kb"]
    targets = [
        Target("scripts have at most 60 kB", "script_gzip_kb" not in missed, f"{size:.1f} kB", full_size=False),
        Target("all times and rates keep to their limits", not missed, ", ".join(missed) or "all"),
    ]
    conclude(targets, quick=quick, json=json)
