"""Nodes of a simulated cluster come and go: they fail and are repaired, are returned and rented again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from geminid.cluster import Cluster
from geminid.engine.events import Event, NodeDown, NodeDrained, NodeUp
from geminid.policies.base import JobView
from geminid.sim.agenda import Agenda, Order
from geminid.sim.result import NoProgress, Result
from geminid.sim.settings import Settings

#: Number of node failures after which a simulation gives up: they are too frequent for jobs to progress.
MOST_FAILURES = 100_000


class NodePool:
    """Which nodes are broken and which are returned; the others are in service, or soon will be.

    Nodes fail at random, if the settings say so, and are repaired. An autoscaling policy returns nodes and requests
    them again; the cluster is all that it can have.
    """

    def __init__(self, cluster: Cluster, settings: Settings, agenda: Agenda, result: Result) -> None:
        self.cluster = cluster
        self.settings = settings
        self.agenda = agenda
        self.result = result
        self._rng = np.random.default_rng(settings.seed)
        self._broken: set[int] = set()
        self._returned: set[int] = set()
        self._rent_counted_until_s = 0.0

    def schedule_failures(self) -> None:
        """Schedule the first failure of every node."""
        if self.settings.node_mtbf_s is not None:
            for node in range(len(self.cluster.nodes)):
                self._schedule_failure(node, self.settings.node_mtbf_s)

    def _schedule_failure(self, node: int, mtbf_s: float) -> None:
        at_s = self.agenda.now_s + float(self._rng.exponential(mtbf_s))
        self.agenda.at(at_s, Order.NODE, partial(self._fail, node, mtbf_s))

    def _fail(self, node: int, mtbf_s: float) -> Event | None:
        if node in self._returned:
            self._schedule_failure(node, mtbf_s)
            return None
        self.result.failures += 1
        if self.result.failures > MOST_FAILURES:
            raise NoProgress(f"nodes failed {MOST_FAILURES:,} times and jobs were still not done: they fail too often.")
        self._broken.add(node)
        self.agenda.at(self.agenda.now_s + self.settings.repair_s, Order.NODE, partial(self._repair, node, mtbf_s))
        return NodeDown(self.agenda.now_s, node)

    def _repair(self, node: int, mtbf_s: float) -> Event | None:
        self._broken.discard(node)
        self._schedule_failure(node, mtbf_s)
        return None if node in self._returned else NodeUp(self.agenda.now_s, node)

    # --- Autoscaling ---

    def scale(self, desired: Mapping[str, int], jobs: Mapping[str, JobView]) -> None:
        """Return nodes, the least used first, or rent returned ones again, to have the desired number of each type."""
        for gpu_type, index in self.cluster.type_index.items():
            nodes = np.flatnonzero(self.cluster.node_type == index).tolist()
            number = desired.get(gpu_type, 0)
            if index == 0 and not any(desired.values()):
                number = 1  # the next job needs a node to start on
            self._scale_type(nodes, min(number, len(nodes)), jobs)

    def _scale_type(self, nodes: Sequence[int], desired: int, jobs: Mapping[str, JobView]) -> None:
        """Have this many of these nodes, which are of one type."""
        now_s = self.agenda.now_s
        rented = [node for node in nodes if node not in self._returned]
        more = desired - len(rented)
        if more:
            self.count_rent()
        if more < 0:
            used = Counter(node for job in jobs.values() for node, _ in job.allocation)
            for node in sorted(rented, key=lambda node: (used[node], -node))[:-more]:
                self._returned.add(node)
                self.agenda.at(now_s, Order.NODE, partial(NodeDrained, now_s, node))
        for node in [node for node in nodes if node in self._returned - self._broken][: max(more, 0)]:
            self._returned.discard(node)
            self.agenda.at(now_s + self.settings.provision_s, Order.NODE, partial(self._provide, node))

    def _provide(self, node: int) -> Event | None:
        """A node that was rented again is there, unless it has been returned or has failed meanwhile."""
        return None if node in self._returned | self._broken else NodeUp(self.agenda.now_s, node)

    def count_rent(self) -> None:
        """Add the node time since the last call to the result; called before the number of nodes changes."""
        elapsed_s = self.agenda.now_s - self._rent_counted_until_s
        self._rent_counted_until_s = self.agenda.now_s
        self.result.node_s += elapsed_s * (len(self.cluster.nodes) - len(self._returned))
        self.result.returned_slot_s += elapsed_s * sum(self.cluster.nodes[node].slots for node in self._returned)
