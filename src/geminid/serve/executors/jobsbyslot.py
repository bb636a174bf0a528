"""An index of jobs by slot: finds the jobs that a change of slots concerns without looking at all jobs."""

from __future__ import annotations

from collections.abc import Iterable, Set


class JobsBySlot:
    """The jobs of each slot: for example those that hold it, or those that want it."""

    def __init__(self) -> None:
        self._slots: dict[str, frozenset[str]] = {}
        self._jobs: dict[str, dict[str, None]] = {}

    def put(self, job_id: str, slots: Set[str]) -> Set[str]:
        """Set the slots of a job; returns those that it had before and no longer has."""
        before = self._slots.get(job_id, frozenset())
        if slots == before:
            return frozenset()
        for slot in slots - before:
            self._jobs.setdefault(slot, {})[job_id] = None
        for slot in before - slots:
            del self._jobs[slot][job_id]
            if not self._jobs[slot]:
                del self._jobs[slot]
        if slots:
            self._slots[job_id] = frozenset(slots)
        else:
            del self._slots[job_id]
        return before - slots

    def of(self, slots: Iterable[str]) -> list[str]:
        """The jobs of any of these slots, each once."""
        return list(dict.fromkeys(job_id for slot in slots for job_id in self._jobs.get(slot, ())))
