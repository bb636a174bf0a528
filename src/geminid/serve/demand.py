"""How many slots there is work for, and which jobs have some: kept up to date job by job, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from geminid.cluster import Cluster
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState


def startable(job: LiveJob) -> int:
    """How many jobs could start if there were slots: the job itself, or elements of an array that are not made yet."""
    if job.array is None or job.spec.array is None:
        return int(job.target is None and job.wants_slots)
    if job.blocked or job.wish != "run" or job.phase.is_terminal:
        return 0
    limit = job.spec.array.limit
    return job.array.unmade if limit is None else max(min(job.array.unmade, limit - job.array.active), 0)


@dataclass(slots=True)
class Demand:
    """Which jobs have slots or a target (``placed``), and what the others need at least."""

    placed: set[str] = field(default_factory=set)
    _needed: dict[str, tuple[str, int]] = field(default_factory=dict)
    _needed_by_type: Counter[str] = field(default_factory=Counter)

    def update(self, job_id: str, job: LiveJob | None, cluster: Cluster) -> None:
        """Count a job as it is now. A job that allows several GPU types needs the first that it names."""
        placed = job is not None and (job.target is not None or job.state.placement is not None)
        (self.placed.add if placed else self.placed.discard)(job_id)
        gpu_type, slots = self._needed.pop(job_id, ("", 0))
        self._needed_by_type[gpu_type] -= slots
        jobs = 0 if job is None else startable(job)
        if job is not None and jobs:
            gpu_type = (*job.spec.gpu_types.names, *cluster.type_index)[0]
            self._needed[job_id] = gpu_type, jobs * job.spec.min_slots
            self._needed_by_type[gpu_type] += jobs * job.spec.min_slots

    def slots_by_type(self, state: ServiceState, cluster: Cluster, desired_nodes: Mapping[str, int]) -> dict[str, int]:
        """How many slots of each GPU type jobs have or need; or as many as the ``desired_nodes`` of the policy have."""
        slots_by_type = Counter(self._needed_by_type)
        for job_id in self.placed:
            target = state.jobs[job_id].target
            for node, slots in () if target is None else target.slots_by_node:
                slots_by_type[state.gpu_types.get(node, "gpu")] += len(slots)
        for gpu_type, nodes in desired_nodes.items():
            of_nodes = nodes * cluster.largest_node_slots.get(gpu_type, 1)
            slots_by_type[gpu_type] = max(slots_by_type[gpu_type], of_nodes)
        return {gpu_type: slots for gpu_type, slots in slots_by_type.items() if slots}
