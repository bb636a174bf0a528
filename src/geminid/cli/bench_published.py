"""``geminid bench quality`` and ``fidelity``: our policies beside published systems and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geminid.cli.bench import PEERS, Json, Peers, Quick, Seed, Target, conclude, sized, skip, titled
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table

if TYPE_CHECKING:
    from geminid.bench.claims import Claim
    from geminid.bench.quality import QualityRow


def quality(
    peers: Peers = PEERS,
    policy: Annotated[str, typer.Option(help="The policy to judge, with its options.")] = "geminid",
    workload: Annotated[
        list[str] | None, typer.Option(help="Only workloads whose names begin so (philly, saturn-1, pollux, day-2, …).")
    ] = None,
    wrong_estimates: Annotated[bool, typer.Option(help="Also with wrong estimates and with none.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Also every job alone on the cluster: what can be won.")
    ] = False,
    baseline_json: Annotated[
        Path | None, typer.Option(help="Where results of the baselines are kept between runs.")
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=0, help="For each workload, this many more with its jobs and arrivals resampled.")
    ] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Simulations at a time.")] = 1,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """The geminid policy against Sia and Pollux on their own workloads, at equal cost of changes and live.

    Ends with 1 if the mean JCT is, over the workloads, less than 10 % below at equal cost, or less than 30 % live.
    """
    from geminid.bench.quality import EQUAL, GOAL_EQUAL, GOAL_LIVE, LIVE, QUICK_CASES, mean_change, run

    with error_console.status("simulating …") as status:
        rows = run(
            peers,
            policy=policy,
            only=workload or [],
            known=QUICK_CASES if quick and not workload else None,
            wrong_estimates=wrong_estimates,
            alone=alone,
            baselines=baseline_json,
            seed=seed,
            progress=status.update,
            resamples=resamples,
            workers=workers,
        )
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_quality(rows, policy, quick)
    targets = []
    for way, goal, name in ((EQUAL, GOAL_EQUAL, "at equal cost of changes"), (LIVE, GOAL_LIVE, "live")):
        change = mean_change(rows, way)
        wanted = f"the mean JCT {name} is, over the workloads, at least {-goal:.0%} below the baselines'"
        targets.append(Target(wanted, change <= goal, f"{100 * change:+.1f} %"))
    conclude(targets, quick=quick, json=json)


def _print_quality(rows: Sequence[QualityRow], policy: str, quick: bool) -> None:
    for way in dict.fromkeys(row.way for row in rows):
        print_table(
            titled(f"{policy}, {way}, against the baseline at cold cost", quick),
            [
                Column("workload", text=True, least=12),
                Column("baseline", 5, text=True),
                Column("avg JCT", 4),
                Column("avg"),
                Column("median", 1),
                Column("p99", 2),
                Column("makespan", 3),
                Column("worst FTF", 6),
                Column("rescales", 7),
                Column("theirs", 8),
            ],
            [
                [
                    row.workload,
                    row.baseline,
                    f"{row.avg_jct_s:,.0f} s",
                    *(
                        "–" if x is None else f"[{'green' if x <= 0 else 'red'}]{100 * x:+.1f} %[/]"
                        for x in (row.avg_jct, row.median_jct, row.p99_jct, row.makespan, row.worst_ftf)
                    ),
                    f"{row.rescales_per_job:.1f}",
                    f"{row.baseline_rescales_per_job:.1f}",
                ]
                for row in rows
                if row.way == way
            ],
        )


def fidelity(
    peers: Peers = PEERS,
    policy: Annotated[str | None, typer.Option(help="Only this policy.")] = None,
    workload: Annotated[str | None, typer.Option(help="Only workloads with this in their path, such as gavel.")] = None,
    figure_8: Annotated[
        bool, typer.Option("--figure8", help="Add Gavel's Figure 8 at 4.4 jobs an hour (6,500 jobs: minutes).")
    ] = False,
    options: Annotated[str, typer.Option(help="Options for every policy, as after the colon of its name.")] = "",
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="From that seed on, this many: means, for policies that draw at random.")
    ] = 1,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Mean JCTs and makespans of the policies on their authors' own workloads, beside the published ones.

    And what else their papers claim, without being judged: Shockwave's table, and figures of AntMan, SLAQ, Dally and of
    Gandiva with slices. Exits with 1 if any that is judged is further off than allowed.
    """
    from geminid.bench.claims import claims
    from geminid.bench.fidelity import QUICK_WORKLOAD, has, run

    if quick and not (peers / QUICK_WORKLOAD).is_file():
        skip(f"nothing to compare with, for {peers / QUICK_WORKLOAD} is not there", json=json)
        return
    with error_console.status("simulating …") as status:
        beyond = [] if quick or workload else list(claims(peers, policy, status.update))
        rows = []
        if not beyond or has(peers, policy, figure_8=figure_8):
            rows = run(
                peers,
                only=policy,
                workload=sized(workload, quick, QUICK_WORKLOAD, None),
                figure_8=figure_8,
                options=options,
                seeds=range(seed, seed + seeds),
                progress=status.update,
            )
    if json:
        print_json([*map(asdict, rows), *map(asdict, beyond)])
    elif rows:
        print_table(
            titled("Mean JCTs and makespans, published and ours", quick),
            [
                Column("policy", text=True, least=12),
                Column("workload", text=True, least=14),
                Column("metric", 2, text=True),
                Column("published", 1),
                Column("ours", 1),
                *([Column("range", 4)] if seeds > 1 else []),
                Column("difference"),
                Column("allowed", 3),
            ],
            [
                [
                    row.policy,
                    row.workload,
                    row.metric.replace("_", " "),
                    f"{row.published_s:,.1f} s",
                    f"{row.ours_s:,.1f} s",
                    *([f"{row.lowest_s:,.0f} – {row.highest_s:,.0f} s"] if seeds > 1 else []),
                    f"[{'green' if row.within else 'red'}]{100 * row.difference:+.1f} %[/]",
                    f"± {100 * row.tolerance:.0f} %",
                ]
                for row in rows
            ],
        )
    if beyond and not json:
        _print_claims(beyond)
    verdicts = [row.within for row in rows] + [claim.within for claim in beyond if claim.within is not None]
    if not verdicts:
        (error_console if json else console).print("nothing is judged: no figure here has a bound to be met")
        return
    seen = f"{sum(verdicts)} of {len(verdicts)}"
    wanted = "every figure is as near to the published one as is allowed"
    conclude([Target(wanted, all(verdicts), seen, full_size=False)], quick=quick, json=json)


def _print_claims(rows: Sequence[Claim]) -> None:
    """Figures beside each other, and whether ours is as it should be, where something is asked for."""
    from geminid.bench.claims import notes

    colours = {True: "green", False: "red", None: "default"}
    print_table(
        "What else papers claim, and what we see",
        [
            Column("policy", text=True, least=12),
            Column("workload", 4, text=True, least=14),
            Column("figure", text=True, least=16),
            Column("published", 1),
            Column("ours", 1),
        ],
        [
            [
                row.policy,
                row.workload,
                row.figure,
                _figure(row.published, row.unit),
                f"[{colours[row.within]}]{_figure(row.ours, row.unit)}[/]",
            ]
            for row in rows
        ],
    )
    for note in notes(rows):
        console.print(note, markup=False)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} s" if unit == "s" else f"{value:.1f} %" if unit == "%" else f"{value:.2f}"
