"""``geminid bench``: the claims about accuracy and speed, each as a command that measures it now."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geminid.cli.output import console, error_console, print_json, print_table
from geminid.fields import InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.bench.model import ModelReport

app = typer.Typer(
    help="Measure the claims about accuracy and speed, on this machine, now.",
    no_args_is_help=True,
    add_completion=False,
)

PEERS = Path("../shared/peers")

Json = Annotated[bool, typer.Option("--json", help="Print a list of rows for programs instead of tables.")]
Peers = Annotated[Path, typer.Option(help="Folder that holds the peers' workloads, profiles and tables.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


@app.command()
def model(
    profiles: Annotated[
        Path,
        typer.Option(
            help="Folder of measured step times: one folder per application with placements*.csv and "
            "scalability*.csv, as Pollux and Sia publish them.",
            show_default=False,
        ),
    ],
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Error of predicted step times on configurations held out from the fit: Pollux's model beside ours."""
    from geminid.bench.model import run
    from geminid.sim.measurements import load_measurements

    measured = load_measurements(profiles)
    with error_console.status("fitting …") as status:
        report = run(measured, seed=seed, progress=status.update)
    if json:
        print_json(
            [{"table": "applications", **asdict(row)} for row in report.applications]
            + [{"table": "held_out", **asdict(row)} for row in report.protocols]
            + [{"table": "transfer", **asdict(row)} for row in report.transfers]
            + [{"table": "excluded", **asdict(row)} for row in report.excluded]
        )
    else:
        _print_model_report(report)


def _print_model_report(report: ModelReport) -> None:
    if report.applications or report.protocols:
        _print_errors(report)
    for row in report.applications:
        if row.why:
            console.print(f"[bold]{row.application} on {row.gpu_type}[/] is hard to predict: {row.why}.")
    for left_out in report.excluded:
        console.print(f"[bold]{left_out.application} on {left_out.gpu_type}[/] is left out: {left_out.why}.")


def _print_errors(report: ModelReport) -> None:
    print_table(
        "Error of the predicted step time on placements held out from the fit",
        ["application", "GPU type", "rows", "Pollux mean", "p95", "ours mean", "p95"],
        [
            [
                row.application,
                row.gpu_type,
                str(row.configurations),
                _percent(row.pollux_mean),
                _percent(row.pollux_p95),
                _better(row.geminid_mean, row.pollux_mean),
                _percent(row.geminid_p95),
            ]
            for row in report.applications
        ],
        text_columns=2,
    )
    print_table(
        "The same by what is held out (mean and median over applications and types)",
        ["held out", "Pollux mean", "median", "ours mean", "median"],
        [
            [
                row.held_out,
                _percent(row.pollux_mean),
                _percent(row.pollux_median),
                _better(row.geminid_mean, row.pollux_mean),
                _percent(row.geminid_median),
            ]
            for row in report.protocols
        ],
    )
    if report.transfers:
        print_table(
            "Several slots of a GPU type known only by a one-slot profile, from another type's fit (all pairs)",
            ["rule", "mean", "median"],
            [[row.rule, _percent(row.mean), _percent(row.median)] for row in report.transfers],
        )


