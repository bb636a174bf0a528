"""Until when a running job keeps its slots, whatever the policy decides.

The planner, forecasts and what-if simulations apply the same rule, :attr:`Standing.protected_until_s`, to a job's
standing: the planner to its standing now, a simulation to the one that it foresees.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from geminid.jobstate import JobPhase
from geminid.policies.base import JobView
from geminid.serve.livejob import LiveJob

#: Least time in seconds that a job keeps slots after it has begun to train on them.
SETTLE_S = 3.0

#: … or this many of its pauses, if that is longer.
SETTLE_PAUSES = 3.0

#: Longest time in seconds for which a job that is being started or resized keeps the slots that it is to get.
STARTING_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What protects a job that has slots. All times are of one clock.

    ``resizable`` jobs can give up slots without losing work. The slots were ``planned_s`` for it; it has ``arrived`` if
    it trains on exactly these, and may have trained on them since ``settles_s``. It ``lacks_slots`` if it has fewer
    than its owner asks for. After a failed move it must not move before ``stays_until_s``.
    """

    resizable: bool
    arrived: bool
    planned_s: float
    settles_s: float
    rescale_s: float
    started_s: float
    min_runtime_s: float
    lacks_slots: bool = False
    stays_until_s: float = 0.0

    @property
    def protected_until_s(self) -> float:
        """Until when the job keeps its slots; infinity: until it ends."""
        if not self.resizable:
            return inf
        if not self.arrived:
            return self.planned_s + STARTING_S
        settled = -inf if self.lacks_slots else settled_s(self.settles_s, self.rescale_s)
        return max(settled, self.started_s + self.min_runtime_s, self.stays_until_s)


def settled_s(trains_since_s: float, rescale_s: float) -> float:
    """When a job that trains on its slots since a time may change them again; a change pauses it for ``rescale_s``."""
    return trains_since_s + max(SETTLE_S, SETTLE_PAUSES * rescale_s)


def standing_now(job: LiveJob, view: JobView) -> Standing:
    """The standing of a live job, on the service's clock. ``view`` is the job in the engine."""
    on_its_way = job.phase in (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RESCALING)
    formed = job.formed_at_s >= job.target_since_s and job.state.placement == job.target
    return Standing(
        resizable=job.elastic,
        arrived=formed or not on_its_way,
        planned_s=job.target_since_s,
        settles_s=max(job.target_since_s, job.formed_at_s),
        rescale_s=view.facts.rescale_s,
        started_s=job.target_since_s if view.started_s is None else view.started_s,
        min_runtime_s=job.spec.min_runtime_s,
        lacks_slots=job.target is not None and job.target.num_slots < job.spec.min_slots,
        stays_until_s=job.stays_put_until_s,
    )


def standing_foreseen(job: LiveJob, view: JobView, now_s: float, *, resizable: bool) -> Standing:
    """The standing of a live job at a moment of a simulation whose time begins at ``now_s``.

    ``view`` is the job in the simulated engine, ``resizable`` whether it can be resized once it runs. A job that is on
    its way to its slots is taken to have arrived: the simulation does not follow it there.
    """
    started_s = view.since_s if view.started_s is None else view.started_s
    moved = job.target is None or view.restarts != job.restarts
    return Standing(
        resizable=resizable,
        arrived=True,
        planned_s=view.since_s,
        settles_s=max(view.since_s, view.paused_until_s if moved else job.formed_at_s - now_s),
        rescale_s=view.facts.rescale_s,
        started_s=started_s,
        min_runtime_s=job.spec.min_runtime_s,
        lacks_slots=view.slots < job.spec.min_slots,
        stays_until_s=-inf if moved else job.stays_put_until_s - now_s,
    )
