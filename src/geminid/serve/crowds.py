"""Long queues of jobs that differ: the policy sees those that could be next, by whatever a policy may go by.

Waiting jobs that have never run, ask for the same slots and fall under the same quotas form a crowd; where the policy
regards owners and queues, of the same owner and queue. They differ in what orders them: priority, deadline, work and
time of arrival. Of a large crowd only the first by each of
these are shown to the policy. So what a decision costs grows with the slots and the number of crowds, not with the
length of the queue. Equal jobs are dealt with before, and exactly (``equals.py``). Crowds are an approximation where a
policy combines several orders into one: a job that is first by none of them is shown once others have started.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from math import inf
from typing import NamedTuple

from geminid.policies.base import JobFacts
from geminid.serve.equals import asked_for

#: Jobs of a crowd that are shown by each order, or twice as many as could have slots at once, if that is more.
SHOWN_BY_ORDER = 32

#: Jobs that are shown of all crowds together, or ten times as many as could have slots at once, if that is more. Where
#: there are many crowds, fewer are shown of each; always the first by each order.
MAX_SHOWN = 1000

#: What may differ within a crowd; and what may differ if owners make no difference to the policy.
ORDERED_BY = ("weight", "priority", "deadline_s", "work", "budget_gpu_s")
OWNERS = ("owner", "queue")


def crowd_of(facts: JobFacts, quotas: Collection[str], *, by_owner: bool) -> Hashable:
    """What a waiting job has in common with those of its crowd.

    ``quotas`` are those that it falls under; ``by_owner`` if the policy regards to whom jobs belong.
    """
    leave_out = ORDERED_BY if by_owner else (*ORDERED_BY, *OWNERS)
    return asked_for(facts, by_name=False, leave_out=leave_out), tuple(sorted(quotas))


def ranks_of(facts: JobFacts) -> tuple[float, ...]:
    """Where a job stands in each order; less is earlier."""
    deadline_s = inf if facts.deadline_s is None else facts.deadline_s
    shortest, longest = (inf, inf) if facts.work is None else (facts.work, -facts.work)
    return (facts.submitted_s, -facts.weight, deadline_s, shortest, longest)


#: A job in an order: its rank, when it arrived, its number among all that ever came, and its id.
_Entry = tuple[float, float, int, str]


class _Place(NamedTuple):
    """Where a job is: its crowd, its ranks there, and its number."""

    crowd: Hashable
    ranks: tuple[float, ...]
    number: int

    def entries(self, job_id: str) -> Iterator[_Entry]:
        """The job in each order."""
        return ((rank, self.ranks[0], self.number, job_id) for rank in self.ranks)


@dataclass(slots=True)
class _Crowd:
    """The jobs of a crowd, in each order."""

    at_once: int
    orders: list[list[_Entry]]
    is_shown: set[str] = field(default_factory=set)

    def first(self, crowds: int) -> set[str]:
        """The jobs that are first by any order; the fewer, the more ``crowds`` there are."""
        own = max(SHOWN_BY_ORDER, 2 * (self.at_once + 1))
        share = max(MAX_SHOWN, 10 * self.at_once) // (crowds * len(self.orders))
        return {entry[-1] for order in self.orders for entry in islice(order, max(1, min(own, share)))}

    @property
    def representative(self) -> str:
        """The last by arrival of the jobs that are shown: it stands for those that are not."""
        return next(entry[-1] for entry in reversed(self.orders[0]) if entry[-1] in self.is_shown)


@dataclass(slots=True)
class Crowds:
    """All crowds. ``show`` and ``hide`` are called by :meth:`refresh` for jobs that the policy is to see, or not."""

    show: Callable[[str], None]
    hide: Callable[[str], None]
    _crowds: dict[Hashable, _Crowd] = field(default_factory=dict)
    _places: dict[str, _Place] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    _changed: dict[Hashable, None] = field(default_factory=dict)  # in the order of their changes

    def put(self, job_id: str, key: Hashable, ranks: tuple[float, ...], at_once: int) -> None:
        """Put a waiting job into its crowd, in the order of its ranks; it moves there from another one.

        ``at_once`` is how many jobs of the crowd could have slots at once.
        """
        before = self._places.get(job_id)
        if before is not None and before[:2] == (key, ranks):
            return
        was_shown = self.discard(job_id)
        crowd = self._crowds.get(key)
        if crowd is None:
            crowd = self._crowds[key] = _Crowd(at_once, [[] for _ in ranks])
        place = self._places[job_id] = _Place(key, ranks, next(self._numbers) if before is None else before.number)
        for order, entry in zip(crowd.orders, place.entries(job_id), strict=True):
            insort(order, entry)
        if was_shown:
            crowd.is_shown.add(job_id)
        self._changed[key] = None

    def discard(self, job_id: str) -> bool:
        """Take a job out; whether it was shown. It stays shown or hidden as it is."""
        place = self._places.pop(job_id, None)
        if place is None:
            return False
        crowd = self._crowds[place.crowd]
        for order, entry in zip(crowd.orders, place.entries(job_id), strict=True):
            del order[bisect_left(order, entry)]
        was_shown = job_id in crowd.is_shown
        crowd.is_shown.discard(job_id)
        self._changed[place.crowd] = None
        return was_shown

    def refresh(self) -> None:
        """Show the jobs that are first now, and hide those that are not any more."""
        changed, self._changed = self._changed, {}
        for key in changed:
            crowd = self._crowds[key]
            first = crowd.first(len(self._crowds))
            for job_id in sorted(first ^ crowd.is_shown, key=self._arrival):
                (self.show if job_id in first else self.hide)(job_id)
            crowd.is_shown = first
            if not first:
                del self._crowds[key]

    def _arrival(self, job_id: str) -> tuple[float, int]:
        place = self._places[job_id]
        return place.ranks[0], place.number

    def hides(self, job_id: str) -> bool:
        """Whether a job is not shown because others of its crowd go before it."""
        place = self._places.get(job_id)
        return place is not None and job_id not in self._crowds[place.crowd].is_shown

    def shown_for(self, job_id: str) -> str:
        """The job that stands for this one: itself, or the last of those shown by arrival."""
        if not self.hides(job_id):
            return job_id
        return self._crowds[self._places[job_id].crowd].representative

    def hidden(self) -> Iterator[tuple[str, float, str]]:
        """The jobs that are not shown, when they arrived, and which job stands for each."""
        for crowd in self._crowds.values():
            if len(crowd.is_shown) < len(crowd.orders[0]):
                representative = crowd.representative
                for submitted_s, _, _, job_id in crowd.orders[0]:
                    if job_id not in crowd.is_shown:
                        yield job_id, submitted_s, representative
