"""Starts and resizes that were announced, and are carried out once the service has written them down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from geminid.job import JobKind
from geminid.serve.aside import move_aside, new_aside
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.commands import Command, Commands
from geminid.serve.executors.elasticjob import ElasticJob
from geminid.serve.executors.folders import JOBS
from geminid.serve.executors.jobrecords import CheckpointsGone
from geminid.serve.executors.jobtable import RunningJob
from geminid.serve.executors.launching import Launching
from geminid.serve.executors.plainjob import PlainJob
from geminid.serve.livejob import LiveJob
from geminid.supervise import events as j
from geminid.supervise.handover import forget_end
from geminid.supervise.setaside import has_checkpoints
from geminid.supervise.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class SupervisorEvent:
    """A supervisor reported something about its job."""

    job_id: str
    supervisor: Supervisor
    event: j.JobEvent


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """A plain command's processes run."""

    job_id: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A job's processes could not be started."""

    job_id: str
    problem: Exception


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """A plain command's processes are gone."""

    job_id: str
    command: Command


JobEvent = SupervisorEvent | CommandStarted | StartFailed | CommandEnded


def check_checkpoints(job: LiveJob, place: Path | str) -> None:
    """Keep a job that has saved checkpoints from beginning at sample 0 because they are gone.

    Raises:
        CheckpointsGone: they are not in their folder. (Its first worker looks at other storage, which may be slow.)
    """
    if job.kind is JobKind.PLAIN or not job.saved_samples or isinstance(place, str) or has_checkpoints(place):
        return
    gone = f"its checkpoints in {place} are gone, and {job.saved_samples:,} samples with them"
    again = f"begin again with 'geminid resume {job.id} --from-scratch'"
    raise CheckpointsGone(f"{gone}: put one of them back there and resume it, or {again}")


class Starts:
    """What is to be started or resized. What comes of it is passed to ``post``, in any thread."""

    def __init__(self, launching: Launching, commands: Commands, post: Callable[[ExecutorEvent], None]) -> None:
        self._launching, self._commands, self._post = launching, commands, post
        self._announced: list[tuple[str, Callable[[], None]]] = []

    def announce_start(self, job: LiveJob, slots: tuple[str, ...]) -> RunningJob:
        """A job that is to start on these slots.

        Raises:
            OSError, ValueError: it cannot be started.
            CheckpointsGone: it has saved checkpoints, and they are not there.
        """
        folders = self._launching.folders
        check_checkpoints(job, folders.checkpoints_of(job.id))
        folder = folders.folder_of(job.id)
        if job.state.first_started_at_s is None and folder.exists():
            move_aside(folder, new_aside(folders.home) / JOBS)  # it is not known to be of this job
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if job.kind is JobKind.PLAIN:
            self._commands.forget_exit(job.id)
            plain = PlainJob(job.id, slots)
            self._announced.append((job.id, lambda: self._start_plain(job, plain)))
            return plain
        forget_end(folder)
        lone = not job.elastic
        supervisor = self._launching.supervisor(
            job, self.on_supervisor_event(job.id), adopt=False, lone_slots=slots if lone else ()
        )
        elastic = ElasticJob(job.id, supervisor, target=slots, recorded=set(slots), pending_resizes=1, lone=lone)
        self._announced.append((job.id, lambda: self._start_elastic(elastic)))
        return elastic

    def announce_resize(self, job: ElasticJob) -> None:
        """A job is to be on its target."""
        self._announced.append((job.job_id, job.resize))

    def recall(self, running: RunningJob) -> bool:
        """Whether a command was announced and not started yet: then it is not."""
        if isinstance(running, ElasticJob) or not any(job_id == running.job_id for job_id, _ in self._announced):
            return False
        self._announced = [(job_id, start) for job_id, start in self._announced if job_id != running.job_id]
        return True

    def flush(self) -> list[str]:
        """Carry out what was announced; the jobs that it was about."""
        announced, self._announced = self._announced, []
        for job_id, start in announced:
            try:
                start()
            except OSError as problem:  # a full disk, for example: it concerns this job only
                self._post(StartFailed(job_id, problem))
        return [job_id for job_id, _ in announced]

    def on_supervisor_event(self, job_id: str) -> Callable[[Supervisor, j.JobEvent], None]:
        """What is called with the events of a job's supervisor."""
        return lambda supervisor, event: self._post(SupervisorEvent(job_id, supervisor, event))

    def on_command_end(self, job_id: str) -> Callable[[Command], None]:
        """What is called when a job's command has ended."""
        return lambda command: self._post(CommandEnded(job_id, command))

    def _start_plain(self, job: LiveJob, plain: PlainJob) -> None:
        launches = self._launching.launches(job, plain.target)
        plain.command = self._commands.start(job.id, launches, self.on_command_end(job.id))
        self._post(CommandStarted(job.id))

    def _start_elastic(self, elastic: ElasticJob) -> None:
        elastic.supervisor.__enter__()
        elastic.resize()
