"""Space sharing: jobs that would wait lodge on the slots of others, where the interference model says that it pays.

A guest takes the configuration of its host. Both slow down; together they are worth more if neither keeps the
accelerator busy. Only jobs that keep their batch size take part: those that adapt it fill an accelerator by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geminid.configuration import Configuration
from geminid.job import Adaptivity
from geminid.policies.base import ClusterView, JobFacts, SharingModel

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Guests and hosts that are looked at, those with the largest and the smallest utility first.
MOST_CANDIDATES = 256

#: How much more a pair gains than another for lasting already: breaking it up costs somebody a pause.
LASTING = 1.5


def lodge(
    view: ClusterView, configurations: Sequence[Configuration], utility: Array, choice: IntArray
) -> list[tuple[int, int]]:
    """Pairs (host, guest) of rows: the most gainful first, nobody in two of them.

    ``choice`` is the decision without pairs, −1 for jobs that wait. Utilities are taken to shrink like speeds, though
    they are concave: a pair must get more done than one job alone, not only divide it more fairly.
    """
    sharing = view.sharing
    if sharing is None:
        return []
    fixed = np.array([job.facts.adaptivity is not Adaptivity.ADAPTIVE for job in view.jobs], dtype=bool)
    guests = np.flatnonzero(fixed & (choice < 0) & np.isfinite(utility).any(axis=1))
    hosts = np.flatnonzero(fixed & (choice >= 0))
    if not len(guests) or not len(hosts):
        return []
    guests = guests[np.argsort(-utility[guests].max(axis=1), kind="stable")][:MOST_CANDIDATES]
    hosts = hosts[np.argsort(utility[hosts, choice[hosts]], kind="stable")][:MOST_CANDIDATES]
    known: dict[tuple[object, ...], tuple[float, float]] = {}
    gains = []
    for guest in guests.tolist():
        for host in hosts.tolist():
            column = int(choice[host])
            alone = utility[guest, column]
            if not np.isfinite(alone):
                continue
            a, b = view.jobs[host].facts, view.jobs[guest].facts
            speeds = _speeds(sharing, a, b, configurations[column].gpu_type, known)
            gain = alone * speeds[1] - utility[host, column] * (1.0 - speeds[0])
            if gain > 0:
                lasts = view.jobs[guest].partner == a.id
                gains.append((-gain * (LASTING if lasts else 1.0), host, guest))
    taken: set[int] = set()
    pairs = []
    for _, host, guest in sorted(gains):
        if host not in taken and guest not in taken:
            taken |= {host, guest}
            pairs.append((host, guest))
    return pairs


def _speeds(
    sharing: SharingModel,
    host: JobFacts,
    guest: JobFacts,
    gpu_type: str,
    known: dict[tuple[object, ...], tuple[float, float]],
) -> tuple[float, float]:
    """Relative speeds of both; jobs of equal kind, size and batch are alike."""
    key = (
        *((facts.kind or facts.id, facts.requested_slots, facts.requested_batch) for facts in (host, guest)),
        gpu_type,
    )
    if key not in known:
        known[key] = sharing.relative_speeds(host, guest, gpu_type)
    return known[key]
