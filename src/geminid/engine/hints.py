"""What would help a job, as facts: every suggestion is made here, from what it takes to be true.

A :class:`Hint` has a sentence and the change that it proposes, so that a test can make the change and see that it does
what is promised. What a suggestion may assume of a job and its service is in :class:`Levers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The highest priority that a job can have.
MAX_PRIORITY = 1000

#: What a job is called that is not submitted yet: no command can change it.
NEW = "new"

#: A job whose priority is higher by this much counts twice as much.
PRIORITY_STEP = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """What can be changed about a job, and what of its surroundings a policy's view does not show.

    ``elastic`` jobs can be given other sizes; ``asked_max_slots`` is the most that its owner allows. Owners may raise
    its ``priority`` up to ``priority_limit``, admins further; ``priority_counts`` if the policy regards it. ``stays``
    are jobs that keep their slots until they end. ``reopen`` are commands that bring slots back into service.
    ``size_follows_speed`` if the policy chooses sizes by models of the jobs' speeds.
    """

    elastic: bool = True
    asked_max_slots: int | None = None
    priority: int = 0
    priority_limit: int = 0
    priority_counts: bool = True
    stays: frozenset[str] = frozenset()
    reopen: tuple[str, ...] = ()
    size_follows_speed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """What keeps a job from slots, or from more of them: whether it helps to go before others, or to have fewer.

    ``others`` are how many other jobs are to run. ``quotas`` are those that leave the job no (more) slots; they are
    ``shared`` if they would leave it some without the other jobs that use them. ``pass_by`` if jobs wait before it, or
    hold slots that they may give to one of a higher priority; ``in_the_way`` if it would have (more) slots without some
    of the others. ``most_slots`` is how many it could have beside those that keep theirs until they end, within its
    quotas; None: any number.
    """

    others: int = 0
    quotas: tuple[str, ...] = ()
    shared: bool = False
    pass_by: bool = False
    in_the_way: bool = False
    most_slots: int | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """A suggestion: what to say, and the change that it proposes (none: it is enough to wait).

    A change is (what, whose, value): ``("priority", "j3", 50)``, ``("min_slots", "j3", 1)``, ``("quota", "owner ann",
    4)``, ``("reopen", "geminid drain a --undo", 0)``.
    """

    text: str
    change: tuple[str, str, int] | None = None


def raise_priority(job_id: str, levers: Levers) -> list[Hint]:
    """A higher priority, if that counts and there is one; whether its owner may set it is said."""
    if not levers.priority_counts or levers.priority >= MAX_PRIORITY:
        return []
    by_owner = levers.priority < levers.priority_limit
    most = levers.priority_limit if by_owner else MAX_PRIORITY
    value = min(levers.priority + PRIORITY_STEP, most)
    command = f"geminid set {job_id} --priority {value}"
    text = f"raise its priority ({command})" if by_owner else f"have an admin raise its priority ({command})"
    return [Hint(text, ("priority", job_id, value))]


def go_before(job_id: str, levers: Levers, rivals: Rivals) -> list[Hint]:
    """Going before other jobs, where that brings slots: with a higher priority, or with fewer of them."""
    if rivals.quotas:
        fewer = f"have fewer jobs of {' and of '.join(rivals.quotas)}: cancel or pause some"
        return [Hint(fewer)] if rivals.shared else []
    hints = raise_priority(job_id, levers) if rivals.pass_by and job_id != NEW else []
    return [*hints, *([Hint("have fewer jobs before it: cancel or pause some")] if rivals.in_the_way else [])]


def fewer_slots(job_id: str, need: int, there_are: int, levers: Levers) -> list[Hint]:
    """Asking for as many slots as there are, if that is fewer than it needs and any at all."""
    if not 1 <= there_are < need:
        return []
    if levers.elastic:
        command = f"geminid set {job_id} --min-slots {there_are}"
        return [Hint(f"let it run on fewer slots ({command})", ("min_slots", job_id, there_are))]
    return [Hint(f"cancel it, and submit it for at most {_slots(there_are)}")]


def more_slots(job_id: str, slots: int, usable: int, levers: Levers) -> list[Hint]:
    """A higher max_slots, if that is what limits the job and there are more slots than it has."""
    asked = levers.asked_max_slots
    if not levers.elastic or asked is None or slots < asked or usable <= slots:
        return []
    return [Hint(f"raise max_slots (geminid set {job_id} --max-slots {usable})", ("max_slots", job_id, usable))]


def raise_quotas(short: Sequence[tuple[str, int]], total_slots: int) -> list[Hint]:
    """Higher quotas: all that stand in the way, with what each has to become; none beyond what the cluster has."""
    if any(slots > total_slots for _, slots in short):
        return []
    return [
        Hint(f"have the quota raised (geminid quota {of} {slots})", ("quota", of, slots))
        for of, slots in dict(short).items()
    ]


def reopen(levers: Levers) -> list[Hint]:
    """Bringing slots back into service, if an operator took them out."""
    return [Hint(f"bring slots back into service ({command})", ("reopen", command, 0)) for command in levers.reopen]


def _slots(count: int) -> str:
    return f"{count} slot{'' if count == 1 else 's'}"
