"""The tables and figures of a comparison that a reviewer can check: several seeds, paired differences, and a bound.

Everything is measured on generated workloads. Each section asks one question; its first policy is what the others are
compared with.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from geminid.cluster import Cluster
from geminid.sim.bound.results import with_bounds
from geminid.sim.run import Experiment, simulate_tasks
from geminid.sim.seeds import Estimate, over_seeds
from geminid.sim.settings import Settings
from geminid.sim.workloads.generate import built_in_workload

CLUSTER: Final = "v100:2x4,a100-40gb:1x8,t4:4x4"

#: One second: what a change of slots costs live.
RESCALE_S: Final = 1.0


#: The usual world.
LIVE: Final = Settings(rescale_s=RESCALE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of a section: policies, of which the first is the baseline, in a world that may differ from the usual."""

    name: str
    policies: tuple[str, ...]
    load: float = 1.0
    cluster: str = CLUSTER
    settings: Settings = LIVE


_RIVALS = ("sia", "geminid")

COMPARISON: Final = (
    Case(name="live", policies=("sia", "geminid", "tiresias", "srtf", "fifo")),
    Case(name="cold", policies=("sia", "geminid", "tiresias"), settings=Settings()),
)

#: What each part of the policy brings: without it, against the whole.
ABLATION: Final = (
    Case(
        name="without",
        policies=(
            "geminid",
            "geminid:kinds=false",
            "geminid:p=0,p_free=0",
            "geminid:q=1",
            "geminid:growth=2",
            "geminid:pause_power=0",
            "geminid:restart_power=0",
            "geminid:ratio=0",
            "geminid:gap=60",
        ),
    ),
)

SENSITIVITY: Final = (
    *(Case(name=f"load {load:g}", policies=_RIVALS, load=load) for load in (0.5, 1.0, 1.5, 2.0)),
    *(
        Case(name=f"work wrong by σ = {error:g}", policies=_RIVALS, settings=replace(LIVE, estimate_error=error))
        for error in (0.5, 1.0)
    ),
    Case(name="work unknown", policies=_RIVALS, settings=replace(LIVE, estimate_error=None)),
    Case(name="all known (oracle)", policies=_RIVALS, settings=replace(LIVE, oracle=True)),
    Case(name="speeds 30 % lower on shared nodes", policies=_RIVALS, settings=replace(LIVE, interference=0.3)),
    Case(name="nodes fail every 24 h", policies=_RIVALS, settings=replace(LIVE, node_mtbf_s=86400.0)),
    Case(name="one GPU type", policies=_RIVALS, cluster="v100:8x4"),
    Case(name="large nodes", policies=_RIVALS, cluster="a100-40gb:2x8,v100:2x8"),
)

SECTIONS: Final = {"comparison": COMPARISON, "ablation": ABLATION, "sensitivity": SENSITIVITY}

