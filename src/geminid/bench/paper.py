"""The tables and figures of a comparison that a reviewer can check: several seeds, paired differences, and a bound.

Everything is measured on generated workloads. Each section asks one question; its first policy is what the others are
compared with.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
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
    """Policies, of which the first is the baseline, in a world that may differ from the usual.

    ``owners`` are given to the jobs in turn.
    """

    name: str
    policies: tuple[str, ...]
    load: float = 1.0
    cluster: str = CLUSTER
    settings: Settings = LIVE
    owners: tuple[str, ...] = ()


_RIVALS = ("sia", "geminid")

COMPARISON: Final = (
    Case(name="live", policies=("sia", "geminid", "tiresias", "srtf", "fifo")),
    Case(name="cold", policies=("sia", "geminid", "tiresias"), settings=Settings()),
)

#: What each part of the policy brings: without it, or with another in its place, against the whole.
ABLATION: Final = (
    Case(
        name="without",
        policies=(
            "geminid",
            "geminid:weights=prices",
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

_OURS = ("geminid",)
_COLD = Settings()

#: What the policy would gain if it knew more, or if changes cost nothing: each against the first case, at the costs of
#: a cold restart, where knowing matters most.
KNOWLEDGE: Final = (
    Case(name="as it is", policies=_OURS, settings=_COLD),
    Case(name="all speeds known", policies=_OURS, settings=replace(_COLD, speeds_known=True)),
    Case(name="work unknown", policies=_OURS, settings=replace(_COLD, estimate_error=None)),
    Case(name="next arrival known", policies=_OURS, settings=replace(_COLD, arrivals_known=True)),
    Case(name="both known", policies=_OURS, settings=replace(_COLD, speeds_known=True, arrivals_known=True)),
    Case(name="changes free", policies=_OURS, settings=replace(_COLD, rescale_s=0.0)),
    Case(
        name="both known, changes free",
        policies=_OURS,
        settings=replace(_COLD, speeds_known=True, arrivals_known=True, rescale_s=0.0),
    ),
)

#: Three owners with 3, 2 and 1 of every six jobs.
OWNERS: Final = ("ann", "bob", "ann", "eve", "ann", "bob")

TENANTS: Final = (
    Case(
        name="three owners",
        policies=("geminid", "geminid:half_life=86400", "themis", "hierarchical", "hierarchical_perf"),
        owners=OWNERS,
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
    *(
        Case(name=f"speeds wrong by σ = {error:g}", policies=_RIVALS, settings=replace(LIVE, speed_error=error))
        for error in (0.2, 0.5)
    ),
    Case(name="speeds 30 % lower on shared nodes", policies=_RIVALS, settings=replace(LIVE, interference=0.3)),
    Case(name="nodes fail every 24 h", policies=_RIVALS, settings=replace(LIVE, node_mtbf_s=86400.0)),
    Case(name="one GPU type", policies=_RIVALS, cluster="v100:8x4"),
    Case(name="large nodes", policies=_RIVALS, cluster="a100-40gb:2x8,v100:2x8"),
)

SECTIONS: Final = {
    "comparison": COMPARISON,
    "knowledge": KNOWLEDGE,
    "ablation": ABLATION,
    "sensitivity": SENSITIVITY,
    "tenants": TENANTS,
}

#: Sections whose rows are compared with their first case instead of the first policy of their own.
ACROSS_CASES: Final = frozenset({"knowledge"})

#: A quick run: one case of each section, two policies, and a part of the jobs.
QUICK: Final = {
    name: cases[:2] if name in ACROSS_CASES else (replace(cases[0], policies=cases[0].policies[:2]),)
    for name, cases in SECTIONS.items()
}
QUICK_SCALE: Final = 0.1


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One policy in one case: means over the seeds with 95 % intervals, and differences paired by seed.

    ``worst_envy`` is that of the owner who envies others most, ``least_share`` the smallest part of its fair share
    that an owner got; None where all jobs have the same owner.
    """

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
    worst_ftf: float | None = None
    worst_envy: float | None = None
    least_share: float | None = None


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
        measured: list[tuple[str, list[dict[str, Any]]]] = []
        for case in cases:
            progress(f"{section}: {case.name}")
            experiments = [_experiment(case, workload, scale, seed) for seed in seeds]
            tasks = [(policy, experiment) for policy in case.policies for experiment in experiments]
            results = simulate_tasks(tasks, lambda *_: None, workers)
            by_seed = [
                with_bounds(results[i :: len(experiments)], experiment) for i, experiment in enumerate(experiments)
            ]
            measured += [(case.name, [of_seed[p] for of_seed in by_seed]) for p in range(len(case.policies))]
        names = [""] if section in ACROSS_CASES else [case.name for case in cases]
        for name in names:
            compared = [(case, runs) for case, runs in measured if name in ("", case)]
            found = over_seeds([runs for _, runs in compared], list(seeds))
            rows += [_row(section, case, row, runs) for (case, runs), row in zip(compared, found, strict=True)]
    return rows


