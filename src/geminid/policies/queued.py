"""Policies that only order the queue: jobs in some order, each on its requested slots, whoever still fits.

FIFO, shortest remaining time and least attained service differ in the order alone, so that is all they define.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.packing import FreeSlots


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
        free_total = sum(view.usable_slots)
        granted: list[JobView] = []
        jobs = self.order(view)
        if not self.preempts:
            jobs = [*(job for job in jobs if job.allocation), *(job for job in jobs if not job.allocation)]
        for job in jobs:
            if job.facts.requested_slots <= free_total:
                free_total -= job.facts.requested_slots
                granted.append(job)
            elif not self.skips:
                break
            if not free_total:
                break
        return Decision(place_requested(view, granted), wake_at_s=self.wake_at_s(view, granted))


def place_requested(view: ClusterView, granted: Sequence[JobView]) -> dict[str, Allocation]:
    """Keep running jobs where they are; place the others, in order, on the emptiest nodes first."""
    free = FreeSlots(view.usable_slots)
    result: dict[str, Allocation] = {}
    for job in granted:
        if job.allocation and job.slots == job.facts.requested_slots and free.holds(job.allocation):
            free.take(job.allocation)
            result[job.id] = job.allocation
    for job in granted:
        if job.id not in result:
            allocation = free.emptiest_first(job.facts.requested_slots)
            if allocation is not None:
                result[job.id] = allocation
    return result
