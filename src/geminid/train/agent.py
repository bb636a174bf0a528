"""A worker's connection to its supervisor: a thread that sends heartbeats and receives orders while another trains.

It reconnects when the connection breaks. A worker whose supervisor does not return saves and stops, so that no process
is left without a supervisor.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from geminid.clock import Clock
from geminid.supervise import channel
from geminid.supervise.channel import Address, WorkerEnd
from geminid.supervise.handover import leave_report, training_is_over
from geminid.supervise.protocol import (
    LONGEST_TEXT,
    REPORT_S,
    Failed,
    Finished,
    FromSupervisor,
    FromWorker,
    Hello,
    Lost,
    Progress,
    ProtocolError,
    Ready,
    Refused,
    Stop,
    Welcome,
)
from geminid.train.activity import Activity
from geminid.train.orders import Orders
from geminid.wire.reactor import Reactor

#: Time between two attempts to connect to the supervisor.
RECONNECT_S = 0.5

#: Time between two heartbeats, before the supervisor says otherwise.
HEARTBEAT_S = 0.5

#: How long a worker trains without a supervisor, before the supervisor says otherwise.
ORPHAN_S = 60.0

#: How long a worker without a supervisor has to save and stop.
ORPHAN_GRACE_S = 60.0

#: Before ``geminid.init()``: time between two looks whether the supervisor is there.
LOOK_S = 5.0

#: How many messages are kept for a supervisor that is away; the oldest are dropped first.
LONGEST_BACKLOG = 256

#: Exit code of a process whose training thread did not stop in time.
STUCK_ORPHAN_EXIT_CODE = 143


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is, from its environment. ``ended`` is the file that records that its script ended successfully."""

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


class Outbox:
    """Messages for the supervisor that have not been sent, and those that a new supervisor needs again."""

    def __init__(self, ended: Path | None) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._unsent: deque[FromWorker] = deque(maxlen=LONGEST_BACKLOG)
        self._repeated: dict[type, FromWorker] = {}
        self._last_report: Progress | None = None

    def __bool__(self) -> bool:
        """Whether there is something to send."""
        return bool(self._unsent)

    def add(self, message: FromWorker) -> None:
        """Send this next. The end of training is recorded in a file too, for a supervisor that is away."""
        if isinstance(message, Failed | Lost):  # they may quote an exception of any length
            message = replace(message, reason=message.reason[:LONGEST_TEXT])
        with self._lock:
            if isinstance(message, Ready | Finished):
                self._repeated[type(message)] = message
            self._unsent.append(message)
            if isinstance(message, Progress):
                self._last_report = message
        if isinstance(message, Finished) and self._ended is not None:
            if self._last_report is not None:
                leave_report(self._ended, self._last_report)
            training_is_over(self._ended)

    def repeated(self) -> list[FromWorker]:
        """What a supervisor that has just been connected to may not know."""
        return [message for message in list(self._repeated.values()) if message not in self._unsent]

    def send_all(self, connection: WorkerEnd) -> None:
        """Send everything; what could not be sent is kept.

        Raises:
            OSError: the supervisor is gone.
        """
        while self._unsent:
            connection.send(self._unsent[0])
            connection.drain(channel.SEND_PATIENCE_S)
            with self._lock:
                self._unsent.popleft()


class OrphanAction(Enum):
    """What a worker without a supervisor does."""

    WAIT = "wait"
    STOP = "stop"
    EXIT = "exit"


class Contact:
    """How long the supervisor has been away, and what follows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_at_s = clock.monotonic_s()
        self.orphan_s = ORPHAN_S

    def seen(self) -> None:
        """The supervisor is there."""
        self._seen_at_s = self._clock.monotonic_s()

    def action(self) -> OrphanAction:
        """Train on at first, then save and stop; a process that does not stop in time is ended."""
        away_s = self._clock.monotonic_s() - self._seen_at_s
        if away_s <= self.orphan_s:
            return OrphanAction.WAIT
        return OrphanAction.STOP if away_s <= self.orphan_s + ORPHAN_GRACE_S else OrphanAction.EXIT


class NoSupervisor:
    """Takes the agent's place in a process that no supervisor started: there are no orders, and nothing is sent."""

    supervised = False

    def __init__(self, clock: Clock) -> None:
        self.orders, self.activity = Orders(), Activity(clock)
        self.report_s = REPORT_S
        self.worker = ""

    def send(self, message: FromWorker) -> None:
        """There is no receiver."""

    def close(self) -> None:
        """There is nothing to close."""


