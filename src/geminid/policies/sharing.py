"""What policies that put two jobs on the same slots ask about a single one."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from geminid.policies.base import JobFacts, SharingModel


@runtime_checkable
class SpillingModel(Protocol):
    """How fast two jobs run on the same slots if one of them keeps what does not fit in the machine's memory."""

    def spilled_speeds(
        self, host: JobFacts, guest: JobFacts, gpu_type: str, memory_cap: float
    ) -> tuple[float, float, float]:
        """Speeds of both relative to having the slots alone, and the share of the guest's memory that spills.

        The host has all the memory that it needs, the guest at most what that leaves, and at most this share of the
        slot's. Speeds are zero if they cannot share even so.
        """


def beside_host(
    sharing: SharingModel | None, host: JobFacts, guest: JobFacts, gpu_type: str, memory_cap: float
) -> tuple[float, float, float]:
    """Speeds of a host and its guest, and what spills; where spilling is not modelled, both have to fit."""
    model: object = sharing
    if isinstance(model, SpillingModel):
        return model.spilled_speeds(host, guest, gpu_type, memory_cap)
    first, second = (0.0, 0.0) if sharing is None else sharing.relative_speeds(host, guest, gpu_type)
    return first, second, 0.0


def busy(sharing: SharingModel | None, facts: JobFacts, gpu_type: str) -> float:
    """How busy a job keeps its slots, as far as it shows beside a copy of itself: from 0 to 1.

    Two jobs that need all of a slot halve each other's speed. A job that does not fit beside its copy counts as 1:
    where memory is full, the slot usually is.
    """
    speed = 0.0 if sharing is None else min(sharing.relative_speeds(facts, facts, gpu_type))
    if not (speed > 0.0 and math.isfinite(speed)):
        return 1.0
    return min(max(1.0 / speed - 1.0, 0.0), 1.0)
