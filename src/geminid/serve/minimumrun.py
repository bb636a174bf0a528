"""A job that has hardly run is not stopped for a newcomer of no higher priority: it shrinks, or the newcomer waits.

A plain command is never stopped, since it would lose its work; an elastic job saves and goes on later, so policies stop
it for whatever is short. With a stream of short commands it would be stopped again and again. So an elastic job that
has started keeps the fewest slots that it runs on for a while, against jobs of no higher priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from geminid.configuration import Configuration
from geminid.policies.base import Allocation, ClusterView, JobView
from geminid.serve.livejob import LiveJob

#: An elastic job that has started is not stopped for this long, or for its min_runtime if that is longer.
MIN_RUN_S = 60.0

Assignments = dict[str, Configuration | Allocation]


@dataclass(slots=True)
class Runs:
    """Since when jobs have had slots without a break."""

    _since_s: dict[str, float] = field(default_factory=dict)

    def update(self, job_id: str, job: LiveJob | None) -> None:
        """Update a job."""
        if job is not None and job.target is not None:
            self._since_s.setdefault(job_id, job.target_since_s)
        else:
            self._since_s.pop(job_id, None)

    def kept_until_s(self, job: LiveJob) -> float:
        """Until when a job is not stopped for others of no higher priority."""
        return self._since_s.get(job.id, job.target_since_s) + max(MIN_RUN_S, job.spec.min_runtime_s)


@dataclass(frozen=True, slots=True)
class Kept:
    """What jobs get if those that must not be stopped yet are not, why others wait, and until when."""

    assignments: Assignments
    reasons: Mapping[str, str]
    until_s: float | None


def keep_running(
    view: ClusterView, assignments: Mapping[str, Configuration | Allocation], kept_until_s: Callable[[JobView], float]
) -> Kept:
    """The assignments, with running jobs shrunk where they would be stopped too early.

    Jobs that were to start in their place wait: those of the lowest priority first, then the latest. Jobs that
    have slots keep what they were given; a job of higher priority gets what it was given.
    """
    result: Assignments = {job_id: wanted for job_id, wanted in assignments.items() if wanted}
    reasons: dict[str, str] = {}
    ends: list[float] = []
    running = [job for job in view.jobs if job.allocation and job.id not in result and job.stands(view.usable_slots)]
    for job in running:
        until_s = kept_until_s(job)
        if until_s <= view.now_s:
            continue
        least = _fewest(job)
        left = _left(view, result, job.gpu_type or "")
        starting = sorted(
            (other for other in view.jobs if not other.allocation and _starts(other, job, result)),
            key=lambda other: (other.facts.weight, -other.facts.submitted_s),
        )
        given_up: list[JobView] = []
        while left < job.facts.least_slots and starting:
            given_up.append(starting.pop(0))
            left += result[given_up[-1].id].slots  # type: ignore[union-attr]
        if left < job.facts.least_slots or not _has_room(view, result, least):
            continue  # it gives way to a job of higher priority, or to one that has a reservation
        for other in given_up:
            del result[other.id]
            reasons[other.id] = f"{job.id} has just started: it keeps its slots for {until_s - view.now_s:.0f} s more"
        result[job.id] = least
        ends.append(until_s)
    return Kept(result, reasons, min(ends, default=None))


def _starts(other: JobView, job: JobView, assignments: Mapping[str, Configuration | Allocation]) -> bool:
    """Whether a job is to start on slots of another's type, and counts no more than it."""
    wanted = assignments.get(other.id)
    return (
        isinstance(wanted, Configuration) and wanted.gpu_type == job.gpu_type and other.facts.weight <= job.facts.weight
    )


def _fewest(job: JobView) -> Allocation:
    """The fewest slots that a job runs on, of those that it has."""
    left, kept = job.facts.least_slots, []
    for node, slots in sorted(job.allocation, key=lambda place: -place[1]):
        if left:
            kept.append((node, min(slots, left)))
            left -= kept[-1][1]
    return tuple(sorted(kept))


def _left(view: ClusterView, assignments: Mapping[str, Configuration | Allocation], gpu_type: str) -> int:
    """The usable slots of a type that the assignments leave."""
    left = view.usable_slots_per_type()[gpu_type]
    for wanted in assignments.values():
        if isinstance(wanted, Configuration):
            left -= wanted.slots if wanted.gpu_type == gpu_type else 0
        else:
            left -= sum(slots for node, slots in wanted if view.cluster.nodes[node].gpu_type == gpu_type)
    return left


def _has_room(view: ClusterView, assignments: Mapping[str, Configuration | Allocation], allocation: Allocation) -> bool:
    """Whether those that were given slots of single nodes leave these."""
    room = list(view.usable_slots)
    for wanted in assignments.values():
        for node, slots in () if isinstance(wanted, Configuration) else wanted:
            room[node] -= slots
    return all(room[node] >= slots for node, slots in allocation)
