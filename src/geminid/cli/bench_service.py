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
    """Submissions, followers of logs, and meanwhile the queue: its answers over HTTP, and the command itself.

    Ends with 1 if the queue is ever not there within a second, or something fails or comes too late.
    """
    from geminid.serve.loadtest import GOAL_S, Load, run

    load = Load(submissions=submissions, seconds=seconds, followers=followers)
    with reporting_trouble(), error_console.status(f"{submissions} submissions in {seconds:g} s …"):
        result = run(load)
    rows = [asdict(answers) for answers in result.answers]
    if json:
        shared = {name: value for name, value in asdict(result).items() if name not in ("answers", "wanted")}
        print_json([{**row, **shared, "missed": result.missed} for row in rows])
        raise typer.Exit(1 if result.missed else 0)
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
    console.print(f"`geminid queue` takes {result.command_cpu_s:.2f} s of a core by itself")
    if result.missed:
        console.print(f"[red]missed[/]: {'; '.join(result.missed)}")
        raise typer.Exit(1)
    console.print(f"[green]met[/]: all was answered, and the queue always within {GOAL_S:g} s")


def live(
    slots: Annotated[
        int | None, typer.Option(min=1, help="CPU slots.", show_default="one per core; 4 with --waiting")
    ] = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Jobs that wait for a pretended accelerator, and need hardly any cores.")
    ] = False,
    json: Json = False,
) -> None:
    """Four real jobs: live under the default policy, simulated with their profiles, and with fixed fair shares.

    Ends with 1 if the simulated completion times are off by 15 % or more on average.
    """
    import os

    from geminid.cli.client import give_up
    from geminid.cli.demo import EXAMPLES, POLICY
    from geminid.serve.fidelity import GOAL, DidNotFinish, compare, example_jobs, waiting_jobs

    if not waiting and not (EXAMPLES / "images.py").is_file():
        give_up("this needs the examples folder of the repository: run it from a clone")
    count = slots or (4 if waiting else len(os.sched_getaffinity(0)))
    try:
        with reporting_trouble(), error_console.status("starting …") as status:
            rows = compare(waiting_jobs() if waiting else example_jobs(EXAMPLES), count, POLICY, status.update)
    except DidNotFinish as problem:
        give_up(str(problem))
    error, foretold = (
        sum(errors) / len(rows) for errors in zip(*((row.error, row.foretold_error) for row in rows), strict=True)
    )
    if json:
        print_json([asdict(row) for row in rows])
        raise typer.Exit(0 if error < GOAL else 1)
    print_table(
        f"Completion times of {len(rows)} real jobs on {count} CPU slots",
        ["job", f"live, {POLICY.partition(':')[0]}", "simulated", "error", "foretold", "error", "live, fixed shares"],
        [
            [
                row.job,
                f"{row.live_s:.1f} s",
                f"{row.simulated_s:.1f} s",
                f"{100 * row.error:.0f} %",
                f"{row.foretold_s:.1f} s",
                f"{100 * row.foretold_error:.0f} %",
                f"{row.fixed_s:.1f} s",
            ]
            for row in rows
        ],
    )
    print_table(
        "What the live times are made of, beside the simulator's",
        ["job", "waited", "simulated", "start-up", "paused", "resizes", "simulated", "training / steps", "before"],
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
                f"{row.simulated_slower:.2f}",
            ]
            for row in rows
        ],
    )
    mean = sum(row.live_s for row in rows) / sum(row.fixed_s for row in rows) - 1.0
    console.print(
        "simulated: with profiles fitted from this run; all else (overheads, pauses, starts) is from a job of each kind"
        " that ran before\nforetold: with nothing of this run; the profiles, too, from the jobs that ran before",
        soft_wrap=True,
    )
    console.print(f"mean completion time live {100 * mean:+.0f} % against fixed shares")
    console.print(f"mean error foretold {100 * foretold:.0f} %")
    verdict = "[green]met[/]" if error < GOAL else "[red]missed[/]"
    console.print(f"{verdict}: mean error simulated {100 * error:.0f} % (goal: under {100 * GOAL:.0f} %)")
    if error >= GOAL:
        raise typer.Exit(1)


def ray(
    nodes: Annotated[int, typer.Option(min=1, max=8, help="Raylets, each on a loopback address of its own.")] = 4,
    slots: Annotated[int, typer.Option(min=1, max=64, help="CPU slots of each.")] = 4,
    jobs: Annotated[int, typer.Option(min=1, help="Small real jobs to run each time.")] = 12,
    length: Annotated[float, typer.Option(min=0.1, help="Work of each: 1 is 12 s on one slot, for most.")] = 3.0,
    shares: Annotated[str, typer.Option(help="Fixed shares to compare with, in slots.")] = "1,2,4",
    json: Json = False,
) -> None:
    """A Ray cluster on this machine: times against fixed shares, pauses of rescales, latencies, killed raylets."""
    import importlib.util

    from geminid.cli.client import give_up

    if importlib.util.find_spec("ray") is None:
        give_up("this needs Ray: pip install 'geminid[ray]'")
    from geminid.serve.raybench import GOES_ON_S, DidNotFinish, compare, small_jobs

    sizes = whole_numbers("shares", shares, 1)
    try:
        with reporting_trouble(), error_console.status("starting …") as status:
            rows = compare(small_jobs(jobs, length), nodes=nodes, slots=slots, shares=sizes, progress=status.update)
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
    killed = (("from memory", rows[0].killed_from_memory_s), ("from its checkpoint", rows[0].killed_from_checkpoint_s))
    for whence, after in killed:
        if after:
            verdict = "[green]met[/]" if max(after) < GOES_ON_S else "[red]missed[/]"
            told = ", ".join(f"{seconds:.2f}" for seconds in after)
            console.print(
                f"{verdict}: a job trains on {told} s after a raylet is killed, {whence} (goal: {GOES_ON_S:g} s)"
            )


def scale(
    nodes: Annotated[
        str, typer.Option(help="Sizes of clusters to look at, in nodes of eight slots.")
    ] = "100,1000,10000",
    json: Json = False,
) -> None:
    """What the service costs on large clusters, from measurements of its parts; the first bottleneck."""
    from geminid.serve.scale import BRIDGE, NODE_SLOTS, measure

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
        service = sum(row.share for row in mine if not row.part.startswith(BRIDGE))
        alone = f"a core can do it for {size / mine[0].share:,.0f} nodes of {NODE_SLOTS} slots"
        console.print(f"the first bottleneck: {mine[0].part}; at these rates {alone}")
        console.print(f"and all that the service does, which is one process, for {size / service:,.0f}")
