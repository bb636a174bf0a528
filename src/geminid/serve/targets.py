"""From the engine's commands, which count slots, to targets, which name them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.engine.commands import Command, Rescale, Start, Stop
from geminid.policies.base import Allocation
from geminid.serve.state import Slot


def reconcile(
    commands: Sequence[Command],
    desired: Mapping[str, Allocation],
    actual: Mapping[str, Placement | None],
    cluster: Cluster,
    *,
    closed: Collection[Slot] = (),
    occupied: Mapping[str, Placement] | None = None,
) -> dict[str, Placement | None]:
    """The targets that change, by job: those of the engine's commands, and of jobs that leave ``closed`` slots.

    ``desired`` are the engine's allocations after the commands, ``actual`` the targets before them. A job without a
    command keeps its target, unless it is on a closed slot and there is another one for it on the same node.
    ``occupied`` are the slots that processes are on.
    """
    named = name_slots(desired, actual, cluster, closed, occupied)
    changes: dict[str, Placement | None] = {}
    for command in commands:
        match command:
            case Stop():
                changes[command.job_id] = None
            case Start() | Rescale():
                changes[command.job_id] = named[command.job_id]
            case _:  # no live jobs share slots
                pass
    leaving = {job_id: place for job_id, place in named.items() if job_id not in changes and place != actual[job_id]}
    return {job_id: place for job_id, place in (changes | leaving).items() if place != actual.get(job_id)}


def name_slots(
    wanted: Mapping[str, Allocation],
    current: Mapping[str, Placement | None],
    cluster: Cluster,
    closed: Iterable[Slot],
    occupied: Mapping[str, Placement] | None = None,
) -> dict[str, Placement]:
    """Name the slots of allocations: every job keeps as many of its slots as it can, and no slot is named twice.

    ``wanted`` are the allocations of all jobs. Closed slots are given to no job that is not on them, and a job on one
    gets another slot of the node where there is one. ``occupied`` are the slots that processes are on: a slot that
    another job still has to leave is named only if no other is free.
    """
    free = {node.name: set(range(node.slots)) for node in cluster.nodes}
    for name, slot in closed:
        free.get(name, set()).discard(slot)
    users: dict[Slot, set[str]] = {}
    for job_id, place in (occupied or {}).items():
        for user in place.slots():
            users.setdefault(user, set()).add(job_id)
    kept: dict[str, dict[str, list[int]]] = {}
    for job_id, allocation in wanted.items():
        held = _slots_by_node(current.get(job_id))
        kept[job_id] = {}
        for node, count in allocation:
            name = cluster.nodes[node].name
            mine = [slot for slot in held.get(name, ()) if slot in free[name]][:count]
            free[name].difference_update(mine)
            kept[job_id][name] = mine
    for job_id, allocation in wanted.items():
        held = _slots_by_node(current.get(job_id))
        for node, count in allocation:
            name = cluster.nodes[node].name
            mine = kept[job_id][name]
            if len(mine) == count:
                continue
            by_use = sorted((bool(users.get((name, slot), set()) - {job_id}), slot) for slot in free[name])
            available = [slot for _, slot in by_use[: count - len(mine)]]
            free[name].difference_update(available)
            mine += available
            mine += [slot for slot in held.get(name, ()) if slot not in mine][: count - len(mine)]
    return {
        job_id: Placement.of({name: slots for name, slots in nodes.items() if slots}) for job_id, nodes in kept.items()
    }


def _slots_by_node(place: Placement | None) -> dict[str, tuple[int, ...]]:
    return {} if place is None else dict(place.slots_by_node)
