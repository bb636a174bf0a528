"""Policies that look at when jobs will be done, in rounds: finish-time fairness, makespan, AlloX, Themis' auction.

All know how many steps each job has left; in a live cluster that is what its user says. The problems are in
``finish_time.py``, ``makespan.py``, ``in_order.py``, ``allox.py`` and ``auction.py``, the rounds in ``timesharing.py``.

Of finish-time fairness and makespan only the worst job decides: many fractions are optimal, and under them mean JCTs
differ by a quarter. ``choice`` takes the middle of them (``centre``, as an interior-point solver does), a ``vertex``,
or those of the largest ``total`` throughput, which have the shortest JCTs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from geminid.policies.gavel.allox import allox
from geminid.policies.gavel.auction import themis_auction
from geminid.policies.gavel.finish_time import finish_time_fairness
from geminid.policies.gavel.in_order import shortest_job_first
from geminid.policies.gavel.makespan import min_makespan
from geminid.policies.gavel.problem import AllocationProblem, TimeFractions
from geminid.policies.gavel.program import Choice
from geminid.policies.gavel.timesharing import TimeSharingPolicy
from geminid.policies.options import AtLeast, AtMost, Positive


@dataclass
class FinishTimeFairness(TimeSharingPolicy):
    """The largest ratio of a job's duration to that on a static equal share is as small as possible.

    Unaware of GPU types, every type that runs a job is taken to be as fast as its fastest. (The published code takes
    every type to be as fast as a V100, also where that is not the fastest or the job cannot run.)
    """

    name = "finish_time_fairness"
    objective = "smallest largest duration relative to a static equal share (Themis' ρ), unaware of GPU types"
    aware = False
    optimises = True
    knows_placement = True
    needs_oracle = True

    choice: Choice = "centre"

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """Linear programs with tangents, exact."""
        return finish_time_fairness(problem, choice=self.choice, memory=self.memory, within=self.allowance())


@dataclass
class FinishTimeFairnessPerf(FinishTimeFairness):
    """The same with known throughputs."""

    name = "finish_time_fairness_perf"
    objective = "smallest largest duration relative to a static equal share (Themis' ρ)"
    aware = True


@dataclass
class FinishTimeFairnessPacked(FinishTimeFairnessPerf):
    """The same, with pairs of jobs on the same slots."""

    name = "finish_time_fairness_packed"
    objective = "smallest largest duration relative to a static equal share, with pairs on the same slots"
    packed = True


@dataclass
class MinTotalDuration(TimeSharingPolicy):
    """The last of the jobs that are there ends as early as possible; unaware of GPU types."""

    name = "min_total_duration"
    objective = "smallest makespan of the jobs that are there, unaware of GPU types"
    aware = False
    optimises = True
    knows_placement = True
    needs_oracle = True

    choice: Choice = "centre"

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """One linear program, exact."""
        return min_makespan(problem, choice=self.choice, memory=self.memory, within=self.allowance())


@dataclass
class MinTotalDurationPerf(MinTotalDuration):
    """The same with known throughputs."""

    name = "min_total_duration_perf"
    objective = "smallest makespan of the jobs that are there"
    aware = True


@dataclass
class MinTotalDurationPacked(MinTotalDurationPerf):
    """The same, with pairs of jobs on the same slots."""

    name = "min_total_duration_packed"
    objective = "smallest makespan of the jobs that are there, with pairs on the same slots"
    packed = True


@dataclass
class ShortestJobFirst(TimeSharingPolicy):
    """Jobs with the least time left on their fastest type first, each on the fastest type that has room."""

    name = "shortest_job_first"
    objective = "shortest time left first, each job on the fastest GPU type with room"
    needs_oracle = True
    backfill = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """Whole jobs, one after the other."""
        return shortest_job_first(problem)


@dataclass
class AlloX(TimeSharingPolicy):
    """Jobs in lines before slots so that the average completion time is least; who runs keeps its slots.

    Le et al., "AlloX: Compute Allocation in Hybrid Clusters", EuroSys '20. For jobs of one slot: larger gangs get what
    room is left (the published code refuses them).
    """

    name = "allox"
    paper = "Le et al., EuroSys '20, as in Gavel"
    objective = "least average completion time of single-slot jobs, as an assignment to places in line"
    needs_oracle = True

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """A transportation problem; those that were first in their lines keep their type."""
        return allox(problem, held=self.held_types())


@dataclass
class Themis(TimeSharingPolicy):
    """Slots are auctioned to the jobs that are worst off by finish-time fairness; see ``auction.py``.

    Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI '20, from notes and memory of the paper:
    ``knob`` is its f, and leases last 20 minutes.
    """

    name = "themis"
    paper = "Mahajan et al., NSDI '20"
    objective = "largest product of 1/ρ among the worst-off jobs, by auction; the rest shared fairly"
    needs_oracle = True
    optimises = True

    knob: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.8
    round_s: Positive = 1200.0

    @classmethod
    def ignores(cls) -> frozenset[str]:
        """Nothing is kept from one auction to the next."""
        return super().ignores() | {"warm"}

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """The winning allocation, less what winners do not keep."""
        return themis_auction(problem, fairness_knob=self.knob, within=self.allowance())