@app.command()
def table(
    jobs: Annotated[int, typer.Option(min=10, help="Jobs in the table.")] = 10_000,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Time to compute the goodput table, against plain loops over jobs and configurations."""
    from geminid.bench.table import run

    with error_console.status("computing tables …"):
        rows = run(jobs=jobs, seed=seed)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"Goodput table of {jobs:,} jobs × {rows[0].configurations} configurations × {rows[0].batch_sizes} batch sizes",
        [
            "model",
            "table",
            "CPU",
            "plain loop",
            "faster",
            "numpy per cell",
            "faster",
            "refresh of 1 %",
            "largest difference",
        ],
        [
            [
                row.model,
                f"{row.seconds:.2f} s",
                f"{row.cpu_s:.2f} s",
                f"{row.plain_loop_s:,.0f} s",
                f"{row.times_faster_than_plain_loop:,.0f}×",
                f"{row.grid_loop_s:,.0f} s",
                f"{row.times_faster_than_grid_loop:,.0f}×",
                f"{1000 * row.refresh_one_percent_s:.0f} ms",
                f"{row.largest_difference:.0e}",
            ]
            for row in rows
        ],
    )
    console.print("Medians of five. The loops are timed on a sample of the same jobs in this run and extrapolated.")


@app.command()
def fit(
    jobs: Annotated[int, typer.Option(min=10, help="Jobs to refit.")] = 1_000,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """CPU time to refit many jobs, against scipy's general minimiser with numerical gradients."""
    from geminid.bench.fit import run

    with error_console.status("fitting …"):
        rows = run(jobs=jobs, seed=seed)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"Refit of {jobs:,} jobs with {rows[0].observations_per_job} measured configurations each",
        ["model", "ours, CPU", "scipy minimise, CPU", "faster", "mean loss", "scipy's", "worst excess"],
        [
            [
                row.model,
                f"{row.cpu_s:.2f} s",
                "–" if row.scipy_cpu_s is None else f"{row.scipy_cpu_s:,.1f} s",
                "–" if row.times_faster is None else f"{row.times_faster:,.0f}×",
                "–" if row.mean_loss is None else f"{row.mean_loss:.5f}",
                "–" if row.scipy_mean_loss is None else f"{row.scipy_mean_loss:.5f}",
                "–" if row.worst_loss_excess is None else f"{row.worst_loss_excess:+.0e}",
            ]
            for row in rows
        ],
    )
    console.print("scipy (L-BFGS-B, numerical gradients, the same loss) is timed on a sample in this run.")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _better(ours: float, theirs: float) -> str:
    return f"[green]{_percent(ours)}[/]" if ours < theirs else _percent(ours)


