"""Tiresias: least attained service in two dimensions, discretised into queues.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI '19.

Jobs start in the first queue and sink to the next when their attained service (slots × seconds) reaches the queue's
limit. The first queues are served first; within a queue, in the order in which jobs entered it. A job runs on the
slots it asks for if they are still free, else it is passed over; running jobs that are no longer granted lose their
slots.

Variants:

- ``index=las`` is Discretised 2D-LAS, which needs no knowledge of durations.
- ``index=gittins`` orders each queue by the Gittins index of the jobs' attained service, from the distribution of total
  service among the jobs seen so far (its quantum is the queue's limit).
- ``promote=k`` returns a job to the first queue, forgetting its service, when it has waited k times as long as it ran.

Within a queue, Tiresias' own simulator serves running jobs before waiting ones and acts at every event
(``running_first=true``); Pollux's evaluation goes by entry alone, in rounds of 60 s. Each is the default for its kind
of workload: jobs of known duration, and jobs with profiles.

Deviations. The default is the setting of Pollux's evaluation: two queues, 16 GPU-hours, no promotion. Tiresias' own
code uses ``limits=3250;7200``, sums absolute instead of remaining service in the Gittins index, sorts its plain
Gittins mode the wrong way round, and computes demotion instants of multi-slot jobs wrongly; here the intended
algorithm is implemented. Its consolidation by tensor skew needs a network profile of each model and is left out: jobs
are placed on the emptiest nodes first, as in both evaluations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

from geminid.policies.base import ClusterView, JobView
from geminid.policies.options import AtLeast, Positive
from geminid.policies.queued import QueuedPolicy


class ServiceDistribution:
    """Total services (GPU-seconds) of the jobs that have ended, sorted, with their sums."""

    def __init__(self, services: Sequence[float]) -> None:
        self._sorted = sorted(services)
        self._sums = [0.0, *accumulate(self._sorted)]

    def with_another(self, service: float) -> ServiceDistribution:
        """The distribution with one more job."""
        return ServiceDistribution([*self._sorted, service])

    def gittins_index(self, attained: float, limit: float) -> float:
        """P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a] for attained service a, Δ up to the queue's limit."""
        longer, beyond = bisect_right(self._sorted, attained), bisect_right(self._sorted, limit)
        finished = beyond - longer
        if longer == len(self._sorted) or limit <= attained:
            return 0.0
        expected = self._sums[beyond] - self._sums[longer] - attained * finished
        if beyond < len(self._sorted):
            expected += (len(self._sorted) - beyond) * (limit - attained)
        return finished / expected


@dataclass(slots=True)
class _Place:
    """Where a job stands: its queue, and when it entered it."""

    queue: int
    entered: int
    service_forgotten_gpu_s: float = 0.0
    executed_forgotten_s: float = 0.0
    waited_since_s: float | None = None


@dataclass(slots=True)
class Tiresias(QueuedPolicy):
    """Queues by attained service; see the module's docstring."""

    name = "tiresias"
    paper = "Gu et al., NSDI '19"
    objective = "least attained service (slots × seconds) first, in discrete queues; fixed sizes"
    profiled_defaults: ClassVar[Mapping[str, Any]] = {"interval_s": 60.0, "running_first": False}

    limits_gpu_s: tuple[Positive, ...] = (57_600.0,)
    promote: Annotated[float, AtLeast(0.0)] | None = None
    index: Literal["las", "gittins"] = "las"
    running_first: bool = True
    interval_s: Positive | None = None
    _places: dict[str, _Place] = field(default_factory=dict)
    _entered: int = 0
    _services: ServiceDistribution = field(default_factory=lambda: ServiceDistribution(()))
    _last_seen: dict[str, tuple[float, float, int]] = field(default_factory=dict)

    def order(self, view: ClusterView) -> Sequence[JobView]:
        """By queue, then by entry (or by Gittins index)."""
        self._update(view)
        if self.index == "gittins":
            return sorted(view.jobs, key=lambda job: (self._places[job.id].queue, -self._gittins(job, view.now_s)))

        def place(job: JobView) -> tuple[int, bool, int]:
            place = self._places[job.id]
            return place.queue, self.running_first and not job.allocation, place.entered

        return sorted(view.jobs, key=place)

    def _update(self, view: ClusterView) -> None:
        active = {job.id for job in view.jobs}
        gone = [job_id for job_id in self._places if job_id not in active]
        for job_id in gone:
            seen_at_s, service, slots = self._last_seen.pop(job_id)
            self._services = self._services.with_another(service + slots * (view.now_s - seen_at_s))
            del self._places[job_id]
        for job in view.jobs:
            place = self._places.get(job.id)
            if place is None:
                place = self._places[job.id] = _Place(0, self._next_entry(), waited_since_s=view.now_s)
            service = self._service(job, view.now_s)
            self._last_seen[job.id] = (view.now_s, service, job.facts.requested_slots)
            if job.allocation:
                place.waited_since_s = None
            elif place.waited_since_s is None:
                place.waited_since_s = view.now_s
            queue = sum(service >= limit - 1e-6 for limit in self.limits_gpu_s)
            if queue > place.queue:
                place.queue, place.entered = queue, self._next_entry()
            elif self._deserves_promotion(job, place, view.now_s):
                place.queue, place.entered = 0, self._next_entry()
                place.service_forgotten_gpu_s = job.attained_service_gpu_s(view.now_s)
                place.executed_forgotten_s = job.executed_s(view.now_s)
                place.waited_since_s = view.now_s

    def _next_entry(self) -> int:
        self._entered += 1
        return self._entered

    def _service(self, job: JobView, now_s: float) -> float:
        return job.attained_service_gpu_s(now_s) - self._places[job.id].service_forgotten_gpu_s

    def _deserves_promotion(self, job: JobView, place: _Place, now_s: float) -> bool:
        if self.promote is None or place.queue == 0 or place.waited_since_s is None:
            return False
        executed = job.executed_s(now_s) - place.executed_forgotten_s
        return executed > 0 and now_s - place.waited_since_s >= self.promote * executed

    def _gittins(self, job: JobView, now_s: float) -> float:
        service = self._service(job, now_s)
        limit = next((limit for limit in self.limits_gpu_s if limit > service), float("inf"))
        return self._services.gittins_index(service, limit)

    def wake_at_s(self, view: ClusterView, granted: Sequence[JobView]) -> float | None:
        """When the first granted job will reach its queue's limit, or a waiting one its promotion."""
        instants = []
        for job in granted:
            service = self._service(job, view.now_s)
            above = [limit - service for limit in self.limits_gpu_s if limit > service + 1e-6]
            if above:
                instants.append(view.now_s + min(above) / job.facts.requested_slots)
        if self.promote is not None:
            for job in view.jobs:
                place = self._places[job.id]
                if place.queue and place.waited_since_s is not None:
                    executed = job.executed_s(view.now_s) - place.executed_forgotten_s
                    instants.append(place.waited_since_s + self.promote * executed)
        return min((instant for instant in instants if instant > view.now_s + 1e-9), default=None)
