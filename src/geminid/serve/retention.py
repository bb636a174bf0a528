"""What a service forgets, so that one that runs for years stays as quick as on its first day.

Jobs that are over are kept for a while, with their logs and checkpoints; of those that are forgotten, what they used
stays in the totals of their owners. Of the log, the newest records are kept, and always those that the oldest kept
snapshot needs.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from geminid.serve.jobarray import array_of
from geminid.serve.state import ServiceState

#: Most jobs that are forgotten at a time: each time is one record, and one pause of the service.
MAX_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long jobs that are over are kept, how many of them at most, and how many records of the log."""

    seconds: float = 30 * 86_400.0
    jobs: int = 5000
    events: int = 100_000

    def outdated(self, state: ServiceState, now_s: float) -> list[str]:
        """The jobs to forget now, those first that ended first."""
        jobs, elements = list[tuple[float, str]](), list[tuple[float, str]]()
        for job in state.jobs.values():
            if job.state.finished_at_s is not None:
                over = jobs if array_of(job.id) is None else elements  # an array does not displace other jobs
                over.append((job.state.finished_at_s, job.id))
        outdated = [
            one
            for over in (jobs, elements)
            for i, one in enumerate(sorted(over))
            if i < len(over) - self.jobs or now_s - one[0] > self.seconds
        ]
        return [job_id for _, job_id in sorted(outdated)[:MAX_AT_ONCE]]


def remove_folders(job_ids: Iterable[str], folder_of: Callable[[str], Path]) -> None:
    """Delete what jobs left on disk, in a thread of its own: checkpoints may be large."""
    folders = [folder_of(job_id) for job_id in job_ids]

    def remove() -> None:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    threading.Thread(target=remove, name="remove folders", daemon=True).start()
