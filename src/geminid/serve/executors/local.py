"""The slots of this machine: they are always leased, and processes are started by this process itself."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from geminid import __version__
from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.fields import Problem
from geminid.job import FoundKind, JobSpec
from geminid.node.zygote_pool import WarmLauncher
from geminid.nodes import NodeGroup
from geminid.process.descendants import signal_marked
from geminid.process.environment import clean_environment, default_path
from geminid.process.identity import is_running, still_runs
from geminid.process.launch import Launch, LimitedLauncher, PlainLauncher, WorkerProcess
from geminid.process.python_command import PythonLine
from geminid.process.shim import end_left_groups
from geminid.serve.client import INHERITED
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.commands import Command, CommandExit
from geminid.serve.executors.executor import AgentExecutor, Inbox
from geminid.serve.executors.folders import JobFolders
from geminid.serve.executors.kinds import kind_of
from geminid.serve.executors.launching import ORPHANS_S, Launching
from geminid.serve.executors.nodepool import NodePool
from geminid.serve.executors.plain import (
    PlainCommand,
    end_command,
    end_workers,
    exit_of,
    forget_exit,
    has_processes,
    slots_of,
)
from geminid.serve.executors.provider import AgentPlace, NodeEvent, NodeProvider, NodeSeen, Seat
from geminid.serve.executors.slotnames import SlotNames
from geminid.serve.executors.topology import Topology
from geminid.supervise.handover import worker_marks
from geminid.supervise.spec import Patience
from geminid.supervise.supervisor import Supervisor

#: Where the processes of a plain command reach each other.
LOOPBACK = "127.0.0.1"


def local_executor(
    folder: Path,
    cluster: Cluster,
    *,
    patience: Patience | None = None,
    warm: bool | None = None,
    slot_memory_bytes: int | None = None,
    devices: Sequence[str] = (),
    device_ids: Sequence[str] = (),
    clock: Clock | None = None,
    make_supervisor: Callable[..., Supervisor] = Supervisor,
) -> AgentExecutor:
    """The executor of one machine, whose slots are these devices, if any.

    ``devices`` are what CUDA calls them now, ``device_ids`` what they are called wherever they are (their UUIDs).
    """
    clock, inbox, folders = clock or Clock(), Inbox(), JobFolders(folder)
    provider = LocalProvider(folders, cluster, devices, device_ids)
    can_warm = importlib.util.find_spec("torch") is not None
    agents = LocalAgents(folders, warm=can_warm if warm is None else warm)
    nodes = NodePool(provider, agents, Topology(), clock)
    nodes.handle_provider(provider.nodes())
    launching = Launching(
        provider, agents, nodes, folders, patience or Patience(orphan=ORPHANS_S), slot_memory_bytes, make_supervisor
    )
    made = AgentExecutor(provider, nodes, launching, LocalCommands(folders), LocalSubmissions(cluster), inbox, clock)
    if lost := provider.names.lost:
        here = cluster.total_slots
        gone = f"gone since the service ran last: {'slot' if len(lost) == 1 else 'slots'} {', '.join(lost)}"
        now = f"this machine has {here} slot{'' if here == 1 else 's'} now"
        made.note(f"{gone}; {now}. Jobs that were there continue elsewhere, or wait")
    return made


class LocalProvider(NodeProvider):
    """This machine: one node, or one for each GPU type. Its slots are always ours."""

    names: SlotNames

    def __init__(
        self, folders: JobFolders, cluster: Cluster, devices: Sequence[str] = (), device_ids: Sequence[str] = ()
    ) -> None:
        self._folders, self._cluster = folders, cluster
        self.names = SlotNames(folders.home, cluster, device_ids or devices)
        places = [(node.name, index) for node in cluster.nodes for index in range(node.slots)]
        self._devices = {self.names.name(place): [device] for place, device in zip(places, devices, strict=False)}
        if devices:
            self.device_environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # numbers mean what nvidia-smi says

    def nodes(self) -> list[NodeEvent]:
        """The nodes that this machine is."""
        agent = AgentPlace(LOOPBACK, 0, "", __version__)
        return [
            NodeSeen(NodeGroup(gpu_type=node.gpu_type, slots=node.slots, name=node.name), agent)
            for node in self._cluster.nodes
        ]

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Collection[str]) -> None:
        """End workers that were started and not written down any more, and write down what slots are called."""
        folders = [folder for folder in self._folders.root.glob("*") if folder.is_dir()]
        written = {mark for folder in folders for mark in worker_marks(folder)}
        root = self._folders.root.absolute()
        signal_marked(signal.SIGKILL, lambda mark: [*Path(mark).parents][1:2] == [root] and mark not in written)
        self.names.write()

    def handle(self, event: ExecutorEvent) -> list[NodeEvent]:
        """Nothing is posted."""
        return []

    def lease(self, job_id: str, code: str, slots: Sequence[str]) -> None:
        """All slots are ours."""

    def seat(self, slot: str) -> Seat | None:
        """A slot and its device, if there still is such a slot."""
        return Seat(self._devices.get(slot, [])) if self.names.has(slot) else None

    def release(self, slots: Collection[str]) -> None:
        """All slots stay ours."""

    def close(self, *, detach: bool) -> None:
        """Nothing is to be given back."""


class LocalAgents:
    """Starts processes from this process; they outlive it, and the next service takes them over."""

    def __init__(self, folders: JobFolders, *, warm: bool) -> None:
        self._folders = folders
        self._launcher = LimitedLauncher(WarmLauncher() if warm else PlainLauncher())
        self.adopt, self.close = self._launcher.adopt, self._launcher.close

    def start(self, launch: Launch) -> WorkerProcess:
        """Start a process, with nothing of this process's own environment."""
        return self._launcher.start(replace(launch, environment={**clean_environment(), **launch.environment}))

    def know(self, node: str, host: str, port: int, token: str) -> bool:
        """This process is always there."""
        return True

    def host(self, node: str) -> str:
        """All processes are on this machine."""
        return LOOPBACK

    def runs(self, identity: Mapping[str, Any]) -> bool:
        """Whether a process of an earlier service still runs."""
        return still_runs(identity) and is_running(identity.get("shim", identity)["pid"])

    def end_unknown(self, jobs: Collection[str], keys: Set[str]) -> None:
        """End whatever earlier services left running of other jobs than these."""
        if self._folders.root.is_dir():
            for folder in self._folders.root.iterdir():
                if folder.name not in jobs:
                    end_all(folder)
            within = f"{self._folders.root.absolute()}{os.sep}"
            signal_marked(
                signal.SIGKILL,
                lambda mark: mark.startswith(within) and mark.removeprefix(within).split(os.sep)[0] not in jobs,
            )
        end_left_groups()

    def leave(self, node: str) -> None:
        """This process does not leave this machine."""

    def forget(self, node: str) -> None:
        """This machine does not go away."""

    def doubt(self, node: str) -> bool:
        """Nothing runs elsewhere."""
        return False

    def hold(self, node: str) -> None:
        """Slots need no holder."""

    def end_strangers(self, node: str) -> None:
        """They are ended when the service begins."""


