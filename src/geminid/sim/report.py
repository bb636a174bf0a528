"""The report of ``geminid simulate``: one page that a browser shows without a network.

The page holds its data as JSON beside a small script of our own. Nothing in it runs but that script: text from outside
is escaped wherever it stands, and the page's own security policy names the script and the style by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from geminid.cluster import Cluster
from geminid.sim import reportdata
from geminid.sim.reasons import is_named
from geminid.sim.workload import Workload

#: Parts of the page's script, in the order in which they build on each other.
SCRIPTS: Final = (
    "base.js",
    "charts.js",
    "time.js",
    "lanes.js",
    "timeline.js",
    "racks.js",
    "pointing.js",
    "detail.js",
    "page.js",
)

_ESCAPED_IN_JSON: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write_report(
    path: Path, *, workload: Workload, cluster: Cluster, results: list[dict[str, Any]], seed: int | None = None
) -> None:
    """Write the page for results of ``simulate_all`` with stints; equal inputs give equal files."""
    path.write_text(page(workload=workload, cluster=cluster, results=results, seed=seed), encoding="utf-8")


def page(*, workload: Workload, cluster: Cluster, results: Sequence[Mapping[str, Any]], seed: int | None = None) -> str:
    """The whole page as text."""
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_script(name) for name in SCRIPTS) + "})();\n"
    types = reportdata.gpu_types(cluster, results)
    blocks = [_data_block("overview", reportdata.overview(workload, cluster, results))]
    for i, result in enumerate(results):
        blocks.append(_data_block(f"jobs-{i}", reportdata.job_table(workload, result)))
        blocks.append(_data_block(f"timelines-{i}", reportdata.timelines(workload, result, types)))
    parts = {
        "security": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:",
        "style": style,
        "title": html.escape(workload.name),
        "facts": "".join(_facts(workload, cluster, seed)),
        "notes": "".join(f"<p class=note>{html.escape(note)}</p>" for note in _notes(workload, results)),
        "policies": _policies_table(results),
        "tenants": "".join(_tenants(results)),
        "data": "\n".join(blocks),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def embedded_json(value: Any) -> str:
    """Compact JSON that can stand inside a script element: no character of it can end the element or a line."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.translate(_ESCAPED_IN_JSON)


def _data_block(name: str, value: Any) -> str:
    return f'<script type="application/json" id="{name}">{embedded_json(value)}</script>'


def _asset(name: str) -> str:
    return files("geminid.sim").joinpath("report_assets", name).read_text(encoding="utf-8")


def _script(name: str) -> str:
    """A part of the script. Parts that the dashboard loads as modules export their functions; here all are in one."""
    return re.sub(r"^export ", "", _asset(name), flags=re.MULTILINE)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# --- The header ---


def _facts(workload: Workload, cluster: Cluster, seed: int | None) -> Iterator[str]:
    sizes = ((name, cluster.nodes_per_type[name], slots) for name, slots in cluster.slots_per_type.items())
    described = ", ".join(f"{slots} {name} on {nodes} {_plural('node', nodes)}" for name, nodes, slots in sizes)
    facts = [("Workload", workload.name), ("Jobs", f"{len(workload.jobs):,}")]
    facts.append(("Cluster", cluster.short_form() or described))
    facts.append(("Slots", f"{cluster.total_slots:,}"))
    if seed is not None:
        facts.append(("Seed", str(seed)))
    for name, value in facts:
        yield f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>"


