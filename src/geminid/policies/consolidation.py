"""Where jobs stand matters in a cluster of several racks: bring those close together that gain by it.

A policy that chooses configurations leaves it to the placement on which nodes they are. Here it looks at the result: a
job whose nodes cross racks although a rack could hold them is as slow as its model says for those links. If it would do
better with fewer slots closer together, it gets those. Else it is moved into a rack if the time that saves is worth the
pause, with smaller jobs making room for it where that is worth their pauses, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from geminid.configuration import Configuration
from geminid.gputypes import LinkClass
from geminid.network import WHERE
from geminid.policies.base import Allocation, ClusterView, JobView, slots_of
from geminid.policies.goodputs import Goodputs
from geminid.solve.placement import place

#: A change must promise to save this many times what its pauses cost.
WORTH_ITS_PAUSES = 2.0

#: Fewer slots must be better by this part to be taken in place of more that are further apart.
CLEARLY_BETTER = 0.05

#: Jobs that are moved together, and racks that are tried for each, in one decision.
MOST_MOVES = 8
MOST_RACKS = 8

#: Time within which a move must pay off, in seconds …
HORIZON_S = 600.0

#: … or in pauses, whichever is longer.
HORIZON_PAUSES = 6.0


@dataclass(slots=True)
class Consolidation:
    """One decision being placed. ``rows`` and ``columns`` say where jobs and configurations stand in the goodputs.

    ``left_s`` is the time that each job has left where it is now, or would have on what it is given.
    """

    view: ClusterView
    goodputs: Goodputs
    wanted: dict[str, Configuration]
    columns: Mapping[Configuration, int]
    goodput_left: Mapping[str, float]
    allocations: dict[str, Allocation] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    _jobs: dict[str, JobView] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._jobs = {job.id: job for job in self.view.jobs}
        self._rows = {job.id: row for row, job in enumerate(self.view.jobs)}

    def run(self) -> bool:
        """Place everything; False if it should be left to the engine, which says what went wrong."""
        if not self._place():
            return False
        if self._shrink() and not self._place():
            return False
        for job_id in self._worst_off()[:MOST_MOVES]:
            self._bring_together(job_id)
        for job_id, allocation in self.allocations.items():
            if allocation == self._jobs[job_id].allocation:
                self.allocations[job_id] = self._jobs[job_id].allocation  # the very same: nothing to check
        return True

    def _place(self) -> bool:
        current = {job_id: self._jobs[job_id].allocation for job_id in self.wanted if self._jobs[job_id].allocation}
        placed = place(self.view.cluster, self.view.usable_slots, self.wanted, current)
        self.allocations = placed.allocations
        return not placed.unplaced and not placed.scattered

    # --- What a place is worth ---

    def _tier(self, allocation: Allocation) -> LinkClass:
        return self.view.cluster.links.tier([node for node, _ in allocation])

    def _goodput(self, job_id: str, configuration: Configuration, tier: LinkClass) -> float:
        return self.goodputs.on_tier(self._rows[job_id], self.columns[configuration], tier)

    def _closest(self, job_id: str) -> LinkClass:
        return self.goodputs.closest(self.columns[self.wanted[job_id]])

    def _saved(self, job_id: str, tier: LinkClass, better: LinkClass) -> float:
        """Slot-seconds that a job would save on a better tier, as far ahead as anybody can see."""
        configuration, pause_s = self.wanted[job_id], self._jobs[job_id].facts.rescale_s
        now, then = (self._goodput(job_id, configuration, at) for at in (tier, better))
        if not 0.0 < now < then:
            return 0.0
        left_s = min(self.goodput_left[job_id] / now, max(HORIZON_S, HORIZON_PAUSES * pause_s))
        return configuration.slots * left_s * (1.0 - now / then)

    def _pause_cost(self, job_id: str) -> float:
        """Slot-seconds that moving a job costs: nothing if it changes its slots anyway."""
        job = self._jobs[job_id]
        stays = job.allocation and self.allocations.get(job_id) == job.allocation
        return job.slots * job.facts.rescale_s if stays else 0.0

    # --- Fewer slots, closer together ---

    def _shrink(self) -> bool:
        """Give jobs that would be slow across racks fewer slots where that is better; whether any was changed."""
        changed = False
        for job_id, allocation in self.allocations.items():
            job, configuration, tier = self._jobs[job_id], self.wanted[job_id], self._tier(allocation)
            if configuration.nodes == 1 or tier is self._closest(job_id) or allocation == job.allocation:
                continue
            here = self._goodput(job_id, configuration, tier)
            least = job.facts.least_slots
            smaller = [
                (self._goodput(job_id, other, self.goodputs.closest(column)), -other.slots, other)
                for other, column in self.columns.items()
                if other.gpu_type == configuration.gpu_type and least <= other.slots < configuration.slots
            ]
            best = max(smaller, key=lambda choice: choice[:2], default=None)
            if here > 0.0 and best is not None and best[0] > (1.0 + CLEARLY_BETTER) * here:
                self.wanted[job_id] = best[2]
                self.reasons[job_id] = (
                    f"{best[2]} in place of {configuration.slots} slots {WHERE[tier]}: "
                    f"{best[0] / here:.2f} times as fast"
                )
                changed = True
        return changed

    # --- The same slots, closer together ---

    def _worst_off(self) -> list[str]:
        """Jobs that stand further apart than they need, those first that would save most."""
        found = []
        for job_id, allocation in self.allocations.items():
            tier = self._tier(allocation)
            if len(allocation) > 1 and tier is not self._closest(job_id):
                saved = self._saved(job_id, tier, self._closest(job_id))
                if saved > WORTH_ITS_PAUSES * self._pause_cost(job_id):
                    found.append((-saved, job_id))
        return [job_id for _, job_id in sorted(found)]

    def _bring_together(self, job_id: str) -> None:
        """Move a job into a part of the cluster that can hold it, if that pays for all who have to move."""
        links, allocation = self.view.cluster.links, self.allocations[job_id]
        tier = self._tier(allocation)
        for better in links.tiers[: links.tiers.index(tier)]:
            saved = self._saved(job_id, tier, better) / WORTH_ITS_PAUSES - self._pause_cost(job_id)
            if saved <= 0.0:
                continue
            for nodes in self._candidates(allocation, better):
                moved = self._moved(job_id, nodes, saved)
                if moved is not None:
                    self._explain(job_id, tier, better, moved)
                    self.allocations.update(moved)
                    return

    def _candidates(self, allocation: Allocation, tier: LinkClass) -> list[list[int]]:
        """The nodes of each rack (or zone) that has enough of the job's GPU type, those with most of it there first."""
        cluster = self.view.cluster
        groups = cluster.node_rack if tier is LinkClass.RACK else cluster.node_zone
        by_group: dict[int, list[int]] = {}
        for node in cluster.nodes_of_type[cluster.nodes[allocation[0][0]].gpu_type]:
            by_group.setdefault(int(groups[node]), []).append(node)
        own = {node for node, _ in allocation}
        able = [nodes for nodes in by_group.values() if len(nodes) >= len(allocation)]
        return sorted(able, key=lambda nodes: -len(own & set(nodes)))[:MOST_RACKS]

    def _moved(self, job_id: str, nodes: Sequence[int], saved: float) -> dict[str, Allocation] | None:
        """The job on some of these nodes, and smaller jobs that have to leave them elsewhere; None if not worth it."""
        parts = sorted((slots for _, slots in self.allocations[job_id]), reverse=True)
        free = list(self.view.usable_slots)
        holders: dict[int, list[str]] = {}
        for other, held in self.allocations.items():
            if other != job_id:
                for node, slots in held:
                    free[node] -= slots
                    if len(held) == 1:
                        holders.setdefault(node, []).append(other)
        smaller = {node: [j for j in jobs if self.wanted[j].slots < sum(parts)] for node, jobs in holders.items()}
        options = []
        for node in nodes:
            leaving: list[str] = []
            room, cost = free[node], 0.0
            for other in sorted(smaller.get(node, ()), key=lambda j: (self._pause_cost(j), j)):
                if room >= parts[0]:
                    break
                leaving.append(other)
                room += slots_of(self.allocations[other])
                cost += self._pause_cost(other)
            if room >= parts[0]:
                options.append((cost, len(leaving), node, leaving))
        chosen = sorted(options)[: len(parts)]
        if len(chosen) < len(parts) or sum(cost for cost, *_ in chosen) >= saved:
            return None
        mine = tuple(sorted((node, part) for (_, _, node, _), part in zip(chosen, parts, strict=True)))
        leaving = [other for *_, others in chosen for other in others]
        if not leaving:
            return {job_id: mine}
        for other in leaving:
            for node, slots in self.allocations[other]:
                free[node] += slots
        for node, slots in mine:
            free[node] -= slots
        placed = place(self.view.cluster, free, {other: self.wanted[other] for other in leaving}, {})
        if placed.unplaced or placed.scattered:
            return None
        return {job_id: mine, **placed.allocations}

    def _explain(self, job_id: str, tier: LinkClass, better: LinkClass, moved: Mapping[str, Allocation]) -> None:
        job, configuration = self._jobs[job_id], self.wanted[job_id]
        now, then = (self._goodput(job_id, configuration, at) for at in (tier, better))
        times = f"{then / now:.2f} times as fast as {WHERE[tier]}"
        if self._pause_cost(job_id):
            back_s = job.facts.rescale_s / (then / now - 1.0)
            self.reasons[job_id] = (
                f"moves, to stand {WHERE[better]}: {times}, which makes up for a pause of {job.facts.rescale_s:.0f} s "
                f"in {back_s:.0f} s of work"
            )
        else:
            self.reasons[job_id] = f"stands {WHERE[better]}: {times}"
        for other in moved:
            if other != job_id and self._pause_cost(other):
                self.reasons[other] = f"makes room for {job_id}, which is {times} then"
