"""What the owners and queues of a workload got: share of the cluster, worst finish-time ratio, and envy.

A tenant is *present* while it has jobs that are not done. Its share is its part of all slot time that was held while it
was present; its fair share, that part if all tenants present at any moment held equally many slots. Its envy compares
it with every other tenant over the time for which both were present: (worth of the other's slots − worth of its own) /
(worth of both), the largest over the others, at least 0. Slots are worth what the tenant's own jobs make of their GPU
type. A tenant that asks for little may envy others without being wronged: the measure knows nothing of demand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.sim.oracle import durations_s
from geminid.sim.result import Result
from geminid.sim.simjob import SimJob

Array = NDArray[np.float64]

#: Tenants that are compared with each other; of more, those that held the most slot time.
MOST_TENANTS: Final = 100


@dataclass(frozen=True, slots=True)
class Tenant:
    """One owner or queue. ``share`` is None if nobody held slots, ``envy`` if no other tenant was present with it."""

    name: str
    jobs: int
    share: float | None
    fair_share: float
    avg_jct_s: float | None
    worst_ftf: float | None
    envy: float | None


def tenants(result: Result, ratios: Sequence[float | None]) -> dict[str, list[dict[str, Any]]]:
    """Owners and queues as plain data, each list empty unless there are several; ``ratios`` are those of the jobs."""
    kinds: dict[str, Callable[[SimJob], str]] = {
        "owners": lambda job: job.facts.owner,
        "queues": lambda job: job.facts.queue,
    }
    return {kind: [asdict(each) for each in by_tenant(result, ratios, of)] for kind, of in kinds.items()}


def by_tenant(result: Result, ratios: Sequence[float | None], of: Callable[[SimJob], str]) -> list[Tenant]:
    """The tenants in the order of their first jobs; none where all jobs belong to the same."""
    groups: dict[str, list[int]] = {}
    for row, job in enumerate(result.jobs):
        groups.setdefault(of(job), []).append(row)
    if len(groups) < 2:
        return []
    end_s = max(job.at_s if job.completed_s is None else job.completed_s for job in result.jobs)
    if len(groups) > MOST_TENANTS:
        held = {name: sum(_slot_s(result.jobs[row], end_s) for row in rows) for name, rows in groups.items()}
        most = set(sorted(held, key=lambda name: -held[name])[:MOST_TENANTS])
        groups = {name: rows for name, rows in groups.items() if name in most}
    members = [[result.jobs[row] for row in rows] for rows in groups.values()]
    edges = np.unique([time_s for jobs in members for job in jobs for time_s in _life(job, end_s)])
    present = np.array([_present(jobs, edges, end_s) for jobs in members])
    held_by = np.array([_held(jobs, edges, end_s, result.cluster) for jobs in members])
    envies = _envies(present, held_by, np.array([_worths(jobs, result.cluster) for jobs in members]))
    lengths_s = np.diff(edges)
    all_slot_s = held_by.sum(axis=(0, 1))
    found = []
    for index, (name, rows) in enumerate(groups.items()):
        at = present[index]
        whole = float(all_slot_s[at].sum())
        jcts = [j.completed_s - j.facts.submitted_s for j in members[index] if j.completed_s is not None]
        known = [ratio for row in rows if (ratio := ratios[row]) is not None]
        found.append(
            Tenant(
                name=name,
                jobs=len(rows),
                share=float(held_by[index][:, at].sum()) / whole if whole > 0 else None,
                fair_share=float(np.average(1.0 / present.sum(axis=0)[at], weights=lengths_s[at])),
                avg_jct_s=float(np.mean(jcts)) if jcts else None,
                worst_ftf=max(known, default=None),
                envy=envies[index],
            )
        )
    return found


def _life(job: SimJob, end_s: float) -> tuple[float, float]:
    return job.facts.submitted_s, end_s if job.completed_s is None else job.completed_s


def _slot_s(job: SimJob, end_s: float) -> float:
    return sum(
        ((end_s if stint.end_s is None else stint.end_s) - stint.start_s) * sum(stint.placement) for stint in job.stints
    )


def _present(jobs: Sequence[SimJob], edges: Array, end_s: float) -> NDArray[np.bool_]:
    """In which intervals between the edges any of the jobs is there."""
    change = np.zeros(len(edges))
    for job in jobs:
        first_s, last_s = _life(job, end_s)
        change[np.searchsorted(edges, first_s)] += 1.0
        change[np.searchsorted(edges, last_s)] -= 1.0
    return np.asarray(np.cumsum(change)[:-1] > 0)


def _held(jobs: Sequence[SimJob], edges: Array, end_s: float, cluster: Cluster) -> Array:
    """Slot-seconds by GPU type and interval; a slot that two jobs share counts half for each."""
    held = np.zeros((len(cluster.type_index), len(edges) - 1))
    for gpu_type, index in cluster.type_index.items():
        stints = [stint for job in jobs for stint in job.stints if stint.gpu_type == gpu_type]
        starts_s = np.array([stint.start_s for stint in stints])
        ends_s = np.array([end_s if stint.end_s is None else stint.end_s for stint in stints])
        slots = np.array([sum(stint.placement) * (1.0 if stint.partner is None else 0.5) for stint in stints])
        held[index] = np.diff(_slot_s_until(edges, starts_s, slots) - _slot_s_until(edges, ends_s, slots))
    return held


def _slot_s_until(edges: Array, from_s: Array, slots: Array) -> Array:
    """Slot-seconds up to every edge if each of these slots were held from its time on."""
    order = np.argsort(from_s, kind="stable")
    count = np.concatenate([[0.0], np.cumsum(slots[order])])
    moment = np.concatenate([[0.0], np.cumsum((slots * from_s)[order])])
    before = np.searchsorted(from_s[order], edges, side="right")
    return np.asarray(edges * count[before] - moment[before])


def _worths(jobs: Sequence[SimJob], cluster: Cluster) -> Array:
    """What a slot of each type is worth to jobs: the mean of their speeds on it relative to their fastest type."""
    worth = np.zeros(len(cluster.type_index))
    for job in jobs:
        durations = durations_s(job, cluster)
        least_s = min(durations.values(), default=0.0)
        for gpu_type, seconds in durations.items():
            worth[cluster.type_index[gpu_type]] += least_s / seconds if seconds > 0 else 1.0
    return worth / max(len(jobs), 1)


def _envies(present: NDArray[np.bool_], held: Array, worth: Array) -> list[float | None]:
    """Of every tenant, its envy of the other whose slots were worth most to it, from 0 (none) to 1 (it had nothing)."""
    # met[a, b, g]: slot-seconds of type g that b held while a was present. What a tenant holds while it is not present
    # is nothing, so met[b, a] is what a held while both were.
    met = np.einsum("ak,bgk->abg", present.astype(float), held)
    theirs = np.einsum("abg,ag->ab", met, worth)
    own = np.einsum("bag,ag->ab", met, worth)
    together = present.astype(float) @ present.T.astype(float) > 0
    np.fill_diagonal(together, val=False)
    envies: list[float | None] = []
    for index, others in enumerate(together):
        pairs = [(theirs[index, other], own[index, other]) for other in np.flatnonzero(others)]
        known = [(other - mine) / (other + mine) for other, mine in pairs if other + mine > 0]
        envies.append(max(0.0, *map(float, known)) if known else None)
    return envies