class LocalCommands:
    """Plain commands, each below a shim of its own that writes down in the job's folder how it ended."""

    def __init__(self, folders: JobFolders) -> None:
        self._folders = folders

    def start(self, job_id: str, launches: Sequence[Launch], ended: Callable[[Command], None]) -> Command:
        """Start a job's command."""
        (launch,) = launches
        environment = {**clean_environment(), **launch.environment}
        return PlainCommand.start(self._folders.folder_of(job_id), launch.command, environment, launch.folder, ended)

    def adopt(self, job_id: str, ended: Callable[[Command], None], *, begin: bool, asked: bool) -> Command | None:
        """Take over a job's command, if it still runs."""
        return PlainCommand.adopt(self._folders.folder_of(job_id), ended)

    def slots_of(self, job_id: str) -> tuple[str, ...]:
        """The slots that a job's command was started for: their places may have changed since."""
        return slots_of(self._folders.folder_of(job_id))

    def exit_of(self, job_id: str) -> CommandExit | None:
        """How a job's command ended, if it did."""
        return exit_of(self._folders.folder_of(job_id))

    def forget_exit(self, job_id: str) -> None:
        """A job's command is started again: how it ended before does not matter any more."""
        forget_exit(self._folders.folder_of(job_id))

    def keys(self, job_id: str) -> set[str]:
        """Processes have no keys."""
        return set()


