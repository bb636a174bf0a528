"""How the results of simulations are printed, written to files and compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from geminid.cli.output import Column, console, print_table
from geminid.fields import InvalidInput, Problem
from geminid.sim.reasons import is_named

if TYPE_CHECKING:
    from geminid.cluster import Cluster
    from geminid.sim.workload import Workload

#: The path that means standard output.
TO_OUTPUT = Path("-")

#: Columns of the table of results. On a narrow terminal those with the highest numbers are left out first.
RESULT_COLUMNS = (
    Column("policy", text=True, least=24),
    Column("avg JCT"),
    Column("median", 1),
    Column("p99", 3),
    Column("makespan", 2),
    Column("queued", 7),
    Column("rescales per job", 5),
    Column("GPU hours", 8),
    Column("util.", 6),
    Column("worst FTF", 4),
    Column("unfair", 11),
    Column("ms per decision", 9),
    Column("wall", 10),
)

#: Additional columns with ``--bound``: the least average JCT of any schedule, and the policy's as a multiple of it.
BOUND_COLUMNS = (Column("bound", 1), Column("to bound"))

#: Additional columns for workloads with deadlines.
DEADLINE_COLUMNS = (Column("late", 1), Column("cost", 8))

#: Columns of the tables of owners and queues.
TENANT_COLUMNS = (
    Column("policy", text=True, least=24),
    Column("name", text=True, least=8),
    Column("jobs", 4),
    Column("share"),
    Column("fair share", 1),
    Column("avg JCT", 2),
    Column("worst FTF", 3),
    Column("envy"),
)

#: Rows of such a table at most.
MOST_TENANTS_SHOWN = 40

#: Figures that a comparison of two results shows.
COMPARED = ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s", "gpu_hours", "rescales_per_job")

#: Number of jobs that a comparison shows at each end: those that gained most, and those that lost most.
SHOWN_AT_EACH_END = 5


def check_output_file(option: str, path: Path | None) -> None:
    """Refuse a path that cannot be written, before anything is simulated.

    Raises:
        InvalidInput: it is a folder, or in a folder that does not exist.
    """
    if path not in (None, TO_OUTPUT) and (path.is_dir() or not path.resolve().parent.is_dir()):
        expected = "must be a file, not a folder" if path.is_dir() else "must be in a folder that exists"
        raise InvalidInput([Problem(option, str(path), expected)])


def write_json(path: Path | None, results: list[dict[str, Any]]) -> None:
    """Write results to a JSON file, if one is given, without the stints that only the page needs."""
    per_job = ([{k: v for k, v in job.items() if k != "stints"} for job in r["per_job"]] for r in results)
    write_rows(path, [{**r, "per_job": jobs} for r, jobs in zip(results, per_job, strict=True)])


def write_rows(path: Path | None, data: list[dict[str, Any]]) -> None:
    """Write plain data to a JSON file, if one is given."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if path == TO_OUTPUT:
        sys.stdout.write(text)
    elif path is not None:
        path.write_text(text, encoding="utf-8")


def write_page(
    path: Path | None, workload: Workload, cluster: Cluster, results: list[dict[str, Any]], seed: int | None
) -> None:
    """Write the page with plots and timelines, if a path is given."""
    if path is not None:
        from geminid.sim.report import write_report

        write_report(path, workload=workload, cluster=cluster, results=results, seed=seed)
        console.print(f"Report: {path.resolve().as_uri()} (open it in a browser)")


def print_results(workload: Workload, slots: int, results: list[dict[str, Any]]) -> None:
    """Print the table of results, and what its reader should know besides."""
    for note in workload.notes:
        console.print(f"[yellow]note:[/] {note}")
    has_deadlines = any(r["deadlines_missed"] is not None for r in results)
    is_bounded = any("bound_avg_jct_s" in r for r in results)
    header = [*RESULT_COLUMNS, *(BOUND_COLUMNS if is_bounded else ()), *(DEADLINE_COLUMNS if has_deadlines else ())]
    best = min((r["avg_jct_s"] for r in results if r["avg_jct_s"] is not None), default=None)
    rows = []
    for r in results:
        average = duration(r["avg_jct_s"])
        rows.append(
            [
                label(r["policy"]),
                f"[green]{average}[/]" if r["avg_jct_s"] == best and len(results) > 1 else average,
                duration(r["median_jct_s"]),
                duration(r["p99_jct_s"]),
                duration(r["makespan_s"]),
                duration(r["avg_queue_s"]),
                _number(r["rescales_per_job"], 1),
                _number(r["gpu_hours"], 0),
                _percent(r["utilization"]),
                _number(r["worst_ftf"], 1),
                _percent(r["unfair_fraction"]),
                _number(r["decision_ms_mean"], 1),
                "–" if r["wall_s"] is None else f"{r['wall_s']:.1f} s",
                *([duration(r["bound_avg_jct_s"]), _multiple(r["avg_jct_to_bound"])] if is_bounded else []),
                *([_late(r), _number(r["cost"], 1)] if has_deadlines else []),
            ]
        )
    print_table(f"{workload.name}: {len(workload.jobs)} jobs on {slots} slots", header, rows)
    for kind, title in (("owners", "Owners"), ("queues", "Queues")):
        if any(r.get(kind) for r in results):
            _print_tenants(title, [(label(r["policy"]), tenant) for r in results for tenant in r[kind]])
    for r in results:
        if r["rejected_decisions"]:
            text = f"{r['policy']}: {r['rejected_decisions']} decisions were invalid and not used"
            console.print(f"[yellow]{escape(text)} ({escape(r['rejected_because'])})[/]")
        if r["unfinished_jobs"]:
            console.print(f"[red]{escape(r['policy'])}: {r['unfinished_jobs']} jobs never finished[/]")
        for reason, jobs in r["reasons"].items():
            if is_named(reason):
                console.print(f"[yellow]{escape(label(r['policy']))}: {escape(reason)} (jobs: {jobs})[/]")


