"""The objective of the geminid policy: what every configuration is worth to every job, as one matrix.

For job j and configuration c, with s the goodput on c over the goodput on the job's slowest configuration:

    weight_j · max(rank_j, r)^p · s_jc^q · (1 − pause/horizon)^½ · (share not paused)        q = 0.5

**Rank.** For jobs of known size whose speed is a power of their slots, the allocation of least mean completion time
(heSRPT: Berg, Vesilo, Harchol-Balter, 2020) depends on sizes only by their order: work on a job is worth more the more
jobs would be done after it. Ranks go from 1/n for the job with the longest time left to 1 for the shortest. Ranks below
r count as r: smaller weights gain nothing for the mean, and cost p99 and makespan.

**Speed-up.** q is below one because real jobs stop scaling where models say they go on, and slots are worth more to
many jobs than to one.

**p and r** depend on the median pause of the active jobs. To follow the order closely means to change slots whenever it
changes, so they go from one pair of values, where changes are free, to another, where they cost half a minute.

**The pause** is weighed against the time for which the new slots will be used: the pause plus the time until the job is
done (at least 60 s), at most the largest of 600 s, six pauses and the time since the last arrival. A policy that has
seen no arrival for an hour expects none in the next.

**Share not paused**, 1 − restarts·pause/(age + longest horizon), applies to changes: it spares jobs that were
changed often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArrays:
    """The jobs as vectors; ``current`` is (jobs, configurations), where a job has a configuration and may keep it.

    ``left_s`` is the expected time left on the job's slowest configuration; ``pause_left_s`` what is left of a pause
    under way. ``ranks`` are the jobs' places by the time left, if there are more jobs than these; None: among these.
    """

    weight: Array
    left_s: Array
    age_s: Array
    restarts: Array
    rescale_s: Array
    pause_left_s: Array
    current: Mask
    ranks: Array | None = None


class Ranking(NamedTuple):
    """How much the rank of a job counts: max(rank, least)^power."""

    power: float
    least: float

    def towards(self, other: Ranking, part: float) -> Ranking:
        """This one for a part of nought, the other for one, a mixture in between."""
        return Ranking(*(mine + part * (its - mine) for mine, its in zip(self, other, strict=True)))

    def factors(self, ranks: Array) -> Array:
        """What each job's rank counts; the longest count alike, but for who goes first among equals."""
        return np.asarray(np.maximum(ranks, self.least) ** self.power * (1.0 + FIRST_AMONG_EQUALS * ranks))


#: All jobs count alike.
EQUAL_RANKS = Ranking(0.0, 0.0)


def values_of_work(speedup: Array, rents: Array, price_at_end: Array) -> Array:
    """What one second of work on its slowest configuration is worth to each job, in seconds of one job's delay.

    In an optimal schedule the marginal value of a job's work is constant over its life, and known at its end: there,
    the job is done at the rate at which work is worth its slots and the delay that it ends, min over configurations of
    (1 + rent) / speed-up. ``rents`` are those of the configurations now; ``price_at_end`` is the part of them that
    slots will cost when a job is done. Where speeds are powers of slots (heSRPT), prices fall with the number of
    jobs that are left, and that part is the job's rank.
    """
    with np.errstate(divide="ignore"):
        costs = np.where(speedup > 0, (1.0 + price_at_end[:, None] * rents) / speedup, np.inf)
    least = costs.min(axis=1, initial=np.inf)
    return np.asarray(np.where(np.isfinite(least), least, 1.0))


#: From here on a change is as dear as those of the published systems, which stop and start processes.
DEAR_PAUSE_S = 30.0


def ranking_by_pauses(dear: Ranking, free: Ranking, rescale_s: Array) -> Ranking:
    """How closely to follow the order of what jobs have left, given what changing most of them costs."""
    typical_s = float(np.median(rescale_s)) if len(rescale_s) else 0.0
    return free.towards(dear, min(typical_s / DEAR_PAUSE_S, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The constants of the objective; the docstring of the module explains them."""

    ranking: Ranking
    speed_power: float = 0.5
    shortest_horizon_s: float = 60.0
    horizon_s: float = 600.0
    horizon_pauses: float = 6.0
    pause_power: float = 0.5
    restart_power: float = 1.0

    def utilities(self, jobs: JobArrays, goodput: Array) -> Array:
        """What each configuration is worth to each job, −inf where its goodput is zero."""
        possible = goodput > 0
        speedup = np.where(possible, goodput, 0.0) / slowest(goodput)[:, None]
        weight = jobs.weight * self.ranking.factors(rank(jobs.left_s) if jobs.ranks is None else jobs.ranks)
        worth = weight[:, None] * speedup**self.speed_power * self._after_pauses(jobs, speedup)
        return np.where(possible, worth, -np.inf)

    def _after_pauses(self, jobs: JobArrays, speedup: Array) -> Array:
        """The share of a configuration's worth that its pause leaves."""
        with np.errstate(divide="ignore"):
            finish_s = jobs.left_s[:, None] / speedup
        longest_s = np.maximum(self.horizon_s, self.horizon_pauses * jobs.rescale_s)
        pause_s = np.where(jobs.current, jobs.pause_left_s[:, None], jobs.rescale_s[:, None])
        horizon_s = np.minimum(pause_s + np.maximum(finish_s, self.shortest_horizon_s), longest_s[:, None])
        share = np.maximum(1.0 - pause_s / horizon_s, LEAST_SHARE) ** self.pause_power
        glad = restart_share(jobs, longest_s) ** self.restart_power
        return np.asarray(np.where(jobs.current, share, share * glad[:, None]))


#: By how much a higher rank counts more where it does not count otherwise.
FIRST_AMONG_EQUALS = 1e-6

#: What is left of a configuration's worth where its pause takes as long as the horizon.
LEAST_SHARE = 0.02


def slowest(goodput: Array) -> Array:
    """Each job's smallest positive goodput; one where it has none."""
    least = np.where(goodput > 0, goodput, np.inf).min(axis=1, initial=np.inf)
    return np.asarray(np.where(np.isfinite(least), least, 1.0))


def rank(left_s: Array) -> Array:
    """Ranks in (0, 1]: the job with the longest time left has the lowest, equals in order of arrival."""
    order = np.argsort(-left_s, kind="stable")
    ranks = np.empty(len(left_s))
    ranks[order] = np.arange(1, len(left_s) + 1) / max(len(left_s), 1)
    return ranks


def restart_share(jobs: JobArrays, ahead_s: Array) -> Array:
    """The share of its life so far, and of ``ahead_s`` more, that a job has not paused for changes.

    Without the time ahead, a young job that had to start somewhere would be held where it happened to start.
    """
    paused_s = jobs.restarts * jobs.rescale_s
    return np.asarray(np.maximum(1.0 - paused_s / (jobs.age_s + ahead_s), 0.0))
