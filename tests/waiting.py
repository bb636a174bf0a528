"""Waiting, in tests, for what other threads and processes do; every test that polls uses this."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: A deadline only decides when a test fails that would wait for ever; a busy machine must not reach it.
TIMEOUT_S = 60.0


def until(
    reached: Callable[[], T],
    timeout_s: float = TIMEOUT_S,
    *,
    every_s: float = 0.01,
    seen: Callable[[], object] = lambda: "it never happened",
) -> T:
    """Wait until a call returns something true, and return that; after the deadline, fail with what is ``seen``."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := reached()):
        assert time.monotonic() < deadline_s, seen()
        time.sleep(every_s)
    return found


def until_equal(
    found: Callable[[], object], expected: object, timeout_s: float = TIMEOUT_S, *, every_s: float = 0.1
) -> None:
    """Wait until a call returns what is expected; after the deadline, fail with what it returns."""
    until(lambda: found() == expected, timeout_s, every_s=every_s, seen=found)
