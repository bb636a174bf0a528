"""How much work a job has left, when the size that it declared may be wrong, or it declared none.

A job that declared its size ŵ is taken to have a size W that is log-normal around it. Knowing that it has done p and is
not finished, E[W − p | W > p] is what is left: close to ŵ − p at first, and never zero where a job has outlived its
estimate. How wrong estimates are is learnt from the jobs that have ended. A job that declared none is taken to have the
typical length of those still before it (their geometric mean), and as much again as it has done, to the last power of
two of that length: sizes are so heavy-tailed that what has run for long will run for long. (In steps, because jobs of
which nothing is known would otherwise fall behind each other with every second that they run, and take turns for ever.)

A job that reports no progress, such as a plain command, has done what it has had slots for. Its typical length is that
of other such jobs, learnt from the first ones already: they are mostly far shorter than training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminid.policies.base import JobView

Array = NDArray[np.float64]

#: Before any job has ended, estimates are taken to be wrong by this much (standard deviation of the logarithm) …
PRIOR_ERROR = 0.1
#: Number of jobs that this prior counts as.
PRIOR_JOBS = 10
#: Number of jobs that the typical length of all counts as, for jobs that report no progress.
PRIOR_SILENT_JOBS = 1
#: A job that has outlived its estimate by some work is taken to have at least this share of it left.
BEYOND_SHARE = 0.25
#: Of jobs that are as long for all that is known, those that came first have less left by this share.
FIRST_COME = 1e-9
#: Before any job has ended, the time that one of unknown size is taken to need on its slowest configuration, in
#: seconds: the middle of published traces.
TYPICAL_S = 1800.0


@dataclass(slots=True)
class TypicalLength:
    """The geometric mean of the lengths of jobs that have ended, and of a prior that counts as some jobs."""

    prior_jobs: float
    _log_sum: float = 0.0
    _jobs: float = 0.0

    def seconds(self, prior_s: float) -> float:
        """The typical length."""
        log_sum = self._log_sum + self.prior_jobs * math.log(prior_s)
        return math.exp(log_sum / (self._jobs + self.prior_jobs))

    def learn(self, took_s: float) -> None:
        """Take in how long a job was."""
        self._log_sum += math.log(took_s)
        self._jobs += 1


@dataclass(slots=True)
class RemainingWork:
    """What is left to do, and what has been learnt about estimates."""

    _squares: float = PRIOR_JOBS * PRIOR_ERROR**2
    _jobs: float = PRIOR_JOBS
    _typical: TypicalLength = field(default_factory=lambda: TypicalLength(PRIOR_JOBS))
    _typical_silent: TypicalLength = field(default_factory=lambda: TypicalLength(PRIOR_SILENT_JOBS))
    _slowest: dict[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """By how much estimates have been wrong: the standard deviation of the logarithm."""
        return math.sqrt(self._squares / self._jobs)

    def learn(self, ended: Sequence[JobView]) -> None:
        """Compare the declared size of jobs that have ended with what they did, and remember how long they were."""
        for job in ended:
            slowest = self._slowest.pop(job.id, 0.0)
            if job.progress > 0 and slowest > 0:
                self._typical.learn(job.progress / slowest)
            elif _is_silent(job) and job.executed_before_s > 0:
                self._typical_silent.learn(job.executed_before_s)
            if job.facts.work and job.progress > 0:
                self._squares += math.log(job.progress / job.facts.work) ** 2
                self._jobs += 1

    def seconds(
        self, jobs: Sequence[JobView], slowest: Array, now_s: float, arrival: NDArray[Any] | None = None
    ) -> Array:
        """Expected seconds left on each job's slowest configuration, whose goodputs are given.

        ``arrival`` are the jobs' places in the order of arrival; None: they are all that there are.
        """
        declared = np.array([job.facts.work or 0.0 for job in jobs])
        done = work_done(jobs, slowest, now_s)
        known = declared > 0
        self._slowest = dict(zip((job.id for job in jobs), slowest.tolist(), strict=True))
        silent = np.array([_is_silent(job) for job in jobs], dtype=bool)
        typical_s = self._typical.seconds(TYPICAL_S)
        typical = np.where(silent, self._typical_silent.seconds(typical_s), typical_s) * slowest
        later = first_come(np.arange(len(jobs)) if arrival is None else arrival)
        left = np.where(known, 0.0, (typical + _power_of_two(done / typical) * typical) * later)
        left[known] = expected_left(declared[known], done[known], self.error)
        return np.asarray(left / slowest)


def _is_silent(job: JobView) -> bool:
    """Whether a job has reported neither progress nor speeds."""
    return job.progress <= 0 and job.model is None


def work_done(jobs: Sequence[JobView], slowest: Array, now_s: float) -> Array:
    """What jobs have done of their work: what they report, or what they have had slots for if nothing is known."""
    executed_s = [job.executed_s(now_s) if _is_silent(job) and not job.facts.work else 0.0 for job in jobs]
    return np.asarray(np.array([job.progress for job in jobs]) + np.array(executed_s) * slowest)


def first_come(arrival: NDArray[Any]) -> Array:
    """What jobs of unknown size have more left for having come later, as a factor."""
    return np.asarray(1.0 + FIRST_COME * arrival)


def _power_of_two(lengths: Array) -> Array:
    """The largest power of two that is not above each; zero below one."""
    return np.asarray(np.where(lengths >= 1.0, 2.0 ** np.floor(np.log2(np.maximum(lengths, 1.0))), 0.0))


def expected_left(declared: Array, done: Array, error: float) -> Array:
    """E[W − done | W > done] for W log-normal around ``declared``, of median ``declared``."""
    from scipy.special import log_ndtr  # slow to import, and most processes do without

    with np.errstate(divide="ignore"):
        beyond = (np.log(declared) - np.log(done)) / error
    whole = np.exp(np.log(declared) + 0.5 * error**2 + log_ndtr(beyond + error) - log_ndtr(beyond))
    # Logarithms have thin tails: a job far beyond its estimate is given a share of what it is beyond, at least.
    return np.asarray(np.maximum(whole - done, BEYOND_SHARE * np.maximum(done - declared, 0.0)) + 1e-3 * declared)
