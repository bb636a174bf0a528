"""What simulated jobs with profiles really do on shared slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.sharing import shared_speed, utilisation
from geminid.gputypes import PCIE_BYTES_PER_S, named_gpu_type
from geminid.job import Adaptivity
from geminid.policies.base import JobFacts, SharingModel
from geminid.sim.application import Application
from geminid.sim.profiles.built_in import USABLE_MEMORY
from geminid.sim.simjob import SimJob
from geminid.sim.tuner import for_total

#: The share of what a guest uses that has to be on the accelerator at any time; an assumption.
WORKING_SET = 0.25


@dataclass(slots=True)
class ApplicationSharing:
    """Speeds of pairs from how busy their applications keep a slot at the requested batch size.

    Two jobs can share only if both batches fit into memory together; what a job needs without any samples is left out,
    and an application whose batch is limited by statistics rather than memory is taken to need all of it at its limit.
    It is a :class:`geminid.policies.base.SharingModel`.

    It is a :class:`geminid.policies.sharing.SpillingModel` too. What a guest cannot keep on the accelerator is copied
    from the memory of the machine once in every pass, over PCIe, while it computes nothing; at least ``WORKING_SET`` of
    what it uses has to be on the accelerator at any time. Nobody has measured this: real allocators move parts that
    are needed at different times, partly while they compute, and the copies take bandwidth from the host's input.
    """

    applications: Mapping[str, Application]
    _known: dict[tuple[str, int, int | None, str], tuple[float, float]] = field(default_factory=dict)
    _busy: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def relative_speeds(self, first: JobFacts, second: JobFacts, gpu_type: str) -> tuple[float, float]:
        """Speeds of two jobs on shared slots, relative to having them alone."""
        one, other = self._use(first, gpu_type), self._use(second, gpu_type)
        if one[1] + other[1] > 1.0:
            return 0.0, 0.0
        return shared_speed(one[0], other[0]), shared_speed(other[0], one[0])

    def speeds_together(self, jobs: Sequence[JobFacts], gpu_type: str, batches: Sequence[int]) -> NDArray[np.float64]:
        """The same for every job (rows) beside every other (columns), at these batches per slot.

        The memory of jobs that choose their batch size is halved for as long as they share. Whatever they choose, what
        their users asked for has to fit as well: they start with it.
        """
        asked = [self._use(facts, gpu_type) for facts in jobs]
        busy = np.array([use[0] for use in asked])
        memory, most = np.array([use[1] for use in asked]), np.array([use[1] for use in asked])
        for row, (facts, batch) in enumerate(zip(jobs, batches, strict=True)):
            if batch and memory[row] <= 1.0:
                largest = self.applications[facts.kind].limits[gpu_type].largest_per_slot
                busy[row] = self.busy(facts.kind, gpu_type, batch)
                memory[row] = batch / largest
                if facts.adaptivity is Adaptivity.ADAPTIVE:
                    memory[row] = 0.5 if 2 * batch <= largest else 2.0
        most = np.maximum(most, memory)
        fits = most[:, None] + most <= 1.0
        return np.where(fits, shared_speed(busy[:, None], busy), 0.0)

    def spilled_speeds(
        self, host: JobFacts, guest: JobFacts, gpu_type: str, memory_cap: float
    ) -> tuple[float, float, float]:
        """Speeds of a host, which has all the memory that it needs, and its guest, and what spills of the guest's."""
        slower, spills = self.spilled(host, guest, gpu_type, memory_cap)
        if slower <= 0.0:
            return 0.0, 0.0, spills
        one, other = self._use(host, gpu_type)[0], self._use(guest, gpu_type)[0]
        return shared_speed(one, other), slower * shared_speed(other, one), spills

    def spilled(self, host: JobFacts, guest: JobFacts, gpu_type: str, memory_cap: float) -> tuple[float, float]:
        """What spilling leaves of a guest's speed, 0 if it cannot run beside its host, and what spills of its memory.

        Batches are the requested ones.
        """
        hosts, guests = self._use(host, gpu_type)[1], self._use(guest, gpu_type)[1]
        if hosts > 1.0 or guests > 1.0:
            return 0.0, 0.0
        stays = min(guests, 1.0 - hosts, memory_cap)
        spills = guests - stays
        if spills <= 1e-9:
            return 1.0, 0.0
        if stays < WORKING_SET * guests:
            return 0.0, spills / guests
        app = self.applications[guest.kind]
        limits = app.limits[gpu_type]
        per_slot = round(guests * limits.largest_per_slot)
        pass_s = app.truth[gpu_type].step_times((1,), per_slot)[0]
        copied_s = spills * USABLE_MEMORY * named_gpu_type(gpu_type).memory_bytes / PCIE_BYTES_PER_S
        return pass_s / (pass_s + copied_s), spills / guests

    def busy(self, kind: str, gpu_type: str, per_slot_batch: int) -> float:
        """How busy an application keeps a slot at a batch size."""
        key = (kind, gpu_type, per_slot_batch)
        if key not in self._busy:
            app = self.applications[kind]
            limits, truth = app.limits[gpu_type], app.truth[gpu_type]
            pass_s = {m: truth.step_times((1,), m)[0] for m in (per_slot_batch, limits.largest_per_slot)}
            self._busy[key] = utilisation(pass_s.__getitem__, per_slot_batch, limits.largest_per_slot)
        return self._busy[key]

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
        limits = app.limits[gpu_type]
        batch = for_total(limits, facts.requested_slots, facts.requested_batch or limits.initial)
        if batch is None:
            return 1.0, 2.0
        return self.busy(facts.kind, gpu_type, batch.per_slot), batch.per_slot / limits.largest_per_slot


def speed_beside(sharing: SharingModel, job: SimJob, other: SimJob) -> float:
    """The fraction of its speed that a job keeps beside another on the same slots.

    It depends on the batches of both, if they have any, and on the fraction of the time for which the other computes.
    """
    mine, theirs = job.stint, other.stint
    assert mine is not None
    assert theirs is not None
    if isinstance(sharing, ApplicationSharing) and mine.batch is not None and theirs.batch is not None:
        busy = sharing.busy(job.facts.kind, mine.gpu_type, mine.batch.per_slot)
        speed = shared_speed(busy, sharing.busy(other.facts.kind, mine.gpu_type, theirs.batch.per_slot))
        if mine.memory_cap is not None:
            speed *= sharing.spilled(other.facts, job.facts, mine.gpu_type, mine.memory_cap)[0]
    else:
        speed = sharing.relative_speeds(job.facts, other.facts, mine.gpu_type)[0]
    return 1.0 - theirs.cap * (1.0 - speed)
