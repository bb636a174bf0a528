"""Who has which claim on the cluster: priorities, fair shares, queues with quotas, deadlines, budgets, preferences.

Everything here ends up either as a factor on a job's weight, as a configuration that a job may not have, or as a limit
on a group of jobs, so that one and the same problem decides it all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminid.configuration import Configuration
from geminid.fields import InvalidInput, Problem
from geminid.policies.base import ClusterView, JobFacts, JobView

Array = NDArray[np.float64]

#: Factor by which one level of priority multiplies a job's weight.
PRIORITY_FACTOR = 4.0
#: Levels beyond this count no more: by then nothing below stands a chance, and weights must stay finite.
MOST_LEVELS = 20
#: A fair share moves weights by at most this factor in either direction.
MOST_FAVOUR = 4.0
#: Weight factor of a job that needs all of the time until its deadline on its fastest configuration.
MOST_URGENT = 8.0
#: A deadline is given up when a job needs this many times the time left, on its fastest configuration: it
#: may be four times as fast once it has been measured on more slots, or have less to do than it says.
LOST = 4.0
#: A job that has waited longer counts no more: by then nothing but fifteen levels of priority stands before it, and
#: weights must stay finite.
MOST_OVERDUE = 1e9
#: How much more a slot of a preferred type is worth.
PREFERENCE = 1.25


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of jobs: how much it counts, the slots that it can always have, and the most that it may have.

    Written ``NAME:WEIGHT:QUOTA:LIMIT``; quota and limit may be left out. What a queue leaves of its quota others may
    borrow, and have to give back as soon as its own jobs want it.
    """

    name: str
    weight: float = 1.0
    quota: float | None = None
    limit: float | None = None

    @classmethod
    def parse(cls, text: str) -> Queue:
        """Read the short form."""
        name, *numbers = text.split(":")
        try:
            values = [float(number) if number else None for number in numbers]
        except ValueError:
            values = [-1.0]
        weight, quota, limit = [*values, None, None, None][:3]
        weight = 1.0 if weight is None else weight
        bad = not name or len(numbers) > 3 or weight <= 0 or (quota or 0) < 0 or (limit or 0) < 0
        if bad or not math.isfinite(sum(value or 0.0 for value in values)):
            expected = "must be NAME:WEIGHT:QUOTA:LIMIT with a positive weight and slots that are not negative"
            raise InvalidInput([Problem("option queues of geminid", text, expected)])
        return cls(name, weight, quota, limit)


@dataclass(frozen=True, slots=True)
class Used:
    """What a job has used of the cluster, and until when."""

    job_id: str
    queue: str
    owner: str
    gpu_s: float
    until_s: float


@dataclass(slots=True)
class FairShares:
    """What owners (and queues) have used of the cluster lately; usage counts half after ``half_life_s``."""

    half_life_s: float
    _used: dict[tuple[str, str], float] = field(default_factory=dict)
    _service: dict[str, float] = field(default_factory=dict)
    _at_s: float = 0.0

    def recall(self, past: Iterable[Used], now_s: float) -> None:
        """Take in what was used before this began."""
        for one in past:
            account = _account(one)
            decay = 0.5 ** (max(now_s - one.until_s, 0.0) / self.half_life_s)
            self._used[account] = self._used.get(account, 0.0) + one.gpu_s * decay
            self._service[one.job_id] = one.gpu_s
        self._at_s = now_s

    def update(self, view: ClusterView) -> None:
        """Charge what jobs have had since the last decision."""
        decay = 0.5 ** ((view.now_s - self._at_s) / self.half_life_s)
        self._used = {account: used * decay for account, used in self._used.items() if used * decay > 1.0}
        self._at_s = view.now_s
        service = {}
        for job in (*view.jobs, *view.charged):
            service[job.id] = job.attained_service_gpu_s(view.now_s)
            more = service[job.id] - self._service.get(job.id, 0.0)
            self._used[_account(job.facts)] = self._used.get(_account(job.facts), 0.0) + max(more, 0.0)
        self._service = service

    def factors(self, jobs: Sequence[JobView], weights: Mapping[str, float]) -> Array:
        """Per job, how much its account is behind its share (above one) or ahead (below)."""
        accounts = {_account(job.facts) for job in jobs}
        if len(accounts) < 2:
            return np.ones(len(jobs))
        # A queue's owners share what it is entitled to: ten of them are not worth ten queues.
        owners = Counter(queue for queue, _ in accounts)
        entitled = {account: weights.get(account[0], 1.0) / owners[account[0]] for account in accounts}
        whole, used = sum(entitled.values()), sum(self._used.get(account, 0.0) for account in accounts)
        if used <= 0:
            return np.ones(len(jobs))
        favour = {
            account: math.sqrt(entitled[account] / whole / max(self._used.get(account, 0.0) / used, 1e-3))
            for account in accounts
        }
        return np.clip([favour[_account(job.facts)] for job in jobs], 1.0 / MOST_FAVOUR, MOST_FAVOUR)


