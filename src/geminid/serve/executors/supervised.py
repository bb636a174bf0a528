"""Jobs on named slots: elastic ones through a supervisor each, all others as plain commands.

What executors have in common, whether the slots are of this machine or of many. A slot belongs to whoever has a live
process on it. A job that is to run on a slot whose last holder has not left yet waits for it, on the slots that it can
have already. Starting anything waits for ``flush``, which the service calls once it has written down that it will:
after a crash, the log knows of every process that there may be.

There may be thousands of jobs, and each tells something every second: what that means for others is found by the slots
that it is about. Whoever waits for a slot is led again when its holder leaves it or is to stop (``_stirred``).

Within an executor a slot has one name, which says its node as well if there are several (:meth:`_slot`).
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, Self

from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.goodput.topology import link_slowdown
from geminid.job import FoundKind, JobKind, JobSpec
from geminid.jobstate import JobPhase
from geminid.process.disk_full import SHORTAGES, meeting_folder
from geminid.process.environment import clean_environment
from geminid.process.launch import Launcher, how_it_ended, written_exit_code
from geminid.process.logfiles import rotate
from geminid.serve import records as r
from geminid.serve.aside import move_aside, new_aside
from geminid.serve.client import INHERITED
from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.folders import JOBS, JobFolders
from geminid.serve.executors.jobsbyslot import JobsBySlot
from geminid.serve.executors.kinds import kind_of
from geminid.serve.executors.plain import PlainExit
from geminid.serve.livejob import BEFORE_THE_END, LiveJob
from geminid.supervise import events as j
from geminid.supervise.handover import Handover, ended_well, exit_file_of, forget_end, last_report
from geminid.supervise.protocol import Progress
from geminid.supervise.spec import Patience, WorkerSpec
from geminid.supervise.supervisor import Supervisor

#: Progress is told so often: in the first seconds on new slots, and later.
REPORTS_EARLY_S, REPORTS_LATE_S, EARLY_S = 1.0, 5.0, 30.0

#: How often sizes of logs are looked at, and those of how many jobs at a time: of more, each less often.
LOGS_EVERY_S, MOST_LOGS = 1.0, 1000

#: A supervisor whose job is over tells so; one that has not after so many ticks has failed.
SILENT_TICKS = 6

#: Workers train on for so long while the service is away.
ORPHANS_S = 600.0

#: A job that cannot come to the slots that it was planned for is left as it is: at first so long, and then twice as
#: long each time, but no longer than that.
HELD_S, LONGEST_HELD_S = 30.0, 600.0

#: Why a job is over of whose end nobody was told.
AWAY = "it ended while the service was away"


class Command(Protocol):
    """The process (or processes) of a plain command."""

    @property
    def pids(self) -> list[int]:
        """The process ids, where they run."""

    def stop(self, grace_s: float) -> None:
        """Ask the command to end; after the grace period it is made to."""

    def tick(self) -> None:
        """End the command if its grace period is over."""

    def kill(self) -> None:
        """End the command now."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A supervisor told something about its job."""

    job_id: str
    supervisor: Supervisor
    event: j.JobEvent


@dataclass(frozen=True, slots=True)
class _Begun:
    """A plain command's process runs."""

    job_id: str


@dataclass(frozen=True, slots=True)
class _NotStarted:
    """A job's processes could not be started."""

    job_id: str
    problem: Exception


@dataclass(frozen=True, slots=True)
class _Over:
    """A plain command's process is gone."""

    job_id: str
    command: Command


