"""How fast jobs of profiled models run under execution plans: as measured, and as fitted in between.

A plan can be used on as many slots as it was measured on, from the fewest to the most: what is beyond may not fit, and
nobody has tried. Where a plan and placement were measured, that is the step time; elsewhere it is that of the plan
model fitted to all rows of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from geminid.executionplan import ExecutionPlan
from geminid.goodput.planfit import PlanFit, PlanObservation, PlanPrior, fit_many
from geminid.goodput.planmodel import PlanShape
from geminid.gputypes import named_gpu_type
from geminid.sim.profiles.rubick import GPU_TYPE, MeasuredModel, load_models

#: Tensor parallelism between nodes was never measured: a step is taken to be this many times as long.
ACROSS_NODES = 2.0

#: Seconds of a change of slots or plan, from a checkpoint, as Rubick's authors measured.
RESTART_S = 260.0


@dataclass(frozen=True, slots=True)
class _Usable:
    """A plan, and on how many slots it was measured."""

    plan: ExecutionPlan
    fewest: int
    most: int

    def runs_on(self, slots: int) -> bool:
        return self.fewest <= slots <= self.most and slots % self.plan.slots_per_replica == 0


@dataclass(frozen=True, slots=True, eq=False)
class PlanProfile:
    """One model: its plans, measured step times and the fit in between."""

    model: MeasuredModel
    fit: PlanFit
    usable: Mapping[str, _Usable]
    _step_s: dict[tuple[str, tuple[int, ...]], float] = field(default_factory=dict)

    @classmethod
    def of(cls, model: MeasuredModel, fit: PlanFit) -> PlanProfile:
        """A profile of everything that was measured of a model."""
        slots: dict[str, list[int]] = {}
        plans = {row.plan.name: row.plan for row in model.measurements}
        for row in model.measurements:
            slots.setdefault(row.plan.name, []).append(sum(row.placement))
        usable = {name: _Usable(plans[name], min(sizes), max(sizes)) for name, sizes in slots.items()}
        measured = {(row.plan.name, _ordered(row.placement)): row.step_s for row in model.measurements}
        return cls(model, fit, usable, measured)

    @property
    def sizes(self) -> frozenset[int]:
        """Numbers of slots that were measured."""
        return frozenset(sum(row.placement) for row in self.model.measurements)

    def step_s(self, plan: ExecutionPlan, placement: Sequence[int]) -> float:
        """Seconds of a step."""
        key = (plan.name, _ordered(placement))
        if key not in self._step_s:
            replicas = sum(placement) / plan.slots_per_replica
            shape = PlanShape.stack([PlanShape.of(plan, placement, self.model.global_batch / replicas)])
            factor = ACROSS_NODES if plan.tensor_parallel > min(placement) else 1.0
            self._step_s[key] = factor * float(self.fit.step_times(shape)[0])
        return self._step_s[key]


@dataclass(frozen=True, slots=True, eq=False)
class ProfiledSpeeds:
    """Speeds of a model under some of its plans, the fastest on every placement; a ``policies.base.PlanSpeeds``."""

    profile: PlanProfile
    plans: tuple[str, ...]
    _best: dict[tuple[int, ...], tuple[float, str]] = field(default_factory=dict)

    @property
    def sizes(self) -> frozenset[int]:
        """Numbers of slots that were measured under one of the plans."""
        usable = [self.profile.usable[name] for name in self.plans]
        return frozenset(slots for slots in self.profile.sizes if any(one.runs_on(slots) for one in usable))

    def steps_per_s(self, placement: Sequence[int]) -> float:
        """Steps per second under the fastest plan; 0 where none can be used."""
        return self._fastest(tuple(placement))[0]

    def plan(self, placement: Sequence[int]) -> str:
        """The fastest plan; nothing where none can be used."""
        return self._fastest(tuple(placement))[1]

    def _fastest(self, placement: tuple[int, ...]) -> tuple[float, str]:
        if placement not in self._best:
            slots = sum(placement)
            usable = [self.profile.usable[name] for name in self.plans if self.profile.usable[name].runs_on(slots)]
            speeds = [(1.0 / self.profile.step_s(one.plan, placement), one.plan.name) for one in usable]
            self._best[placement] = max(speeds, default=(0.0, ""))
        return self._best[placement]


@dataclass(frozen=True, slots=True)
class PlanProfiles:
    """All models of a folder, with their speeds under all plans or a single one."""

    profiles: Mapping[str, PlanProfile]
    _speeds: dict[tuple[str, str | None], ProfiledSpeeds] = field(default_factory=dict)

    def speeds(self, model: str, plan: str | None = None) -> ProfiledSpeeds | None:
        """Speeds of a model under a plan, or under all (None); None if the model or the plan is not known."""
        profile = self.profiles.get(model)
        if profile is None or (plan is not None and plan not in profile.usable):
            return None
        if (model, plan) not in self._speeds:
            self._speeds[model, plan] = ProfiledSpeeds(profile, tuple(profile.usable) if plan is None else (plan,))
        return self._speeds[model, plan]


def is_plan_folder(path: Path) -> bool:
    """Whether a folder of profiles is in Rubick's layout."""
    return (path / "placements").is_dir()


def load_plan_profiles(path: Path) -> PlanProfiles:
    """Load a folder in Rubick's layout and fit all models, those with few rows with what the others know."""
    models = load_models(path)
    prior = PlanPrior.of_type(named_gpu_type(GPU_TYPE))
    first = [fit_many([_rows(model)], [model.parameters], prior)[0] for model in models]
    profiles = {}
    for index, model in enumerate(models):
        others = [fit for i, fit in enumerate(first) if i != index]
        (fit,) = fit_many([_rows(model)], [model.parameters], prior.with_jobs(others))
        profiles[model.name] = PlanProfile.of(model, fit)
    return PlanProfiles(profiles)


def _rows(model: MeasuredModel) -> list[PlanObservation]:
    return [
        PlanObservation(
            PlanShape.of(row.plan, row.placement, model.global_batch * row.plan.slots_per_replica / sum(row.placement)),
            row.step_s,
        )
        for row in model.measurements
    ]


def _ordered(placement: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(placement, reverse=True))
