"""Histograms that never change, as parts of a published state: how often something took how long."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many of the observed values lie between each two of the ``bounds``, and the ``total`` of all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def of(cls, *bounds: float) -> Histogram:
        """An empty histogram."""
        return cls(bounds, (0,) * (len(bounds) + 1))

    def plus(self, value: float) -> Histogram:
        """With one more value."""
        place = bisect_left(self.bounds, value)  # a value that equals a bound counts as below it
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return replace(self, counts=counts, total=self.total + value)

    def buckets(self) -> list[tuple[str, int]]:
        """How many values are at most as large as each bound, in the form that Prometheus uses."""
        return list(zip((*(f"{bound:g}" for bound in self.bounds), "+Inf"), accumulate(self.counts), strict=True))


#: What decisions take, in seconds.
DECISIONS = Histogram.of(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: How long jobs wait for their first slots, from a second to a week.
WAITS = Histogram.of(1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)
