"""What the engine and its policy know of a live job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.goodput.batchplan import BatchLimits
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, JobFacts, JobView, Policy
from geminid.policies.claims import Used
from geminid.serve.livejob import LiveJob

#: What a change of slots costs before a job has been through one: live, or from a checkpoint.
LIVE_RESCALE_S, COLD_RESCALE_S = 1.0, 10.0

#: A job whose priority is higher by this much counts twice as much.
PRIORITY_PER_DOUBLING = 50.0


def fits(job: LiveJob, cluster: Cluster) -> bool:
    """Whether the whole cluster has the slots that a job needs; more nodes may come."""
    allowed = job.spec.gpu_types.names or cluster.type_index
    return any(cluster.slots_per_type.get(name, 0) >= job.spec.min_slots for name in allowed)


def facts_of(job: LiveJob, cluster: Cluster) -> JobFacts:
    """What a policy may know of a job: what was asked for, and what its script has said since.

    A job that has not been measured yet is opaque: policies would take a model without any speed for a speed of zero.
    """
    spec, limits = job.spec, batch_limits(job)
    types = frozenset(cluster.type_index)
    allowed = types & frozenset(spec.gpu_types.names) if spec.gpu_types.names else types
    most = max((cluster.slots_per_type[name] for name in allowed), default=0)
    if spec.max_slots is not None:
        most = min(most, spec.max_slots)
    if limits is not None:
        most = min(most, limits.largest // limits.smallest_per_slot)
    least = spec.min_slots
    if not job.elastic:  # plain, or of unknown kind: one process, which cannot be resized (yet)
        least = spec.min_slots if job.target is None else job.target.num_slots
        most = min(most, least)
    least = min(least, max(most, 1))
    adaptivity = spec.adaptivity
    if adaptivity is Adaptivity.FIXED_BATCH and limits is not None and limits.largest > limits.initial:
        adaptivity = Adaptivity.ADAPTIVE  # the script allows what the file left open
    if most == least and spec.has_fixed_size:
        adaptivity = Adaptivity.RIGID
    return JobFacts(
        id=job.id,
        submitted_s=job.state.submitted_at_s,
        requested_slots=least,
        min_slots=least,
        max_slots=max(most, least),
        requested_batch=limits.initial if limits is not None else spec.initial_batch_size,
        adaptivity=adaptivity,
        gpu_types=allowed,
        limits={} if limits is None or not job.measured else dict.fromkeys(sorted(allowed), limits),
        rescale_s=rescale_s(job),
        weight=2.0 ** (spec.priority / PRIORITY_PER_DOUBLING),
        owner=spec.owner or "",
        kind=spec.name,
        deadline_s=None if spec.deadline_s is None else job.state.submitted_at_s + spec.deadline_s,
        work=job.work_samples,
        queue=spec.queue,
        budget_gpu_s=spec.budget_gpu_s,
        preferred_types=frozenset(spec.gpu_types.names[:1]) if spec.gpu_types.ordered else frozenset(),
    )


def recall_usage(policy: Policy, jobs: Iterable[LiveJob], now_s: float, *, began_s: float = 0.0) -> None:
    """Give a policy that remembers usage what all jobs have used so far, finished ones included.

    ``began_s`` is when the policy's own time began.
    """
    recall = getattr(policy, "recall", None)
    if recall is not None:
        recall(
            [
                Used(job.id, job.spec.queue, job.spec.owner or "", job.service_gpu_s(now_s), until_s - began_s)
                for job in jobs
                for until_s in (job.state.finished_at_s or now_s,)
            ],
            now_s - began_s,
        )


def rescale_s(job: LiveJob) -> float:
    """What a change of slots costs the job: the mean of its own pauses, once it has had any."""
    if not job.elastic:
        return COLD_RESCALE_S
    return sum(job.pauses_s) / len(job.pauses_s) if job.pauses_s else LIVE_RESCALE_S


def batch_limits(job: LiveJob) -> BatchLimits | None:
    """The bounds of a job's batch sizes: those of its script, or else of its file; None for a plain command."""
    if not job.elastic:
        return None
    if job.limits is not None:
        return job.limits.batch
    spec = job.spec
    if spec.initial_batch_size is None:
        return None
    largest = spec.max_batch_size or spec.initial_batch_size
    return BatchLimits(
        initial=spec.initial_batch_size,
        largest=largest,
        smallest_per_slot=spec.min_per_slot_batch,
        largest_per_slot=spec.max_per_slot_batch or largest,
    )


def view_of(job: LiveJob, cluster: Cluster, now_s: float) -> JobView:
    """The job as an engine knew it whose memory is gone: with its target, its service and its counts."""
    view = JobView(
        facts=facts_of(job, cluster),
        started_s=job.state.first_started_at_s,
        restarts=job.restarts,
        since_s=now_s,
        executed_before_s=job.executed_s(now_s),
        service_before_gpu_s=job.state.attained_service_gpu_s,
        progress=job.done_samples,
    )
    if job.target is None:
        return view
    allocation = allocation_of(job.target, cluster)
    if not allocation:
        return view
    return replace(
        view,
        allocation=allocation,
        slots=job.target.num_slots,
        gpu_type=cluster.nodes[allocation[0][0]].gpu_type,
        started_s=view.started_s if view.started_s is not None else job.target_since_s,
    )


def allocation_of(placement: Placement, cluster: Cluster) -> Allocation:
    """A placement as the engine counts it: slots on each node; those on nodes that are gone do not count."""
    known = cluster.node_index
    return tuple(sorted((known[name], len(slots)) for name, slots in placement.slots_by_node if name in known))
