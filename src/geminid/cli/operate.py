"""For operators: ``geminid nodes``, ``drain``, ``cordon``, ``quota``, ``usage``, ``events``, ``replay``, ``token``."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from geminid.cli.client import client, give_up, reporting_trouble
from geminid.cli.client import of as at
from geminid.cli.output import console, gap_percent, print_json, print_table
from geminid.fields import InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.serve.auth import Identity

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
UndoOption = Annotated[bool, typer.Option("--undo", help="Let it take work again.")]


def nodes(json: JsonOption = False) -> None:
    """List nodes, their slots, and who is on them."""
    with reporting_trouble():
        told = client().get("nodes")
    if json:
        print_json(told)
        return
    rows = []
    for node in told:
        for slot, job in enumerate(node["jobs"]):
            state = "about to leave" if node["leaving"] else "cordoned" if slot in node["cordoned"] else "in service"
            state = "drained" if node["drained"] else state
            if slot in node["taken"]:
                state = f"not used for now: {node['unfit']}" if node["unfit"] else "used by others"
            state = "gone" if node["down"] else state
            planned = node["planned"][slot]
            rows.append(
                [f"{node['name']}/{slot}", node["gpu_type"], state, job or "", planned if planned != job else ""]
            )
    print_table(
        "Slots", ["slot", "type", "state", "job", "next"], [[c or "" for c in row] for row in rows], text_columns=5
    )


def drain(
    node: Annotated[str, typer.Argument(help="The node's name.")],
    undo: UndoOption = False,
    json: JsonOption = False,
) -> None:
    """Take a node out of service: jobs save and move off it at once; plain commands begin again elsewhere."""
    with reporting_trouble():
        client().post(at("nodes", node, "undrain" if undo else "drain"))
        told = f"{node} {'takes work again' if undo else 'takes no more work'}"
        if undo and node in client().get("status")["leaving"]:
            told = f"{node} is not drained any more, but takes no work: the cluster is about to take it away"
        _tell_node(node, told, json)


def cordon(
    slot: Annotated[str, typer.Argument(metavar="NODE/SLOT", help="The slot, as in local/0.")],
    undo: UndoOption = False,
    json: JsonOption = False,
) -> None:
    """Have a single slot take no new work. Elastic jobs leave it live as soon as they can, commands when they end."""
    node, _, number = slot.rpartition("/")
    if not node or not number.isdigit():
        raise InvalidInput([Problem("slot", slot, "must have the form NODE/SLOT, as in local/0")])
    with reporting_trouble():
        client().post(at("slots", node, number, "uncordon" if undo else "cordon"))
        told = f"{slot} {'takes work again' if undo else 'takes no new work'}"
        holder = next((one["jobs"][int(number)] for one in client().get("nodes") if one["name"] == node), None)
        if holder is not None and not undo:
            elastic = client().get(at("jobs", holder))["elastic"]
            told += f"; {holder} {'moves off it as soon as it can' if elastic else 'stays on it until it ends'}"
        _tell_node(node, told, json)


def _tell_node(name: str, sentence: str, json: bool) -> None:
    """Say what was done, or print the node as it is now."""
    if json:
        print_json(next((node for node in client().get("nodes") if node["name"] == name), None))
    else:
        console.print(sentence)


def quota(
    of: Annotated[Literal["queue", "owner"] | None, typer.Argument(help="Whose quota to set.")] = None,
    name: Annotated[str | None, typer.Argument(help="The queue's or the owner's name.")] = None,
    slots: Annotated[str | None, typer.Argument(help="The most slots together, or `none`.")] = None,
    borrow: Annotated[
        bool, typer.Option("--borrow", help="They may have more for as long as nobody else can use it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List quotas; or set one: geminid quota owner ann 4."""
    given = [value for value in (of, name, slots) if value is not None]
    if len(given) not in (0, 3):
        raise InvalidInput([Problem("quota", " ".join(given), "must be: quota {queue|owner} NAME SLOTS")])
    if slots is not None and slots != "none" and not slots.isdigit():
        raise InvalidInput([Problem("slots", slots, "must be a whole number, or none")])
    with reporting_trouble():
        if of is not None and name is not None:
            told = client().put(at("quotas", of, name), slots=None if slots == "none" else slots, borrow=borrow)
        else:
            told = client().get("quotas")
    if json:
        print_json(told)
    elif not told:
        console.print("no quotas are set")
    else:
        rows = [
            [
                *(row["of"], escape(row["name"]), "yes" if row["borrow"] else "", f"{row['slots']}"),
                *(f"{row['used']}", f"{row['beyond'] or ''}"),
            ]
            for row in told
        ]
        print_table("Quotas", ["of", "name", "may borrow", "slots", "used", "of these beyond"], rows, text_columns=3)


def usage(json: JsonOption = False) -> None:
    """Say who has used what."""
    with reporting_trouble():
        told = client().get("usage")
    if json:
        print_json(told)
        return
    rows = [
        [
            escape(row["owner"]),
            *(f"{row[name]}" for name in ("jobs", "running", "waiting", "slots")),
            f"{row['gpu_hours']:.3f}",
            "" if row["quota"] is None else f"{row['quota']}",
        ]
        for row in told
    ]
    print_table("Usage", ["owner", "jobs", "running", "waiting", "slots", "slot-hours", "quota"], rows)


