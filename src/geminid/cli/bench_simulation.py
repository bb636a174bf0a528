"""``geminid bench simulator``, ``sharing``, ``entities`` and ``objectives``: claims that simulations show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from geminid.cli.bench import PEERS, Json, Peers, Quick, Seed, Target, conclude, sized, titled
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table
from geminid.fields import InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.bench.entities import EntityRow
    from geminid.bench.sharing import SharingRow
    from geminid.bench.simulator import SimulatorRow


def simulator(
    peers: Peers = PEERS,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """CPU time of the simulator as workloads grow, and beside Sia's own simulator on its own workloads.

    And of the same simulations in one rack and in several. Ends with 1 if 960 jobs over 48 hours on 64 slots take 2 s
    or more, or the network model takes more than 20 % of the time of the rest.
    """
    from geminid.bench.simulator import (
        GENERATED,
        GOAL_CASE,
        GOAL_S,
        MOST_NETWORK_COST,
        ON_NETWORKS,
        QUICK_GENERATED,
        QUICK_ON_NETWORKS,
        network_costs,
        run,
        run_on_networks,
    )

    with error_console.status("simulating …") as status:
        cases = QUICK_GENERATED if quick else GENERATED
        rows = run(cases=cases, peers=None if quick else peers, seed=seed, progress=status.update)
        on_networks = QUICK_ON_NETWORKS if quick else ON_NETWORKS
        networks = run_on_networks(cases=on_networks, seed=seed, progress=status.update)
    if json:
        print_json([asdict(row) for row in [*rows, *(row for case in networks for row in case)]])
    else:
        _print_simulations(rows, quick)
        _print_networks(networks, quick)
    reference = [row.cpu_s for row in rows if (row.policy, row.jobs, row.slots) == GOAL_CASE]
    wanted = "960 jobs over 48 hours on 64 slots take less than 2 s of a core with a cheap policy"
    seen = f"{reference[0]:.2f} s" if reference else "not run"
    costs = network_costs(networks)
    targets = [
        Target(wanted, bool(reference) and reference[0] < GOAL_S, seen),
        Target(
            f"over the policies, the network model takes at most {MOST_NETWORK_COST:.0%} of the CPU time of the rest",
            max(costs.values()) <= MOST_NETWORK_COST,
            ", ".join(f"{name} {100 * cost:.1f} %" for name, cost in costs.items()),
        ),
    ]
    conclude(targets, quick=quick, json=json)


def _print_networks(networks: Sequence[Sequence[SimulatorRow]], quick: bool) -> None:
    from geminid.bench.simulator import network_cost

    print_table(
        titled("The same jobs in one rack and in several", quick),
        [
            Column("policy", text=True),
            Column("nodes", text=True),
            Column("simulated", 2),
            Column("events", 1),
            Column("CPU"),
            Column("µs/event"),
            Column("network model"),
        ],
        [
            [
                row.policy,
                row.workload,
                f"{row.simulated_hours:,.0f} h",
                f"{row.events:,}",
                f"{row.cpu_s:.2f} s",
                f"{row.microseconds_per_event:.0f}",
                f"{100 * network_cost([row]):.1f} %",
            ]
            for rows in networks
            for row in rows
        ],
    )
    console.print(
        "Network model: its CPU time by that of the rest of the simulation, which FIFO makes next to nothing. Jobs are "
        "slower in racks, so that more of them wait at a time: decisions cost more, too."
    )


def _print_simulations(rows: Sequence[SimulatorRow], quick: bool) -> None:
    print_table(
        titled("Simulations on one core", quick),
        [
            Column("policy", text=True),
            Column("workload", text=True, least=12),
            Column("jobs", 1),
            Column("slots", 4),
            Column("simulated", 6),
            Column("events", 7),
            Column("CPU"),
            Column("µs/event", 5),
            Column("h/CPU-s", 8),
            Column("Sia's own", 3),
            Column("faster", 2),
        ],
        [
            [
                row.policy,
                row.workload,
                f"{row.jobs:,}",
                f"{row.slots:,}",
                f"{row.simulated_hours:,.0f} h",
                f"{row.events:,}",
                f"{row.cpu_s:.2f} s",
                f"{row.microseconds_per_event:.0f}",
                f"{row.simulated_hours_per_s:,.2f}",
                "–" if row.sia_simulator_cpu_s is None else f"{row.sia_simulator_cpu_s:.0f} s",
                "–" if row.times_faster is None else f"{row.times_faster:,.1f}×",
            ]
            for row in rows
        ],
    )
    console.print("Sia's own: CPU time of its simulator with its own policy, whatever policy the row has.")


def sharing(
    cluster: Annotated[
        list[str] | None, typer.Option(help="Only on this cluster, such as h200:1x4 (repeatable).")
    ] = None,
    rescale: Annotated[
        float | None, typer.Option(min=0.0, help="What a change costs in seconds (the profiles').")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Workloads drawn; the figures are means over them.", show_default="4")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Jobs of each, over an hour.", show_default="40")] = None,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """What two jobs on the same slots bring to the geminid policy, for jobs that keep or choose their batch size.

    Ends with 1 if sharing does not lower the mean JCT of jobs that keep their batch size.
    """
    from geminid.bench.sharing import CLUSTERS, run
    from geminid.job import Adaptivity

    clusters = cluster or (CLUSTERS[:1] if quick else CLUSTERS)
    seeds, jobs = sized(seeds, quick, 1, 4), sized(jobs, quick, 12, 40)
    with error_console.status("simulating …") as status:
        rows = run(clusters=clusters, rescale_s=rescale, seeds=range(1, seeds + 1), jobs=jobs, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_sharing(rows, seeds, quick)
    kept = [row.avg_jct for row in rows if row.jobs != Adaptivity.ADAPTIVE.value]
    wanted = "sharing lowers the mean JCT of jobs that keep their batch size on every cluster"
    seen = ", ".join(f"{100 * change:+.0f} %" for change in kept)
    conclude([Target(wanted, all(change < 0 for change in kept), seen)], quick=quick, json=json)


def _print_sharing(rows: Sequence[SharingRow], seeds: int, quick: bool) -> None:
    print_table(
        titled(f"The geminid policy with sharing against without, mean of {seeds} drawn", quick),
        [
            Column("jobs", text=True),
            Column("cluster", text=True),
            Column("alone", 5),
            Column("avg JCT"),
            Column("worst", 6),
            Column("median", 1),
            Column("p99", 2),
            Column("makespan", 3),
            Column("worst FTF", 4),
            Column("rescales", 7),
        ],
        [
            [
                row.jobs,
                row.cluster,
                f"{row.alone_avg_jct_s:,.0f} s",
                *(
                    f"{100 * value:+.0f} %"
                    for value in (
                        row.avg_jct,
                        row.worst_avg_jct,
                        row.median_jct,
                        row.p99_jct,
                        row.makespan,
                        row.worst_ftf,
                    )
                ),
                f"{row.alone_rescales_per_job:.1f} → {row.rescales_per_job:.1f}",
            ]
            for row in rows
        ],
    )


def entities(
    load: Annotated[float | None, typer.Option(min=0.01, help="Scales the number of jobs.", show_default="4.0")] = None,
    round_s: Annotated[float, typer.Option("--round", min=1.0, help="Seconds of a round.")] = 60.0,
    seeds: Annotated[int, typer.Option(min=1, help="Workloads drawn; slot time is added up over them.")] = 1,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Do teams and the people in them get the parts that their weights say, while all want more?

    Ends with 1 if somebody's part is off by more than three points.
    """
    from geminid.bench.entities import GOAL, POLICY, run

    with error_console.status("simulating …") as status:
        loaded = sized(load, quick, 1.0, 4.0)
        rows = run(load=loaded, round_s=round_s, seeds=range(seeds), progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_entities(rows, f"Slot time under {POLICY}, in rounds of {round_s:g} s", quick)
    off = max(abs(row.part - row.expected) for row in rows)
    wanted = f"nobody's part is more than {100 * GOAL:g} points off what the weights say"
    conclude([Target(wanted, off <= GOAL, f"{100 * off:.1f} points at most")], quick=quick, json=json)


def _print_entities(rows: Sequence[EntityRow], title: str, quick: bool) -> None:
    print_table(
        titled(f"{title}, until somebody has too little left to do", quick),
        ["entity", "weight", "slot-hours", "part", "by weights", "difference"],
        [
            [
                row.entity,
                f"{row.weight:g}",
                f"{row.slot_hours:,.1f}",
                f"{row.part:.1%}",
                f"{row.expected:.1%}",
                f"{100 * (row.part - row.expected):+.1f} points",
            ]
            for row in rows
        ],
    )


def objectives(
    workload: Annotated[str, typer.Option(help="A built-in workload (see `geminid workloads`).")] = "small",
    load: Annotated[float | None, typer.Option(min=0.01, help="Scales its arrivals.", show_default="1.0")] = None,
    objective: Annotated[str | None, typer.Option(help="Only this objective, such as 'makespan'.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Workloads drawn; the figures are means over them.")] = 1,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """What knowing GPU types, sharing slots and jobs that tune themselves bring to each of Gavel's objectives."""
    from geminid.bench.objectives import CLUSTER, FAIR, OBJECTIVES, run

    if objective is not None and objective not in OBJECTIVES:
        raise InvalidInput([Problem("objective", objective, f"must be one of: {', '.join(OBJECTIVES)}")])
    with error_console.status("simulating …") as status:
        rows = run(
            workload=workload,
            load=sized(load, quick, 0.25, 1.0),
            seeds=range(seeds),
            only=sized(objective, quick, FAIR, None),
            progress=status.update,
        )
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        titled(f"Gavel's objectives on the workload {workload} ({CLUSTER}), mean of {seeds} drawn", quick),
        [
            Column("objective", text=True, least=16),
            Column("step", text=True, least=16),
            Column("policy", 5, text=True, least=16),
            Column("avg JCT"),
            Column("makespan", 2),
            Column("GPU-h", 4),
            Column("JCT / aware", 1),
            Column("of one", 6),
            Column("makespan / fair", 3),
        ],
        [
            [
                row.objective,
                row.step,
                row.policy,
                f"{row.avg_jct_s / 3600:.2f} h",
                f"{row.makespan_s / 3600:.2f} h",
                f"{row.gpu_hours:,.0f}",
                f"{row.jct_to_aware:.2f}",
                f"{row.jct_to_aware_lowest:.2f} … {row.jct_to_aware_highest:.2f}",
                "–" if row.makespan_to_fair is None else f"{row.makespan_to_fair:.2f}",
            ]
            for row in rows
        ],
    )
