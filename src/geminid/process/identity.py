"""Identifying processes uniquely, and finding out their state.

The system uses process ids again, so a process is identified by its id together with the time when it started, in clock
ticks since boot. Homes, supervisors' records and the names of control groups contain that. psutil does not give it: its
``create_time`` is a time of day, which changes when the clock is set. The kernel's record of a process is read in
``shim.py``, which runs without any package; the state of a process is in the same record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geminid.process.shim import started_at, stat_of


def identity_of(pid: int) -> dict[str, Any]:
    """What identifies a process uniquely, as JSON; ``started_at`` is None if there is no such process."""
    return {"pid": pid, "started_at": started_at(pid)}


def still_runs(identity: Mapping[str, Any]) -> bool:
    """Whether a process of this machine with this identity runs; of a process below a shim, whether the shim does.

    An identity that does not say when the process started is of a process elsewhere, which an agent watches.
    """
    found = identity.get("shim") or identity
    started = found.get("started_at")
    return started is not None and started_at(found["pid"]) == started


def is_running(pid: int) -> bool:
    """Whether a process runs. One that has ended but whose exit code was not read yet (a zombie) does not."""
    return _state(pid) not in ("", "Z")


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped (SIGSTOP, or Ctrl-Z in its terminal)."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """The kernel's letter for the state of a process; empty if there is no such process."""
    try:
        return stat_of(pid)[0]
    except (OSError, IndexError):
        return ""
