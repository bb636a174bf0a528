"""Max-min fairness (least attained service, generalised) and static shares, in rounds."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.policies.gavel.maxmin import max_min_fairness
from geminid.policies.gavel.problem import AllocationProblem, TimeFractions, single_fractions
from geminid.policies.gavel.timesharing import TimeSharingPolicy


@dataclass
class MaxMinFairness(TimeSharingPolicy):
    """The smallest share of time, weighted and per slot, is as large as possible; unaware of GPU types."""

    name = "max_min_fairness"
    objective = "largest smallest share of time, unaware of GPU types (least attained service)"
    aware = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """One linear program."""
        return max_min_fairness(problem, choice="centre")


@dataclass
class MaxMinFairnessPerf(MaxMinFairness):
    """The smallest effective throughput, relative to an equal share of all slots, is as large as possible."""

    name = "max_min_fairness_perf"
    objective = "largest smallest effective throughput, relative to an equal share of all slots"
    aware = True


@dataclass
class MaxMinFairnessPacked(MaxMinFairnessPerf):
    """The same, with pairs of jobs on the same slots where that pays."""

    name = "max_min_fairness_packed"
    objective = "largest smallest effective throughput, with pairs of jobs on the same slots"
    packed = True


@dataclass
class Isolated(TimeSharingPolicy):
    """Everyone has an equal static share of every GPU type, whatever it is worth to them."""

    name = "isolated"
    objective = "an equal static share of every GPU type for every job"
    aware = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """No optimisation."""
        return single_fractions(problem, problem.isolated_fractions, float("nan"))
