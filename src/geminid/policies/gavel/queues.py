"""Policies without an objective, in rounds: FIFO on mixed GPU types, and Gandiva's packing as Gavel models it."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.policies.gavel.in_order import first_in_first_out
from geminid.policies.gavel.problem import AllocationProblem, TimeFractions
from geminid.policies.gavel.random_packing import random_packing
from geminid.policies.gavel.timesharing import TimeSharingPolicy


@dataclass
class FifoAgnostic(TimeSharingPolicy):
    """First in, first out, on a GPU type drawn at random among those with room, until the job is done.

    This is Gavel's ``fifo``. In the published code the type that is drawn is not used; here it is.
    """

    name = "fifo_agnostic"
    objective = "first in, first out, on GPU types drawn at random (Gavel's fifo)"
    aware = False
    backfill = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """Whole jobs, in the order of arrival."""
        seed = int(self._rng.integers(2**31))
        return first_in_first_out(problem, aware=False, held=self.held_types(), seed=seed)


@dataclass
class FifoPerf(TimeSharingPolicy):
    """First in, first out, each job on the fastest GPU type that has room."""

    name = "fifo_perf"
    objective = "first in, first out, each job on the fastest GPU type with room"
    backfill = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """Whole jobs, in the order of arrival; earlier ones move to faster types that have become free."""
        return first_in_first_out(problem)


@dataclass
class FifoPacked(FifoPerf):
    """The same; jobs that would wait join one that runs where the two are worth more than one and a half."""

    name = "fifo_packed"
    objective = "first in, first out, jobs that would wait joining others on their slots where that pays"
    packed = True


@dataclass
class GandivaPacked(TimeSharingPolicy):
    """Equal shares, and under overload random pairs of equal gangs, kept as long as they pay.

    Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI '18, as Gavel models it, where it
    is called ``gandiva``: without affinity, slices, migration, growing and shrinking. The system itself is the policy
    ``gandiva``.
    """

    name = "gandiva_packed"
    paper = "Xiao et al., OSDI '18, as in Gavel"
    objective = "equal shares; under overload random pairs of jobs on the same slots, kept if they pay"
    packed = True
    fills_by_speed = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """No optimisation: pairs are tried."""
        return random_packing(problem, seed=int(self._rng.integers(2**31)), held=self.held_pairs())
