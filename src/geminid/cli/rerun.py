"""``geminid rerun``: submits a job again, with some of its fields changed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from geminid.cli.client import away_s, client, of, reporting_trouble
from geminid.cli.jobs import JobArgument
from geminid.cli.output import JsonOption, console, print_json
from geminid.fields import InvalidInput, Problem


def rerun(
    job: JobArgument,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND …]", help="Another command, after two dashes.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="A field of the job file, or env.NAME, that is different. Repeatable."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Submit a job again: the same command, folder, environment and limits."""
    from geminid.serve.submitting import submit_once

    document = parsed(changes or [])
    if command:
        document["command"] = command
    with reporting_trouble():
        known = client().get(of("jobs", job))["id"]
        made = submit_once(client, document, patience_s=away_s(), to=of("jobs", known, "rerun"))
    if json:
        print_json(made)
    else:
        console.print(f"submitted [bold]{made['id']}[/] ({made['name']}), as {known}", soft_wrap=True)


def parsed(changes: list[str]) -> dict[str, Any]:
    """Changes as they are typed, such as ``slots=4`` or ``env.LR=0.1``; values are YAML, those of ``env`` texts.

    Raises:
        InvalidInput: one has no equals sign, or its value cannot be read.
    """
    from geminid.documents import load_yaml

    found: dict[str, Any] = {}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput([Problem("option --set", text, "must look like slots=4 or env.LR=0.1")])
        field, dot, variable = name.partition(".")
        if dot and field == "env":
            found.setdefault("env", {})[variable] = value
        else:
            found[name] = load_yaml(value)
    return found
