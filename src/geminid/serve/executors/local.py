"""Jobs on the slots of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import shutil
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from geminid.cluster import Cluster
from geminid.fields import Problem
from geminid.job import JobSpec
from geminid.serve import records as r
from geminid.serve.executors.base import Happening
from geminid.serve.executors.machine import slot_environment
from geminid.serve.executors.plain import (
    PlainCommand,
    PlainExit,
    end_group,
    exit_of,
    forget_exit,
    live_pid,
    live_workers,
)
from geminid.serve.executors.shim import MEMORY
from geminid.serve.executors.supervised import (
    ORPHANS_S,
    Command,
    SupervisedExecutor,
    job_environment,
    worker_options,
)
from geminid.serve.executors.warm import WarmLauncher
from geminid.serve.state import LiveJob
from geminid.train.launcher import PlainLauncher
from geminid.train.offspring import signal_marked
from geminid.train.pythonline import PythonLine
from geminid.train.supervisor import JobSpec as WorkerSpec
from geminid.train.supervisor import Patience
from geminid.train.takeover import worker_marks


class LocalExecutor(SupervisedExecutor):
    """The executor of one machine, whose slots are named by their numbers, and are these devices, if any."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        patience: Patience | None = None,
        warm: bool | None = None,
        slot_memory_bytes: int | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        can_warm = importlib.util.find_spec("torch") is not None
        launcher = WarmLauncher() if (can_warm if warm is None else warm) else PlainLauncher()
        super().__init__(folder, cluster, launcher, patience or Patience(orphan=ORPHANS_S))
        self._devices, self._slot_memory_bytes = tuple(devices), slot_memory_bytes
        self._places = [(node.name, index) for node in cluster.nodes for index in range(node.slots)]

    def put_by(self, spec: JobSpec) -> str:
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

    def open(self, post: Callable[[Happening], None], jobs: Sequence[LiveJob]) -> list[r.Record]:
        """Take over what lives; before, end what was started and not written down any more."""
        folders = [folder for folder in (self._folder / "jobs").glob("*") if folder.is_dir()]
        written = {mark for folder in folders for mark in worker_marks(folder)}
        jobs_folder = self._folder.absolute() / "jobs"
        signal_marked(signal.SIGKILL, lambda mark: [*Path(mark).parents][1:2] == [jobs_folder] and mark not in written)
        return super().open(post, jobs)

    def wish(self, slots_by_type: Mapping[str, int]) -> None:
        """One machine is what it is."""

    def _slot(self, node: str, index: int) -> str:
        return str(self._places.index((node, index)))

    def _where(self, slot: str) -> tuple[str, int]:
        return self._places[int(slot)]

    def _spec(self, job: LiveJob) -> WorkerSpec:
        return WorkerSpec(
            command=job.spec.command,
            folder=self.folder_of(job.id),
            name=job.id,
            working_folder=None if job.spec.working_dir is None else Path(job.spec.working_dir),
            environment=job_environment(job, cpu=not self._devices),
            slot_environment=lambda slot: slot_environment([int(slot)], self._devices),
            options=worker_options(job.spec),
            most_failures=job.spec.max_retries,
            patience=self._patience,
        )

    def _start_command(self, job: LiveJob, slots: tuple[str, ...], ended: Callable[[Command], None]) -> Command:
        environment = job_environment(job, cpu=not self._devices) | {"GEMINID_JOB": job.id}
        environment |= slot_environment(list(map(int, slots)), self._devices)
        if self._slot_memory_bytes is not None:
            environment[MEMORY] = str(self._slot_memory_bytes * len(slots))
        folder = self.folder_of(job.id)
        where = Path(job.spec.working_dir) if job.spec.working_dir is not None else folder
        return PlainCommand.start(folder, job.spec.command, environment, where, ended)

    def _limit(self, pid: int) -> None:
        if self._slot_memory_bytes is not None:
            with contextlib.suppress(OSError):  # it may be gone already
                resource.prlimit(pid, resource.RLIMIT_DATA, (self._slot_memory_bytes, self._slot_memory_bytes))

    def _adopt_command(self, job: LiveJob, ended: Callable[[Command], None]) -> Command | None:
        return PlainCommand.adopt(self.folder_of(job.id), ended)

    def _exit_of(self, job_id: str) -> PlainExit | None:
        return exit_of(self.folder_of(job_id))

    def _forget_exit(self, job_id: str) -> None:
        forget_exit(self.folder_of(job_id))

    def _live_workers(self, job_id: str) -> dict[str, str]:
        return {worker: slot for worker, (_, slot) in live_workers(self.folder_of(job_id)).items()}

    def _end_others(self) -> None:
        if (self._folder / "jobs").is_dir():
            for folder in (self._folder / "jobs").iterdir():
                if folder.name not in self._running:
                    _end_all(folder)
            within = f"{self._folder.absolute() / 'jobs'}{os.sep}"
            signal_marked(
                signal.SIGKILL,
                lambda mark: (
                    mark.startswith(within) and mark.removeprefix(within).split(os.sep)[0] not in self._running
                ),
            )


def _program(spec: JobSpec, where: Path | None) -> str | None:
    path = dict(spec.env).get("PATH", os.environ.get("PATH"))
    name = spec.command[0]
    return shutil.which(str(Path(where, name)) if where is not None and "/" in name else name, path=path)


def _end_all(folder: Path) -> None:
    """End whatever an earlier service left running in a job's folder."""
    for pid, _ in live_workers(folder).values():
        end_group(pid)
    command = live_pid(folder)
    if command is not None:
        end_group(command)
