"""The executor of a Ray cluster: the one of all engines, with Ray's nodes."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from geminid.clock import Clock
from geminid.fields import InvalidInput, Problem
from geminid.job import FoundKind, JobSpec
from geminid.node.machine import is_of_this_machine
from geminid.process.launch import SLOT_GONE
from geminid.serve.executors.agentlinks import SILENT_S
from geminid.serve.executors.agents import AgentPool
from geminid.serve.executors.commands import RemoteCommands
from geminid.serve.executors.executor import AgentExecutor, Inbox, several
from geminid.serve.executors.folders import JobFolders
from geminid.serve.executors.kinds import kind_of
from geminid.serve.executors.launching import ORPHANS_S, Launching
from geminid.serve.executors.nodepool import NodePool
from geminid.serve.executors.ray.address import own_address, trouble_at
from geminid.serve.executors.ray.bridge import Bridge
from geminid.serve.executors.ray.code import CannotPack, CodeStore
from geminid.serve.executors.ray.provider import RayProvider
from geminid.serve.executors.topology import Topology
from geminid.supervise.handover import end_of, exit_file_of, report_beside
from geminid.supervise.spec import Patience
from geminid.supervise.supervisor import Supervisor

#: How long to wait for the first node, in seconds.
FIRST_NODE_S = 60.0

#: How long to wait for the agents of the other nodes once there is one, in seconds.
AGENTS_S = 10.0

#: How long a cluster is tried that says why it cannot be used, and nothing else, in seconds.
TROUBLE_S = 15.0

#: How long agents keep what they run without any service, in seconds.
FORSAKEN_S = ORPHANS_S + 120.0

#: In the service's folder: its name among others on the same cluster.
SERVICE_ID = "ray.id"


class NoCluster(Exception):
    """There is no Ray cluster that can be used; one sentence says why."""


def ray_executor(
    folder: Path,
    address: str,
    *,
    patience: Patience | None = None,
    slot_memory_bytes: int | None = None,
    storage: str | None = None,
    moved_from: str = "",
    ship: bool = True,
    autoscale: bool = False,
    silent_s: float = SILENT_S,
    topology: Topology | None = None,
    clock: Clock | None = None,
    make_agents: Callable[..., AgentPool] = AgentPool,
    make_bridge: Callable[..., Bridge] = Bridge,
    make_supervisor: Callable[..., Supervisor] = Supervisor,
) -> AgentExecutor:
    """The executor of the Ray cluster at an address; its nodes are waited for.

    Raises:
        NoCluster: the cluster cannot be used.
    """
    if (trouble := trouble_at(address)) is not None:
        raise NoCluster(f"the Ray cluster cannot be used: {trouble}")
    clock, inbox, service = clock or Clock(), Inbox(), service_id(folder)
    folders = JobFolders(folder, storage and f"{storage.rstrip('/')}/{service}")
    module = "geminid.serve.executors.ray.bridge_process"
    command = [sys.executable, "-m", module, address, service, str(FORSAKEN_S), str(silent_s)]
    provider: RayProvider
    agents = make_agents(
        inbox.post,
        lambda job_id, node: None if (place := provider.code_on(job_id, node)) is None else place.folder,
        lambda node: provider.holders_on(node),
        partial(keep_end, folders),
        silent_s=silent_s,
        clock=clock,
    )
    provider = RayProvider(
        folder,
        partial(make_bridge, command),
        inbox.post,
        hold=agents.hold,
        clock=clock,
        silent_s=silent_s,
        ship=ship,
        autoscale=autoscale,
    )
    nodes = NodePool(provider, agents, topology or Topology(), clock, silent_s=silent_s)
    launching = Launching(
        provider, agents, nodes, folders, patience or Patience(orphan=ORPHANS_S), slot_memory_bytes, make_supervisor
    )
    commands = RemoteCommands(agents, folders.folder_of)
    submissions = RaySubmissions(provider.store, ships=ship)
    made = AgentExecutor(provider, nodes, launching, commands, submissions, inbox, clock)
    provider.in_use = made.jobs.used_slots
    try:
        wait_for_nodes(made, provider, clock)
    except BaseException:
        provider.bridge.close()
        agents.close()
        raise
    provider.host = own_address(next(iter(provider.seen.values())).address, address)
    warn_of_storage(made, provider, storage, moved_from)
    return made


def wait_for_nodes(made: AgentExecutor, provider: RayProvider, clock: Clock) -> None:
    """Wait until the agents of all nodes that Ray has answer, or some do and time is up.

    Raises:
        NoCluster: none does.
    """
    now_s = clock.monotonic_s
    troubled_since_s = now_s()
    deadline_s = troubled_since_s + FIRST_NODE_S
    while now_s() < deadline_s:
        made.wait_for_event()
        if made.nodes.is_complete:
            return
        if made.nodes.up:
            deadline_s = min(deadline_s, now_s() + AGENTS_S)
        if not provider.bridge.trouble or provider.seen:
            troubled_since_s = now_s()
        elif now_s() - troubled_since_s > TROUBLE_S:
            break
    if not made.nodes.up:
        raise NoCluster(f"the Ray cluster cannot be used: {_why_unusable(made, provider)}")


def _why_unusable(made: AgentExecutor, provider: RayProvider) -> str:
    if provider.bridge.trouble:
        return provider.bridge.trouble
    if not provider.has_looked:
        return f"Ray has not answered within {FIRST_NODE_S:g} s: is this a machine of the cluster, with a raylet?"
    if not provider.seen:
        return "no node of it has a GPU, a geminid_slot or a CPU"
    reasons = {*provider.agentless.values(), *made.nodes.agentless.values()}
    why = f": {reasons.pop()}" if len(reasons) == 1 else ""
    return f"no agent of {several(sorted(provider.seen))} has started{why}"


def warn_of_storage(made: AgentExecutor, provider: RayProvider, storage: str | None, moved_from: str) -> None:
    """Warn the operator that nodes must see the service's folder, or that checkpoints were elsewhere before."""
    if moved_from:
        now = f"checkpoints are kept in {storage}, and those of jobs that have run before are looked for there"
        made.note(f"{now}; they were kept in {moved_from}")
    elsewhere = sorted(name for name, node in provider.seen.items() if not is_of_this_machine(node.address))
    if storage is None and elsewhere:
        seen = f"{several(elsewhere)} must see that folder" if len(elsewhere) < 4 else "all nodes must see it"
        made.note(f"checkpoints are kept in {made.folders.root}: {seen}; 'geminid up --storage' names another")


