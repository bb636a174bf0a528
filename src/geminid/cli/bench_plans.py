"""``geminid bench plans``: predicted step times of execution plans, and the plans chosen by them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geminid.cli.bench import Json, Quick, Seed, Target, conclude, sized, titled
from geminid.cli.output import WideOption, error_console, print_json, print_table
from geminid.fields import NOT_SHOWN, InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.bench.plans import PlanDecision, PlanRow, PlanTable

QUICK_DRAWS = 5
QUICK_JOBS = 200


def plans(
    profiles: Annotated[
        Path | None,
        typer.Option(
            help="Folder of step times measured under execution plans, in Rubick's layout. A quick run needs none.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Rows that a fit sees.")] = 8,
    draws: Annotated[int | None, typer.Option(min=1, help="Random draws of them.", show_default="100")] = None,
    seed: Seed = 0,
    quick: Quick = False,
    wide: WideOption = False,
    json: Json = False,
) -> None:
    """Error of predicted step times under execution plans, and the cost of choosing plans by them.

    Ends with 1 if a model's median error on rows held out is above 10 %, or a chosen plan takes more than 1.2 times as
    long as the best (95 % of choices) or 1.5 times (all).
    """
    from geminid.bench.generated import generated_plan_models
    from geminid.bench.plans import (
        DECISION_GOAL_S,
        ERROR_GOAL,
        GAP_GOAL,
        P95_GOAL,
        TABLE_GOAL_S,
        WORST_GOAL,
        decision,
        run,
        table,
    )
    from geminid.sim.profiles.rubick import load_models

    if profiles is None and not quick:
        expected = "must be a folder of step times in Rubick's layout, or use --quick"
        raise InvalidInput([Problem("profiles", NOT_SHOWN, expected)])
    models = generated_plan_models(seed) if profiles is None else load_models(profiles)
    with error_console.status("fitting …") as status:
        rows = run(
            models,
            samples=samples,
            draws=sized(draws, quick, QUICK_DRAWS, 100),
            seed=seed,
            progress=status.update,
        )
        timing = table(QUICK_JOBS if quick else 10_000, seed=seed)
        size = (1_024, QUICK_JOBS, 2) if quick else (100_000, 50_000, 8)
        decided = decision(slots=size[0], jobs=size[1], types=size[2], seed=seed)
    if not rows:
        raise InvalidInput([Problem("samples", samples, "leaves no model with rows to hold out")])
    if json:
        print_json([asdict(row) for row in rows])
    else:
        _print(rows, quick)
    error, p95, worst = (max(getattr(row, f) for row in rows) for f in ("median_error", "p95_regret", "worst_regret"))
    targets = [
        Target(f"the median error on rows held out is at most {ERROR_GOAL:.0%}", error <= ERROR_GOAL, f"{error:.1%}"),
        Target(f"95 % of chosen plans take at most {P95_GOAL:g}× the best", p95 <= P95_GOAL, f"{p95:.2f}×"),
        Target(f"every chosen plan takes at most {WORST_GOAL:g}× the best", worst <= WORST_GOAL, f"{worst:.2f}×"),
        _speed(timing, TABLE_GOAL_S),
        _decision(decided, DECISION_GOAL_S, GAP_GOAL),
    ]
    conclude(targets, quick=quick, json=json)


def _speed(timing: PlanTable, goal_s: float) -> Target:
    size = f"{timing.jobs:,} jobs × {timing.configurations} configurations × {timing.plans} plans"
    return Target(f"{size} are predicted in {goal_s:g} s of one core", timing.cpu_s <= goal_s, f"{timing.cpu_s:.2f} s")


def _decision(decided: PlanDecision, goal_s: float, goal_gap: float) -> Target:
    size = f"{decided.slots:,} slots and {decided.jobs:,} jobs with {decided.plans} plans"
    return Target(
        f"a decision of {size} takes at most {goal_s:g} s of one core, with a certified gap of at most {goal_gap:.1%}",
        decided.cpu_s <= goal_s and decided.gap <= goal_gap,
        f"{decided.cpu_s:.2f} s, {decided.gap:.4%}",
    )


def _print(rows: list[PlanRow], quick: bool) -> None:
    print_table(
        titled(f"Step times predicted from {rows[0].samples} samples, and plans chosen by them", quick),
        ["model", "rows", "median error", "p95 regret", "worst", "Rubick's error", "p95", "worst"],
        [
            [
                row.model,
                str(row.rows),
                f"{row.median_error:.1%}",
                f"{row.p95_regret:.2f}×",
                f"{row.worst_regret:.2f}×",
                f"{row.published_median_error:.1%}",
                f"{row.published_p95_regret:.2f}×",
                f"{row.published_worst_regret:.2f}×",
            ]
            for row in rows
        ],
    )
