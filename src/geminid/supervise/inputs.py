"""What happens to a job and its workers: the events that its state machine (``state.py``) handles. Plain values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from geminid.supervise.protocol import FromSupervisor, FromWorker, Hello, Plan


@dataclass(frozen=True, slots=True)
class Begin:
    """Supervision begins; workers of an earlier supervisor may have been taken over."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Run on these slots, with this batch plan if one is given."""

    slots: tuple[str, ...]
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class SetMinSlots:
    """Do not train on fewer slots than these."""

    min_slots: int


@dataclass(frozen=True, slots=True)
class SendToMembers:
    """Pass this message on to all members of the group."""

    message: FromSupervisor


@dataclass(frozen=True, slots=True)
class SlotsLost:
    """These slots are gone with their machine."""

    slots: Collection[str]
    reason: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """End the job, with a checkpoint if ``save``."""

    save: bool


@dataclass(frozen=True, slots=True)
class KillRequested:
    """End the job at once, without a checkpoint."""


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """The process of a worker exists; it waits until it may run its script."""

    worker: str
    slot: str
    pid: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The process of a worker could not be started; ``shortage`` if the machine lacks something, such as disk space."""

    worker: str
    reason: str
    shortage: bool


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process of a worker has ended, ``how`` in words; ``finished`` if it recorded that its script ended well."""

    worker: str
    code: int
    how: str
    finished: bool = False


@dataclass(frozen=True, slots=True)
class WorkerConnected:
    """A worker has connected, or reconnected."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A worker has sent a message that is not a heartbeat."""

    worker: str
    message: FromWorker


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """A worker has sent something that is not a message of the protocol."""

    worker: str
    problem: str


@dataclass(frozen=True, slots=True)
class Contact:
    """What was last received from a worker: ``silent_s`` ago it said what it was doing, since ``phase_s`` before."""

    silent_s: float
    phase: str
    phase_s: float = 0.0
    usual_s: float | None = None
    connected: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. ``contacts`` has every worker whose process exists."""

    contacts: Mapping[str, Contact]


@dataclass(frozen=True, slots=True)
class SupervisorFailed:
    """The supervisor itself cannot continue; ``shortage`` if the machine lacks something, such as disk space."""

    reason: str
    shortage: bool


Event = (
    Begin
    | Resize
    | SetMinSlots
    | SendToMembers
    | SlotsLost
    | StopRequested
    | KillRequested
    | ProcessStarted
    | StartFailed
    | ProcessEnded
    | WorkerConnected
    | MessageReceived
    | MalformedMessage
    | Tick
    | SupervisorFailed
)
