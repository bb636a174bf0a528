"""The process of a service: from the lock on its store to the last answer of its interface."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Protocol

from geminid import __version__
from geminid.cluster import Cluster
from geminid.fields import InvalidInput, Problem
from geminid.node.machine import chosen_devices, machine
from geminid.process.disk_full import is_full, keep_printing
from geminid.process.identity import identity_of
from geminid.serve.auth import Tokens, first_token, write_private
from geminid.serve.client import BAD_INPUT, FAILED, SERVICE, Client, ServiceError
from geminid.serve.executors.agentlinks import SILENT_S
from geminid.serve.executors.base import Executor
from geminid.serve.executors.folders import JOBS
from geminid.serve.executors.launching import ORPHANS_S
from geminid.serve.executors.local import local_executor
from geminid.serve.lastport import keep_port, listen
from geminid.serve.planner import POLICY_LIMIT_S
from geminid.serve.privacy import check_private
from geminid.serve.reservations import PATIENCE_S
from geminid.serve.retention import Retention
from geminid.serve.service import Service
from geminid.serve.servicelog import LARGEST_LOG_BYTES, LOG, log_to
from geminid.serve.store import Store, StoreProblem, StoreTaken, make_home
from geminid.supervise.channel import LONGEST_SOCKET_PATH
from geminid.supervise.spec import Patience

#: The default policy: decides at most every two seconds and at least every twenty, gives free slots to waiting jobs at
#: once, and favours owners who have used less than their share (what was used a day ago counts half).
DEFAULT_POLICY = "geminid:gap=2,refresh=20,fill=true,half_life=86400"

#: Time in seconds after which followers of logs and other long answers are cut off when the service ends.
GRACE_S = 2

#: Time in seconds after which threads give way to each other: short answers must not wait for decisions and forecasts.
SWITCH_S = 0.0005

#: Share of a policy's time limit that its solver may take.
SOLVING = 0.4

#: Workers talk to their supervisors through sockets in the home folder, whose paths the system limits.
LONGEST_HOME = LONGEST_SOCKET_PATH - len("/jobs/j1234567890/control")

#: The file that says which executor the last service of a home used.
EXECUTOR = "executor.json"

#: How the first line begins that a service in the foreground prints.
STARTED = "service at "

#: Variables of the environment that only clients of a service need.
OWN_SECRETS = ("GEMINID_TOKEN", "GEMINID_URL")

#: Longest time in seconds that a service may take to start: it imports large packages, perhaps from a cold disk.
START_PATIENCE_S = 60.0

#: … on a Ray cluster, where it also starts an agent on every node.
CLUSTER_PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a service is started; ``described`` is what its ``cluster_file`` says."""

    home: Path
    slots: int | None = None
    devices: str | None = None
    policy: str = DEFAULT_POLICY
    host: str = "127.0.0.1"
    port: int | None = None
    grace_s: float = 30.0
    patience_s: float = PATIENCE_S
    keep: Retention = field(default_factory=Retention)
    slot_memory_bytes: int | None = None
    executor: str = "local"
    address: str = "auto"
    cluster_file: Path | None = None
    described: Cluster | None = None
    storage: str | None = None
    ship_code: bool = True
    autoscale: bool = False
    agent_timeout_s: float = SILENT_S
    public_url: str = ""


class Watcher(Protocol):
    """What is notified of the start and the end of a service in the foreground."""

    def started(self, place: Mapping[str, object]) -> None:
        """The service answers at this place."""

    def ending(self, waits_for: Sequence[str], *, detach: bool) -> None:
        """The service is ending: it waits for these jobs to stop, or leaves them running (``detach``)."""


#: An ASGI application.
App = Callable[..., Awaitable[None]]


