"""Geminid's own policy: least mean completion time on mixed GPU types, decided when something happens.

At arrivals, completions, failures, ends of pauses and from time to time it chooses one configuration per job, within
the slots of every GPU type, that together are worth most (``geminid_objective.py``), with the price solver
(``solve/prices.py``). What users and operators want enters as weights, forbidden configurations and limits of the same
problem (``claims.py``). docs/policy.md says where it comes from and what was tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.job import Adaptivity
from geminid.policies.autoscale import Wish, nodes_for, rentable, wishes
from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.claims import (
    FairShares,
    Queue,
    Used,
    deadline_factors,
    fair_speedup,
    finish_time_factors,
    preference_factors,
    priority_factors,
    slots_by_type,
    within_budget,
)
from geminid.policies.consolidation import Consolidation
from geminid.policies.everybody import Everybody
from geminid.policies.geminid_objective import (
    EQUAL_RANKS,
    JobArrays,
    Objective,
    Ranking,
    ranking_by_pauses,
    slowest,
    values_of_work,
)
from geminid.policies.goodputs import Goodputs
from geminid.policies.kinds import KindMemory
from geminid.policies.options import AtLeast, AtMost, Positive
from geminid.policies.pairing import Paired, Worth, pair_up, partner_rows, sharing_reasons
from geminid.policies.remaining import RemainingWork, work_done
from geminid.solve.choices import Choices, Prices
from geminid.solve.prices import Priced, solve

Array = NDArray[np.float64]

#: A pause that has just ended is followed by a decision so much later: the job has measured its new speed by then.
MEASURING_S = 1.0


@dataclass(slots=True)
class Geminid(Policy):
    """Speed-ups weighted by rank of remaining time, pauses amortised; see the module's docstring.

    Options: ``p`` and ``q`` are the powers of rank and speed-up, and ``least_rank`` what the longest jobs count as,
    where changes are dear; ``p_free`` and ``least_rank_free`` are those where changes cost nothing;
    ``growth`` how many times the slots that it was measured on a job may get; ``kinds`` whether what earlier jobs of
    its kind have measured counts as well; ``gap`` the least time between two decisions and ``refresh`` the most;
    ``fill`` whether free slots are given to jobs that wait for some even within the gap;
    ``ratio`` the finish-time ratio above which a job counts more, 0 for none; ``horizon``, ``horizon_pauses``,
    ``pause_power`` and ``restart_power`` say how a pause is amortised (``geminid_objective.py``); ``queues`` are
    NAME:WEIGHT:QUOTA:LIMIT; ``half_life`` is that of usage in fair shares, none for no fair shares; ``economy`` the
    share of the best goodput per dollar up to which an autoscaled cluster should grow, none for no wishes; ``share``
    whether two jobs may have the same slots (``pairing.py``), and ``share_adaptive`` whether those that choose their
    batch size may, too. ``weights`` says what a job's work is worth: ``rank`` by the rank of its remaining time,
    ``prices`` by what slots cost now and when it will be done; speed-ups then count linearly, and ``p``, ``q`` and
    ``pause_power`` not at all. ``plans`` says whether it chooses execution plans where speeds under them are known.
    """

    name = "geminid"
    paper = "this project, docs/policy.md"
    objective = "least mean JCT: goodput relative to each job's smallest, weighted by rank of remaining time"
    adapts_batch = True
    needs_models = True
    brings_profiles = True

    p: Annotated[float, AtLeast(0.0)] = 0.4
    least_rank: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.4
    p_free: Annotated[float, AtLeast(0.0)] = 0.8
    least_rank_free: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.2
    q: Positive = 0.5
    growth: Annotated[float, AtLeast(1.0)] = 4.0
    gap_s: Annotated[float, AtLeast(0.0)] = 10.0
    refresh_s: Positive = 60.0
    fill: bool = False
    ratio: Annotated[float, AtLeast(0.0)] = 2.0
    horizon_s: Positive = 600.0
    horizon_pauses: Positive = 6.0
    pause_power: Annotated[float, AtLeast(0.0)] = 0.5
    restart_power: Annotated[float, AtLeast(0.0)] = 1.0
    queues: tuple[str, ...] = ()
    half_life_s: Positive | None = None
    economy: Annotated[float, AtLeast(0.0)] | None = None
    share: bool = True
    share_adaptive: bool = False
    kinds: bool = True
    weights: Literal["rank", "prices"] = "rank"
    plans: bool = True
    interval_s: float | None = None
    _solution: Priced | None = None
    _counted: tuple[Sequence[JobView], Mapping[str, Array]] = ((), MappingProxyType({}))
    _wishes: list[Wish] = field(default_factory=list)
    _rentable: Cluster | None = None
    _rentable_of: Cluster | None = None
    _goodputs: Goodputs = field(init=False)
    _goodputs_if_rented: Goodputs = field(init=False)
    _remaining: RemainingWork = field(default_factory=RemainingWork)
    _shares: FairShares | None = field(init=False)
    _queues: dict[str, Queue] = field(init=False)
    _decided_s: float = float("-inf")
    _last_arrival_s: float = float("-inf")

    def __post_init__(self) -> None:
        memory = KindMemory() if self.kinds else None
        self._goodputs = Goodputs(self.growth, memory=memory, limits_as_sizes=True)
        self._goodputs_if_rented = Goodputs(self.growth, memory=memory, limits_as_sizes=True)
        self._shares = FairShares(self.half_life_s) if self.half_life_s is not None else None
        self._queues = {queue.name: queue for queue in map(Queue.parse, self.queues)}

    @property
    def regards_priority(self) -> bool:
        """It does: jobs count by their weight."""
        return True

    @property
    def chooses_plans(self) -> bool:
        """It does, unless switched off: of the plans that fit a configuration, the fastest counts."""
        return self.plans

    @property
    def regards_owners(self) -> bool:
        """Only with shares of owners or weights of queues."""
        return self._shares is not None or bool(self._queues)

    def decide(self, view: ClusterView) -> Decision:
        """Solve the problem, unless the last decision is too recent: then all stays as it is until it is not.

        Where jobs hold more slots than can be used (one was cordoned, a node drained), somebody has to move at once.
        """
        self._remaining.learn(view.ended)
        if self._shares is not None:
            self._shares.update(view)
        if view.now_s < self._decided_s + self.gap_s and min(view.free_slots, default=0) >= 0:
            filled = self._filled(view) if self.fill else {}
            kept = _unchanged(view, self._decided_s + self.gap_s)
            return replace(
                kept, assignments={**kept.assignments, **filled}, desired_nodes=nodes_for(view.cluster, self._wishes)
            )
        self._decided_s = view.now_s
        configurations, goodput = self._goodputs.of(view)
        worth = self._worth(view, configurations, goodput)
        found = self._decided(view, configurations, worth)
        self._solution = found.solution
        if self.economy is not None:
            self._wishes = self._wished(view, found.solution.prices)
        assignments: dict[str, Configuration | Allocation] = {
            job.id: configurations[column]
            for job, column in zip(view.jobs, found.solution.choice.tolist(), strict=True)
            if column >= 0
        }
        pairs = [(view.jobs[host].id, view.jobs[guest].id) for host, guest, *_ in found.pairs]
        reasons, wake_at_s = sharing_reasons(view, found), self._wake_at_s(view, assignments)
        if view.cluster.links.several_racks:
            placed = self._consolidated(view, configurations, goodput, found, pairs)
            assignments |= placed.allocations
            reasons |= placed.reasons
        return Decision(
            assignments,
            reasons=reasons,
            wake_at_s=wake_at_s,
            desired_nodes=nodes_for(view.cluster, self._wishes),
            pairs=tuple(pairs),
        )

    @property
    def needs_every_job(self) -> bool:
        """Only where it says how large the cluster should be."""
        return self.economy is not None

    def _consolidated(
        self,
        view: ClusterView,
        configurations: Sequence[Configuration],
        goodput: Array,
        found: Paired,
        pairs: Sequence[tuple[str, str]],
    ) -> Consolidation:
        """The decision placed, with jobs close together where that pays; guests stand where their hosts do."""
        guests = {guest: host for host, guest in pairs}
        chosen = dict(zip((job.id for job in view.jobs), found.solution.choice.tolist(), strict=True))
        least = slowest(goodput)
        left = self._remaining.seconds(view.jobs, least, view.now_s) * least
        placing = Consolidation(
            view,
            self._goodputs,
            {
                job_id: configurations[column]
                for job_id, column in chosen.items()
                if column >= 0 and job_id not in guests
            },
            {configuration: column for column, configuration in enumerate(configurations)},
            {job.id: float(work) for job, work in zip(view.jobs, left, strict=True)},
        )
        if not placing.run():
            placing.allocations, placing.reasons = {}, {}
        placing.allocations |= {g: placing.allocations[h] for g, h in guests.items() if h in placing.allocations}
        return placing

    @property
    def solution(self) -> Priced | None:
        """The last decision with its certificate and prices, for ``explain`` and operators."""
        return self._solution

    @property
    def wishes(self) -> Sequence[Wish]:
        """What an autoscaled cluster should have, and why."""
        return self._wishes

    def factors(self, job_id: str) -> Mapping[str, float]:
        """What a job counted with in the last decision, by claim; nothing if it was not looked at."""
        jobs, claims = self._counted
        rows = [row for row, job in enumerate(jobs) if job.id == job_id]
        return {name: float(values[row]) for row in rows for name, values in claims.items()}

    def recall(self, past: Iterable[Used], now_s: float) -> None:
        """Know what was used before: fair shares have a memory, and this policy may be younger than the cluster."""
        if self._shares is not None:
            self._shares.recall(past, now_s)

    def _wished(self, view: ClusterView, prices: Prices) -> list[Wish]:
        """What an autoscaled cluster should have, of at most twice what it has."""
        if self._rentable is None or self._rentable_of is not view.cluster:
            self._rentable, self._rentable_of = rentable(view.cluster), view.cluster
        larger = replace(view, cluster=self._rentable)
        configurations, goodput = self._goodputs_if_rented.of(larger, learn=False)
        types = list(view.cluster.type_index)
        dollars = {name: view.cluster.gpu_type(name).relative_cost for name in types}
        worth = dict(zip(types, prices.types.tolist(), strict=True))
        return wishes(configurations, goodput, dollars, self.economy or 0.0, worth)

    def _worth(self, view: ClusterView, configurations: Sequence[Configuration], goodput: Array) -> Worth:
        """What each configuration is worth to each job, with everybody's claims."""
        jobs, now_s, everybody = view.jobs, view.now_s, Everybody.of(view)
        arrivals_s = (max(times_s, default=-math.inf) for times_s in view.behind.values())
        self._last_arrival_s = max([self._last_arrival_s, *(job.facts.submitted_s for job in jobs), *arrivals_s])
        # Who has seen no arrival for an hour expects none in the next, unless it knows better.
        next_s = view.next_arrival_s
        quiet_s = now_s - self._last_arrival_s if next_s is None else next_s - now_s
        least = slowest(goodput)
        left_s = self._remaining.seconds(jobs, least, now_s, everybody.places)
        age_s = np.array([job.age_s(now_s) for job in jobs])
        speedup = goodput / least[:, None]
        claims = {
            "priority": priority_factors(jobs),
            "deadline": deadline_factors(view, left_s / np.maximum(speedup.max(axis=1), 1.0)),
        }
        if self.ratio > 0:
            done_s = work_done(jobs, least, now_s) / least
            protected = sum(bool(job.allocation) for job in view.charged)
            fair = fair_speedup(view, configurations, speedup, len(everybody.rows) + protected)
            least_slots = np.array([job.facts.least_slots for job in jobs], dtype=float)
            claims["long wait"] = finish_time_factors(age_s, done_s, left_s, fair, least_slots, self.ratio)
        weights = {name: queue.weight for name, queue in self._queues.items()}
        if weights:
            claims["queue"] = np.array([weights.get(job.facts.queue, DEFAULT_QUEUE.weight) for job in jobs])
        if self._shares is not None:
            claims["fair share"] = self._shares.factors(jobs, weights)
        weight = np.multiply.reduce(list(claims.values()))
        rescale_s = np.array([job.facts.rescale_s for job in jobs])
        dear, free = Ranking(self.p, self.least_rank), Ranking(self.p_free, self.least_rank_free)
        ranking, ranks = ranking_by_pauses(dear, free, rescale_s[everybody.rows]), everybody.ranks(left_s)
        claims["little left"] = ranking.factors(ranks)
        if self.weights == "prices":
            rents = self._rents(view, configurations, len(everybody.rows))
            claims["little left"] = values_of_work(speedup, rents, np.maximum(ranks, ranking.least))
            weight, ranking = weight * claims["little left"], EQUAL_RANKS
        self._counted = (jobs, claims)
        arrays = JobArrays(
            weight=weight,
            left_s=left_s,
            age_s=age_s,
            restarts=np.array([job.restarts for job in jobs], dtype=float),
            rescale_s=rescale_s,
            pause_left_s=np.array([max(job.paused_until_s - now_s, 0.0) for job in jobs]),
            current=_current(view, configurations),
            ranks=ranks,
        )
        objective = Objective(
            ranking=ranking,
            speed_power=self._speed_power,
            horizon_s=max(self.horizon_s, quiet_s),
            horizon_pauses=self.horizon_pauses,
            pause_power=1.0 if self.weights == "prices" else self.pause_power,
            restart_power=self.restart_power,
        )
        staying = objective.utilities(arrays, goodput)
        moving = staying
        if self._sharers(view).any():
            moving = objective.utilities(replace(arrays, current=np.zeros_like(arrays.current)), goodput)
        preferred = preference_factors(jobs, configurations)
        affordable = within_budget(view, configurations, left_s, speedup)
        for utility in (staying, moving)[: 1 if moving is staying else 2]:
            if preferred is not None:
                utility *= preferred
            if affordable is not None:
                utility[~affordable] = -np.inf
        return Worth(staying, moving, partner_rows(jobs))

    @property
    def _speed_power(self) -> float:
        return 1.0 if self.weights == "prices" else self.q

    def _rents(self, view: ClusterView, configurations: Sequence[Configuration], jobs: int) -> Array:
        """What every configuration costs at the prices of the last decision, in seconds of one job's delay a second.

        All slots together are never worth more than the delay of all jobs: claims may have made prices larger.
        """
        types, capacity = view.cluster.type_index, slots_by_type(view)
        prices = np.zeros(len(capacity)) if self._solution is None else self._solution.prices.types
        prices = prices * min(1.0, jobs / max(float(prices @ capacity), 1e-9))
        return np.array([c.slots * prices[types[c.gpu_type]] for c in configurations])

    def _sharers(self, view: ClusterView) -> NDArray[np.bool_]:
        """Which jobs may share their slots."""
        if not self.share or view.sharing is None:
            return np.zeros(len(view.jobs), dtype=bool)
        return np.array(
            [self.share_adaptive or job.facts.adaptivity is not Adaptivity.ADAPTIVE for job in view.jobs], dtype=bool
        )

    def _decided(self, view: ClusterView, configurations: Sequence[Configuration], worth: Worth) -> Paired:
        """The best decision, with pairs where they pay."""
        choices = self._choices(view, configurations, worth.alone())
        found = self._solve(choices, self._solution.prices if self._solution is not None else None)
        sharers, sharing = self._sharers(view), view.sharing
        if sharing is None or np.count_nonzero(sharers) < 2:
            return Paired(found)
        batch = self._goodputs.per_slot_batch

        def speeds(rows: NDArray[np.intp], column: int) -> Array:
            facts = [view.jobs[row].facts for row in rows]
            return sharing.speeds_together(facts, configurations[column].gpu_type, batch[rows, column].tolist())

        return pair_up(choices, found, worth, sharers, speeds, self._speed_power, self._solve)

    def _filled(self, view: ClusterView) -> dict[str, Configuration]:
        """What jobs without slots are given of those that are free, while all others keep what they have."""
        free = slots_by_type(view, [max(slots, 0) for slots in view.free_slots])
        waiting = np.array([not job.allocation for job in view.jobs], dtype=bool)
        least = min((job.facts.least_slots for job in view.jobs if not job.allocation), default=math.inf)
        if free.max(initial=0.0) < least:
            return {}
        configurations, goodput = self._goodputs.of(view)
        choices = self._choices(view, configurations, self._worth(view, configurations, goodput).alone()[waiting])
        choices = replace(choices, capacity=free)
        if choices.group is not None and choices.group_capacity is not None:
            group, used = choices.group, np.zeros(len(choices.group_capacity))
            for row in np.flatnonzero(~waiting & (group >= 0)):
                used[group[row]] += view.jobs[row].slots
            left = np.maximum(choices.group_capacity - used, 0.0)
            choices = replace(choices, group=group[waiting], group_capacity=left)
        found = solve(choices, start=None, finish_above=None).choice.tolist()
        rows = np.flatnonzero(waiting).tolist()
        return {
            view.jobs[row].id: configurations[column] for row, column in zip(rows, found, strict=True) if column >= 0
        }

    def _choices(self, view: ClusterView, configurations: Sequence[Configuration], utility: Array) -> Choices:
        """The problem; queues with a quota are groups that may have what is their limit at most."""
        types, capacity = view.cluster.type_index, slots_by_type(view)
        slots = np.array([c.slots for c in configurations], dtype=float)
        resource = np.array([types[c.gpu_type] for c in configurations], dtype=np.intp)
        queues = self._limited_queues
        if not queues:
            return Choices(utility, slots, resource, capacity)
        index = {queue.name: i for i, queue in enumerate(queues)}
        group = np.array([index.get(job.facts.queue, len(queues)) for job in view.jobs], dtype=np.intp)
        whole = float(capacity.sum())
        limit = np.array([*(whole if q.limit is None else min(q.limit, whole) for q in queues), whole])
        return Choices(utility, slots, resource, capacity, group, limit)

    @property
    def _limited_queues(self) -> list[Queue]:
        return [q for q in self._queues.values() if q.quota is not None or q.limit is not None]

    def _solve(self, choices: Choices, start: Prices | None) -> Priced:
        """Find the decision; where queues have quotas, first within them, and then with what is left over lent out.

        All jobs of queues without one are the last group, and have what the quotas of queues with jobs leave. What is
        lent is lent once: shared out by weight among those that would use more, and what they leave of that goes to
        whom it is worth most.
        """
        if choices.group is None or choices.group_capacity is None:
            return solve(choices, start=start, finish_above=None)
        queues, whole, limit = self._limited_queues, float(choices.capacity.sum()), choices.group_capacity
        wanted = np.bincount(choices.group, minlength=len(limit)) > 0
        promised = np.array([q.quota or 0.0 for q in queues]) @ wanted[:-1]
        quota = np.array([*(whole if q.quota is None else q.quota for q in queues), max(whole - promised, 0.0)])
        weight = np.array([*(q.weight for q in queues), DEFAULT_QUEUE.weight])
        granted = np.minimum(quota, limit)
        found = solve(replace(choices, group_capacity=granted), start=start, finish_above=None)
        for _ in range(MOST_RAISES):  # a quota may be there, but not of the types that a queue's jobs can use
            used, waits = _used_by_group(choices, found), np.zeros(len(limit), dtype=bool)
            waits[choices.group[(found.choice < 0) & (choices.utility.max(axis=1) > 0.0)]] = True
            short = waits & (used + 1.0 <= granted) & (np.arange(len(limit)) < len(queues))
            if not short.any():
                break
            raised = np.where(short[choices.group], SHORT_OF_QUOTA, 1.0)[:, None]
            choices = replace(
                choices, utility=np.where(choices.utility > 0.0, choices.utility * raised, choices.utility)
            )
            found = solve(replace(choices, group_capacity=granted), start=None, finish_above=None)
        for again in range(MOST_LENDINGS):
            used = _used_by_group(choices, found)
            left_over = whole - float(used.sum())
            hungry = wanted & (granted < limit) & ((found.prices.groups > 0.0) | (used > granted - 1.0))
            if left_over < 1.0 or not hungry.any():
                break
            if again:
                hungry &= np.arange(len(limit)) == np.argmax(np.where(hungry, found.prices.groups, -1.0))
            share = left_over * np.where(hungry, weight, 0.0) / weight[hungry].sum()
            granted = np.where(hungry, np.minimum(used + share, limit), granted)
            found = solve(replace(choices, group_capacity=granted), start=found.prices, finish_above=None)
        return found

    def _wake_at_s(self, view: ClusterView, assignments: Mapping[str, Configuration | Allocation]) -> float:
        """When to look again if nothing happens: when a job has measured its new speed, at the latest after a while."""
        ends = []
        for job in view.jobs:
            wanted = assignments.get(job.id)
            if isinstance(wanted, Configuration):
                stays = job.has(wanted)
                end_s = job.paused_until_s if stays else view.now_s + job.facts.rescale_s
                if end_s + MEASURING_S > view.now_s:
                    ends.append(end_s + MEASURING_S)
        return max(view.now_s + self.gap_s, min([view.now_s + self.refresh_s, *ends]))


