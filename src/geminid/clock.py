"""The one clock: whatever depends on time below the core is given a ``Clock`` and reads no other.

Tests give it a ``geminid.testing.clock.ManualClock``, so that a test of a timeout takes no time.
"""

from __future__ import annotations

import time


class Clock:
    """Reads the time, and waits.

    ``now_s`` is for records, and ``monotonic_s`` for intervals and deadlines; neither ever goes back. ``at_least_s`` is
    the earliest time that ``now_s`` may show: the service continues from its last record even if the machine's clock
    was set back.
    """

    def __init__(self, at_least_s: float = 0.0) -> None:
        self._offset_s = max(time.time(), at_least_s) - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch: read from the wall clock once, then advanced by the monotonic one."""
        return time.monotonic() + self._offset_s

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment, which is the same for all processes of a machine."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
