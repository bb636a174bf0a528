"""What an operator says of a queue: who may use it, and up to which priority.

Users may always lower the priority of their jobs. How far they may raise it is a setting of the queue, 0 unless an
admin has set more. A queue that has, or had, members takes jobs of its members only, until an admin opens it; one that
never had any is open to all. Once an admin has set a quota or a rule for some queue, users may submit only to
``default`` and to queues that an admin has named. Admins are not limited. Jobs that were submitted before a rule was
set keep their queue and their priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from geminid.job import JobSpec

#: The priority up to which users may go in a queue for which no admin has said anything.
DEFAULT_MAX_PRIORITY = 0

#: The queue of jobs that name none; it always exists.
DEFAULT_QUEUE = "default"

#: How many queues are listed to a user who has named one that does not exist.
MAX_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """The rules of one queue.

    ``open`` says whether everybody may use it, or its members only, also if there are none; where an admin has said
    nothing (None), a queue without members is open.
    """

    max_priority: int = DEFAULT_MAX_PRIORITY
    members: frozenset[str] = field(default_factory=frozenset)
    open: bool | None = None

    @property
    def is_default(self) -> bool:
        """Whether they say nothing."""
        return self == QueueRules()

    @property
    def is_open(self) -> bool:
        """Whether everybody may use the queue."""
        return not self.members if self.open is None else self.open

    @property
    def limits(self) -> bool:
        """Whether they differ from those of a queue that nobody manages; one that was only opened does not."""
        return self.max_priority != DEFAULT_MAX_PRIORITY or not self.is_open

    def changed(self, *, max_priority: int | None, add: Set[str], remove: Set[str], everybody: bool) -> QueueRules:
        """The rules after a change; with ``everybody``, the queue is open to all and has no members.

        Without, a queue from which the last member was removed stays closed.
        """
        members = frozenset() if everybody else (self.members | add) - remove
        return QueueRules(
            max_priority=self.max_priority if max_priority is None else max_priority,
            members=members,
            open=True if everybody else False if self.members or members else self.open,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"max_priority": self.max_priority, "members": sorted(self.members), "open": self.open}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> QueueRules:
        """The rules that were written."""
        return cls(max_priority=plain["max_priority"], members=frozenset(plain["members"]), open=plain.get("open"))


def existing(rules: Mapping[str, QueueRules], quotas: Iterable[tuple[str, str]]) -> frozenset[str] | None:
    """The queues that users may name: ``default``, and those that an admin has named; None if no admin manages queues.

    ``quotas`` are those that are set, by kind (``queue`` or ``owner``) and name.
    """
    with_quota = {name for of, name in quotas if of == "queue"}
    if not with_quota and not any(one.limits for one in rules.values()):
        return None
    return frozenset({DEFAULT_QUEUE, *with_quota, *rules})


def why_not_submitted(rules: QueueRules, spec: JobSpec, user: str, queues: Set[str] | None = None) -> str:
    """Why a user may not submit a job to its queue, in one sentence; empty if they may.

    ``queues`` are those that exist; None if all do.
    """
    if queues is not None and spec.queue not in queues:
        more = ", …" if len(queues) > MAX_LISTED else ""
        sentence = f"there is no queue {spec.queue}, only {', '.join(sorted(queues)[:MAX_LISTED])}{more}"
        return f"{sentence}: an admin can add it with `geminid queue-members {spec.queue} --open`"
    if not rules.is_open and user not in rules.members:
        sentence = f"queue {spec.queue} takes jobs of its members only, and {user} is not one"
        return f"{sentence}: an admin can change that with `geminid queue-members {spec.queue} --add {user}`"
    return why_not_raised(rules, spec.queue, spec.priority)


def why_not_raised(rules: QueueRules, queue: str, priority: int, before: int | None = None) -> str:
    """Why a user may not give a job of a queue this priority, in one sentence; empty if they may.

    ``before`` is the priority that it has: one above the limit may be lowered to any other.
    """
    limit = rules.max_priority if before is None else max(rules.max_priority, before)
    if priority <= limit:
        return ""
    sentence = f"priority {priority} is above {rules.max_priority}, the highest that users of queue {queue} may choose"
    return f"{sentence}: an admin can raise that limit with `geminid queue-priority {queue} {priority}`"
