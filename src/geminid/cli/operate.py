"""For operators: ``geminid nodes``, ``drain``, ``cordon``, ``quota``, ``usage``, ``events``, ``replay``, ``token``."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from geminid.cli.client import client, give_up, reporting_trouble
from geminid.cli.client import of as at
from geminid.cli.output import (
    Column,
    JsonOption,
    WideOption,
    console,
    error_console,
    gap_percent,
    print_json,
    print_table,
)
from geminid.fields import InvalidInput, Problem

if TYPE_CHECKING:
    from geminid.serve.auth import Identity

UndoOption = Annotated[bool, typer.Option("--undo", help="Let it take work again.")]


def nodes(wide: WideOption = False, json: JsonOption = False) -> None:
    """List nodes, their slots, and the jobs on them."""
    with reporting_trouble():
        found = client().get("nodes")
    if json:
        print_json(found)
        return
    rows = []
    several_zones, several_racks = (len({node[tier] for node in found}) > 1 for tier in ("zone", "rack"))
    for node in found:
        where = f"{node['zone']}/{node['rack']}" if several_zones else node["rack"]
        for slot, job in enumerate(node["jobs"]):
            state = "about to leave" if node["leaving"] else "cordoned" if slot in node["cordoned"] else "in service"
            state = "drained" if node["drained"] else state
            if slot in node["taken"]:
                state = f"not used for now: {node['unfit']}" if node["unfit"] else "used by others"
            state = "gone" if node["down"] else state
            planned = node["planned"][slot]
            row = [f"{node['name']}/{slot}", node["gpu_type"], state, job or "", planned if planned != job else ""]
            rows.append([*row, where] if several_racks else row)
    columns = (
        Column("slot", text=True, least=12),
        Column("type", 2, text=True, least=8),
        Column("state", text=True, least=12),
        Column("job", text=True),
        Column("next", 1, text=True),
        *([Column("zone/rack" if several_zones else "rack", 3, text=True)] if several_racks else []),
    )
    print_table("Slots", columns, [[cell or "" for cell in row] for row in rows])


def drain(
    node: Annotated[str, typer.Argument(help="The node's name.")],
    undo: UndoOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Stop the plain commands that run on it.")] = False,
    json: JsonOption = False,
) -> None:
    """Take a node out of service: elastic jobs save and move off it at once. Plain commands are stopped and begin again
    elsewhere, which needs --yes.
    """
    with reporting_trouble():
        sentence = f"{node} {'takes work again' if undo else 'takes no more work'}"
        if undo:
            client().post(at("nodes", node, "undrain"))
        else:
            affected = _drain(node, yes, ask=sys.stdin.isatty() and not json)
            sentence += (
                f"; {_those(affected['stops'], 'is', 'are')} stopped, to begin again" if affected["stops"] else ""
            )
            if affected["moves"]:
                sentence += f"; {_those(affected['moves'], *_what_movers_do(node))}"
        if undo and node in client().get("status")["leaving"]:
            sentence = f"{node} is not drained any more, but takes no work: the cluster is about to take it away"
        _print_node(node, sentence, json)


def _what_movers_do(drained: str) -> tuple[str, str]:
    """What elastic jobs do that are on a drained node, of one and of several: there may be no other node for them."""
    others = [node for node in client().get("nodes") if node["name"] != drained]
    if any(not (node["drained"] or node["down"] or node["leaving"]) for node in others):
        return "moves off it", "move off it"
    return "saves, and waits for slots", "save, and wait for slots"


def _drain(node: str, yes: bool, *, ask: bool) -> dict[str, list[str]]:
    """Drain a node; at a terminal, ask first if that stops commands."""
    from geminid.serve.client import ServiceError

    try:
        affected: dict[str, list[str]] = client().post(at("nodes", node, "drain"), yes=yes)
    except ServiceError as trouble:
        if trouble.status != 409 or yes or not ask:
            raise
        error_console.print(escape(trouble.sentences[0].partition(":")[0]), soft_wrap=True)
        if not typer.confirm("Drain it?"):
            raise
        return _drain(node, True, ask=False)
    return affected


def _those(jobs: list[str], one: str, several: str) -> str:
    """Jobs and what they do."""
    return f"{', '.join(jobs)} {one if len(jobs) == 1 else several}"


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
        sentence = f"{slot} {'takes work again' if undo else 'takes no new work'}"
        holder = next((one["jobs"][int(number)] for one in client().get("nodes") if one["name"] == node), None)
        if holder is not None and not undo:
            elastic = client().get(at("jobs", holder))["elastic"]
            sentence += f"; {holder} {'moves off it as soon as it can' if elastic else 'stays on it until it ends'}"
        _print_node(node, sentence, json)


def _print_node(name: str, sentence: str, json: bool) -> None:
    """Say what was done, or print the node as it is now."""
    if json:
        print_json(next((node for node in client().get("nodes") if node["name"] == name), None))
    else:
        console.print(sentence)


def quota(
    of: Annotated[Literal["queue", "owner"] | None, typer.Argument(help="Whose quota to set.")] = None,
    name: Annotated[str | None, typer.Argument(help="The queue's or the owner's name.")] = None,
    slots: Annotated[str | None, typer.Argument(help="The most slots together, or `none`.")] = None,
    borrow: Annotated[bool, typer.Option("--borrow", help="Allow more slots while nobody else can use them.")] = False,
    wide: WideOption = False,
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
            quotas = client().put(at("quotas", of, name), slots=None if slots == "none" else slots, borrow=borrow)
        else:
            quotas = client().get("quotas")
    if json:
        print_json(quotas)
    elif not quotas:
        console.print("no quotas are set")
    else:
        rows = [
            [
                *(row["of"], escape(row["name"]), "yes" if row["borrow"] else "", f"{row['slots']}"),
                *(f"{row['used']}", f"{row['beyond'] or ''}"),
            ]
            for row in quotas
        ]
        print_table("Quotas", ["of", "name", "may borrow", "slots", "used", "of these beyond"], rows, text_columns=3)


def queue_members(
    queue: Annotated[str | None, typer.Argument(help="The queue; all are listed when left out.")] = None,
    add: Annotated[list[str] | None, typer.Option(metavar="USER", help="Let this user use it. Repeatable.")] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="USER", help="Remove this user. Repeatable.")] = None,
    open_to_all: Annotated[bool, typer.Option("--open", help="Let everybody use it, without members.")] = False,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List who may use a queue, or change it. A queue with members takes jobs of these and of admins only.

    A queue whose last member is removed takes jobs of admins only, until --open.
    """
    if queue is None and (add or remove or open_to_all):
        raise InvalidInput([Problem("queue", "", "must be given: queue-members QUEUE --add USER")])
    if open_to_all and add:
        raise InvalidInput([Problem("--add", ", ".join(add), "must be left out with --open: all may use the queue")])
    change = {"add_members": add or [], "remove_members": remove or [], **({"open": True} if open_to_all else {})}
    _change_queue(queue, change if add or remove or open_to_all else None, json)


