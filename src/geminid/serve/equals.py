"""Long queues of equal jobs: only as many of them as could start are shown to the policy, and the rest wait behind.

Waiting jobs that differ only in their time of arrival start in that order. However many there are, no more of
them can start at once than the cluster has slots for. So a decision need not look at those behind: what it costs grows
with the slots and with the kinds of jobs, not with the length of the queue. Policies that count all jobs get the times
of arrival of those behind (``ClusterView.behind``); policies that need every job (``Policy.needs_every_job``) see all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import inf

from geminid.cluster import Cluster
from geminid.policies.base import JobFacts
from geminid.serve.livejob import LiveJob

#: Fields in which equal jobs may differ.
_OWN = ("id", "kind", "submitted_s")

_SHARED = tuple(one.name for one in fields(JobFacts) if one.name not in _OWN)


def asked_for(facts: JobFacts, *, by_name: bool, leave_out: Collection[str] = ()) -> Hashable:
    """All that is asked of a job; with ``by_name``, jobs of other names ask for something else.

    The name counts anyway where speeds have been measured: those of jobs of the same name are taken to be alike.
    """
    kind = facts.kind if by_name or facts.limits else ""
    values = (getattr(facts, name) for name in _SHARED if name not in leave_out)
    return (kind, *(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values))


def equality_of(job: LiveJob, facts: JobFacts) -> Hashable | None:
    """What a waiting job that is new has in common with those that every policy must treat like it; None if none are.

    A job that has a deadline or says how much work it is, is like no other: among those, the order of arrival is not
    all that counts.
    """
    if facts.deadline_s is not None or facts.work is not None:
        return None
    return (job.kind, asked_for(facts, by_name=False), job.measured, job.gradient)


def is_new(job: LiveJob) -> bool:
    """Whether a job waits that has never run, and was never paused or held back."""
    has_run = job.state.first_started_at_s is not None or job.restarts or job.executed_before_s or job.samples
    return not (job.target is not None or has_run or job.rested_s or job.stays_until_s)


def most_at_once(facts: JobFacts, cluster: Cluster) -> int:
    """How many equal jobs could have slots at once, on an empty cluster."""
    allowed = cluster.type_index if facts.gpu_types is None else facts.gpu_types
    return sum(cluster.slots_per_type.get(name, 0) // facts.least_slots for name in allowed)


@dataclass(slots=True)
class _Line:
    """Equal jobs in the order of their arrival, with its times: those that are shown, and those behind."""

    shown_at_most: int
    shown: OrderedDict[str, float] = field(default_factory=OrderedDict)
    behind: OrderedDict[str, float] = field(default_factory=OrderedDict)

    @property
    def last_s(self) -> float:
        """When the last of them arrived."""
        return next(reversed((self.behind or self.shown).values()), -inf)

    def move_up(self) -> list[str]:
        """Show the jobs that are next, as far as there is room; which they are."""
        moved = []
        while self.behind and len(self.shown) < self.shown_at_most:
            job_id, submitted_s = self.behind.popitem(last=False)
            self.shown[job_id] = submitted_s
            moved.append(job_id)
        return moved

    def sort(self) -> None:
        """Put all jobs behind, in the order of their arrival."""
        jobs = [*self.shown.items(), *self.behind.items()]
        self.shown, self.behind = OrderedDict(), OrderedDict(sorted(jobs, key=lambda item: item[1]))


@dataclass(slots=True)
class Lines:
    """All lines of equal jobs. ``show`` and ``hide`` are called for jobs that the policy is to see from now on, or not.

    One job more is shown of each kind than could start: whether there is another one matters, how many do not.
    ``version`` changes with the lines.
    """

    show: Callable[[str], None]
    hide: Callable[[str], None]
    version: int = 0
    _lines: dict[Hashable, _Line] = field(default_factory=dict)
    _line_of: dict[str, Hashable] = field(default_factory=dict)

    def put(self, job_id: str, equality: Hashable, submitted_s: float, at_once: int) -> None:
        """Put a waiting job into the line of its equals; it moves there from another one."""
        if self._line_of.get(job_id) == equality:
            return
        self.discard(job_id)
        self.version += 1
        line = self._lines.setdefault(equality, _Line(at_once + 1))
        self._line_of[job_id] = equality
        before: set[str] = set()
        in_order = submitted_s >= line.last_s
        line.behind[job_id] = submitted_s
        if not in_order:  # it has been elsewhere for a while
            before = set(line.shown)
            line.sort()
        for moved in line.move_up():
            if moved not in before:
                self.show(moved)
        for other in before - set(line.shown):
            self.hide(other)

    def discard(self, job_id: str) -> None:
        """Take out a job that does not wait any more, or is no longer equal to the others."""
        equality = self._line_of.pop(job_id, None)
        if equality is None:
            return
        self.version += 1
        line = self._lines[equality]
        line.shown.pop(job_id, None)
        line.behind.pop(job_id, None)
        for moved in line.move_up():
            self.show(moved)
        if not line.shown:
            del self._lines[equality]

    def hides(self, job_id: str) -> bool:
        """Whether a job waits behind others that are shown."""
        return job_id in self._line_of and job_id not in self._lines[self._line_of[job_id]].shown

    def shown_for(self, job_id: str) -> str:
        """The job that is shown to the policy for this one: the last of its line, or the job itself."""
        return next(reversed(self._lines[self._line_of[job_id]].shown)) if self.hides(job_id) else job_id

    @property
    def behind(self) -> dict[str, tuple[float, ...]]:
        """When the jobs arrived that the last job shown of each line stands for."""
        return {next(reversed(one.shown)): tuple(one.behind.values()) for one in self._lines.values() if one.behind}

    def hidden(self) -> Iterable[str]:
        """The jobs that are not shown."""
        return (job_id for line in self._lines.values() for job_id in line.behind)