def _account(user: JobFacts | Used) -> tuple[str, str]:
    return user.queue, user.owner


def priority_factors(jobs: Sequence[JobView]) -> Array:
    """Weights that users and operators have given."""
    levels = np.clip([job.facts.priority for job in jobs], -MOST_LEVELS, MOST_LEVELS)
    return np.array([job.facts.weight for job in jobs]) * PRIORITY_FACTOR**levels


def deadline_factors(view: ClusterView, fastest_s: Array) -> Array:
    """Jobs that need much of the time until their deadline go first, less and less once they hardly can make it."""
    factors = np.ones(len(view.jobs))
    for row, job in enumerate(view.jobs):
        if job.facts.deadline_s is not None:
            until_s = job.facts.deadline_s - view.now_s
            need = fastest_s[row] / until_s if until_s > 0 else math.inf
            factors[row] = MOST_URGENT ** max(min(need, (LOST - need) / (LOST - 1.0)), 0.0)
    return factors


def finish_time_factors(
    age_s: Array, done_s: Array, left_s: Array, fair_speedup: Array, least_slots: Array, bound: float
) -> Array:
    """Jobs that would take longer than ``bound`` times what a fair share takes, even on one from now on, count more.

    ``done_s`` and ``left_s`` are on the slowest configuration. The factor grows with the square of the ratio and with
    the age of the job without end: nobody waits for ever. A job that needs several slots at once takes the place of as
    many others, so it counts more the more it needs: at twice the bound four times per slot.
    """
    ratio = (age_s + left_s / fair_speedup) / np.maximum((done_s + left_s) / fair_speedup, 1.0)
    return np.asarray(np.clip(ratio / bound, 1.0, None) ** (2.0 + np.log2(least_slots))).clip(max=MOST_OVERDUE)


def preference_factors(jobs: Sequence[JobView], configurations: Sequence[Configuration]) -> Array | None:
    """Per job and configuration, how much a preferred type is worth more; None where nobody prefers any."""
    if not any(job.facts.preferred_types for job in jobs):
        return None
    types = [c.gpu_type for c in configurations]
    return np.array([[PREFERENCE if t in job.facts.preferred_types else 1.0 for t in types] for job in jobs])


def within_budget(
    view: ClusterView, configurations: Sequence[Configuration], left_s: Array, speedup: Array
) -> NDArray[np.bool_] | None:
    """Where a job's budget lasts to its end; its most frugal configuration if it lasts on none. None: no budgets."""
    if all(job.facts.budget_gpu_s is None for job in view.jobs):
        return None
    slots = np.array([c.slots for c in configurations], dtype=float)
    allowed = np.ones(speedup.shape, dtype=bool)
    for row, job in enumerate(view.jobs):
        if job.facts.budget_gpu_s is not None:
            with np.errstate(divide="ignore"):
                need = slots * left_s[row] / speedup[row]
            left = job.facts.budget_gpu_s - job.attained_service_gpu_s(view.now_s)
            allowed[row] = need <= max(left, float(need.min()) * (1.0 + 1e-9))
    return allowed


def fair_speedup(view: ClusterView, configurations: Sequence[Configuration], speedup: Array, jobs: int) -> Array:
    """How fast each job would be on its share of the cluster: the mean over types of as many slots as all could have.

    ``jobs`` is how many jobs there are, those that the view does not show included: they have their share, too.

    Of each type, the largest configuration within the share counts, and a part of the job's smallest where that is
    larger: the part of the time for which it could have it.
    """
    share = sum(view.slots_in_service) / max(jobs, 1)
    slots = np.array([c.slots for c in configurations], dtype=float)
    type_of = np.array([view.cluster.type_index[c.gpu_type] for c in configurations])
    scaled = np.where(speedup > 0, speedup * np.minimum(share / slots, 1.0), 0.0)
    per_type = np.zeros((len(view.cluster.type_index), len(speedup)))
    for index in range(len(per_type)):
        columns = np.flatnonzero(type_of == index)
        columns = columns[np.argsort(slots[columns], kind="stable")]
        if not len(columns):
            continue
        smallest = columns[np.argmax(speedup[:, columns] > 0, axis=1)]
        within = scaled[:, columns[slots[columns] <= max(share, 1.0)]].max(axis=1, initial=0.0)
        per_type[index] = np.maximum(within, scaled[np.arange(len(speedup)), smallest])
    mean = np.average(per_type, axis=0, weights=np.maximum(slots_by_type(view, view.slots_in_service), 1e-9))
    return np.asarray(np.maximum(mean, 1e-9))


def slots_by_type(view: ClusterView, per_node: Sequence[int] | None = None) -> Array:
    """Slots of every GPU type: the usable ones, or as many as are given for each node."""
    slots = np.zeros(len(view.cluster.type_index))
    np.add.at(slots, view.cluster.node_type, np.array(per_node or view.usable_slots, dtype=float))
    return slots
