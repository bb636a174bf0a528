"""Distributions that grow: how often something took how long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many of the values seen lie between each two of the ``bounds``, and what all of them add up to."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def of(cls, *bounds: float) -> Histogram:
        """One that has seen nothing."""
        return cls(bounds, (0,) * (len(bounds) + 1))

    def plus(self, value: float) -> Histogram:
        """With one value more."""
        place = bisect_left(self.bounds, value)  # a bound belongs to what is below it
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return replace(self, counts=counts, total=self.total + value)

    def lines(self, name: str) -> Iterator[str]:
        """As Prometheus reads it."""
        for bound, count in zip((*self.bounds, "+Inf"), accumulate(self.counts), strict=True):
            shown = bound if isinstance(bound, str) else f"{bound:g}"
            yield f'{name}_bucket{{le="{shown}"}} {count}'
        yield f"{name}_sum {self.total:.6g}"
        yield f"{name}_count {sum(self.counts)}"


#: What decisions take, and how long jobs wait for their first slots, from a second to a week.
DECISIONS = Histogram.of(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAITS = Histogram.of(1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)
