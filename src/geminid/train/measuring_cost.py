"""What measuring the gradient noise costs, and how often it is worth it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from geminid.clock import Clock

#: Measuring may take this share of the training time.
BUDGET = 0.008

#: Most steps from one measurement to the next.
LONGEST_INTERVAL = 64

#: The first measurements are slow (memory is allocated, kernels are loaded): this many do not count.
UNTIMED_MEASUREMENTS = 2


class MeasuringCost:
    """Times the measurements, on the host and on the device."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self._cost_s, self._measurements = 0.0, 0
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a part of a measurement."""
        begin_s, begin = self._clock.monotonic_s(), self._event()
        yield
        if begin is not None:
            self._events.append((begin, self._event()))
        self._cost_s += self._clock.monotonic_s() - begin_s

    def _event(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def count(self) -> None:
        """A measurement is complete."""
        self._measurements += 1
        if self._measurements == UNTIMED_MEASUREMENTS:
            self._cost_s = 0.0
            self._events.clear()

    def suitable_interval(self, step_s: float, *, pairs: bool) -> int | None:
        """Every how many steps to measure, within the budget, if a step takes ``step_s``; None if not known yet.

        With ``pairs``, a measurement takes two steps in a row.
        """
        timed = self._measurements - UNTIMED_MEASUREMENTS
        if timed < 1 or step_s <= 0.0:
            return None
        on_device_s = sum(begin.elapsed_time(end) for begin, end in self._events if end.query()) / 1000.0
        cost_s = max(self._cost_s, on_device_s) / timed
        wanted: int = max(1, math.ceil((2 if pairs else 1) * cost_s / (BUDGET * step_s)))
        if wanted > 1 and pairs:
            wanted = max(wanted, 3)
        if timed > LONGEST_INTERVAL:
            self._cost_s, self._measurements = 0.0, 0
        self._events.clear()
        return min(wanted, LONGEST_INTERVAL)
