"""Naming processes for good, and asking how they are.

Process ids are used again, so a process is named by its id together with the time when it started, in clock ticks since
boot. That is what homes, supervisors' records and the names of control groups hold. psutil does not give it: its
``create_time`` is a time of day, which changes when the clock is set. The kernel's record of a process is read in
``shim.py``, which runs without any package, and the state of a process is in the same record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geminid.process.shim import started_at, stat_of


def identity_of(pid: int) -> dict[str, Any]:
    """What names a process for good, as JSON; ``started_at`` is None if there is no such process."""
    return {"pid": pid, "started_at": started_at(pid)}


def still_runs(identity: Mapping[str, Any]) -> bool:
    """Whether a process of this machine with this identity is there; of one below a shim, whether the shim is."""
    found = identity.get("shim") or identity
    return found["started_at"] is not None and started_at(found["pid"]) == found["started_at"]


def is_running(pid: int) -> bool:
    """Whether a process has not ended: one whose parent has not asked for its exit code has, though it is listed."""
    return _state(pid) not in ("", "Z")


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped (SIGSTOP, or Ctrl-Z in its terminal)."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """The letter by which the kernel names the state of a process; nothing if there is no such process."""
    try:
        return stat_of(pid)[0]
    except (OSError, IndexError):
        return ""