def events(
    job: Annotated[str | None, typer.Option(help="Only about this job.")] = None,
    after: Annotated[int | None, typer.Option(min=0, help="Only after the record of this number.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen.")] = False,
    json: JsonOption = False,
) -> None:
    """Print the service's log of records."""
    import json as encoder

    from geminid.serve.livejob import printable

    while True:
        with reporting_trouble():
            told = client().get("events", job=job, after=after, limit=limit)
        if json and not follow:
            print_json(told)
            return
        for entry in told:
            after = entry["seq"]
            if json:
                print(encoder.dumps(entry))
                continue
            at = time.strftime("%H:%M:%S", time.localtime(entry["at_s"]))
            rest = {key: value for key, value in entry.items() if key not in ("seq", "at_s", "kind", "spec")}
            fields = " ".join(
                f"{key}={printable(str(value))}" for key, value in rest.items() if value not in (None, "", {})
            )
            console.print(f"[dim]{entry['seq']:>6}[/] {at} [bold]{entry['kind']}[/] {escape(fields)}", soft_wrap=True)
        if not follow:
            return
        after = after or 0
        time.sleep(0.5)


def replay(
    at: Annotated[
        int | None, typer.Option(min=1, help="The number of a record; the last decision when left out.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Ask this policy.", show_default="the one of then")] = None,
    json: JsonOption = False,
) -> None:
    """Make a decision of the past again, from the log: as it was, or under another policy."""
    from geminid.cli.client import give_up
    from geminid.serve.client import home
    from geminid.serve.replay import moment
    from geminid.serve.replay import replay as decide_again
    from geminid.serve.store import StoreProblem

    try:
        told = decide_again(moment(home(), at), policy)
    except StoreProblem as problem:
        give_up(str(problem))
    if json:
        print_json(told)
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["at_s"]))
    print_table(
        f"Record {told['seq']}, {when}, {told['slots']} slots, policy {told['policy']}",
        ["job", "name", "had", "given then", "given now", "counts", "why"],
        [
            [
                job["id"],
                escape(job["name"]),
                *(f"{job[name]}" for name in ("slots", "decided_then", "decided_now")),
                f"{math.prod(job['factors'].values()):.3g}" if job["factors"] else "",
                escape(job["reason"]),
            ]
            for job in told["jobs"]
        ],
        text_columns=2,
    )
    for name, price in told["prices"].items():
        console.print(f"a slot of {name} is worth {price:.4g} to the jobs that want one more")
    if told["gap"] is not None:
        console.print(f"within {gap_percent(told['gap'])} of the best decision")


def token(
    user: Annotated[str | None, typer.Argument(help="For whom; all tokens are listed when left out.")] = None,
    role: Annotated[Literal["user", "admin"], typer.Option(help="What the token allows.")] = "user",
    days: Annotated[
        float | None, typer.Option(min=0.0, max=36_525.0, help="Expires after so many days; never when left out.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take all tokens of this user back instead.")] = False,
    json: JsonOption = False,
) -> None:
    """Make a token for a user, which is printed once; without a user, list all that were made."""
    from geminid.fields import check_name
    from geminid.serve.auth import DamagedTokens, Tokens
    from geminid.serve.client import NOT_ALLOWED, home

    if not home().is_dir():
        raise InvalidInput([Problem("GEMINID_HOME", str(home()), "must be the folder of a service; start one first")])
    tokens = Tokens(home())
    try:
        tokens.all()
    except DamagedTokens as problem:
        give_up(str(problem))
    if shown := os.environ.get("GEMINID_TOKEN"):  # whoever acts as somebody may do what that one may
        known = tokens.identify(shown)
        if known is None or not known.is_admin:
            whose = "is not valid here" if known is None else f"is that of {known.user}, who is no admin"
            give_up(f"the token in GEMINID_TOKEN {whose}: only admins make, list and revoke tokens", NOT_ALLOWED)
    if user is None:
        _list_tokens(tokens.all(), json)
        return
    if problems := check_name("user", user):
        raise InvalidInput(problems)
    try:
        count = tokens.revoke(user) if revoke else 0
        made = "" if revoke else tokens.add(user, role, None if days is None else 86_400.0 * days)
    except OSError as problem:
        give_up(f"the tokens of {home()} cannot be written: {problem.strerror}")
    if revoke:
        if json:
            print_json({"user": user, "revoked": count})
        else:
            console.print(f"{count} tokens of {user} are not valid any more")
        return
    print_json({"user": user, "role": role, "token": made, "days": days}) if json else print(made)


def _list_tokens(known: list[Identity], json: bool) -> None:
    def at(at_s: float | None) -> str:
        return "" if at_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))

    rows = [{name: value for name, value in asdict(one).items() if name != "hash"} for one in known]
    if json:
        print_json(rows)
        return
    print_table(
        "Tokens",
        ["user", "role", "made", "by", "expires", "revoked"],
        [
            [
                escape(row["user"]),
                row["role"],
                at(row["made_at_s"]),
                escape(row["made_by"]),
                at(row["expires_at_s"]) or "never",
                at(row["revoked_at_s"]),
            ]
            for row in rows
        ],
        text_columns=6,
    )
