"""What a scheduler knows about the speed of simulated jobs before they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from geminid.cluster import Cluster
from geminid.engine.models import ModelKeeper
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.profile import Profile
from geminid.network import WITHIN_NODE, Path
from geminid.sim.simjob import SimJob

#: Number of batch sizes, from the smallest to the largest per slot, at which a profile measures a job.
PROFILED_BATCH_SIZES = 6


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a job from similar jobs: profiles by GPU type, and gradient statistics."""

    profiles: Mapping[str, Profile]
    gradient: GradientStats | None = None

    def add_to(self, models: ModelKeeper, job_id: str) -> None:
        """Let the scheduler start with this knowledge."""
        add_profiles(models, job_id, self.profiles)
        if self.gradient is not None:
            models.add_gradient(job_id, self.gradient)


def add_profiles(models: ModelKeeper, job_id: str, profiles: Mapping[str, Profile]) -> None:
    """Let the scheduler start with profiles of a job, by GPU type."""
    for gpu_type, profile in profiles.items():
        models.add_profile(job_id, gpu_type, profile)


def add_true_models(models: ModelKeeper, job: SimJob, cluster: Cluster) -> bool:
    """Let the scheduler know all step times of a job; returns whether they follow a model that it now knows exactly."""
    exact = true_models(job)
    for gpu_type, fitted in exact.items():
        models.add_fit(job.facts.id, gpu_type, fitted)
    if not exact:
        add_profiles(models, job.facts.id, full_profiles(job, cluster))
    return bool(exact)


def true_models(job: SimJob) -> dict[str, ThroughputFit]:
    """The models that the job's step times follow, by GPU type; empty unless there is one for every type."""
    truth = {} if job.application is None else job.application.value.truth
    models = {gpu_type: truth[gpu_type].model for gpu_type in job.facts.limits if gpu_type in truth}
    return {gpu_type: model for gpu_type, model in models.items() if model is not None and None not in models.values()}


def one_slot_profiles(job: SimJob) -> dict[str, Profile]:
    """Measurements on one slot of each GPU type at a few batch sizes, as some policies require before a job starts."""
    if job.application is None:
        return {}
    return {
        gpu_type: Profile.of(
            job.application.value.truth[gpu_type].observation((1,), size) for size in _profiled_sizes(limits)
        )
        for gpu_type, limits in job.facts.limits.items()
    }


def full_profiles(job: SimJob, cluster: Cluster) -> dict[str, Profile]:
    """Measurements of configurations of all sizes on every GPU type."""
    if job.application is None:
        return {}
    profiles = {}
    for gpu_type, limits in job.facts.limits.items():
        nodes = [node.slots for node in cluster.nodes if node.gpu_type == gpu_type]
        truth = job.application.value.truth[gpu_type]
        most = min(truth.most_slots, job.facts.max_slots, sum(nodes))
        index = cluster.type_index[gpu_type]
        paths = [Path(tier, cluster.links.slowdown(tier, index)) for tier in cluster.links.tiers]
        profiles[gpu_type] = Profile.of(
            truth.observation(placement, size, path)
            for placement in _placements(max(nodes), len(nodes), most)
            for path in (paths if len(placement) > 1 else [WITHIN_NODE.path])
            for size in _profiled_sizes(limits)
        )
    return profiles


def _profiled_sizes(limits: BatchLimits) -> list[int]:
    """Batch sizes per slot, evenly spaced on a logarithmic scale."""
    largest = min(limits.largest_per_slot, limits.largest)
    return sorted({round(m) for m in np.geomspace(limits.smallest_per_slot, largest, PROFILED_BATCH_SIZES)})


def _placements(per_node: int, nodes: int, most: int) -> list[tuple[int, ...]]:
    """Powers of two within a node, then whole nodes, and single slots spread over nodes."""
    result: list[tuple[int, ...]] = [(k,) for k in (1, 2, 4, 8, 16) if k < per_node and k <= most]
    result += [(per_node,) * n for n in (1, 2, 3, 4, 8, 16) if n <= nodes and n * per_node <= most]
    result += [(1,) * n for n in (2, 4, 8) if n <= nodes and n <= most]
    return result
