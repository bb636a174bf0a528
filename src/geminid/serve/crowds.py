"""Long queues of jobs that differ: the policy sees those that could be next, by whatever a policy may go by.

Waiting jobs that have never run, ask for the same slots and fall under the same quotas form a crowd; where the policy
regards owners and queues, of the same owner and queue. They differ in what orders them: priority, deadline, work and
time of arrival. Of a large crowd only the first by each of
these are shown to the policy. So what a decision costs grows with the slots and the number of crowds, not with the
length of the queue. Equal jobs are dealt with before, and exactly (``equals.py``). Crowds are an approximation where a
policy combines several orders into one: a job that is first by none of them is shown once others have started.

Where there are more crowds than jobs may be shown (of thousands of owners, say), only the first jobs of the crowds that
are first by each order are shown. A crowd moves up when those before it have started; none waits for ever, because the
time of arrival is one of the orders.
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
#: there are many crowds, fewer are shown of each, and none of those that are first by no order.
MAX_SHOWN = 1000

#: What may differ within a crowd; and what may differ if owners make no difference to the policy.
ORDERED_BY = ("weight", "priority", "deadline_s", "work", "budget_gpu_s")
OWNERS = ("owner", "queue")


def crowd_of(facts: JobFacts, quotas: Collection[str], *, by_owner: bool) -> Hashable:
    """What a waiting job has in common with those of its crowd.

    ``quotas`` are those that it falls under; ``by_owner`` if the policy considers the owners of jobs.
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
    """The jobs of a crowd, in each order; ``heads`` are those that were first when the crowds were last refreshed."""

    at_once: int
    orders: list[list[_Entry]]
    is_shown: set[str] = field(default_factory=set)
    heads: tuple[_Entry, ...] = ()

    def first(self, share: int) -> set[str]:
        """The first ``share`` jobs by each order, or fewer if the crowd needs no more."""
        most = min(share, max(SHOWN_BY_ORDER, 2 * (self.at_once + 1)))
        return {entry[-1] for order in self.orders for entry in islice(order, most)}

    @property
    def representative(self) -> str | None:
        """The last by arrival of the jobs that are shown: it stands for those that are not; None if none is shown."""
        if not self.is_shown:
            return None
        return next((entry[-1] for entry in reversed(self.orders[0]) if entry[-1] in self.is_shown), None)


