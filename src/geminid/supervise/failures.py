"""How often a job's workers have failed: which failures count as one, and how long to wait before the next start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from geminid.clock import Clock

#: Longest delay before a worker is started again after failures, in seconds; the delays are 1, 2, 4 … s.
MAX_START_DELAY_S = 30.0

#: Failures older than this, in seconds, do not delay a start.
RECENT_FAILURE_S = 60.0

#: How many recent failures are remembered: enough for the longest delay.
MAX_RECENT_FAILURES = 10


class FailureLog:
    """The failures of one job; ``count`` is how many there were without progress in between."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self._clock = clock
        self._recent_s: deque[float] = deque(maxlen=MAX_RECENT_FAILURES)
        self._best_samples = -1
        self._last_generation = 0
        self._last_workers: frozenset[str] = frozenset()

    def add(self, generation: int, workers: Iterable[str], samples: int) -> None:
        """Count a failure of a job that has these workers, and is this far in its training data."""
        self._last_generation, self._last_workers = generation, frozenset(workers)
        self.count = 1 if samples > self._best_samples else self.count + 1
        self._best_samples = max(samples, self._best_samples)
        self.delay_next_start()

    def is_counted(self, worker: str, generation: int, samples: int) -> bool:
        """Whether the failure of a worker is part of the last one that was counted.

        What makes one worker fail makes others fail as well: all that were there then, and have neither formed a new
        group nor made progress since, are one failure of the job.
        """
        same_group = worker in self._last_workers and generation <= self._last_generation
        return same_group and samples <= self._best_samples

    def delay_next_start(self) -> None:
        """Remember that something failed just now, which may delay the next start."""
        self._recent_s.append(self._clock.monotonic_s())

    def start_delay_s(self) -> float:
        """How long to wait before a worker is started: zero, unless workers have failed repeatedly."""
        recent = sum(at_s > self._clock.monotonic_s() - RECENT_FAILURE_S for at_s in self._recent_s)
        return min(2.0 ** (recent - 2), MAX_START_DELAY_S) if recent > 1 else 0.0
