"""A job's state machine with pretended processes, in virtual time: what a supervisor does, without any I/O."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geminid.supervise import inputs, protocol
from geminid.supervise.events import JobEvent, WorkerEnded
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
from geminid.supervise.state import SupervisedJob
from geminid.testing.clock import ManualClock

READY = protocol.Ready(
    initial_batch=8, largest_batch=1024, smallest_per_slot=1, largest_per_slot=64, parameter_count=10
)


@dataclass(slots=True)
class Process:
    """A pretended worker: what it was told last, what it has answered, and how it is about to end."""

    slot: str
    runs: bool = False
    is_ready: bool = False
    form: protocol.Form | None = None
    joined: int = 0
    exit_code: int | None = None
    phase: str = "starting"
    phase_s: float = 0.0
    heard_at_s: float = 0.0


class World:
    """Executes the instructions of a job at once; processes that are signalled end when a test says so."""

    def __init__(self, **spec: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.spec = WorkerSpec(command=("train",), folder=Path("/job"), environment={}, **spec)
        self.job = SupervisedJob(self.spec, self.clock, "file:/job/")
        self.processes: dict[str, Process] = {}
        self.named: list[str] = []
        self.recorded: set[str] = set()
        self.forms: list[protocol.Form] = []
        self.events: list[JobEvent] = []
        self.sent: list[tuple[str, protocol.FromSupervisor]] = []
        self.phases = [self.job.phase]

    def handle(self, event: Event) -> None:
        """Have the job handle an event, and do what it says."""
        for instruction in self.job.handle(event):
            self.execute(instruction)
        if self.job.phase is not self.phases[-1]:
            self.phases.append(self.job.phase)

    def execute(self, instruction: Instruction) -> None:
        """Do what a supervisor does."""
        match instruction:
            case StartProcess(worker, slot) if worker in self.job.starts:
                assert worker not in self.named, "the name of a worker was used twice"
                self.named.append(worker)
                self.processes[worker] = Process(slot, heard_at_s=self.clock.at_s)
                self.handle(inputs.ProcessStarted(worker, slot, 100 + len(self.named)))
            case RunScript(worker):
                assert worker in self.recorded, "a script runs that no other supervisor would know of"
                self.processes[worker].runs = True
            case SignalWorker(worker, number):
                process = self.processes[worker]
                process.exit_code = process.exit_code if process.exit_code is not None else -number
            case SendMessage(worker, message):
                self.sent.append((worker, message))
                if worker in self.processes:
                    self.deliver(self.processes[worker], message)
            case ForgetWorker(worker):
                del self.processes[worker]
            case SaveHandover():
                self.recorded |= self.processes.keys()
            case Emit(event):
                self.events.append(event)

    def deliver(self, process: Process, message: protocol.FromSupervisor) -> None:
        """A worker receives a message."""
        if isinstance(message, protocol.Form):
            process.form = message
            self.forms.append(message)
            if process.joined and not any(self.processes.get(one) is process for one in message.members):
                process.exit_code = 0  # it leaves
        elif isinstance(message, protocol.Stop):
            process.exit_code = 143

    # --- What happens to workers ---

    def ready(self, worker: str) -> None:
        """A worker's script has come to its training loop."""
        process = self.processes[worker]
        if process.runs and process.exit_code is None and not process.is_ready:
            process.is_ready = True
            self.says(worker, "waiting")
            self.handle(inputs.WorkerConnected(protocol.Hello(token="", worker=worker, pid=1)))
            self.handle(inputs.MessageReceived(worker, READY))

    def join(self, worker: str) -> None:
        """A worker joins the generation that it was told to form, and makes its first step."""
        process = self.processes[worker]
        form = process.form
        if form is None or process.exit_code is not None or process.joined >= form.generation:
            return
        process.joined = form.generation
        self.says(worker, "training")
        rank, size = form.members.index(worker), len(form.members)
        joined = protocol.Joined(generation=form.generation, rank=rank, size=size, step=1, resumed_at_s=1.0)
        self.handle(inputs.MessageReceived(worker, joined))

    def step(self, worker: str) -> None:
        """A worker makes the first step of its generation."""
        if self.processes[worker].joined:
            step = protocol.FirstStep(generation=self.processes[worker].joined, ended_at_s=self.clock.at_s)
            self.handle(inputs.MessageReceived(worker, step))

    def lose_peers(self, worker: str) -> None:
        """A worker cannot reach its peers."""
        form = self.processes[worker].form
        if form is not None and self.processes[worker].exit_code is None:
            lost = protocol.Lost(generation=form.generation, reason="no route")
            self.handle(inputs.MessageReceived(worker, lost))

    def finish(self, worker: str) -> None:
        """A worker's training is complete, and its script ends well."""
        process = self.processes[worker]
        if process.joined and process.exit_code is None:
            self.handle(inputs.MessageReceived(worker, protocol.Finished(step=9, samples=9)))
            process.exit_code = 0

    def exit(self, worker: str, code: int) -> None:
        """A worker's process ends."""
        if worker in self.processes:
            self.handle(inputs.ProcessEnded(worker, code, f"ended with exit code {code}"))

    def bury(self) -> None:
        """The processes that are about to end have ended."""
        for worker, process in list(self.processes.items()):
            if process.exit_code is not None:
                self.exit(worker, process.exit_code)

    # --- Time ---

    def says(self, worker: str, phase: str, usual_s: float = 0.1) -> None:
        """A worker sends a heartbeat."""
        self.processes[worker].phase, self.processes[worker].heard_at_s = phase, self.clock.at_s

    def pass_time(self, seconds: float, *, silent: tuple[str, ...] = ()) -> None:
        """Time passes, in which all but these workers send heartbeats; the job gets a tick."""
        self.clock.sleep(seconds)
        for worker, process in self.processes.items():
            if worker not in silent and process.is_ready:
                process.heard_at_s = self.clock.at_s
        self.handle(
            inputs.Tick(
                {
                    worker: Contact(self.clock.at_s - process.heard_at_s, process.phase)
                    for worker, process in self.processes.items()
                }
            )
        )

    def train(self, rounds: int = 40) -> None:
        """Every worker does what it is told, until the job is over or trains on the slots that were requested."""
        for _ in range(rounds):
            self.bury()
            for what in (self.ready, self.join, self.step):
                for worker in list(self.processes):
                    if worker in self.processes:
                        what(worker)
            if self.job.group.settled or (self.job.phase.over and not self.processes):
                break
            self.pass_time(40.0)

    def ended(self) -> list[WorkerEnded]:
        """The workers whose end was reported."""
        return [event for event in self.events if isinstance(event, WorkerEnded)]


KILLED = -signal.SIGKILL
