"""The waiting jobs that have never run, and which of them the policy sees.

Equal jobs stand in a line (``equals.py``); the first of every line, and jobs that are like no other, stand in a crowd
(``crowds.py``). Of both only those are shown to the policy that could be next, so that a decision does not cost more
the longer the queue is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from geminid.cluster import Cluster
from geminid.policies.base import JobFacts, Policy
from geminid.serve.crowds import Crowds, crowd_of, ranks_of
from geminid.serve.equals import Lines, equality_of, is_new, most_at_once
from geminid.serve.livejob import LiveJob


@dataclass(slots=True)
class WaitingJobs:
    """All waiting jobs that have never run. ``show`` and ``hide`` are called when the policy is to see a job, or not.

    ``facts`` are what the policy knows of a job, ``quotas`` the quotas that apply to it.
    """

    cluster: Cluster
    policy: Policy
    facts: Callable[[str], JobFacts]
    quotas: Callable[[str], Mapping[str, int]]
    show: Callable[[str], None]
    hide: Callable[[str], None]
    _lines: Lines = field(init=False)
    _crowds: Crowds = field(init=False)
    _behind: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    _behind_of: tuple[int, int] = (0, 0)  # the versions of lines and crowds that it was made of

    def __post_init__(self) -> None:
        self._lines = Lines(self._join_crowd, self._leave_crowd)
        self._crowds = Crowds(self.show, self.hide)

    def put(self, job: LiveJob, facts: JobFacts) -> bool:
        """Give a job its place, or take it out if it has run before; whether it has a place now."""
        if self.policy.needs_every_job or not is_new(job):
            self.remove(job.id)
            return False
        equality = equality_of(job, facts)
        if equality is None:
            self._lines.discard(job.id)
            self._join_crowd(job.id)
        else:
            self._lines.put(job.id, equality, facts.submitted_s, most_at_once(facts, self.cluster))
            if self._lines.hides(job.id):
                self._leave_crowd(job.id)
        return True

    def remove(self, job_id: str) -> None:
        """A job has no place here any more."""
        self._lines.discard(job_id)
        self._crowds.discard(job_id)

    def refresh(self) -> None:
        """Show the jobs that could be next, and hide the others."""
        self._crowds.refresh()

    def behind(self) -> Mapping[str, tuple[float, ...]]:
        """When the hidden jobs arrived, by the job that the policy sees in their place."""
        versions = self._lines.version, self._crowds.version
        if self._behind_of != versions:
            behind = self._crowds.hidden()
            for job_id, times_s in self._lines.behind.items():
                behind.setdefault(self._crowds.shown_for(job_id), []).extend(times_s)
            self._behind = {job_id: tuple(sorted(times_s)) for job_id, times_s in behind.items()}
            self._behind_of = versions
        return self._behind

    def hides(self, job_id: str) -> bool:
        """Whether the policy does not see a job because others go before it."""
        return self._lines.hides(job_id) or self._crowds.hides(job_id)

    def shown_for(self, job_id: str) -> str:
        """The job that the policy sees in place of this one: itself, unless it is hidden."""
        return self._crowds.shown_for(self._lines.shown_for(job_id))

    def _join_crowd(self, job_id: str) -> None:
        facts = self.facts(job_id)
        crowd = crowd_of(facts, self.quotas(job_id), by_owner=self.policy.regards_owners)
        self._crowds.put(job_id, crowd, ranks_of(facts), most_at_once(facts, self.cluster))

    def _leave_crowd(self, job_id: str) -> None:
        if self._crowds.discard(job_id):
            self.hide(job_id)
