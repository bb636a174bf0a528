"""``geminid bench model``, ``table``, ``fit`` and ``estimation``: the goodput model and estimates, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geminid.cli.bench import PEERS, Json, Peers, Quick, Seed, Target, conclude, sized, skip, titled
from geminid.cli.output import Column, WideOption, console, error_console, print_json, print_table
from geminid.fields import NOT_SHOWN, InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.bench.estimation import EstimationRow
    from geminid.bench.fit import FitRow
    from geminid.bench.model import ModelReport
    from geminid.bench.table import TableRow

#: Applications that a quick run of ``bench model`` looks at.
QUICK_APPLICATIONS = 2


def model(
    profiles: Annotated[
        Path | None,
        typer.Option(
            help="Folder of measured step times: one folder per application with placements*.csv and "
            "scalability*.csv, as Pollux and Sia publish them. A quick run needs none.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Error of predicted step times on configurations held out from the fit: Pollux's model beside ours.

    Ends with 1 if the mean error of ours on placements held out is 10 % or more.
    """
    from geminid.bench.generated import generated_measurements
    from geminid.bench.model import GOAL, PLACEMENTS, run
    from geminid.sim.measurements import load_measurements

    if profiles is None and not quick:
        raise InvalidInput([Problem("profiles", NOT_SHOWN, "must be a folder of measured step times, or use --quick")])
    measured = generated_measurements(seed) if profiles is None else load_measurements(profiles)
    if quick:
        measured = measured[:QUICK_APPLICATIONS]
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
        _print_model_report(report, quick)
    placements = next((row for row in report.protocols if row.held_out == PLACEMENTS), None)
    if placements is not None:
        wanted = f"the mean error on placements held out from the fit is under {GOAL:.0%}"
        seen = f"{placements.geminid_mean:.1%}, Pollux's model {placements.pollux_mean:.1%}"
        conclude([Target(wanted, placements.geminid_mean < GOAL, seen, full_size=False)], quick=quick, json=json)


def _print_model_report(report: ModelReport, quick: bool) -> None:
    if report.applications or report.protocols:
        _print_errors(report, quick)
    for row in report.applications:
        if row.why:
            console.print(f"[bold]{row.application} on {row.gpu_type}[/] is hard to predict: {row.why}.")
    for left_out in report.excluded:
        console.print(f"[bold]{left_out.application} on {left_out.gpu_type}[/] is left out: {left_out.why}.")