DEFAULT_QUEUE = Queue("default")

#: Number of times that unused quota is lent: a queue that cannot use all of its share leaves it to the others.
MOST_LENDINGS = 4

#: Factor by which the weight of a queue that falls short of its quota is raised.
SHORT_OF_QUOTA = 100.0

#: Number of times that it is raised at most.
MOST_RAISES = 3


def _used_by_group(choices: Choices, found: Priced) -> Array:
    """The slots that each group of jobs has."""
    if choices.group is None:
        return np.zeros(0)
    served = np.flatnonzero(found.choice >= 0)
    used: Array = np.bincount(choices.group[served], choices.slots[found.choice[served]], choices.groups).astype(float)
    return used


def _unchanged(view: ClusterView, wake_at_s: float) -> Decision:
    kept = {job.id: job.allocation for job in view.jobs if job.allocation}
    pairs = [(job.id, job.partner) for job in view.jobs if job.id in kept and job.partner and job.id < job.partner]
    return Decision(kept, wake_at_s=wake_at_s, pairs=tuple(pairs))


def _current(view: ClusterView, configurations: Sequence[Configuration]) -> NDArray[np.bool_]:
    """Where a job has a configuration that it can keep."""
    columns = {(c.gpu_type, c.nodes, c.slots): column for column, c in enumerate(configurations)}
    current = np.zeros((len(view.jobs), len(configurations)), dtype=bool)
    for row, job in enumerate(view.jobs):
        if job.allocation and job.stands(view.usable_slots):
            column = columns.get((job.gpu_type or "", len(job.allocation), job.slots))
            if column is not None:
                current[row, column] = True
    return current
