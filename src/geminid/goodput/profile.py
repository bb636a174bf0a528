"""What a job has measured about itself: the step times of the configurations it has run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

#: Shortest step time that counts as a measurement, in seconds; shorter ones come from broken clocks or wrong units.
SHORTEST_CREDIBLE_S = 1e-7

#: Longest step time that counts as a measurement, in seconds.
LONGEST_CREDIBLE_S = 1e5

#: Counts above this (nodes, slots, samples) are lost units too.
MOST_CREDIBLE_COUNT = 10**9

#: A synchronising step takes at least a pass; measured apart from each other, they may differ by this factor.
LARGEST_CREDIBLE_OVERLAP = 3.0

#: What step times depend on: nodes, slots, slots on the busiest node, per-slot batch, and the link slowdown.
Key = tuple[int, int, int, int, float]

#: Averages forget: one further report never weighs less than one in this many, so that drift shows.
MEMORY_REPORTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Mean step times of one configuration and per-slot batch size on one GPU type.

    ``accumulation_s`` is a forward-backward pass without synchronisation, ``step_s`` one with it. ``link_slowdown``
    is that of the placement (``topology.py``); ``reports`` is how many reports the means stand for.
    """

    nodes: int
    slots: int
    per_slot_batch: int
    accumulation_s: float
    step_s: float
    busiest_node_slots: int
    link_slowdown: float = 1.0
    reports: int = 1

    @property
    def key(self) -> Key:
        """What the times depend on."""
        return (self.nodes, self.slots, self.busiest_node_slots, self.per_slot_batch, self.link_slowdown)

    def problem(self) -> str | None:
        """Why this cannot be a measurement, or None if it can."""
        for name in ("nodes", "slots", "per_slot_batch", "busiest_node_slots", "reports"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_CREDIBLE_COUNT:
                return f"{name} is {str(value)[:20]}"
        for name in ("accumulation_s", "step_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value):
                return f"{name} is {value}"
            if not SHORTEST_CREDIBLE_S <= value <= LONGEST_CREDIBLE_S:
                return f"{name} is {value:g} s, outside {SHORTEST_CREDIBLE_S:g}…{LONGEST_CREDIBLE_S:g} s"
        if self.nodes > self.slots:
            return f"{self.slots} slots cannot lie on {self.nodes} nodes"
        if not math.ceil(self.slots / self.nodes) <= self.busiest_node_slots <= self.slots - self.nodes + 1:
            return f"{self.slots} slots on {self.nodes} nodes cannot have {self.busiest_node_slots} on the busiest node"
        if self.step_s < self.accumulation_s / LARGEST_CREDIBLE_OVERLAP:
            return f"a step of {self.step_s:g} s cannot contain a pass of {self.accumulation_s:g} s"
        slowdown = self.link_slowdown
        if not isinstance(slowdown, int | float) or not (math.isfinite(slowdown) and slowdown > 0):
            return f"link_slowdown is {self.link_slowdown}"
        return None


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything a job has measured on one GPU type; immutable, one observation per configuration."""

    observations: tuple[Observation, ...] = ()
    _index: dict[Key, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {seen.key: i for i, seen in enumerate(self.observations)})

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> Profile:
        """Collect observations, averaging those of the same configuration.

        What cannot be a measurement is kept as it is, so that a fit can say what it left out.
        """
        merged: dict[Key, Observation] = {}
        impossible = []
        for seen in observations:
            if seen.problem() is not None:
                impossible.append(seen)
            else:
                merged[seen.key] = _average(merged[seen.key], seen) if seen.key in merged else seen
        return cls((*merged.values(), *impossible))

    def record(self, seen: Observation) -> Profile:
        """The profile with one more report; a report that cannot be a measurement changes nothing."""
        if seen.problem() is not None:
            return self
        position = self._index.get(seen.key)
        if position is None:
            return Profile((*self.observations, seen))
        known = self.observations
        return Profile((*known[:position], _average(known[position], seen), *known[position + 1 :]))

    @property
    def most_slots(self) -> int:
        """The largest number of slots ever measured: a job may explore up to twice that."""
        return max((seen.slots for seen in self.observations), default=0)


def _average(known: Observation, seen: Observation) -> Observation:
    """Fold new reports into the mean, with a memory of at most MEMORY_REPORTS reports."""
    share = min(1.0, seen.reports / min(known.reports + seen.reports, MEMORY_REPORTS))
    return replace(
        known,
        accumulation_s=known.accumulation_s + share * (seen.accumulation_s - known.accumulation_s),
        step_s=known.step_s + share * (seen.step_s - known.step_s),
        reports=known.reports + seen.reports,
    )