class RaySubmissions:
    """What can run on a Ray cluster: nodes may still come, so that there is no limit to sizes."""

    def __init__(self, store: CodeStore, *, ships: bool) -> None:
        self._store, self._ships = store, ships

    def check(self, spec: JobSpec) -> list[Problem]:
        """What keeps this job from ever running here."""
        if spec.working_dir is not None and not Path(spec.working_dir).is_absolute():
            return [Problem("working_dir", spec.working_dir, "must be an absolute path")]
        if self._ships and spec.working_dir is not None and not Path(spec.working_dir).is_dir():
            return [Problem("working_dir", spec.working_dir, "must be a folder of the service's machine")]
        return []

    def interpreter(self, submitters: str) -> str | None:
        """The command ``python`` stands for that of the job's environment on each node, or of the node's agent."""
        return None

    def inherited(self, submitters: Mapping[str, str]) -> dict[str, str]:
        """The folders of the submitter's machine are not those of the nodes: a job has its language, no more."""
        return {name: value for name, value in submitters.items() if name == "LANG"}

    def kind_of(self, spec: JobSpec) -> FoundKind:
        """How a job is to be launched, as far as its specification and its script show."""
        return kind_of(spec)

    def store_code(self, spec: JobSpec) -> str:
        """Snapshot a job's folder, unless all nodes see it."""
        if not self._ships or spec.working_dir is None:
            return ""
        try:
            return self._store.store(Path(spec.working_dir))
        except (CannotPack, OSError) as problem:
            text = problem if isinstance(problem, CannotPack) else f"cannot be packed: {problem}"
            raise InvalidInput([Problem("working_dir", spec.working_dir, f"it {text}")]) from problem

    def keep_code(self, needed: Collection[str]) -> None:
        """Delete snapshots of jobs that are over."""
        self._store.keep_only(needed)


def keep_end(folders: JobFolders, key: str, code: int, well: bool, report: str) -> None:
    """A worker has ended: how, and what it left on its node, is left in the job's folder for the next service."""
    job_id, _, worker = key.rpartition(".")[0].partition("/")
    folder = folders.folder_of(job_id)
    if not folder.is_dir():
        return
    with contextlib.suppress(OSError):
        if code != SLOT_GONE:
            exit_file_of(folder, worker).write_text(json.dumps({"code": code}), encoding="utf-8")
        if report:
            report_beside(end_of(folder, worker)).write_text(report, encoding="utf-8")
        if well:
            end_of(folder, worker).touch(mode=0o600)


def service_id(folder: Path) -> str:
    """A name for this service among others on the same cluster, made once."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / SERVICE_ID
    if not path.exists():
        path.write_text(secrets.token_hex(4), encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
