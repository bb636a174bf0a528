"""``geminid up``, ``down`` and ``status``: the service on this machine."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from geminid.cli.client import client, give_up, reporting_trouble
from geminid.cli.clusterfile import SUFFIXES, read_cluster
from geminid.cli.output import console, error_console, gap_percent, print_json
from geminid.units import humanize_duration


def up(
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="CPU slots to offer.", show_default="the CUDA devices, or one per core"),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="0,2,…",
            help="CUDA devices to offer, by number or UUID.",
            show_default="$CUDA_VISIBLE_DEVICES, or all",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start in the background and return.")] = False,
    policy: Annotated[str | None, typer.Option(help="The scheduling policy; see `geminid policies`.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; others than loopback are refused.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen at; 0 for any that is free.",
            show_default="the one of the last service here, if it is free",
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that jobs have to stop before they are killed.")
    ] = 30.0,
    patience: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds that a job waits before narrower ones are held back for it."),
    ] = 60.0,
    slot_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory that a process may use for each of its slots, such as 8GiB."),
    ] = None,
    keep_jobs: Annotated[int, typer.Option(min=0, help="Jobs that are over to keep, at most.")] = 5000,
    keep_days: Annotated[
        float, typer.Option(min=0.0, help="Days for which to keep a job that is over, its logs and its checkpoints.")
    ] = 30.0,
    keep_events: Annotated[int, typer.Option(min=0, help="Records of the log to keep.")] = 100_000,
    executor: Annotated[str, typer.Option(help="Where jobs run: `local` (this machine) or `ray`.")] = "local",
    address: Annotated[str, typer.Option(help="The Ray cluster's head, as HOST:PORT.", show_default="this node's")] = (
        "auto"
    ),
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With `ray`: a cluster file with the nodes' racks, zones and network."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="With `ray`: where checkpoints go, a folder or URL that all nodes reach."),
    ] = None,
    shared_code: Annotated[
        bool, typer.Option("--shared-code", help="With `ray`: all nodes see jobs' folders; do not bring them there.")
    ] = False,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="With `ray`: ask Ray's autoscaler for nodes, and release idle ones.")
    ] = False,
    agent_timeout: Annotated[
        float,
        typer.Option(min=5.0, help="With `ray`: seconds without an answer after which a node's agent is replaced."),
    ] = 120.0,
    public_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where browsers reach the service through a proxy or tunnel: https://…, or a loopback address.",
            show_default="the service's own address",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print where the service is as JSON.")] = False,
) -> None:
    """Start the service on this machine, for its own slots or for those of a Ray cluster."""
    from geminid.fields import InvalidInput, Problem
    from geminid.serve.auth import DamagedTokens
    from geminid.serve.client import home
    from geminid.serve.retention import Retention
    from geminid.serve.server import DEFAULT_POLICY, Options, serve, start_detached
    from geminid.serve.store import StoreProblem

    if host not in ("127.0.0.1", "localhost", "::1"):
        raise InvalidInput([Problem("host", host, "must be a loopback address such as 127.0.0.1")])
    if executor not in ("local", "ray"):
        raise InvalidInput([Problem("executor", executor, "must be local or ray")])
    if executor == "ray" and slots is not None:
        raise InvalidInput([Problem("slots", slots, "goes with --executor local only: a Ray cluster has its own")])
    named = "" if address == "auto" else address
    for_ray = {
        "storage": storage,
        "shared-code": shared_code,
        "autoscale": autoscale,
        "address": named,
        "cluster": cluster,
    }
    for name, value in for_ray.items():
        if executor == "local" and value:
            raise InvalidInput([Problem(name, value, "goes with --executor ray only")])
    if devices is not None and (slots is not None or executor == "ray"):
        other = "--slots" if slots is not None else "--executor ray"
        raise InvalidInput([Problem("devices", devices, f"must be left out with {other}")])
    if storage is not None and "://" not in storage and not Path(storage).is_absolute():
        expected = "must be an absolute path, or a URL such as s3://bucket/folder: every node looks it up by itself"
        raise InvalidInput([Problem("storage", storage, expected)])
    if cluster is not None and Path(cluster).suffix not in SUFFIXES:
        raise InvalidInput([Problem("cluster", cluster, f"must be a file whose name ends in {' or '.join(SUFFIXES)}")])
    options = Options(
        home=home(),
        slots=slots,
        devices=devices,
        policy=policy or DEFAULT_POLICY,
        host=host,
        port=port,
        grace_s=grace,
        patience_s=patience,
        slot_memory_bytes=_size("slot-memory", slot_memory),
        keep=Retention(seconds=86_400.0 * keep_days, jobs=keep_jobs, events=keep_events),
        executor=executor,
        address=address,
        cluster_file=None if cluster is None else Path(cluster).resolve(),
        described=None if cluster is None else read_cluster(cluster),
        storage=storage,
        ship_code=not shared_code,
        autoscale=autoscale,
        agent_timeout_s=agent_timeout,
        public_url=checked_public_url(public_url),
    )
    if detach:
        with reporting_trouble():
            place = start_detached(options)
        if as_json:
            print_json(place)
        else:
            console.print(_where(place, "`geminid down` ends it"), soft_wrap=True)
        return
    from geminid.dashboard.pages import with_dashboard

    try:
        serve(options, _Watcher(as_json), wrap=with_dashboard)
    except (StoreProblem, DamagedTokens) as problem:
        give_up(str(problem))


def _where(place: Mapping[str, object], how_to_end: str) -> str:
    from geminid.serve.server import STARTED

    note = f"; {place['note']}" if place.get("note") else ""
    return f"{STARTED}{place['url']} (process {place['pid']}); {how_to_end}{note}"


class _Watcher:
    """Prints where a service in the foreground is, and that it is ending; nothing else."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def started(self, place: Mapping[str, object]) -> None:
        """It answers, there."""
        with contextlib.suppress(OSError):  # nobody looks any more
            if self._as_json:
                print_json(place)
            else:
                console.print(_where(place, "Ctrl-C or `geminid down` ends it"), soft_wrap=True)
            sys.stdout.flush()

    def ending(self, waits_for: Sequence[str], *, detach: bool) -> None:
        """It has been asked to end, and waits for these jobs to stop, or leaves them running."""
        names = ", ".join(waits_for[:10]) + (f" and {len(waits_for) - 10} more" if len(waits_for) > 10 else "")
        sentence = "the service is ending"
        if names and detach:
            sentence += f": {names} {'goes' if len(waits_for) == 1 else 'go'} on without it"
        elif names:
            sentence += f": it waits for {names} to stop"
        with contextlib.suppress(OSError):
            error_console.print(sentence, soft_wrap=True)


