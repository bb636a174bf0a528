"""What earlier jobs of a kind have measured, for those that come after them.

People train the same thing again and again: the same script under the same name. How such a job scales need not be
found out again, by growing from slot to slot with a pause each time: the jobs before it have measured it. A job's own
measurements come first, type by type, as soon as they reach as far; and where they contradict what is remembered, the
job is taken to be of another kind in spite of its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.table import JobModel
from geminid.goodput.throughput import Shape
from geminid.policies.base import JobView

#: Kinds that are remembered; beyond, the one that was heard of first is forgotten.
MOST_KINDS = 1024

#: Factor by which step times on one slot may differ from those remembered before the job counts as another kind.
SAME_WITHIN = 2.0

Kind = tuple[str, str]


@dataclass(slots=True)
class _Memory:
    """Of one kind: the farthest-reaching fit on every GPU type, the noise at the beginning, and how often it grew."""

    fits: dict[str, ThroughputFit] = field(default_factory=dict)
    first_noise: GradientStats | None = None
    version: int = 0

    @property
    def most_slots(self) -> int:
        return max((fitted.most_slots for fitted in self.fits.values()), default=0)


@dataclass(slots=True)
class KindMemory:
    """Remembers by owner and kind; jobs without a kind are strangers to each other."""

    _kinds: dict[Kind, _Memory] = field(default_factory=dict)
    _heard: dict[str, JobModel] = field(default_factory=dict)
    _noise_from: set[str] = field(default_factory=set)

    def learn(self, jobs: Iterable[JobView], ended: Iterable[JobView] = ()) -> None:
        """Take in what active jobs, and those that have just ended, have measured since the last time."""
        for job in ended:
            self._take(job)
            self._noise_from.discard(job.id)
        heard = {}
        for job in jobs:
            if job.model is not None and job.facts.kind:
                if self._heard.get(job.id) is not job.model:
                    self._take(job)
                heard[job.id] = job.model
        self._heard = heard

    def version(self, job: JobView) -> int:
        """Changes when more is known of the job's kind than before."""
        memory = self._kinds.get(_kind(job))
        return memory.version if memory is not None else 0

    def most_slots(self, job: JobView) -> int:
        """The most slots that jobs of this kind, or this job, were measured on."""
        memory = self._kinds.get(_kind(job))
        if memory is None or not self._is_same(job, memory):
            return job.most_slots_measured
        return max(memory.most_slots, job.most_slots_measured)

    def complete(self, job: JobView, model: JobModel) -> JobModel:
        """The job's model with what its kind knows where that reaches farther."""
        memory = self._kinds.get(_kind(job))
        if memory is None or not self._is_same(job, memory):
            return model
        fits = dict(model.fits)
        for gpu_type, remembered in memory.fits.items():
            if gpu_type in model.limits and (gpu_type not in fits or remembered.most_slots > fits[gpu_type].most_slots):
                fits[gpu_type] = remembered
        unmeasured = model.gradient == GradientStats()
        gradient = memory.first_noise if unmeasured and memory.first_noise is not None else model.gradient
        return JobModel(fits, model.limits, gradient)

    def _take(self, job: JobView) -> None:
        if job.model is None or not job.facts.kind:
            return
        kind = _kind(job)
        memory = self._kinds.get(kind)
        if memory is None:
            memory = self._kinds[kind] = _Memory()
            if len(self._kinds) > MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
        for gpu_type, fitted in job.model.fits.items():
            if fitted.source != "fitted" or fitted.most_slots <= 1:
                continue
            known = memory.fits.get(gpu_type)
            if known is None or (fitted.most_slots, fitted.observations) > (known.most_slots, known.observations):
                memory.fits[gpu_type] = fitted
                memory.version += known is None or fitted.most_slots > known.most_slots
        if job.id not in self._noise_from and job.model.gradient != GradientStats():
            self._noise_from.add(job.id)
            memory.version += memory.first_noise is None
            memory.first_noise = job.model.gradient

    @staticmethod
    def _is_same(job: JobView, memory: _Memory) -> bool:
        own = job.model.fits if job.model is not None else {}
        return all(
            _alike(fitted, memory.fits[gpu_type], job.facts.limits[gpu_type])
            for gpu_type, fitted in own.items()
            if fitted.source == "fitted" and gpu_type in memory.fits and gpu_type in job.facts.limits
        )


def _kind(job: JobView) -> Kind:
    return job.facts.owner, job.facts.kind


def _alike(own: ThroughputFit, remembered: ThroughputFit, limits: BatchLimits) -> bool:
    """Whether a step on one slot takes about as long by both."""
    batch = min(max(limits.initial, limits.smallest_per_slot), limits.largest_per_slot)
    shape = Shape.of(1, 1, float(batch))
    ratio = float(own.step_times(shape).step_s / remembered.step_times(shape).step_s)
    return own.model == remembered.model and 1.0 / SAME_WITHIN <= ratio <= SAME_WITHIN
