"""What will happen in a simulation, in order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

from geminid.engine.events import Event

#: What happens at a scheduled time: it changes the simulated world and returns the event that the scheduler
#: receives, None if the scheduler does not notice.
Action = Callable[[], Event | None]


class Order(IntEnum):
    """The order of actions at the same time: jobs end, nodes change, jobs arrive, and then decisions are made."""

    JOB = 0
    NODE = 1
    ARRIVAL = 2
    TICK = 3


@dataclass(slots=True)
class Agenda:
    """The virtual clock and the scheduled actions, a heap. ``now_s`` is the time of the action taken last."""

    now_s: float = 0.0
    scheduled: list[tuple[float, int, int, Action]] = field(default_factory=list)
    _sequence: count[int] = field(default_factory=count)

    def at(self, at_s: float, order: Order, action: Action) -> None:
        """Schedule an action."""
        heapq.heappush(self.scheduled, (at_s, order, next(self._sequence), action))

    def next(self) -> Action:
        """Advance the clock to the earliest scheduled action and return it."""
        self.now_s, _, _, action = heapq.heappop(self.scheduled)
        return action
