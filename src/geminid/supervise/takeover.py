"""A job's state as a record for the next supervisor, and as a status; and a state made from such a record."""

from __future__ import annotations

from collections.abc import Mapping

from geminid.supervise.connections import Link
from geminid.supervise.events import JobPhase, JobStatus, WorkerStatus
from geminid.supervise.group import Standing
from geminid.supervise.handover import Handover
from geminid.supervise.state import SupervisedJob
from geminid.supervise.workers import Worker


def handover_of(state: SupervisedJob, token: str, address: str, links: Mapping[str, Link]) -> Handover:
    """What another supervisor needs to take over a job."""
    group = state.group
    members = group.current.members
    return Handover(
        token=token,
        address=address,
        generation=group.current.number,
        members=members,
        slots=tuple(group.workers[worker].slot for worker in members if worker in group.workers),
        newest=group.newest,
        held=group.current.held,
        lone_slots=state.lone_slots,
        workers={
            worker: {
                "slot": link.slot,
                "standing": str(group.standing(worker) or "leaving"),
                "token": link.token,
                "can_hold": worker in group.workers and group.workers[worker].can_hold,
                **link.process.identity,
            }
            for worker, link in links.items()
        },
    )


def take_over(state: SupervisedJob, left: Handover, pids: Mapping[str, int]) -> None:
    """Continue what an earlier supervisor left: its group, and those of its workers that still live (``pids``).

    Workers that were about to join the group still are.
    """
    for worker, pid in pids.items():
        entry = left.workers[worker]
        is_member = entry["standing"] == Standing.MEMBER
        generation = left.generation if is_member else 0
        state.workers[worker] = Worker(entry["slot"], pid, generation, leads=left.members[:1] == (worker,))
        state.group.adopt(worker, entry["slot"], member=is_member, can_hold=entry.get("can_hold", False))
    coming = [
        entry["slot"]
        for entry in left.workers.values()
        if entry["standing"] in (Standing.STARTING, Standing.READY) and entry["slot"] not in left.slots
    ]
    known = (*left.workers, left.newest)
    state.group.resume(left.generation, left.members, (*left.slots, *coming), known, held=left.held)
    if any(member in pids for member in left.members):
        state.phase = JobPhase.RUNNING
    elif pids:
        state.phase = JobPhase.STARTING


def status_of(state: SupervisedJob, links: Mapping[str, Link]) -> JobStatus:
    """A job as it is now."""
    group, reports = state.group, state.reports
    return JobStatus(
        phase=state.phase,
        generation=group.current.number,
        slots=tuple(state.workers[member].slot for member in group.current.members if member in state.workers),
        settled=group.settled and state.phase is JobPhase.RUNNING,
        workers=tuple(
            WorkerStatus(
                worker, known.slot, known.pid, str(group.standing(worker) or "ending"), links[worker].activity.phase
            )
            for worker, known in state.workers.items()
        ),
        ready=reports.ready,
        progress=reports.progress,
        checkpoint=reports.checkpoint,
        plan=reports.progress.plan if reports.progress is not None else None,
        failures=state.failures.count,
        reason=state.reason,
    )
