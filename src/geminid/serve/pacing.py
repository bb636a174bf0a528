"""When the next decision is due: soon after a change, later if only measurements are new, and never too often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

#: Least time in seconds between two decisions.
DECISION_GAP_S = 0.1

#: … when only measurements have changed, and before a rejected decision is tried again.
MEASUREMENT_GAP_S = 5.0

#: Largest share of the time that may be spent on decisions; the rest is for answering requests.
SHARE_OF_TIME = 0.2


@dataclass(slots=True)
class Pace:
    """When decisions were made and are due.

    A decision ``is_wanted`` after a change that may change the plan; ``has_measurements`` if jobs have reported since
    the last one. Without either, the next one is due at ``wake_at_s``, or with a policy that decides in rounds when the
    next round begins.
    """

    gap_s: float = DECISION_GAP_S
    is_wanted: bool = True
    has_measurements: bool = False
    decided_at_s: float = -inf
    wake_at_s: float = inf
    round_at_s: float = -inf
    took_s: float = 0.0

    def due_s(self, interval_s: float | None, *, has_jobs: bool, also_at_s: Iterable[float] = ()) -> float:
        """When the next decision is due. ``interval_s`` is the length of a round, if the policy has rounds."""
        earliest_s = self.decided_at_s + max(self.gap_s, self.took_s / SHARE_OF_TIME)
        if interval_s is not None and not has_jobs:
            return earliest_s if self.is_wanted else inf
        if interval_s is not None:
            return max(self.round_at_s, earliest_s)
        due_s = min(self.wake_at_s, *also_at_s, inf)
        if self.is_wanted:
            due_s = min(due_s, earliest_s)
        if self.has_measurements:
            due_s = min(due_s, self.decided_at_s + MEASUREMENT_GAP_S)
        return max(due_s, earliest_s)

    def decided(self, now_s: float, took_s: float, wake_at_s: float | None, round_s: float | None) -> None:
        """A decision was made. ``round_s`` is the time until the next round, None if there were no jobs."""
        self.decided_at_s, self.took_s, self.is_wanted, self.has_measurements = now_s, took_s, False, False
        self.wake_at_s = inf if wake_at_s is None else wake_at_s
        if round_s is not None:  # without jobs there was nothing to decide: the first job need not wait for a round
            self.round_at_s = now_s + round_s

    def rejected(self) -> None:
        """The decision cannot be carried out: it is tried again a little later."""
        self.is_wanted, self.wake_at_s = False, self.decided_at_s + MEASUREMENT_GAP_S

    def wake_by(self, at_s: float) -> None:
        """Decide at this time at the latest."""
        self.wake_at_s = min(self.wake_at_s, at_s)
