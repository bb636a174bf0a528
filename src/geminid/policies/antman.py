"""AntMan: guaranteed jobs on slots of their own, opportunistic ones on what these leave.

Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning", OSDI '20.

Guaranteed jobs get the slots that they ask for to themselves, first come first served, as if there were no others; one
that does not fit is passed over. An opportunistic job gets idle slots until a guaranteed job needs them; where there
are none it joins the guaranteed job that keeps its slots least busy (less than ``busiest``) among those that ask for
equally many slots, first where both fit into memory. Elsewhere it gets the memory that its host leaves, at most
``memory_cap`` of a slot's, and the rest spills to the memory of the machine, which slows it down; where even what it
needs at a time does not fit, it waits. Beside a host it computes for a share p of the time only: after each step it
sleeps until run time/p has passed, and p = 0 suspends it. A controller watches the guaranteed job's step time every
``control`` seconds (ten times as rarely once nothing changes): what the job loses beside its guest grows with p, so p
is set to lose two thirds of ``tolerance``, at most twice the last p at a time. Without any tolerance nobody gets a
guest.

Guaranteed jobs are placed on as few nodes as possible, wherever guests are. Their steps are slowed down by guests
within ``tolerance``; but who waits for slots waits for all the jobs before it, each of which ends a little later, so a
completion time may change by more than a run time does, and the order in which slots become free may change too.

Which jobs are opportunistic, a workload says (the field ``opportunistic``); ``opportunistic=0.3`` makes that share of
the others opportunistic as well, drawn by their names.

Deviations and what is unverified. Exclusive slots, the choice of the host by utilisation and the cap are from a
published re-implementation; the control loop is from memory of the paper, its form is ours. How busy a job keeps its
slots is read from its speed beside a copy of itself. What spilling costs is an assumption (see
``geminid.sim.sharing``): what does not fit is copied once in every pass at the speed of PCIe. A memory cap is set when
a guest starts and does not follow the host's use over time, of which only the peak is known. A slot has one guest at
most.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.options import AtLeast, AtMost, Positive
from geminid.policies.packing import FreeSlots, usable_types
from geminid.policies.sharing import beside_host, busy

#: The share of the time for which a new guest computes.
FIRST_CAP = 0.05

#: What the controller aims at, of the loss that is tolerated.
AIM = 2.0 / 3.0

#: A cap is at most multiplied by this at a time.
FASTEST_RAISE = 2.0

#: A cap below this is not worth the guest's memory: it is suspended until its host is faster.
LEAST_CAP = 0.01

#: Change of a cap below which it counts as settled.
SETTLED = 0.002

#: Factor by which the controller looks less often at settled caps.
RARELY = 10.0

#: Slack when comparing times.
INSTANT_S = 1e-6


@dataclass(slots=True)
class AntMan(Policy):
    """Guaranteed jobs get the slots they ask for to themselves, first come first served.

    Opportunistic jobs run on idle slots until a guaranteed job needs them, or beside the guaranteed job that keeps its
    slots least busy, in the memory that this leaves; what does not fit spills to the machine's memory, which slows
    them down. There they compute for a share of the time only, which a controller raises and cuts so that the
    guaranteed job's steps hardly become slower. It knows how busy jobs keep their slots and
    the measured step times of guaranteed jobs; it changes placement, sharing and the guests' share of the time.
    """

    name = "antman"
    paper = "Xiao et al., OSDI '20"
    objective = "guaranteed jobs as if alone; opportunistic ones on what they leave, slowed down as needed"
    not_live = "live jobs cannot share slots, nor compute for a part of the time only"
    meanings: ClassVar[Mapping[str, str]] = {
        "opportunistic": "share of the jobs that are opportunistic although the workload does not say so",
        "tolerance": "share of its speed that a guaranteed job may lose beside a guest; with 0 nobody has a guest",
        "busiest": "how busy a job may keep its slots and still have a guest, from 0 to 1",
        "memory_cap": "largest share of a slot's memory that a guest may use, from 0 to 1; the rest spills",
        "control": "seconds between two looks at the step times of guaranteed jobs",
        "seed": "draws the opportunistic jobs",
    }

    opportunistic: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.0
    tolerance: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.03
    busiest: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 0.8
    memory_cap: Annotated[float, AtLeast(0.0), AtMost(1.0)] = 1.0
    control_s: Positive = 10.0
    seed: int = 0
    _caps: dict[tuple[str, str], float] = field(default_factory=dict)
    _controlled_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.needs_reports = True

    def is_opportunistic(self, job: JobView) -> bool:
        """Whether a job takes what others leave."""
        drawn = zlib.crc32(f"{self.seed}:{job.id}".encode()) / 2**32
        return job.facts.opportunistic or drawn < self.opportunistic

    def decide(self, view: ClusterView) -> Decision:
        """Slots for guaranteed jobs, then what they leave for the others, then how much these may compute."""
        guests = [job for job in view.jobs if self.is_opportunistic(job)]
        lower = {job.id for job in guests}
        given = self._guaranteed(view, [job for job in view.jobs if job.id not in lower])
        jobs = {job.id: job for job in view.jobs}
        hosts = dict.fromkeys(given)
        free = FreeSlots(view, view.usable_slots)
        for allocation in given.values():
            free.take(allocation)
        pairs: list[tuple[str, str]] = []
        for job in sorted(guests, key=lambda job: not job.allocation):  # who runs stays where it is
            if job.allocation and job.partner is None and free.holds(job.allocation):
                free.take(job.allocation)
                given[job.id] = job.allocation
                continue
            host = job.partner if job.partner in hosts and given[job.partner] == job.allocation else None
            if host is None:
                alone = free.fewest_nodes(job.facts.requested_slots, usable_types(job, free))
                if alone is not None:
                    given[job.id] = alone
                    continue
                host = self._host(view, job, [jobs[name] for name in hosts], given)
            if host is not None:
                given[job.id] = given[host]
                pairs.append((host, job.id))
                del hosts[host]
        before = dict(self._caps)
        caps = self._control(view, jobs, pairs)
        settled = all(abs(cap - before.get(pair, -1.0)) <= SETTLED for pair, cap in self._caps.items())
        reasons = {guest: f"computes {100 * caps[guest]:.0f} % of the time beside {host}" for host, guest in pairs}
        wake_at_s = view.now_s + self.control_s * (RARELY if settled else 1.0) if pairs else None
        memory_caps = {guest: self.memory_cap for _, guest in pairs}
        return Decision(given, pairs=pairs, caps=caps, memory_caps=memory_caps, reasons=reasons, wake_at_s=wake_at_s)

    def _guaranteed(self, view: ClusterView, jobs: Sequence[JobView]) -> dict[str, Allocation]:
        """Who runs keeps its slots; the others get some in the order of arrival, wherever guests are."""
        free = FreeSlots(view, view.usable_slots)
        given: dict[str, Allocation] = {}
        for job in jobs:
            if job.allocation and free.holds(job.allocation):
                free.take(job.allocation)
                given[job.id] = job.allocation
        for job in jobs:
            if job.id not in given:
                allocation = free.fewest_nodes(job.facts.requested_slots, usable_types(job, free))
                if allocation is not None:
                    given[job.id] = allocation
        return given

    def _host(
        self, view: ClusterView, guest: JobView, hosts: Sequence[JobView], given: Mapping[str, Allocation]
    ) -> str | None:
        """The guaranteed job beside which a guest runs: the least busy one, first where all of the guest fits."""
        if view.sharing is None or self.tolerance <= 0.0:
            return None
        best: tuple[bool, float, str] | None = None
        for host in hosts:
            allocation = given[host.id]
            gpu_type = view.cluster.nodes[allocation[0][0]].gpu_type
            allowed = guest.facts.gpu_types
            if host.facts.requested_slots != guest.facts.requested_slots or (allowed and gpu_type not in allowed):
                continue
            used = busy(view.sharing, host.facts, gpu_type)
            if used >= self.busiest or (best is not None and (False, used) >= best[:2]):
                continue
            *speeds, spills = beside_host(view.sharing, host.facts, guest.facts, gpu_type, self.memory_cap)
            found = (spills > 0.0, used, host.id)
            if min(speeds) > 0 and (best is None or found[:2] < best[:2]):
                best = found
        return None if best is None else best[2]

    def _control(
        self, view: ClusterView, jobs: Mapping[str, JobView], pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """How much guests may compute, by what their hosts have lost since the last look."""
        self._caps = {pair: self._caps.get(pair, FIRST_CAP) for pair in pairs}
        self._controlled_s = {pair: self._controlled_s.get(pair, view.now_s) for pair in pairs}
        for pair in pairs:
            speed = jobs[pair[0]].relative_speed
            if speed is None or view.now_s < self._controlled_s[pair] + self.control_s - INSTANT_S:
                continue
            self._caps[pair] = self.next_cap(self._caps[pair], 1.0 - speed)
            self._controlled_s[pair] = view.now_s
        return {guest: self._caps[host, guest] for host, guest in pairs}

    def next_cap(self, cap: float, loss: float) -> float:
        """The next share of the time for a guest whose host lost this part of its speed at the last one."""
        aim = AIM * self.tolerance
        raised = FASTEST_RAISE * max(cap, LEAST_CAP)
        if aim <= 0.0:
            return 0.0
        wanted = raised if loss <= 0.0 else min(cap * aim / loss, raised)
        return 0.0 if wanted < LEAST_CAP else min(wanted, 1.0)
