"""``geminid simulate --seeds N``: every policy under several seeds, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from geminid.cli.output import Column, console, error_console, print_table
from geminid.cli.results import duration, label
from geminid.sim.bound.results import with_bounds
from geminid.sim.run import Experiment, simulate_tasks
from geminid.sim.seeds import Estimate, over_seeds

if TYPE_CHECKING:
    from collections.abc import Callable

#: The table: on a narrow terminal columns with the highest numbers are left out first.
COLUMNS = (
    Column("policy", text=True, least=24),
    Column("avg JCT"),
    Column("± 95 %", 1),
    Column("median", 3),
    Column("p99", 4),
    Column("makespan", 5),
    Column("avg JCT to first", 1),
    Column("p99 to first", 6),
    Column("to bound", 2),
)


def simulate_seeds(
    texts: Sequence[str], experiments: Sequence[Experiment], workers: int, *, bound: bool
) -> list[dict[str, Any]]:
    """Simulate every policy in every experiment, which differ in their seeds, and put the results together."""
    tasks = [(text, experiment) for text in texts for experiment in experiments]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done = [0] * len(tasks)
    with Progress(*columns, console=error_console, transient=True) as bars:
        jobs = sum(len(experiment.workload.jobs) for experiment in experiments)
        shown = [bars.add_task(text, total=jobs) for text in texts]

        def tell(index: int, finished: int) -> None:
            bars.update(shown[index // len(experiments)], advance=finished - done[index])
            done[index] = finished

        results = simulate_tasks(tasks, tell, workers)
    by_policy = [results[i : i + len(experiments)] for i in range(0, len(tasks), len(experiments))]
    if bound:
        with error_console.status("bounding every schedule"):
            bounded = [
                with_bounds([of_policy[i] for of_policy in by_policy], experiment)
                for i, experiment in enumerate(experiments)
            ]
        by_policy = [[of_seed[p] for of_seed in bounded] for p in range(len(texts))]
    return over_seeds(by_policy, [experiment.seed for experiment in experiments])


def print_seeds(name: str, slots: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print means with confidence intervals, and differences to the first policy that are paired by seed."""
    seeds = rows[0]["seeds"]
    title = f"{name}: {rows[0]['jobs']} jobs in all on {slots} slots, seeds {seeds[0]} to {seeds[-1]}"
    print_table(
        title,
        COLUMNS,
        [
            [
                label(row["policy"]),
                duration(row["avg_jct_s"]),
                _reach(row, "avg_jct_s", duration),
                duration(row["median_jct_s"]),
                duration(row["p99_jct_s"]),
                duration(row["makespan_s"]),
                _change(row, "avg_jct_s"),
                _change(row, "p99_jct_s"),
                "–" if row["avg_jct_to_bound"] is None else f"{row['avg_jct_to_bound']:.2f}×",
            ]
            for row in rows
        ],
    )
    console.print("Differences are paired by seed; one in brackets may be chance (its 95 % interval contains 0).")
    for row in rows:
        if row["unfinished_jobs"]:
            console.print(f"[red]{label(row['policy'])}: {row['unfinished_jobs']} jobs never finished[/]")


def _reach(row: Mapping[str, Any], key: str, show: Callable[[float], str]) -> str:
    found = row["interval"].get(key)
    return "–" if found is None or found["high"] is None else show(found["high"] - found["mean"])


def _change(row: Mapping[str, Any], key: str) -> str:
    """A paired difference with the reach of its interval; in brackets if it may be chance."""
    found = row["to_first"].get(key)
    if found is None:
        return "–"
    change = Estimate(**found)
    if change.high is None:
        return f"{100 * change.mean:+.1f} %"
    text = f"{100 * change.mean:+.1f} ± {100 * (change.high - change.mean):.1f} %"
    return text if change.differs_from_zero else f"({text})"
