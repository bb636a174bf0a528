"""Choose the batch plan of one job on one configuration: the definition that the table vectorises.

The candidates are total batch sizes on a geometric grid. Each is divided over the slots, in as few passes as memory
allows; the plan with the best goodput wins. Where a total does not divide evenly, the per-slot batch is rounded up and
some passes are a sample short: no plan exceeds M_max, and none falls below M0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.throughput import Shape

#: How many total batch sizes are tried between the smallest and the largest.
GRID_POINTS = 50

#: Slack when rounding up, so that grid points that should be whole numbers are.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What bounds a job's batch sizes, in samples.

    ``initial`` is M0, ``largest`` M_max; per-slot batches lie between ``smallest_per_slot`` and ``largest_per_slot``
    (memory). A job whose batch size must not change has ``largest`` equal to ``initial``.
    """

    initial: int
    largest: int
    smallest_per_slot: int
    largest_per_slot: int

    def __post_init__(self) -> None:
        if not 1 <= self.initial <= self.largest:
            raise ValueError(f"initial batch {self.initial} must lie between 1 and the largest, {self.largest}")
        if not 1 <= self.smallest_per_slot <= self.largest_per_slot:
            raise ValueError(
                f"smallest per-slot batch {self.smallest_per_slot} must lie between 1 and the largest, "
                f"{self.largest_per_slot}"
            )

    def total(self, slots: int, per_slot_batch: int, accumulation_steps: int) -> int:
        """Samples per optimiser step: what the slots take together, but never more than M_max."""
        return min(slots * per_slot_batch * (accumulation_steps + 1), self.largest)


@dataclass(frozen=True, slots=True)
class TunedPlan:
    """A batch plan with what the model predicts for it. Zero goodput means that the configuration cannot be used."""

    goodput: float
    throughput: float
    efficiency: float
    per_slot_batch: int
    accumulation_steps: int
    total_batch: int


IMPOSSIBLE = TunedPlan(0.0, 0.0, 0.0, 0, 0, 0)


def candidate_plans(limits: BatchLimits, slots: int) -> Iterator[tuple[int, int]]:
    """Per-slot batch and accumulation steps of every candidate that respects the limits."""
    smallest = max(limits.initial, limits.smallest_per_slot * slots)
    if smallest > limits.largest:
        return
    for point in range(GRID_POINTS):
        total = smallest * (limits.largest / smallest) ** (point / (GRID_POINTS - 1))
        per_slot = total / slots
        accumulation = math.ceil(per_slot / limits.largest_per_slot - ROUNDING) - 1
        if slots == 1 and total > limits.initial * (1 + ROUNDING):
            accumulation = max(accumulation, 1)  # two passes, so that gradient noise can be measured
        batch = math.ceil(per_slot / (accumulation + 1) - ROUNDING)
        batch = min(max(batch, limits.smallest_per_slot), limits.largest_per_slot)
        if slots * limits.smallest_per_slot * (accumulation + 1) <= limits.largest:
            yield batch, accumulation


def evaluate(
    fitted: ThroughputFit,
    gradient: GradientStats,
    limits: BatchLimits,
    *,
    nodes: int,
    slots: int,
    per_slot_batch: int,
    accumulation_steps: int,
    busiest_node_slots: int | None = None,
    link_slowdown: float = 1.0,
) -> TunedPlan:
    """Predict throughput, efficiency and goodput of one given plan (``link_slowdown``: see ``topology.py``)."""
    total = limits.total(slots, per_slot_batch, accumulation_steps)
    times = fitted.step_times(Shape.of(nodes, slots, per_slot_batch, busiest_node_slots, link_slowdown))
    throughput = total / float(times.iteration_s(accumulation_steps))
    efficiency = gradient.efficiency(total / limits.initial)
    return TunedPlan(throughput * efficiency, throughput, efficiency, per_slot_batch, accumulation_steps, total)


def best_plan(
    fitted: ThroughputFit,
    gradient: GradientStats,
    limits: BatchLimits,
    *,
    nodes: int,
    slots: int,
    busiest_node_slots: int | None = None,
    link_slowdown: float = 1.0,
) -> TunedPlan:
    """The candidate with the best predicted goodput; the smaller batch where two are equal."""
    best = IMPOSSIBLE
    for per_slot_batch, accumulation_steps in candidate_plans(limits, slots):
        plan = evaluate(
            fitted,
            gradient,
            limits,
            nodes=nodes,
            slots=slots,
            per_slot_batch=per_slot_batch,
            accumulation_steps=accumulation_steps,
            busiest_node_slots=busiest_node_slots,
            link_slowdown=link_slowdown,
        )
        if plan.goodput > best.goodput:
            best = plan
    return best


#: A running job is re-tuned when that gains at least this much, or at a resize.
WORTH_RETUNING = 0.05


def worth_retuning(current: TunedPlan, best: TunedPlan) -> bool:
    """Whether the best plan gains enough over the current one to change it (both under today's model)."""
    return best.goodput > current.goodput * (1.0 + WORTH_RETUNING)


def untuned_plan(limits: BatchLimits, slots: int) -> tuple[int, int] | None:
    """Per-slot batch and accumulation steps before there is a fit: M = max(M0, m_min·K), or None if impossible."""
    return next(candidate_plans(limits, slots), None)
