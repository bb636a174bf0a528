"""The best goodput of a job on every number of slots, over all placements and batches that the simulator accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.sharing import shared_speed
from geminid.gputypes import LinkClass
from geminid.job import Adaptivity
from geminid.network import WITHIN_RACK, Path
from geminid.sim.rates import epoch_gains
from geminid.sim.sharing import ApplicationSharing
from geminid.sim.simjob import SimJob, halved
from geminid.sim.tuner import Batch, candidates, for_total, untuned

Array = NDArray[np.float64]

#: What decides how fast a job with an application can be: application, adaptivity, batches that users asked for, and
#: the fewest and most slots.
Kind = tuple[int, Adaptivity, frozenset[int], int, int]


@dataclass(frozen=True, slots=True)
class Modes:
    """Ways to run a job: this many ``slots`` of a GPU type (an index) give, in each epoch (rows), ``rates``.

    Rates are in the unit of the job's progress per second. A job beside another on the same slots uses half of each.
    """

    slots: Array
    gpu_type: NDArray[np.int64]
    rates: Array


@dataclass(slots=True)
class Rates:
    """The best rates of jobs on a cluster; ``sharing`` is given if two jobs may be on the same slots."""

    cluster: Cluster
    sharing: ApplicationSharing | None = None
    least_busy: Mapping[str, float] = field(default_factory=dict)

    def modes(self, jobs: Sequence[SimJob]) -> Modes:
        """What jobs of one kind can do; the batches that any of them asks for count for all."""
        job = jobs[0]
        slots: list[float] = []
        types: list[int] = []
        rates: list[Array] = []
        for gpu_type, limits in self._limits(job).items():
            paths = multi_node_paths(self.cluster, gpu_type)
            nodes = [self.cluster.nodes[node].slots for node in self.cluster.nodes_of_type[gpu_type]]
            for count in range(job.facts.min_slots, min(job.facts.max_slots, sum(nodes)) + 1):
                plans = list(accepted_batches(jobs, limits, count, shared=self.sharing is not None))
                if not plans:
                    continue
                alone = self._rates(job, gpu_type, nodes, count, plans, paths)
                options = [(float(count), alone.max(axis=0))]
                if self.sharing is not None:
                    speeds = self._speeds_beside(job, gpu_type, plans)
                    options.append((0.5 * count, (alone * speeds[:, None]).max(axis=0)))
                for used, best in options:
                    slots.append(used)
                    types.append(self.cluster.type_index[gpu_type])
                    rates.append(best)
        return Modes(np.array(slots), np.array(types, dtype=np.int64), np.array(rates).T)

    def _limits(self, job: SimJob) -> dict[str, BatchLimits]:
        assert job.application is not None
        limits = job.application.value.limits
        return {gpu_type: limits[gpu_type] for gpu_type in self.cluster.nodes_of_type if gpu_type in job.facts.limits}

    def _rates(
        self,
        job: SimJob,
        gpu_type: str,
        nodes: Sequence[int],
        slots: int,
        plans: Sequence[Batch],
        paths: Iterable[Path],
    ) -> Array:
        """Rates by plan and epoch, on the fastest placement."""
        assert job.application is not None
        app = job.application.value
        per_slot = [plan.per_slot for plan in plans]
        steps = np.array([plan.accumulation for plan in plans], dtype=float)
        fastest = np.full(len(plans), np.inf)
        for path in paths:
            for accumulation_s, step_s in app.truth[gpu_type].all_step_times(nodes, slots, per_slot, path):
                np.minimum(fastest, steps * accumulation_s + step_s, out=fastest)
        gains = np.array([epoch_gains(job.application, plan.total) for plan in plans])
        rates: Array = gains / (fastest * app.speed_divisor)[:, None]
        return rates

    def _speeds_beside(self, job: SimJob, gpu_type: str, plans: Sequence[Batch]) -> Array:
        """The most that is left of the speed beside the least busy job of the workload, by plan."""
        assert self.sharing is not None
        busy = np.array([self.sharing.busy(job.facts.kind, gpu_type, plan.per_slot) for plan in plans])
        return shared_speed(busy, np.full(len(plans), self.least_busy[gpu_type]))


def accepted_batches(jobs: Sequence[SimJob], limits: BatchLimits, slots: int, *, shared: bool) -> set[Batch]:
    """Every batch plan that the simulator can give one of these jobs on this many slots."""
    job = jobs[0]
    asked = {each.facts.requested_batch or limits.initial for each in jobs}
    plans = {for_total(limits, slots, total) for total in asked}
    if job.facts.adaptivity is Adaptivity.ADAPTIVE:
        for within in (limits, halved(limits)) if shared else (limits,):
            plans.add(untuned(within, slots))
            found = candidates(within, slots)
            if found is not None:
                plans |= {Batch(int(m), int(s), int(total)) for m, s, total in zip(*found, strict=True)}
    return {plan for plan in plans if plan is not None}


def least_busy(kinds: Iterable[Sequence[SimJob]], cluster: Cluster, sharing: ApplicationSharing) -> dict[str, float]:
    """How busy the least busy job can keep a slot of each GPU type, at any batch."""
    least = dict.fromkeys(cluster.nodes_of_type, 1.0)
    for jobs in kinds:
        facts, application = jobs[0].facts, jobs[0].application
        assert application is not None
        for gpu_type in least.keys() & facts.limits.keys():
            limits = application.value.limits[gpu_type]
            most = min(facts.max_slots, cluster.slots_per_type[gpu_type])
            batches = {
                plan.per_slot
                for slots in range(facts.min_slots, most + 1)
                for plan in accepted_batches(jobs, limits, slots, shared=True)
            }
            busy = (sharing.busy(facts.kind, gpu_type, batch) for batch in batches)
            least[gpu_type] = min(least[gpu_type], min(busy, default=1.0))
    return least


def multi_node_paths(cluster: Cluster, gpu_type: str) -> list[Path]:
    """The fastest path between nodes of a type on every tier that a placement can cross."""
    links = cluster.links
    if links.as_profiled:
        return [WITHIN_RACK.path]
    index = cluster.type_index[gpu_type]
    widest = {tier: np.inf if tier is LinkClass.RACK else float(links.capacity.max()) for tier in links.tiers}
    return [Path(tier, links.slowdown_over(tier, index, widest[tier])) for tier in links.tiers]