@dataclass(slots=True)
class Crowds:
    """All crowds. ``show`` and ``hide`` are called by :meth:`refresh` for jobs that the policy is to see, or not.

    ``_heads`` has, for each order, the first job of every crowd, with the crowd. ``version`` changes with the crowds.
    """

    show: Callable[[str], None]
    hide: Callable[[str], None]
    version: int = 0
    _crowds: dict[Hashable, _Crowd] = field(default_factory=dict)
    _places: dict[str, _Place] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    _changed: dict[Hashable, None] = field(default_factory=dict)  # in the order of their changes
    _heads: list[list[tuple[_Entry, Hashable]]] = field(default_factory=list)
    _shown: dict[Hashable, None] = field(default_factory=dict)  # the crowds of which some are shown
    _most: int = MAX_SHOWN
    _share: int = 0
    _last: str = ""  # the job that stands for crowds of which none is shown

    def put(self, job_id: str, key: Hashable, ranks: tuple[float, ...], at_once: int) -> None:
        """Have a waiting job in its crowd, where it belongs by its ranks; it moves there from another one.

        ``at_once`` is how many jobs of the crowd could have slots at once.
        """
        before = self._places.get(job_id)
        if before is not None and before[:2] == (key, ranks):
            return
        was_shown = self.discard(job_id)
        crowd = self._crowds.get(key)
        if crowd is None:
            crowd = self._crowds[key] = _Crowd(at_once, [[] for _ in ranks])
            self._heads = self._heads or [[] for _ in ranks]
            self._most = max(self._most, 10 * at_once)
        place = self._places[job_id] = _Place(key, ranks, next(self._numbers) if before is None else before.number)
        for order, entry in zip(crowd.orders, place.entries(job_id), strict=True):
            insort(order, entry)
        if was_shown:
            crowd.is_shown.add(job_id)
            self._shown[key] = None
        self._changed[key] = None

    def discard(self, job_id: str) -> bool:
        """A job no longer waits here; whether it was shown. It stays as it is, shown or not."""
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
        """Show who is first now, and hide who is not any more."""
        if not self._changed:
            return
        self.version += 1
        changed, self._changed = self._changed, {}
        for key in changed:
            self._count_heads(key)
        if not self._crowds:
            self._shown = {}
            return
        share_before, self._share = self._share, self._most // (len(self._crowds) * len(self._heads))
        if self._share:
            keys = changed if self._share == share_before else self._crowds
            wanted = {key: self._crowds[key].first(self._share) for key in keys if key in self._crowds}
        else:
            wanted = self._first_heads()
            wanted |= {key: set() for key in self._shown if key in self._crowds and key not in wanted}
        for key, first in wanted.items():
            self._show_only(key, first)
        shown = [self._arrival(job_id) for job_id in self._representatives()] if not self._share else []
        self._last = max(shown)[-1] if shown else ""

    def _count_heads(self, key: Hashable) -> None:
        """Keep who is first of a crowd by each order; a crowd without jobs is gone."""
        crowd = self._crowds[key]
        heads = tuple(order[0] for order in crowd.orders) if crowd.orders[0] else ()
        for order, before in zip(self._heads, crowd.heads, strict=False):
            del order[bisect_left(order, before, key=lambda head: head[0])]
        for order, now in zip(self._heads, heads, strict=False):
            insort(order, (now, key), key=lambda head: head[0])
        crowd.heads = heads
        if not heads:
            del self._crowds[key]
            self._shown.pop(key, None)

    def _first_heads(self) -> dict[Hashable, set[str]]:
        """The first jobs of the crowds that are first by each order, by their crowds."""
        found: dict[Hashable, set[str]] = {}
        for order in self._heads:
            for entry, key in islice(order, self._most // len(self._heads)):
                found.setdefault(key, set()).add(entry[-1])
        return found

    def _show_only(self, key: Hashable, first: set[str]) -> None:
        """Show these jobs of a crowd, and hide the others."""
        crowd = self._crowds[key]
        for job_id in sorted(first ^ crowd.is_shown, key=self._arrival):
            (self.show if job_id in first else self.hide)(job_id)
        crowd.is_shown = first
        if first:
            self._shown[key] = None
        else:
            self._shown.pop(key, None)

    def _representatives(self) -> Iterator[str]:
        found = (self._crowds[key].representative for key in self._shown)
        return (job_id for job_id in found if job_id is not None)

    def _arrival(self, job_id: str) -> tuple[float, int, str]:
        place = self._places[job_id]
        return place.ranks[0], place.number, job_id

    def hides(self, job_id: str) -> bool:
        """Whether a job is not shown because others go before it."""
        place = self._places.get(job_id)
        return place is not None and job_id not in self._crowds[place.crowd].is_shown

    def shown_for(self, job_id: str) -> str:
        """The job that stands for this one: itself, or the last by arrival of those shown, of its crowd if any are."""
        if not self.hides(job_id):
            return job_id
        return self._crowds[self._places[job_id].crowd].representative or self._last

    def hidden(self) -> dict[str, list[float]]:
        """When the jobs arrived that are not shown, by the job that stands for them."""
        found: dict[str, list[float]] = {}
        unseen: list[float] = []  # of crowds of which none is shown: there may be thousands of them
        for crowd in self._crowds.values():
            shown, jobs = crowd.is_shown, crowd.orders[0]
            if not shown:
                unseen += [entry[0] for entry in jobs]
            elif len(shown) < len(jobs):
                found[crowd.representative or ""] = [entry[0] for entry in jobs if entry[-1] not in shown]
        if unseen:
            found.setdefault(self._last, []).extend(unseen)
        return found
