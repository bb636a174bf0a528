"""One job and its workers as a state machine: events in, instructions out, no process, no socket and no file.

    state = SupervisedJob(spec, clock, rendezvous="file:/folder/")
    for instruction in state.handle(Resize(("cpu0", "cpu1"))):
        ...  # StartProcess, SendMessage, Emit … in this order; what comes of them are further events

``SupervisedJob.phase`` is where the job is; a job whose phase is over never leaves it::

    IDLE → STARTING → RUNNING ⇄ RECOVERING
                any of these  → STOPPING → STOPPED
                any of these  → FINISHED, FAILED; a job that has not called geminid.init() and loses its slot: STOPPED

Who belongs to the group of workers is decided by ``group.py``, who hangs by ``hangs.py``, and what counts as a failure
by ``failures.py``. A job that is *completing* (a worker's script has ended after training) forms no more groups: it is
finished when the leader's script has ended well too, and continues from a checkpoint if that fails.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from geminid.clock import Clock
from geminid.process.disk_full import mentions_full_disk
from geminid.process.launch import SLOT_GONE, UNKNOWN_CODE
from geminid.supervise import events, hangs, inputs, protocol
from geminid.supervise.events import JobEnded, JobPhase
from geminid.supervise.failures import FailureLog
from geminid.supervise.group import (
    Action,
    ElasticGroup,
    EndWorker,
    SendForm,
    SplitGroup,
    Standing,
    StartWorker,
)
from geminid.supervise.inputs import Contact, Event
from geminid.supervise.instructions import (
    Emit,
    ForgetWorker,
    Instruction,
    RunScript,
    SaveHandover,
    SendMessage,
    SignalWorker,
    StartProcess,
)
from geminid.supervise.spec import WorkerSpec
from geminid.supervise.workers import Completion, Formation, PendingStart, Reports, Worker, group_formed, seen_as

#: How long after one member has lost its peers the others stop waiting for it, in seconds.
STOP_WAITING_S = 2.0

#: How long the peers of a worker whose script has ended before training was over may take to end too, in seconds.
EXIT_TOGETHER_S = 5.0

#: Exit codes of a worker that has finished. PyTorch may abort at its end, which does no harm; the exit code of a
#: process that another supervisor started may be unknown.
FINISHED_CODES = (0, -signal.SIGABRT, UNKNOWN_CODE)


class SupervisedJob:
    """See the module. ``is_disk_full`` is asked when the job fails, because that is then likely to be the reason."""

    def __init__(
        self, spec: WorkerSpec, clock: Clock, rendezvous: str, *, is_disk_full: Callable[[], bool] = lambda: False
    ) -> None:
        self.phase, self.reason = JobPhase.IDLE, ""
        self.end: JobEnded | None = None
        self.workers: dict[str, Worker] = {}
        self.starts: dict[str, PendingStart] = {}
        self.group = ElasticGroup(rendezvous, spec.topology, min_slots=spec.min_slots)
        self.reports = Reports()
        self.failures = FailureLog(clock)
        self.lone_slots = spec.lone_slots
        self._spec, self._clock, self._is_disk_full = spec, clock, is_disk_full
        self._patience = spec.patience  # grows where it has proved too short
        self._formation = Formation()
        self._completion: Completion | None = None
        self._early_exits: dict[str, float] = {}  # by worker, until when its peers may end too
        self._stop_by_s: float | None = None  # a stop that waits until survivors have formed a group
        self._busy_at_s = 0.0  # when a worker was last seen in the script
        self._instructions: list[Instruction] = []

    # --- Events in, instructions out ---

    def handle(self, event: Event) -> list[Instruction]:
        """Change state as an event requires; the instructions that follow from it."""
        match event:
            case inputs.Begin():
                self._carry_out(self.group.resumed())
            case inputs.Resize(slots, plan) if not self.is_ending:
                self.phase = JobPhase.STARTING if self.phase is JobPhase.IDLE else self.phase
                self._carry_out(self.group.resize(slots, plan))
                self._instructions.append(Emit(events.Resized(slots)))
            case inputs.SetMinSlots(min_slots):
                self._carry_out(self.group.set_min_slots(min_slots))
            case inputs.SendToMembers(message):
                self._instructions += [SendMessage(worker, message) for worker in self.group.current.members]
            case inputs.SlotsLost(slots, reason):
                self._lose_slots(slots, reason)
            case inputs.StopRequested(save):
                self._stop(save)
            case inputs.KillRequested():
                self._kill()
            case inputs.ProcessStarted(worker, slot, pid):
                self.starts.pop(worker, None)
                self.workers[worker] = Worker(slot, pid)
                # Recorded before its script begins, so that the next supervisor knows of every script that runs.
                self._instructions += [SaveHandover(), RunScript(worker), Emit(events.WorkerStarted(worker, slot, pid))]
            case inputs.StartFailed(worker, reason, shortage):
                self.starts.pop(worker, None)
                self._fail(reason, shortage=shortage)
            case inputs.ProcessEnded():
                self._process_ended(event)
            case inputs.WorkerConnected(hello) if hello.worker in self.workers:
                self._connected(hello)
            case inputs.MessageReceived(worker, message) if worker in self.workers:
                self._received(worker, self.workers[worker], message)
            case inputs.MalformedMessage(worker, problem) if worker in self.workers:
                self.workers[worker].failure = f"sent a malformed message: {problem}"
                self._instructions.append(SignalWorker(worker, signal.SIGKILL))
            case inputs.Tick(contacts):
                self._tick(contacts)
            case inputs.SupervisorFailed(reason, shortage):
                self._fail(reason, shortage=shortage)
        instructions, self._instructions = self._instructions, []
        return instructions

    @property
    def is_ending(self) -> bool:
        """Whether the workers are meant to end."""
        return self.phase.over or self.phase is JobPhase.STOPPING

    def next_due_s(self) -> float:
        """When a tick is needed though no worker is silent or slow; always while a group is being formed or mended."""
        is_mending = self._formation.lost_since_s is not None
        is_forming = bool(self.group.current.members) and not self.group.formed
        if is_mending or is_forming or self._stop_by_s is not None:
            return 0.0
        due_s = [self._formation.retry_at_s, *self._early_exits.values()]
        due_s += [start.at_s for start in self.starts.values()]
        due_s += [known.kill_at_s for known in self.workers.values()]
        return min(due_s if self._completion is None else [*due_s, self._completion.by_s])

    # --- Requests ---

    def _stop(self, save: bool) -> None:
        if self.phase.over:
            return
        deadline_s = self._clock.monotonic_s() + self._spec.patience.grace
        if save and self.phase is JobPhase.RECOVERING and self._stop_by_s is None and self.workers:
            self._stop_by_s = deadline_s  # survivors have the state, but no leader to save it: they form a group first
            return
        self._stop_by_s = None
        self.phase = JobPhase.STOPPING
        self.starts.clear()
        for worker, known in self.workers.items():
            known.ending = known.ending or "was stopped"
            known.kill_at_s = deadline_s
            if self.group.standing(worker) in (Standing.MEMBER, Standing.LEAVING):
                self._instructions.append(SendMessage(worker, protocol.Stop(save=save), signal.SIGTERM))
            else:
                self._instructions.append(SignalWorker(worker, signal.SIGTERM))
        self._check_over()

    def _kill(self) -> None:
        if not self.phase.over:
            self.phase = JobPhase.STOPPING
            self.starts.clear()
            for worker in self.workers:
                self._end(worker, "was killed on request")
            self._check_over()

    def _lose_slots(self, slots: Collection[str], reason: str) -> None:
        self.group.remove_slots(slots)
        for worker in [one for one, start in self.starts.items() if start.slot in slots]:
            self._end(worker, reason)
        lost = [worker for worker, known in self.workers.items() if known.slot in slots]
        if any(worker in self.group.current.members for worker in lost):
            self._recover()
        for worker in lost:
            known = self.workers[worker]
            known.lost, known.failure = True, reason
            self._instructions.append(SendMessage(worker, protocol.Stop(save=False)))  # it may be alive after all
            self._remove(worker, UNKNOWN_CODE, reason)

    # --- Actions of the group ---

    def _carry_out(self, actions: Sequence[Action]) -> None:
        if self._completion is not None:
            return
        now_s = self._clock.monotonic_s()
        for action in actions:
            match action:
                case StartWorker(worker, slot):
                    self.starts[worker] = PendingStart(slot, now_s + self.failures.start_delay_s())
                case EndWorker(worker):
                    self._end(worker, "was not needed any more")
                case SendForm(worker, form):
                    self._formation = Formation(since_s=now_s)
                    if worker not in form.members and worker in self.workers:
                        self.workers[worker].ending = "left"
                    self._instructions.append(SendMessage(worker, form))
                case SplitGroup(leaving):
                    self._split(leaving)
        self._start_due()
        if actions:
            self._instructions.append(SaveHandover())

    def _split(self, leaving: Sequence[str]) -> None:
        """The members cannot work together: they continue without ``leaving``; if there are none, all try again later.

        Others are started in their places, after growing delays. It counts as one failure, of the first, unless some
        members continue: a job is not to blame for a request to grow.
        """
        reason = self._formation.lost_reason
        some_continue = len(leaving) < len(self.group.current.members)
        for worker in leaving:
            known = self.workers[worker]
            known.was_split = True
            if some_continue or worker != leaving[0]:
                known.ending = "was ended with its peers"
            if worker == leaving[0]:
                known.failure = known.failure or f"could not work together with its peers: {reason}"
            self._instructions.append(SignalWorker(worker, signal.SIGKILL))
        if leaving and some_continue:
            self.failures.delay_next_start()
            slots = tuple(self.group.workers[worker].slot for worker in leaving)
            self._instructions.append(Emit(events.CouldNotGrow(slots, reason)))
        if not leaving:
            self._count_failure(f"the workers could not work together: {reason}", was_split=True)
            self._formation.retry_at_s = self._clock.monotonic_s() + self.failures.start_delay_s()

    def _start_due(self) -> None:
        """Start the workers whose time has come; a start stays in ``starts`` until its process exists."""
        if self.is_ending:
            self.starts.clear()
        for worker, start in self.starts.items():
            if self._clock.monotonic_s() >= start.at_s:
                self.starts[worker] = PendingStart(start.slot, math.inf)
                self._instructions.append(StartProcess(worker, start.slot))

    # --- Processes ---

    def _end(self, worker: str, why: str) -> None:
        """End a worker, or cancel its start."""
        if self.starts.pop(worker, None) is not None:
            self._carry_out(self.group.ended(worker))
        known = self.workers.get(worker)
        if known is not None:
            known.ending = known.ending or why
            self._instructions.append(SignalWorker(worker, signal.SIGKILL))

    def _process_ended(self, event: inputs.ProcessEnded) -> None:
        known = self.workers.get(event.worker)
        if known is None:
            return
        known.finished |= event.finished
        self.reports.finished |= known.finished
        if event.code == SLOT_GONE:
            self._lose_slots({known.slot}, event.how)
        else:
            self._remove(event.worker, event.code, event.how)

    def _remove(self, worker: str, code: int, how: str) -> None:
        """A worker is gone: decide whether it finished, failed or was expected to end, and what follows."""
        known = self.workers.pop(worker)
        self._instructions.append(ForgetWorker(worker))
        failed = known.lost or bool(known.failure)
        done = known.finished and code in FINISHED_CODES and not failed
        if code == 0 and not (done or known.ending or failed or self.is_ending):
            self._exited_early(worker, known)
            return
        expected = (bool(known.ending) or done) and not known.lost
        is_counted = self.failures.is_counted(worker, known.generation, self.reports.samples)
        reason = known.failure or known.ending or ("finished" if expected else how)
        self._instructions.append(Emit(events.WorkerEnded(worker, known.slot, reason, expected)))
        if self.lone_slots and known.lost and not self.is_ending:
            self.phase, self.reason = JobPhase.STOPPED, reason
            self.end = JobEnded(self.phase, reason)
        elif self.lone_slots and not self.is_ending:
            self._fail(f"it {how}")
        elif not (expected or known.lost or self.is_ending or is_counted):
            why = f"failed: {known.failure}" if known.failure else how
            self._count_failure(f"worker {worker} on slot {known.slot} {why}", was_split=known.was_split)
        if known.finished:
            by_s = self._clock.monotonic_s() + self._spec.patience.grace
            self._completion = Completion.after(self._completion, known.generation, by_s, done and known.leads)
        elif not self.is_ending and self._completion is None:
            self._carry_out(self.group.ended(worker))
        self._check_over()

    # --- How a job ends ---

    def _exited_early(self, worker: str, known: Worker) -> None:
        """A worker's script has ended with exit code 0 before training was over, without a request: that is success.

        The leader decides for all, and so does the last worker. If another worker's peers do not end like it but train
        on, they have lost it (:meth:`_check_early_exits`).
        """
        self._instructions.append(Emit(events.WorkerEnded(worker, known.slot, "ended with exit code 0", True)))
        by_s = self._clock.monotonic_s() + EXIT_TOGETHER_S
        if self._completion is None and (known.leads or not self.workers):
            self._completion = Completion(known.generation, by_s, leader_finished=True)
        elif self._completion is None:
            self._early_exits[worker] = by_s
        self._check_over()

    def _check_early_exits(self) -> None:
        """Workers that have ended early are lost if their peers train, or wait to train, without them."""
        now_s = self._clock.monotonic_s()
        lost = [worker for worker, by_s in self._early_exits.items() if now_s > by_s]
        takes_part = (Standing.READY, Standing.MEMBER)
        if not lost or self.is_ending or not any(self.group.standing(one) in takes_part for one in self.workers):
            return
        for worker in lost:
            del self._early_exits[worker]
            if not self.phase.over:
                self._count_failure(f"worker {worker} ended with exit code 0, and its peers train on")
        if not self.phase.over:
            self._carry_out(self.group.ended(*lost))

    def _check_over(self) -> None:
        """End the job if it has finished or stopped."""
        if self.phase.over:
            return
        if self._early_exits and not (self.workers or self.starts or self._completion):  # all have ended like that
            self._completion = Completion(self.group.current.number, math.inf, leader_finished=True)
        completion = self._completion
        are_finishing = False
        if completion is not None:
            for worker, known in self.workers.items():
                if known.generation == completion.generation:
                    are_finishing = True
                else:
                    self._end(worker, "was not needed any more")
        if completion is not None and not are_finishing and completion.leader_finished:
            self.phase, self.reason = JobPhase.FINISHED, ""
            early = self.reports.cut_short or not self.reports.finished
            self.end = JobEnded(self.phase, "finished", early=early, initialised=self.reports.initialised)
        elif self.phase is JobPhase.STOPPING and not self.workers:
            self.phase = JobPhase.STOPPED
            self.end = JobEnded(self.phase, "stopped", self.reports.stopped_at_s)
        elif completion is not None and not are_finishing:  # the leader failed after training: that part is repeated
            self._completion = None
            gone = [one for one in self.group.workers if one not in self.workers and one not in self.starts]
            self._carry_out(self.group.ended(*gone))

    def _recover(self) -> None:
        if self.phase is JobPhase.RUNNING:
            self.phase = JobPhase.RECOVERING

    def _count_failure(self, reason: str, *, was_split: bool = False) -> None:
        """Something failed that is the job's fault; too many failures without progress end the job."""
        self.failures.add(self.group.current.number, (*self.workers, *self.starts), self.reports.samples)
        self.reason = reason
        count = self.failures.count
        if count > self._spec.max_failures:
            text = reason if count == 1 else f"{reason}; {count} failures without progress in between"
            shortage = mentions_full_disk(reason) or self._is_disk_full()
            self._fail(text, shortage=shortage, failures=count, was_split=was_split)
        else:
            self._recover()

    def _fail(
        self, reason: str, *, shortage: bool = False, failures: int = 0, was_split: bool = False, hold: bool = False
    ) -> None:
        self.phase, self.reason = JobPhase.FAILED, reason
        self.end = JobEnded(self.phase, reason, shortage=shortage, failures=failures, was_split=was_split, hold=hold)
        self.starts.clear()
        for worker in self.workers:
            self._end(worker, "was ended because the job failed")

    # --- Messages ---

    def _connected(self, hello: protocol.Hello) -> None:
        """A worker has connected, or reconnected: it may have missed a ``Form`` in between."""
        self.reports.initialised = True
        if self.lone_slots:
            self.lone_slots = ()
            self._instructions += [SaveHandover(), Emit(events.InitCalled(hello.worker))]
        known = self.group.workers.get(hello.worker)
        if known is not None and known.form is not None and 0 < hello.generation < known.form.generation:
            self._instructions.append(SendMessage(hello.worker, known.form))

    def _received(self, worker: str, known: Worker, message: protocol.FromWorker) -> None:
        match message:
            case protocol.Ready():
                self.reports.ready = message
                if self.is_ending:  # the stop was requested while it was starting
                    self._instructions.append(SendMessage(worker, protocol.Stop(save=False)))
                else:
                    self._carry_out(self.group.ready(worker, message.meeting))
            case protocol.Joined():
                self._joined(worker, known, message)
            case protocol.FirstStep(generation=generation, ended_at_s=ended_at_s):
                if self.group.stepped(worker, generation, ended_at_s):
                    last_s = max(filter(None, self.group.current.first_steps.values()), default=ended_at_s)
                    self._instructions.append(Emit(events.FirstStepDone(generation, last_s)))
            case protocol.Lost(generation=generation, reason=reason):
                if generation == self.group.current.number:
                    formation = self._formation
                    formation.lost_since_s = formation.lost_since_s or self._clock.monotonic_s()
                    formation.lost_reason = formation.lost_reason or reason
                self._recover()
                self._carry_out(self.group.lost(worker, generation))
            case protocol.Leaving():
                known.ending = known.ending or "left"
                self.reports.stopped_at_s = message.stopped_at_s
            case protocol.Progress():
                others = [self.workers[one] for one in self.group.current.members if one in self.workers]
                metrics = [message.metrics, *(other.metrics for other in others if other is not known)]
                self.reports.progress = replace(message, metrics=protocol.averaged(metrics))
                self._instructions.append(Emit(self.reports.progress))
            case protocol.Metrics():
                known.metrics = message.metrics if message.generation == self.group.current.number else {}
            case protocol.Checkpointed():
                self.reports.checkpoint = message
                self._instructions.append(Emit(events.CheckpointWritten(message)))
            case protocol.Finished():
                known.finished = self.reports.finished = True
                self.reports.cut_short |= known.leads and message.cut_short
            case protocol.Failed():
                known.failure = message.reason
                if message.hold and not self.is_ending:
                    self._fail(message.reason, hold=True)

    def _joined(self, worker: str, known: Worker, message: protocol.Joined) -> None:
        known.generation, known.leads, known.metrics = message.generation, message.rank == 0, {}
        generation = self.group.current
        leaving = [one for one in self.workers if self.group.standing(one) is Standing.LEAVING]
        actions = self.group.joined(worker, message)
        if message.generation == generation.number and generation.has_all_joined:
            self._formation.lost_since_s = None
            if self.phase in (JobPhase.STARTING, JobPhase.RECOVERING):
                self.phase, self.reason = JobPhase.RUNNING, ""
            for one in leaving:  # the others do not need it any more
                if self.workers[one].kill_at_s == math.inf:
                    self.workers[one].kill_at_s = self._clock.monotonic_s() + self._spec.patience.form
            slots = tuple(self.group.workers[member].slot for member in generation.members)
            self._instructions.append(Emit(group_formed(generation, slots)))
        self._carry_out(actions)

    # --- Time ---

    def _tick(self, contacts: Mapping[str, Contact]) -> None:
        """End workers that have been silent, stuck or lingering for too long."""
        now_s = self._clock.monotonic_s()
        self._start_due()
        for worker, known in self.workers.items():
            is_late = self._completion is not None and now_s > self._completion.by_s
            if now_s > known.kill_at_s:
                self._end(worker, "did not stop in time")
            elif is_late and not known.finished and contacts[worker].phase != "left":
                self._end(worker, "did not finish though its peers had")
        if self.lone_slots:  # a command that has not called geminid.init() may do anything, for any time
            return
        self._check_early_exits()
        seen = [seen_as(worker, known, contacts[worker], self.group) for worker, known in self.workers.items()]
        found = hangs.hung(seen, self._patience)
        self._busy_at_s = now_s if hangs.busy(seen, self._patience) else self._busy_at_s
        if self._stop_by_s is not None and (self.phase is JobPhase.RUNNING or now_s > self._stop_by_s):
            self._stop(True)
        if not self.is_ending:
            found += self._mend(seen, now_s)
        for one in found:
            hung = self.workers[one.worker]
            if one.free and not hung.failure:
                self._patience = hangs.more_patient(self._patience)
            hung.failure = hung.failure or one.reason
            self._instructions.append(SignalWorker(one.worker, signal.SIGKILL))

    def _mend(self, seen: Sequence[hangs.Seen], now_s: float) -> list[hangs.Hung]:
        """Bring a group further that is not formed, has lost members or makes no progress; who has to be ended."""
        found: list[hangs.Hung] = []
        formation, group = self._formation, self.group
        if group.current.members and not group.formed:
            found += hangs.late(seen, now_s - formation.since_s, now_s - self._busy_at_s, self._patience)
        lost_s = 0.0 if formation.lost_since_s is None else now_s - formation.lost_since_s
        if lost_s > STOP_WAITING_S:
            self._carry_out(group.stop_waiting(hangs.waiting(seen, lost_s)))
        if lost_s > self._patience.hang and self._formation is formation:
            formation.lost_since_s = now_s
            found += hangs.unaware(seen, group.unaware(), self._patience)
        if now_s > self._formation.retry_at_s:
            self._carry_out(group.reform())
        if group.current.members and hangs.deadlocked(seen, self._patience):
            self._count_failure("the workers waited for each other")
            if not self.phase.over:
                self._carry_out(group.reform())
        return found
