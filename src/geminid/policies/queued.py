"""Policies that only order the queue: jobs in some order, each on its requested slots, if it still fits.

FIFO, shortest remaining time and least attained service differ in the order alone, so that is all they define.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.packing import FreeSlots, usable_types


class QueuedPolicy(Policy):
    """Grant requested slots in order. Running jobs that are still granted keep their place.

    With ``skips`` a job that does not fit is passed over and later ones may run; without, they wait behind it. With
    ``preempts`` running jobs are ordered like the others and may lose their slots; without, they keep them.
    """

    skips: ClassVar[bool] = True
    preempts: ClassVar[bool] = True

    @abstractmethod
    def order(self, view: ClusterView) -> Sequence[JobView]:
        """All jobs, first served first."""

    def wake_at_s(self, view: ClusterView, granted: Sequence[JobView]) -> float | None:
        """When the order will change by itself, if it will."""
        return None

    def decide(self, view: ClusterView) -> Decision:
        """Grant slots in order, first to those that keep them, then to those that are new."""
        jobs = self.order(view)
        if not self.preempts:
            waiting = [job for job in jobs if not job.allocation]
            if min(view.free_slots, default=0) >= 0:  # nobody has to leave a drained node
                granted = _grant(view, view.free_slots, waiting, skips=self.skips)
                return Decision(_place(view, view.free_slots, granted), others_stay=True)
            jobs = [*(job for job in jobs if job.allocation), *waiting]
        granted = _grant(view, view.usable_slots, jobs, skips=self.skips)
        allocations = _place(view, view.usable_slots, granted)
        return Decision(allocations, wake_at_s=self.wake_at_s(view, [job for job, _ in granted]))


def _grant(
    view: ClusterView, slots: Sequence[int], jobs: Sequence[JobView], *, skips: bool
) -> list[tuple[JobView, str]]:
    """Which jobs run, and on which GPU type: the one they are on if it still has room, else the best that has.

    These policies know nothing of speeds; like users, they take the dearest type that has room for the better one.
    """
    free = FreeSlots(view, slots)
    left = {gpu_type: free.of_type(gpu_type) for gpu_type in free.nodes_of_type}
    granted: list[tuple[JobView, str]] = []
    for job in jobs:
        need = job.facts.requested_slots
        gpu_type = job.gpu_type
        if gpu_type is None or left[gpu_type] < need:
            with_room = [t for t in usable_types(job, free) if left[t] >= need]
            gpu_type = max(with_room, key=lambda t: (view.cluster.gpu_type(t).relative_cost, left[t]), default=None)
        if gpu_type is not None:
            left[gpu_type] -= need
            granted.append((job, gpu_type))
        elif not skips:
            break
        if not any(left.values()):
            break
    return granted


def _place(view: ClusterView, slots: Sequence[int], granted: Sequence[tuple[JobView, str]]) -> dict[str, Allocation]:
    """Keep running jobs where they are; place the others, in order, on the emptiest nodes first."""
    free = FreeSlots(view, slots)
    result: dict[str, Allocation] = {}
    for job, gpu_type in granted:
        stays = job.gpu_type == gpu_type and job.slots == job.facts.requested_slots
        if stays and free.holds(job.allocation):
            free.take(job.allocation)
            result[job.id] = job.allocation
    for job, gpu_type in granted:
        if job.id not in result:
            allocation = free.emptiest_first(job.facts.requested_slots, [gpu_type])
            if allocation is not None:
                result[job.id] = allocation
    return result
