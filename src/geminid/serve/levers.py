"""What can be changed about a live job, and what it competes with: what suggestions to its owner may assume.

The suggestions themselves are made in ``engine/hints.py``.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from geminid.cluster import Cluster
from geminid.engine.hints import Levers, Rivals
from geminid.job import JobKind
from geminid.policies.base import Policy
from geminid.serve.documents import slots_by_type
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState

#: Slots and nodes out of service that are named.
MAX_REOPENED = 3


def levers_of(job: LiveJob, state: ServiceState, cluster: Cluster, policy: Policy) -> Levers:
    """The levers of a job."""
    return Levers(
        elastic=job.elastic or (job.kind is JobKind.UNKNOWN and not job.phase.holds_slots),
        asked_max_slots=job.spec.max_slots,
        priority=job.spec.priority,
        priority_limit=state.rules_of(job.spec.queue).max_priority,
        priority_counts=policy.regards_priority,
        stays=frozenset(other.id for other in state.jobs.values() if other.target is not None and not other.elastic),
        reopen=_reopen(job, state, cluster),
        size_follows_speed=policy.needs_models,
    )


class Competition:
    """All the jobs that are to run at a moment, from which follows what each of them competes with."""

    def __init__(self, state: ServiceState, cluster: Cluster) -> None:
        self._state, self._cluster = state, cluster
        active = [job for job in state.jobs.values() if job.wants_slots]
        self._count = len(active)
        closed, gone = state.out_of_service, state.emptied | state.down
        self._holders = [job for job in active if job.target is not None]
        self._in_service = {  # jobs whose slots others get after them
            job.id
            for job in self._holders
            if any(slot[0] not in gone and slot not in closed for slot in (job.target.slots() if job.target else ()))
        }
        self._slots = slots_by_type(state, cluster)
        self._used: Counter[str] = Counter()
        for job in self._holders:
            for name in state.quotas_of(job.id):
                self._used[name] += _num_slots(job)
        self._first_s = dict.fromkeys(cluster.type_index, inf)  # of those that wait for slots of each type, and
        self._highest = dict.fromkeys(cluster.type_index, -inf)  # could start if there were some
        for job in active:
            if job.target is None and min(self._left(job).values(), default=inf) >= job.spec.min_slots:
                for name in self._types_of(job):
                    if self._slots[name].in_service >= job.spec.min_slots:
                        self._first_s[name] = min(self._first_s[name], job.state.submitted_at_s)
                        self._highest[name] = max(self._highest[name], job.spec.priority)

    def rivals_of(self, job: LiveJob) -> Rivals:
        """What a job that is to run competes with."""
        own, types = _num_slots(job), self._types_of(job)
        need, most = (1, job.spec.max_slots or inf) if own else (job.spec.min_slots, job.spec.min_slots)
        holders = [other for other in self._holders if other.id != job.id and self._type_of(other) in types]
        held = [other for other in holders if other.id in self._in_service]
        left = self._left(job)
        least = min(left.values(), default=inf)
        usable = {name: slots for name, slots in self._slots.items() if name in types}
        free = max((slots.free for slots in usable.values()), default=0)
        in_service = max((slots.in_service for slots in usable.values()), default=0)
        grows = own < most and (job.elastic if own else in_service >= need)
        lacks = grows and own + free < min(most, in_service)
        if own:
            gives = any(other.elastic and _num_slots(other) > other.spec.min_slots for other in held)
            pass_by, in_the_way = lacks and gives, lacks and bool(held)
        else:
            ahead = grows and any(
                self._first_s[name] < job.state.submitted_at_s or self._highest[name] > job.spec.priority
                for name in types
            )
            pass_by = ahead or (lacks and any(other.elastic for other in held))
            in_the_way = ahead or (lacks and bool(held))
        stay = Counter[str]()
        for other in holders:
            stay[self._type_of(other)] += 0 if other.elastic else _num_slots(other)
        reachable = max((slots.in_service - stay[name] for name, slots in usable.items()), default=0)
        return Rivals(
            others=self._count - (job.id in self._state.jobs),
            quotas=tuple(name for name, slots in left.items() if grows and slots < need),
            shared=all(slots + self._used[name] - own >= need for name, slots in left.items()),
            pass_by=pass_by,
            in_the_way=in_the_way,
            most_slots=max(int(min(reachable, least + own)), 0),
        )

    def _left(self, job: LiveJob) -> dict[str, int]:
        """How many slots are left of each of a job's quotas that it cannot borrow beyond."""
        limits = self._state.quotas_of(job.id).items()
        return {name: slots - self._used[name] for name, slots in limits if not self._state.may_borrow(name)}

    def _types_of(self, job: LiveJob) -> list[str]:
        """The GPU types of the cluster that a job may use."""
        names = job.spec.gpu_types.names
        return [name for name in self._cluster.type_index if not names or name in names]

    def _type_of(self, job: LiveJob) -> str:
        """The GPU type of the slots that a job has."""
        return "" if job.target is None else self._state.gpu_types.get(job.target.node_names[0], "")


def _num_slots(job: LiveJob) -> int:
    return 0 if job.target is None else job.target.num_slots


def _reopen(job: LiveJob, state: ServiceState, cluster: Cluster) -> tuple[str, ...]:
    """The commands by which an operator brings slots back that the job could use."""
    allowed = job.spec.gpu_types.names or cluster.type_index
    usable = {node.name for node in cluster.nodes if node.gpu_type in allowed} - state.down - state.leaving
    nodes = [f"geminid drain {node} --undo" for node in sorted(state.drained & usable)]
    open_nodes = usable - state.drained
    slots = [
        f"geminid cordon {node}/{slot} --undo"
        for node, slot in sorted(state.cordoned)
        if node in open_nodes and (node, slot) not in state.taken
    ]
    return (*nodes, *slots)[:MAX_REOPENED]