def queue_priority(
    queue: Annotated[str | None, typer.Argument(help="The queue; all are listed when left out.")] = None,
    most: Annotated[
        int | None, typer.Argument(metavar="MAX", min=-1000, max=1000, help="The highest priority for users.")
    ] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List up to which priority users of a queue may go, or set it; 0 where nothing is set. Admins are not limited."""
    _change_queue(queue, None if most is None else {"max_priority": most}, json)


def _change_queue(queue: str | None, change: Mapping[str, object] | None, json: bool) -> None:
    """Change the rules of a queue, if there is a change; print its rules, or those of all queues."""
    with reporting_trouble():
        queues = client().get("queues")
        if queue is not None and change is not None:
            queues = client().patch(at("queues", queue), change)
    if queue is not None:
        rules = [row for row in queues if row["queue"] == queue]
        queues = rules or [{"queue": queue, "max_priority": 0, "members": [], "open": True}]
    if json:
        print_json(queues)
    elif not queues:
        console.print("no queue has rules: all are open to everybody, up to priority 0")
    else:
        rows = [
            [
                escape(row["queue"]),
                "everybody"
                if row.get("open", not row["members"])
                else escape(", ".join(row["members"])) or "admins only",
                f"{row['max_priority']}",
            ]
            for row in queues
        ]
        print_table("Queues", ["queue", "open to", "highest priority"], rows, text_columns=2)


def usage(wide: WideOption = False, json: JsonOption = False) -> None:
    """Show the slot-hours that each owner has used."""
    with reporting_trouble():
        owners = client().get("usage")
    if json:
        print_json(owners)
        return
    rows = [
        [
            escape(row["owner"]),
            *(f"{row[name]}" for name in ("jobs", "running", "waiting", "slots")),
            f"{row['gpu_hours']:.3f}",
            "" if row["quota"] is None else f"{row['quota']}",
        ]
        for row in owners
    ]
    print_table("Usage", ["owner", "jobs", "running", "waiting", "slots", "slot-hours", "quota"], rows)


def events(
    job: Annotated[str | None, typer.Option(help="Only about this job, by identifier or name.")] = None,
    after: Annotated[int | None, typer.Option(min=0, help="Only after the record of this number.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue as they happen.")] = False,
    all: Annotated[bool, typer.Option("--all", "-a", help="Include progress reports.")] = False,
    json: JsonOption = False,
) -> None:
    """Print the service's log of records, without reports of progress."""
    import json as encoder

    from geminid.serve.client import LAST_SEQ
    from geminid.serve.livejob import printable

    while True:
        with reporting_trouble():
            entries, last = client().get_counted(
                "events", count=LAST_SEQ, job=job, after=after, limit=limit, progress=all
            )
        if json and not follow:
            print_json(entries)
            return
        for entry in entries:
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
        after = last
        time.sleep(0.5)


def replay(
    at: Annotated[
        int | None, typer.Option(min=1, help="The number of a record; the last decision when left out.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Ask this policy.", show_default="the one that decided")] = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Repeat a past decision from the log, under the same policy or another one."""
    from geminid.cli.client import give_up
    from geminid.serve.client import home
    from geminid.serve.replay import moment
    from geminid.serve.replay import replay as decide_again
    from geminid.serve.store import StoreProblem

    try:
        again = decide_again(moment(home(), at), policy)
    except StoreProblem as problem:
        give_up(str(problem))
    if json:
        print_json(again)
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(again["at_s"]))
    print_table(
        f"Record {again['seq']}, {when}, {again['slots']} slots, policy {again['policy']}",
        [
            Column("job", text=True),
            Column("name", 1, text=True, least=12),
            Column("had", 2),
            *(Column(name) for name in ("given then", "given now")),
            Column("counts", 4),
            Column("why", 3, text=True, least=16),
        ],
        [
            [
                job["id"],
                escape(job["name"]),
                *(f"{job[name]}" for name in ("slots", "decided_then", "decided_now")),
                f"{math.prod(job['factors'].values()):.3g}" if job["factors"] else "",
                escape(job["reason"]),
            ]
            for job in again["jobs"]
        ],
    )
    for name, price in again["prices"].items():
        console.print(f"a slot of {name} is worth {price:.4g} to the jobs that want one more")
    if again["gap"] is not None:
        console.print(f"within {gap_percent(again['gap'])} of the best decision")


def token(
    user: Annotated[str | None, typer.Argument(help="The user; all tokens are listed when left out.")] = None,
    role: Annotated[Literal["viewer", "user", "admin"], typer.Option(help="What the token allows.")] = "user",
    days: Annotated[
        float | None, typer.Option(min=0.0, max=36_525.0, help="Expires after this many days; never when left out.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take all tokens of this user back instead.")] = False,
    wide: WideOption = False,
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
    if shown := os.environ.get("GEMINID_TOKEN"):  # a token gives the rights of its user
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
        [
            Column("user", text=True, least=12),
            Column("role", text=True),
            Column("made", 3, text=True),
            Column("by", 2, text=True, least=8),
            Column("expires", 1, text=True),
            Column("revoked", 1, text=True),
        ],
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
    )
