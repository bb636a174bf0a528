"""Reservations: how a job that needs many slots gets them, although narrower jobs would always fit before it.

Some running jobs keep their slots (plain commands, jobs that have just started). Whenever one of them ends, few slots
become free; a job that needs more than those would wait for as long as there are narrower ones, whatever the policy
decides. So a waiting job has a *claim*: the time for which it has waited, times its weight. Against narrower waiting
jobs of smaller claims, and once it has waited for a while (``PATIENCE_S`` between equals),

- it gets its slots as soon as there are enough that no protected job is on, and that narrower jobs of larger claims do
  not need; elastic jobs shrink for it;
- until then those jobs are not started where it is to run. Slots do not stay idle for it: elastic jobs that run may
  grow into them, and give them back.

How long plain commands take is not known, and one may never end, so jobs of equal weight are not held back for ever:
they are held back from once the patience until twice the patience, then not until four times, and so on, doubling. As
soon as a time of holding back is longer than what runs, the wide job starts: it waits for at most about four times as
long. Jobs of lower priority are held back all the time. Of equal wide jobs only the first holds others back: each would
at another time, and together all the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from geminid.policies.base import Allocation, ClusterView, JobView
from geminid.policies.packing import FreeSlots, usable_types
from geminid.serve.equals import asked_for

#: Time in seconds that a job waits before narrower ones of the same weight are held back for it.
PATIENCE_S = 60.0

#: Wide jobs that are considered at a time: those of the largest claims.
MAX_CONSIDERED = 20


@dataclass(slots=True)
class Reservations:
    """Which waiting jobs may start: ``granted`` are slots of wide jobs that start now, ``usable`` what is left.

    ``waiting`` are the other jobs that may start, some of them on fewer GPU types; ``held`` are those that may not.
    ``reasons`` are theirs, and those of jobs that slots are kept for. ``until_s`` is when a job that is held back may
    start after all, if nothing else happens.
    """

    usable: Sequence[int]
    granted: dict[str, Allocation] = field(default_factory=dict)
    waiting: list[JobView] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    until_s: float = math.inf


def reserve(
    view: ClusterView,
    waiting: Sequence[JobView],
    usable: Sequence[int],
    waited_s: Callable[[JobView], float],
    patience_s: float = PATIENCE_S,
) -> Reservations:
    """Which of the waiting jobs may start; ``usable`` are the slots of each node that no protected job is on."""
    free = FreeSlots(view, usable)
    result = Reservations(free.per_node)
    denied: dict[str, set[str]] = {}
    waits = {job.id: waited_s(job) for job in waiting}
    claims = waits, patience_s
    everything = view.usable_slots_per_type()
    least = min((job.facts.min_slots for job in waiting), default=0)
    wide = [job for job in waiting if job.facts.min_slots > least]
    passed: set[Hashable] = set()  # kinds whose first job does not start yet
    considered = 0
    for job in sorted(wide, key=lambda job: -job.facts.weight * waits[job.id]):
        kind = asked_for(job.facts, by_name=False)
        if kind in passed:
            continue
        if considered == MAX_CONSIDERED:
            break
        considered += 1
        need = job.facts.min_slots
        types = [name for name in usable_types(job, free) if everything[name] >= need]
        rivals = [other for other in waiting if _overtakes(other, job, *claims)]
        if not types or not rivals:
            passed.add(kind)
            continue
        gpu_type = max(types, key=free.of_type)
        first = [other for other in waiting if other.facts.min_slots < need and not _overtakes(other, job, *claims)]
        kept = sum(other.facts.min_slots for other in first if gpu_type in usable_types(other, free))
        given = free.emptiest_first(need, [gpu_type]) if free.of_type(gpu_type) >= need + kept else None
        if given is not None:
            result.granted[job.id] = given
            continue
        passed.add(kind)
        narrower = []
        for other in rivals:
            until_s = _held_until_s(job, other, waits[job.id], patience_s)
            if until_s > 0:
                denied.setdefault(other.id, set()).add(gpu_type)
                result.reasons[other.id] = (
                    f"slots are kept for {job.id}, which needs {need} and has waited for {waits[job.id]:.0f} s"
                )
                result.until_s = min(result.until_s, view.now_s + until_s)
                narrower.append(other.id)
        if narrower:
            names = ", ".join(narrower[:3]) + (f" and {len(narrower) - 3} more" if len(narrower) > 3 else "")
            result.reasons[job.id] = (
                f"it has its turn as soon as {need} slots are free of jobs that must be left alone"
                f" ({free.of_type(gpu_type)} are): {names} {'is' if len(narrower) == 1 else 'are'} held back for it"
            )
    for job in waiting:
        if job.id in result.granted:
            continue
        if job.id not in denied:
            result.waiting.append(job)
            continue
        left = frozenset(usable_types(job, free)) - denied.get(job.id, set())
        if any(everything[name] >= job.facts.min_slots for name in left):
            result.waiting.append(replace(job, facts=replace(job.facts, gpu_types=left)))
        else:
            result.held.add(job.id)
    return result


def _overtakes(other: JobView, job: JobView, waits: Mapping[str, float], patience_s: float) -> bool:
    """Whether a waiting job would start before another only because it needs fewer slots."""
    if other.facts.min_slots >= job.facts.min_slots:
        return False
    return job.facts.weight * waits[job.id] >= other.facts.weight * max(waits[other.id], patience_s)


def _held_until_s(job: JobView, other: JobView, waited_s: float, patience_s: float) -> float:
    """For how much longer a job is held back for another that has waited for ``waited_s``; zero if it is not."""
    if job.facts.weight > other.facts.weight:
        return math.inf
    patience_s *= other.facts.weight / job.facts.weight
    doublings = math.floor(math.log2(waited_s / patience_s))
    return patience_s * 2.0 ** (doublings + 1) - waited_s if doublings % 2 == 0 else 0.0
