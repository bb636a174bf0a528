"""What the training thread is doing, and since when: what a worker's heartbeats report."""

from __future__ import annotations

from collections.abc import Callable

from geminid.clock import Clock
from geminid.supervise.protocol import Heartbeat, Phase


class Activity:
    """The training thread's phase and step, written by that thread and read by the one that sends heartbeats.

    ``usual_s`` is the longest that a part of a pass usually takes, if known. ``before_heartbeat`` is called in the
    sending thread, to look for signs of life.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.phase: Phase = "waiting"
        self.step = 0
        self.usual_s: float | None = None
        self.before_heartbeat: Callable[[], None] = lambda: None
        self._entered_at_s = self._alive_at_s = clock.monotonic_s()

    def enter(self, phase: Phase) -> float:
        """Begin a phase; returns how many seconds the one before took."""
        now_s = self._clock.monotonic_s()
        taken_s = now_s - self._entered_at_s
        self.phase, self._entered_at_s, self._alive_at_s = phase, now_s, now_s
        return taken_s

    def show_life(self) -> None:
        """Something shows that the thread makes progress within its phase."""
        self._alive_at_s = self._clock.monotonic_s()

    def heartbeat(self, generation: int) -> Heartbeat:
        """The message that reports the activity."""
        self.before_heartbeat()
        return Heartbeat(
            generation=generation,
            step=self.step,
            phase=self.phase,
            phase_s=self._clock.monotonic_s() - self._alive_at_s,
            usual_s=self.usual_s,
        )
