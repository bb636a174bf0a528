"""The service's time."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the epoch that never go back: set by the wall clock once, then driven by a monotonic one."""

    def __init__(self, at_least_s: float = 0.0) -> None:
        self._offset_s = max(time.time(), at_least_s) - time.monotonic()

    def now_s(self) -> float:
        """The time."""
        return time.monotonic() + self._offset_s
