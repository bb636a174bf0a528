"""Policies of the largest total, in rounds: throughput, or throughput per price, with or without deadlines.

Totals add up steps per second of different jobs as they are, as the paper does: a job of small steps counts for more.
``normalised=true`` counts them in multiples of what each would reach on an equal share of all slots. Prices are the GPU
types' relative costs. The problems are in ``throughput.py``, the rounds in ``timesharing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from geminid.policies.gavel.problem import AllocationProblem, TimeFractions
from geminid.policies.gavel.throughput import max_total_throughput
from geminid.policies.gavel.timesharing import TimeSharingPolicy


@dataclass
class MaxSumThroughputPerf(TimeSharingPolicy):
    """As many steps per second as possible, over all jobs."""

    name = "max_sum_throughput_perf"
    objective = "largest total of steps per second"
    optimises = True
    knows_placement = True
    by_cost: ClassVar[bool] = False
    deadlines: ClassVar[bool] = False

    normalised: bool = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """One linear program."""
        return max_total_throughput(
            problem,
            by_cost=self.by_cost,
            deadlines=self.deadlines,
            normalised=self.normalised,
            memory=self.memory,
            within=self.allowance(),
        )


@dataclass
class MaxSumThroughputPacked(MaxSumThroughputPerf):
    """The same, with pairs of jobs on the same slots."""

    name = "max_sum_throughput_packed"
    objective = "largest total of steps per second, with pairs on the same slots"
    packed = True


@dataclass
class MaxSumThroughputByCostPerf(MaxSumThroughputPerf):
    """As many steps per second and price as possible: minimum cost."""

    name = "max_sum_throughput_normalized_by_cost_perf"
    objective = "largest total of steps per second, each divided by the price of its slots"
    by_cost = True


@dataclass
class MaxSumThroughputByCostPacked(MaxSumThroughputByCostPerf):
    """The same, with pairs of jobs on the same slots."""

    name = "max_sum_throughput_normalized_by_cost_packed"
    objective = "largest total of steps per second and price, with pairs on the same slots"
    packed = True


@dataclass
class MaxSumThroughputByCostPerfSLOs(MaxSumThroughputByCostPerf):
    """The same, fast enough for every deadline that can be met; the others are named."""

    name = "max_sum_throughput_normalized_by_cost_perf_SLOs"
    objective = "largest total of steps per second and price that meets the deadlines"
    deadlines = True
    needs_oracle = True


@dataclass
class MaxSumThroughputByCostPackedSLOs(MaxSumThroughputByCostPerfSLOs):
    """The same, with pairs of jobs on the same slots."""

    name = "max_sum_throughput_normalized_by_cost_packed_SLOs"
    objective = "largest total of steps per second and price that meets the deadlines, with pairs on the same slots"
    packed = True
