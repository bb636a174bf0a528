"""Goodput of every job on every configuration that it may use now, as policies that choose among them need it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.goodput.table import GoodputTable, JobModel
from geminid.goodput.transfer import Method, transfer
from geminid.gputypes import LinkClass
from geminid.job import Adaptivity
from geminid.network import Links
from geminid.policies.base import ClusterView, JobFacts, JobView, PlanSpeeds
from geminid.policies.kinds import KindMemory

Array = NDArray[np.float64]

#: Number of nodes up to which every number of nodes is a configuration of its own.
DENSE_NODES = 16


def configurations_of(
    cluster: Cluster, own_sizes: Iterable[int] = (), most_slots: int | None = None
) -> list[Configuration]:
    """Powers of two within a node, then whole nodes, and sizes that jobs ask for, for every GPU type.

    Any number of nodes up to ``DENSE_NODES``, then each an eighth more than the one before. More than ``most_slots``
    are left out, as far as whole nodes go: on a large cluster nobody may have most of them.
    """
    result = []
    for gpu_type, index in cluster.type_index.items():
        sizes = cluster.node_slots[cluster.node_type == index]
        per_node = int(sizes.max())
        full_nodes = int((sizes == per_node).sum())
        slots = 1
        while slots < per_node:
            result.append(Configuration(gpu_type=gpu_type, nodes=1, slots=slots))
            slots *= 2
        result += [
            Configuration(gpu_type=gpu_type, nodes=nodes, slots=nodes * per_node)
            for nodes in _node_counts(full_nodes)
            if most_slots is None or (nodes - 1) * per_node < most_slots
        ]
        have = {c.slots for c in result if c.gpu_type == gpu_type}
        result += [
            Configuration(gpu_type=gpu_type, nodes=-(-slots // per_node), slots=slots)
            for slots in sorted(set(own_sizes) - have)
            if slots <= per_node * full_nodes
        ]
    return result


def _node_counts(most: int) -> list[int]:
    counts = list(range(1, min(most, DENSE_NODES) + 1))
    while counts and counts[-1] < most:
        counts.append(min(counts[-1] + counts[-1] // 8, most))
    return counts


@dataclass(frozen=True, slots=True)
class _Completed:
    """A completed model, and what it was made from; ``most_slots`` is how far what it knows reaches."""

    source: JobModel | None
    version: int
    model: JobModel
    most_slots: int


@dataclass(frozen=True, slots=True)
class TieredColumns:
    """Configurations on every tier of the network that their nodes could cross.

    ``configurations`` and ``slowdowns`` are the columns of a table: first every configuration on the closest tier that
    can hold it, then those of several nodes on wider ones. ``column`` has one row per tier, with the column of each
    configuration there; where it fits on that tier only with nodes to spare, that of its closest.
    """

    configurations: tuple[Configuration, ...]
    slowdowns: tuple[float, ...]
    closest: tuple[LinkClass, ...]
    column: Mapping[LinkClass, NDArray[np.intp]]

    @classmethod
    def of(cls, cluster: Cluster, configurations: Sequence[Configuration]) -> TieredColumns:
        """The columns of a cluster; in one rack there is nothing to tell apart."""
        links = cluster.links
        closest = [closest_tier(cluster, configuration) for configuration in configurations]
        types = [cluster.type_index[configuration.gpu_type] for configuration in configurations]
        columns = list(configurations)
        slowdowns = [links.slowdown(tier, kind) for tier, kind in zip(closest, types, strict=True)]
        column = {}
        for tier in links.tiers:
            column[tier] = np.arange(len(configurations))
            for i, (configuration, own, kind) in enumerate(zip(configurations, closest, types, strict=True)):
                if configuration.nodes > 1 and _wider(links, tier, own):
                    column[tier][i] = len(columns)
                    columns.append(configuration)
                    slowdowns.append(links.slowdown(tier, kind))
        return cls(tuple(columns), tuple(slowdowns), tuple(closest), column)


def closest_tier(cluster: Cluster, configuration: Configuration) -> LinkClass:
    """The closest tier that can hold a configuration, if nobody else were there."""
    if configuration.nodes == 1:
        return LinkClass.NODE
    nodes = np.array(cluster.nodes_of_type.get(configuration.gpu_type, ()), dtype=np.intp)
    for tier, groups in ((LinkClass.RACK, cluster.node_rack), (LinkClass.ZONE, cluster.node_zone)):
        if len(nodes) and int(np.bincount(groups[nodes]).max()) >= configuration.nodes:
            return tier if tier in cluster.links.tiers else LinkClass.CLUSTER
    return cluster.links.tiers[-1]


def _wider(links: Links, tier: LinkClass, than: LinkClass) -> bool:
    return links.tiers.index(tier) > links.tiers.index(than)


@dataclass(slots=True)
class Goodputs:
    """A table that is kept from decision to decision, so that only jobs with news are computed again.

    Types that a job has not run on in several slots are predicted from the one that it knows best. A job may use at
    most ``growth`` times the most slots that it has run on: beyond, its model is a guess. A profile made beforehand
    counts as a run on ``profiled_slots``. With a ``memory`` of kinds, what earlier jobs of its kind have measured
    counts as its own. A job of which nothing is known yet is as fast on one configuration as on any other.
    In a cluster of several racks, configurations count as on the closest tier of the network that can hold them, but
    for the one that a job has: that counts as on the tier where it stands.
    With ``limits_as_sizes`` a job that may have at least three slots, or at most, and not more than a node has, may
    have three, although that is no power of two; what rigid jobs ask for is always a configuration.
    """

    growth: float
    profiled_slots: int = 1
    transfer_method: Method = "scaled"
    memory: KindMemory | None = None
    limits_as_sizes: bool = False
    _table: GoodputTable | None = None
    _nodes: tuple[object, ...] = ()
    _own_sizes: set[int] = field(default_factory=set)
    _widest: int = 0
    _columns: TieredColumns | None = None
    _completed: dict[str, _Completed] = field(default_factory=dict)
    _plan_rows: dict[int, tuple[PlanSpeeds, tuple[Configuration, ...], Array]] = field(default_factory=dict)

    def of(self, view: ClusterView, *, learn: bool = True) -> tuple[tuple[Configuration, ...], Array]:
        """The configurations, and goodputs of the view's jobs (rows) on them; zero where a job may not use one.

        Without ``learn``, the memory has seen this view already.
        """
        if self.memory is not None and learn:
            self.memory.learn(view.jobs, view.ended)
        table = self._refreshed(view)
        assert self._columns is not None
        configurations = table.configurations[: len(self._columns.closest)]
        slots = np.array([c.slots for c in configurations])
        goodput = table.goodput[:, : len(configurations)]
        goodput = np.where(np.isfinite(goodput), goodput, 0.0)
        if view.cluster.links.several_racks:
            self._where_they_stand(view, configurations, goodput)
        least, most = np.empty(len(view.jobs)), np.empty(len(view.jobs))
        for row, job in enumerate(view.jobs):
            facts, completed = job.facts, self._completed[job.id]
            if facts.plan_speeds is not None:
                goodput[row] = self._with_plans(facts, facts.plan_speeds, configurations)
                least[row], most[row] = facts.least_slots, facts.max_slots
                continue
            if not completed.model.fits:
                goodput[row] = [_without_model(facts, c.gpu_type) for c in configurations]
            least[row] = most[row] = facts.least_slots
            if facts.adaptivity is not Adaptivity.RIGID:
                known = max(int(self.growth * max(completed.most_slots, self.profiled_slots)), facts.least_slots)
                most[row] = min(known, facts.max_slots)
        goodput[(slots > most[:, None]) | (slots < least[:, None])] = 0.0
        return configurations, goodput

    @property
    def per_slot_batch(self) -> NDArray[np.int64]:
        """The batch per slot that each job of the last view would choose on each configuration; 0 if not known."""
        assert self._table is not None
        assert self._columns is not None
        return self._table.per_slot_batch[:, : len(self._columns.closest)]

    def _with_plans(self, facts: JobFacts, speeds: PlanSpeeds, configurations: tuple[Configuration, ...]) -> Array:
        """Speeds under the best plan on each configuration; a guaranteed job uses none that is below its request."""
        known = self._plan_rows.get(id(speeds))
        if known is None or known[0] is not speeds or known[1] is not configurations:
            row = np.array([speeds.steps_per_s(spread_evenly(c.slots, c.nodes)) for c in configurations])
            known = self._plan_rows[id(speeds)] = (speeds, configurations, row)
        requested = 0.0 if facts.opportunistic else max(facts.throughputs.values(), default=0.0)
        return np.where(known[2] >= requested * (1.0 - 1e-9), known[2], 0.0)

    def on_tier(self, row: int, column: int, tier: LinkClass) -> float:
        """The goodput of a job of the last view on a configuration whose nodes would cross a tier."""
        assert self._table is not None
        assert self._columns is not None
        goodput = self._table.goodput[
            row, self._columns.column[tier][column] if tier in self._columns.column else column
        ]
        return float(goodput) if np.isfinite(goodput) else 0.0

    def closest(self, column: int) -> LinkClass:
        """The closest tier that can hold a configuration."""
        assert self._columns is not None
        return self._columns.closest[column]

    def _where_they_stand(self, view: ClusterView, configurations: Sequence[Configuration], goodput: Array) -> None:
        """Let the configuration that a job has count as on the tier that its nodes cross."""
        columns = {(c.gpu_type, c.nodes, c.slots): column for column, c in enumerate(configurations)}
        for row, job in enumerate(view.jobs):
            if len(job.allocation) > 1 and self._completed[job.id].model.fits:
                column = columns.get((job.gpu_type or "", len(job.allocation), job.slots))
                if column is not None:
                    tier = view.cluster.links.tier([node for node, _ in job.allocation])
                    goodput[row, column] = self.on_tier(row, column, tier)

    def _refreshed(self, view: ClusterView) -> GoodputTable:
        own = {job.facts.requested_slots for job in view.jobs if job.facts.adaptivity is Adaptivity.RIGID}
        for speeds in {id(s): s for job in view.jobs if (s := job.facts.plan_speeds) is not None}.values():
            own |= speeds.sizes
        if self.limits_as_sizes:
            largest_node = int(view.cluster.node_slots.max())
            limits = {slots for job in view.jobs for slots in (job.facts.least_slots, job.facts.max_slots)}
            own |= {slots for slots in limits if slots <= largest_node}
        most = max((job.facts.max_slots for job in view.jobs), default=1)
        known = own <= self._own_sizes and most <= self._widest
        if self._table is None or not known or view.cluster.nodes != self._nodes:
            self._own_sizes |= own
            self._widest = max(self._widest, 1 << (most - 1).bit_length())
            self._nodes = view.cluster.nodes
            configurations = configurations_of(view.cluster, self._own_sizes, self._widest)
            self._columns = TieredColumns.of(view.cluster, configurations)
            self._table = GoodputTable.empty(self._columns.configurations, self._columns.slowdowns)
        models = {job.id: self._complete(job) for job in view.jobs}
        self._completed = {job_id: self._completed[job_id] for job_id in models}
        self._table = self._table.refresh(models)
        return self._table

    def _complete(self, job: JobView) -> JobModel:
        """The job's model with what others of its kind know, and types it has not run on in several slots.

        Those are carried over from the type that it knows best.
        """
        version = self.memory.version(job) if self.memory is not None else 0
        known = self._completed.get(job.id)
        if known is not None and known.source is job.model and known.version == version:
            return known.model
        model = job.model or JobModel({}, job.facts.limits)
        if self.memory is not None:
            model = self.memory.complete(job, model)
        fits = dict(model.fits)
        best = max(fits.values(), key=lambda fitted: fitted.most_slots, default=None)
        if best is not None and best.most_slots > 1:
            initial = next(iter(job.facts.limits.values())).initial
            for gpu_type, fitted in fits.items():
                if fitted.most_slots <= 1:
                    fits[gpu_type] = transfer(best, fitted, typical_batch=initial, method=self.transfer_method)
        completed = JobModel(fits, model.limits, model.gradient)
        most_slots = job.most_slots_measured if self.memory is None else self.memory.most_slots(job)
        self._completed[job.id] = _Completed(job.model, version, completed, most_slots)
        return completed


def spread_evenly(slots: int, nodes: int) -> tuple[int, ...]:
    """Slots on each node, as even as possible, most first."""
    each, more = divmod(slots, nodes)
    return (each + 1,) * more + (each,) * (nodes - more)


def _without_model(facts: JobFacts, gpu_type: str) -> float:
    """The speed of a job without any fit: what is known of its steps, or the same on every type that it may use."""
    if facts.steps:
        return facts.throughputs.get(gpu_type, 0.0)
    allowed = facts.limits or facts.gpu_types
    return 1.0 if allowed is None or gpu_type in allowed else 0.0
