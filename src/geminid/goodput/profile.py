"""What a job has measured about itself: the step times of the configurations it has run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

#: Step times outside this range are broken clocks or lost units, not measurements.
SHORTEST_CREDIBLE_S, LONGEST_CREDIBLE_S = 1e-7, 1e5

#: Averages forget: one further report never weighs less than one in this many, so that drift shows.
MEMORY_REPORTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Mean step times of one configuration and per-slot batch size on one GPU type.

    ``accumulation_s`` is a forward-backward pass without synchronisation, ``step_s`` one with it. ``reports`` is how
    many reports the means stand for.
    """

    nodes: int
    slots: int
    per_slot_batch: int
    accumulation_s: float
    step_s: float
    busiest_node_slots: int
    reports: int = 1

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What the times depend on."""
        return (self.nodes, self.slots, self.busiest_node_slots, self.per_slot_batch)

    def problem(self) -> str | None:
        """Why this cannot be a measurement, or None if it can."""
        for name in ("accumulation_s", "step_s"):
            value = getattr(self, name)
            if not math.isfinite(value):
                return f"{name} is {value}"
            if not SHORTEST_CREDIBLE_S <= value <= LONGEST_CREDIBLE_S:
                return f"{name} is {value:g} s, outside {SHORTEST_CREDIBLE_S:g}…{LONGEST_CREDIBLE_S:g} s"
        if not 1 <= self.nodes <= self.slots:
            return f"{self.slots} slots cannot lie on {self.nodes} nodes"
        if not math.ceil(self.slots / self.nodes) <= self.busiest_node_slots <= self.slots - self.nodes + 1:
            return f"{self.slots} slots on {self.nodes} nodes cannot have {self.busiest_node_slots} on the busiest node"
        if self.per_slot_batch < 1:
            return f"per_slot_batch is {self.per_slot_batch}"
        return None


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything a job has measured on one GPU type; immutable, one observation per configuration."""

    observations: tuple[Observation, ...] = ()
    _index: dict[tuple[int, int, int, int], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {seen.key: i for i, seen in enumerate(self.observations)})

    @classmethod
    def of(cls, observations: Iterable[Observation]) -> Profile:
        """Collect observations, averaging those of the same configuration.

        What cannot be a measurement is kept as it is, so that a fit can say what it left out.
        """
        merged: dict[tuple[int, int, int, int], Observation] = {}
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
