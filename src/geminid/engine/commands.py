"""What an executor is asked to do. Commands of one decision are carried out together."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.policies.base import Allocation


@dataclass(frozen=True, slots=True)
class Start:
    """Start a waiting job on these slots (from its last checkpoint, if it has one).

    ``reason`` says why they are not quite what the policy wanted, where they are not.
    """

    job_id: str
    allocation: Allocation
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rescale:
    """Move a running job from one allocation to another; ``reason`` as with ``Start``."""

    job_id: str
    before: Allocation
    allocation: Allocation
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Take a running job's slots away; it waits in the queue.

    It keeps its progress, unless the slots are ``lost``: then it falls back to its last checkpoint.
    """

    job_id: str
    before: Allocation
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """From now on a running job shares its slots with ``partner``, or has them to itself again (None)."""

    job_id: str
    partner: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """From now on a running job computes for this share of the time, from 0 to 1, and sleeps for the rest.

    ``memory_cap`` is the largest share of the memory of its slots that it may use beside another job; what it needs
    beyond spills to the memory of the machine. None for a job that has all that it needs.
    """

    job_id: str
    cap: float
    memory_cap: float | None = None


Command = Start | Rescale | Stop | Share | Limit
