"""Jobs by the slots that they have to do with: whom a change of slots concerns is found without asking everybody."""

from __future__ import annotations

from collections.abc import Iterable, Set


class JobsBySlot:
    """Which jobs have to do with which slots: who holds them, say, or who wants them."""

    def __init__(self) -> None:
        self._slots: dict[str, frozenset[str]] = {}
        self._jobs: dict[str, dict[str, None]] = {}

    def put(self, job_id: str, slots: Set[str]) -> Set[str]:
        """A job has to do with these slots now and with no others; with which it had before, and has not any more."""
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
        """The jobs that have to do with any of these slots, each once."""
        return list(dict.fromkeys(job_id for slot in slots for job_id in self._jobs.get(slot, ())))
