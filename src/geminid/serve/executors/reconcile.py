"""From the slots that jobs are to have to what is to be done next: a pure function.

A slot belongs to the job that has a live process there, or may start one. No action ever gives a slot to a second job:
a job waits for slots that others hold, on those that it can have already if it is elastic. Jobs that would wait for
each other forever, because each is to have only slots that others of them hold, are resolved by stopping the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Desired:
    """The slots that a job is to have.

    ``ready`` are those of them where the job could run now, as far as other jobs let it, and ``acquired`` those for
    which nothing is left to be done. ``may_start`` is false while some of the job may still run out of reach.
    """

    job_id: str
    slots: tuple[str, ...]
    ready: frozenset[str]
    acquired: frozenset[str]
    min_slots: int = 1
    elastic: bool = False
    may_start: bool = True


@dataclass(frozen=True, slots=True)
class Actual:
    """A job that has processes, or is about to: the slots that it was last given, and all that it ``holds`` by now."""

    job_id: str
    slots: tuple[str, ...]
    holds: frozenset[str]
    stopping: bool = False
    resizable: bool = False


@dataclass(frozen=True, slots=True)
class Acquire:
    """Have these slots leased, and the job's code brought to where they are."""

    job_id: str
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Start the job on these slots."""

    job_id: str
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resize:
    """Have the job train on these slots, without stopping it."""

    job_id: str
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopToMove:
    """Stop the job, which is to run elsewhere: it cannot be resized, or it and others wait for each other."""

    job_id: str


Action = Acquire | Start | Resize | StopToMove


def reconcile(desired: Sequence[Desired], actual: Mapping[str, Actual]) -> list[Action]:
    """What brings each job closer to its desired slots, one job after the other.

    ``actual`` has the jobs themselves and all that hold any of their slots. Jobs that wait for each other are found if
    all of them are in ``desired``.
    """
    now = dict(actual)
    actions: list[Action] = []
    for job in desired:
        for action in _closer(job, now):
            actions.append(action)
            now |= _after(action, now)
    while blocked := deadlocked(desired, now):
        smallest = StopToMove(min(blocked, key=lambda job_id: (len(now[job_id].holds), job_id)))
        actions.append(smallest)
        now |= _after(smallest, now)
    return actions


def deadlocked(desired: Iterable[Desired], actual: Mapping[str, Actual]) -> set[str]:
    """Running jobs that can never move: each of their desired slots is held by another job of this set."""
    holder = {slot: one.job_id for one in actual.values() for slot in one.holds}
    waits_for = {job.job_id: {holder.get(slot, "") for slot in job.slots} for job in desired if job.job_id in actual}
    blocked = {
        job_id
        for job_id, others in waits_for.items()
        if actual[job_id].resizable and not actual[job_id].stopping and job_id not in others
    }
    while free := {job_id for job_id in blocked if not waits_for[job_id] <= blocked}:
        blocked -= free
    return blocked


def _closer(job: Desired, actual: Mapping[str, Actual]) -> list[Action]:
    """What brings one job closer to its desired slots."""
    wanted = set(job.slots)
    others = [other for other in actual.values() if other.job_id != job.job_id and other.holds & wanted]
    taken = {slot for other in others for slot in other.holds}
    left = tuple(slot for slot in job.slots if slot not in taken)
    free = tuple(slot for slot in left if slot in job.ready)
    acquire: list[Action] = [Acquire(job.job_id, left)] if set(left) - job.acquired else []
    mine = actual.get(job.job_id)
    if mine is None:
        slots = job.slots
        if job.elastic and len(left) >= job.min_slots and any(other.stopping for other in others):
            slots = left  # a job that was asked to stop may take its time: this one starts beside it, and grows
        may_start = job.may_start and free == slots and bool(slots)
        return [*acquire, Start(job.job_id, slots)] if may_start else acquire
    if mine.stopping:
        return acquire
    if not mine.resizable:
        return acquire if mine.slots == job.slots else [*acquire, StopToMove(job.job_id)]
    return [*acquire, Resize(job.job_id, free)] if free and free != mine.slots else acquire


def _after(action: Action, actual: Mapping[str, Actual]) -> dict[str, Actual]:
    """The job of an action, once that is done."""
    match action:
        case Start(job_id=job_id, slots=slots):
            return {job_id: Actual(job_id, slots, frozenset(slots))}
        case Resize(job_id=job_id, slots=slots):
            before = actual[job_id]
            return {job_id: replace(before, slots=slots, holds=before.holds | frozenset(slots))}
        case StopToMove(job_id=job_id):
            return {job_id: replace(actual[job_id], stopping=True)}
    return {}