def _print_errors(report: ModelReport, quick: bool) -> None:
    print_table(
        titled("Error of the predicted step time on placements held out from the fit", quick),
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


def table(
    jobs: Annotated[int | None, typer.Option(min=10, help="Jobs in the table.", show_default="10000")] = None,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Time to compute the goodput table, against plain loops over jobs and configurations.

    Ends with 1 if the table differs from the definition, or is less than 100 times as fast as a plain loop.
    """
    from geminid.bench.table import LARGEST_DIFFERENCE, TIMES_FASTER, run

    jobs = sized(jobs, quick, 200, 10_000)
    with error_console.status("computing tables …"):
        rows = run(jobs=jobs, seed=seed)
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_goodput_tables(rows, jobs, quick)
    difference = max(row.largest_difference for row in rows)
    faster = min(row.times_faster_than_plain_loop for row in rows)
    targets = [
        Target(
            f"the table is the definition's to {LARGEST_DIFFERENCE:.0e}",
            difference <= LARGEST_DIFFERENCE,
            f"{difference:.0e}",
            full_size=False,
        ),
        Target(
            f"at least {TIMES_FASTER:g} times as fast as a plain loop", faster >= TIMES_FASTER, f"{faster:,.0f} times"
        ),
    ]
    conclude(targets, quick=quick, json=json)


def _print_goodput_tables(rows: Sequence[TableRow], jobs: int, quick: bool) -> None:
    sizes = f"{jobs:,} jobs × {rows[0].configurations} configurations × {rows[0].batch_sizes} batch sizes"
    print_table(
        titled(f"Goodput table of {sizes}", quick),
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


def fit(
    jobs: Annotated[int | None, typer.Option(min=10, help="Jobs to refit.", show_default="1000")] = None,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """CPU time to refit many jobs, against scipy's general minimiser with numerical gradients.

    Ends with 1 if the fits of Pollux's model are worse than scipy's, or less than 20 times as fast.
    """
    from geminid.bench.fit import QUICK_SCIPY_JOBS, SCIPY_JOBS, TIMES_FASTER, WORSE_LOSS, run

    jobs = sized(jobs, quick, 40, 1_000)
    with error_console.status("fitting …"):
        rows = run(jobs=jobs, sampled_jobs=QUICK_SCIPY_JOBS if quick else SCIPY_JOBS, seed=seed)
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_fits(rows, jobs, quick)
    targets = []
    for row in rows:
        if row.mean_loss is not None and row.scipy_mean_loss is not None and row.times_faster is not None:
            met = row.mean_loss <= row.scipy_mean_loss + WORSE_LOSS
            seen = f"{row.mean_loss:.5f} against {row.scipy_mean_loss:.5f}"
            targets.append(Target("the mean loss is no higher than scipy's", met, seen, full_size=False))
            wanted, seen = f"at least {TIMES_FASTER:g} times as fast as scipy", f"{row.times_faster:,.0f} times"
            targets.append(Target(wanted, row.times_faster >= TIMES_FASTER, seen))
    conclude(targets, quick=quick, json=json)


def _print_fits(rows: Sequence[FitRow], jobs: int, quick: bool) -> None:
    print_table(
        titled(f"Refit of {jobs:,} jobs with {rows[0].observations_per_job} measured configurations each", quick),
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


def estimation(
    peers: Peers = PEERS,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Instead, what estimates in place of measured pairs do to JCTs.")
    ] = False,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Error of estimated throughputs of unseen jobs, alone and beside others, on entries held out of Gavel's tables.

    Ends with 1 if an error of ours on pairs is larger than that of Gavel's way.
    """
    from geminid.bench.estimation import GAVEL, MEASURED, OURS, PAIRS, QUICK_MEASURED, run
    from geminid.bench.gavel import TABLE

    if not (peers / TABLE).is_file():
        if quick:
            return skip(f"nothing to estimate, for Gavel's table {peers / TABLE} is not there", json=json)
        raise InvalidInput([Problem("peers", str(peers), f"must be a folder that holds {TABLE}")])
    if simulate:
        return _consequences(peers, seed, json=json)
    with error_console.status("estimating …"):
        rows = run(peers, seed=seed, measured=QUICK_MEASURED if quick else MEASURED)
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print_estimates(rows, quick)
    ours, theirs = (
        [row.mean_error for row in rows if (row.estimated, row.method) == (PAIRS, method)] for method in (OURS, GAVEL)
    )
    met = all(mine <= other for mine, other in zip(ours, theirs, strict=True))
    shown = ", ".join(f"{mine:.1%} against {other:.1%}" for mine, other in zip(ours, theirs, strict=True))
    wanted = "errors on pairs are no larger than those of Gavel's way"
    return conclude([Target(wanted, met, shown, full_size=False)], quick=quick, json=json)


def _print_estimates(rows: Sequence[EstimationRow], quick: bool) -> None:
    print_table(
        titled("Error of estimated throughputs on held-out entries", quick),
        [
            Column("estimated", 3, text=True, least=14),
            Column("unseen", 2, text=True),
            Column("measured", text=True, least=12),
            Column("method", text=True, least=14),
            Column("mean error"),
            Column("wrong whether they fit", 1),
            Column("entries", 4),
        ],
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


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _better(ours: float, theirs: float) -> str:
    return f"[green]{_percent(ours)}[/]" if ours < theirs else _percent(ours)
