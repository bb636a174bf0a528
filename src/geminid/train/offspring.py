"""Whatever a process has started, wherever it has gone: found by a mark in its environment.

A process group has most of it; but some commands start theirs in sessions of their own (``torchrun`` does), and when a
shell is killed, what it started lives on. Processes hand their environment down, so a mark in it stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from time import sleep

#: In the environment of a process and of all that it starts: whose they are.
MARK = "GEMINID_PROCESS"

#: So often, and with such pauses, those that were forked meanwhile are looked for.
ROUNDS, PAUSE_S = 20, 0.005


def signal_marked(number: signal.Signals, mine: Callable[[str], bool]) -> int:
    """Send a signal to all processes of this user with such marks, except this one; how many there were.

    Before they are ended they are stopped, so that none is missed because it was started meanwhile.
    """
    if number is not signal.SIGKILL:
        return len([pid for pid in _marked(mine) if _send(pid, number)])
    known: set[int] = set()
    for _ in range(ROUNDS):
        new = [pid for pid in _marked(mine) if pid not in known and _send(pid, signal.SIGSTOP)]
        if not new:
            break
        known |= set(new)
        sleep(PAUSE_S)
    return len([pid for pid in known if _send(pid, signal.SIGKILL)])


def _marked(mine: Callable[[str], bool]) -> Iterator[int]:
    begins = f"{MARK}=".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            variables = file.read().split(b"\0")
            if any(one.startswith(begins) and mine(one[len(begins) :].decode(errors="replace")) for one in variables):
                yield int(entry)


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
