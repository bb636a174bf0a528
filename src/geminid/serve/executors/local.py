"""Jobs on the slots of this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.fields import Problem
from geminid.job import JobSpec
from geminid.node.machine import slot_environment
from geminid.node.zygote_pool import WarmLauncher
from geminid.process.descendants import signal_marked
from geminid.process.environment import default_path
from geminid.process.launch import LimitedLauncher, PlainLauncher
from geminid.process.python_command import PythonLine
from geminid.process.shim import end_left_groups
from geminid.serve import records as r
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.folders import JOBS, JobFolders
from geminid.serve.executors.plain import (
    PlainCommand,
    PlainExit,
    end_command,
    end_workers,
    exit_of,
    forget_exit,
    live_pid,
    live_workers,
    slots_of,
)
from geminid.serve.executors.rendezvous import meeting_place, place_among
from geminid.serve.executors.slotnames import SlotNames
from geminid.serve.executors.supervised import (
    ORPHANS_S,
    Command,
    SupervisedExecutor,
    job_environment,
    worker_options,
)
from geminid.serve.livejob import LiveJob
from geminid.supervise.handover import worker_marks
from geminid.supervise.spec import Patience, WorkerSpec

#: Where the processes of a plain command reach each other.
LOOPBACK = "127.0.0.1"


class LocalExecutor(SupervisedExecutor):
    """The executor of one machine, whose slots are these devices, if any.

    ``devices`` are what CUDA calls them now, ``device_ids`` what they are called wherever they are (their UUIDs).
    """

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        patience: Patience | None = None,
        warm: bool | None = None,
        slot_memory_bytes: int | None = None,
        devices: Sequence[str] = (),
        device_ids: Sequence[str] = (),
    ) -> None:
        can_warm = importlib.util.find_spec("torch") is not None
        launcher = LimitedLauncher(WarmLauncher() if (can_warm if warm is None else warm) else PlainLauncher())
        super().__init__(JobFolders(folder), cluster, launcher, patience or Patience(orphan=ORPHANS_S))
        self._slot_memory_bytes = slot_memory_bytes
        self._names = SlotNames(folder, cluster, device_ids or devices)
        places = [(node.name, index) for node in cluster.nodes for index in range(node.slots)]
        by_name = {self._names.name(place): device for place, device in zip(places, devices, strict=False)}
        self._devices = tuple(by_name.get(str(slot), "") for slot in range(self._names.count)) if devices else ()

    def store_code(self, spec: JobSpec) -> str:
        """Jobs run in their own folders."""
        return ""

    def keep_code(self, needed: Collection[str]) -> None:
        """Nothing was put by."""

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
            told = f"must be {spec.min_slots}, as min_slots: {spec.command[0]} runs no Python script"
            told += ", and only those that train through geminid change their size"
            problems.append(Problem("max_slots", spec.max_slots, told))
        types = set(self._cluster.type_index)
        if spec.gpu_types.names and not types & set(spec.gpu_types.names):
            told = f"must name a type that is here: {', '.join(sorted(types))}"
            problems.append(Problem("gpu_types", ", ".join(spec.gpu_types.names), told))
        nodes = [node.slots for node in self._cluster.nodes if node.gpu_type in (spec.gpu_types.names or types)]
        most = max(nodes, default=self._cluster.total_slots)
        if spec.min_slots > most:
            name = "slots" if spec.has_fixed_size else "min_slots"
            told = f"must be at most {most}, which is what this machine has" + (" of a type" if len(types) > 1 else "")
            problems.append(Problem(name, spec.min_slots, told))
        return problems

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Sequence[LiveJob]) -> list[r.Record]:
        """Take over what lives; before, end what was started and not written down any more."""
        folders = [folder for folder in (self._folder / JOBS).glob("*") if folder.is_dir()]
        written = {mark for folder in folders for mark in worker_marks(folder)}
        jobs_folder = self._folder.absolute() / JOBS
        signal_marked(signal.SIGKILL, lambda mark: [*Path(mark).parents][1:2] == [jobs_folder] and mark not in written)
        self._names.write()
        told = super().open(post, jobs)
        return [*self._tell_lost(), *told, *self._replanned(jobs)]

    def _tell_lost(self) -> list[r.Record]:
        if not self._names.lost:
            return []
        names, here = ", ".join(self._names.lost), self._cluster.total_slots
        told = (
            f"gone since the service ran last: {_slots(self._names.lost)} {names}; this machine has {_many(here)} now"
        )
        return [r.Noted(level="warning", text=f"{told}. Jobs that were there go on elsewhere, or wait")]

    def _replanned(self, jobs: Sequence[LiveJob]) -> list[r.Record]:
        """Plans for the slots that there are: who runs stays on what is left of theirs, if that is enough."""
        targets: dict[str, Placement | None] = {}
        reasons: dict[str, str] = {}
        for job in jobs:
            before = [] if job.target is None else list(job.target.slots())
            after = {place: self._names.moved(place) for place in before}
            if all(place == now for place, now in after.items()):
                continue
            left = [now for now in after.values() if now is not None]
            gone = [f"{node}/{index}" for (node, index), now in after.items() if now is None]
            enough = len(left) >= job.spec.min_slots and len({node for node, _ in left}) == 1 and job.elastic
            stays = job.id in self._running and (enough or not gone)
            targets[job.id] = Placement.of_slots(left) if stays else None
            reasons[job.id] = "slots are numbered anew"
            if gone:
                are = "is" if len(gone) == 1 else "are"
                reasons[job.id] = f"{_slots(gone)} {', '.join(gone)} {are} gone since the service was started again"
        return [r.Planned(targets=targets, reasons=reasons)] if targets else []

    def _slot(self, node: str, index: int) -> str:
        return self._names.name((node, index))

    def _where(self, slot: str) -> tuple[str, int]:
        return self._names.place(slot)

    def _is_here(self, slot: str) -> bool:
        return self._names.has(slot)

    def _slots_of(self, job: LiveJob) -> tuple[str, ...]:
        return slots_of(self.folder_of(job.id)) or super()._slots_of(job)

    def _spec(self, job: LiveJob) -> WorkerSpec:
        return WorkerSpec(
            command=job.spec.command,
            folder=self.folder_of(job.id),
            name=job.id,
            working_folder=None if job.spec.working_dir is None else Path(job.spec.working_dir),
            environment=job_environment(job, cpu=not self._devices),
            slot_environment=lambda slot: self._slot_environment([slot]),
            options=worker_options(job.spec),
            max_failures=job.spec.max_retries,
            min_slots=job.spec.min_slots,
            patience=self._patience,
        )

    def _slot_environment(self, slots: Sequence[str]) -> dict[str, str]:
        return slot_environment(list(map(int, slots)), self._devices, self._slot_memory_bytes)

    def _lone_environment(self, job: LiveJob, slots: tuple[str, ...]) -> Mapping[str, str]:
        addresses = {self._where(slots[0])[0]: LOOPBACK}  # a command is on one node here
        environment = job_environment(job, cpu=not self._devices) | meeting_place(addresses) | dict(job.spec.env)
        environment |= self._slot_environment(slots)
        return environment | place_among(addresses, next(iter(addresses)), len(slots)) | {"GEMINID_JOB": job.id}

    def _start_command(self, job: LiveJob, slots: tuple[str, ...], ended: Callable[[Command], None]) -> Command:
        environment, folder = self._lone_environment(job, slots), self.folder_of(job.id)
        where = Path(job.spec.working_dir) if job.spec.working_dir is not None else folder
        return PlainCommand.start(folder, job.spec.command, environment, where, ended)

    def _adopt_command(self, job: LiveJob, ended: Callable[[Command], None]) -> Command | None:
        return PlainCommand.adopt(self.folder_of(job.id), ended)

    def _exit_of(self, job_id: str) -> PlainExit | None:
        return exit_of(self.folder_of(job_id))

    def _forget_exit(self, job_id: str) -> None:
        forget_exit(self.folder_of(job_id))

    def _live_workers(self, job_id: str) -> dict[str, str]:
        return {worker: slot for worker, (_, slot) in live_workers(self.folder_of(job_id)).items()}

    def _end_others(self) -> None:
        if (self._folder / JOBS).is_dir():
            for folder in (self._folder / JOBS).iterdir():
                if folder.name not in self._running:
                    end_all(folder)
            within = f"{self._folder.absolute() / JOBS}{os.sep}"
            signal_marked(
                signal.SIGKILL,
                lambda mark: (
                    mark.startswith(within) and mark.removeprefix(within).split(os.sep)[0] not in self._running
                ),
            )
        end_left_groups()


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


def _slots(names: Sequence[str]) -> str:
    return "slot" if len(names) == 1 else "slots"


def _many(slots: int) -> str:
    return f"{slots} slot{'' if slots == 1 else 's'}"


def runs(folder: Path) -> bool:
    """Whether processes that an earlier service started live in a job's folder."""
    return bool(live_workers(folder)) or live_pid(folder) is not None


def end_all(folder: Path) -> None:
    """End whatever an earlier service left running in a job's folder."""
    end_workers(folder)
    end_command(folder)
