"""The simulated network: jobs that send over the same uplinks at the same time share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from geminid.cluster import Cluster
from geminid.network import WITHIN_RACK, Crossing, Links
from geminid.policies.base import Allocation
from geminid.sim.simjob import SimJob, Stint
from geminid.sim.timeuse import iteration_times
from geminid.solve.uplinks import max_min_shares

#: Relative difference below which two speeds count as equal.
SAME_SPEED = 1e-9


class Uplinks:
    """The network between the nodes of a cluster, and whether what jobs send over uplinks has changed.

    ``changed`` is set by ``note_change`` and reset by ``contentions``. On a cluster whose links are as profiled, no
    job ever uses an uplink.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.links = None if cluster.links.as_profiled else cluster.links
        self.changed = False

    def crossing(self, allocation: Allocation) -> Crossing:
        """What joins the nodes of an allocation."""
        return WITHIN_RACK if self.links is None else self.links.crossing(tuple(node for node, _ in allocation))

    def note_change(self, job: SimJob) -> None:
        """A job begins, changes or ends its use of uplinks, if it uses any."""
        if job.stint is not None and job.stint.crossing.uplinks:
            self.changed = True

    def contentions(self, running: Iterable[SimJob], now_s: float) -> Iterator[tuple[SimJob, float]]:
        """The jobs whose speed changes now, and how many times longer their steps take than with uplinks of their own.

        A job needs what it would send on average if no other job did. Shares are max-min fair: a job that gets all it
        needs keeps its speed, and the iterations of the others take longer in proportion. Jobs that pause send nothing.
        """
        self.changed = False
        assert self.links is not None
        links = self.links
        crossing = [(job, job.stint) for job in running if job.stint is not None and job.stint.crossing.uplinks]
        demand = [_demand(job, stint, links) if stint.works_from_s <= now_s else 0.0 for job, stint in crossing]
        sent = dict.fromkeys((uplink for _, stint in crossing for uplink in stint.crossing.uplinks), 0.0)
        for (_, stint), needed in zip(crossing, demand, strict=True):
            for uplink in stint.crossing.uplinks:
                sent[uplink] += needed
        full = {uplink for uplink, needed in sent.items() if needed > links.capacity[uplink]}  # others limit nobody
        share = demand
        if full:
            limits = [[uplink for uplink in stint.crossing.uplinks if uplink in full] for _, stint in crossing]
            share = max_min_shares(demand, limits, {uplink: float(links.capacity[uplink]) for uplink in full})
        for (job, stint), needed, got in zip(crossing, demand, share, strict=True):
            contention = needed / got if needed > got * (1.0 + SAME_SPEED) else 1.0
            if abs(contention - stint.contention) > SAME_SPEED * contention:
                yield job, contention


def _demand(job: SimJob, stint: Stint, links: Links) -> float:
    """Bytes per second that a stint would send over its uplinks if it had them to itself."""
    if job.application is None or stint.batch is None:
        return 0.0
    if stint.demand_bytes_per_s is None:
        iteration_s = iteration_times(job.application.value, stint)[0] / stint.contention
        stint.demand_bytes_per_s = _sync_bytes(job, stint, links) / iteration_s
    return stint.demand_bytes_per_s * stint.speed * stint.cap / stint.slowdown


def _sync_bytes(job: SimJob, stint: Stint, links: Links) -> float:
    """Bytes that each rack sends in one iteration: from the gradient's size if known, else from the profiled time."""
    assert job.application is not None
    assert stint.batch is not None
    app, slots = job.application.value, sum(stint.placement)
    if app.gradient_bytes is not None:
        return 2.0 * (slots - 1) / slots * app.gradient_bytes
    accumulation_s, step_s = app.truth[stint.gpu_type].step_times(stint.placement, stint.batch.per_slot)
    return (step_s - accumulation_s) * links.reached[links.node_type[stint.allocation[0][0]]]
