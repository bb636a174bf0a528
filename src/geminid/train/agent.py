"""A worker's end of the line: a thread that keeps in touch with the supervisor while another one trains.

It says hello and goes on saying that the worker lives, takes in orders, and finds its supervisor again after losing
it. A worker whose supervisor stays away is told to save and stop, so that nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from msgspec.structs import replace

from geminid.supervise import channel
from geminid.supervise.channel import Address, WorkerEnd
from geminid.supervise.handover import leave_report, training_is_over
from geminid.supervise.protocol import (
    LONGEST_TEXT,
    Failed,
    Finished,
    Form,
    FromSupervisor,
    FromWorker,
    Heartbeat,
    Hello,
    Lost,
    Phase,
    Progress,
    ProtocolError,
    Ready,
    Refused,
    Retune,
    SaveCheckpoint,
    Stop,
    Welcome,
)
from geminid.wire.reactor import Reactor

#: How long to wait before looking for a lost supervisor again.
RECONNECT_S = 0.5

#: A worker without a supervisor that was told to stop has this long to do so.
ORPHAN_GRACE_S = 60.0

#: How often a process that has no agent yet looks whether there is a supervisor.
LOOK_S = 5.0

#: How long workers do without a supervisor that has not told them anything else.
ORPHAN_S = 60.0

#: What is kept for a supervisor that is away; the oldest is dropped first.
LONGEST_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is, from its environment, and what it leaves (``ended``) when its script has ended well."""

    address: Address
    token: str
    worker: str
    job: str
    ended: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Identity | None:
        """None where no supervisor started this process."""
        if channel.CONTROL not in environment:
            return None
        missing = [name for name in (channel.TOKEN, channel.WORKER) if not environment.get(name)]
        if missing:
            raise ValueError(f"{channel.CONTROL} is set but {missing[0]} is not")
        return cls(
            Address.parse(environment[channel.CONTROL]),
            environment[channel.TOKEN],
            environment[channel.WORKER],
            environment.get(channel.JOB, "job"),
            Path(environment[channel.ENDED]) if environment.get(channel.ENDED) else None,
        )


