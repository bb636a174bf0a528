"""Everything that a process has started, found by a mark in its environment.

A process group contains most of it. But some commands start processes in sessions of their own (``torchrun`` does), and
what a shell started survives when the shell is killed. Processes inherit the environment, and the mark with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from geminid.process.shim import signal_all

#: The variable with the mark, in the environment of a process and of everything that it starts.
MARK = "GEMINID_PROCESS"


def signal_marked(number: signal.Signals, mine: Callable[[str], bool]) -> int:
    """Send a signal to all processes of this user whose marks are ``mine``, except this one; how many there were."""
    return signal_all(lambda: _marked(mine), number)


def _marked(mine: Callable[[str], bool]) -> Iterator[int]:
    """The processes with these marks. psutil takes several times as long, and processes fork in the meantime."""
    begins = f"{MARK}=".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            variables = file.read().split(b"\0")
            if any(one.startswith(begins) and mine(one[len(begins) :].decode(errors="replace")) for one in variables):
                yield int(entry)