def checked_public_url(text: str) -> str:
    """The address that browsers use, without a slash at its end.

    Raises:
        InvalidInput: it is neither https nor on this machine, or has more than a host and a port.
    """
    from urllib.parse import urlsplit

    from geminid.fields import InvalidInput, Problem

    right = "must be https://HOST[:PORT], or http:// with a loopback address such as http://127.0.0.1:9000"
    try:
        parts = urlsplit(text.rstrip("/"))
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise InvalidInput([Problem("public-url", text, right)]) from None
    is_local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if text and not (parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and is_local))):
        raise InvalidInput([Problem("public-url", text, right)])
    if parts.path or parts.query or parts.fragment or parts.username:
        raise InvalidInput([Problem("public-url", text, f"{right}, and nothing behind it")])
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}" if text else ""


def _size(name: str, text: str | None) -> int | None:
    """A size in bytes; None where none was given."""
    from geminid.fields import InvalidInput, Problem
    from geminid.units import parse_size

    try:
        return None if text is None else int(parse_size(int(text) if text.isdigit() else text))
    except ValueError as problem:
        raise InvalidInput([Problem(name, text, f"must be a size such as 8GiB ({problem})")]) from None


def down(
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave jobs training; the next service takes them over.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """End the service; jobs save what they have done, and continue when it is started again."""
    from geminid.process.identity import is_running
    from geminid.serve.client import LONGEST_END_S, SERVICE, home

    with reporting_trouble():
        pid = 0
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((home() / SERVICE).read_text(encoding="utf-8"))["pid"])
        client().post("shutdown", detach=detach)
    shown = ""
    started = time.monotonic()
    deadline = started + LONGEST_END_S + 30.0
    while pid and is_running(pid):
        if time.monotonic() > deadline:
            give_up(f"the service (process {pid}) has not ended after {LONGEST_END_S + 30.0:g} s")
        time.sleep(0.05 if time.monotonic() < started + 1.0 else 0.5)
        if time.monotonic() >= started + 1.0 and (awaits := _awaited()) not in ("", shown):
            error_console.print(f"waiting for {awaits} to stop", soft_wrap=True)
            shown = awaits
    print_json({"ended": True, "pid": pid, "detached": detach}) if as_json else console.print("the service has ended")


