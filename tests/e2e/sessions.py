"""Which processes a test has left behind."""

from __future__ import annotations

from pathlib import Path


def processes_of_session(session: int) -> list[int]:
    """Live processes that descend from the one that began the session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
