"""Which refused requests are noted for the operator: enough to see who tries what, without flooding the log.

Of each user, the first few refusals within a minute are noted one by one; when the minute is over, how many more there
were. Requests without a valid token count together and apart from all users: a flood of wrong tokens neither fills the
log nor keeps the refusals of users out of it.
"""

from __future__ import annotations

from collections.abc import Callable

#: Refusals a minute that are noted one by one: of each user, and of all requests without a valid token together.
NOTED_PER_MINUTE = 10

#: The name that stands for all requests without a valid token.
NOBODY = "nobody"


class Refusals:
    """Counts refusals and notes some of them. ``later`` schedules a call in a minute."""

    def __init__(self, note: Callable[[str], None], later: Callable[[Callable[[], None]], object]) -> None:
        self._note, self._later = note, later
        self._counts: dict[str, int] = {}

    def refused(self, who: str, sentence: str) -> None:
        """Count a refused request of a user."""
        if who not in self._counts:
            self._later(lambda: self._close(who))
        self._counts[who] = self._counts.get(who, 0) + 1
        if self._counts[who] <= NOTED_PER_MINUTE:
            self._note(sentence)

    def close(self) -> None:
        """Note now what was only counted so far."""
        for who in list(self._counts):
            self._close(who)

    def _close(self, who: str) -> None:
        more = self._counts.pop(who, 0) - NOTED_PER_MINUTE
        if more > 0:
            self._note(f"{more} more {'request' if more == 1 else 'requests'} of {who} refused within a minute")
