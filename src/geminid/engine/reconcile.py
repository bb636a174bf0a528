"""From the allocations that jobs have to those of a plan: the commands that lead there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from geminid.engine.commands import Command, Limit, Rescale, Share, Start, Stop
from geminid.engine.plan import Plan
from geminid.policies.base import JobView


def reconcile(
    desired: Plan, actual: Mapping[str, JobView], usable_slots: Sequence[int], limited: Collection[str] = ()
) -> list[Command]:
    """The commands that lead from the ``actual`` jobs to the ``desired`` plan: first those that free slots.

    ``usable_slots`` are those of each node; ``limited`` are jobs that have a ``Limit`` now. Applied in order, the
    commands give every job that the plan names exactly what the plan gives it.
    """
    stops: list[Command] = []
    grants: list[Command] = []
    shares: list[Command] = []
    moved: set[str] = set()
    for job_id in desired.named:
        job = actual[job_id]
        wanted, partner = desired.allocations.get(job_id, ()), desired.partners.get(job_id)
        if wanted == job.allocation and partner == job.partner:
            continue
        reason = desired.reasons.get(job_id, "")
        if not wanted:
            stops.append(Stop(job_id, job.allocation, reason or _why_stopped(job, desired, actual, usable_slots)))
        elif wanted == job.allocation and _stays(job, desired, actual):
            shares.append(Share(job_id, partner))
            continue
        elif job.allocation:
            grants.append(Rescale(job_id, job.allocation, wanted, reason))
        else:
            grants.append(Start(job_id, wanted, reason))
        moved.add(job_id)
        if partner is not None:
            shares.append(Share(job_id, partner))
    return stops + grants + shares + _limits(desired, actual, moved, limited)


def _limits(
    desired: Plan, actual: Mapping[str, JobView], moved: Collection[str], limited: Collection[str]
) -> list[Command]:
    """The limits that differ from those that jobs have; a job that gets other slots has none."""
    concerned = {*desired.caps, *desired.memory_caps, *limited}
    limits: list[Command] = []
    for job_id in (name for name in desired.named if name in concerned) if concerned else ():
        job = actual[job_id]
        before = (1.0, None) if job_id in moved else (job.cap, job.memory_cap)
        after = desired.caps.get(job_id, 1.0), desired.memory_caps.get(job_id)
        if desired.allocations.get(job_id) and before != after:
            limits.append(Limit(job_id, *after))
    return limits


def _why_stopped(job: JobView, desired: Plan, actual: Mapping[str, JobView], usable_slots: Sequence[int]) -> str:
    """Why a running job gets no slots any more, where the policy gives no reason."""
    if not job.stands(usable_slots):
        return "its slots are out of service"
    gaining = any(
        actual[other].partner == job.id or actual[other].allocation != allocation
        for other, allocation in desired.allocations.items()
    )
    return "others go first" if gaining else "the policy gives it no slots"


def _keeps(job: JobView, desired: Plan, actual: Mapping[str, JobView]) -> bool:
    """Whether a job keeps the slots that it has: of two jobs that part, the first by identifier keeps them."""
    wanted = desired.allocations.get(job.id, ())
    if not wanted or wanted != job.allocation:
        return False
    if job.partner is None or desired.partners.get(job.id) == job.partner or job.partner > job.id:
        return True
    other = actual[job.partner]
    return desired.allocations.get(other.id, ()) != other.allocation


def _stays(job: JobView, desired: Plan, actual: Mapping[str, JobView]) -> bool:
    """Whether a job need not move: a node's slots are only counted, but two that share must be on the same ones."""
    partner = desired.partners.get(job.id)
    if not _keeps(job, desired, actual):
        return False
    return partner is None or partner > job.id or partner == job.partner or not _keeps(actual[partner], desired, actual)
