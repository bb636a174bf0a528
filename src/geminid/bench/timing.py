"""Timing of work, the same for all benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Timed(NamedTuple, Generic[T]):
    """How long some work took: seconds by the clock, CPU seconds of this process, and the work's result."""

    wall_s: float
    cpu_s: float
    result: T


def timed(work: Callable[[], T]) -> Timed[T]:
    """Do some work once."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = work()
    return Timed(time.perf_counter() - wall_s, time.process_time() - cpu_s, result)


def median_of(work: Callable[[], T], times: int) -> Timed[T]:
    """Do some work several times: medians, and the last result."""
    return median_time([timed(work) for _ in range(times)])


def median_time(runs: Sequence[Timed[T]]) -> Timed[T]:
    """Medians of the times, and the last result."""
    return Timed(median(run.wall_s for run in runs), median(run.cpu_s for run in runs), runs[-1].result)
