"""What a supervisor reports about its job: events as they happen, and a status at any time. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from geminid.supervise.protocol import Checkpointed, Plan, Progress, Ready


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker's process was started."""

    worker: str
    slot: str
    pid: int


@dataclass(frozen=True, slots=True)
class InitCalled:
    """A job that was a single process has called ``geminid.init()``: from now on it can be resized."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker's process is gone. It was ``expected`` if it left, finished or was stopped."""

    worker: str
    slot: str
    reason: str
    expected: bool


@dataclass(frozen=True, slots=True)
class Resized:
    """A request to resize is being carried out: from now on, workers are started only on these slots."""

    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """A generation is complete and trains.

    ``pause_s`` is how long training paused: from the end of the last step before until training could continue, on the
    worker where that took longest (each by its own clock). None for the first generation of a job, and after a restart
    from a checkpoint. ``samples`` is how far its state is.
    """

    generation: int
    slots: tuple[str, ...]
    step: int
    pause_s: float | None
    restored: bool
    stopped_at_s: float | None
    resumed_at_s: float
    samples: int = 0


@dataclass(frozen=True, slots=True)
class FirstStepDone:
    """The first step of a generation has ended on all workers (``ended_at_s``: the machine's monotonic clock)."""

    generation: int
    ended_at_s: float


@dataclass(frozen=True, slots=True)
class CouldNotGrow:
    """New workers on these slots run, but the others could not reach them, and continue without them."""

    slots: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint is on disk."""

    checkpoint: Checkpointed


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over: ``finished``, ``stopped`` or ``failed``. None of its processes is left, and no event follows.

    ``stopped_at_s`` is when the last step of a stopped job ended, on the machine's monotonic clock. With ``shortage``
    it failed because its machine lacked something, such as disk space, and can be tried again. ``failures`` is how many
    failures without progress in between made it fail. With ``was_split`` it failed because its workers, all of which
    lived, could not work together. With ``hold`` a person has to deal with the reason before it is tried again. A job
    finished ``early`` if its script ended with exit code 0 before training was over; it was ``initialised`` if the
    script had called ``geminid.init()``.
    """

    state: JobPhase
    reason: str
    stopped_at_s: float | None = None
    shortage: bool = False
    failures: int = 0
    was_split: bool = False
    hold: bool = False
    early: bool = False
    initialised: bool = True


class JobPhase(StrEnum):
    """Where a job is in its life with a supervisor."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (JobPhase.FINISHED, JobPhase.STOPPED, JobPhase.FAILED)


#: ``Progress`` is the leader's own report, with the metrics of all workers averaged.
JobEvent = (
    WorkerStarted
    | InitCalled
    | WorkerEnded
    | Resized
    | GroupFormed
    | FirstStepDone
    | CouldNotGrow
    | Progress
    | CheckpointWritten
    | JobEnded
)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker, as it is now."""

    worker: str
    slot: str
    pid: int
    standing: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job, as it is now. It is ``settled`` if it trains on exactly the slots that were requested."""

    phase: JobPhase
    generation: int = 0
    slots: tuple[str, ...] = ()
    settled: bool = False
    workers: tuple[WorkerStatus, ...] = ()
    ready: Ready | None = None
    progress: Progress | None = None
    checkpoint: Checkpointed | None = None
    plan: Plan | None = None
    failures: int = 0
    reason: str = ""
