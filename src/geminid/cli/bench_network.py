"""``geminid bench consolidation``: what it is worth to wait for slots that are close together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from geminid.cli.bench import Json, Quick, Seed, titled
from geminid.cli.output import WideOption, console, error_console, print_json, print_table


def consolidation(
    jobs: Annotated[int, typer.Option(min=10, help="Jobs of the workload, fifty an hour.")] = 400,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, help="From that seed on, this many workloads: means.")] = 3,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Dally against full consolidation, no waiting and scattered slots, as uplinks of racks get narrower.

    Beside the figures of its paper, which are the best of its own workloads against other schedulers.
    """
    from geminid.bench.consolidation import NETWORKS, PAPER_COMMUNICATION, PAPER_JCT, PAPER_MAKESPAN, run

    if quick:
        jobs, seeds = min(jobs, 200), 1
    networks = NETWORKS[-1:] if quick else NETWORKS
    with error_console.status("simulating …") as status:
        rows = run(
            jobs=jobs,
            hours=jobs / 50.0,
            networks=networks,
            seeds=range(seed, seed + seeds),
            progress=status.update,
        )
    if json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        titled(
            f"{jobs} jobs in {jobs / 50.0:g} h on 8 racks × 4 nodes × 4 V100, mean of {seeds}; Dally against each",
            quick,
        ),
        ["uplinks", "slots", "JCT", "Dally", "makespan", "Dally", "communication", "Dally"],
        [
            [
                "wide" if row.oversubscription is None else f"{row.oversubscription:g} : 1",
                row.placing,
                f"{row.avg_jct_s / 3600:.2f} h",
                _change(row.dally_jct),
                f"{row.makespan_s / 3600:.1f} h",
                _change(row.dally_makespan),
                f"{row.communication_h:.0f} h",
                _change(row.dally_communication),
            ]
            for row in rows
        ],
        text_columns=2,
    )
    console.print(
        f"The paper reports up to {_change(PAPER_JCT)} JCT, {_change(PAPER_MAKESPAN)} makespan and "
        f"{_change(PAPER_COMMUNICATION)} communication, against schedulers that consolidate, on congested networks."
    )


def _change(part: float) -> str:
    return f"{100 * part:+.0f} %" if abs(part) >= 0.005 else "–"
