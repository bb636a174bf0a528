"""``geminid policies`` and ``geminid workloads``: what is built in."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from geminid.cli.output import Column, JsonOption, WideOption, console, print_json, print_table
from geminid.fields import InvalidInput, Problem, suggestion

if TYPE_CHECKING:
    from geminid.policies.base import Policy

#: Number of paragraphs of a module's docstring that explain its policy.
EXPLAINING_PARAGRAPHS = 3


def policies(
    name: Annotated[str | None, typer.Argument(help="Only this one, with what its options may be.")] = None,
    wide: WideOption = False,
    json_output: JsonOption = False,
) -> None:
    """List the built-in policies with their papers, objectives and options, or describe one of them."""
    from geminid.policies.options import describe
    from geminid.policies.registry import BUILT_IN, options_of

    if name is not None and name not in BUILT_IN:
        expected = f"must be a built-in policy: {', '.join(sorted(BUILT_IN))}{suggestion(name, BUILT_IN)}"
        raise InvalidInput([Problem("policy", name, expected)])
    rows: list[dict[str, Any]] = [
        {
            "name": key,
            "paper": policy.paper,
            "objective": policy.objective,
            "explanation": _explanation(policy),
            "live": not policy.not_live,
            "not_live_because": policy.not_live or None,
            "options": [
                {
                    "name": o.name,
                    "default": o.default,
                    "kind": describe(o.kind),
                    "meaning": policy.meanings.get(o.name, ""),
                }
                for o in options_of(policy)
            ],
        }
        for key, policy in sorted(BUILT_IN.items())
        if name in (None, key)
    ]
    if json_output:
        print_json(rows)
        return
    if name is not None:
        row = rows[0]
        console.print(escape(f"{name}: {row['objective']}\n{row['paper']}\n\n{row['explanation']}"))
        if not row["live"]:
            console.print(escape(f"In simulations only: {row['not_live_because']}."))
        if row["options"]:
            console.print("\nOptions, with their defaults:")
        for option in row["options"]:
            meant = f"{option['meaning']} ({option['kind']})" if option["meaning"] else option["kind"]
            console.print(escape(f"  {option['name']}={_shown(option['default'])}: {meant}"))
        return
    print_table(
        "Built-in policies",
        [
            Column("policy", text=True),
            Column("paper", 2, text=True, least=16),
            Column("objective", 1, text=True, least=28),
            Column("options (default)", 3, text=True, least=24),
        ],
        [
            [
                r["name"],
                r["paper"],
                r["objective"],
                ", ".join(f"{o['name']}={_shown(o['default'])}" for o in r["options"]) or "–",
            ]
            for r in rows
        ],
    )
    console.print("`geminid policies NAME` describes one of them, with its options.")
    console.print("One of each kind, side by side: geminid simulate --policy selection --report policies.html.")
    console.print("Your own: --policy path/to/file.py:Class (docs/writing-a-policy.md).")


def _explanation(policy: type[Policy]) -> str:
    """What a policy does, in a few sentences: its class's docstring, or the beginning of its module's."""
    text = inspect.cleandoc(policy.__doc__ or "")
    if "see the module's docstring" in text:
        text = inspect.cleandoc(sys.modules[policy.__module__].__doc__ or "")
    paragraphs = text.replace("``", "").split("\n\n")[:EXPLAINING_PARAGRAPHS]
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _shown(value: Any) -> str:
    return ";".join(f"{v:g}" for v in value) if isinstance(value, tuple) else str(value).lower()


def workloads(
    wide: WideOption = False,
    json_output: JsonOption = False,
) -> None:
    """List the built-in workloads and the file formats."""
    from geminid.sim.workloads import FORMATS
    from geminid.sim.workloads.generate import BUILT_IN_WORKLOADS

    built_in: list[dict[str, Any]] = [
        {"name": w.name, "jobs": w.jobs, "hours": w.hours, "description": w.description}
        for w in BUILT_IN_WORKLOADS.values()
    ]
    if json_output:
        print_json(built_in)
        return
    print_table(
        "Built-in workloads",
        ["workload", "description", "jobs", "hours"],
        [[w["name"], w["description"], f"{w['jobs']:,}", f"{w['hours']:g}"] for w in built_in],
        text_columns=2,
    )
    print_table(
        "File formats", ["format", "description"], [[f.name, f.description] for f in FORMATS.values()], text_columns=2
    )