class Agent(NoSupervisor):
    """Talks with the supervisor in a thread of its own. ``on_broken`` is called when the group has lost a member."""

    supervised = True

    def __init__(self, identity: Identity, clock: Clock, on_broken: Callable[[], None] = lambda: None) -> None:
        super().__init__(clock)
        self.worker = identity.worker
        self._identity, self._clock, self._on_broken = identity, clock, on_broken
        self._outbox, self._contact = Outbox(identity.ended), Contact(clock)
        self._heartbeat_s = HEARTBEAT_S
        self._reactor, self._is_woken = Reactor(), False
        self._connection: WorkerEnd | None = None
        self._welcomed = self._closing = False
        self._thread = threading.Thread(target=self._run, name="geminid agent", daemon=True)
        self._thread.start()

    def send(self, message: FromWorker) -> None:
        """Send in the background; kept for later while the supervisor is away."""
        self._outbox.add(message)
        self._reactor.call_soon(self._wake)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is unsent if the supervisor can be reached within the time, and disconnect."""
        self._closing = True
        self._reactor.call_soon(self._wake)
        self._thread.join(timeout_s)

    # ------------------------------------------------------------------------------------ the agent's thread

    def _run(self) -> None:
        while not self._closing or self._outbox:
            connection = self._connection or self._connect()
            if connection is None:
                self._act_as_orphan()
                continue
            try:
                self._exchange(connection)
            except (OSError, EOFError, ProtocolError):
                self._disconnect()
                if not self._welcomed:  # the other side has refused this worker
                    self._clock.sleep(RECONNECT_S)
            if self._welcomed:
                self._contact.seen()
        self._disconnect()

    def _act_as_orphan(self) -> None:
        action = self._contact.action()
        if action is not OrphanAction.WAIT:
            self.orders.receive(Stop(save=True))
        if action is OrphanAction.EXIT:
            os._exit(STUCK_ORPHAN_EXIT_CODE)
        self._reactor.step(RECONNECT_S)

    def _connect(self) -> WorkerEnd | None:
        identity = self._identity
        try:
            connection = channel.worker_end(identity.address.connect(channel.SEND_PATIENCE_S))
        except OSError:
            return None
        self._connection, self._welcomed = connection, False
        self._reactor.watch(connection, lambda: self._receive(connection))
        hello = Hello(token=identity.token, worker=identity.worker, pid=os.getpid(), generation=self.orders.generation)
        try:
            for message in (hello, *self._outbox.repeated()):
                connection.send(message)
            connection.drain(channel.SEND_PATIENCE_S)
        except OSError:
            self._disconnect()
            return None
        return connection

    def _exchange(self, connection: WorkerEnd) -> None:
        """Send what there is and a heartbeat, then receive until the next heartbeat, or until there is more to send."""
        self._is_woken = False
        self._outbox.send_all(connection)
        if self._closing:
            return
        connection.send(self.activity.heartbeat(self.orders.generation))
        connection.drain(channel.SEND_PATIENCE_S)
        due_s = self._clock.monotonic_s() + self._heartbeat_s
        while (left_s := due_s - self._clock.monotonic_s()) > 0 and not self._is_woken:
            self._reactor.step(left_s)

    def _receive(self, connection: WorkerEnd) -> None:
        for message in connection.receive():
            self._handle(message)

    def _wake(self) -> None:
        self._is_woken = True

    def _handle(self, message: FromSupervisor) -> None:
        match message:
            case Welcome():
                self._heartbeat_s, self._contact.orphan_s = message.heartbeat_s, message.orphan_s
                self.report_s, self._welcomed = message.report_s, True
            case Refused():
                if message.job == self._identity.job:
                    _end_all("its supervisor does not know this process: another has replaced it")
            case _:
                self.orders.receive(message)
                if self.orders.group_is_broken:
                    self._on_broken()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._reactor.unwatch(self._connection)
            self._connection.close()
            self._connection = None


def end_without_supervisor_before_init(*, look_s: float = LOOK_S, orphan_s: float = ORPHAN_S) -> None:
    """Start to watch whether the supervisor is there, until ``geminid.init()`` starts an agent; returns at once.

    If the supervisor stays away, this process ends, with all that it started. Otherwise a script that hangs before
    ``geminid.init()`` would never end.
    """
    if channel.CONTROL in os.environ and channel.LONE not in os.environ:
        address = Address.parse(os.environ[channel.CONTROL])
        arguments = (address, look_s, orphan_s, Clock())
        threading.Thread(target=_watch_supervisor, args=arguments, name="geminid start", daemon=True).start()


def _watch_supervisor(address: Address, look_s: float, orphan_s: float, clock: Clock) -> None:
    contact = Contact(clock)
    contact.orphan_s = orphan_s
    while channel.CONTROL in os.environ:  # geminid.init() removes it
        try:
            address.connect(look_s).close()
            contact.seen()
        except OSError:
            if contact.action() is not OrphanAction.WAIT and channel.CONTROL in os.environ:
                _end_all("there is no supervisor any more, and training has not begun")
        clock.sleep(look_s)


def _end_all(why: str) -> NoReturn:
    """End this process and all that it started, at once."""
    print(f"geminid: error: {why}", file=sys.stderr, flush=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
