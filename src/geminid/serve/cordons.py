"""What a cordon means for running jobs: no job is started on the slot, and no job is stopped for it.

A plain command stays on a cordoned slot until it ends: it would lose its work. An elastic job leaves live, for a free
slot or by shrinking; where other jobs leave it no room even at their smallest sizes, it stays until there is some.
Jobs move or stop when their node is drained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from geminid.cluster import Cluster
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState, Slot


def kept_slots(
    state: ServiceState, cluster: Cluster, least: Callable[[LiveJob], int] = lambda job: job.spec.min_slots
) -> dict[str, frozenset[Slot]]:
    """The cordoned slots that jobs stay on, by job. ``least`` is how few slots an elastic job can be made to have."""
    if not state.cordoned:
        return {}
    closed = state.emptied | state.down
    types = {node.name: node.gpu_type for node in cluster.nodes if node.name not in closed}
    planned = {
        job.id: frozenset(job.target.slots())
        for job in state.jobs.values()
        if job.wants_slots and job.target is not None and set(job.target.node_names) <= set(types)
    }
    kept: dict[str, frozenset[Slot]] = {}
    may_leave: list[LiveJob] = []
    missing: Counter[str] = Counter()  # by GPU type: the fewest slots that running jobs need, less those in service
    for node in cluster.nodes:
        if node.name in types:
            missing[node.gpu_type] += sum(owner == node.name for owner, _ in state.out_of_service) - node.slots
    for job_id, slots in planned.items():
        job = state.jobs[job_id]
        place = job.state.placement
        on = slots & state.cordoned & frozenset(() if place is None else place.slots())
        gpu_type = types[next(iter(slots))[0]]
        if not job.elastic:
            missing[gpu_type] += len(slots - on)
            if on:
                kept[job_id] = on
            continue
        missing[gpu_type] += least(job)
        if on:
            may_leave.append(job)
    for job in may_leave:
        slots = planned[job.id]
        on, gpu_type = slots & state.cordoned, types[next(iter(slots))[0]]
        gain = least(job) - len(slots - on)
        if gain > 0 and missing[gpu_type] > 0:
            kept[job.id] = on
            missing[gpu_type] -= gain
    return kept