def _awaited() -> str:
    """The jobs that the service waits for, if it says so."""
    from geminid.serve.client import ServiceError

    with contextlib.suppress(ServiceError):
        return ", ".join(client().get("status")["awaited"])
    return ""


def status(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show whether the service runs, its slots and jobs, and warnings."""
    with reporting_trouble():
        answer: dict[str, Any] = client().get("status")
    if as_json:
        print_json(answer)
        return
    jobs = ", ".join(f"{count} {phase}" for phase, count in answer["jobs"].items()) or "none"
    types = ", ".join(f"{slots} × {name}" for name, slots in answer["gpu_types"].items())
    facts = {
        "service": f"{answer['url']} (process {answer['pid']}),"
        f" up for {humanize_duration(round(answer['uptime_s']))}, version {answer['version']}",
        "policy": answer["policy"],
        "slots": f"{answer['slots_held']} of {answer['slots']} in use ({types}){_closed(answer)}",
        "jobs": jobs,
        "decisions": f"{answer['decisions']}, the last in {answer['last_decision_ms']:.1f} ms,"
        f" {answer['rejected_decisions']} rejected",
    }
    if answer["gap"] is not None:
        facts["decisions"] += f", within {gap_percent(answer['gap'])} of the best"
    if answer["prices"]:
        worth = ", ".join(f"{price:.3g} for {name}" for name, price in answer["prices"].items())
        facts["prices"] = f"one more slot is worth {worth}"
    if answer["wishes"]:
        facts["wishes"] = "; ".join(wish["reason"] for wish in answer["wishes"])
    if answer["ending"]:
        facts["ENDING"] = (
            f"waits for {', '.join(answer['awaited'])} to stop" if answer["awaited"] else "has almost ended"
        )
    if answer["trouble"]:
        facts["TROUBLE"] = answer["trouble"]
    for name, fact in facts.items():
        console.print(f"{name + ':':<11}{escape(fact)}", soft_wrap=True)
    for note in answer["notes"][-5:]:
        console.print(
            f"{time.strftime('%H:%M:%S', time.localtime(note['at_s']))} {note['level']}: {escape(note['text'])}"
        )


def _closed(answer: Mapping[str, Any]) -> str:
    """What of the slots is not in service, if anything."""
    drained = [f"{name} is drained" for name in answer["drained"]]
    drained += [f"{name} is about to leave" for name in answer["leaving"]]
    drained += [f"{name} is gone" for name in answer.get("down", ())]
    drained += [f"{len(answer['taken'])} not ours now (`geminid nodes`)"] if answer.get("taken") else []
    cordoned = ", ".join(answer["cordoned"])
    some = [f"{cordoned} {'is' if len(answer['cordoned']) == 1 else 'are'} cordoned"] if cordoned else []
    return "".join(f"; {text}" for text in (*drained, *some))
