"""Place gangs on nodes: where they were if that is free, else on as few nodes as possible, the largest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from geminid.policies.base import Allocation, ClusterView
from geminid.policies.gavel.problem import Combination
from geminid.policies.packing import FreeSlots


def place_gangs(
    view: ClusterView,
    chosen: Sequence[tuple[Combination, str]],
    gangs: Mapping[str, int],
    fixed: Sequence[Allocation] = (),
    worth: Callable[[str, str], float] = lambda job_id, gpu_type: 1.0,
) -> dict[Combination, Allocation]:
    """An allocation for every combination and type; ``fixed`` slots are somebody's already.

    Gangs of one size at a time: those that can stay where they were first, then the others, first those to which being
    on as few nodes as possible is worth most. ``worth`` is the speed of a job on a type when it is not, relative to
    when it is; where that is less than 1, it does not stay on more nodes than it needs.
    """
    free = FreeSlots(view, view.usable_slots)
    for allocation in fixed:
        free.take(allocation)
    before = {job.id: (job.gpu_type, job.allocation) for job in view.jobs if job.allocation}
    placed: dict[Combination, Allocation] = {}
    for size in sorted({gangs[combination[0]] for combination, _ in chosen}, reverse=True):
        moving = []
        for combination, gpu_type in chosen:
            if gangs[combination[0]] != size:
                continue
            for member in combination:
                had_type, allocation = before.get(member, (None, ()))
                stays = had_type == gpu_type and sum(slots for _, slots in allocation) == size
                fewest = -(-size // view.cluster.largest_node_slots[gpu_type])
                stays = stays and (len(allocation) <= fewest or worth(member, gpu_type) >= 1.0)
                if stays and free.holds(allocation):
                    placed[combination] = allocation
                    free.take(allocation)
                    break
            else:
                moving.append((combination, gpu_type))
        moving.sort(key=lambda c: min(worth(job_id, c[1]) for job_id in c[0]))
        for combination, gpu_type in moving:
            found = _closely(free, gpu_type, size)
            if found is not None:
                placed[combination] = found
    return placed


def _closely(free: FreeSlots, gpu_type: str, size: int) -> Allocation | None:
    """Take the fullest node that has room for all; failing that, the emptiest nodes first."""
    nodes = free.nodes_of_type[gpu_type]
    node = min((n for n in nodes if free.per_node[n] >= size), key=lambda n: (free.per_node[n], n), default=None)
    if node is None:
        return free.emptiest_first(size, [gpu_type])
    allocation = ((node, size),)
    free.take(allocation)
    return allocation