def serve(
    options: Options,
    watcher: Watcher | None = None,
    *,
    before_write: Callable[[str], None] = lambda point: None,
    wrap: Callable[[App], App] = lambda app: app,
) -> None:
    """Run the service until it is asked to end.

    ``before_write`` is for tests that break it; see :class:`Store`. ``wrap`` adds pages to the interface.

    Raises:
        StoreProblem: another service has the store, or it cannot be used.
        InvalidInput: the policy is none, or a device.
    """
    from geminid.sim.run import named_policy  # imports all policies, which is slow

    policy = named_policy(options.policy, limit_s=SOLVING * POLICY_LIMIT_S)
    if policy.not_live:
        raise InvalidInput([Problem("policy", options.policy, f"runs in simulations only: {policy.not_live}")])
    sys.setswitchinterval(SWITCH_S)
    keep_printing()
    for name in OWN_SECRETS:  # no process of a job inherits them
        os.environ.pop(name, None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with (
        _taken(options, before_write) as store,
        contextlib.closing((listening := listen(options.home, options.host, options.port)).socket) as listener,
    ):
        log_to(options.home / LOG)
        first_token(options.home)
        options, moved_from = _as_before(options, store)
        executor = _executor(options, moved_from)
        write_private(options.home / EXECUTOR, json.dumps({"executor": options.executor, "storage": options.storage}))
        service = Service(store, executor, policy, options.policy, patience_s=options.patience_s, keep=options.keep)
        port = listener.getsockname()[1]
        url = f"http://{options.host}:{port}"
        keep_port(options.home, options.host, port)
        try:
            _answer(service, listener, options, url, watcher, wrap=wrap, note=listening.note)
        finally:
            with contextlib.suppress(OSError, ValueError, KeyError):
                place = json.loads((options.home / SERVICE).read_text(encoding="utf-8"))
                if place["pid"] == os.getpid():  # it may be that of a service that has taken over
                    (options.home / SERVICE).unlink(missing_ok=True)


def _taken(options: Options, before_write: Callable[[str], None]) -> Store:
    """The store; the error says so if a service that is ending still has it."""
    make_home(options.home)
    check_private(options.home)
    try:
        return Store(options.home, before_write=before_write, events_kept=options.keep.events)
    except StoreTaken:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            place = json.loads((options.home / SERVICE).read_text(encoding="utf-8"))
            if place["ending"]:
                sentence = (
                    f"the service on {options.home} (process {place['pid']}) is ending, and waits for its jobs to stop"
                )
                raise StoreTaken(f"{sentence}; try again when it has ended: `geminid status` lists them") from None
        raise


def _as_before(options: Options, store: Store) -> tuple[Options, str]:
    """The options, with the storage of the last service if none is named; and what that was, if it is another one.

    Raises:
        StoreProblem: the jobs that are left have run elsewhere, and would not find their checkpoints here.
    """
    try:
        before = json.loads((options.home / EXECUTOR).read_text(encoding="utf-8"))
        executor, storage = str(before["executor"]), before["storage"]
    except (OSError, ValueError, KeyError, TypeError):
        return options, ""
    if (executor, storage) == (options.executor, options.storage):
        return options, ""
    jobs = store.load().jobs.values()
    has_run = any(not job.phase.is_terminal and job.state.first_started_at_s is not None for job in jobs)
    if executor != options.executor and has_run:
        sentence = (
            f"jobs of {options.home} have run with --executor {executor}, and are not over: start it with that again"
        )
        raise StoreProblem(
            f"{sentence} (and cancel them, if they are not needed), or set GEMINID_HOME to another folder"
        )
    if executor != "ray" or options.executor != "ray":
        return options, ""
    if options.storage is None:
        return replace(options, storage=storage), ""
    return options, (storage or str(options.home / JOBS)) if has_run else ""


def _executor(options: Options, moved_from: str) -> Executor:
    patience = Patience(grace=options.grace_s, orphan=ORPHANS_S)
    if options.executor == "local":
        if len(os.fsencode(options.home)) > LONGEST_HOME:
            sentence = (
                f"{options.home} has {len(os.fsencode(options.home))} bytes, and sockets in it need a path of at most"
            )
            raise StoreProblem(f"{sentence} {LONGEST_HOME}: set GEMINID_HOME to a shorter one")
        devices = chosen_devices(options.devices) if options.slots is None else []
        return local_executor(
            options.home,
            machine(options.slots, devices),
            patience=patience,
            slot_memory_bytes=options.slot_memory_bytes,
            devices=[device.index for device in devices],
            device_ids=[device.uuid for device in devices],
        )
    if importlib.util.find_spec("ray") is None:
        raise StoreProblem("Ray is not installed here: pip install 'geminid[ray]'")
    from geminid.serve.executors.ray.executor import NoCluster, ray_executor
    from geminid.serve.executors.topology import Topology

    try:
        return ray_executor(
            options.home,
            options.address,
            patience=patience,
            slot_memory_bytes=options.slot_memory_bytes,
            storage=options.storage,
            moved_from=moved_from,
            ship=options.ship_code,
            autoscale=options.autoscale,
            silent_s=options.agent_timeout_s,
            topology=Topology(options.described),
        )
    except NoCluster as problem:
        raise StoreProblem(str(problem)) from None


def _answer(
    service: Service,
    listener: socket.socket,
    options: Options,
    url: str,
    watcher: Watcher | None,
    *,
    wrap: Callable[[App], App],
    note: str,
) -> None:
    """Answer requests until the service has ended: also while it waits for its jobs to stop."""
    import uvicorn

    from geminid.serve.api import ApiContext, make_app
    from geminid.serve.connections import ACCEPTED_AT_ONCE, BACKLOG, ConnectionLimits, guarded, raise_descriptor_limit

    asked: list[bool] = []
    home = options.home

    def stop_answering() -> None:
        server.should_exit = True

    def wind_down() -> None:
        if watcher is not None:
            jobs = service.published.state.jobs.values()
            watcher.ending([job.id for job in jobs if job.phase.holds_slots], detach=asked[0])
        with contextlib.suppress(Exception):  # raised below
            service.end(detach=asked[0])
        stop_answering()

    def shut_down(detach: bool) -> None:
        if not asked:  # the first word counts
            asked.append(detach)
            with contextlib.suppress(OSError):  # a full disk
                write_private(home / SERVICE, json.dumps({**place, "ending": True}))
            threading.Thread(target=wind_down, name="geminid end", daemon=True).start()

    class Server(uvicorn.Server):
        """A server that winds down at the first signal, and ends at once at the second."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if not asked:
                shut_down(False)
            else:
                super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listener.listen(BACKLOG)  # the system may keep more waiting than are accepted at once

    context = ApiContext(
        service,
        Tokens(home),
        home,
        url,
        shut_down=shut_down,
        is_ending=lambda: server.should_exit,
        public_url=options.public_url,
    )
    server = Server(
        uvicorn.Config(
            wrap(make_app(context)),
            http=guarded(ConnectionLimits.for_descriptors(raise_descriptor_limit())),
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            lifespan="off",
        )
    )
    service.on_failure = stop_answering  # a service manager can start another
    signal.signal(signal.SIGTERM, lambda *_: None)  # the server passes signals on when it is done: not to end us then
    service.start()
    context.recorder.start()
    context.notifier.start()
    place = {"url": url, **identity_of(os.getpid()), "version": __version__}
    place |= {"note": note} if note else {}
    write_private(home / SERVICE, json.dumps(place))
    logging.getLogger("geminid.serve").info("service at %s with %s slots", url, service.cluster.total_slots)
    if watcher is not None:
        watcher.started(place)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    context.notifier.close()
    context.recorder.close()
    service.end(detach=bool(asked and asked[0]))  # returns when it has ended; raises what went wrong


def start_detached(options: Options) -> dict[str, object]:
    """Start a service in a process of its own, and wait until it answers; where it is.

    Raises:
        ServiceError: it did not start; its own words say why.
    """
    try:
        make_home(options.home)
        check_private(options.home)
    except StoreProblem as problem:
        raise ServiceError(FAILED, str(problem)) from None
    out = options.home / "service.out"
    command: Sequence[str] = (
        *(sys.executable, "-m", "geminid", "up", "--policy", options.policy),
        *("--host", options.host, "--grace", str(options.grace_s)),
        *(() if options.port is None else ("--port", str(options.port))),
        *("--patience", str(options.patience_s)),
        *("--keep-jobs", str(options.keep.jobs), "--keep-days", str(options.keep.seconds / 86_400.0)),
        *("--keep-events", str(options.keep.events)),
        *("--executor", options.executor, "--address", options.address),
        *("--agent-timeout", str(options.agent_timeout_s)),
        *(() if options.slot_memory_bytes is None else ("--slot-memory", str(options.slot_memory_bytes))),
        *(() if options.slots is None else ("--slots", str(options.slots))),
        *(() if options.devices is None else ("--devices", options.devices)),
        *(() if options.storage is None else ("--storage", options.storage)),
        *(() if options.cluster_file is None else ("--cluster", str(options.cluster_file))),
        *(() if options.ship_code else ("--shared-code",)),
        *(("--autoscale",) if options.autoscale else ()),
        *(("--public-url", options.public_url) if options.public_url else ()),
    )
    if out.exists() and out.stat().st_size > LARGEST_LOG_BYTES:
        out.replace(out.with_suffix(".out.1"))
    with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        before = file.tell()
        child = subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if name not in OWN_SECRETS}
            | {"GEMINID_HOME": str(options.home)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    patience_s = START_PATIENCE_S + (CLUSTER_PATIENCE_S if options.executor == "ray" else 0.0)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if child.poll() is not None:
            said = out.read_bytes()[before:].decode("utf-8", "replace")
            sentences = [
                line.removeprefix("error: ") for line in said.splitlines() if line and not line.startswith(STARTED)
            ]
            code = BAD_INPUT if child.returncode == BAD_INPUT else FAILED
            if not sentences and is_full(options.home):
                sentences = [f"the disk of {options.home} is full: the service can write nothing down, and has ended"]
            raise ServiceError(
                code, sentences[-1] if sentences else f"the service ended with exit code {child.returncode}"
            )
        with contextlib.suppress(OSError, ValueError, KeyError, ServiceError):
            document: dict[str, object] = json.loads((options.home / SERVICE).read_text(encoding="utf-8"))
            if document["pid"] == child.pid:
                Client.here(options.home).get("status")
                return document
        time.sleep(0.05)
    child.kill()
    raise ServiceError(FAILED, f"the service did not answer within {patience_s:g} s; see {options.home / LOG}")
