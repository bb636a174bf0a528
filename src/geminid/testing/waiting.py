"""Waiting for a condition in real time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    reached: Callable[[], object], *, timeout_s: float, problem: Callable[[], str] | str, every_s: float = 0.1
) -> None:
    """Check a condition every ``every_s`` seconds until it holds.

    Raises:
        TimeoutError: it did not hold within ``timeout_s``; the message is ``problem`` and the timeout.
    """
    deadline_s = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{problem if isinstance(problem, str) else problem()} (waited {timeout_s:g} s)")
        time.sleep(every_s)