@dataclass(slots=True)
class _Elastic:
    """An elastic job's supervisor, and what is known of its workers.

    ``asked`` are the slots that it is to train on, ``formed`` those that it does train on, and ``told`` those that the
    records say it holds; ``settled`` tells whether they say that it trains on them, and ``lost`` whether a worker was
    lost since it was formed. ``left`` are slots that it was to train on before, where a worker may still be started: as
    long as of what was asked of the supervisor something is ``unheard``. ``refused`` is why it could not grow just now.
    A job that is ``alone`` is one process on all slots that were asked for: it has not called ``geminid.init()`` yet;
    it is ``upgraded`` when it has.
    """

    supervisor: Supervisor
    workers: dict[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    left: set[str] = field(default_factory=set)
    unheard: int = 0
    formed: tuple[str, ...] = ()
    told: set[str] = field(default_factory=set)
    settled: bool = False
    told_ready: bool = False
    stopping: bool = False
    alone: bool = False
    upgraded: bool = False
    saved: bool = False
    lost: bool = False
    formed_at_s: float = 0.0
    reported_at_s: float = 0.0
    unreported: r.JobProgressed | None = None
    silent_ticks: int = 0
    reason: str = ""
    refused: str = ""

    @property
    def holds(self) -> set[str]:
        """Slots with a live worker, or one that is about to be."""
        return set(self.workers.values()) | set(self.asked) | self.left

    def was_heard(self) -> None:
        """The supervisor does what it was asked for, or will never be asked."""
        self.unheard -= 1
        if not self.unheard:
            self.left.clear()

    def do_without(self, slots: Set[str], reason: str) -> None:
        """No worker can be on these slots: the job goes on with the others, and ends if there are none.

        One that was on its way to no other slots than these stays where it trains.
        """
        self.asked = tuple(slot for slot in self.asked if slot not in slots)
        self.left -= slots
        self.supervisor.lose(slots, reason)
        if self.asked:
            return
        living = set(self.workers.values()) - slots  # of whom some may be leaving, and have no state to go on from
        self.asked = tuple(slot for slot in self.supervisor.status.slots if slot in living)
        if self.asked:
            self.left -= set(self.asked)
            self.unheard += 1
            self.supervisor.resize(self.asked)
        else:
            self.reason = reason
            self.supervisor.kill()


@dataclass(frozen=True, slots=True)
class _Refusals:
    """How many times in a row a job could not train on more slots than these."""

    times: int = 0
    slots: int = 0


@dataclass(slots=True)
class _Plain:
    """A plain command's process, once it is started, and its slots."""

    slots: tuple[str, ...]
    command: Command | None = None
    stopping: bool = False

    @property
    def holds(self) -> set[str]:
        """All of its slots."""
        return set(self.slots)


class SupervisedExecutor(ABC):
    """What executors have in common; see the module."""

    def __init__(self, folders: JobFolders, cluster: Cluster, launcher: Launcher, patience: Patience) -> None:
        self.folders = folders
        self._folder, self._cluster, self._launcher, self._patience = folders.home, cluster, launcher, patience
        self._post: Callable[[ExecutorEvent], None] = lambda event: None
        self._running: dict[str, _Elastic | _Plain] = {}
        self._wanted: dict[str, tuple[LiveJob, tuple[str, ...]]] = {}
        self._holders, self._suitors = JobsBySlot(), JobsBySlot()  # as of when each job was accounted for
        self._refusals: dict[str, _Refusals] = {}
        self._stirred: set[str] = set()  # slots where something has changed for whoever wants them
        self._todo: list[tuple[str, Callable[[], None]]] = []
        self._logs_at_s = 0.0
        self._logs_due: list[str] = []  # the jobs whose logs are still to be looked at, in this round

    # --- What differs ---

    @abstractmethod
    def _slot(self, node: str, index: int) -> str:
        """The name of a slot."""

    @abstractmethod
    def _where(self, slot: str) -> tuple[str, int]:
        """The node and index of a slot."""

    @abstractmethod
    def _spec(self, job: LiveJob) -> WorkerSpec:
        """How a job's workers are run."""

    @abstractmethod
    def _lone_environment(self, job: LiveJob, slots: tuple[str, ...]) -> Mapping[str, str]:
        """What the one process of a job has in its environment that may still turn out to be elastic."""

    @abstractmethod
    def _start_command(self, job: LiveJob, slots: tuple[str, ...], ended: Callable[[Command], None]) -> Command:
        """Start a plain command."""

    @abstractmethod
    def _adopt_command(self, job: LiveJob, ended: Callable[[Command], None]) -> Command | None:
        """The plain command that an earlier service started, if it still runs."""

    @abstractmethod
    def _exit_of(self, job_id: str) -> PlainExit | None:
        """How a plain command ended, if it did."""

    @abstractmethod
    def _forget_exit(self, job_id: str) -> None:
        """How a plain command ended when it ran before counts no more."""

    @abstractmethod
    def _live_workers(self, job_id: str) -> dict[str, str]:
        """The slot of each worker that an earlier service started and that still runs."""

    @abstractmethod
    def _end_others(self) -> None:
        """End whatever earlier services left running that was not taken over."""

    def _is_here(self, slot: str) -> bool:
        """Whether there still is a slot that an earlier service had."""
        return True

    def _has_code(self, job: LiveJob, slot: str) -> bool:
        """Whether what a job runs is known to be where a slot is."""
        return True

    def _slots_of(self, job: LiveJob) -> tuple[str, ...]:
        """The slots of a plain command that an earlier service started."""
        place = job.state.placement
        return () if place is None else tuple(self._slot(node, index) for node, index in place.slots())

    def _usable(self, job_id: str, slots: tuple[str, ...]) -> tuple[str, ...]:
        """Those of some slots that nobody else holds which may be used now; asks for the others, if it has to."""
        return slots

    def _may_begin(self, job_id: str) -> bool:
        """Whether a job that has no processes may be started; not while some of it may still run somewhere."""
        return True

    # --- What the service asks ---

    @property
    def cluster(self) -> Cluster:
        """The slots that there are."""
        return self._cluster

    @property
    def submissions(self) -> Self:
        """What is asked before a job is accepted."""
        return self

    def interpreter(self, submitters: str) -> str | None:
        """What the command ``python`` stands for: that of whoever submits it."""
        return submitters

    def inherited(self, submitters: Mapping[str, str]) -> dict[str, str]:
        """What a job has of its submitter's environment."""
        return {name: submitters[name] for name in INHERITED if name in submitters}

    def delay_of(self, job_id: str) -> str:
        """What a job waits for whose slots are free: nothing, here."""
        return ""

    def kind_of(self, spec: JobSpec) -> FoundKind:
        """How a job is to be launched, as far as its specification and its script tell."""
        return kind_of(spec)

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Sequence[LiveJob]) -> list[r.Record]:
        """Take over what lives, end what nobody wants, tell what is gone."""
        self._post = post
        told: list[r.Record] = []
        holding = {job.id: job for job in jobs if job.phase.holds_slots}
        for job in holding.values():
            told += self._recover(job)
            if job.id not in self._running:
                self._tidy(job.id)
        self._end_others()
        return told

    def run(self, job: LiveJob, placement: Placement) -> list[r.Record]:
        """Have a job run on these slots, as soon as they are free."""
        self._wanted[job.id] = (job, tuple(self._slot(node, index) for node, index in placement.slots()))
        running = self._running.get(job.id)
        if isinstance(running, _Elastic):
            running.supervisor.set_min_slots(job.spec.min_slots)
        return self._lead(job.id)

    def stop(self, job: LiveJob, reason: str, *, save: bool = True) -> list[r.Record]:
        """Have a job's processes end."""
        self._wanted.pop(job.id, None)
        self._account(job.id)
        running = self._running.get(job.id)
        if running is None or running.stopping:
            return []
        if self._recalled(job.id, running):
            self._account(job.id)
            return [r.JobStopping(job_id=job.id, reason=reason), _stopped(job.id), *self._lead_suitors()]
        self._end(running, save=save)
        return [r.JobStopping(job_id=job.id, reason=reason)]

    def flush(self) -> None:
        """Start what was announced: the service has written it down."""
        todo, self._todo = self._todo, []
        for job_id, start in todo:
            try:
                start()
            except OSError as problem:  # a full disk, say: this job's misfortune and nobody else's
                self._post(_NotStarted(job_id, problem))
            self._account(job_id)

    def tick(self, capacity: Callable[[], Mapping[str, int]]) -> list[r.Record]:
        """Grace periods, progress that has waited, logs that have grown, and who may come to the slots of others."""
        told: list[r.Record] = []
        for job_id, running in list(self._running.items()):
            if isinstance(running, _Plain) and running.command is not None:
                running.command.tick()
            elif isinstance(running, _Elastic):
                told += self._report(running)
                running.silent_ticks = running.silent_ticks + 1 if running.supervisor.has_ended else 0
                if running.silent_ticks > SILENT_TICKS:  # its end was never told: its supervisor failed
                    reason = running.supervisor.status.reason
                    told += self._hear(job_id, running, j.JobEnded(j.JobPhase.FAILED, reason))
                    self._account(job_id)
        if monotonic() > self._logs_at_s:
            self._logs_at_s = monotonic() + LOGS_EVERY_S
            self._look_at_logs()
        return told + self._lead_suitors()

    def _look_at_logs(self) -> None:
        """Put logs aside that have grown too large: of some jobs, and of the next ones the next time."""
        due = self._logs_due or list(self._running)
        self._logs_due = due[MOST_LOGS:]
        for job_id in due[:MOST_LOGS]:
            rotate(self.folder_of(job_id) / "logs")

    def _tidy(self, job_id: str) -> None:
        """A job's processes are gone: its logs keep to their size, and nothing of it stays in memory."""
        folder = self.folder_of(job_id)
        rotate(folder / "logs")
        left = Handover.read(folder)
        if left is not None:
            shutil.rmtree(meeting_folder(folder, left.token), ignore_errors=True)

    def handle(self, happening: ExecutorEvent) -> list[r.Record]:
        """What a supervisor or a watcher told means this for the jobs."""
        if isinstance(happening, _Told):
            running = self._running.get(happening.job_id)
            if not isinstance(running, _Elastic) or running.supervisor is not happening.supervisor:
                return []
            told = self._hear(happening.job_id, running, happening.event)
            if isinstance(happening.event, j.Reported):  # as every job does every second: no slot is another's by that
                return told
        elif isinstance(happening, _Begun):
            begun = self._running.get(happening.job_id)
            return [] if begun is None else [r.JobFormed(job_id=happening.job_id, placement=self._placed(begun.holds))]
        elif isinstance(happening, _NotStarted):
            told = self._not_started(happening.job_id, happening.problem)
        elif isinstance(happening, _Over):
            job = self._running.get(happening.job_id)
            if not isinstance(job, _Plain) or job.command is not happening.command:
                return []
            told = self._plain_over(happening.job_id, stopping=job.stopping)
            del self._running[happening.job_id]
        else:
            return []
        self._account(happening.job_id)
        if happening.job_id not in self._running:
            self._tidy(happening.job_id)
        return told + self._lead(happening.job_id) + self._lead_suitors()

    def close(self, *, detach: bool) -> None:
        """End with all processes, or leave them to the next service."""
        for running in self._running.values():
            if isinstance(running, _Elastic):
                if detach:
                    running.supervisor.detach()
                else:
                    running.supervisor.kill()
            elif running.command is not None and not detach:
                running.command.kill()
        self._launcher.close()

    def pids(self, job_id: str) -> list[int]:
        """The processes of a job."""
        running = self._running.get(job_id)
        if isinstance(running, _Elastic):
            return [worker.pid for worker in running.supervisor.status.workers]
        return running.command.pids if running is not None and running.command is not None else []

    def folder_of(self, job_id: str) -> Path:
        """The folder of a job: its socket, checkpoints and logs."""
        return self.folders.folder_of(job_id)

    def _placed(self, slots: Iterable[str]) -> Placement:
        return Placement.of_slots(map(self._where, slots))

    # --- Leading there ---

    def _account(self, job_id: str) -> None:
        """Keep what a job holds and wants now, by slot; done after whatever may have changed it."""
        running, wanted = self._running.get(job_id), self._wanted.get(job_id)
        self._stirred |= self._holders.put(job_id, set() if running is None else running.holds)
        self._suitors.put(job_id, set() if wanted is None else set(wanted[1]))

    def _is_there(self, job_id: str) -> bool:
        """Whether a job runs on all slots that it is wanted on, or is about to."""
        running, (_, slots) = self._running.get(job_id), self._wanted[job_id]
        if running is None or running.stopping:
            return False
        return slots == (running.slots if isinstance(running, _Plain) else running.asked)

    def _lead_suitors(self) -> list[r.Record]:
        """Lead the jobs that want slots where something has changed."""
        told: list[r.Record] = []
        while self._stirred:
            stirred, self._stirred = self._stirred, set()
            for job_id in self._suitors.of(sorted(stirred)):
                told += self._lead(job_id)
        return told

    def _lead(self, job_id: str) -> list[r.Record]:
        """Bring a job as close to its wanted slots as the others let it."""
        told = self._lead_closer(job_id)
        self._account(job_id)
        return told

    def _lead_closer(self, job_id: str) -> list[r.Record]:
        if job_id not in self._wanted:
            return []
        job, slots = self._wanted[job_id]
        near = [self._running.get(other) for other in self._holders.of(slots) if other != job_id]
        others = [other for other in near if other is not None]
        taken = {slot for other in others for slot in other.holds}
        left = tuple(slot for slot in slots if slot not in taken)
        free = self._usable(job_id, left)
        running = self._running.get(job_id)
        if running is None:
            late = any(other.stopping and other.holds & set(slots) for other in others)
            if late and job.elastic and len(left) >= job.spec.min_slots:
                slots = left  # whoever is told to stop may take its time: it starts beside, and grows
            if free != slots or not self._may_begin(job_id):
                return []
            starting = r.JobStarting(job_id=job_id, placement=self._placed(slots))
            try:
                self._begin(job, slots)
            except (OSError, ValueError) as problem:
                return [starting, *self._not_started(job_id, problem)]
            return [starting]
        if running.stopping:
            return []
        if isinstance(running, _Plain) or running.alone:
            if (running.slots if isinstance(running, _Plain) else running.asked) == slots:
                return []
            why = f": {job.why}" if job.why else ""
            moving = r.JobStopping(job_id=job_id, reason=f"it has to move to other slots{why}")
            if self._recalled(job_id, running):
                return [moving, _stopped(job_id), *self._lead(job_id)]
            self._end(running, save=True)
            return [moving]
        if not free or free == running.asked:
            return []
        held = running.holds | set(free)
        running.left = (running.left | set(running.asked)) - set(free)
        running.asked, running.unheard = free, running.unheard + 1
        self._todo.append((job_id, lambda: self._resize(job_id, running)))
        return self._moving(job_id, running, held)

    def _moving(self, job_id: str, running: _Elastic, held: set[str]) -> list[r.Record]:
        """A job is on its way to other slots, and holds these meanwhile."""
        running.told, running.settled = held, False
        return [r.JobRescaling(job_id=job_id, placement=self._placed(held))]

    def _not_started(self, job_id: str, problem: Exception) -> list[r.Record]:
        """A job could not be started: it is tried again, as after any other crash."""
        self._running.pop(job_id, None)
        self._wanted.pop(job_id, None)
        how = "unstarted" if getattr(problem, "errno", None) in SHORTAGES else "crashed"
        reason = f"it could not be started: {_problem(problem)}"
        return [r.JobEnded(job_id=job_id, how=how, reason=reason[:500])]

    def _recalled(self, job_id: str, running: _Elastic | _Plain) -> bool:
        """Whether a command was announced and not started yet, which it then is not."""
        if isinstance(running, _Elastic) or not any(job == job_id for job, _ in self._todo):
            return False
        self._todo = [(job, start) for job, start in self._todo if job != job_id]
        del self._running[job_id]
        return True

    def _begin(self, job: LiveJob, slots: tuple[str, ...]) -> None:
        folder = self.folder_of(job.id)
        if job.state.first_started_at_s is None and folder.exists():
            move_aside(folder, new_aside(self._folder) / JOBS)  # what is in it is not known to be of this job
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if job.kind is not JobKind.PLAIN:
            forget_end(folder)
            alone = not job.elastic
            supervisor = self._supervise(job, adopt=False, **({"lone_slots": slots} if alone else {}))
            running = self._running[job.id] = _Elastic(supervisor, asked=slots, told=set(slots), unheard=1, alone=alone)
            self._todo.append((job.id, lambda: self._resize(job.id, running, begin=True)))
        else:
            self._forget_exit(job.id)
            plain = self._running[job.id] = _Plain(slots)
            self._todo.append((job.id, lambda: self._start_plain(job, plain)))

    def _resize(self, job_id: str, running: _Elastic, *, begin: bool = False) -> None:
        if begin:
            running.supervisor.__enter__()
        try:
            running.supervisor.resize(running.asked[:1] if running.alone else running.asked)
        except ValueError:  # more slots than its largest batch can be divided over: it stays as it is
            running.asked = running.formed or running.asked
            running.was_heard()

    def _start_plain(self, job: LiveJob, plain: _Plain) -> None:
        plain.command = self._start_command(job, plain.slots, lambda over: self._post(_Over(job.id, over)))
        self._post(_Begun(job.id))

    def _end(self, running: _Elastic | _Plain, *, save: bool) -> None:
        running.stopping = True
        self._stirred |= running.holds
        if isinstance(running, _Elastic):
            running.supervisor.stop(save=save)
        elif running.command is not None:
            running.command.stop(self._patience.grace)

    def _supervise(self, job: LiveJob, *, adopt: bool, lone_slots: tuple[str, ...] = ()) -> Supervisor:
        made: list[Supervisor] = []
        spec = self._spec(job)
        if lone_slots:
            environment = partial(self._lone_environment, job, lone_slots)
            spec = replace(spec, lone_slots=lone_slots, lone_environment=environment)
        supervisor = Supervisor(
            spec,
            on_event=lambda event: self._post(_Told(job.id, made[0], event)),
            launcher=self._launcher,
            adopt=adopt,
        )
        made.append(supervisor)
        return supervisor

    def _lose(self, slots: Set[str], reason: str) -> list[r.Record]:
        """Slots are gone with their node: jobs go on with the others that they have, if they have any."""
        told: list[r.Record] = []
        suitors = [job_id for job_id in self._suitors.of(sorted(slots)) if job_id in self._wanted]
        holders = [job_id for job_id in self._holders.of(sorted(slots)) if job_id in self._running]
        for job_id in suitors:
            job, wanted = self._wanted[job_id]
            left = tuple(slot for slot in wanted if slot not in slots)
            if left:
                self._wanted[job_id] = (job, left)
            else:
                del self._wanted[job_id]
        for job_id in holders:
            running = self._running[job_id]
            if isinstance(running, _Elastic):
                running.do_without(slots, reason)
            else:
                del self._running[job_id]
                self._wanted.pop(job_id, None)
                if running.command is not None:
                    running.command.kill()
                told.append(r.JobEnded(job_id=job_id, how="lost", reason=reason))
        for job_id in {*suitors, *holders}:
            self._account(job_id)
        return told

    # --- What jobs tell ---

    def _hear(self, job_id: str, running: _Elastic, event: j.JobEvent) -> list[r.Record]:
        match event:
            case j.WorkerStarted(worker=worker, slot=slot):
                running.workers[worker] = slot
                if running.alone:
                    return [r.JobFormed(job_id=job_id, placement=self._placed(running.asked))]
            case j.InitCalled() if running.alone:
                running.alone, running.upgraded = False, True
                if len(running.asked) > 1:  # it is the worker of the first; the others get theirs
                    running.unheard += 1
                    self._todo.append((job_id, lambda: self._resize(job_id, running)))
                return [elastic_now(job_id)]
            case j.WorkerEnded(worker=worker, slot=slot, reason=reason, expected=expected):
                running.workers.pop(worker, None)
                told: list[r.Record] = []
                if not expected:
                    running.lost = True
                    told.append(r.WorkerLost(job_id=job_id, worker=worker, slot=slot, reason=reason[:500]))
                return told + self._holds_fewer(job_id, running)
            case j.Resized():
                running.was_heard()
                return self._holds_fewer(job_id, running)
            case j.GroupFormed():
                # Of a job that was taken over, a report may come before all of its workers have told that they began.
                begins = running.upgraded and not running.formed  # it ran before, and did not train
                restored = event.restored and (running.lost or not running.formed) and not begins
                running.lost = False
                running.formed = tuple(sorted(event.slots, key=self._where))
                running.formed_at_s, running.told, running.settled = monotonic(), set(running.formed), True
                formed = r.JobFormed(
                    job_id=job_id,
                    placement=self._placed(running.formed),
                    pause_s=event.pause_s,
                    restored=restored,
                    samples=event.samples if restored else None,
                )
                stays = self._stays(job_id, running)
                return [*self._ready(job_id, running), *self._report(running, now=True), formed, *stays]
            case j.CouldNotGrow(reason=reason):
                running.refused = reason
            case j.FirstStepDone() if len(running.formed) > self._refusals.get(job_id, _Refusals()).slots:
                self._refusals.pop(job_id, None)
            case j.Reported(progress=progress):
                nodes = {self._where(slot)[0] for slot in running.formed}
                slowdown = link_slowdown(self.cluster, nodes & self.cluster.node_index.keys())
                running.unreported = replace(progressed(job_id, progress, len(nodes) or 1), link_slowdown=slowdown)
                return [*self._ready(job_id, running), *self._formed_before(job_id, running), *self._report(running)]
            case j.CheckpointWritten(checkpoint=checkpoint):
                running.saved = running.saved or running.stopping
                written = r.JobCheckpointed(
                    job_id=job_id,
                    samples=checkpoint.samples,
                    size_bytes=checkpoint.size_bytes,
                    seconds=checkpoint.seconds,
                )
                return [*self._report(running, now=True), written]
            case j.JobEnded() if running.alone:
                del self._running[job_id]
                return self._lone_over(job_id, running, event)
            case j.JobEnded(state=state, reason=reason, short=short, failures=failures, apart=apart):
                del self._running[job_id]
                apart = apart and self._has_trained(job_id)
                how = {j.JobPhase.FINISHED: "succeeded", j.JobPhase.FAILED: "failed"}.get(state, "stopped")
                if how == "stopped" and not running.saved:
                    how = "lost"
                if how == "failed" and (short or apart):
                    how = "unstarted"
                if event.hold:
                    how, reason = "held", f"{reason}, with 'geminid resume {job_id} --from-scratch'"
                if how in ("succeeded", "failed"):
                    self._refusals.pop(job_id, None)
                if how != "stopped":
                    self._wanted.pop(job_id, None)
                why = reason if how in ("failed", "unstarted", "held") else running.reason
                if how == "succeeded" and event.early:
                    why = ended_early(initialised=event.initialised, slots=len(running.told), times=len(running.told))
                if apart:
                    ended = r.JobEnded(job_id=job_id, how=how, reason="its workers could not work together")
                    reason = why[:400] + _way_out({self._where(slot)[0] for slot in running.told})
                    told = [ended, *held(job_id, reason, self._refuse(job_id, 0), None)]
                else:
                    told = [r.JobEnded(job_id=job_id, how=how, reason=why[:500], failures=failures)]
                return [*self._report(running, now=True), *told]
        return []

    def _lone_over(self, job_id: str, running: _Elastic, event: j.JobEnded) -> list[r.Record]:
        """How the one process of a job ended that has not called ``geminid.init()``: as that of a plain command."""
        if event.state is j.JobPhase.STOPPED and running.stopping:
            return [_stopped(job_id)]
        self._wanted.pop(job_id, None)
        if event.state is j.JobPhase.FINISHED:
            why = ended_early(initialised=False, slots=len(running.asked))
            return [r.JobEnded(job_id=job_id, how="succeeded", reason=why)]
        how = "lost" if event.state is j.JobPhase.STOPPED else "unstarted" if event.short else "crashed"
        return [r.JobEnded(job_id=job_id, how=how, reason=(event.reason or running.reason)[:500])]

    def _holds_fewer(self, job_id: str, running: _Elastic) -> list[r.Record]:
        """A job has left slots, if it has: that is told before others are let onto them."""
        if running.holds and running.holds < running.told and not running.stopping:
            return self._moving(job_id, running, running.holds)
        return []

    def _has_trained(self, job_id: str) -> bool:
        """Whether a job that is wanted somewhere has got on before."""
        return job_id in self._wanted and self._wanted[job_id][0].samples > 0

    def _refuse(self, job_id: str, slots: int) -> int:
        """A job cannot train on more slots than these; how many times in a row now."""
        before = self._refusals.get(job_id, _Refusals())
        self._refusals[job_id] = _Refusals(before.times + 1, max(before.slots, slots))
        return before.times + 1

    def _stays(self, job_id: str, running: _Elastic) -> list[r.Record]:
        """A job that could not grow stays as it is for a while; if that is less than it needs, it saves and waits."""
        why, running.refused = running.refused, ""
        if not why or job_id not in self._wanted or set(running.formed) == set(running.asked):
            return []
        where = self._placed(slot for slot in running.asked if slot not in running.formed)
        slots = ", ".join(f"{node}/{slot}" for node, slot in where.slots())
        stays_on = self._placed(running.formed)
        times = self._refuse(job_id, stays_on.num_slots)
        reason = f"it could not go on to {slots}: {why}"
        if stays_on.num_slots < self._wanted[job_id][0].spec.min_slots:
            reason += _way_out({*where.node_names, *stays_on.node_names})
        return held(job_id, reason, times, stays_on)

    def _formed_before(self, job_id: str, running: _Elastic) -> list[r.Record]:
        """A job that was taken over reports: it was formed when nobody was there to hear it.

        Or it was to move, and then was not to: it trains where it always did.
        """
        stays = running.formed and set(running.formed) == set(running.asked) == running.holds
        if running.settled or (running.formed and not stays):
            return []
        running.formed = tuple(sorted(running.supervisor.status.slots, key=self._where))
        running.told, running.settled = set(running.formed), bool(running.formed)
        return [r.JobFormed(job_id=job_id, placement=self._placed(running.formed))] if running.formed else []

    def _ready(self, job_id: str, running: _Elastic) -> list[r.Record]:
        ready = None if running.told_ready else running.supervisor.status.ready
        if ready is None:
            return []
        running.told_ready = True
        return [
            r.JobReady(
                job_id=job_id,
                initial_batch=ready.initial_batch,
                largest_batch=ready.largest_batch,
                smallest_per_slot=ready.smallest_per_slot,
                largest_per_slot=ready.largest_per_slot,
                parameter_count=ready.parameter_count,
                dataset_samples=ready.dataset_samples,
                work_samples=ready.work_samples,
                by_progress=ready.by_progress,
            )
        ]

    def _report(self, running: _Elastic, *, now: bool = False) -> list[r.Record]:
        """The latest progress, if it is time to tell it."""
        since_s = monotonic() - running.reported_at_s
        often_s = REPORTS_EARLY_S if monotonic() - running.formed_at_s < EARLY_S else REPORTS_LATE_S
        if running.unreported is None or not (now or since_s >= often_s):
            return []
        latest, running.unreported, running.reported_at_s = running.unreported, None, monotonic()
        return [latest]

    def _plain_over(self, job_id: str, *, stopping: bool) -> list[r.Record]:
        """How a plain command ended, by what its shim wrote down.

        One that is to stop has not succeeded, whatever its exit code, unless it had ended before it was told to.
        """
        ended = self._exit_of(job_id)
        if ended is not None and ended.code == 0 and not (stopping and ended.asked):
            self._wanted.pop(job_id, None)
            return [r.JobEnded(job_id=job_id, how="succeeded")]
        if stopping:
            return [_stopped(job_id)]
        self._wanted.pop(job_id, None)
        reason = "its processes were killed" if ended is None else f"it {ended.told()}"
        return [r.JobEnded(job_id=job_id, how="crashed", reason=reason)]

    # --- After a crash of the service ---

    def _recover(self, job: LiveJob) -> list[r.Record]:
        """Take over a job that held slots when the last service ended."""
        told: list[r.Record] = []
        if job.kind is not JobKind.PLAIN:
            if job.phase is not JobPhase.STOPPING and ended_well(self.folder_of(job.id)):
                return [*self._last_report(job), r.JobEnded(job_id=job.id, how="succeeded", reason=AWAY)]
            left = Handover.read(self.folder_of(job.id))
            workers = self._live_workers(job.id)
            if not workers:
                return self._gone_meanwhile(job, left)
            alone = not job.elastic and left is not None and bool(left.lone_slots)
            if not (job.elastic or alone):  # it called geminid.init() just before the last service ended
                told.append(elastic_now(job.id))
            supervisor = self._supervise(job, adopt=True, **({"lone_slots": left.lone_slots} if alone and left else {}))
            held = left.lone_slots if alone and left else tuple(sorted(workers.values(), key=self._where))
            asked = tuple(slot for slot in held if self._is_here(slot))
            self._running[job.id] = _Elastic(supervisor, workers=workers, asked=asked, told=set(held), alone=alone)
            if alone and job.phase is JobPhase.STARTING:
                told.append(r.JobFormed(job_id=job.id, placement=self._placed(held)))
            supervisor.drop_slots(lambda one: not (self._is_here(one) and (one in held or self._has_code(job, one))))
            supervisor.__enter__()
            before = job.state.placement
            if before is not None and before != self._placed(held):  # not all were started, or one is gone meanwhile
                told.append(r.JobRescaling(job_id=job.id, placement=self._placed(held)))
        else:
            command = self._adopt_command(job, lambda over: self._post(_Over(job.id, over)))
            if command is None:
                ended = self._exit_of(job.id)
                if ended is not None:
                    unwanted = not job.wants_slots or job.target != job.state.placement
                    stopping = job.phase is JobPhase.STOPPING or (ended.asked and unwanted)
                    return self._plain_over(job.id, stopping=stopping)
                return [r.JobEnded(job_id=job.id, how="lost", reason="its process was gone when the service came back")]
            now = self._placed(self._slots_of(job))
            self._running[job.id] = _Plain(tuple(self._slot(node, index) for node, index in now.slots()), command)
            if now != job.state.placement:
                stopping = job.phase is JobPhase.STOPPING
                told.append((r.JobRescaling if stopping else r.JobFormed)(job_id=job.id, placement=now))
        if job.phase is JobPhase.STOPPING:
            self._end(self._running[job.id], save=True)
        self._account(job.id)
        return told

    def _last_report(self, job: LiveJob) -> list[r.Record]:
        """How far a job had come when training was over, which nobody was there to hear."""
        left = Handover.read(self.folder_of(job.id))
        report = None if left is None or not left.members else last_report(self.folder_of(job.id), left.members[0])
        place = job.state.placement
        return [] if report is None else [progressed(job.id, report, 1 if place is None else len(place.node_names))]

    def _gone_meanwhile(self, job: LiveJob, left: Handover | None) -> list[r.Record]:
        """What became of a job without live processes, by what the shim of its leader wrote down."""
        leader = None if left is None else next(iter(left.members or left.workers), None)
        code = None if leader is None else written_exit_code(exit_file_of(self.folder_of(job.id), leader))
        if code == 0 and job.phase is not JobPhase.STOPPING:
            slots = 1 if job.state.placement is None else job.state.placement.num_slots
            if report := self._last_report(job):  # training was over
                return [*report, r.JobEnded(job_id=job.id, how="succeeded", reason=AWAY)]
            initialised = left is not None and not left.lone_slots and bool(left.members)
            times = 1 if left is not None and left.lone_slots else slots
            reason = f"{ended_early(initialised=initialised, slots=slots, times=times)}; {AWAY}"
            return [r.JobEnded(job_id=job.id, how="succeeded", reason=reason)]
        if code is not None and left is not None and left.lone_slots:
            if job.phase is JobPhase.STOPPING:
                return [_stopped(job.id)]
            reason = f"it {how_it_ended(code)} while the service was away"
            return [r.JobEnded(job_id=job.id, how="crashed", reason=reason)]
        return [r.JobEnded(job_id=job.id, how="lost", reason="its processes were gone when the service came back")]


