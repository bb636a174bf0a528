"""``geminid bench service``, ``live``, ``ray`` and ``scale``: claims about the service, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median_high
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geminid.cli import ends_when_terminated
from geminid.cli.bench import Json, Quick, Target, conclude, sized, titled, whole_numbers
from geminid.cli.client import reporting_trouble
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table

if TYPE_CHECKING:
    from geminid.bench.live_fidelity import Comparison
    from geminid.bench.ray_service import Measured
    from geminid.bench.service_load import LoadResult


def service(
    submissions: Annotated[int | None, typer.Option(min=1, help="Jobs to submit.", show_default="2000")] = None,
    seconds: Annotated[float | None, typer.Option(min=1.0, help="Over how long.", show_default="60.0")] = None,
    followers: Annotated[
        int | None, typer.Option(min=0, help="Connections that follow a log meanwhile.", show_default="200")
    ] = None,
    queued: Annotated[
        int | None, typer.Option(min=1, help="Short jobs in the queue while starts are counted.", show_default="10000")
    ] = None,
    counting: Annotated[
        float | None, typer.Option(min=1.0, help="For how many seconds starts are counted.", show_default="15.0")
    ] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Submissions, followers of logs, and meanwhile the queue: its answers over HTTP, and the command itself.

    Then how many short jobs start a second while thousands wait. Ends with 1 if the queue is ever not there within a
    second, something fails or comes too late, or fewer than five jobs a second start.
    """
    from geminid.bench.service_load import GOAL_S, QUICK_LOAD, Load, run
    from geminid.bench.service_starts import GOAL_PER_S, HARD_KINDS, KINDS, measure

    full, small = Load(), QUICK_LOAD
    load = Load(
        submissions=sized(submissions, quick, small.submissions, full.submissions),
        seconds=sized(seconds, quick, small.seconds, full.seconds),
        followers=sized(followers, quick, small.followers, full.followers),
    )
    waiting, counted_s = sized(queued, quick, 500, 10_000), sized(counting, quick, 1.0, 15.0)
    with reporting_trouble(), error_console.status(f"{load.submissions} submissions in {load.seconds:g} s …") as status:
        result = run(load)
        all_starts = []
        for kind in HARD_KINDS if quick else KINDS:
            status.update(f"short jobs start while {waiting:,} {kind} ones are queued …")
            all_starts.append(measure(kind, waiting, counted_s))
    rows = [asdict(answers) for answers in result.answers]
    if json:
        shared = {name: value for name, value in asdict(result).items() if name not in ("answers", "wanted")}
        shared["starts"] = [{**asdict(starts), "per_s": starts.per_s} for starts in all_starts]
        missed = [*result.missed, *(text for starts in all_starts for text in starts.missed)]
        print_json([{**row, **shared, "missed": missed} for row in rows])
    else:
        _print_answers(rows, result, quick)
        for starts in all_starts:
            console.print(
                f"{starts.per_s:.1f} short jobs a second started with {starts.queued:,} {starts.kind} ones queued"
                f" (a decision took {starts.decision_ms:.0f} ms; {starts.cpu_ms:.0f} ms of CPU time a start)"
            )
    targets = [
        Target(
            "every request is answered, and every follower gets all lines",
            not result.failures,
            "; ".join(result.failures) or f"{result.followers_complete} followers",
            full_size=False,
        ),
        Target(
            f"all comes in time, and the queue always within {GOAL_S:g} s",
            not result.delays,
            "; ".join(result.delays) or f"{result.longest_queue_s:.2f} s at most",
        ),
        *(
            Target(
                f"at least {GOAL_PER_S:g} short jobs a second start with {starts.kind} ones queued",
                not starts.missed,
                f"{starts.per_s:.1f} a second",
            )
            for starts in all_starts
        ),
    ]
    conclude(targets, quick=quick, json=json)


