"""What policies ask for on everyone's behalf: a throughput that grows with a level, which is then raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from geminid.policies.gavel.groups import Ints
from geminid.policies.gavel.problem import Array


class Requirement(Protocol):
    """What every job needs at a level, in multiples of its reference throughput."""

    def highest(self, best: Array) -> float:
        """The level at which some job needs the best rate it can have all the time: no higher one is possible."""

    def at(self, level: float) -> tuple[Array, Array]:
        """Every job's need at a level, and how fast it grows with it."""

    def bend(self, level: float) -> Array | float:
        """How fast that growth itself grows: the second derivative."""

    def parameters(self) -> Array:
        """A row for each job: jobs with equal rows always need the same."""

    def of(self, jobs: Ints) -> Requirement:
        """The same for some of the jobs only."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Needs of base + slope × level."""

    base: Array
    slope: Array

    def highest(self, best: Array) -> float:
        """The lowest level at which a growing need reaches the best rate."""
        grows = self.slope > 0
        return float(((best - self.base)[grows] / self.slope[grows]).min(initial=np.inf))

    def at(self, level: float) -> tuple[Array, Array]:
        """Every job's need, and its slope."""
        return self.base + self.slope * level, self.slope

    def bend(self, level: float) -> float:
        """None."""
        return 0.0

    def parameters(self) -> Array:
        """Base and slope."""
        return np.column_stack([self.base, self.slope])

    def of(self, jobs: Ints) -> Affine:
        """The same for some of the jobs only."""
        return Affine(self.base[jobs], self.slope[jobs])


@dataclass(frozen=True, slots=True)
class Cut:
    """What some jobs of a group need beyond a rate θ at a level, and how fast that grows with it."""

    group: int
    theta: float
    jobs: Ints
    required: float
    grows: float
    level: float

    def lower(self, origin: float) -> float:
        """What the group must make beyond θ where the level is at its origin."""
        return self.required - self.grows * (self.level - origin) if self.required > 0 else -np.inf
