"""A simulated job: what it really does with the slots it is given."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats, efficiency, gain
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.profile import Observation, Profile
from geminid.network import WITHIN_NODE, WITHIN_RACK, Crossing, Path
from geminid.policies.base import Allocation, JobFacts
from geminid.sim.application import Application, StepTimeTruth
from geminid.sim.tuner import Batch, Tuner, for_total, untuned
from geminid.sim.workload import TraceJob

Array = NDArray[np.float64]

#: Batch sizes at which a job is measured on one slot of each type before it starts, for policies that ask for it.
ONE_SLOT_BATCH_SIZES = 6


@lru_cache(maxsize=65536)
def _epoch_gradients(application: ByIdentity, total_batch: int) -> tuple[Array, Array]:
    app = application.value
    stats = [app.gradient.at(epoch, total_batch) for epoch in range(len(app.progress_steps))]
    return np.array([s.squared_gradient for s in stats]), np.array([s.variance for s in stats])


def _epoch_gains(application: ByIdentity, total_batch: int) -> Array:
    """What a step at this total batch counts, in steps at M0, during every epoch."""
    app = application.value
    scale = total_batch / app.initial_batch
    if app.counts_samples:
        return np.full(len(app.progress_steps), scale)
    squared, variance = _epoch_gradients(application, total_batch)
    gains: Array = gain(squared, variance, scale)
    return gains


@lru_cache(maxsize=65536)
def _epoch_rates(
    application: ByIdentity, gpu_type: str, placement: tuple[int, ...], batch: Batch, path: Path = WITHIN_RACK.path
) -> Array:
    """Progress, in steps at M0 per second, during every epoch."""
    app = application.value
    accumulation_s, step_s = app.truth[gpu_type].step_times_over(placement, batch.per_slot, path)
    gains = _epoch_gains(application, batch.total)
    rates: Array = gains / ((batch.accumulation * accumulation_s + step_s) * app.speed_divisor)
    return rates


@lru_cache(maxsize=4096)
def _halved(limits: BatchLimits) -> BatchLimits:
    """What fits into half of the memory."""
    return replace(limits, largest_per_slot=max(limits.largest_per_slot // 2, limits.smallest_per_slot))


@dataclass(frozen=True, slots=True, eq=False)
class ByIdentity:
    """An application as a cache key: applications are few and live long."""

    value: Application


@dataclass(slots=True)
class Stint:
    """A stretch of time with one allocation, one batch plan and one partner, or none, on the same slots.

    ``works_from_s`` is when its pause ends. ``speed`` is what is left of a job's speed beside its partner, ``cap`` the
    share of the time for which it may compute, ``memory_cap`` the share of the memory that it may use beside its
    partner, None if all of it fits. Jobs without an application make ``steps_per_s``. ``crossing`` is
    what its nodes are joined by; ``contention`` how many times longer a step takes because others use the same uplinks.
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


