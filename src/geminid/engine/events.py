"""What can happen to a cluster. Every event carries its time; the engine never looks at a clock."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Observation
from geminid.policies.base import JobFacts


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened at ``at_s``."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    """A job was submitted."""

    job: JobFacts


@dataclass(frozen=True, slots=True)
class Reported(Event):
    """A job measured its step times or its gradient noise, or tells its progress (in the unit of its work).

    ``loss`` is its training loss there; ``relative_speed`` how fast it is beside its partner, of its speed alone.
    Reports are not trusted: nonsense is left out.
    """

    job_id: str
    observation: Observation | None = None
    gradient: GradientStats | None = None
    progress: float | None = None
    loss: float | None = None
    relative_speed: float | None = None


@dataclass(frozen=True, slots=True)
class Completed(Event):
    """A job finished its work; ``progress`` is how much that was in the end."""

    job_id: str
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """A job's workers died; it goes back to the queue, unless ``final``."""

    job_id: str
    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class NodeDown(Event):
    """A node is gone, and with it every job that had a slot there."""

    node: int


@dataclass(frozen=True, slots=True)
class NodeDrained(Event):
    """A node takes no new work; jobs move off it at the next decision."""

    node: int


@dataclass(frozen=True, slots=True)
class SlotsCordoned(Event):
    """So many slots of a node are out of service from now on; jobs shrink or move at the next decision."""

    node: int
    slots: int


@dataclass(frozen=True, slots=True)
class Revised(Event):
    """More is known of an active job, or its user changed what it asks for."""

    job: JobFacts


@dataclass(frozen=True, slots=True)
class Withdrawn(Event):
    """A job must not run for now. Its slots are free; what was measured of it stays, and it may be restored later."""

    job_id: str


@dataclass(frozen=True, slots=True)
class NodeUp(Event):
    """A node is usable (again)."""

    node: int


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed: the end of a round, or a wake-up that the policy asked for."""
