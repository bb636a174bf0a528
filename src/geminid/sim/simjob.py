"""A simulated job: what it really does with the slots it is given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.profile import Observation
from geminid.network import WITHIN_RACK, Crossing
from geminid.policies.base import Allocation, JobFacts
from geminid.sim.application import LossCurve
from geminid.sim.rates import Array, ByIdentity, epoch_gains, epoch_gradients, epoch_rates
from geminid.sim.tuner import Batch, Tuner, for_total, untuned
from geminid.sim.workload import TraceJob


@lru_cache(maxsize=4096)
def halved(limits: BatchLimits) -> BatchLimits:
    """The limits of a job that may use half of the memory."""
    return replace(limits, largest_per_slot=max(limits.largest_per_slot // 2, limits.smallest_per_slot))


@dataclass(slots=True)
class Stint:
    """A stretch of time during which a job keeps one allocation, one batch plan and one partner (or none).

    ``works_from_s`` is when its pause ends. ``slowdown`` is how many times longer a step takes because of interference
    on shared nodes, ``contention`` because other jobs use the same uplinks. ``speed`` is the fraction of its speed that
    a job keeps beside its partner, ``cap`` the fraction of the time for which it may compute, ``memory_cap`` the
    fraction of the memory that it may use beside its partner (None: all that it needs). Jobs without an application
    make ``steps_per_s``, under an execution ``plan`` where they have some. ``crossing`` is the network between nodes.
    """

    start_s: float
    works_from_s: float
    allocation: Allocation
    gpu_type: str
    placement: tuple[int, ...]
    batch: Batch | None
    slowdown: float = 1.0
    epoch: int = 0
    progress_before: float = 0.0
    end_s: float | None = None
    reported: bool = False
    steps_per_s: float = 1.0
    partner: str | None = None
    speed: float = 1.0
    cap: float = 1.0
    memory_cap: float | None = None
    crossing: Crossing = WITHIN_RACK
    contention: float = 1.0
    demand_bytes_per_s: float | None = None
    plan: str | None = None


@dataclass(slots=True)
class SimJob:
    """Progress of one job. Between changes it is computed, not stepped: ``advance`` accepts any later time.

    ``progress`` and ``total`` are in steps at the initial batch size; for jobs without an application, in steps or
    seconds. ``version`` changes with everything that affects the speed: a scheduled end of an earlier version is void.
    ``done_before`` is the work done before the simulation began (None: the job arrives during the simulation).
    ``start_up_s`` is the pause of the first start of a job without an application (None: the same as of any change of
    slots). ``durations_s`` caches what ``sim.oracle.durations_s`` computes.
    """

    trace: TraceJob
    facts: JobFacts
    application: ByIdentity | None
    total: float
    progress: float = 0.0
    lost: float = 0.0
    at_s: float = 0.0
    stints: list[Stint] = field(default_factory=list)
    completed_s: float | None = None
    version: int = 0
    checkpoint_s: float = float("inf")
    done_before: float | None = None
    start_up_s: float | None = None
    _saved: float = 0.0
    _next_checkpoint_s: float = float("inf")
    _tuner: Tuner | None = None
    durations_s: dict[str, float] | None = None
    _work: float | None = None

    @property
    def stint(self) -> Stint | None:
        """The current stint, None while the job waits."""
        return self.stints[-1] if self.stints and self.stints[-1].end_s is None else None

    @property
    def work(self) -> float:
        """The job's total work in the unit of its goodput: useful samples, relative to its initial batch size.

        Jobs with a fixed batch size count samples of that size; jobs without an application count steps or seconds.
        """
        if self._work is None:
            self._work = self._compute_work()
        return self._work

    def _compute_work(self) -> float:
        if self.application is None:
            return self.total
        app, initial = self.application.value, next(iter(self.facts.limits.values())).initial
        if initial == app.initial_batch:
            return self.total * initial
        steps = np.diff(app.progress_steps, prepend=0.0)
        return initial * float(np.sum(steps / epoch_gains(self.application, initial)))

    # --- Progress ---

    def _rates(self, stint: Stint) -> Array:
        speed = stint.speed * stint.cap / (stint.slowdown * stint.contention)
        if self.application is None:
            return np.array([stint.steps_per_s * speed])
        assert stint.batch is not None
        path = stint.crossing.path
        return epoch_rates(self.application, stint.gpu_type, stint.placement, stint.batch, path) * speed

    def _targets(self) -> Array:
        return np.array([self.total]) if self.application is None else self.application.value.progress_steps

    def epoch(self) -> int:
        """The epoch that the current progress lies in."""
        targets = self._targets()
        return min(int(targets.searchsorted(self.progress * (1.0 + 1e-9), "right")), len(targets) - 1)

    def advance(self, now_s: float) -> None:
        """Bring the progress up to ``now_s``, saving it at every checkpoint on the way."""
        while self._next_checkpoint_s < now_s and self.stint is not None:
            self._advance(self._next_checkpoint_s)
            self._saved = self.progress
            self._next_checkpoint_s += self.checkpoint_s
        self._advance(now_s)

    def finish_epoch(self, epoch: int) -> None:
        """Complete an epoch whose end was scheduled for now, in case rounding left it a fraction short."""
        self.progress = max(self.progress, float(self._targets()[epoch]))

    def _advance(self, now_s: float) -> None:
        stint = self.stint
        if stint is not None and now_s > stint.works_from_s and stint.cap > 0:
            seconds = now_s - max(self.at_s, stint.works_from_s)
            rates, targets = self._rates(stint), self._targets()
            epoch = self.epoch()
            while seconds > 0 and self.progress < self.total:
                needed = (targets[epoch] - self.progress) / rates[epoch]
                if seconds < needed:
                    self.progress += rates[epoch] * seconds
                    break
                seconds -= needed
                self.progress = float(targets[epoch])
                epoch += 1
        self.at_s = now_s

    def end_of_epoch_s(self) -> float:
        """When the current epoch will end if nothing changes."""
        stint = self.stint
        assert stint is not None
        epoch = self.epoch()
        start_s = max(self.at_s, stint.works_from_s)
        return start_s + float((self._targets()[epoch] - self.progress) / self._rates(stint)[epoch])

    def completion_s(self) -> float:
        """When the job will be done if nothing changes."""
        stint = self.stint
        assert stint is not None
        epoch, targets = self.epoch(), self._targets()
        left = targets[epoch:].copy()
        left[1:] -= targets[epoch:-1]
        left[0] -= self.progress
        return max(self.at_s, stint.works_from_s) + float((left / self._rates(stint)[epoch:]).sum())

    # --- Changes ---

    @property
    def pause_s(self) -> float:
        """Pause of the next change of slots; the first start may have a pause of its own."""
        start_up_s = self.start_up_s if self.application is None else self.application.value.start_up_s
        return self.facts.rescale_s if self.stints or start_up_s is None else start_up_s

    def begin(
        self,
        now_s: float,
        pause_s: float,
        allocation: Allocation,
        gpu_type: str,
        batch: Batch | None,
        steps_per_s: float = 1.0,
        crossing: Crossing = WITHIN_RACK,
    ) -> Stint:
        """Start a stint with new slots; progress must be up to date."""
        self.finish_stint(now_s)
        stint = Stint(
            now_s,
            now_s + pause_s,
            allocation,
            gpu_type,
            tuple(slots for _, slots in allocation),
            batch,
            epoch=self.epoch(),
            progress_before=self.progress,
            steps_per_s=steps_per_s,
            crossing=crossing,
        )
        self.stints.append(stint)
        self._next_checkpoint_s = now_s + pause_s + self.checkpoint_s
        self.version += 1
        self._tuner = None
        return stint

    def retune(self, now_s: float, batch: Batch) -> None:
        """Continue with another batch plan, without a pause."""
        self._continue(now_s).batch = batch

    def share(self, now_s: float, partner: str | None, speed: float) -> Stint:
        """Continue beside another job on the same slots (None: alone), without a pause."""
        stint = self._continue(now_s)
        stint.partner, stint.speed = partner, speed
        return stint

    def limit(self, now_s: float, cap: float, memory_cap: float | None = None) -> None:
        """Continue with this fraction of the time and of the memory, without a pause."""
        stint = self._continue(now_s)
        stint.cap, stint.memory_cap = cap, memory_cap

    def contend(self, now_s: float, contention: float) -> None:
        """Continue with more or less contention for the uplinks, without a pause."""
        old = self.stint
        assert old is not None
        reported, demand_bytes_per_s = old.reported, old.demand_bytes_per_s
        stint = self._continue(now_s)
        stint.contention = contention
        stint.reported, stint.demand_bytes_per_s = reported, demand_bytes_per_s  # it is the same configuration

    def _continue(self, now_s: float) -> Stint:
        """End the current stint now and return its successor; a stint that began at this moment is kept."""
        old = self.stint
        assert old is not None
        self.version += 1
        if old.start_s == now_s:
            old.demand_bytes_per_s = None
            return old
        old.end_s = now_s
        works_from_s = max(now_s, old.works_from_s)
        stint = replace(old, start_s=now_s, works_from_s=works_from_s, epoch=self.epoch(), end_s=None, reported=False)
        stint.demand_bytes_per_s = None
        self.stints.append(stint)
        return stint

    def crash(self, now_s: float) -> None:
        """Lose the slots without warning: the stint ends, and progress falls back to the last checkpoint.

        A checkpoint is made at every change of slots and every ``checkpoint_s`` of work since.
        """
        self.lost += self.progress - self._saved
        self.progress = self._saved
        self.finish_stint(now_s)

    def finish_stint(self, now_s: float) -> None:
        """Give up the slots, with all progress saved."""
        stint = self.stint
        if stint is not None:
            stint.end_s = now_s
            self.version += 1
        self._saved = self.progress

    # --- What it measures, and how it tunes itself ---

    def loss(self) -> float | None:
        """Training loss at the current progress, if there is a loss curve."""
        curve = loss_curve(self)
        return None if curve is None else curve.at(self.progress / self.total)

    def gradient(self) -> GradientStats | None:
        """Gradient statistics at the current progress and batch size, once the job has measured them."""
        stint, epoch = self.stint, self.epoch()
        if self.application is None or stint is None or stint.batch is None:
            return None
        if not self.application.value.gradient.is_measured(epoch):
            return None
        squared, variance = epoch_gradients(self.application, stint.batch.total)
        return GradientStats(float(squared[epoch]), float(variance[epoch]))

    def observation(self) -> Observation | None:
        """Step times of the current configuration as the job measures them, including interference and contention.

        A job that shares its slots reports nothing: its step times would say little about the configuration.
        """
        stint = self.stint
        if self.application is None or stint is None or stint.batch is None or stint.partner is not None:
            return None
        truth = self.application.value.truth[stint.gpu_type]
        seen = truth.observation(stint.placement, stint.batch.per_slot, stint.crossing.path)
        step_s = seen.step_s
        if stint.contention != 1.0:  # time spent waiting for uplinks is measured as part of the synchronising step
            step_s += (stint.contention - 1.0) * (stint.batch.accumulation * seen.accumulation_s + step_s)
        return replace(seen, accumulation_s=seen.accumulation_s * stint.slowdown, step_s=step_s * stint.slowdown)

    def fixed_batch(self, gpu_type: str, slots: int) -> Batch | None:
        """The plan for the requested batch size."""
        assert self.application is not None
        limits = self.application.value.limits[gpu_type]
        total = self.facts.requested_batch or limits.initial
        return for_total(limits, slots, total)

    def tuned_batch(
        self,
        fitted: ThroughputFit | None,
        gradient: GradientStats,
        gpu_type: str,
        placement: tuple[int, ...],
        *,
        shared: bool = False,
        current: Batch | None = None,
        link_slowdown: float = 1.0,
    ) -> Batch | None:
        """The best plan under the job's own fit; before there is a fit, the plan with the initial batch size.

        A job that shares its slots (``shared``) may use half of the memory. A ``current`` plan is kept unless another
        is clearly better.
        """
        assert self.application is not None
        limits = self.application.value.limits[gpu_type]
        if shared:
            limits = halved(limits)
        if fitted is None or fitted.source == "prior":
            return untuned(limits, sum(placement))
        tuner = self._tuner
        known = tuner is not None and tuner.placement == placement and tuner.link_slowdown == link_slowdown
        if tuner is None or not known or tuner.fitted is not fitted or tuner.limits is not limits:
            tuner = self._tuner = Tuner(fitted, limits, placement, link_slowdown)
        return tuner.best(gradient, current)


def loss_curve(job: SimJob) -> LossCurve | None:
    """The loss curve of a job: the one that the workload gives it, else that of its application."""
    if job.trace.loss is not None or job.application is None:
        return job.trace.loss
    return job.application.value.loss