class LocalSubmissions:
    """What can run on this machine: jobs run in their own folders, with their submitters' programs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def interpreter(self, submitters: str) -> str | None:
        """That of the submitter."""
        return submitters

    def inherited(self, submitters: Mapping[str, str]) -> dict[str, str]:
        """The variables that matter to programs."""
        return {name: submitters[name] for name in INHERITED if name in submitters}

    def kind_of(self, spec: JobSpec) -> FoundKind:
        """How a job is to be launched, as far as its specification and its script show."""
        return kind_of(spec)

    def store_code(self, spec: JobSpec) -> str:
        """Jobs run in their own folders."""
        return ""

    def keep_code(self, needed: Collection[str]) -> None:
        """Nothing was stored."""

    def check(self, spec: JobSpec) -> list[Problem]:
        """What keeps this job from ever being run here."""
        problems = []
        line = PythonLine.of(spec.command)
        script = line.script if line is not None and (line.script or "").endswith(".py") else None
        where = Path(spec.working_dir) if spec.working_dir is not None else None
        if where is not None and not where.is_absolute():
            problems.append(Problem("working_dir", spec.working_dir, "must be an absolute path"))
        elif where is not None and not where.is_dir():
            problems.append(Problem("working_dir", spec.working_dir, "must be a folder that exists"))
        elif _program(spec, where) is None:
            problems.append(Problem("command", spec.command[0], "must be a program that is installed here"))
        elif script is not None and not Path(where or ".", script).is_file():
            problems.append(Problem("command", script, "must be a script that exists"))
        elif spec.max_slots is not None and not spec.has_fixed_size and not _may_be_python(spec, where):
            expected = f"must be {spec.min_slots}, as min_slots: {spec.command[0]} runs no Python script"
            expected += ", and only those that train through geminid change their size"
            problems.append(Problem("max_slots", spec.max_slots, expected))
        types = set(self._cluster.type_index)
        if spec.gpu_types.names and not types & set(spec.gpu_types.names):
            expected = f"must name a type that is here: {', '.join(sorted(types))}"
            problems.append(Problem("gpu_types", ", ".join(spec.gpu_types.names), expected))
        nodes = [node.slots for node in self._cluster.nodes if node.gpu_type in (spec.gpu_types.names or types)]
        most = max(nodes, default=self._cluster.total_slots)
        if spec.min_slots > most:
            name = "slots" if spec.has_fixed_size else "min_slots"
            has = "which is what this machine has" + (" of a type" if len(types) > 1 else "")
            expected = f"must be at most {most}, {has}"
            problems.append(Problem(name, spec.min_slots, expected))
        return problems


def _program(spec: JobSpec, where: Path | None) -> str | None:
    path = dict(spec.env).get("PATH") or default_path()
    name = spec.command[0]
    return shutil.which(str(Path(where, name)) if where is not None and "/" in name else name, path=path)


def _may_be_python(spec: JobSpec, where: Path | None) -> bool:
    """Whether a command might run a Python script: by its words, by a file that they name, or as a script itself."""
    if any("py" in word or Path(where or ".", word).is_file() for word in spec.command[1:]):
        return True
    try:
        with open(_program(spec, where) or "", "rb") as file:
            return file.read(4) != b"\x7fELF"
    except OSError:
        return True


def runs(folder: Path) -> bool:
    """Whether processes that an earlier service started live in a job's folder."""
    return has_processes(folder)


def end_all(folder: Path) -> None:
    """End whatever an earlier service left running in a job's folder."""
    end_workers(folder)
    end_command(folder)
