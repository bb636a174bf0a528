"""Put configurations onto nodes: keep running jobs where they are, and leave as little fragmentation as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from geminid.cluster import Cluster
from geminid.configuration import Configuration

Allocation = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where every job goes, and why some could not be placed."""

    allocations: dict[str, Allocation]
    unplaced: dict[str, str]


def place(
    cluster: Cluster,
    usable_slots: Iterable[int],
    wanted: Mapping[str, Configuration],
    current: Mapping[str, Allocation],
) -> Placed:
    """Place all wanted configurations, one GPU type at a time.

    Jobs whose configuration is the one they have stay. The others go in from the largest to the smallest: several nodes
    get equal shares, a single node is the fullest one that still has room. Where that fails because the free slots are
    scattered, everything of that type is placed afresh, largest first, which succeeds whenever sizes are powers of
    two or whole nodes and the capacity suffices. What still does not fit is left out, with a reason.
    """
    free = list(usable_slots)
    result: dict[str, Allocation] = {}
    unplaced: dict[str, str] = {}
    by_type: dict[str, list[str]] = {}
    for job_id, configuration in wanted.items():
        by_type.setdefault(configuration.gpu_type, []).append(job_id)
    for gpu_type, job_ids in by_type.items():
        index = cluster.type_index[gpu_type]
        nodes = [n for n, t in enumerate(cluster.node_type) if t == index]
        stay = {
            job_id: current[job_id]
            for job_id in job_ids
            if job_id in current and _realises(cluster, current[job_id], wanted[job_id])
        }
        room = {n: free[n] for n in nodes}
        kept = _fit_all(room, stay, {j: wanted[j] for j in job_ids if j not in stay})
        if kept.unplaced:
            afresh = _fit_all({n: free[n] for n in nodes}, {}, {j: wanted[j] for j in job_ids})
            if len(afresh.unplaced) < len(kept.unplaced):
                kept = afresh
        result |= kept.allocations
        unplaced |= kept.unplaced
    return Placed(result, unplaced)


def _realises(cluster: Cluster, allocation: Allocation, configuration: Configuration) -> bool:
    return (
        len(allocation) == configuration.nodes
        and sum(slots for _, slots in allocation) == configuration.slots
        and all(cluster.nodes[node].gpu_type == configuration.gpu_type for node, _ in allocation)
    )


def _fit_all(room: dict[int, int], stay: Mapping[str, Allocation], wanted: Mapping[str, Configuration]) -> Placed:
    room = dict(room)
    placed: dict[str, Allocation] = {}
    unplaced: dict[str, str] = {}
    for job_id, allocation in stay.items():
        if all(room.get(node, 0) >= slots for node, slots in allocation):
            placed[job_id] = allocation
            for node, slots in allocation:
                room[node] -= slots
        else:
            unplaced[job_id] = "its node is no longer usable"
    for job_id, configuration in sorted(wanted.items(), key=lambda item: (-item[1].slots, -item[1].nodes)):
        found = _fit_one(room, configuration)
        if found is None:
            unplaced[job_id] = f"the free slots are too scattered for {configuration}"
            continue
        placed[job_id] = found
        for node, slots in found:
            room[node] -= slots
    return Placed(placed, unplaced)


def _fit_one(room: Mapping[int, int], configuration: Configuration) -> Allocation | None:
    share, extra = divmod(configuration.slots, configuration.nodes)
    parts = [share + (i < extra) for i in range(configuration.nodes)]
    fullest_first = sorted((free, node) for node, free in room.items() if free >= parts[-1])
    taken: list[tuple[int, int]] = []
    used: set[int] = set()
    for part in parts:
        node = next((node for free, node in fullest_first if free >= part and node not in used), None)
        if node is None:
            return None
        used.add(node)
        taken.append((node, part))
    return tuple(sorted(taken))
