"""Everything that a process has started, found by a mark in its environment.

A process group has most of it; but some commands start theirs in sessions of their own (``torchrun`` does), and when a
shell is killed, what it started lives on. Processes hand their environment down, so a mark in it stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from geminid.process.shim import signal_all

#: In the environment of a process and of all that it starts: whose they are.
MARK = "GEMINID_PROCESS"


def signal_marked(number: signal.Signals, mine: Callable[[str], bool]) -> int:
    """Send a signal to all processes of this user with such marks, except this one; how many there were."""
    return signal_all(lambda: _marked(mine), number)


def _marked(mine: Callable[[str], bool]) -> Iterator[int]:
    """The processes with such marks. Read by hand: psutil takes several times as long, and they fork meanwhile."""
    begins = f"{MARK}=".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            variables = file.read().split(b"\0")
            if any(one.startswith(begins) and mine(one[len(begins) :].decode(errors="replace")) for one in variables):
                yield int(entry)
