"""Policies of fair shares, in rounds: max-min fairness, by one program or by water filling, hierarchies, static shares.

Each exists unaware of GPU types, aware of them (``_perf``), and with pairs of jobs on the same slots (``_packed``),
where the paper has it. The problems are in ``maxmin.py``, ``waterfill.py`` and ``static.py``, the rounds and what
deviates in all of them in ``timesharing.py``. Where several fractions are optimal, ``choice`` takes the middle of them
(``centre``, as an interior-point solver does), a ``vertex``, or those of the largest ``total`` throughput.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from geminid.fields import InvalidInput, Problem
from geminid.policies.base import ClusterView, JobView
from geminid.policies.gavel import static
from geminid.policies.gavel.entities import ORDERS, Entities, Path
from geminid.policies.gavel.maxmin import max_min_fairness
from geminid.policies.gavel.problem import LEAST_WEIGHT, MOST_WEIGHT, AllocationProblem, Note, TimeFractions
from geminid.policies.gavel.program import Choice
from geminid.policies.gavel.timesharing import TimeSharingPolicy
from geminid.policies.gavel.waterfill import Entity, Hierarchy, Order, water_filling


@dataclass
class MaxMinFairness(TimeSharingPolicy):
    """The smallest share of time, weighted and per slot, is as large as possible; unaware of GPU types."""

    name = "max_min_fairness"
    objective = "largest smallest share of time (least attained service), unaware of GPU types"
    aware = False
    optimises = True
    knows_placement = True

    choice: Choice = "centre"

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """One linear program."""
        return max_min_fairness(problem, choice=self.choice, memory=self.memory, within=self.allowance())


@dataclass
class MaxMinFairnessPerf(MaxMinFairness):
    """The smallest effective throughput, relative to an equal share of all slots, is as large as possible."""

    name = "max_min_fairness_perf"
    objective = "largest smallest effective throughput, relative to an equal share of all slots"
    aware = True


@dataclass
class MaxMinFairnessPacked(MaxMinFairnessPerf):
    """The same, with pairs of jobs on the same slots where that pays.

    At a vertex few pairs have time, and each of them much: in the middle a job's time is spread thinly over all pairs
    that it could be in, none of which comes first when rounds are filled.
    """

    name = "max_min_fairness_packed"
    objective = "largest smallest effective throughput, with pairs of jobs on the same slots"
    packed = True

    choice: Choice = "vertex"


@dataclass
class WaterFilling(TimeSharingPolicy):
    """Max-min fairness all the way up: who can have more without harm to those with less gets it."""

    name = "max_min_fairness_water_filling"
    objective = "max-min fair shares of time at every level, by water filling, unaware of GPU types"
    aware = False
    optimises = True
    knows_placement = True

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """A few linear programs, each raising those that the last did not hold."""
        return water_filling(problem, memory=self.memory, within=self.allowance())


@dataclass
class WaterFillingPerf(WaterFilling):
    """Water filling over effective throughputs."""

    name = "max_min_fairness_water_filling_perf"
    objective = "max-min fair effective throughputs at every level, by water filling"
    aware = True


@dataclass
class WaterFillingPacked(WaterFillingPerf):
    """Water filling, with pairs of jobs on the same slots."""

    name = "max_min_fairness_water_filling_packed"
    objective = "max-min fair effective throughputs at every level, with pairs of jobs on the same slots"
    packed = True


@dataclass
class Hierarchical(TimeSharingPolicy):
    """Fairness or FIFO between entities and within them, to any depth, by water filling; unaware of GPU types.

    A job belongs to its owner; an owner's parts between slashes are the levels of the hierarchy, the outermost first.
    ``entities`` is a file with weights, rules, and owners and queues that belong to them (see ``entities.py``). Without
    one, or to change some of it, ``weights`` of entities among their siblings are written ``lab=2;lab/ann=3``, one for
    those that nobody names. An entity's part is shared by its own members as ``rules`` say, ``lab=fifo;shop=fairness``,
    those of others as ``inner`` says, and the whole cluster as ``outer`` does (fairness, if nothing else is said).
    Every entity has its own rule, over members with theirs.
    """

    name = "hierarchical"
    objective = "weighted fairness or FIFO between entities and within them, by water filling, unaware of GPU types"
    aware = False
    optimises = True
    knows_placement = True

    entities: Entities | None = None
    weights: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    outer: Order | None = None
    inner: Order = "fairness"

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = dict(self._weight(text) for text in self.weights)
        rules = dict(self._rule(text) for text in self.rules)
        self._refuse_twice("weights", self.weights)
        self._refuse_twice("rules", self.rules)
        described = self.entities or Entities()
        self._described = described
        listed = described.by_path
        self._entities = {
            path: Entity(
                weights.get(path, listed[path].weight if path in listed else 1.0),
                rules.get(path) or (listed[path].rule if path in listed else None) or self.inner,
            )
            for path in {*weights, *rules, *listed}
        }
        self._named = {*weights, *rules}
        self._root = Entity(1.0, self.outer or described.rule or "fairness")
        self._met: set[Path] = set()

    def _refuse_twice(self, option: str, texts: tuple[str, ...]) -> None:
        """No entity may stand in an option twice: which of both would count?"""
        for path, times in Counter(text.partition("=")[0] for text in texts).items():
            if times > 1:
                where = f"option {option} of {self.name}"
                raise InvalidInput([Problem(where, ";".join(texts), f"must name {path} only once")])

    def _weight(self, text: str) -> tuple[Path, float]:
        path, number = _named(text)
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not all(path) or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            where = f"option weights of {self.name}"
            right = f"must be like team=2;team/person=1, with weights from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
            raise InvalidInput([Problem(where, text, right)])
        return path, weight

    def _rule(self, text: str) -> tuple[Path, Order]:
        path, text_of_rule = _named(text)
        rule = ORDERS.get(text_of_rule)
        if not all(path) or rule is None:
            where = f"option rules of {self.name}"
            raise InvalidInput([Problem(where, text, "must be like team=fifo;team/person=fairness")])
        return path, rule

    def left_out(self, view: ClusterView) -> list[Note]:
        """Also the entities that options name and no job has had so far; one that has none just now is not meant."""
        for job in view.jobs:
            path = self._entity(job)
            self._met.update(path[:depth] for depth in range(1, len(path) + 1))
        unmet = ", ".join(sorted("/".join(path) for path in self._named - self._described.by_path.keys() - self._met))
        text = f"options weights and rules name {unmet}, to which no job has belonged so far"
        return [*super().left_out(view), *([Note("unknown_entity", text)] if unmet else [])]

    def _entity(self, job: JobView) -> Path:
        return self._described.entity_of(job.facts.owner, job.facts.queue)

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """Water filling with weights that are shared out level by level."""
        paths = {job.entity[:depth] for job in problem.jobs for depth in range(1, len(job.entity) + 1)}
        other = Entity(1.0, self.inner)
        entities = {path: self._entities.get(path, other) for path in paths}
        hierarchy = Hierarchy({**entities, (): self._root})
        return water_filling(problem, hierarchy=hierarchy, memory=self.memory, within=self.allowance())


def _named(text: str) -> tuple[Path, str]:
    """The path and the value of ``path=value``."""
    path, _, value = text.partition("=")
    return tuple(path.split("/")), value


@dataclass
class HierarchicalPerf(Hierarchical):
    """The same over effective throughputs."""

    name = "hierarchical_perf"
    objective = "weighted fairness or FIFO between entities and within them, over effective throughputs"
    aware = True


@dataclass
class HierarchicalPacked(HierarchicalPerf):
    """The same, with pairs of jobs on the same slots."""

    name = "hierarchical_packed"
    objective = "weighted fairness or FIFO between and within entities, with pairs of jobs on the same slots"
    packed = True


@dataclass
class Isolated(TimeSharingPolicy):
    """Everyone has an equal static share of every GPU type, whatever it is worth to them."""

    name = "isolated"
    objective = "an equal static share of every GPU type for every job"
    aware = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """No optimisation."""
        return static.isolated(problem)


@dataclass
class Proportional(TimeSharingPolicy):
    """Everyone has the same time, spread over the types as the slots are."""

    name = "proportional"
    objective = "the same time for every job, spread over the GPU types as the slots are"
    aware = False

    def solve(self, problem: AllocationProblem) -> TimeFractions:
        """No optimisation."""
        return static.proportional(problem)
