"""What is noted of refused requests: enough to see who tries what, and never so much that it hides anything.

Of everybody, the first few refusals within a minute are noted one by one, and when the minute is over, how many more
there were. Those without a valid token count together and apart from everybody else: whoever floods the service with
wrong tokens neither fills its log nor keeps refusals of users out of it.
"""

from __future__ import annotations

from collections.abc import Callable

#: Of one user's refusals, and of those of all without a valid token together, so many a minute are noted one by one.
NOTED_PER_MINUTE = 10

#: Whoever has no valid token.
NOBODY = "nobody"


class Refusals:
    """Counts refusals and notes some of them. ``later`` calls something a minute from now."""

    def __init__(self, note: Callable[[str], None], later: Callable[[Callable[[], None]], object]) -> None:
        self._note, self._later = note, later
        self._counts: dict[str, int] = {}

    def refused(self, who: str, sentence: str) -> None:
        """Somebody was refused something."""
        if who not in self._counts:
            self._later(lambda: self._close(who))
        self._counts[who] = self._counts.get(who, 0) + 1
        if self._counts[who] <= NOTED_PER_MINUTE:
            self._note(sentence)

    def close(self) -> None:
        """Note what was only counted so far."""
        for who in list(self._counts):
            self._close(who)

    def _close(self, who: str) -> None:
        more = self._counts.pop(who, 0) - NOTED_PER_MINUTE
        if more > 0:
            self._note(f"{more} more {'request' if more == 1 else 'requests'} of {who} refused within a minute")
