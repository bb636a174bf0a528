"""The thread of one job's supervisor: executes the instructions of the job's state machine (``state.py``).

Everything is decided in this thread, one event after the other. Connections, the ends of processes and the clock are
watched by a reactor that all supervisors of this process share. Heartbeats, which are most of the messages, and ticks
at which nothing is due do not wake the thread.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from geminid.clock import Clock
from geminid.process.disk_full import SHORTAGES, is_full, meeting_folder, no_room
from geminid.process.launch import Launcher
from geminid.supervise import inputs
from geminid.supervise.channel import Address
from geminid.supervise.connections import STARTING, WorkerConnections
from geminid.supervise.events import JobEvent, JobStatus
from geminid.supervise.handover import Handover
from geminid.supervise.inputs import Event
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
from geminid.supervise.processes import WorkerProcesses
from geminid.supervise.protocol import Welcome
from geminid.supervise.spec import WorkerSpec
from geminid.supervise.state import SupervisedJob
from geminid.supervise.takeover import handover_of, status_of, take_over
from geminid.wire.reactor import Reactor, Timer

#: How many times the clock is looked at in the time that a hang takes to be noticed.
TICKS_PER_HANG = 20.0

#: Longest time between two looks at the clock, in seconds, unless workers send heartbeats less often.
MAX_TICK_S = 0.5

#: Delay before a handover that did not fit on the disk is written again, in seconds.
SAVE_RETRY_S = 1.0


class JobLoop:
    """The thread, and what it needs to execute instructions. ``changed`` guards ``status``, and says when it changes.

    The inbox has functions that are called in the thread, each of which may return an event to handle.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        on_event: Callable[[JobEvent], None],
        *,
        launcher: Launcher,
        left: Handover | None,
        reactor: Reactor,
        clock: Clock,
    ) -> None:
        self.on_event = on_event
        self._spec, self._reactor, self._clock = spec, reactor, clock
        self.inbox: SimpleQueue[Callable[[], Event | None]] = SimpleQueue()
        self.processes = WorkerProcesses(spec, launcher, reactor)
        folder = self.processes.folder
        self._token = secrets.token_hex(32) if left is None else left.token
        self.meetings = meeting_folder(folder, self._token)
        self.state = SupervisedJob(spec, clock, f"file:{self.meetings}/", is_disk_full=partial(is_full, folder))
        address = spec.address or Address(path=str(folder / "control"))
        if left is not None:
            address = Address.parse(left.address)
            self.processes.adopt(left)
            take_over(self.state, left, {one: link.process.pid for one, link in self.processes.links.items()})
        listener, self._address = address.listen()
        patience = spec.patience
        welcome = Welcome(heartbeat_s=patience.heartbeat, orphan_s=patience.orphan, report_s=spec.report_s)
        links, queued = self.processes.links, self.inbox.qsize
        self._connections = WorkerConnections(
            listener, reactor, links, job=spec.name, welcome=welcome, post=self.post, queued=queued
        )
        self._detached = False
        self._save_at_s = math.inf  # when a handover that could not be written is written again
        self._due_s = 0.0  # before then, only silent or slow workers make a tick necessary
        self._next_tick: Timer | None = None
        self.changed = threading.Condition()
        self.status = JobStatus(phase=self.state.phase)
        self.thread = threading.Thread(target=self._serve, name=f"supervisor of {spec.name}", daemon=True)

    def post(self, event: Event) -> None:
        """Have the thread handle an event; from any thread."""
        self.inbox.put(lambda: event)

    def detach(self) -> None:
        """Leave the workers alone, and end the thread; in the thread itself."""
        self._save()
        self._detached = True

    # --- The supervisor's thread ---

    def _serve(self) -> None:
        self._reactor.call(self._begin_to_watch)
        state = self.state
        try:
            self._execute(state.handle(inputs.Begin()))
            while not ((state.phase.over and not state.workers) or self._detached):
                self._take(self.inbox.get())
                while not self.inbox.empty():
                    self._take(self.inbox.get())
                if self._connections.are_paused:
                    self._reactor.call_soon(self._connections.resume)
                self._due_s = min(state.next_due_s(), self._save_at_s)
                self._publish()
        except BaseException as problem:
            is_short = isinstance(problem, OSError) and problem.errno in SHORTAGES
            state.handle(inputs.SupervisorFailed(f"the supervisor failed: {problem!r}", is_short))
            for link in self.processes.links.values():
                link.process.signal(signal.SIGKILL)
            self._publish()
            raise
        finally:
            self._close()
            if state.end is not None:  # emitted last: the job may be started again in the same folder
                self.on_event(state.end)

    def _take(self, find: Callable[[], Event | None]) -> None:
        event = find()
        if event is not None:
            self._execute(self.state.handle(event))

    def _execute(self, instructions: Sequence[Instruction]) -> None:
        processes = self.processes
        for instruction in instructions:
            match instruction:
                case StartProcess(worker, slot) if worker in self.state.starts:
                    alone = bool(self.state.lone_slots)
                    started = processes.start(worker, slot, str(self._address), alone=alone)
                    if isinstance(started, inputs.ProcessStarted):
                        self._watch(worker)
                    self._execute(self.state.handle(started))
                case RunScript(worker):
                    processes.links[worker].process.begin()
                case SignalWorker(worker, number) if worker in processes.links:
                    processes.links[worker].process.signal(number)
                case SendMessage(worker, message, otherwise) if worker in processes.links:
                    link = processes.links[worker]
                    if link.connection is None and otherwise is not None:
                        link.process.signal(otherwise)
                    else:
                        self._connections.send(link, message)
                case ForgetWorker(worker):
                    link = processes.forget(worker)
                    self._reactor.call_soon(lambda link=link: self._connections.drop(link))  # type: ignore[misc]
                case SaveHandover():
                    self._save()
                case Emit(event):
                    self.on_event(event)

    def _tick(self) -> Event:
        now_s = self._clock.monotonic_s()
        if now_s > self._save_at_s:
            self._save()
        return inputs.Tick({worker: link.contact(now_s) for worker, link in self.processes.links.items()})

    def _save(self) -> None:
        """Record what another supervisor needs to take over; later, if the disk is full now."""
        try:
            handover_of(self.state, self._token, str(self._address), self.processes.links).write(self.processes.folder)
            self._save_at_s = math.inf
        except OSError as problem:
            if not no_room(problem):
                raise
            if self._save_at_s == math.inf:  # the first time
                text = f"{self._spec.name} continues, but its workers cannot be recorded: {problem.strerror}"
                with contextlib.suppress(OSError):
                    print(f"geminid: warning: {text}", file=sys.stderr, flush=True)
            self._save_at_s = self._clock.monotonic_s() + SAVE_RETRY_S

    def _publish(self) -> None:
        status = status_of(self.state, self.processes.links)
        with self.changed:
            if status != self.status:
                self.status = status
                self.changed.notify_all()

    def _close(self) -> None:
        self._reactor.call(self._stop_watching)
        for link in self.processes.links.values():
            link.process.close()
        if not self._detached:
            if self._address.path is not None:
                Path(self._address.path).unlink(missing_ok=True)
            shutil.rmtree(self.meetings, ignore_errors=True)

    def _watch(self, worker: str) -> None:
        """Handle the end of a worker's process, after everything that it has sent; from any thread."""

        def has_ended() -> None:
            self._connections.receive_last(worker)
            self._reactor.hurry()
            self.inbox.put(find_ending)

        def find_ending() -> Event | None:
            if worker not in self.processes.links:  # it was forgotten meanwhile
                return None
            ending = self.processes.ending_of(worker)
            if ending is None:
                self._watch(worker)
            return ending

        self.processes.watch(worker, has_ended)

    # --- The reactor's thread ---

    def _begin_to_watch(self) -> None:
        self._connections.open()
        for worker, link in self.processes.links.items():
            link.heard_at_s = self._clock.monotonic_s()
            self._watch(worker)
        self._look_at_clock()

    def _stop_watching(self) -> None:
        if self._next_tick is not None:
            self._next_tick.cancel()
        self._connections.close()
        self.processes.unwatch_all()

    def _look_at_clock(self) -> None:
        """Have the thread handle a tick, unless nothing can be due. Everything that arrived before was received."""
        patience, now_s = self._spec.patience, self._clock.monotonic_s()
        tick_s = max(patience.heartbeat, min(patience.hang / TICKS_PER_HANG, MAX_TICK_S))
        later_s = now_s + tick_s
        later_s -= later_s % min(tick_s, MAX_TICK_S)  # at the same moment for many jobs: the reactor wakes up once
        self._next_tick = self._reactor.call_at(later_s, self._look_at_clock)
        self._connections.tick(patience.hang)
        silent_s = min(patience.hang, patience.grace)  # no worker counts as silent before this
        slow_s = min(patience.step, patience.free, patience.form, patience.stall, patience.conclude)
        is_due = now_s >= self._due_s
        for link in list(self.processes.links.values()):
            was_silent_s, activity = now_s - link.heard_at_s, link.activity
            is_due |= was_silent_s > silent_s and activity is not STARTING  # which may take long
            is_due |= was_silent_s + activity.phase_s > slow_s
        if is_due:
            self.inbox.put(self._tick)