@app.command()
def simulator(
    peers: Peers = PEERS,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """CPU time of the simulator as workloads grow, and beside Sia's own simulator on its own workloads."""
    from geminid.bench.simulator import run

    with error_console.status("simulating …") as status:
        rows = run(peers=peers, seed=seed, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        "Simulations on one core",
        [
            "policy",
            "workload",
            "jobs",
            "slots",
            "simulated",
            "events",
            "CPU",
            "µs/event",
            "h/CPU-s",
            "Sia's own",
            "faster",
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


@app.command()
def solver(
    ilp_limit: Annotated[float, typer.Option(min=0.1, help="Seconds that Sia's integer program may take.")] = 20.0,
    kinds: Annotated[int | None, typer.Option(min=1, help="Jobs of so many kinds; by default all differ.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Time, certificate and memory of one decision from 64 to 100,000 slots, beside Sia's integer program."""
    from geminid.bench.solver import run

    with error_console.status("solving …") as status:
        rows = run(kinds=kinds, seed=seed, ilp_limit_s=ilp_limit, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        "One decision on one core",
        [
            "slots",
            "jobs",
            "types",
            "time",
            "CPU",
            "warm",
            "gap",
            "memory",
            "placing",
            "Sia's ILP",
            "worth of it",
            "Pollux",
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
                "–" if row.ilp_value_ratio is None else _percent(row.ilp_value_ratio),
                "–" if row.published_pollux_s is None else f"{row.published_pollux_s:,.0f} s",
            ]
            for row in rows
        ],
        text_columns=0,
    )
    console.print(
        "Medians of five; CPU: what of the time it worked, the rest it waited for a core; warm: started from the last "
        "prices. Sia's ILP: the same utilities through HiGHS, to 0.01 %, "
        f"where it ends within {ilp_limit:g} s. Pollux: published CPU-seconds, at 64 slots with 50 jobs. "
        "Placing: after a tenth of the jobs changed."
    )


@app.command()
def policies(
    peers: Annotated[
        Path, typer.Option(help="Folder that holds the peers' tables; without it, jobs are synthetic.")
    ] = PEERS,
    sizes: Annotated[str, typer.Option(help="Numbers of jobs, separated by commas.")] = "32,128,256,512,1024,2048,8192",
    types: Annotated[str, typer.Option(help="Numbers of GPU types, separated by commas.")] = "3,8",
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy (repeatable).")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Time of one solve of the policies over time fractions as jobs grow, beside the published code's."""
    from geminid.bench.gavel import TABLE
    from geminid.bench.policies import CASES, run
    from geminid.fields import InvalidInput, Problem

    names = [case.name for case in CASES]
    unknown = [name for name in policy or () if name not in names]
    if unknown:
        raise InvalidInput([Problem("policy", name, f"must be one of {', '.join(names)}") for name in unknown])
    numbers = {"sizes": whole_numbers("sizes", sizes, 1), "types": whole_numbers("types", types, 1)}
    with error_console.status("solving …") as status:
        rows = run(
            peers=peers if (peers / TABLE).is_file() else None,
            sizes=numbers["sizes"],
            types=numbers["types"],
            policies=policy,
            seed=seed,
            progress=status.update,
        )
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        "One solve, from the problem to every job's time fractions",
        [
            "policy",
            "input",
            "types",
            "jobs",
            "CPU",
            "wall",
            "warm CPU",
            "cold/warm",
            "published CPU",
            "faster",
            "objective",
            "notes",
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
        text_columns=2,
    )
    console.print(
        "Medians of five (of fewer where they take seconds), cold and warm in turns. Single-GPU jobs, three quarters "
        "as many GPUs. Warm: from what is kept of the last round's solve, when one job in 32 was another. Published: "
        "ECOS, one thread, from scratch."
    )


@app.command()
def estimation(
    peers: Peers = PEERS,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Instead, what estimates in place of measured pairs do to JCTs.")
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Error of estimated throughputs of unseen jobs, alone and beside others, on entries held out of Gavel's tables."""
    from geminid.bench.estimation import run

    if simulate:
        _consequences(peers, seed, json=json)
        return
    with error_console.status("estimating …"):
        rows = run(peers, seed=seed)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        "Error of estimated throughputs on held-out entries",
        ["estimated", "unseen", "measured", "method", "mean error", "wrong whether they fit", "entries"],
        [
            [
                row.estimated,
                row.unseen,
                row.measured,
                row.method,
                _percent(row.mean_error),
                "–" if row.wrong_fit is None else _percent(row.wrong_fit),
                f"{row.entries:,}",
            ]
            for row in rows
        ],
        text_columns=4,
    )
    console.print(
        "Errors of pairs are in points of the throughput alone; those of GPU types relative to the true value."
    )


def _consequences(peers: Path, seed: int, *, json: bool) -> None:
    """What it does to a policy that shares slots if not all pairs have been measured."""
    from geminid.bench.estimation import consequences

    with error_console.status("simulating …") as status:
        rows = consequences(peers, seed=seed, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        "Pairs measured beforehand, the others estimated until they have run together",
        ["trace", "policy", "measured", "avg JCT", "makespan", "JCT to all measured"],
        [
            [
                row.trace,
                row.policy,
                "no sharing" if row.profiled is None else f"{100 * row.profiled:.0f} %",
                f"{row.avg_jct_s / 3600:.2f} h",
                f"{row.makespan_s / 3600:.2f} h",
                f"{100 * row.to_all_known:+.1f} %",
            ]
            for row in rows
        ],
        text_columns=2,
    )
    console.print("Half of the kinds of jobs are references, measured beside each other in any case.")


def whole_numbers(name: str, text: str, smallest: int) -> list[int]:
    """Numbers separated by commas, or a sentence on what is wrong with them."""
    from geminid.fields import InvalidInput, Problem

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) >= smallest for part in parts):
        raise InvalidInput([Problem(name, text, f"must be whole numbers of at least {smallest}, separated by commas")])
    return [int(part) for part in parts]


@app.command()
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
        int, typer.Option(min=0, help="For each workload, so many more with its jobs and arrivals drawn anew.")
    ] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Simulations at a time.")] = 1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The geminid policy against Sia and Pollux on their own workloads, at equal cost of changes and live."""
    from geminid.bench.quality import run

    with error_console.status("simulating …") as status:
        rows = run(
            peers,
            policy=policy,
            only=workload or [],
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
        return
    for way in dict.fromkeys(row.way for row in rows):
        print_table(
            f"{policy}, {way}, against the baseline at cold cost",
            ["workload", "baseline", "avg JCT", "avg", "median", "p99", "makespan", "worst FTF", "rescales", "theirs"],
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
            text_columns=2,
        )


@app.command()
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
    json: Json = False,
) -> None:
    """Mean JCTs and makespans of the policies on their authors' own workloads, beside the published ones.

    Exits with 1 if any is further off than allowed.
    """
    from geminid.bench.fidelity import run

    with error_console.status("simulating …") as status:
        rows = run(
            peers,
            only=policy,
            workload=workload,
            figure_8=figure_8,
            options=options,
            seeds=range(seed, seed + seeds),
            progress=status.update,
        )
    if json:
        print_json([asdict(row) for row in rows])
    else:
        print_table(
            "Mean JCTs and makespans, published and ours",
            [
                "policy",
                "workload",
                "metric",
                "published",
                "ours",
                *(["range"] if seeds > 1 else []),
                "difference",
                "allowed",
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
            text_columns=3,
        )
    if not all(row.within for row in rows):
        raise typer.Exit(1)


@app.command()
def sharing(
    cluster: Annotated[
        list[str] | None, typer.Option(help="Only on this cluster, such as h200:1x4 (repeatable).")
    ] = None,
    rescale: Annotated[
        float | None, typer.Option(min=0.0, help="What a change costs in seconds (the profiles').")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Workloads drawn; the figures are means over them.")] = 4,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs of each, over an hour.")] = 40,
    json: Json = False,
) -> None:
    """What two jobs on the same slots bring to the geminid policy, for jobs that keep or choose their batch size."""
    from geminid.bench.sharing import CLUSTERS, run

    clusters = cluster or CLUSTERS
    with error_console.status("simulating …") as status:
        rows = run(clusters=clusters, rescale_s=rescale, seeds=range(1, seeds + 1), jobs=jobs, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"The geminid policy with sharing against without, mean of {seeds} drawn",
        ["jobs", "cluster", "alone", "avg JCT", "worst", "median", "p99", "makespan", "worst FTF", "rescales"],
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
        text_columns=2,
    )


@app.command()
def entities(
    load: Annotated[float, typer.Option(min=0.01, help="Scales the number of jobs.")] = 4.0,
    round_s: Annotated[float, typer.Option("--round", min=1.0, help="Seconds of a round.")] = 60.0,
    seeds: Annotated[int, typer.Option(min=1, help="Workloads drawn; slot time is added up over them.")] = 1,
    json: Json = False,
) -> None:
    """Do teams and the people in them get the parts that their weights say, while all want more?"""
    from geminid.bench.entities import POLICY, run

    with error_console.status("simulating …") as status:
        rows = run(load=load, round_s=round_s, seeds=range(seeds), progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"Slot time under {POLICY}, in rounds of {round_s:g} s, until somebody has too little left to do",
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


@app.command()
def objectives(
    workload: Annotated[str, typer.Option(help="A built-in workload (see `geminid workloads`).")] = "small",
    load: Annotated[float, typer.Option(min=0.01, help="Scales its arrivals.")] = 1.0,
    objective: Annotated[str | None, typer.Option(help="Only this objective, such as 'makespan'.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Workloads drawn; the figures are means over them.")] = 1,
    json: Json = False,
) -> None:
    """What knowing GPU types, sharing slots and jobs that tune themselves bring to each of Gavel's objectives."""
    from geminid.bench.objectives import CLUSTER, OBJECTIVES, run

    if objective is not None and objective not in OBJECTIVES:
        raise InvalidInput([Problem("objective", objective, f"must be one of: {', '.join(OBJECTIVES)}")])
    with error_console.status("simulating …") as status:
        rows = run(workload=workload, load=load, seeds=range(seeds), only=objective, progress=status.update)
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        f"Gavel's objectives on the workload {workload} ({CLUSTER}), mean of {seeds} drawn",
        ["objective", "step", "policy", "avg JCT", "makespan", "GPU-h", "JCT / aware", "of one", "makespan / fair"],
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
        text_columns=3,
    )
