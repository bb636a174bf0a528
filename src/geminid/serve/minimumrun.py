"""An elastic job is not stopped again and again for newcomers of no higher priority: it shrinks, or they wait.

A plain command is never stopped, since it would lose its work; an elastic job saves and goes on later, so policies stop
it for whatever is short. With a stream of short commands it would be stopped again and again, and wait for ever. So

- an elastic job that has started keeps the fewest slots that it runs on for a while (``MIN_RUN_S``);
- one that was stopped goes before newcomers when its slowdown is far above that of the jobs that ended lately
  (``SlowdownOfOthers``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from geminid.configuration import Configuration
from geminid.policies.base import Allocation, ClusterView, JobView
from geminid.serve.livejob import LiveJob

#: An elastic job that has started is not stopped for this long, or for its min_runtime if that is longer.
MIN_RUN_S = 60.0

#: A job that was stopped goes before newcomers once its slowdown is this many times that of others.
UNFAIR = 1.5

#: Run time in seconds that every job counts as at least: short jobs that wait a little have huge slowdowns otherwise.
BOUNDED_RUN_S = 10.0

#: By how much a job that has ended counts less with each that ends after it.
FORGETTING = 0.95

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


@dataclass(slots=True)
class SlowdownOfOthers:
    """The slowdown (time since submission / run time) of the jobs that have ended lately: their geometric mean."""

    _log_mean: float = 0.0

    def learn(self, ended: Iterable[JobView], now_s: float) -> None:
        """Take in jobs that have just ended."""
        for job in ended:
            log = math.log(max(_slowdown(job, now_s, 0.0), 1.0))
            self._log_mean = FORGETTING * self._log_mean + (1.0 - FORGETTING) * log

    def is_unfair_to(self, job: JobView, now_s: float, rested_s: float) -> bool:
        """Whether a job that was stopped, and was paused by its owner for some time, is far worse off than others."""
        was_stopped = not job.allocation and job.executed_before_s > 0.0
        return was_stopped and _slowdown(job, now_s, rested_s) > UNFAIR * math.exp(self._log_mean)


def _slowdown(job: JobView, now_s: float, rested_s: float) -> float:
    return (job.age_s(now_s) - rested_s) / max(job.executed_s(now_s), BOUNDED_RUN_S)


@dataclass(frozen=True, slots=True)
class Kept:
    """What jobs get if those that must not be stopped yet are not, why others wait, and until when."""

    assignments: Assignments
    reasons: Mapping[str, str]
    until_s: float | None


def keep_running(
    view: ClusterView,
    assignments: Mapping[str, Configuration | Allocation],
    kept_until_s: Callable[[JobView], float],
    is_owed: Callable[[JobView], bool] = lambda job: False,
) -> Kept:
    """The assignments, with running jobs shrunk where they would be stopped too early, and with those that are owed.

    Jobs that were to start in their place wait: those of the lowest priority first, then the latest. Jobs that
    have slots keep what they were given; a job of higher priority gets what it was given.
    """
    result: Assignments = {job_id: wanted for job_id, wanted in assignments.items() if wanted}
    reasons: dict[str, str] = {}
    ends: list[float] = []
    running = [job for job in view.jobs if job.allocation and job.id not in result and job.stands(view.usable_slots)]
    for job in view.jobs:
        if not job.allocation and job.id not in result and is_owed(job):
            _start_first(view, job, result, reasons)
    for job in running:
        until_s = kept_until_s(job)
        if until_s <= view.now_s:
            continue
        least = _fewest(job)
        left = _left(view, result, job.gpu_type or "")
        starting = [] if job.gpu_type is None else _starting(view, job, job.gpu_type, result)
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


def _start_first(view: ClusterView, job: JobView, result: Assignments, reasons: dict[str, str]) -> None:
    """Start a job on its fewest slots in place of newcomers that count no more, if they were to get enough."""
    least = job.facts.least_slots
    for gpu_type in sorted(view.cluster.type_index.keys() & (job.facts.gpu_types or view.cluster.type_index.keys())):
        left, given_up = _left(view, result, gpu_type), []
        for other in _starting(view, job, gpu_type, result):
            if left < least and not other.executed_before_s:
                given_up.append(other)
                left += result[other.id].slots  # type: ignore[union-attr]
        one_node = max((view.usable_slots[node] for node in view.cluster.nodes_of_type.get(gpu_type, ())), default=0)
        if left >= least and given_up and one_node >= least:
            for other in given_up:
                del result[other.id]
                reasons[other.id] = f"{job.id} was stopped, and has waited for longer than others do: it goes first"
            result[job.id] = Configuration(gpu_type=gpu_type, nodes=1, slots=least)
            return


def _starting(view: ClusterView, job: JobView, gpu_type: str, assignments: Assignments) -> list[JobView]:
    """The jobs that are to start on slots of a type and count no more than a job: the least and latest first."""

    def starts(other: JobView) -> bool:
        wanted = assignments.get(other.id)
        return (
            not other.allocation
            and isinstance(wanted, Configuration)
            and wanted.gpu_type == gpu_type
            and other.facts.weight <= job.facts.weight
        )

    return sorted(filter(starts, view.jobs), key=lambda other: (other.facts.weight, -other.facts.submitted_s))


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