@dataclass(slots=True)
class SimJob:
    """Progress of one job. Between changes it is computed, not stepped: any later time may be asked for.

    ``start_up_s`` is what the first start costs a job without an application, None for as much as any other change.
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
    start_up_s: float | None = None
    _saved: float = 0.0
    _next_checkpoint_s: float = float("inf")
    _tuner: Tuner | None = None
    _durations_s: dict[str, float] | None = None
    _work: float | None = None

    @property
    def stint(self) -> Stint | None:
        """The current stint, None while the job waits."""
        return self.stints[-1] if self.stints and self.stints[-1].end_s is None else None

    @property
    def work(self) -> float:
        """All that the job has to do, in the unit of its goodput: samples worth as much as at its initial batch size.

        Jobs that keep a batch size count its samples; jobs without an application count steps or seconds.
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
        return initial * float(np.sum(steps / _epoch_gains(self.application, initial)))

    # --- Progress ---

    def _rates(self, stint: Stint) -> Array:
        speed = stint.speed * stint.cap / (stint.slowdown * stint.contention)
        if self.application is None:
            return np.array([stint.steps_per_s * speed])
        assert stint.batch is not None
        path = stint.crossing.path
        return _epoch_rates(self.application, stint.gpu_type, stint.placement, stint.batch, path) * speed

    def _targets(self) -> Array:
        return np.array([self.total]) if self.application is None else self.application.value.progress_steps

    def epoch(self) -> int:
        """The epoch that the current progress lies in."""
        targets = self._targets()
        return min(bisect_right(targets, self.progress * (1.0 + 1e-9)), len(targets) - 1)

    def advance(self, now_s: float) -> None:
        """Bring the progress up to ``now_s``, saving it at every checkpoint on the way."""
        while self._next_checkpoint_s < now_s and self.stint is not None:
            self._advance(self._next_checkpoint_s)
            self._saved = self.progress
            self._next_checkpoint_s += self.checkpoint_s
        self._advance(now_s)

    def finish_epoch(self, epoch: int) -> None:
        """The end of an epoch was scheduled for now: rounding of the clock must not leave it unfinished."""
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
        left = np.diff(targets[epoch:], prepend=self.progress)
        return max(self.at_s, stint.works_from_s) + float(np.sum(left / self._rates(stint)[epoch:]))

    # --- Changes ---

    @property
    def pause_s(self) -> float:
        """What the next change of slots costs: the first start may cost something else than later ones."""
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
    ) -> None:
        """Start a stint with new slots; progress must be up to date."""
        self.finish_stint(now_s)
        placement = tuple(slots for _, slots in allocation)
        self.stints.append(
            Stint(
                now_s,
                now_s + pause_s,
                allocation,
                gpu_type,
                placement,
                batch,
                epoch=self.epoch(),
                progress_before=self.progress,
                steps_per_s=steps_per_s,
                crossing=crossing,
            )
        )
        self._next_checkpoint_s = now_s + pause_s + self.checkpoint_s
        self.version += 1
        self._tuner = None

    def retune(self, now_s: float, batch: Batch) -> None:
        """Go on with another batch plan, without a pause."""
        self._go_on(now_s).batch = batch

    def share(self, now_s: float, partner: str | None, speed: float) -> Stint:
        """Go on beside another job on the same slots, or alone again, without a pause."""
        stint = self._go_on(now_s)
        stint.partner, stint.speed = partner, speed
        return stint

    def limit(self, now_s: float, cap: float, memory_cap: float | None = None) -> None:
        """Go on computing for this share of the time and in this share of the memory, without a pause."""
        stint = self._go_on(now_s)
        stint.cap, stint.memory_cap = cap, memory_cap

    def contend(self, now_s: float, contention: float) -> None:
        """Go on with more or less of the uplinks, without a pause."""
        old = self.stint
        assert old is not None
        reported, demand_bytes_per_s = old.reported, old.demand_bytes_per_s
        stint = self._go_on(now_s)
        stint.contention = contention
        stint.reported, stint.demand_bytes_per_s = reported, demand_bytes_per_s  # it is the same configuration

    def _go_on(self, now_s: float) -> Stint:
        """The stint that goes on where the current one ends now; a stint that has only begun goes on itself."""
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
        """Give the slots up, with everything saved."""
        stint = self.stint
        if stint is not None:
            stint.end_s = now_s
            self.version += 1
        self._saved = self.progress

    # --- What it measures, and how it tunes itself ---

    def loss(self) -> float | None:
        """Its training loss at the current progress, where the application has a loss curve."""
        curve = None if self.application is None else self.application.value.loss
        return None if curve is None else curve.at(self.progress / self.total)

    def gradient(self) -> GradientStats | None:
        """True gradient statistics at the current progress and batch size, if the job knows them."""
        stint, epoch = self.stint, self.epoch()
        if self.application is None or stint is None or stint.batch is None:
            return None
        if not self.application.value.gradient.is_measured(epoch):
            return None
        squared, variance = _epoch_gradients(self.application, stint.batch.total)
        return GradientStats(float(squared[epoch]), float(variance[epoch]))

    def observation(self) -> Observation | None:
        """Step times of the current configuration as a job measures them, with whatever slows it down.

        Beside a partner on the same slots it measures nothing: that would say little about the configuration.
        """
        stint = self.stint
        if self.application is None or stint is None or stint.batch is None or stint.partner is not None:
            return None
        truth = self.application.value.truth[stint.gpu_type]
        seen = _observe(truth, stint.placement, stint.batch.per_slot, stint.crossing.path)
        step_s = seen.step_s
        if (
            stint.contention != 1.0
        ):  # what waiting for others adds to an iteration is seen in the step that synchronises
            step_s += (stint.contention - 1.0) * (stint.batch.accumulation * seen.accumulation_s + step_s)
        return replace(seen, accumulation_s=seen.accumulation_s * stint.slowdown, step_s=step_s * stint.slowdown)

    def iteration_times(self, stint: Stint) -> tuple[float, float]:
        """Seconds of one iteration of a stint, and the seconds of it that computing without synchronising would take.

        An iteration is one optimiser step; contention for uplinks is included, a partner on the same slots is not.
        """
        assert self.application is not None
        assert stint.batch is not None
        truth, path = self.application.value.truth[stint.gpu_type], stint.crossing.path
        accumulation_s, step_s = truth.step_times_over(stint.placement, stint.batch.per_slot, path)
        iteration_s = stint.batch.accumulation * accumulation_s + step_s
        return iteration_s * stint.contention, (stint.batch.accumulation + 1) * accumulation_s

    def communication_share(self, stint: Stint) -> float:
        """The share of a stint's working time that synchronising adds to computing; none where nothing is known."""
        if self.application is None or stint.batch is None or len(stint.placement) == sum(stint.placement) == 1:
            return 0.0
        iteration_s, computing_s = self.iteration_times(stint)
        return max(0.0, 1.0 - computing_s / iteration_s)

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
        """The best plan under the job's own fit, in half of the memory beside a partner; without one, the smallest.

        A ``current`` plan is changed for one that is clearly better only.
        """
        assert self.application is not None
        limits = self.application.value.limits[gpu_type]
        if shared:
            limits = _halved(limits)
        if fitted is None or fitted.source == "prior":
            return untuned(limits, sum(placement))
        tuner = self._tuner
        known = tuner is not None and tuner.placement == placement and tuner.link_slowdown == link_slowdown
        if tuner is None or not known or tuner.fitted is not fitted or tuner.limits is not limits:
            tuner = self._tuner = Tuner(fitted, limits, placement, link_slowdown)
        return tuner.best(gradient, current)

    def one_slot_profiles(self) -> dict[str, Profile]:
        """What a minute of measuring on one slot of each GPU type shows, at a few batch sizes."""
        if self.application is None:
            return {}
        profiles = {}
        for gpu_type, limits in self.facts.limits.items():
            largest = min(limits.largest_per_slot, limits.largest)
            sizes = sorted({round(m) for m in np.geomspace(limits.smallest_per_slot, largest, ONE_SLOT_BATCH_SIZES)})
            truth = self.application.value.truth[gpu_type]
            profiles[gpu_type] = Profile.of(_observe(truth, (1,), size) for size in sizes)
        return profiles

    def lost_time(self, stint: Stint) -> dict[str, float]:
        """Where the working time of a stint went: shares that computed usefully, or were lost.

        Lost to scaling is what perfect scaling of a one-slot pass would have saved; lost to statistics is what samples
        worth as much as at the initial batch size would have; the rest computed usefully.
        """
        if self.application is None or stint.batch is None:
            return {"useful_share": 1.0, "lost_to_scaling_share": 0.0, "lost_to_statistics_share": 0.0}
        truth = self.application.value.truth[stint.gpu_type]
        iteration_s, _ = self.iteration_times(stint)
        alone_s, _ = truth.step_times((1,), stint.batch.per_slot)
        scaling = min(1.0, (stint.batch.accumulation + 1) * alone_s / iteration_s)
        squared, variance = _epoch_gradients(self.application, stint.batch.total)
        epoch = min(stint.epoch, len(squared) - 1)
        scale = stint.batch.total / self.application.value.initial_batch
        worth = min(1.0, float(efficiency(squared[epoch], variance[epoch], scale)))
        return {
            "useful_share": scaling * worth,
            "lost_to_scaling_share": 1.0 - scaling,
            "lost_to_statistics_share": scaling * (1.0 - worth),
        }

    def true_models(self) -> dict[str, ThroughputFit]:
        """The models that its step times follow on every GPU type; none if they follow something else on any."""
        truth = {} if self.application is None else self.application.value.truth
        models = {gpu_type: truth[gpu_type].model for gpu_type in self.facts.limits if gpu_type in truth}
        return {
            gpu_type: model for gpu_type, model in models.items() if model is not None and None not in models.values()
        }

    def oracle_profiles(self, cluster: Cluster) -> dict[str, Profile]:
        """What a job would know that had run on every size of every GPU type."""
        if self.application is None:
            return {}
        profiles = {}
        for gpu_type, limits in self.facts.limits.items():
            nodes = [node.slots for node in cluster.nodes if node.gpu_type == gpu_type]
            truth = self.application.value.truth[gpu_type]
            most = min(truth.most_slots, self.facts.max_slots, sum(nodes))
            largest = min(limits.largest_per_slot, limits.largest)
            sizes = sorted({round(m) for m in np.geomspace(limits.smallest_per_slot, largest, ONE_SLOT_BATCH_SIZES)})
            index = cluster.type_index[gpu_type]
            paths = [Path(tier, cluster.links.slowdown(tier, index)) for tier in cluster.links.tiers]
            profiles[gpu_type] = Profile.of(
                _observe(truth, placement, size, path)
                for placement in _placements(max(nodes), len(nodes), most)
                for path in (paths if len(placement) > 1 else [WITHIN_NODE.path])
                for size in sizes
            )
        return profiles

    # --- For oracles ---

    def remaining_iterations(self, *, after_current_epoch: bool) -> float:
        """Optimiser steps at the requested batch size to completion, from the start or the end of the current epoch."""
        if self.application is None:
            return self.total - self.progress
        app, first = self.application.value, self.epoch() + after_current_epoch
        total = self.trace.requested_batch or app.initial_batch
        steps = np.diff(app.progress_steps, prepend=0.0)
        return max(1.0, float(np.sum((steps / _epoch_gains(self.application, total))[first:])))

    def remaining_s(self, cluster: Cluster) -> float:
        """Seconds of work left on the requested slots and batch size, on the fastest GPU type."""
        return (1.0 - self.progress / self.total) * self.requested_duration_s(cluster)

    def iteration_s(self, placement: tuple[int, ...]) -> float:
        """True seconds per optimiser step at the requested batch size, on the first GPU type that can run it."""
        if self.application is None:
            return 1.0
        app = self.application.value
        gpu_type = next(iter(self.facts.limits))
        limits, slots = app.limits[gpu_type], sum(placement)
        total = self.trace.requested_batch or limits.initial
        batch = for_total(limits, slots, total, passes_at_least=2 if slots == 1 else 1)
        if batch is None:
            return float("inf")
        accumulation_s, step_s = app.truth[gpu_type].step_times(placement, batch.per_slot)
        return batch.accumulation * accumulation_s + step_s

    def requested_duration_s(self, cluster: Cluster) -> float:
        """Seconds the whole job takes on the slots and batch size it asks for, packed, on its fastest GPU type."""
        return min(self.durations_s(cluster).values(), default=float("inf"))

    def mixed_duration_s(self, cluster: Cluster) -> float:
        """The same on all types in turn, for times that are proportional to the slots of each that it can run on."""
        durations_s = self.durations_s(cluster)
        slots = {gpu_type: cluster.slots_per_type[gpu_type] for gpu_type in durations_s}
        speed = sum(slots[t] / durations_s[t] for t in durations_s)
        return sum(slots.values()) / speed if speed > 0 else float("inf")

    def durations_s(self, cluster: Cluster) -> Mapping[str, float]:
        """Seconds the whole job takes on the slots and batch size it asks for, packed, on each type that can run it.

        Worked out once: oracles ask at every decision.
        """
        if self._durations_s is None:
            self._durations_s = dict(self._compute_durations_s(cluster))
        return self._durations_s

    def _compute_durations_s(self, cluster: Cluster) -> Iterator[tuple[str, float]]:
        if self.application is None:
            for gpu_type in cluster.nodes_of_type:
                steps_per_s = self.facts.throughputs.get(gpu_type, 0.0) if self.facts.throughputs else 1.0
                if steps_per_s > 0:
                    yield gpu_type, self.total / steps_per_s
            return
        for gpu_type in self.facts.limits:
            per_node = cluster.largest_node_slots.get(gpu_type, 0)
            batch = self.fixed_batch(gpu_type, self.facts.requested_slots)
            if batch is not None and per_node:
                full, rest = divmod(self.facts.requested_slots, per_node)
                placement = (per_node,) * full + ((rest,) if rest else ())
                rates = _epoch_rates(self.application, gpu_type, placement, batch)
                yield gpu_type, float(np.sum(np.diff(self._targets(), prepend=0.0) / rates))


def _placements(per_node: int, nodes: int, most: int) -> list[tuple[int, ...]]:
    """Powers of two within a node, then whole nodes, and single slots spread over nodes."""
    result: list[tuple[int, ...]] = [(k,) for k in (1, 2, 4, 8, 16) if k < per_node and k <= most]
    result += [(per_node,) * n for n in (1, 2, 3, 4, 8, 16) if n <= nodes and n * per_node <= most]
    result += [(1,) * n for n in (2, 4, 8) if n <= nodes and n <= most]
    return result


def _observe(
    truth: StepTimeTruth, placement: tuple[int, ...], per_slot_batch: int, path: Path = WITHIN_RACK.path
) -> Observation:
    accumulation_s, step_s = truth.step_times_over(placement, per_slot_batch, path)
    return Observation(
        nodes=len(placement),
        slots=sum(placement),
        busiest_node_slots=max(placement),
        per_slot_batch=per_slot_batch,
        accumulation_s=accumulation_s,
        step_s=step_s,
        link_slowdown=path.slowdown,
    )


def by_identity(application: Application, known: dict[int, ByIdentity]) -> ByIdentity:
    """The application's cache key, the same object every time."""
    return known.setdefault(id(application), ByIdentity(application))