def _experiment(case: Case, workload: str, scale: float, seed: int) -> Experiment:
    drawn = built_in_workload(workload, seed=seed, load=scale * case.load)
    if case.owners:
        owned = (replace(job, owner=case.owners[i % len(case.owners)]) for i, job in enumerate(drawn.jobs))
        drawn = replace(drawn, jobs=tuple(owned))
    return Experiment(
        workload=drawn,
        cluster=Cluster.parse(case.cluster),
        settings=replace(case.settings, seed=seed),
        seed=seed,
        timings=False,
    )


def _row(section: str, case: str, found: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> PaperRow:
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
        worst_ftf=found["worst_ftf"],
        worst_envy=_over_owners(results, max, lambda owner: owner["envy"]),
        least_share=_over_owners(results, min, lambda owner: owner["share"] and owner["share"] / owner["fair_share"]),
    )


def _over_owners(
    results: Sequence[Mapping[str, Any]],
    worst: Callable[[list[float]], float],
    measure: Callable[[Mapping[str, Any]], float | None],
) -> float | None:
    """The mean over the seeds of a measure of the owner that it is worst for."""
    by_seed = [[value for owner in r["owners"] if (value := measure(owner)) is not None] for r in results]
    return fmean(worst(values) for values in by_seed) if all(by_seed) else None


# --- Files ---


def write(rows: Sequence[PaperRow], folder: Path) -> list[Path]:
    """Write a page of Markdown with a table and a figure for every section; returns what was written."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    written, parts = [], ["# Results\n"]
    for section in dict.fromkeys(row.section for row in rows):
        chosen = [row for row in rows if row.section == section]
        figure = folder / "figures" / f"results-{section}.svg"
        figure.write_text(svg(chosen), encoding="utf-8")
        written.append(figure)
        parts.append(f"## {section.capitalize()}\n\n{markdown(chosen)}\n![{section}](figures/{figure.name})\n")
    page = folder / "results.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return [page, *written]


def markdown(rows: Sequence[PaperRow]) -> str:
    """The rows as a table."""
    header, body = table(rows)
    lines = [header, ["---"] * len(header), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def table(rows: Sequence[PaperRow]) -> tuple[list[str], list[list[str]]]:
    """The heading and the cells of a section, with what owners got where jobs have owners."""
    header = ["case", "policy", "mean JCT, h", "to the first", "to bound"]
    owned = any(row.worst_envy is not None for row in rows)
    if owned:
        header += ["worst FTF", "envy", "least share"]
    body = []
    for row in rows:
        cells = [row.case, f"`{row.policy}`", interval_h(row), change(row), _number(row.to_bound, "{:.2f}×")]
        if owned:
            cells += [_number(row.worst_ftf, "{:.1f}"), _number(row.worst_envy, "{:.0%}")]
            cells.append(_number(row.least_share, "{:.0%}"))
        body.append(cells)
    return header, body


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


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