#: A quick run: one case of each section, two policies, and a part of the jobs.
QUICK: Final = {name: (replace(cases[0], policies=cases[0].policies[:2]),) for name, cases in SECTIONS.items()}
QUICK_SCALE: Final = 0.1


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One policy in one case: means over the seeds with 95 % intervals, and differences paired by seed."""

    section: str
    case: str
    policy: str
    seeds: int
    avg_jct_s: float
    avg_jct_low_s: float | None
    avg_jct_high_s: float | None
    p99_jct_s: float
    makespan_s: float
    to_first: float | None
    to_first_low: float | None
    to_first_high: float | None
    to_bound: float | None


def run(
    sections: Mapping[str, Sequence[Case]] = SECTIONS,
    *,
    workload: str = "small",
    seeds: Sequence[int] = tuple(range(5)),
    scale: float = 1.0,
    workers: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> list[PaperRow]:
    """Simulate every policy of every case under every seed; ``scale`` multiplies all loads."""
    rows = []
    for section, cases in sections.items():
        for case in cases:
            progress(f"{section}: {case.name}")
            experiments = [_experiment(case, workload, scale, seed) for seed in seeds]
            tasks = [(policy, experiment) for policy in case.policies for experiment in experiments]
            results = simulate_tasks(tasks, lambda *_: None, workers)
            by_seed = [
                with_bounds(results[i :: len(experiments)], experiment) for i, experiment in enumerate(experiments)
            ]
            by_policy = [[of_seed[p] for of_seed in by_seed] for p in range(len(case.policies))]
            rows += [_row(section, case.name, found) for found in over_seeds(by_policy, list(seeds))]
    return rows


def _experiment(case: Case, workload: str, scale: float, seed: int) -> Experiment:
    return Experiment(
        workload=built_in_workload(workload, seed=seed, load=scale * case.load),
        cluster=Cluster.parse(case.cluster),
        settings=replace(case.settings, seed=seed),
        seed=seed,
        timings=False,
    )


def _row(section: str, case: str, found: Mapping[str, Any]) -> PaperRow:
    mean = Estimate(**found["interval"]["avg_jct_s"])
    change = found["to_first"].get("avg_jct_s", {"mean": None, "low": None, "high": None})
    return PaperRow(
        section=section,
        case=case,
        policy=found["policy"],
        seeds=len(found["seeds"]),
        avg_jct_s=mean.mean,
        avg_jct_low_s=mean.low,
        avg_jct_high_s=mean.high,
        p99_jct_s=found["p99_jct_s"],
        makespan_s=found["makespan_s"],
        to_first=change["mean"],
        to_first_low=change["low"],
        to_first_high=change["high"],
        to_bound=found["avg_jct_to_bound"],
    )


# --- Files ---


def write(rows: Sequence[PaperRow], folder: Path) -> list[Path]:
    """Write a page of Markdown with a table and a figure for every section; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written, parts = [], ["# Results\n"]
    for section in dict.fromkeys(row.section for row in rows):
        chosen = [row for row in rows if row.section == section]
        figure = folder / f"{section}.svg"
        figure.write_text(svg(chosen), encoding="utf-8")
        written.append(figure)
        parts.append(f"## {section.capitalize()}\n\n{markdown(chosen)}\n![{section}]({figure.name})\n")
    page = folder / "results.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return [page, *written]


def markdown(rows: Sequence[PaperRow]) -> str:
    """The rows as a table."""
    lines = ["| case | policy | mean JCT, h | to the first | to bound |", "|---|---|---|---|---|"]
    for row in rows:
        bound = "–" if row.to_bound is None else f"{row.to_bound:.2f}"
        lines.append(f"| {row.case} | `{row.policy}` | {interval_h(row)} | {change(row)} | {bound} |")
    return "\n".join(lines) + "\n"


def interval_h(row: PaperRow) -> str:
    """The mean JCT in hours, with its interval."""
    mean = f"{row.avg_jct_s / 3600:.2f}"
    if row.avg_jct_low_s is None or row.avg_jct_high_s is None:
        return mean
    return f"{mean} ({max(row.avg_jct_low_s, 0.0) / 3600:.2f} to {row.avg_jct_high_s / 3600:.2f})"


def change(row: PaperRow) -> str:
    """The difference to the first policy of its case, with its interval."""
    if row.to_first is None:
        return "–"
    mean = f"{100 * row.to_first:+.1f} %"
    if row.to_first_low is None or row.to_first_high is None:
        return mean
    return f"{mean} ({100 * row.to_first_low:+.1f} to {100 * row.to_first_high:+.1f})"


def svg(rows: Sequence[PaperRow]) -> str:
    """Mean JCTs as multiples of the bound, one bar per row."""
    width, line, left = 760, 22, 340
    most = max((row.to_bound or 0.0 for row in rows), default=0.0) or 1.0
    bars = []
    for index, row in enumerate(rows):
        value = row.to_bound or 0.0
        length, y = (width - left - 70) * value / most, 30 + line * index
        name = html.escape(f"{row.case}: {row.policy}")
        bars.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        bars.append(f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{line - 6}" fill="#4477aa"/>')
        bars.append(f'<text x="{left + length + 6:.1f}" y="{y + 13}">{value:.2f}</text>')
    height = 40 + line * len(rows)
    title = '<text x="8" y="18" font-weight="bold">Mean JCT, as a multiple of the bound on every schedule</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
    return f'{head}font-size="12">{title}{"".join(bars)}</svg>\n'
