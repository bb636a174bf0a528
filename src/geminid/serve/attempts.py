"""Parts of the service's work that may fail without ending it: they are reported once, and tried again later."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from geminid.clock import Clock
from geminid.serve.store import StoreTaken

log = logging.getLogger("geminid.serve")

#: Time in seconds for which a part that has failed is not tried again.
FAILED_PART_PAUSE_S = 5.0


class Attempts:
    """Which parts of the work failed when they were last tried, why and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reasons: dict[str, str] = {}
        self._failed_s: dict[str, float] = {}

    def attempt(self, what: str, action: Callable[[], None]) -> str:
        """Do a part of the work; a sentence if it fails, and did not fail for the same reason the last time."""
        try:
            action()
            self._reasons.pop(what, None)
            return ""
        except StoreTaken:
            raise  # another service has taken over: nothing that this one does counts
        except Exception as problem:
            reason = f"{type(problem).__name__}: {problem}"[:500]
            self._failed_s[what] = self._clock.monotonic_s()
            if self._reasons.get(what) == reason:
                return ""
            self._reasons[what] = reason
            log.exception("the service could not %s", what)
            return f"the service could not {what}: {reason}"

    def has_just_failed(self, what: str) -> bool:
        """Whether a part has failed within the last seconds."""
        return self._clock.monotonic_s() < self._failed_s.get(what, -math.inf) + FAILED_PART_PAUSE_S