def _notes(workload: Workload, results: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield from workload.notes
    for result in results:
        unfinished = sum(job["jct_s"] is None for job in result["per_job"])
        if unfinished:
            yield f"{result['policy']}: {unfinished:,} {_plural('job', unfinished)} did not finish and have no JCT."
        rejected = result.get("rejected_decisions") or 0
        if rejected:
            yield f"{result['policy']}: {rejected:,} {_plural('decision', rejected)} were invalid and not used."
        for reason, jobs in result.get("reasons", {}).items():
            if is_named(reason):
                yield f"{result['policy']}: {reason} (for {jobs:,} {_plural('job', jobs)})."


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


# --- The table of policies ---


Shown = Callable[[float], str]


def durations(values: Sequence[float]) -> Shown:
    """How to write times that are compared with each other: all in the unit that suits the middle of their range."""
    positive = [value for value in values if value > 0.0]
    middle = math.sqrt(min(positive) * max(positive)) if positive else 0.0
    if middle < 600.0:
        return lambda seconds: f"{seconds:,.0f} s"
    return lambda seconds: f"{seconds / 60:,.1f} min" if middle < 7200.0 else f"{seconds / 3600:,.2f} h"


def _as(form: str, scale: float = 1.0) -> Callable[[Sequence[float]], Shown]:
    return lambda _: lambda value: form.format(scale * value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of policies. ``best`` picks the value to emphasise."""

    key: str
    label: str
    shows: Callable[[Sequence[float]], Shown]
    best: Callable[[Iterable[float]], float] = min
    hint: str = ""


COLUMNS: Final = (
    Column("avg_jct_s", "Average JCT", durations, hint="Completion time minus submission time, mean of all jobs"),
    Column("avg_jct_to_bound", "… to bound", _as("{:.2f} ×"), hint="Average JCT over the least that any schedule has"),
    Column("bound_avg_jct_s", "Bound", durations, hint="No schedule of these jobs has a smaller average JCT"),
    Column("median_jct_s", "Median JCT", durations),
    Column("p99_jct_s", "p99 JCT", durations, hint="99 % of the jobs took less"),
    Column("makespan_s", "Makespan", durations, hint="From the start of the workload to the last completion"),
    Column("bound_makespan_s", "Bound on makespan", durations, hint="No schedule of these jobs is done earlier"),
    Column("avg_queue_s", "Average queued", durations, hint="Time without slots, mean of all jobs"),
    Column("rescales_per_job", "Rescales per job", _as("{:.1f}")),
    Column("gpu_hours", "GPU-hours", _as("{:,.0f}")),
    Column("cost", "Cost", _as("{:,.1f}"), hint="GPU-hours times the relative cost of their GPU types"),
    Column("deadlines_missed", "Late", _as("{:,.0f}"), hint="Jobs that were done after their deadline, or never"),
    Column("communication_share", "Communication", _as("{:.0f} %", 100), hint="Share of work that synchronising took"),
    Column("utilization", "Utilisation", _as("{:.0f} %", 100), max, "Slots held, mean over the makespan"),
    Column("worst_ftf", "Worst FTF", _as("{:.2f}"), hint="Finish-time fairness: JCT over that with a fair share"),
    Column("unfair_fraction", "Unfair", _as("{:.0f} %", 100), hint="Jobs with a finish-time fairness above 1"),
    Column("decision_ms_mean", "Decision, mean", _as("{:.1f} ms")),
    Column("decision_ms_p99", "Decision, p99", _as("{:.1f} ms")),
    Column("wall_s", "Simulated in", _as("{:.1f} s"), hint="Real time that the simulation took"),
)


def _policies_table(results: Sequence[Mapping[str, Any]]) -> str:
    columns = [column for column in COLUMNS if any(result.get(column.key) is not None for result in results)]
    cells = [_cells(column, [result.get(column.key) for result in results]) for column in columns]
    body = []
    for i, result in enumerate(results):
        name = html.escape(str(result["policy"]))
        choose = f'<button type=button class=choose data-policy="{i}"><i class=swatch></i>{name}</button>'
        row = "".join(column[i] for column in cells)
        body.append(f'<tr data-policy="{i}"><th scope=row data-value="{name}">{choose}</th>{row}</tr>')
    first = "<th scope=col><button type=button class=sort>Policy</button></th>"
    head = "".join(_heading(column) for column in columns)
    return f"<thead><tr>{first}{head}</tr></thead><tbody>{''.join(body)}</tbody>"


# --- Owners and queues ---


TENANT_COLUMNS: Final = (
    Column("jobs", "Jobs", _as("{:,.0f}")),
    Column("share", "Share", _as("{:.0f} %", 100), hint="Of the slot time held while it had unfinished jobs"),
    Column("fair_share", "Fair share", _as("{:.0f} %", 100), hint="If all that had unfinished jobs held as much"),
    Column("avg_jct_s", "Average JCT", durations),
    Column("worst_ftf", "Worst FTF", _as("{:.2f}"), hint="Finish-time fairness: JCT over that with a fair share"),
    Column(
        "envy", "Envy", _as("{:.0f} %", 100), hint="Other's slots less its own, of both; worth to it; the most envied"
    ),
)


def _tenants(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A section with a table for the owners and one for the queues, where there are several."""
    for kind, title in (("owners", "Owners"), ("queues", "Queues")):
        rows = [(result["policy"], tenant) for result in results for tenant in result.get(kind, ())]
        if not rows:
            continue
        cells = [_plain_cells(column, [tenant[column.key] for _, tenant in rows]) for column in TENANT_COLUMNS]
        body = []
        for i, (policy, tenant) in enumerate(rows):
            names = f"<th scope=row>{html.escape(policy)}</th><td>{html.escape(tenant['name']) or '–'}</td>"
            body.append(f"<tr>{names}{''.join(column[i] for column in cells)}</tr>")
        hints = (f' title="{html.escape(column.hint)}"' if column.hint else "" for column in TENANT_COLUMNS)
        heads = (f"<th scope=col{hint}>{c.label}</th>" for c, hint in zip(TENANT_COLUMNS, hints, strict=True))
        head = f"<thead><tr><th scope=col>Policy</th><th scope=col>{title[:-1]}</th>{''.join(heads)}</tr></thead>"
        yield f'<section id="{kind}-part" aria-labelledby="{kind}-title">\n<h2 id="{kind}-title">{title}</h2>\n'
        yield f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{kind}-title">'
        yield f"<table>{head}<tbody>{''.join(body)}</tbody></table></div>\n</section>\n"


def _plain_cells(column: Column, values: Sequence[float | None]) -> list[str]:
    """The cells of a column in which nothing is better than anything else."""
    show = column.shows([value for value in values if value is not None])
    return [_cell(value, None if value is None else show(value), best=False) for value in values]


def _heading(column: Column) -> str:
    hint = f' title="{html.escape(column.hint)}"' if column.hint else ""
    return f"<th scope=col{hint}><button type=button class=sort>{html.escape(column.label)}</button></th>"


def _cells(column: Column, values: Sequence[float | None]) -> list[str]:
    """The cells of a column; the best is emphasised unless all look the same."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    show = column.shows(known)
    texts = [show(value) if value is not None and math.isfinite(value) else None for value in values]
    best = show(column.best(known)) if len({text for text in texts if text is not None}) > 1 else None
    return [_cell(value, text, text == best) for value, text in zip(values, texts, strict=True)]


def _cell(value: float | None, text: str | None, best: bool) -> str:
    if text is None:
        return "<td>–</td>"
    shown = text.replace(" ", "\u00a0")
    if not best:
        return f'<td data-value="{value!r}">{shown}</td>'
    return f'<td data-value="{value!r}" class=best><strong>{shown}</strong><span class=spoken> (best)</span></td>'
