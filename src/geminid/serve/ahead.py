"""Jobs whose folders are ahead of the log: the log has never started them, and their folders show that they ran.

Files of an earlier moment that were put back together (the database with its sequence file, or a backup) fit together,
and lack what happened since. A service that started on them would end processes that it does not expect, and begin
these jobs from the beginning. So it does not start before an operator has decided (``geminid recover``).

Then a job whose processes run is taken over by the next service, if its folder shows on which slots they are, and no
other job of the log lives there. Otherwise its processes are ended, and it continues from its newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from geminid.configuration import Placement
from geminid.job import JobKind
from geminid.jobstate import JobPhase
from geminid.process.shim import EXIT
from geminid.serve import records as r
from geminid.serve.executors.plain import has_processes, live_workers, slots_of
from geminid.serve.executors.slotnames import known_places
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState
from geminid.supervise.handover import ENDED, EXITED, Handover
from geminid.supervise.setaside import CHECKPOINTS, has_checkpoints

#: Where the folders of jobs are, in the home.
JOBS = "jobs"

#: Most jobs that are named in a sentence.
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class JobAhead:
    """A job that the log knows and whose folder is ahead of it; ``runs`` if its processes are alive.

    ``placement`` are the slots on which the next service can take it over; None if it cannot.
    """

    job_id: str
    runs: bool
    has_checkpoints: bool
    placement: Placement | None = None

    def __str__(self) -> str:
        """What the folder shows."""
        saved = "has checkpoints" if self.has_checkpoints else "has no checkpoints"
        return f"{self.job_id} ({'runs' if self.runs else 'has run'}, {saved})"


def jobs_ahead(home: Path, state: ServiceState) -> tuple[JobAhead, ...]:
    """The jobs of a log that their folders are ahead of; nothing is changed."""
    found = (_ahead(home / JOBS / job.id, job) for job in state.jobs.values() if _is_idle(job))
    ahead = [one for one in found if one is not None]
    if not any(one.runs for one in ahead):
        return tuple(ahead)
    taken = {slot for job in state.jobs.values() for slot in _occupied(home, job)}
    result = []
    for one in ahead:
        place = _place_of(home, state.jobs[one.job_id]) if one.runs else None
        if place is not None and taken.isdisjoint(place.slots()):
            taken |= set(place.slots())
            one = replace(one, placement=place)
        result.append(one)
    return tuple(result)


def takeover_records(state: ServiceState, ahead: Sequence[JobAhead]) -> list[r.Record]:
    """What a log must say for the next service to take over the jobs that it can; others leave their slots."""
    places = {job.job_id: job.placement for job in ahead if job.placement is not None}
    slots = {slot for place in places.values() for slot in place.slots()}
    reason = "its processes run, although the log did not know it: they are taken over"
    gone = "its processes were gone when the log was recovered"
    records: list[r.Record] = []
    targets: dict[str, Placement | None] = dict(places)
    for job in state.jobs.values():
        held = set() if job.state.placement is None else set(job.state.placement.slots())
        wanted = set() if job.target is None else set(job.target.slots())
        if job.phase.holds_slots and held & slots:  # dead, or the slots would not be taken over
            records.append(r.JobEnded(job_id=job.id, how="lost", reason=gone))
        if wanted & slots and job.id not in places:
            targets[job.id] = None
    if places:
        records.append(r.Planned(targets=targets, reasons=dict.fromkeys(places, reason)))
    return [*records, *(r.JobStarting(job_id=job_id, placement=place) for job_id, place in places.items())]


def _occupied(home: Path, job: LiveJob) -> Sequence[tuple[str, int]]:
    """The slots on which a job of the log has live processes."""
    place = job.state.placement if job.phase.holds_slots else None
    return () if place is None or not has_processes(home / JOBS / job.id) else tuple(place.slots())


def _place_of(home: Path, job: LiveJob) -> Placement | None:
    """The slots on which the processes of a job run that the log has never started; None if that is not known."""
    if job.phase is not JobPhase.PENDING or not job.wants_slots:
        return None
    folder = home / JOBS / job.id
    if job.kind is JobKind.PLAIN:
        names = slots_of(folder)
    else:
        handover = Handover.read(folder)
        lone = () if handover is None else handover.lone_slots
        names = lone or tuple(slot for _, slot in live_workers(folder).values())
    places = known_places(home)
    if not names or not all(name in places for name in names):
        return None
    return Placement.of_slots([places[name] for name in sorted(names, key=int)])


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