def progressed(job_id: str, report: Progress, nodes: int) -> r.JobProgressed:
    """What a leader reported, on so many nodes."""
    return r.JobProgressed(
        job_id=job_id,
        progress=report.progress,
        samples=report.samples,
        step=report.step,
        epoch=report.epoch,
        slots=report.size,
        nodes=nodes,
        per_slot_batch=report.plan.per_slot_batch,
        accumulation_steps=report.plan.accumulation_steps,
        accumulation_s=report.accumulation_s,
        step_s=report.step_s,
        squared_gradient=report.squared_gradient,
        variance=report.variance,
        learning_rate_factor=report.learning_rate_factor,
        metrics=report.metrics,
    )


def elastic_now(job_id: str) -> r.Record:
    """A job of unknown kind is elastic."""
    return r.JobKindKnown(job_id=job_id, job_kind=JobKind.ELASTIC.value, reason="the script called geminid.init()")


def ended_early(*, initialised: bool, slots: int, times: int = 1) -> str:
    """What is to be said of a job whose script ended well, and not by having trained to its end.

    ``times`` is how many processes ran it: one on every slot, if it was submitted as elastic.
    """
    if initialised:
        return BEFORE_THE_END
    many = "1 slot" if slots == 1 else f"{slots} slots"
    ran = f"it ran {times} times, once on each slot," if times > 1 else f"it ran on {many}"
    return f"finished without calling geminid.init(): {ran} and could not be resized; submit it with --kind plain"


