"""What simulated jobs with profiles really do on shared slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from geminid.goodput.sharing import shared_speed, utilisation
from geminid.policies.base import JobFacts
from geminid.sim.application import Application
from geminid.sim.tuner import for_total


@dataclass(slots=True)
class ApplicationSharing:
    """Speeds of pairs from how busy their applications keep a slot at the requested batch size.

    Two jobs can share only if both batches fit into memory together; what a job needs without any samples is left out,
    and an application whose batch is limited by statistics rather than memory is taken to need all of it at its limit.
    It is a :class:`geminid.policies.base.SharingModel`.
    """

    applications: Mapping[str, Application]
    _known: dict[tuple[str, int, int | None, str], tuple[float, float]] = field(default_factory=dict)

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        """Speeds of two jobs on shared slots, relative to having them alone."""
        one, other = self._use(first, gpu_type), self._use(second, gpu_type)
        if one[1] + other[1] > 1.0:
            return 0.0, 0.0
        return shared_speed(one[0], other[0]), shared_speed(other[0], one[0])

    def _use(self, facts: JobFacts, gpu_type: str) -> tuple[float, float]:
        """How much of a slot's time and of its memory a job uses; more than all of it where it cannot run."""
        key = (facts.kind, facts.requested_slots, facts.requested_batch, gpu_type)
        if key not in self._known:
            self._known[key] = self._work_out(facts, gpu_type)
        return self._known[key]

    def _work_out(self, facts: JobFacts, gpu_type: str) -> tuple[float, float]:
        app = self.applications.get(facts.kind)
        if app is None or gpu_type not in app.limits:
            return 1.0, 2.0
        limits, truth = app.limits[gpu_type], app.truth[gpu_type]
        batch = for_total(limits, facts.requested_slots, facts.requested_batch or limits.initial)
        if batch is None:
            return 1.0, 2.0
        busy = utilisation(lambda m: truth.step_times((1,), m)[0], batch.per_slot, limits.largest_per_slot)
        return busy, batch.per_slot / limits.largest_per_slot
