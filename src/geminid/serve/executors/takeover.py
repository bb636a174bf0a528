"""Jobs that an earlier service started: those that still run are taken over, and the end of the others is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from geminid.configuration import Placement
from geminid.jobstate import JobPhase
from geminid.process.launch import how_it_ended, written_exit_code
from geminid.serve import records as r
from geminid.serve.executors.commands import Command, Commands
from geminid.serve.executors.elasticjob import ElasticJob
from geminid.serve.executors.jobrecords import elastic_now, ended_early, progressed, stopped
from geminid.serve.executors.launching import Launching
from geminid.serve.executors.plainjob import PlainJob, command_ended
from geminid.serve.executors.provider import SlotNames
from geminid.serve.livejob import LiveJob
from geminid.supervise.events import JobEvent
from geminid.supervise.handover import Handover, ended_well, exit_file_of, last_report
from geminid.supervise.supervisor import Supervisor

#: Why a job is over whose end no service saw.
AWAY = "it ended while the service was away"


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A job that held slots when the last service ended: what there is to record, and the job if it still runs."""

    records: tuple[r.Record, ...]
    running: ElasticJob | PlainJob | None = None


@dataclass(frozen=True, slots=True)
class Takeover:
    """Takes jobs over, with what starts them."""

    launching: Launching
    commands: Commands

    def elastic(self, job: LiveJob, on_event: Callable[[Supervisor, JobEvent], None]) -> TakenOver:
        """A job that has a supervisor; its workers, if any live, get a new one."""
        folder = self.launching.folders.folder_of(job.id)
        if job.phase is not JobPhase.STOPPING and ended_well(folder):
            return TakenOver((*self._last_report(job), r.JobEnded(job_id=job.id, how="succeeded", reason=AWAY)))
        handover = Handover.read(folder)
        workers = {} if handover is None else self.live_workers(handover)
        if handover is None or not workers:
            return TakenOver(tuple(self._ended_meanwhile(job, handover)))
        records: list[r.Record] = []
        lone_slots = () if job.elastic else handover.lone_slots
        if not (job.elastic or lone_slots):  # it called geminid.init() just before the last service ended
            records.append(elastic_now(job.id))
        names, nodes, provider = self.launching.provider.names, self.launching.nodes, self.launching.provider
        supervisor = self.launching.supervisor(job, on_event, adopt=True, lone_slots=lone_slots)
        held = lone_slots or tuple(sorted(workers.values(), key=names.place))
        placed = Placement.of_slots(map(names.place, held))
        running = ElasticJob(
            job.id,
            supervisor,
            workers=workers,
            target=tuple(slot for slot in held if nodes.has(slot)),
            recorded=set(held),
            lone=bool(lone_slots),
        )
        if lone_slots and job.phase is JobPhase.STARTING:
            records.append(r.JobFormed(job_id=job.id, placement=placed))
        supervisor.drop_slots(
            lambda one: not (nodes.has(one) and (one in held or provider.has_code(job.id, job.code, one)))
        )
        supervisor.__enter__()
        before = job.state.placement
        if before is not None and before != placed:  # not all were started, or one is gone meanwhile
            records.append(r.JobRescaling(job_id=job.id, placement=placed))
        return TakenOver(tuple(records), running)

    def plain(self, job: LiveJob, ended: Callable[[Command], None]) -> TakenOver:
        """A plain command."""
        stopping = job.phase is JobPhase.STOPPING  # as the service before this one asked
        command = self.commands.adopt(job.id, ended, begin=job.wants_slots and not stopping, asked=stopping)
        if command is None:
            how = self.commands.exit_of(job.id)
            if how is None:
                gone = "its process was gone when the service came back"
                return TakenOver((r.JobEnded(job_id=job.id, how="lost", reason=gone),))
            unwanted = not job.wants_slots or job.target != job.state.placement
            return TakenOver((command_ended(job.id, how, stopping=stopping or (how.asked and unwanted)),))
        names, before = self.launching.provider.names, job.state.placement
        slots = self.commands.slots_of(job.id) or (() if before is None else tuple(map(names.name, before.slots())))
        now = Placement.of_slots(map(names.place, slots))
        moved: list[r.Record] = []
        if now != before:
            moved = [(r.JobRescaling if stopping else r.JobFormed)(job_id=job.id, placement=now)]
        return TakenOver(tuple(moved), PlainJob(job.id, tuple(map(names.name, now.slots())), command))

    def live_workers(self, handover: Handover) -> dict[str, str]:
        """The slot of each worker that an earlier service started and that still runs."""
        agents = self.launching.agents
        return {worker: entry["slot"] for worker, entry in handover.workers.items() if agents.runs(entry)}

    def keys(self, job_id: str) -> set[str]:
        """The keys of the processes that are written down for a job."""
        handover = Handover.read(self.launching.folders.folder_of(job_id))
        workers = [] if handover is None else handover.workers.values()
        return self.commands.keys(job_id) | {entry["key"] for entry in workers if "key" in entry}

    def _last_report(self, job: LiveJob) -> list[r.Record]:
        """How far a job had come when training was over, while no service was there."""
        folder = self.launching.folders.folder_of(job.id)
        handover = Handover.read(folder)
        report = None if handover is None or not handover.members else last_report(folder, handover.members[0])
        place = job.state.placement
        return [] if report is None else [progressed(job.id, report, 1 if place is None else len(place.node_names))]

    def _ended_meanwhile(self, job: LiveJob, handover: Handover | None) -> list[r.Record]:
        """What became of a job without live processes, by what the shim of its leader wrote down."""
        leader = None if handover is None else next(iter(handover.members or handover.workers), None)
        folder = self.launching.folders.folder_of(job.id)
        code = None if leader is None else written_exit_code(exit_file_of(folder, leader))
        if code == 0 and job.phase is not JobPhase.STOPPING:
            slots = 1 if job.state.placement is None else job.state.placement.num_slots
            if report := self._last_report(job):  # training was over
                return [*report, r.JobEnded(job_id=job.id, how="succeeded", reason=AWAY)]
            initialised = handover is not None and not handover.lone_slots and bool(handover.members)
            times = 1 if handover is not None and handover.lone_slots else slots
            reason = f"{ended_early(initialised=initialised, slots=slots, times=times)}; {AWAY}"
            return [r.JobEnded(job_id=job.id, how="succeeded", reason=reason)]
        if code is not None and handover is not None and handover.lone_slots:
            if job.phase is JobPhase.STOPPING:
                return [stopped(job.id)]
            reason = f"it {how_it_ended(code)} while the service was away"
            return [r.JobEnded(job_id=job.id, how="crashed", reason=reason)]
        return [r.JobEnded(job_id=job.id, how="lost", reason="its processes were gone when the service came back")]


def replanned(jobs: Sequence[LiveJob], running: Callable[[str], bool], names: SlotNames) -> list[r.Record]:
    """Plans for the slots that there are now: jobs that run stay on what is left of theirs, if that is enough."""
    targets: dict[str, Placement | None] = {}
    reasons: dict[str, str] = {}
    for job in jobs:
        before = [] if job.target is None else list(job.target.slots())
        after = {place: names.moved(place) for place in before}
        if all(place == now for place, now in after.items()):
            continue
        left = [now for now in after.values() if now is not None]
        gone = [f"{node}/{index}" for (node, index), now in after.items() if now is None]
        enough = len(left) >= job.spec.min_slots and len({node for node, _ in left}) == 1 and job.elastic
        stays = running(job.id) and (enough or not gone)
        targets[job.id] = Placement.of_slots(left) if stays else None
        reasons[job.id] = "slots have new numbers"
        if gone:
            slots, are = ("slot", "is") if len(gone) == 1 else ("slots", "are")
            reasons[job.id] = f"{slots} {', '.join(gone)} {are} gone since the service was started again"
    return [r.Planned(targets=targets, reasons=reasons)] if targets else []
