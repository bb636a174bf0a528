"""A clock for tests."""

from __future__ import annotations

from geminid.clock import Clock


class ManualClock(Clock):
    """A clock that shows ``at_s`` until a test sets it, or the code under test sleeps."""

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s

    def now_s(self) -> float:
        """The time that was set."""
        return self.at_s

    def monotonic_s(self) -> float:
        """The time that was set."""
        return self.at_s

    def sleep(self, seconds: float) -> None:
        """Advance the time, without waiting."""
        self.at_s += seconds
