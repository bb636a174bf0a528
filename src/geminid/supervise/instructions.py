"""What a job's state machine (``state.py``) asks its supervisor to do, in order. Plain values."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from geminid.supervise.events import JobEvent
from geminid.supervise.protocol import FromSupervisor


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start the process of a worker, unless it has been cancelled by now (``SupervisedJob.starts``)."""

    worker: str
    slot: str


@dataclass(frozen=True, slots=True)
class RunScript:
    """Let a worker whose process exists, and is recorded, run its script."""

    worker: str


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Send a signal to a worker's process."""

    worker: str
    number: signal.Signals


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to a worker; without a connection, the signal ``otherwise`` if there is one."""

    worker: str
    message: FromSupervisor
    otherwise: signal.Signals | None = None


@dataclass(frozen=True, slots=True)
class ForgetWorker:
    """Close the connection to a worker, end what is left of its process, and stop watching it."""

    worker: str


@dataclass(frozen=True, slots=True)
class SaveHandover:
    """Record what another supervisor needs to take over."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Report an event of the job."""

    event: JobEvent


Instruction = StartProcess | RunScript | SignalWorker | SendMessage | ForgetWorker | SaveHandover | Emit
