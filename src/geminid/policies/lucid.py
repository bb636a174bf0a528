"""Lucid: shortest predicted job first, without preemption, and jobs that hardly disturb each other on the same slots.

Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training Jobs", ASPLOS '23.

Waiting jobs are served by predicted duration × slots, the smallest first; who runs is never interrupted. A job is
placed as the published code does: on the fullest node that has room for all of it, or on whole nodes if it is larger
than any (there: than 8 slots). A job for which there is no such place may join one that runs. Every kind of job has a
share score from its mean speed beside others: 2 below 0.85, 1 below 0.95, else 0. Two may share if their scores add
up to at most 2, they ask for equally many slots, at most 8, both fit into memory, and the newcomer is predicted to
last at most twice as long as the one that runs.

Durations are predicted from the jobs that have ended: the geometric mean of those of the same kind and size, of the
same kind, or of all. With ``--oracle`` they are known.

Deviations and what is unverified. The paper predicts durations by a generalised additive model of what users write
(names, owners, times), and which pairs are light by a decision tree over measured utilisations; here scores come from
the speeds themselves, by the published thresholds, of all kinds that have been seen. It profiles every job for some
minutes on nodes of their own, which are left out. Its code packs jobs even where slots are free, whenever the forecast
load of the cluster is high; here nobody shares while there is a place. The order, the thresholds and the limits are
read in the published code; from the measured pairs that come with it, the thresholds give 42 of 56 published scores.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from geminid.policies.base import Allocation, ClusterView, Decision, JobFacts, JobView, Policy, SharingModel
from geminid.policies.options import AtLeast
from geminid.policies.packing import FreeSlots, usable_types

#: Mean speed beside other jobs below which a kind has a share score of 2.
HEAVY_BELOW = 0.85

#: Mean speed beside other jobs below which a kind has a share score of 1.
MEDIUM_BELOW = 0.95

#: Two share if their scores add up to at most this.
MOST_SCORE = 2

#: Larger jobs share with nobody.
MOST_SLOTS = 8

#: What a job is predicted to take before any has ended, in seconds.
TYPICAL_S = 1800.0

#: What tells the speeds of a job beside others.
Kind = tuple[str, int, int | None]


def share_score(mean_speed: float) -> int:
    """How heavy a neighbour a kind of job is, by its mean speed beside others: 0, 1 or 2."""
    return 2 if mean_speed < HEAVY_BELOW else 1 if mean_speed < MEDIUM_BELOW else 0


@dataclass(slots=True)
class Lucid(Policy):
    """Waiting jobs are served by predicted duration × slots, the smallest first; nobody is interrupted.

    A job gets slots of the fullest node that has room for it, or whole nodes. One for which there are none joins a
    running one of the same size if neither disturbs the other much, by scores from measured speeds of pairs, and if
    it is not predicted to last much longer. Durations are predicted from jobs that have ended, by kind and size. It
    knows durations of the past and speeds of pairs, and changes only who starts. Live, jobs cannot share slots:
    nobody joins another there, and ``packing`` changes nothing.
    """

    name = "lucid"
    paper = "Hu et al., ASPLOS '23"
    objective = "shortest predicted duration × slots first, not preempting; light jobs on the same slots"
    meanings: ClassVar[Mapping[str, str]] = {
        "packing": "let jobs share slots when none are free (in simulations only)",
        "longer": "how many times as long as the running job one that joins it may be predicted to last",
    }

    packing: bool = True
    longer: Annotated[float, AtLeast(0.0)] = 2.0
    _ended: dict[tuple[object, ...], list[float]] = field(default_factory=lambda: defaultdict(list))
    _kinds: dict[Kind, JobFacts] = field(default_factory=dict)
    _scores: dict[tuple[Kind, str], int] = field(default_factory=dict)

    def decide(self, view: ClusterView) -> Decision:
        """Start waiting jobs in order, alone where slots are free, else beside a light one."""
        self._learn(view)
        waiting = [job for job in view.jobs if not job.allocation]
        running = [job for job in view.jobs if job.allocation]
        if min(view.free_slots, default=0) < 0:  # somebody has to leave a drained node
            running = [job for job in running if job.stands(view.usable_slots)]
            stays = {job.id for job in running}
            waiting = [job for job in view.jobs if job.id not in stays]
        sizes = {job.id: self._predicted_s(view, job) * job.facts.requested_slots for job in view.jobs}
        free = FreeSlots(view, view.usable_slots)
        given: dict[str, Allocation] = {}
        pairs: list[tuple[str, str]] = []
        alone: dict[int, list[JobView]] = defaultdict(list)
        for job in running:
            given[job.id] = job.allocation
            if job.partner is None or job.id < job.partner:
                free.take(job.allocation)
                pairs += [(job.id, job.partner)] if job.partner is not None else []
            if job.partner is None and job.slots == job.facts.requested_slots:
                alone[job.slots].append(job)
        reasons: dict[str, str] = {}
        for job in sorted(waiting, key=lambda job: sizes[job.id]):
            allocation = free.consolidated(job.facts.requested_slots, usable_types(job, free))
            if allocation is not None:
                given[job.id] = allocation
                continue
            host = self._host(view, job, alone[job.facts.requested_slots], sizes) if self.packing else None
            if host is not None:
                alone[job.facts.requested_slots].remove(host)
                given[job.id] = host.allocation
                pairs.append((host.id, job.id))
                reasons[job.id] = f"shares slots with {host.id}: both are light"
            elif self.packing and view.sharing is None:
                reasons[job.id] = "no_sharing: jobs cannot share slots here, it waits for free ones"
        return Decision(given, pairs=pairs, reasons=reasons)

    def _learn(self, view: ClusterView) -> None:
        """Remember how long jobs took that have ended, and which kinds there are."""
        for job in view.ended:
            took_s = max(job.executed_s(view.now_s), 1.0)
            for key in _likenesses(job.facts):
                self._ended[key].append(math.log(took_s))
        for job in view.jobs:
            kind = _kind(job.facts)
            if kind not in self._kinds:
                self._kinds[kind] = job.facts
                self._scores.clear()

    def _predicted_s(self, view: ClusterView, job: JobView) -> float:
        """How long a job takes on the slots that it asks for, from those that were like it."""
        if view.oracle is not None:
            return view.oracle.remaining_s(job.id)
        for key in _likenesses(job.facts):
            if self._ended.get(key):
                return math.exp(sum(self._ended[key]) / len(self._ended[key]))
        return TYPICAL_S

    def _host(
        self, view: ClusterView, guest: JobView, hosts: Sequence[JobView], sizes: Mapping[str, float]
    ) -> JobView | None:
        """The first running job that a waiting one may join."""
        if view.sharing is None or guest.facts.requested_slots > MOST_SLOTS:
            return None
        for host in hosts:
            gpu_type, allowed = host.gpu_type, guest.facts.gpu_types
            if gpu_type is None or (allowed is not None and gpu_type not in allowed):
                continue
            if sizes[guest.id] > self.longer * sizes[host.id]:
                continue
            scores = (self._score(view.sharing, facts, gpu_type) for facts in (host.facts, guest.facts))
            if sum(scores) > MOST_SCORE:
                continue
            if min(view.sharing.relative_speeds(host.facts, guest.facts, gpu_type)) > 0:
                return host
        return None

    def _score(self, sharing: SharingModel, facts: JobFacts, gpu_type: str) -> int:
        """A kind's share score: from its mean speed beside all kinds that it fits with."""
        key = (_kind(facts), gpu_type)
        if key not in self._scores:
            beside = [sharing.relative_speeds(facts, other, gpu_type) for other in self._kinds.values()]
            speeds = [speed for speed, partner in beside if speed > 0 and partner > 0]
            self._scores[key] = share_score(sum(speeds) / len(speeds)) if speeds else 2
        return self._scores[key]


def _kind(facts: JobFacts) -> Kind:
    return facts.kind, facts.requested_slots, facts.requested_batch


def _likenesses(facts: JobFacts) -> Iterable[tuple[object, ...]]:
    """What a job has in common with others, the closest first."""
    return (facts.kind, facts.owner, facts.requested_slots), (facts.kind, facts.requested_slots), (facts.kind,), ()
