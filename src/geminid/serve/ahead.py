"""Jobs whose folders are ahead of the log: the log has never started them, and their folders show that they ran.

Files of an earlier moment that were put back together (the database with its sequence file, or a backup) fit together,
and lack what happened since. A service that started on them would end processes that it does not expect, and begin
these jobs from the beginning. So it does not start before an operator has decided (``geminid recover``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from geminid.process.shim import EXIT
from geminid.serve.executors.plain import has_processes
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState
from geminid.supervise.handover import ENDED, EXITED
from geminid.supervise.setaside import CHECKPOINTS, has_checkpoints

#: Where the folders of jobs are, in the home.
JOBS = "jobs"

#: Most jobs that are named in a sentence.
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class JobAhead:
    """A job that the log knows and whose folder is ahead of it; ``runs`` if its processes are alive."""

    job_id: str
    runs: bool
    has_checkpoints: bool

    def __str__(self) -> str:
        """What the folder shows."""
        saved = "has checkpoints" if self.has_checkpoints else "has no checkpoints"
        return f"{self.job_id} ({'runs' if self.runs else 'has run'}, {saved})"


def jobs_ahead(home: Path, state: ServiceState) -> tuple[JobAhead, ...]:
    """The jobs of a log that their folders are ahead of; nothing is changed."""
    found = (_ahead(home / JOBS / job.id, job) for job in state.jobs.values() if _is_idle(job))
    return tuple(one for one in found if one is not None)


def _is_idle(job: LiveJob) -> bool:
    """Whether a job has no processes, according to the log, and may still get some."""
    return not job.phase.is_terminal and not job.phase.holds_slots


def _ahead(folder: Path, job: LiveJob) -> JobAhead | None:
    if not folder.is_dir():
        return None
    runs, saved = has_processes(folder), has_checkpoints(folder / CHECKPOINTS)
    if runs:
        return JobAhead(job.id, True, saved)
    if job.state.first_started_at_s is not None:  # it continues from its newest checkpoint, as the log says
        return None
    ended = [folder / EXIT, *(one for name in (ENDED, EXITED) for one in folder.glob(name.format(worker="*")))]
    return JobAhead(job.id, False, saved) if saved or any(one.exists() for one in ended) else None


def ahead_sentence(jobs: tuple[JobAhead, ...]) -> str:
    """The sentence that says which jobs' folders are ahead of the log."""
    named = ", ".join(map(str, jobs[:MOST_NAMED])) + (f" and {len(jobs) - MOST_NAMED} more" * (len(jobs) > MOST_NAMED))
    return f"the folders of these jobs are ahead of the log, which does not know that they ran: {named}"