def _print_answers(rows: list[dict[str, Any]], result: LoadResult, quick: bool) -> None:
    title = f"{result.jobs:,} jobs submitted in {result.seconds:.0f} s while {result.followers} followed a log"
    print_table(
        titled(title, quick),
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
    console.print(f"{result.followers_complete} of {result.followers} followers received all {result.lines} lines")
    console.print(f"`geminid queue` takes {result.command_cpu_s:.2f} s of a core by itself")


def live(
    slots: Annotated[
        int | None, typer.Option(min=1, help="CPU slots.", show_default="one per core; 4 with --waiting")
    ] = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Jobs that wait for a pretended accelerator, and need hardly any cores.")
    ] = False,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Four real jobs: live under the default policy, simulated with their profiles, and with fixed fair shares.

    Ends with 1 if the simulated completion times are off by 15 % or more on average.
    """
    import os

    from geminid.bench.live_fidelity import (
        BEFOREHAND,
        GOAL,
        QUICK_BEFOREHAND,
        compare,
        example_jobs,
        quick_jobs,
        waiting_jobs,
    )
    from geminid.bench.live_jobs import BenchmarkFailed
    from geminid.cli.client import give_up
    from geminid.cli.demo import EXAMPLES, POLICY

    if not (waiting or quick) and not (EXAMPLES / "images.py").is_file():
        give_up("this needs the examples folder of the repository: run it from a clone")
    count = slots or (2 if quick else 4 if waiting else len(os.sched_getaffinity(0)))
    jobs = quick_jobs() if quick else waiting_jobs() if waiting else example_jobs(EXAMPLES)
    beforehand = QUICK_BEFOREHAND if quick else BEFOREHAND
    try:
        with reporting_trouble(), error_console.status("starting …") as status:
            rows = compare(jobs, count, POLICY, status.update, beforehand)
    except BenchmarkFailed as problem:
        give_up(str(problem))
    error, foretold = (
        sum(errors) / len(rows) for errors in zip(*((row.error, row.foretold_error) for row in rows), strict=True)
    )
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_live(rows, count, f"live, {POLICY.partition(':')[0]}", foretold, quick)
    wanted = f"the simulated completion times are off by less than {GOAL:.0%} on average"
    conclude([Target(wanted, error < GOAL, f"{error:.0%}")], quick=quick, json=json)


def _print_live(rows: Sequence[Comparison], count: int, live_header: str, foretold: float, quick: bool) -> None:
    print_table(
        titled(f"Completion times of {len(rows)} real jobs on {count} CPU slots", quick),
        [
            Column("job", text=True),
            Column(live_header),
            Column("simulated"),
            Column("error"),
            Column("foretold", 2),
            Column("error", 2),
            Column("live, fixed shares", 1),
        ],
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


def ray(
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=8, help="Raylets, each on a loopback address of its own.", show_default="4"),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, max=64, help="CPU slots of each.", show_default="4")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Small real jobs to run each time.", show_default="12")
    ] = None,
    length: Annotated[
        float | None, typer.Option(min=0.1, help="Work of each: 1 is 12 s on one slot, for most.", show_default="3.0")
    ] = None,
    shares: Annotated[
        str | None, typer.Option(help="Fixed shares to compare with, in slots.", show_default="1,2,4")
    ] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """A Ray cluster on this machine: times against fixed shares, pauses of rescales, latencies, killed raylets.

    Ends with 1 if a job takes 5 s or more to train on after a raylet is killed. Nothing is left of the cluster,
    however the command ends.
    """
    import importlib.util

    from geminid.cli.client import give_up

    if importlib.util.find_spec("ray") is None:
        give_up("this needs Ray: pip install 'geminid[ray]'")
    from geminid.bench.live_jobs import BenchmarkFailed
    from geminid.bench.ray_service import RECOVERY_GOAL_S, compare, small_jobs

    nodes, slots = sized(nodes, quick, 1, 4), sized(slots, quick, 2, 4)
    jobs, length = sized(jobs, quick, 1, 12), sized(length, quick, 0.1, 3.0)
    sizes = whole_numbers("shares", shares or "1,2,4", 1) if shares or not quick else []
    try:
        with reporting_trouble(), error_console.status("starting …") as status, ends_when_terminated():
            work = small_jobs(jobs, length)
            rows = compare(work, nodes=nodes, slots=slots, shares=sizes, warm=not quick, progress=status.update)
    except (BenchmarkFailed, TimeoutError) as problem:
        give_up(str(problem))
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_on_ray(rows, f"{jobs} small real jobs on {nodes} raylets × {slots} CPU slots", quick)
    after = [*rows[0].killed_from_memory_s, *rows[0].killed_from_checkpoint_s]
    if after:
        wanted = f"a job trains on within {RECOVERY_GOAL_S:g} s after a raylet is killed"
        conclude([Target(wanted, max(after) < RECOVERY_GOAL_S, f"{max(after):.2f} s at most")], quick=quick, json=json)


def _print_on_ray(rows: Sequence[Measured], title: str, quick: bool) -> None:
    print_table(
        titled(title, quick),
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
            middle = median_high(pauses)
            console.print(
                f"{len(pauses)} live rescales {where}: paused {middle:.2f} s (median), at most {max(pauses):.2f} s"
            )
    killed = (("from memory", rows[0].killed_from_memory_s), ("from its checkpoint", rows[0].killed_from_checkpoint_s))
    for whence, after in killed:
        if after:
            shown = ", ".join(f"{seconds:.2f}" for seconds in after)
            console.print(f"a job trains on {shown} s after a raylet is killed, {whence}")


def scale(
    nodes: Annotated[
        str | None,
        typer.Option(help="Sizes of clusters to look at, in nodes of eight slots.", show_default="100,1000,10000"),
    ] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """What the service costs on large clusters, from measurements of its parts; the first bottleneck."""
    from geminid.bench.service_scale import BRIDGE, HEARD_S, NODE_SLOTS, QUICK_HEARD_S, measure

    sizes = whole_numbers("nodes", sized(nodes, quick, "20", "100,1000,10000"), 1)
    rows = []
    # What is measured is the time of this process: a spinner that turns fast would count as the service's.
    with error_console.status("…", refresh_per_second=1) as status:
        for size in sizes:
            rows += measure(size, status.update, heard_s=QUICK_HEARD_S if quick else HEARD_S)
    if json:
        print_json([asdict(row) for row in rows])
        return
    for size in sizes:
        mine = [row for row in rows if row.nodes == size]
        print_table(
            titled(f"{size:,} nodes, {mine[0].jobs:,} jobs: {sum(row.share for row in mine):.2f} cores in all", quick),
            ["part", "a second", "each", "share of a core"],
            [[row.part, f"{row.per_s:,.3g}", f"{row.each_ms:,.3g} ms", f"{100 * row.share:.1f} %"] for row in mine],
        )
        service = sum(row.share for row in mine if not row.part.startswith(BRIDGE))
        alone = f"a core can do it for {size / mine[0].share:,.0f} nodes of {NODE_SLOTS} slots"
        console.print(f"the first bottleneck: {mine[0].part}; at these rates {alone}")
        console.print(f"and all that the service does, which is one process, for {size / service:,.0f}")