def _print_tenants(title: str, rows: list[tuple[str, Mapping[str, Any]]]) -> None:
    """Print what owners or queues got under each policy: those that envy others most, where there are many."""
    order = sorted(rows, key=lambda row: -(row[1]["envy"] or 0.0))[:MOST_TENANTS_SHOWN]
    shown = [row for row in rows if row in order]
    print_table(
        title if len(shown) == len(rows) else f"{title}: those that envy others most (all are in --json)",
        TENANT_COLUMNS,
        [
            [
                policy,
                tenant["name"] or "–",
                str(tenant["jobs"]),
                _percent(tenant["share"]),
                _percent(tenant["fair_share"]),
                duration(tenant["avg_jct_s"]),
                _number(tenant["worst_ftf"], 1),
                _percent(tenant["envy"]),
            ]
            for policy, tenant in shown
        ],
    )


def _late(result: Mapping[str, Any]) -> str:
    """The number of missed deadlines, and of all deadlines."""
    return f"{result['deadlines_missed']} of {sum(job['met'] is not None for job in result['per_job'])}"


def label(policy: str) -> str:
    """A policy's name in tables; of a user's own policy the class, without the path."""
    return policy.rpartition(".py:")[2]


def duration(seconds: float | None) -> str:
    """A duration in the unit that suits it."""
    if seconds is None:
        return "–"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _multiple(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def compare(first: Path, second: Path, json_file: Path | None) -> None:
    """Print how two result files differ, in total and for some jobs; the JSON file gets all jobs."""
    a, b = _read_results(first), _read_results(second)
    pairs = [(x, y) for x in a for y in b if x["policy"] == y["policy"]] or [(a[0], b[0])]
    write_rows(json_file, [_differences(x, y) for x, y in pairs])
    for x, y in pairs:
        rows = []
        for key in COMPARED:
            old, new = x[key], y[key]
            change = "–" if not old or new is None else f"{100 * (new / old - 1):+.1f} %"
            rows.append([key, _number(old, 2), _number(new, 2), change])
        title = f"{x['policy']} ({first.name}) → {y['policy']} ({second.name})"
        print_table(title, ["", "first", "second", "change"], rows)
        differ = [key for key in x.get("setup", {}) if y.get("setup", {}).get(key) != x["setup"][key]]
        if differ and "setup" in y:
            console.print(f"[yellow]The two runs differ in more than the policy: {', '.join(differ)}.[/]")
        done = sorted(_in_both(x, y), key=lambda pair: pair[1]["jct_s"] - pair[0]["jct_s"])
        if done:
            _print_extremes(done)
        else:
            console.print(
                "[yellow]The two files have no job in common: the figures above are of different workloads.[/]"
            )


def _print_extremes(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Print the jobs at both ends of pairs that are sorted by how much they gained."""
    middle = range(SHOWN_AT_EACH_END, len(pairs) - SHOWN_AT_EACH_END)
    print_table(
        f"Jobs that gained and lost most, of {len(pairs)} in both",
        ["job", "first", "second", "difference", "ratio"],
        [
            [
                p["name"],
                duration(p["jct_s"]),
                duration(q["jct_s"]),
                f"{q['jct_s'] - p['jct_s']:+,.0f} s",
                f"{q['jct_s'] / p['jct_s']:.2f}×",
            ]
            for i, (p, q) in enumerate(pairs)
            if i not in middle
        ],
    )


def _in_both(x: dict[str, Any], y: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Jobs that are in both results and finished in both."""
    before = {job["name"]: job for job in x["per_job"]}
    pairs = [(before[job["name"]], job) for job in y["per_job"] if job["name"] in before]
    return [(p, q) for p, q in pairs if p["jct_s"] and q["jct_s"]]


def _differences(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    return {
        "policies": [x["policy"], y["policy"]],
        **{key: {"first": x[key], "second": y[key]} for key in COMPARED},
        "per_job": [
            {"name": p["name"], "first_jct_s": p["jct_s"], "second_jct_s": q["jct_s"]} for p, q in _in_both(x, y)
        ],
    }


def _read_results(path: Path) -> list[dict[str, Any]]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        expected = f"must be a file that can be read ({error.strerror})"
        raise InvalidInput([Problem("compare", str(path), expected)]) from None
    except ValueError:
        results = None
    if not (
        isinstance(results, list)
        and results
        and all(isinstance(r, dict) and {*COMPARED, "policy", "per_job"} <= set(r) for r in results)
    ):
        raise InvalidInput([Problem("compare", str(path), "must be a file written by geminid simulate --json")])
    return results
