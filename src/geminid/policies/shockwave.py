"""Shockwave: plan a window of rounds ahead for welfare, makespan and finish-time fairness at the same time.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI '23.

When jobs have come or gone, or the last plan is used up, the next ``window`` rounds are planned: job j runs in y_j of
them. The plan maximises Σ log(progress_j at its end)/(jobs × rounds) − ``k`` · (longest time that any job then has
left), within the slots, so that every job can still finish within ``rhomax`` times as long as on a fair share of the
cluster (min(1, slots/jobs) of the time). Where that is impossible the requirement is dropped, and jobs that would be
late by a factor ρ count ρ^``boost`` as much. The logarithm is piecewise linear as in the published configuration. Slots
that the plan leaves idle go to the jobs with the most time left.

How it is solved. The published code hands a program with one binary variable per job and round to a commercial solver,
with 15 s to spare. Here the rounds of a job are interchangeable: only y_j matters, so for a given bound on the longest
time left, the plan is a knapsack of marginal gains per slot, each falling with y_j, which a sort answers up to the last
item; the bound is found by search. Rounds are then laid out by urgency, and who runs goes on running where possible.

Deviations and what is unverified. Jobs of the paper change their batch size as they train, in regimes predicted from a
Dirichlet posterior; the published traces say which rule each job follows but not its epochs, so jobs here keep the
batch size that they begin with, and the time left is known (in simulations always the true one, as for the policies
whose papers assume it; live, from the job's own rate and what its user says it has to do). GPU types are not
distinguished. Read in the published code: the objective, the window, the relaxation and its constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from geminid.configuration import Configuration
from geminid.policies.base import ClusterView, Decision, JobView, Policy
from geminid.policies.options import AtLeast, Positive

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Where the logarithm of progress bends, and what stands for its value at 0.
BENDS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
LOG_AT_BENDS = np.log(np.maximum(BENDS, 1e-6))

#: The power of ρ that late jobs count which need only one more round.
ALMOST_DONE_BOOST = 100.0

#: No job counts more than this many times another: powers of ρ overflow.
MOST_BOOST = 1e12

#: What the mean of earlier estimates counts in the time that a job would take on a fair share.
MEMORY = 0.9

#: Bounds on the longest time left that are tried.
BOUNDS_TRIED = 24

#: What a job is taken to last about which nothing is known.
UNKNOWN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """The jobs of a plan: slots, seconds of work done and left, age and due times, and what they count."""

    slots: Ints
    done_s: Array
    left_s: Array
    weight: Array
    least: Ints


@dataclass(slots=True)
class FairFinish:
    """How long a job would take on a fair share, as that was estimated over time: the share changes with the jobs."""

    latest_s: float = 0.0
    since_s: float = 0.0
    weighted: float = 0.0
    weight_s: float = 0.0

    def estimate(self, now_s: float, duration_s: float) -> None:
        """From now on it is taken to last this long."""
        if self.latest_s:
            self.weighted += self.latest_s * (now_s - self.since_s)
            self.weight_s += now_s - self.since_s
        self.latest_s, self.since_s = duration_s, now_s

    def expected_s(self, now_s: float) -> float:
        """The mean over time of all estimates, and a little of the latest."""
        elapsed_s = now_s - self.since_s
        weight_s = self.weight_s + elapsed_s
        mean_s = (self.weighted + self.latest_s * elapsed_s) / weight_s if weight_s > 0 else self.latest_s
        return max(MEMORY * mean_s + (1.0 - MEMORY) * self.latest_s, 1e-9)


@dataclass(slots=True)
class Shockwave(Policy):
    """Plans a window of rounds ahead: which jobs run in how many of them.

    A plan weighs how far each job's progress gets (in logarithms, so that those who are behind count more) against the
    longest time that any job has left, and lets every job finish in time by a fair share of the cluster where that is
    possible. It changes nothing but who runs when, and plans again when jobs come or go. It knows how long jobs still
    take on the slots they ask for: the true time in simulations, with or without ``--oracle``; live, an estimate from
    a job's own rate and what its user says it has to do. Batch-size changes, which the paper predicts, are not
    modelled.
    """

    name = "shockwave"
    paper = "Zheng et al., NSDI '23"
    objective = "sum of logarithms of progress less the longest time left over a window of rounds; finish-time fair"
    needs_oracle = True
    meanings: ClassVar[Mapping[str, str]] = {
        "interval": "seconds of a round",
        "window": "rounds that a plan covers",
        "k": "what a second of the longest time left counts",
        "rhomax": "how many times as long as on a fair share a job may take",
        "boost": "power of ρ that late jobs count",
    }

    interval_s: Positive | None = 120.0
    window: Annotated[int, AtLeast(1)] = 20
    k: Annotated[float, AtLeast(0.0)] = 1e-3
    rhomax: Positive = 1.0
    boost: Annotated[float, AtLeast(0.0)] = 12.0
    _rounds_left: dict[str, int] = field(default_factory=dict)
    _urgency: dict[str, float] = field(default_factory=dict)
    _planned_for: frozenset[str] = frozenset()
    _usable: tuple[int, ...] = ()
    _ahead: int = 0
    _fair: dict[str, FairFinish] = field(default_factory=dict)

    def decide(self, view: ClusterView) -> Decision:
        """Follow the plan, after making a new one if somebody has come or gone or it is used up."""
        if not any(view.usable_slots):  # the next plan is made when there are slots again
            self._ahead = 0
            return Decision({})
        active = frozenset(job.id for job in view.jobs)
        left_s = np.array([remaining_s(view, job) for job in view.jobs])
        if active != self._planned_for or self._ahead <= 0 or view.usable_slots != self._usable:
            self._plan(view, left_s)
            self._planned_for, self._ahead, self._usable = active, self.window, view.usable_slots
        order = sorted(
            range(len(view.jobs)),
            key=lambda row: (
                self._rounds_left[view.jobs[row].id] < self._ahead,
                self._rounds_left[view.jobs[row].id] <= 0,
                -self._urgency[view.jobs[row].id],
                not view.jobs[row].allocation,
                -left_s[row],
            ),
        )
        planned = [view.jobs[row] for row in order if self._rounds_left[view.jobs[row].id] > 0]
        fillers = [
            view.jobs[row]
            for row in np.argsort(-left_s, kind="stable").tolist()
            if self._rounds_left[view.jobs[row].id] <= 0
        ]
        given = _granted(view, [*planned, *fillers])
        for job in planned:
            if job.id in given:
                self._rounds_left[job.id] -= 1
        self._ahead -= 1
        return Decision(given)

    def _plan(self, view: ClusterView, left_s: Array) -> None:
        """Decide in how many rounds of the window each job runs."""
        jobs, round_s = view.jobs, float(self.interval_s or 120.0)
        slots = np.array([job.facts.requested_slots for job in jobs], dtype=np.int64)
        total = sum(view.usable_slots)
        share = min(1.0, total / len(jobs))
        ages_s = np.array([job.age_s(view.now_s) for job in jobs])
        done_s = np.array([job.executed_s(view.now_s) for job in jobs])
        self._fair = {job.id: self._fair.get(job.id, FairFinish()) for job in jobs}
        for job, duration_s in zip(jobs, (done_s + left_s).tolist(), strict=True):
            self._fair[job.id].estimate(view.now_s, duration_s / share)
        due_s = self.rhomax * np.array([self._fair[job.id].expected_s(view.now_s) for job in jobs])
        # finished in time: age + window + (left − y·round)/share ≤ due
        slack_s = due_s - ages_s - self.window * round_s
        least = np.ceil(np.maximum(left_s - share * slack_s, 0.0) / round_s - 1e-9).astype(np.int64)
        needed = np.ceil(left_s / round_s - 1e-9).astype(np.int64)
        rho = (ages_s + left_s / share) / np.maximum(due_s / self.rhomax, 1e-9)
        weight = np.ones(len(jobs))
        possible = (least <= np.minimum(self.window, needed)).all() and least @ slots <= self.window * total
        if not possible:
            late = rho > self.rhomax
            power = np.where(left_s < round_s, ALMOST_DONE_BOOST, self.boost)
            with np.errstate(over="ignore"):
                weight = np.where(late, np.minimum(rho**power, MOST_BOOST), 1.0)
            least = np.zeros(len(jobs), dtype=np.int64)
        outlook = Outlook(slots, done_s, left_s, weight, least)
        rounds = plan_window(outlook, total, self.window, round_s, self.k)
        self._rounds_left = {job.id: int(y) for job, y in zip(jobs, rounds.tolist(), strict=True)}
        self._urgency = {job.id: float(w) for job, w in zip(jobs, weight.tolist(), strict=True)}


def plan_window(jobs: Outlook, total_slots: int, window: int, round_s: float, k: float) -> Ints:
    """How many rounds of the window each job runs: the best over a range of bounds on the longest time left."""
    most = np.minimum(np.ceil(jobs.left_s / round_s - 1e-9).astype(np.int64), window)
    steps = np.arange(window + 1)
    duration_s = np.maximum(jobs.done_s + jobs.left_s, 1e-9)
    progress = (jobs.done_s[:, None] + np.minimum(steps * round_s, jobs.left_s[:, None])) / duration_s[:, None]
    value = jobs.weight[:, None] * np.interp(progress, BENDS, LOG_AT_BENDS) / (len(jobs.slots) * window)
    per_slot = np.diff(value, axis=1) / jobs.slots[:, None]
    best: tuple[float, Ints] | None = None
    shortest = np.maximum(jobs.left_s - most * round_s, 0.0).max(initial=0.0)
    for bound_s in np.linspace(shortest, jobs.left_s.max(initial=0.0), BOUNDS_TRIED):
        needed = np.ceil(np.maximum(jobs.left_s - bound_s, 0.0) / round_s - 1e-9).astype(np.int64)
        least = np.minimum(np.maximum(needed, jobs.least), most)
        budget = window * total_slots - int(least @ jobs.slots)
        if budget < 0:
            continue
        rounds = _filled(per_slot, jobs.slots, least, most, budget)
        longest_s = float(np.maximum(jobs.left_s - rounds * round_s, 0.0).max(initial=0.0))
        worth = float(value[np.arange(len(rounds)), rounds].sum()) - k * longest_s
        if best is None or worth > best[0]:
            best = worth, rounds
    if best is None:
        return _filled(per_slot, jobs.slots, np.zeros_like(most), most, window * total_slots)
    return best[1]


def _filled(per_slot: Array, slots: Ints, least: Ints, most: Ints, budget: int) -> Ints:
    """Raise rounds from the least, by gain per slot, while slots last; gains of a job fall from round to round."""
    steps = np.arange(per_slot.shape[1])
    row, step = np.nonzero((steps >= least[:, None]) & (steps < most[:, None]))
    order = np.lexsort((step, -per_slot[row, step]))
    row = row[order]
    used = np.cumsum(slots[row])
    rounds = least + np.bincount(row[used <= budget], minlength=len(least))
    left = budget - int((used[used <= budget][-1:]).sum())
    for each in dict.fromkeys(row[used > budget].tolist()):  # smaller jobs may still fit
        more = min(int(most[each] - rounds[each]), left // int(slots[each]))
        if more > 0:
            rounds[each] += more
            left -= more * int(slots[each])
    return np.asarray(rounds)


def remaining_s(view: ClusterView, job: JobView) -> float:
    """Seconds that a job still takes: by the oracle, or by its own rate and what it says it has to do."""
    if view.oracle is not None:
        return max(view.oracle.remaining_s(job.id), 0.0)
    executed_s = job.executed_s(view.now_s)
    if job.facts.work is None or job.progress <= 0 or executed_s <= 0:
        return UNKNOWN_S
    return max(job.facts.work - job.progress, 0.0) * executed_s / job.progress


def _granted(view: ClusterView, jobs: Sequence[JobView]) -> dict[str, Configuration]:
    """Configurations for jobs in order, on as few nodes as possible, as far as slots reach; types are kept."""
    left = view.usable_slots_per_type()
    given: dict[str, Configuration] = {}
    for job in jobs:
        need, allowed = job.facts.requested_slots, job.facts.gpu_types
        types = [t for t, slots in left.items() if slots >= need and (allowed is None or t in allowed)]
        gpu_type = job.gpu_type if job.gpu_type in types else max(types, key=left.__getitem__, default=None)
        if gpu_type is not None:
            left[gpu_type] -= need
            nodes = -(-need // view.cluster.largest_node_slots[gpu_type])
            given[job.id] = Configuration(gpu_type=gpu_type, nodes=nodes, slots=need)
    return given
