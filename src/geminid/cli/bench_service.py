"""``geminid bench service``: how the service answers under load."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from geminid.cli.bench import Json, whole_numbers
from geminid.cli.client import reporting_trouble
from geminid.cli.output import console, error_console, print_json, print_table


def service(
    submissions: Annotated[int, typer.Option(min=1, help="Jobs to submit.")] = 2000,
    seconds: Annotated[float, typer.Option(min=1.0, help="Over how long.")] = 60.0,
    followers: Annotated[int, typer.Option(min=0, help="Connections that follow a log meanwhile.")] = 200,
    json: Json = False,
) -> None:
    """Submissions, followers of logs, and the queue's answers meanwhile, over HTTP from another process."""
    from geminid.serve.loadtest import Load, run

    load = Load(submissions=submissions, seconds=seconds, followers=followers)
    with reporting_trouble(), error_console.status(f"{submissions} submissions in {seconds:g} s …"):
        result = run(load)
    rows = [asdict(answers) for answers in result.answers]
    if json:
        shared = {name: value for name, value in asdict(result).items() if name != "answers"}
        print_json([{**row, **shared} for row in rows])
        return
    print_table(
        f"{result.jobs:,} jobs submitted in {result.seconds:.0f} s while {result.followers} followed a log",
        ["request", "answers", "failed", "median", "p99", "longest"],
        [
            [
                row["request"],
                f"{row['count']:,}",
                f"{row['failed']}",
                f"{1e3 * row['median_s']:.0f} ms",
                f"{1e3 * row['p99_s']:.0f} ms",
                f"{1e3 * row['longest_s']:.0f} ms",
            ]
            for row in rows
        ],
    )
    console.print(f"{result.followers_complete} of {result.followers} followers heard all {result.lines} lines")


def live(
    slots: Annotated[int | None, typer.Option(min=1, help="CPU slots.", show_default="one per core")] = None,
    json: Json = False,
) -> None:
    """Four real jobs: live under the default policy, simulated with what they measured, and with fixed fair shares."""
    import os

    from geminid.cli.client import give_up
    from geminid.cli.demo import EXAMPLES, POLICY
    from geminid.serve.fidelity import DidNotFinish, compare, example_jobs

    if not (EXAMPLES / "images.py").is_file():
        give_up("this needs the examples folder of the repository: run it from a clone")
    count = slots or len(os.sched_getaffinity(0))
    try:
        with reporting_trouble(), error_console.status("starting …") as status:
            rows = compare(example_jobs(EXAMPLES), count, POLICY, status.update)
    except DidNotFinish as problem:
        give_up(str(problem))
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"Completion times of {len(rows)} real jobs on {count} CPU slots",
        ["job", f"live, {POLICY.partition(':')[0]}", "simulated", "error", "live, fixed shares"],
        [
            [
                row.job,
                f"{row.live_s:.1f} s",
                f"{row.simulated_s:.1f} s",
                f"{100 * row.error:.0f} %",
                f"{row.fixed_s:.1f} s",
            ]
            for row in rows
        ],
    )
    print_table(
        "What the live times are made of, beside the simulator's",
        ["job", "waited", "simulated", "start-up", "paused", "resizes", "simulated", "training / steps"],
        [
            [
                row.job,
                f"{row.waited_s:.1f} s",
                f"{row.simulated_waited_s:.1f} s",
                f"{row.start_up_s:.1f} s",
                f"{row.paused_s:.2f} s",
                f"{row.resizes}",
                f"{row.simulated_resizes}",
                f"{row.slower:.2f}",
            ]
            for row in rows
        ],
    )
    error = sum(row.error for row in rows) / len(rows)
    mean = sum(row.live_s for row in rows) / sum(row.fixed_s for row in rows) - 1.0
    console.print(
        f"mean error of the simulation {100 * error:.0f} % (goal: under 15 %);"
        f" mean completion time {100 * mean:+.0f} % against fixed shares"
    )


def ray(
    nodes: Annotated[int, typer.Option(min=1, max=8, help="Raylets, each on a loopback address of its own.")] = 4,
    slots: Annotated[int, typer.Option(min=1, max=64, help="CPU slots of each.")] = 4,
    jobs: Annotated[int, typer.Option(min=1, help="Small real jobs to run each time.")] = 12,
    shares: Annotated[str, typer.Option(help="Fixed shares to compare with, in slots.")] = "1,2,4",
    json: Json = False,
) -> None:
    """A Ray cluster on this machine: completion times against fixed shares, pauses of rescales, latencies."""
    import importlib.util

    from geminid.cli.client import give_up

    if importlib.util.find_spec("ray") is None:
        give_up("this needs Ray: pip install 'geminid[ray]'")
    from geminid.serve.raybench import DidNotFinish, compare, small_jobs

    sizes = whole_numbers("shares", shares, 1)
    try:
        with reporting_trouble(), error_console.status("starting …") as status:
            rows = compare(small_jobs(jobs), nodes=nodes, slots=slots, shares=sizes, progress=status.update)
    except (DidNotFinish, TimeoutError) as problem:
        give_up(str(problem))
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"{jobs} small real jobs on {nodes} raylets × {slots} CPU slots",
        ["shares", "average JCT", "median", "makespan", "resizes", "plan to training", "plan to resized"],
        [
            [
                row.shares,
                f"{row.avg_jct_s:.1f} s",
                f"{row.median_jct_s:.1f} s",
                f"{row.makespan_s:.1f} s",
                str(row.rescales),
                "" if row.start_latency_s is None else f"{row.start_latency_s:.2f} s",
                "" if row.rescale_latency_s is None else f"{row.rescale_latency_s:.2f} s",
            ]
            for row in rows
        ],
    )
    for where, pauses in (("within a node", rows[0].pauses_within_s), ("across nodes", rows[0].pauses_across_s)):
        if pauses:
            middle = sorted(pauses)[len(pauses) // 2]
            console.print(
                f"{len(pauses)} live rescales {where}: paused {middle:.2f} s (median), at most {max(pauses):.2f} s"
            )


def scale(
    nodes: Annotated[
        str, typer.Option(help="Sizes of clusters to look at, in nodes of eight slots.")
    ] = "100,1000,10000",
    json: Json = False,
) -> None:
    """What the service costs on large clusters, from measurements of its parts; the first bottleneck."""
    from geminid.serve.scale import HEARING, NODE_SLOTS, measure

    sizes = whole_numbers("nodes", nodes, 1)
    rows = []
    with error_console.status("…") as status:
        for size in sizes:
            rows += measure(size, status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    for size in sizes:
        mine = [row for row in rows if row.nodes == size]
        print_table(
            f"{size:,} nodes, {mine[0].jobs:,} jobs: {sum(row.share for row in mine):.2f} cores in all",
            ["part", "a second", "each", "share of a core"],
            [[row.part, f"{row.per_s:,.3g}", f"{row.each_ms:,.3g} ms", f"{100 * row.share:.1f} %"] for row in mine],
        )
        hearing = sum(row.share for row in mine if row.part.startswith(HEARING))
        console.print(f"the first bottleneck: {mine[0].part}")
        console.print(f"one core watches and hears {size / hearing:,.0f} nodes of {NODE_SLOTS} slots")
