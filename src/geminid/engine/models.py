"""What the engine knows of jobs' speed: their reports, and the models fitted to them.

Fits are made lazily, all jobs with news at once, when a policy is about to look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit, fit_many
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.table import JobModel
from geminid.policies.base import JobView


@dataclass(slots=True)
class _Known:
    profiles: dict[str, Profile] = field(default_factory=dict)
    fits: dict[str, ThroughputFit] = field(default_factory=dict)
    gradient: GradientStats = field(default_factory=GradientStats)
    dirty: set[str] = field(default_factory=set)
    changed: bool = True
    most_slots: int = 0


@dataclass(slots=True)
class ModelKeeper:
    """Profiles, fits and gradient statistics of all active jobs. ``family`` names the throughput model."""

    family: str = "geminid"
    _known: dict[str, _Known] = field(default_factory=dict)

    def report(self, job: JobView, observation: Observation | None, gradient: GradientStats | None) -> None:
        """Take in a job's report about the GPU type it runs on."""
        known = self._known.setdefault(job.id, _Known())
        if observation is not None and job.gpu_type is not None:
            profile = known.profiles.get(job.gpu_type, Profile())
            recorded = profile.record(observation)
            if recorded is not profile:
                known.most_slots = max(known.most_slots, recorded.most_slots)
                known.profiles[job.gpu_type] = recorded
                known.dirty.add(job.gpu_type)
                known.changed = True
        if gradient is not None:
            clamped = GradientStats.clamped(gradient.squared_gradient, gradient.variance)
            if clamped != known.gradient:
                known.gradient, known.changed = clamped, True

    def add_profile(self, job_id: str, gpu_type: str, profile: Profile) -> None:
        """Start with measurements made elsewhere (a one-slot profile, an earlier run).

        A profile of single slots says nothing about how a job scales, and does not count towards the slots measured.
        """
        known = self._known.setdefault(job_id, _Known())
        known.profiles[gpu_type] = profile
        if profile.most_slots > 1:
            known.most_slots = max(known.most_slots, profile.most_slots)
        known.dirty.add(gpu_type)
        known.changed = True

    def add_fit(self, job_id: str, gpu_type: str, fitted: ThroughputFit) -> None:
        """Start with a model that is known to be right; observations are not to be reported then."""
        known = self._known.setdefault(job_id, _Known())
        known.fits[gpu_type], known.changed = fitted, True
        known.most_slots = max(known.most_slots, fitted.most_slots)

    def add_gradient(self, job_id: str, gradient: GradientStats) -> None:
        """Start with gradient statistics from an earlier run."""
        known = self._known.setdefault(job_id, _Known())
        known.gradient, known.changed = GradientStats.clamped(gradient.squared_gradient, gradient.variance), True

    def revised(self, job_id: str) -> None:
        """The job's facts have changed: a new model is made when a policy next looks."""
        if job_id in self._known:
            self._known[job_id].changed = True

    def forget(self, job_id: str) -> None:
        """The job is gone."""
        self._known.pop(job_id, None)

    def refit(self) -> None:
        """Fit whatever has news, all at once."""
        todo = [(known, gpu_type) for known in self._known.values() for gpu_type in sorted(known.dirty)]
        if not todo:
            return
        previous = [known.fits.get(gpu_type) for known, gpu_type in todo]
        fits = fit_many([known.profiles[gpu_type] for known, gpu_type in todo], self.family, previous=previous)
        for (known, gpu_type), fitted in zip(todo, fits, strict=True):
            known.fits[gpu_type] = fitted
            known.dirty.clear()

    def attach(self, jobs: Sequence[JobView]) -> tuple[JobView, ...]:
        """The jobs with their up-to-date models; jobs without news are returned as they are."""
        self.refit()
        result = []
        for job in jobs:
            known = self._known.get(job.id)
            if known is not None and known.changed:
                fits = MappingProxyType(dict(known.fits))
                model = JobModel(fits, job.facts.limits, known.gradient) if fits else None
                job = replace(job, model=model, most_slots_measured=known.most_slots)
                known.changed = False
            result.append(job)
        return tuple(result)

    def fit_of(self, job_id: str, gpu_type: str) -> ThroughputFit | None:
        """The current fit of one job on one GPU type (refitted if there is news)."""
        known = self._known.get(job_id)
        if known is None:
            return None
        if known.dirty:
            self.refit()
        return known.fits.get(gpu_type)
