"""``geminid bench solver`` and ``policies``: how long decisions take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geminid.cli.bench import PEERS, Json, Quick, Seed, Target, conclude, sized, titled, whole_numbers
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table
from geminid.fields import InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.bench.decisions import DecisionRow
    from geminid.bench.policies import PolicyRow
    from geminid.bench.solver import SolverRow


def solver(
    ilp_limit: Annotated[float, typer.Option(min=0.1, help="Seconds that Sia's integer program may take.")] = 20.0,
    kinds: Annotated[
        int | None, typer.Option(min=1, help="Number of kinds of jobs; by default all jobs differ.")
    ] = None,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Time, certificate and memory of one decision from 64 to 100,000 slots, beside Sia's integer program.

    Ends with 1 if a gap is above 0.1 %, or the largest decision takes half a second or more.
    """
    from geminid.bench.solver import GOAL_GAP, GOAL_S, QUICK_SIZES, SIZES, run

    with error_console.status("solving …") as status:
        sizes = QUICK_SIZES if quick else SIZES
        rows = run(sizes=sizes, kinds=kinds, seed=seed, ilp_limit_s=ilp_limit, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_decisions(rows, ilp_limit, quick)
    gap, longest = max(row.gap for row in rows), rows[-1]
    wanted = f"a decision for {SIZES[-1][0]:,} slots and {SIZES[-1][1]:,} jobs takes less than {GOAL_S:g} s"
    targets = [
        Target(f"every gap is at most {GOAL_GAP:.1%}", gap <= GOAL_GAP, f"{100 * gap:.4f} %", full_size=False),
        Target(wanted, longest.cpu_seconds < GOAL_S, f"{longest.cpu_seconds:.3f} s of a core for {longest.slots:,}"),
    ]
    conclude(targets, quick=quick, json=json)


def _print_decisions(rows: Sequence[SolverRow], ilp_limit: float, quick: bool) -> None:
    print_table(
        titled("One decision on one core", quick),
        [
            Column("slots"),
            Column("jobs"),
            Column("types", 4),
            Column("time"),
            Column("CPU", 7),
            Column("warm", 5),
            Column("gap", 1),
            Column("memory", 9),
            Column("placing", 8),
            Column("Sia's ILP", 2),
            Column("worth of it", 6),
            Column("Pollux", 3),
        ],
        [
            [
                f"{row.slots:,}",
                f"{row.jobs:,}",
                str(row.types),
                f"{1000 * row.seconds:,.1f} ms",
                f"{1000 * row.cpu_seconds:,.1f} ms",
                f"{1000 * row.warm_seconds:,.1f} ms",
                f"{100 * row.gap:.4f} %",
                f"{row.memory_mb:,.0f} MB",
                f"{1000 * row.placement_s:,.1f} ms",
                "–" if row.ilp_s is None else f"{1000 * row.ilp_s:,.0f} ms",
                "–" if row.ilp_value_ratio is None else f"{100 * row.ilp_value_ratio:.1f} %",
                "–" if row.published_pollux_s is None else f"{row.published_pollux_s:,.0f} s",
            ]
            for row in rows
        ],
    )
    console.print(
        "Medians of five; CPU: what of the time it worked, the rest it waited for a core; warm: started from the last "
        "prices. Sia's ILP: the same utilities through HiGHS, to 0.01 %, "
        f"where it ends within {ilp_limit:g} s. Pollux: published CPU-seconds, at 64 slots with 50 jobs. "
        "Placing: after a tenth of the jobs changed."
    )


def policies(
    peers: Annotated[
        Path, typer.Option(help="Folder that holds the peers' tables; without it, jobs are synthetic.")
    ] = PEERS,
    sizes: Annotated[
        str | None,
        typer.Option(help="Numbers of jobs, separated by commas.", show_default="32,128,256,512,1024,2048,8192"),
    ] = None,
    types: Annotated[
        str | None, typer.Option(help="Numbers of GPU types, separated by commas.", show_default="3,8")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy (repeatable).")] = None,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Time of one solve of the policies over time fractions as jobs grow, beside the published code's.

    And of whole decisions of other policies. Ends with 1 if one of these takes a second or more for 1,000 jobs.
    """
    from geminid.bench import decisions
    from geminid.bench.gavel import TABLE
    from geminid.bench.policies import CASES, SIZES, run

    of_solves = sizes is not None or types is not None  # whole decisions have a size of their own
    names = [*(case.name for case in CASES), *decisions.POLICIES]
    unknown = [name for name in policy or () if name not in names]
    if unknown:
        raise InvalidInput([Problem("policy", name, f"must be one of {', '.join(names)}") for name in unknown])
    numbers = {
        "sizes": whole_numbers("sizes", sized(sizes, quick, "32", ",".join(map(str, SIZES))), 1),
        "types": whole_numbers("types", sized(types, quick, "3", "3,8"), 1),
    }
    with error_console.status("solving …") as status:
        rows = run(
            peers=peers if (peers / TABLE).is_file() else None,
            sizes=numbers["sizes"],
            types=numbers["types"],
            policies=policy,
            seed=seed,
            progress=status.update,
        )
        decided = decisions.run(
            jobs=decisions.QUICK_JOBS if quick else decisions.JOBS,
            cluster=decisions.QUICK_CLUSTER if quick else decisions.CLUSTER,
            policies=[name for name in decisions.POLICIES if (not of_solves if policy is None else name in policy)],
            seed=seed,
            progress=status.update,
        )
    if json:
        print_json([*map(asdict, rows), *map(asdict, decided)])
    else:
        if rows:
            _print_solves(rows, quick)
        _print_whole_decisions(decided, quick)
    if decided:
        slowest = max(decided, key=lambda row: max(row.first_s, row.later_s))
        wanted = f"every policy decides about {slowest.jobs:,} jobs on {slowest.slots:,} slots in under a CPU-second"
        seen = max(slowest.first_s, slowest.later_s)
        target = Target(wanted, seen < decisions.GOAL_S, f"{slowest.policy}: {seen:.2f} s")
        conclude([target], quick=quick, json=json)


def _print_whole_decisions(rows: Sequence[DecisionRow], quick: bool) -> None:
    if rows:
        print_table(
            titled(f"CPU time of decisions about {rows[0].jobs:,} jobs on {rows[0].slots:,} slots in racks", quick),
            [Column("policy", text=True), Column("models"), Column("first"), Column("slowest later")],
            [
                [row.policy, *(f"{1000 * seconds:,.0f} ms" for seconds in (row.models_s, row.first_s, row.later_s))]
                for row in rows
            ],
        )
        console.print(
            "Models: one fit for each new job and GPU type, once. First: all jobs are new. Later: all running jobs "
            "have reported, ten have ended and ten have come."
        )


def _print_solves(rows: Sequence[PolicyRow], quick: bool) -> None:
    print_table(
        titled("One solve, from the problem to every job's time fractions", quick),
        [
            Column("policy", text=True, least=24),
            Column("input", 5, text=True),
            Column("types", 1),
            Column("jobs"),
            Column("CPU"),
            Column("wall", 9),
            Column("warm CPU", 4),
            Column("cold/warm", 6),
            Column("published CPU", 3),
            Column("faster", 2),
            Column("objective", 7),
            Column("notes", 8, text=True, least=12),
        ],
        [
            [
                row.policy,
                row.input,
                str(row.types),
                f"{row.jobs:,}",
                f"{1000 * row.cpu_s:,.1f} ms",
                f"{1000 * row.wall_s:,.1f} ms",
                "–" if row.warm_cpu_s is None else f"{1000 * row.warm_cpu_s:,.1f} ms",
                "–" if row.warm_times_faster is None else f"{row.warm_times_faster:.1f}×",
                "–" if row.published_cpu_s is None else f"{1000 * row.published_cpu_s:,.0f} ms",
                "–" if row.times_faster is None else f"{row.times_faster:,.0f}×",
                f"{row.objective:.5g}",
                ", ".join(row.notes) or "–",
            ]
            for row in rows
        ],
    )
    console.print(
        "Medians of five (of fewer where they take seconds), cold and warm in turns. Single-GPU jobs, three quarters "
        "as many GPUs. Warm: from what is kept of the last round's solve, when one job in 32 was another. Published: "
        "ECOS, one thread, from scratch."
    )
