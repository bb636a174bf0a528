"""One comparison over several seeds: means with confidence intervals, and differences paired by seed.

Two policies see the same jobs under the same seed, so their difference varies far less from seed to seed than either
of them: what is certain about it follows from the differences, not from the means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

#: The confidence of intervals.
CONFIDENCE: Final = 0.95

#: What is compared; smaller is better.
MEASURES: Final = (
    "avg_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "makespan_s",
    "worst_ftf",
    "rescales_per_job",
    "bound_avg_jct_s",
    "bound_makespan_s",
    "avg_jct_to_bound",
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its confidence interval; a single value has no interval."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The mean of values that are independent and about normal, by Student's distribution."""
        mean = float(np.mean(values))
        if len(values) < 2:
            return cls(mean, None, None)
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        reach = error * float(stdtrit(len(values) - 1, 0.5 + 0.5 * CONFIDENCE))
        return cls(mean, mean - reach, mean + reach)

    @property
    def differs_from_zero(self) -> bool:
        """Whether zero lies outside of the interval."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high


def over_seeds(runs: Sequence[Sequence[Mapping[str, Any]]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One object per policy from its results by seed: means, intervals, and relative differences to the first policy.

    A measure that any seed lacks is None.
    """
    rows = []
    for results in runs:
        row: dict[str, Any] = {
            "policy": results[0]["policy"],
            "jobs": sum(int(result["jobs"]) for result in results),
            "seeds": list(seeds),
            "unfinished_jobs": sum(int(result["unfinished_jobs"]) for result in results),
            "interval": {},
            "to_first": {},
            "by_seed": {},
        }
        for key in MEASURES:
            values, firsts = _values(results, key), _values(runs[0], key)
            row[key] = None if values is None else Estimate.of(values).mean
            if values is None:
                continue
            row["by_seed"][key] = values
            row["interval"][key] = asdict(Estimate.of(values))
            if results is not runs[0] and firsts is not None and min(firsts) > 0:
                changes = [value / first - 1.0 for value, first in zip(values, firsts, strict=True)]
                row["to_first"][key] = asdict(Estimate.of(changes))
        rows.append(row)
    return rows


def _values(results: Sequence[Mapping[str, Any]], key: str) -> list[float] | None:
    values = [result.get(key) for result in results]
    return None if None in values else [float(value) for value in values if value is not None]
