"""One job's supervisor: starts its workers as processes, tells them their places, and gets them over failures.

    spec = WorkerSpec(command=("python", "train.py"), folder=Path("jobs/17"))
    with Supervisor(spec, on_event=print) as job:
        job.resize(["cpu0"])
        job.resize(["cpu0", "cpu1"])          # live: the first worker keeps its process and its state
        job.wait(lambda status: status.phase.over)

Everything is decided in one thread of the supervisor's own, one thing after the other (``_inbox``); the methods may be
called from any thread and return at once, except ``wait``. ``on_event`` is called in the supervisor's thread and must
not block. Connections, the ends of processes and the clock are watched by a reactor that all supervisors of this
process share: heartbeats, of which there are most, and a clock by which nothing is due do not wake the supervisor.
Nobody outlives the ``with`` block, unless ``detach`` was called: then the workers train on, and another supervisor with
``adopt=True`` takes over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import secrets
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from geminid.process.descendants import MARK, signal_marked
from geminid.process.disk_full import SHORTAGES, is_full, meeting_folder, no_room, tells_of_full_disk
from geminid.process.launch import (
    SLOT_GONE,
    AdoptedProcess,
    Launch,
    Launcher,
    PlainLauncher,
    WorkerProcess,
    how_it_ended,
    written_exit_code,
)
from geminid.supervise import channel, hangs, protocol
from geminid.supervise.channel import Address
from geminid.supervise.connections import STARTING, Doing, Known, Lines
from geminid.supervise.events import (
    CheckpointWritten,
    CouldNotGrow,
    FirstStepDone,
    GroupFormed,
    InitCalled,
    JobEnded,
    JobEvent,
    JobPhase,
    JobStatus,
    Reported,
    Resized,
    WorkerEnded,
    WorkerStarted,
    WorkerStatus,
)
from geminid.supervise.group import Action as GroupAction
from geminid.supervise.group import CannotWork, ElasticGroup, EndWorker, Standing, StartWorker, Tell
from geminid.supervise.handover import Handover, end_of, exit_file_of, has_ended_well, mark
from geminid.supervise.hangs import Hung, Seen
from geminid.supervise.protocol import FromSupervisor, FromWorker, Plan
from geminid.supervise.setaside import CHECKPOINTS
from geminid.supervise.spec import WorkerSpec
from geminid.wire.reactor import Reactor, Timer, shared_reactor

#: The clock is looked at so many times in the time that a hang takes to be noticed, and at least so often; but not more
#: often than workers say that they live, which in a large cluster is less often.
TICKS_PER_HANG, LONGEST_TICK_S = 20.0, 0.5

#: Whoever waits for a status looks this often at what workers say that they do, of which nobody is notified.
LOOK_AGAIN_S = 0.05

#: Workers that fail again and again are started anew after 1, 2, 4 … s, at most so long; older failures do not count.
LONGEST_DELAY_S, RECENT_FAILURE_S = 30.0, 60.0

#: Whoever waits for a peer that has given up so long ago waits in vain.
IN_VAIN_S = 2.0

#: When a worker's script has ended well before training was over, its peers may end as well for so long.
TOGETHER_S = 5.0

#: What could not be written for want of room is tried again so often.
SAVE_AGAIN_S = 1.0


class Supervisor:
    """One job and its workers; see the module."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        on_event: Callable[[JobEvent], None] = lambda event: None,
        launcher: Launcher | None = None,
        adopt: bool = False,
        reactor: Reactor | None = None,
    ) -> None:
        self.spec = spec
        self._on_event = on_event
        self._launcher = launcher if launcher is not None else PlainLauncher()
        self._folder = spec.folder.absolute()
        self._checkpoints = spec.checkpoints or self._folder / CHECKPOINTS
        for made in (self._folder, self._checkpoints, self._folder / "logs"):
            if isinstance(made, Path):
                made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._workers: dict[str, Known] = {}
        self._joined: dict[str, protocol.Joined] = {}
        self._first_steps: dict[str, float] = {}
        self._forming_since_s = self._busy_at_s = 0.0
        self._patience = spec.patience
        self._finished_generation: int | None = None
        self._leader_finished, self._finish_by_s = False, math.inf
        self._last_form: protocol.Form | None = None
        self._phase, self._reason, self._failures = JobPhase.IDLE, "", 0
        self._ready: protocol.Ready | None = None
        self._progress: protocol.Progress | None = None
        self._checkpoint: protocol.Checkpointed | None = None
        self._best_samples = -1
        self._failed_at_s: deque[float] = deque(maxlen=10)
        self._failed_together: tuple[int, frozenset[str]] = (0, frozenset())
        self._start_at_s: dict[str, tuple[float, str]] = {}
        self._lost_since_s: float | None = None
        self._lost_why, self._form_again_at_s = "", math.inf
        self._lone_slots = spec.lone_slots
        self._ended_early: dict[str, float] = {}  # and until when the others may end as well
        self._initialised = self._has_finished = self._cut_short = False
        self._stopped_at_s: float | None = None
        self._stop_by_s: float | None = None
        self._detached = False
        self._end_told: JobEnded | None = None
        self._token = secrets.token_hex(32)
        at = spec.address or Address(path=str(self._folder / "control"))
        self._save_at_s = math.inf
        left = Handover.read(self._folder) if adopt else None
        if left is not None:
            self._token = left.token
        self._meetings = meeting_folder(self._folder, self._token)
        self._fewest_slots = spec.min_slots
        self._group = ElasticGroup(f"file:{self._meetings}/", spec.topology, fewest=spec.min_slots)
        if left is not None:
            self._take_over(left)
            at = Address.parse(left.address)
        listener, self._address = at.listen()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._reactor = reactor if reactor is not None else shared_reactor()
        self._next_tick: Timer | None = None
        self._due_s = 0.0  # before then, only what workers say or do not say makes a tick necessary
        welcome = protocol.Welcome(
            heartbeat_s=spec.patience.heartbeat, orphan_s=spec.patience.orphan, report_s=spec.report_s
        )
        self._lines = Lines(
            listener,
            self._reactor,
            self._workers,
            job=spec.name,
            welcome=welcome,
            on_hello=lambda hello: self._do(lambda: self._catch_up(hello)),
            on_message=lambda worker, known, said: self._do(lambda: self._listen_to(worker, known, said)),
            queued=self._inbox.qsize,
        )
        self._changed = threading.Condition()
        self._status = JobStatus(phase=self._phase)
        self._thread = threading.Thread(target=self._serve, name=f"supervisor of {spec.name}", daemon=True)

    # ------------------------------------------------------------------------------------------- for the user

    def __enter__(self) -> Self:
        """Begin to supervise."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all workers at once, unless the job is over or detached."""
        self.kill()
        self._thread.join()

    @property
    def status(self) -> JobStatus:
        """The job as it is now; what its workers do, as they said last."""
        with self._changed:
            status = self._status
        known = [self._workers.get(one.worker) for one in status.workers]
        workers = tuple(
            one if now is None or now.doing.phase == one.phase else dataclasses.replace(one, phase=now.doing.phase)
            for one, now in zip(status.workers, known, strict=True)
        )
        return status if workers == status.workers else dataclasses.replace(status, workers=workers)

    def resize(self, slots: Sequence[str], plan: Plan | None = None) -> None:
        """Have the job run on these slots: live if it is running, from its last checkpoint if it is not.

        Raises:
            ValueError: the slots are none, or more than the job's largest batch can be divided over.
        """
        if not slots:
            raise ValueError("a job cannot run on no slots: stop it instead")
        ready = self.status.ready
        if ready is not None and len(slots) * ready.smallest_per_slot > ready.largest_batch:
            raise ValueError(
                f"{len(slots)} slots are too many: each needs at least {ready.smallest_per_slot} samples of a batch, "
                f"which has at most {ready.largest_batch}"
            )
        self._do(lambda: self._resize(tuple(slots), plan))

    def set_min_slots(self, min_slots: int) -> None:
        """From now on, the job does not train on fewer slots than these: survivors of a loss wait for others."""
        if min_slots != self._fewest_slots:
            self._fewest_slots = min_slots
            self._do(lambda: self._carry_out(self._group.need(min_slots)))

    def retune(self, plan: Plan | None) -> None:
        """Have the job train with this batch plan; with None, have it choose for itself again."""
        self._do(lambda: self._tell_members(protocol.Retune(plan=plan)))

    def checkpoint(self) -> None:
        """Have the job write a checkpoint now."""
        self._do(lambda: self._tell_members(protocol.SaveCheckpoint()))

    def lose(self, slots: Collection[str], reason: str) -> None:
        """These slots are gone with their machine. The others go on from memory, if there are any.

        It counts as nobody's failure.
        """
        self._do(lambda: self._lose(slots, reason))

    def drop_slots(self, gone: Callable[[str], bool]) -> None:
        """Before it begins to supervise workers of another: no worker is to be on such slots; those that are leave.

        If there are no others they train on, until the job is to run elsewhere or to stop.
        """
        self._group.forsake([slot for slot in self._group.wanted if gone(slot)])

    def stop(self, *, save: bool = True) -> None:
        """Have the workers save and end; whoever has not after the grace period is ended."""
        self._do(lambda: self._stop(save))

    @property
    def has_ended(self) -> bool:
        """Whether nobody supervises the job any more."""
        return not self._thread.is_alive()

    def kill(self) -> None:
        """End all workers now."""
        self._do(self._kill)

    def detach(self) -> None:
        """Stop supervising and leave the workers alone; they look for a new supervisor at the same address."""
        self._do(self._detach)
        self._thread.join()

    def wait(self, reached: Callable[[JobStatus], bool], timeout_s: float = 60.0) -> JobStatus:
        """Wait until the status is such, or the job is over; the status then.

        Raises:
            TimeoutError: it did not happen in time.
        """
        deadline = monotonic() + timeout_s
        with self._changed:
            while not (reached(status := self.status) or status.phase.over):
                if monotonic() > deadline:
                    raise TimeoutError(f"{self.spec.name} was still {status.phase} after {timeout_s:g} s")
                self._changed.wait(LOOK_AGAIN_S)
            return status

    def wait_for_end(self, timeout_s: float = 60.0) -> JobEnded:
        """Wait until the job is over, its files are closed and every event has been emitted; how it ended.

        The status says so a moment earlier: whoever needs the last events waits here.

        Raises:
            TimeoutError: it did not end in time.
        """
        self._thread.join(timeout_s)
        status = self.status
        if self._thread.is_alive():
            raise TimeoutError(f"{self.spec.name} was still {status.phase} after {timeout_s:g} s")
        return self._end_told or JobEnded(status.phase, status.reason)

    # ------------------------------------------------------------------------------------------- the thread

    def _do(self, command: Callable[[], None]) -> None:
        self._inbox.put(command)

    def _serve(self) -> None:
        self._reactor.call(self._begin_to_watch)
        try:
            self._carry_out(self._group.resumed())
            while not ((self._phase.over and not self._workers) or self._detached):
                self._inbox.get()()
                while not self._inbox.empty():
                    self._inbox.get()()
                if self._lines.are_paused:
                    self._reactor.call_soon(self._lines.resume)
                self._due_s = self._next_due_s()
                self._publish()
        except BaseException as problem:
            self._phase, self._reason = JobPhase.FAILED, f"the supervisor failed: {problem!r}"
            for known in self._workers.values():
                known.process.signal(signal.SIGKILL)
            self._publish()
            if isinstance(problem, OSError) and problem.errno in SHORTAGES:
                self._end_told = JobEnded(self._phase, self._reason, short=True)
            raise
        finally:
            self._close()
            if self._end_told is not None:  # whoever hears of it may start the job anew, in the same folder
                self._emit(self._end_told)

    def _close(self) -> None:
        self._reactor.call(self._stop_watching)
        for known in self._workers.values():
            known.process.close()
        if not self._detached and self._address.path is not None:
            Path(self._address.path).unlink(missing_ok=True)
        if not self._detached:
            shutil.rmtree(self._meetings, ignore_errors=True)

    # ------------------------------------------------------------------------------------------- the reactor's thread

    def _begin_to_watch(self) -> None:
        self._lines.open()
        for worker, known in self._workers.items():
            known.heard_at_s = monotonic()
            self._watch(worker, known.process)
        self._look_at_clock()

    def _stop_watching(self) -> None:
        if self._next_tick is not None:
            self._next_tick.cancel()
        self._lines.close()
        for known in self._workers.values():
            self._reactor.unwatch(known.process)

    def _look_at_clock(self) -> None:
        """Have the supervisor look at what is due, unless nothing can be. All that came before has been heard."""
        patience = self.spec.patience
        now = monotonic()
        tick_s = max(patience.heartbeat, min(patience.hang / TICKS_PER_HANG, LONGEST_TICK_S))
        later_s = now + tick_s - (now + tick_s) % min(tick_s, LONGEST_TICK_S)  # many jobs at once: one wake-up for all
        self._next_tick = self._reactor.call_at(later_s, self._look_at_clock)
        self._lines.tick(patience.hang)
        silent_s = min(patience.hang, patience.grace)  # shorter than these, nobody is silent or slow
        slow_s = min(patience.step, patience.free, patience.form, patience.stall, patience.conclude)
        is_due = now >= self._due_s
        for known in list(self._workers.values()):
            was_silent_s, doing = now - known.heard_at_s, known.doing
            is_due |= was_silent_s > silent_s and doing is not STARTING  # which may take long
            is_due |= was_silent_s + doing.phase_s > slow_s
        if is_due:
            self._do(self._tick)

    def _watch(self, worker: str, process: WorkerProcess) -> None:
        """Hear of the end of a process; from any thread."""
        self._reactor.watch(process, lambda: self._process_ended(worker, process), urgent=True)

    def _process_ended(self, worker: str, process: WorkerProcess) -> None:
        self._reactor.unwatch(process)
        self._lines.hear_last_words(worker)
        self._reactor.hurry()
        self._do(lambda: self._ended(worker, process))

    # ------------------------------------------------------------------------------------------- what is told

    def _emit(self, event: JobEvent) -> None:
        self._on_event(event)

    def _publish(self) -> None:
        group = self._group
        status = JobStatus(
            phase=self._phase,
            generation=group.generation,
            slots=tuple(self._workers[member].slot for member in group.members if member in self._workers),
            settled=group.settled and self._phase is JobPhase.RUNNING,
            workers=tuple(
                WorkerStatus(
                    worker, known.slot, known.process.pid, str(group.standing(worker) or "ending"), known.doing.phase
                )
                for worker, known in self._workers.items()
            ),
            ready=self._ready,
            progress=self._progress,
            checkpoint=self._checkpoint,
            plan=self._progress.plan if self._progress is not None else None,
            failures=self._failures,
            reason=self._reason,
        )
        with self._changed:
            if status != self._status:
                self._status = status
                self._changed.notify_all()

    # ------------------------------------------------------------------------------------------- commands

    def _resize(self, slots: tuple[str, ...], plan: Plan | None) -> None:
        if self._phase.over or self._phase is JobPhase.STOPPING:
            return
        if self._phase is JobPhase.IDLE:
            self._phase = JobPhase.STARTING
        self._carry_out(self._group.want(slots, plan))
        self._emit(Resized(slots))

    def _stop(self, save: bool) -> None:
        if self._phase.over:
            return
        if save and self._phase is JobPhase.RECOVERING and self._stop_by_s is None and self._workers:
            # Whoever survived has the state but not yet a leader to save it: they form a group first.
            self._stop_by_s = monotonic() + self.spec.patience.grace
            return
        self._stop_by_s = None
        self._phase = JobPhase.STOPPING
        deadline = monotonic() + self.spec.patience.grace
        for worker, known in self._workers.items():
            known.ending = known.ending or "was told to stop"
            known.kill_at_s = deadline
            if known.line is None or self._group.standing(worker) not in (Standing.MEMBER, Standing.LEAVING):
                known.process.signal(signal.SIGTERM)
            else:
                self._lines.send(worker, protocol.Stop(save=save))
        self._check_over()

    def _kill(self) -> None:
        if self._phase.over:
            return
        self._phase = JobPhase.STOPPING
        for worker in self._workers:
            self._end(worker, "was ended")
        self._check_over()

    def _lose(self, slots: Collection[str], reason: str) -> None:
        self._group.forsake(slots)
        members = [self._workers[worker] for worker in self._group.members if worker in self._workers]
        if self._phase is JobPhase.RUNNING and any(known.slot in slots for known in members):
            self._phase = JobPhase.RECOVERING
        for worker, known in list(self._workers.items()):
            if known.slot in slots:
                known.lost, known.last_words = True, reason
                self._lines.send(worker, protocol.Stop(save=False))  # should it be alive after all
                self._gone(worker, known, AdoptedProcess.UNKNOWN_CODE)

    def _detach(self) -> None:
        self._save()
        self._detached = True

    def _tell_members(self, message: FromSupervisor) -> None:
        for worker in self._group.members:
            self._lines.send(worker, message)

    def _carry_out(self, actions: Sequence[GroupAction]) -> None:
        if self._finished_generation is not None:
            return
        for action in actions:
            match action:
                case StartWorker(worker, slot):
                    self._start_at_s[worker] = (monotonic() + self._delay_s(), slot)
                case EndWorker(worker):
                    self._end(worker, "was not needed any more")
                case Tell(worker, form):
                    self._joined, self._first_steps, self._forming_since_s = {}, {}, monotonic()
                    self._last_form, self._form_again_at_s = form, math.inf
                    self._lost_since_s, self._lost_why = None, ""
                    if worker not in form.members and worker in self._workers:
                        self._workers[worker].ending = "left"
                    self._lines.send(worker, form)
                case CannotWork(leaving):
                    self._part_from(leaving)
        self._start_due()
        if actions:
            self._save()

    def _part_from(self, leaving: Sequence[str]) -> None:
        """The members cannot work together: they go on without these, or if there are none, together once more.

        Others are started in their places, later and later. It counts as one failure, of the first, unless some go on:
        that the job was to grow is nothing that it did.
        """
        why = f"could not work together with its peers: {self._lost_why}"
        go_on = len(leaving) < len(self._group.members)
        for worker in leaving:
            known = self._workers[worker]
            known.ending = "was ended with its peers" if go_on or worker != leaving[0] else known.ending
            known.last_words = known.last_words or (why if worker == leaving[0] else "")
            known.apart = True
            known.process.signal(signal.SIGKILL)
        if leaving and go_on:
            self._failed_at_s.append(monotonic())
            self._emit(CouldNotGrow(tuple(self._group.slot(worker) for worker in leaving), self._lost_why))
        if not leaving:
            self._count_failure(f"the workers could not work together: {self._lost_why}", apart=True)
            self._form_again_at_s = monotonic() + self._delay_s()

    def _delay_s(self) -> float:
        """How long to wait before a worker is started: not at all, unless they have failed again and again."""
        recent = sum(at_s > monotonic() - RECENT_FAILURE_S for at_s in self._failed_at_s)
        return min(2.0 ** (recent - 2), LONGEST_DELAY_S) if recent > 1 else 0.0

    def _start_due(self) -> None:
        """Start the workers whose time has come."""
        if self._phase.over or self._phase is JobPhase.STOPPING:
            self._start_at_s.clear()
        for worker, (at_s, slot) in list(self._start_at_s.items()):
            if worker in self._start_at_s and monotonic() >= at_s and not self._phase.over:
                del self._start_at_s[worker]
                self._start(worker, slot)

    # ------------------------------------------------------------------------------------------- processes

    def _start(self, worker: str, slot: str) -> None:
        """Start a worker. It is written down before its script begins: none runs of which the next would not know."""
        token = secrets.token_hex(32)
        environment = {
            **self.spec.environment,
            **(self.spec.lone_environment() if self._lone_slots else self.spec.slot_environment(slot)),
            channel.CONTROL: str(self._address),
            channel.TOKEN: token,
            MARK: mark(self._folder, worker, token),
            channel.WORKER: worker,
            channel.JOB: self.spec.name,
            channel.CHECKPOINTS: str(self._checkpoints),
            channel.ENDED: str(end_of(self._folder, worker)),
            channel.OPTIONS: json.dumps(dict(self.spec.options)),
            **({channel.LONE: "1"} if self._lone_slots else {}),
        }
        log = self._folder / "logs" / f"{worker}.log"
        folder = self.spec.working_folder or self._folder
        name, exit_file = f"{self.spec.name}/{worker}", exit_file_of(self._folder, worker)
        launch = Launch(self.spec.command, environment, folder, log, slot, name, exit_file)
        try:
            process = self._launcher.start(launch)
        except OSError as problem:
            told = f"{self.spec.command[0]} could not be started: {problem.strerror or problem}"
            self._fail(told, short=problem.errno in SHORTAGES)
            return
        self._workers[worker] = Known(process, slot, token, heard_at_s=monotonic())
        self._watch(worker, process)
        self._save()
        process.begin()
        self._emit(WorkerStarted(worker, slot, process.pid))

    def _end(self, worker: str, why: str) -> None:
        if self._start_at_s.pop(worker, None) is not None:
            self._carry_out(self._group.gone(worker))
        known = self._workers.get(worker)
        if known is not None:
            known.ending = known.ending or why
            known.process.signal(signal.SIGKILL)

    def _ended(self, worker: str, process: WorkerProcess) -> None:
        known = self._workers.get(worker)
        if known is None or known.process is not process:  # it counted as gone before
            return
        code = process.exit_code()
        if code is None:
            self._watch(worker, process)
            return
        known.finished = known.finished or has_ended_well(self._folder, worker)
        self._has_finished |= known.finished
        if code == SLOT_GONE:
            self._lose({known.slot}, _how(known, code))
        else:
            self._gone(worker, known, code)

    def _gone(self, worker: str, known: Known, code: int) -> None:
        del self._workers[worker]
        self._reactor.unwatch(known.process)
        known.process.signal(signal.SIGKILL)  # whatever it started ends with it
        known.process.close()
        if written_exit_code(exit_file_of(self._folder, worker)) is None:  # its shim was killed, and has ended nothing
            signal_marked(signal.SIGKILL, mark(self._folder, worker, known.token).__eq__)
        self._reactor.call_soon(lambda: self._lines.drop(known))
        done = known.finished and code in (
            0,
            -signal.SIGABRT,  # PyTorch may abort at its end: no harm done
            AdoptedProcess.UNKNOWN_CODE,  # of one that was taken over nobody may ask
        )
        done = done and not known.lost and not known.last_words
        if code == 0 and not (done or known.ending or known.lost or known.last_words) and not self._is_ending:
            self._ended_by_itself(worker, known)
            return
        self._leader_finished |= done and known.leads
        expected = (bool(known.ending) or done) and not known.lost
        reason = known.last_words or known.ending or ("finished" if expected else _how(known, code))
        self._emit(WorkerEnded(worker, known.slot, reason, expected))
        unexpected = not (expected or known.lost or self._is_ending)
        if self._lone_slots and not self._is_ending:
            self._lone_is_gone(known, code)
        elif unexpected and not self._is_counted(worker, known):
            self._count_failure(f"worker {worker} on slot {known.slot} {_failed(known, code)}", apart=known.apart)
        self._joined.pop(worker, None)
        if known.finished:
            self._finished_generation = known.generation
            self._finish_by_s = min(self._finish_by_s, monotonic() + self.spec.patience.grace)
        elif not self._phase.over and self._phase is not JobPhase.STOPPING and self._finished_generation is None:
            self._carry_out(self._group.gone(worker))
        self._check_over()

    @property
    def _is_ending(self) -> bool:
        """Whether the workers end because they are to."""
        return self._phase.over or self._phase is JobPhase.STOPPING

    def _ended_by_itself(self, worker: str, known: Known) -> None:
        """A worker's script has ended well before training was over, as nobody asked: exit code 0 is success.

        The leader's word counts for all, and so does that of whoever is left. Of another worker, its peers may end
        just so; if they train on instead, it was lost to them (:meth:`_look_at_ended`).
        """
        self._emit(WorkerEnded(worker, known.slot, "ended with exit code 0", True))
        self._joined.pop(worker, None)
        if self._finished_generation is None and (known.leads or not self._workers):
            self._finished_generation, self._leader_finished = known.generation, True
            self._finish_by_s = monotonic() + TOGETHER_S
        elif self._finished_generation is None:
            self._ended_early[worker] = monotonic() + TOGETHER_S
        self._check_over()

    def _look_at_ended(self) -> None:
        """Of workers that have ended by themselves, those are lost whose peers train, or wait to, without them."""
        late = [worker for worker, by_s in self._ended_early.items() if monotonic() > by_s]
        if not late or self._is_ending or not any(map(self._group.takes_part, self._workers)):
            return
        for worker in late:
            del self._ended_early[worker]
            if not self._phase.over:
                self._count_failure(f"worker {worker} ended with exit code 0, and its peers train on")
        if not self._phase.over:
            self._carry_out(self._group.gone(*late))

    def _lone_is_gone(self, known: Known, code: int) -> None:
        """The only process of a job is gone before it called ``geminid.init()``; the executor may start it again."""
        if known.lost:
            self._phase, self._reason = JobPhase.STOPPED, known.last_words
            self._end_told = JobEnded(self._phase, known.last_words)
        else:
            self._fail(f"it {_how(known, code)}")

    def _is_counted(self, worker: str, known: Known) -> bool:
        """Whether a worker's failure is part of the last one that was counted.

        What makes one worker fail makes others fail as well: all that were there then, and have neither formed a new
        group nor come further since, are one failure of the job.
        """
        generation, workers = self._failed_together
        further = self._progress is not None and self._progress.samples > self._best_samples
        return worker in workers and known.generation <= generation and not further

    def _count_failure(self, reason: str, *, apart: bool = False) -> None:
        self._failed_together = (self._group.generation, frozenset((*self._workers, *self._start_at_s)))
        samples = self._progress.samples if self._progress is not None else -1
        self._failures = 1 if samples > self._best_samples else self._failures + 1
        self._best_samples = max(samples, self._best_samples)
        self._failed_at_s.append(monotonic())
        self._reason = reason
        if self._failures > self.spec.max_failures:
            alone = self._failures == 1
            told = reason if alone else f"{reason}; {self._failures} failures without progress in between"
            short = tells_of_full_disk(reason) or is_full(self._folder)
            self._fail(told, short=short, failures=self._failures, apart=apart)
        elif self._phase is JobPhase.RUNNING:
            self._phase = JobPhase.RECOVERING

    def _fail(
        self, reason: str, *, short: bool = False, failures: int = 0, apart: bool = False, hold: bool = False
    ) -> None:
        self._phase, self._reason = JobPhase.FAILED, reason
        for worker in self._workers:
            self._end(worker, "was ended because the job failed")
        self._end_told = JobEnded(self._phase, reason, short=short, failures=failures, apart=apart, hold=hold)

    def _check_over(self) -> None:
        if self._phase.over:
            return
        generation = self._finished_generation
        finishing = generation is not None and any(known.generation == generation for known in self._workers.values())
        if generation is not None:
            for worker, known in self._workers.items():
                if known.generation != generation:
                    self._end(worker, "was not needed any more")
        if generation is not None and not finishing and self._leader_finished:
            self._phase, self._reason = JobPhase.FINISHED, ""
            early = self._cut_short or not self._has_finished
            self._end_told = JobEnded(self._phase, "finished", early=early, initialised=self._initialised)
        elif self._phase is JobPhase.STOPPING and not self._workers:
            self._phase = JobPhase.STOPPED
            self._end_told = JobEnded(self._phase, "stopped", self._stopped_at_s)
        elif generation is not None and not finishing:  # what the leader does after training was not done
            self._finished_generation, self._finish_by_s = None, math.inf
            self._carry_out(self._group.gone(*(w for w in self._group.workers if w not in self._workers)))

    # ------------------------------------------------------------------------------------------- what workers say

    def _catch_up(self, hello: protocol.Hello) -> None:
        """A worker is here, or back: it may have missed an order while its line was cut."""
        if hello.worker not in self._workers:
            return
        self._workers[hello.worker].initialised = self._initialised = True
        if self._lone_slots:
            self._lone_slots = ()
            self._save()
            self._emit(InitCalled(hello.worker))
        form = self._last_form
        if form is not None and 0 < hello.generation < form.generation and hello.worker in self._group.workers:
            self._lines.send(hello.worker, form)

    def _listen_to(self, worker: str, known: Known, message: FromWorker) -> None:
        if self._workers.get(worker) is not known:
            return
        match message:
            case protocol.Ready():
                self._ready = message
                if self._is_ending:  # it has not heard of that, while it was starting: its peers are leaving
                    self._lines.send(worker, protocol.Stop(save=False))
                else:
                    self._carry_out(self._group.ready(worker, message.meeting))
            case protocol.Joined():
                self._on_joined(worker, message)
            case protocol.FirstStep():
                self._on_first_step(worker, message)
            case protocol.Lost():
                if message.generation == self._group.generation:
                    self._lost_since_s = self._lost_since_s or monotonic()
                    self._lost_why = self._lost_why or message.reason
                self._phase = JobPhase.RECOVERING if self._phase is JobPhase.RUNNING else self._phase
                self._carry_out(self._group.lost(worker, message.generation))
            case protocol.Leaving():
                known.ending = known.ending or "left"
                self._stopped_at_s = message.stopped_at_s
            case protocol.Progress():
                self._progress = replace(message, metrics=protocol.averaged(self._metrics_with(worker, message)))
                self._emit(Reported(self._progress))
            case protocol.Metrics():
                known.metrics = message.metrics if message.generation == self._group.generation else {}
            case protocol.Checkpointed():
                self._checkpoint = message
                self._emit(CheckpointWritten(message))
            case protocol.Finished():
                known.finished = self._has_finished = True
                self._cut_short |= known.leads and message.cut_short
            case protocol.Failed():
                known.last_words = message.reason
                if message.hold and not self._is_ending:
                    self._fail(message.reason, hold=True)

    def _metrics_with(self, leader: str, report: protocol.Progress) -> list[dict[str, protocol.Metric]]:
        """What the leader has reported, and what the other members of its generation have."""
        others = (
            self._workers[member] for member in self._group.members if member in self._workers and member != leader
        )
        return [report.metrics, *(known.metrics for known in others)]

    def _on_joined(self, worker: str, message: protocol.Joined) -> None:
        known = self._workers[worker]
        known.generation, known.leads, known.metrics = message.generation, message.rank == 0, {}
        if message.generation != self._group.generation:
            return
        self._joined[worker] = message
        if set(self._joined) >= set(self._group.members):
            self._lost_since_s = None
            self._formed([self._joined[member] for member in self._group.members])
        self._carry_out(self._group.joined(worker, message.generation))

    def _formed(self, joined: Sequence[protocol.Joined]) -> None:
        stopped = [one.stopped_at_s for one in joined if one.stopped_at_s is not None]
        stopped_at_s = min(stopped) if stopped else None
        resumed_at_s = max(one.resumed_at_s for one in joined)
        # Clocks of different machines have nothing to do with each other: each worker's pause is by its own.
        pauses_s = [one.resumed_at_s - one.stopped_at_s for one in joined if one.stopped_at_s is not None]
        if self._phase in (JobPhase.STARTING, JobPhase.RECOVERING):
            self._phase, self._reason = JobPhase.RUNNING, ""
        for worker, known in self._workers.items():
            if self._group.standing(worker) is Standing.LEAVING:  # nobody needs it any more
                known.kill_at_s = known.kill_at_s or monotonic() + self.spec.patience.form
        slots = tuple(self._group.slot(member) for member in self._group.members)
        self._emit(
            GroupFormed(
                generation=joined[0].generation,
                slots=slots,
                step=joined[0].step,
                samples=joined[0].samples,
                pause_s=max(pauses_s, default=None),
                restored=joined[0].restored,
                stopped_at_s=stopped_at_s,
                resumed_at_s=resumed_at_s,
            )
        )

    def _on_first_step(self, worker: str, message: protocol.FirstStep) -> None:
        self._group.stepped(worker, message.generation)
        if message.generation != self._group.generation:
            return
        self._first_steps[worker] = message.ended_at_s
        if set(self._first_steps) >= set(self._group.members):
            self._emit(FirstStepDone(message.generation, max(self._first_steps.values())))

    # ------------------------------------------------------------------------------------------- the clock

    def _tick(self) -> None:
        """End whoever has been silent, stuck or lingering for too long."""
        now, patience = monotonic(), self._patience
        if now > self._save_at_s:
            self._save()
        self._start_due()
        for worker, known in self._workers.items():
            if known.kill_at_s is not None and now > known.kill_at_s:
                self._end(worker, "did not stop in time")
            elif now > self._finish_by_s and not known.finished and known.doing.phase != "left":
                self._end(worker, "did not finish when its peers had")
        if self._lone_slots:  # nobody knows what it does, or for how long
            return
        self._look_at_ended()
        seen = [self._seen(worker, known, now) for worker, known in self._workers.items()]
        found = hangs.hung(seen, patience)
        self._busy_at_s = now if hangs.busy(seen, patience) else self._busy_at_s
        if self._stop_by_s is not None and (self._phase is JobPhase.RUNNING or now > self._stop_by_s):
            self._stop(True)
        if not self._phase.over and self._phase is not JobPhase.STOPPING:
            if self._group.members and not self._group.formed:
                found += hangs.late(seen, now - self._forming_since_s, now - self._busy_at_s, patience)
            if self._lost_since_s is not None and now - self._lost_since_s > IN_VAIN_S:
                self._carry_out(self._group.in_vain(hangs.waiting(seen, now - self._lost_since_s)))
            if self._lost_since_s is not None and now - self._lost_since_s > patience.hang:
                found += self._unaware(seen)
            if now > self._form_again_at_s:
                self._carry_out(self._group.break_up())
            if self._group.members and hangs.deadlocked(seen, patience):
                self._count_failure("the workers waited for each other")
                if not self._phase.over:
                    self._carry_out(self._group.break_up())
        for one in found:
            known = self._workers[one.worker]
            if one.free and not known.last_words:
                self._patience = hangs.more_patient(self._patience)
            known.last_words = known.last_words or one.reason
            known.process.signal(signal.SIGKILL)

    def _next_due_s(self) -> float:
        """When a tick is due though no worker is silent or slow: at once while a group is being formed or mended."""
        mending = self._lost_since_s is not None or (self._group.members and not self._group.formed)
        if mending or self._stop_by_s is not None:
            return 0.0
        due_s = [self._save_at_s, self._finish_by_s, self._form_again_at_s, *self._ended_early.values()]
        due_s += [at_s for at_s, _ in self._start_at_s.values()]
        due_s += [known.kill_at_s for known in self._workers.values() if known.kill_at_s is not None]
        return min(due_s)

    def _seen(self, worker: str, known: Known, now: float) -> Seen:
        silent_s, doing = now - known.heard_at_s, known.doing
        return Seen(
            worker=worker,
            standing=self._group.standing(worker),
            silent_s=silent_s,
            phase=doing.phase,
            phase_s=doing.phase_s + silent_s,
            usual_s=doing.usual_s,
            joined=worker in self._joined or self._group.formed,
            leads=known.leads,
            finished=known.finished,
            connected=known.line is not None,
        )

    def _unaware(self, seen: Sequence[Seen]) -> list[Hung]:
        """Members that do not notice what others have noticed long ago: that their group is broken."""
        self._lost_since_s = monotonic()
        excused = {one.worker for one in seen if hangs.excused(one, self._patience)}
        return [
            Hung(worker, "hung: it did not join its peers")
            for worker in self._group.silent()
            if worker in self._workers and worker not in excused
        ]

    # ------------------------------------------------------------------------------------------- taking over

    def _save(self) -> None:
        """Write down what another supervisor needs to take over; later, if there is no room now."""
        try:
            self._handover().write(self._folder)
            self._save_at_s = math.inf
        except OSError as problem:
            if not no_room(problem):
                raise
            if self._save_at_s == math.inf:  # the first time
                told = f"{self.spec.name} goes on, but its workers cannot be written down: {problem.strerror}"
                with contextlib.suppress(OSError):
                    print(f"geminid: warning: {told}", file=sys.stderr, flush=True)
            self._save_at_s = monotonic() + SAVE_AGAIN_S

    def _handover(self) -> Handover:
        group = self._group
        return Handover(
            token=self._token,
            address=str(self._address),
            generation=group.generation,
            members=group.members,
            slots=tuple(group.slot(worker) for worker in group.members if group.standing(worker)),
            newest=group.newest,
            held=group.held,
            lone_slots=self._lone_slots,
            workers={
                worker: {
                    "slot": known.slot,
                    "standing": str(group.standing(worker) or "leaving"),
                    "token": known.token,
                    "can_hold": group.can_hold(worker),
                    **known.process.identity,
                }
                for worker, known in self._workers.items()
            },
        )

    def _take_over(self, left: Handover) -> None:
        """Take over what an earlier supervisor left: its group, and those of its workers that still live.

        Those that were on their way into the group still are.
        """
        coming = [
            entry["slot"]
            for entry in left.workers.values()
            if entry["standing"] in (Standing.STARTING, Standing.READY) and entry["slot"] not in left.slots
        ]
        for worker, entry in left.workers.items():
            process = self._launcher.adopt(entry)
            if process is not None:
                member = entry["standing"] == Standing.MEMBER
                self._workers[worker] = Known(
                    process,
                    entry["slot"],
                    entry.get("token", left.token),  # earlier versions had one for all
                    heard_at_s=monotonic(),
                    doing=Doing("adopted"),
                    generation=left.generation if member else 0,
                    leads=left.members[:1] == (worker,),
                )
                self._group.adopt(worker, entry["slot"], member=member, can_hold=entry.get("can_hold", False))
        known = (*left.workers, left.newest)
        self._group.resume(left.generation, left.members, (*left.slots, *coming), known, held=left.held)
        if any(member in self._workers for member in left.members):
            self._phase = JobPhase.RUNNING
        elif self._workers:
            self._phase = JobPhase.STARTING


def _failed(known: Known, code: int) -> str:
    """How a worker failed, in its own words if it had any."""
    if code == 0 and not known.last_words:
        return "ended with exit code 0 before training was over (does its script train through geminid?)"
    return f"failed: {known.last_words}" if known.last_words else _how(known, code)


def _how(known: Known, code: int) -> str:
    return known.process.reason or how_it_ended(code)
