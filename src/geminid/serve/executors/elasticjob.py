"""An elastic job as the executor sees it: events of its supervisor go in, records and instructions come out."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.goodput.topology import link_slowdown
from geminid.serve import records as r
from geminid.serve.executors.jobrecords import (
    MAX_REASON_CHARS,
    Refusals,
    elastic_now,
    ended_early,
    held,
    job_ready,
    progressed,
    stopped,
    way_out,
)
from geminid.serve.executors.provider import SlotNames
from geminid.serve.livejob import LiveJob
from geminid.supervise import events as j
from geminid.supervise.protocol import Progress
from geminid.supervise.supervisor import Supervisor

#: Time between two progress records of a job in its first seconds on new slots.
EARLY_REPORT_S = 1.0

#: Time between two progress records of a job later on.
LATE_REPORT_S = 5.0

#: How long a job counts as being in its first seconds on new slots.
EARLY_S = 30.0

#: Number of ticks after which a supervisor that has ended without reporting it has failed.
MAX_SILENT_TICKS = 6


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's events are judged by: the slots that there are, and what the job is to do (None: stop)."""

    names: SlotNames
    cluster: Cluster
    refusals: Refusals
    wanted: LiveJob | None
    now_s: float

    def placed(self, slots: Iterable[str]) -> Placement:
        """Slots as a placement."""
        return Placement.of_slots(map(self.names.place, slots))

    def nodes(self, slots: Iterable[str]) -> set[str]:
        """The nodes of slots."""
        return {self.names.place(slot)[0] for slot in slots}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event of a job means.

    ``over``: none of its processes is left. ``drop_target``: it is not started again before the service says so.
    ``resize``: its supervisor is to be asked for the slots that it is to train on.
    """

    records: tuple[r.Record, ...] = ()
    over: bool = False
    drop_target: bool = False
    resize: bool = False


@dataclass(slots=True)
class ProgressReports:
    """The latest progress of a job, which is recorded at intervals."""

    formed_at_s: float = 0.0
    recorded_at_s: float = 0.0
    latest: r.JobProgressed | None = None

    def due(self, now_s: float, *, at_once: bool = False) -> list[r.Record]:
        """The latest progress, if it is time to record it."""
        often_s = EARLY_REPORT_S if now_s - self.formed_at_s < EARLY_S else LATE_REPORT_S
        if self.latest is None or not (at_once or now_s - self.recorded_at_s >= often_s):
            return []
        latest, self.latest, self.recorded_at_s = self.latest, None, now_s
        return [latest]


@dataclass(slots=True)
class ElasticJob:
    """A job's supervisor, and what is known of its workers.

    ``target`` are the slots that it is to train on, ``formed`` those that it does train on, and ``recorded`` those that
    the records say it holds; ``is_recorded`` says whether they say that it trains on them, and ``lost_worker`` whether
    a worker was lost since it was formed. ``leaving`` are slots that it was to train on before, where a worker may
    still be started, as long as its supervisor has ``pending_resizes``. ``refusal`` is why it could not grow just now.
    A job that is ``lone`` is one process on all of its slots: it has not called ``geminid.init()`` yet; it is
    ``upgraded`` when it has.
    """

    job_id: str
    supervisor: Supervisor
    workers: dict[str, str] = field(default_factory=dict)
    target: tuple[str, ...] = ()
    leaving: set[str] = field(default_factory=set)
    pending_resizes: int = 0
    formed: tuple[str, ...] = ()
    recorded: set[str] = field(default_factory=set)
    is_recorded: bool = False
    is_ready_recorded: bool = False
    stopping: bool = False
    lone: bool = False
    upgraded: bool = False
    saved: bool = False
    lost_worker: bool = False
    progress: ProgressReports = field(default_factory=ProgressReports)
    silent_ticks: int = 0
    reason: str = ""
    refusal: str = ""

    @property
    def holds(self) -> set[str]:
        """Slots with a live worker, or one that is about to start."""
        return set(self.workers.values()) | set(self.target) | self.leaving

    @property
    def is_resizable(self) -> bool:
        """Whether it can be resized without being stopped."""
        return not self.lone

    @property
    def pids(self) -> list[int]:
        """Its worker processes."""
        return [worker.pid for worker in self.supervisor.status.workers]

    # --- What it is asked for ---

    def retarget(self, slots: tuple[str, ...]) -> None:
        """It is to train on these slots from now on."""
        before = self.holds | set(slots)
        self.leaving = (self.leaving | set(self.target)) - set(slots)
        self.target, self.pending_resizes = slots, self.pending_resizes + 1
        self.recorded, self.is_recorded = before, False

    def resize(self) -> None:
        """Ask the supervisor for the target."""
        try:
            self.supervisor.resize(self.target[:1] if self.lone else self.target)
        except ValueError:  # more slots than its largest batch can be divided over: it stays as it is
            self.target = self.formed or self.target
            self._resize_done()

    def stop(self, *, save: bool) -> None:
        """Have its workers save and end."""
        self.stopping = True
        self.supervisor.stop(save=save)

    def do_without(self, slots: Set[str], reason: str) -> None:
        """No worker can be on these slots: the job continues on the others, and ends if there are none.

        One that was on its way to no other slots than these stays where it trains.
        """
        self.target = tuple(slot for slot in self.target if slot not in slots)
        self.leaving -= slots
        self.supervisor.lose(slots, reason)
        if self.target:
            return
        living = set(self.workers.values()) - slots  # some of them may be leaving, and have no state to go on from
        self.target = tuple(slot for slot in self.supervisor.status.slots if slot in living)
        if self.target:
            self.leaving -= set(self.target)
            self.pending_resizes += 1
            self.supervisor.resize(self.target)
        else:
            self.reason = reason
            self.supervisor.kill()

    def _resize_done(self) -> None:
        """The supervisor does what it was asked for, or will never be asked."""
        self.pending_resizes -= 1
        if not self.pending_resizes:
            self.leaving.clear()

    # --- What its supervisor reports ---

    def tick(self, now_s: float) -> list[r.Record]:
        """Look at the clock: progress that is due."""
        self.silent_ticks = self.silent_ticks + 1 if self.supervisor.has_ended else 0
        return self.progress.due(now_s)

    @property
    def failure(self) -> j.JobEnded | None:
        """The end of a job whose supervisor failed without reporting it."""
        if self.silent_ticks <= MAX_SILENT_TICKS:
            return None
        return j.JobEnded(j.JobPhase.FAILED, self.supervisor.status.reason)

    def handle(self, event: j.JobEvent, around: Surroundings) -> Outcome:
        """What an event of the supervisor means."""
        match event:
            case j.WorkerStarted(worker=worker, slot=slot):
                self.workers[worker] = slot
                if self.lone:
                    return Outcome((r.JobFormed(job_id=self.job_id, placement=around.placed(self.target)),))
            case j.InitCalled() if self.lone:
                self.lone, self.upgraded = False, True
                grows = len(self.target) > 1  # it is the worker of the first slot; the others get theirs
                self.pending_resizes += grows
                return Outcome((elastic_now(self.job_id),), resize=grows)
            case j.WorkerEnded():
                return Outcome(tuple(self._worker_ended(event, around)))
            case j.Resized():
                self._resize_done()
                return Outcome(tuple(self._holds_fewer(around)))
            case j.GroupFormed():
                return Outcome(tuple(self._group_formed(event, around)))
            case j.CouldNotGrow(reason=reason):
                self.refusal = reason
            case j.FirstStepDone():
                around.refusals.trained(self.job_id, len(self.formed))
            case Progress():
                nodes = around.nodes(self.formed)
                slowdown = link_slowdown(around.cluster, nodes & around.cluster.node_index.keys())
                self.progress.latest = progressed(self.job_id, event, len(nodes) or 1, slowdown)
                formed = self._formed_before(around)
                return Outcome((*self._ready(), *formed, *self.progress.due(around.now_s)))
            case j.CheckpointWritten(checkpoint=checkpoint):
                self.saved = self.saved or self.stopping
                written = r.JobCheckpointed(
                    job_id=self.job_id,
                    samples=checkpoint.samples,
                    size_bytes=checkpoint.size_bytes,
                    seconds=checkpoint.seconds,
                )
                return Outcome((*self.progress.due(around.now_s, at_once=True), written))
            case j.JobEnded() if self.lone:
                return self._lone_ended(event)
            case j.JobEnded():
                return self._ended(event, around)
        return Outcome()

    def _worker_ended(self, event: j.WorkerEnded, around: Surroundings) -> list[r.Record]:
        self.workers.pop(event.worker, None)
        fewer = self._holds_fewer(around)
        if event.expected:
            return fewer
        self.lost_worker = True
        reason = event.reason[:MAX_REASON_CHARS]
        return [r.WorkerLost(job_id=self.job_id, worker=event.worker, slot=event.slot, reason=reason), *fewer]

    def _holds_fewer(self, around: Surroundings) -> list[r.Record]:
        """The job has left slots, if it has: that is recorded before others are let onto them."""
        if not (self.holds and self.holds < self.recorded) or self.stopping:
            return []
        self.recorded, self.is_recorded = self.holds, False
        return [r.JobRescaling(job_id=self.job_id, placement=around.placed(self.holds))]

    def _group_formed(self, event: j.GroupFormed, around: Surroundings) -> list[r.Record]:
        # Of a job that was taken over, a report may come before all of its workers have said that they began.
        begins = self.upgraded and not self.formed  # it ran before, and did not train
        restored = event.restored and (self.lost_worker or not self.formed) and not begins
        self.lost_worker = False
        self.formed = tuple(sorted(event.slots, key=around.names.place))
        self.progress.formed_at_s, self.recorded, self.is_recorded = around.now_s, set(self.formed), True
        formed = r.JobFormed(
            job_id=self.job_id,
            placement=around.placed(self.formed),
            pause_s=event.pause_s,
            restored=restored,
            samples=event.samples if restored else None,
        )
        stays = self._stays(around)
        return [*self._ready(), *self.progress.due(around.now_s, at_once=True), formed, *stays]

    def _stays(self, around: Surroundings) -> list[r.Record]:
        """A job that could not grow stays as it is for a while; if that is less than it needs, it saves and waits."""
        why, self.refusal = self.refusal, ""
        if not why or around.wanted is None or set(self.formed) == set(self.target):
            return []
        where = around.placed(slot for slot in self.target if slot not in self.formed)
        slots = ", ".join(f"{node}/{slot}" for node, slot in where.slots())
        stays_on = around.placed(self.formed)
        times = around.refusals.add(self.job_id, stays_on.num_slots)
        reason = f"it could not go on to {slots}: {why}"
        if stays_on.num_slots < around.wanted.spec.min_slots:
            reason += way_out({*where.node_names, *stays_on.node_names})
        return held(self.job_id, reason, times, stays_on)

    def _formed_before(self, around: Surroundings) -> list[r.Record]:
        """A job that was taken over reports: it was formed when no service was there.

        Or it was to move, and then was not to: it trains where it always did.
        """
        stays = self.formed and set(self.formed) == set(self.target) == self.holds
        if self.is_recorded or (self.formed and not stays):
            return []
        self.formed = tuple(sorted(self.supervisor.status.slots, key=around.names.place))
        self.recorded, self.is_recorded = set(self.formed), bool(self.formed)
        return [r.JobFormed(job_id=self.job_id, placement=around.placed(self.formed))] if self.formed else []

    def _ready(self) -> list[r.Record]:
        """What the script has said of its batches, once."""
        ready = None if self.is_ready_recorded else self.supervisor.status.ready
        if ready is None:
            return []
        self.is_ready_recorded = True
        return [job_ready(self.job_id, ready)]

    def _lone_ended(self, event: j.JobEnded) -> Outcome:
        """The one process of a job ended that has not called ``geminid.init()``: as that of a plain command."""
        if event.state is j.JobPhase.STOPPED and self.stopping:
            return Outcome((stopped(self.job_id),), over=True)
        if event.state is j.JobPhase.FINISHED:
            how, why = "succeeded", ended_early(initialised=False, slots=len(self.target))
        else:
            how = "lost" if event.state is j.JobPhase.STOPPED else "unstarted" if event.shortage else "crashed"
            why = (event.reason or self.reason)[:MAX_REASON_CHARS]
        return Outcome((r.JobEnded(job_id=self.job_id, how=how, reason=why),), over=True, drop_target=True)

    def _ended(self, event: j.JobEnded, around: Surroundings) -> Outcome:
        apart = event.was_split and around.wanted is not None and around.wanted.samples > 0
        how, reason = self._how_it_ended(event, apart), event.reason
        if how == "held":
            reason = f"{reason}, with 'geminid resume {self.job_id} --from-scratch'"
        if how in ("succeeded", "failed"):
            around.refusals.drop(self.job_id)
        why = reason if how in ("failed", "unstarted", "held") else self.reason
        if how == "succeeded" and event.early:
            count = len(self.recorded)
            why = ended_early(initialised=event.initialised, slots=count, times=count)
        if apart:
            ended = r.JobEnded(job_id=self.job_id, how=how, reason="its workers could not work together")
            reason = why[:400] + way_out(around.nodes(self.recorded))
            records = [ended, *held(self.job_id, reason, around.refusals.add(self.job_id, 0), None)]
        else:
            reason = why[:MAX_REASON_CHARS]
            records = [r.JobEnded(job_id=self.job_id, how=how, reason=reason, failures=event.failures)]
        last = self.progress.due(around.now_s, at_once=True)
        return Outcome((*last, *records), over=True, drop_target=how != "stopped")

    def _how_it_ended(self, event: j.JobEnded, apart: bool) -> str:
        if event.hold:
            return "held"
        if event.state is j.JobPhase.FINISHED:
            return "succeeded"
        if event.state is j.JobPhase.FAILED:
            return "unstarted" if event.shortage or apart else "failed"
        return "stopped" if self.saved else "lost"