class Agent:
    """Talks with the supervisor. Orders are kept until the training thread looks for them, at the end of a step."""

    def __init__(self, identity: Identity, on_broken: Callable[[], None] = lambda: None) -> None:
        self.identity = identity
        self._on_broken = on_broken
        self.generation = 0
        self.step = 0
        self.report_s = 1.0
        self.usual_s: float | None = None
        #: Called before every heartbeat, in the agent's thread.
        self.before_beat: Callable[[], None] = lambda: None
        self._phase: Phase = "waiting"
        self._phase_since_s = monotonic()
        self._form: Form | None = None
        self._retune: Retune | None = None
        self._save = False
        self._standing: dict[type, FromWorker] = {}
        self._stop: Stop | None = None
        self._last_report: Progress | None = None
        self._heartbeat_s, self._orphan_s = 0.5, ORPHAN_S
        self._backlog: deque[FromWorker] = deque(maxlen=LONGEST_BACKLOG)
        self._changed = threading.Condition()
        self._reactor, self._is_woken = Reactor(), False
        self._closing = False
        self._line: WorkerEnd | None = None
        self._welcome = False
        self._thread = threading.Thread(target=self._serve, name="geminid agent", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------ for the training thread

    def enter(self, phase: Phase) -> None:
        """Say what the training thread is doing from now on."""
        self._phase, self._phase_since_s = phase, monotonic()

    def send(self, message: FromWorker) -> None:
        """Send in the background; kept for later while the supervisor is away."""
        if isinstance(message, Failed | Lost):  # which may quote an exception of any length
            message = replace(message, reason=message.reason[:LONGEST_TEXT])
        with self._changed:
            if isinstance(message, Ready | Finished):
                self._standing[type(message)] = message
            self._backlog.append(message)
            if isinstance(message, Progress):
                self._last_report = message
        if isinstance(message, Finished) and self.identity.ended is not None:
            if self._last_report is not None:
                leave_report(self.identity.ended, self._last_report)
            training_is_over(self.identity.ended)
        self._reactor.call_soon(self._wake)

    @property
    def form(self) -> Form | None:
        """The newest order to form a generation later than the current one."""
        form = self._form
        return form if form is not None and form.generation > self.generation else None

    @property
    def broken(self) -> bool:
        """Whether the group that this worker is in has lost a member."""
        form = self.form
        return form is not None and form.broken

    def wait_for_form(self, timeout_s: float) -> Form | None:
        """Wait for such an order, or for one to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.form is not None or self._stop is not None, timeout_s)
        return self.form

    @property
    def stop(self) -> Stop | None:
        """The order to stop, if there is one."""
        return self._stop

    def take_retune(self) -> Retune | None:
        """The newest order about the batch plan, once."""
        taken, self._retune = self._retune, None
        return taken

    def take_save(self) -> bool:
        """Whether a checkpoint was asked for since the last time."""
        taken, self._save = self._save, False
        return taken

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is left, to a supervisor that is found within the time, and hang up."""
        self._closing = True
        self._reactor.call_soon(self._wake)
        self._thread.join(timeout_s)

    # ------------------------------------------------------------------------------------ the agent's thread

    def _serve(self) -> None:
        alone_since_s = monotonic()
        while not self._closing or self._backlog:
            line = self._line
            if line is None:
                if self._connect():
                    continue
                alone_s = monotonic() - alone_since_s
                if alone_s > self._orphan_s:
                    self._take(Stop(save=True))
                if alone_s > self._orphan_s + ORPHAN_GRACE_S:
                    os._exit(143)  # the training thread is stuck, and nobody is there to notice
                self._reactor.step(RECONNECT_S)
                continue
            try:
                self._converse(line)
            except (OSError, EOFError, ProtocolError):
                self._hang_up()
            if self._welcome:
                alone_since_s = monotonic()
            elif self._line is None:  # whoever is there did not let it in
                sleep(RECONNECT_S)
        self._hang_up()

    def _connect(self) -> bool:
        try:
            line = channel.worker_end(self.identity.address.connect(channel.SEND_PATIENCE_S))
        except OSError:
            return False
        self._line, self._welcome = line, False
        self._reactor.watch(line, lambda: self._hear(line))
        try:
            line.send(
                Hello(
                    token=self.identity.token,
                    worker=self.identity.worker,
                    pid=os.getpid(),
                    generation=self.generation,
                )
            )
            for message in list(self._standing.values()):
                if message not in self._backlog:
                    line.send(message)  # a new supervisor has not heard it
            line.drain(channel.SEND_PATIENCE_S)
        except OSError:
            self._hang_up()
            return False
        return True

    def _converse(self, line: WorkerEnd) -> None:
        """Send what there is, then listen until the next heartbeat is due, or there is something to send."""
        self._is_woken = False
        while self._backlog:
            line.send(self._backlog[0])
            line.drain(channel.SEND_PATIENCE_S)
            with self._changed:
                self._backlog.popleft()
        if self._closing:
            return
        self.before_beat()
        line.send(
            Heartbeat(
                generation=self.generation,
                step=self.step,
                phase=self._phase,
                phase_s=monotonic() - self._phase_since_s,
                usual_s=self.usual_s,
            )
        )
        line.drain(channel.SEND_PATIENCE_S)
        due = monotonic() + self._heartbeat_s
        while (left := due - monotonic()) > 0 and not self._is_woken:
            self._reactor.step(left)

    def _hear(self, line: WorkerEnd) -> None:
        for message in line.receive():
            self._take(message)

    def _wake(self) -> None:
        self._is_woken = True

    def _take(self, message: FromSupervisor) -> None:
        with self._changed:
            match message:
                case Welcome():
                    self._heartbeat_s, self._orphan_s = message.heartbeat_s, message.orphan_s
                    self.report_s, self._welcome = message.report_s, True
                case Refused(job=self.identity.job):
                    _end("its supervisor does not know this process: another is in its place")
                case Form():
                    if self._form is None or message.generation > self._form.generation:
                        self._form = message
                    if self.broken:
                        self._on_broken()
                case Retune():
                    self._retune = message
                case SaveCheckpoint():
                    self._save = True
                case Stop():
                    self._stop = message
            self._changed.notify_all()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._reactor.unwatch(self._line)
            self._line.close()
            self._line = None


def mind_until_init(*, look_s: float = LOOK_S, orphan_s: float = ORPHAN_S) -> None:
    """End this process and all that it started, should its supervisor stay away before there is an agent to care.

    A script that hangs before ``geminid.init()`` would otherwise be left behind for ever. Returns at once.
    """
    if channel.CONTROL in os.environ and channel.LONE not in os.environ:
        address = Address.parse(os.environ[channel.CONTROL])
        threading.Thread(target=_mind, args=(address, look_s, orphan_s), name="geminid start", daemon=True).start()


def _mind(address: Address, look_s: float, orphan_s: float) -> None:
    seen_s = monotonic()
    while channel.CONTROL in os.environ:  # the agent takes it
        try:
            address.connect(look_s).close()
            seen_s = monotonic()
        except OSError:
            if monotonic() - seen_s > orphan_s and channel.CONTROL in os.environ:
                _end("there is no supervisor any more, and training has not begun")
        sleep(look_s)


def _end(why: str) -> NoReturn:
    """End this process and all that it started, at once."""
    print(f"geminid: error: {why}", file=sys.stderr, flush=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
