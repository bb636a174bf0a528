"""What follows from the end of other jobs: waiting jobs are released or cancelled, and elements of arrays are made.

All of it follows from the state, so whatever a service that was killed did not write is written by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geminid.serve.arrays import expansions
from geminid.serve.dependencies import settlements
from geminid.serve.journal import Journal


def follow_up(journal: Journal, free_slots: Callable[[], Mapping[str, int]]) -> None:
    """Write what follows from the state. ``free_slots`` are those of each GPU type that are planned for no job."""
    while journal.state.unsettled and (records := settlements(journal.state)):  # one that is cancelled decides others
        if not journal.commit(records):
            return
    if journal.state.unsettled:
        journal.commit(expansions(journal.state, free_slots()))
