"""Which jobs run, and which are wanted on which slots."""

from __future__ import annotations

from collections.abc import Iterable, Set

from geminid.serve import records as r
from geminid.serve.executors.elasticjob import ElasticJob
from geminid.serve.executors.jobsbyslot import JobsBySlot
from geminid.serve.executors.plainjob import PlainJob
from geminid.serve.executors.reconcile import Actual
from geminid.serve.livejob import LiveJob

#: A job that has processes, or is about to.
RunningJob = ElasticJob | PlainJob


class JobTable:
    """Jobs that run (``running``), jobs that are wanted with their slots (``wanted``), and both by slot.

    Whatever changes what a job holds or wants is followed by ``account``. ``stirred`` are slots where something has
    changed for the jobs that want them.
    """

    def __init__(self) -> None:
        self.running: dict[str, RunningJob] = {}
        self.wanted: dict[str, tuple[LiveJob, tuple[str, ...]]] = {}
        self.stirred: set[str] = set()
        self._holders, self._claims = JobsBySlot(), JobsBySlot()  # as of when each job was accounted for

    def __contains__(self, job_id: str) -> bool:
        """Whether a job runs, or is wanted somewhere."""
        return job_id in self.running or job_id in self.wanted

    def account(self, job_id: str) -> None:
        """Keep what a job holds and wants now, by slot."""
        running, wanted = self.running.get(job_id), self.wanted.get(job_id)
        self.stirred |= self._holders.put(job_id, set() if running is None else running.holds)
        self._claims.put(job_id, set() if wanted is None else set(wanted[1]))

    def drop(self, job_id: str, *, target: bool = True) -> None:
        """A job has no processes any more; it is not wanted any more either, unless its ``target`` stays."""
        self.running.pop(job_id, None)
        if target:
            self.wanted.pop(job_id, None)
        self.account(job_id)

    def holders(self, slots: Iterable[str]) -> list[str]:
        """The running jobs that hold any of these slots."""
        return [job_id for job_id in self._holders.of(slots) if job_id in self.running]

    def claimants(self, slots: Iterable[str]) -> list[str]:
        """The jobs that are wanted on any of these slots."""
        return [job_id for job_id in self._claims.of(slots) if job_id in self.wanted]

    def take_stirred(self) -> list[str]:
        """The jobs that want slots where something has changed since this was last asked."""
        stirred, self.stirred = self.stirred, set()
        return self.claimants(sorted(stirred))

    def waiting_chain(self, job_id: str) -> list[str]:
        """A wanted job and, if it runs where it is not wanted any more, the jobs it may wait for, and so on."""
        chain = [job_id]
        for one in chain:
            running, (_, slots) = self.running.get(one), self.wanted[one]
            if running is not None and running.holds.isdisjoint(slots):
                chain += [other for other in self.holders(slots) if other in self.wanted and other not in chain]
        return chain

    def around(self, job_ids: Iterable[str]) -> dict[str, Actual]:
        """Some wanted jobs and all others that hold slots that these are wanted on, as they are now."""
        near = {one for job_id in job_ids for one in (*self.holders(self.wanted[job_id][1]), job_id)}
        return {one: actual(self.running[one]) for one in sorted(near) if one in self.running}

    def used_slots(self) -> Set[str]:
        """All slots that jobs hold."""
        return {slot for running in self.running.values() for slot in running.holds}

    def needed_slots(self) -> Set[str]:
        """All slots that jobs hold or are wanted on."""
        return self.used_slots() | {slot for _, slots in self.wanted.values() for slot in slots}

    def lose(self, slots: Set[str], reason: str) -> list[r.Record]:
        """These slots are gone: jobs go on with the others that they have, if they have any."""
        claimants, holders = self.claimants(sorted(slots)), self.holders(sorted(slots))
        for job_id in claimants:
            job, wanted = self.wanted[job_id]
            left = tuple(slot for slot in wanted if slot not in slots)
            if left:
                self.wanted[job_id] = (job, left)
            else:
                del self.wanted[job_id]
            self.account(job_id)
        return [record for job_id in holders for record in self._lose(self.running[job_id], slots, reason)]

    def _lose(self, running: RunningJob, slots: Set[str], reason: str) -> list[r.Record]:
        if isinstance(running, ElasticJob):
            running.do_without(slots, reason)
            self.account(running.job_id)
            return []
        self.drop(running.job_id)
        if running.command is not None:
            running.command.kill()
        return [r.JobEnded(job_id=running.job_id, how="lost", reason=reason)]


def actual(running: RunningJob) -> Actual:
    """A running job, for ``reconcile``."""
    return Actual(
        running.job_id, running.target, frozenset(running.holds), running.stopping, resizable=running.is_resizable
    )