def _problem(problem: Exception) -> str:
    """In words, with the file that it is about."""
    if not isinstance(problem, OSError) or problem.strerror is None:
        return str(problem)
    return f"{problem.filename}: {problem.strerror}" if problem.filename is not None else problem.strerror


def held(job_id: str, reason: str, times: int, placement: Placement | None) -> list[r.Record]:
    """A job could not come to its slots, so many times in a row: it is left as it is, the longer the more often.

    If it runs, it stays on this placement.
    """
    for_s = min(HELD_S * 2.0 ** max(times - 1, 0), LONGEST_HELD_S)
    warning = f"{job_id}: {reason}; it is tried again in {for_s:g} s"
    record = r.JobHeld(job_id=job_id, for_s=for_s, reason=reason, placement=placement)
    return [r.Noted(level="warning", text=warning), record]


def _way_out(nodes: Collection[str]) -> str:
    """What an operator can do for a job that needs nodes which do not reach each other."""
    return f" (`geminid drain` one of {', '.join(sorted(nodes))} to have it elsewhere)" if len(nodes) > 1 else ""


def _stopped(job_id: str) -> r.Record:
    return r.JobEnded(job_id=job_id, how="stopped")


def worker_options(spec: JobSpec) -> dict[str, Any]:
    """What a job's file says of batch sizes, which overrides what its script says."""
    options = {
        "initial_batch_size": spec.initial_batch_size,
        "max_batch_size": spec.max_batch_size,
        "max_per_slot_batch": spec.max_per_slot_batch,
        "min_per_slot_batch": spec.min_per_slot_batch if spec.min_per_slot_batch > 1 else None,
        "scaling_rule": None if spec.scaling_rule.value == "auto" else spec.scaling_rule.value,
        "checkpoint_interval_s": spec.checkpoint_interval_s,
    }
    return {name: value for name, value in options.items() if value is not None}


def job_environment(job: LiveJob, *, cpu: bool) -> dict[str, str]:
    """What the processes of a job have on this machine: what the job asks for, and nothing of the service's own."""
    threads = {"OMP_NUM_THREADS": "1"} if cpu else {}
    return {**clean_environment(), **threads, **dict(job.spec.env)}
