"""A supervisor's connections to its workers: which are admitted, what they send, and what is sent to them."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from geminid.process.launch import WorkerProcess
from geminid.supervise import channel, inputs
from geminid.supervise.channel import SupervisorEnd
from geminid.supervise.inputs import Contact, Event
from geminid.supervise.protocol import (
    FromSupervisor,
    FromWorker,
    Heartbeat,
    Hello,
    ProtocolError,
    Refused,
    Welcome,
)
from geminid.wire.reactor import Reactor, Timer

#: Time between two reports of refused connections, in seconds.
REFUSALS_S = 10.0

#: How many connections of a job may be open that have sent no ``Hello``, beside one for each of its workers.
MAX_STRANGERS = 16

#: How long no connection is accepted after a flood of them, or when no file descriptors are left, in seconds.
ACCEPT_PAUSE_S = 0.1

#: While a supervisor has this many messages to handle, no more are read.
MAX_QUEUED = 256


class Activity(NamedTuple):
    """What a worker is doing that has not sent a heartbeat yet."""

    phase: str
    phase_s: float = 0.0
    usual_s: float | None = None


STARTING = Activity("starting")
ADOPTED = Activity("adopted")


@dataclass(slots=True)
class Link:
    """A worker's process, its own token, its connection, and what it last sent.

    What changes with every heartbeat (``connection``, ``heard_at_s``, ``activity``) is set by the reactor's thread, and
    may be read by any.
    """

    process: WorkerProcess
    slot: str
    token: str
    heard_at_s: float = 0.0
    activity: Activity | Heartbeat = STARTING
    connection: SupervisorEnd | None = None

    def contact(self, now_s: float) -> Contact:
        """What was last received from the worker, and when."""
        activity, is_connected = self.activity, self.connection is not None
        return Contact(now_s - self.heard_at_s, activity.phase, activity.phase_s, activity.usual_s, is_connected)


class WorkerConnections:
    """The connections of one job; everything happens in the thread of ``reactor``, except where stated.

    However many connections a job opens, few are open at a time, because all jobs share the process's descriptors: one
    for each worker, and ``MAX_STRANGERS`` that have sent no ``Hello``; if there are more, the oldest are closed.

    Events are passed to ``post``, except heartbeats, which are stored in the worker's link. No more is read while
    ``queued`` events are too many.
    """

    def __init__(
        self,
        listener: socket.socket,
        reactor: Reactor,
        links: Mapping[str, Link],
        *,
        job: str,
        welcome: Welcome,
        post: Callable[[Event], None],
        queued: Callable[[], int] = lambda: 0,
    ) -> None:
        self._listener, self._reactor, self._links = listener, reactor, links
        self._job, self._welcome = job, welcome
        self._post, self._queued = post, queued
        self._strangers: dict[SupervisorEnd, float] = {}
        self._refused: set[SupervisorEnd] = set()
        self._paused: dict[str, Link] = {}
        self._refusals, self._report_at_s = 0, 0.0
        self._accept_again: Timer | None = None  # while connections are not accepted

    def open(self) -> None:
        """Begin to listen."""
        self._reactor.watch(self._listener, self._accept)

    def close(self) -> None:
        """Close all connections and stop listening."""
        for link in list(self._links.values()):
            self.drop(link)
        for connection in list(self._strangers):
            self._close_stranger(connection)
        if self._accept_again is not None:
            self._accept_again.cancel()
        self._reactor.unwatch(self._listener)
        self._listener.close()

    def send(self, link: Link, message: FromSupervisor) -> None:
        """Send a message, if the worker is connected; from any thread, in the order of the calls.

        A worker that is not connected is starting, or will soon be found dead.
        """
        self._reactor.call_soon(lambda: self._send(link, message))

    def _send(self, link: Link, message: FromSupervisor) -> None:
        if link.connection is not None:
            try:
                link.connection.send(message)
            except OSError:
                self.drop(link)

    def receive(self, worker: str) -> None:
        """Read what a worker has sent."""
        link = self._links.get(worker)
        if link is None or link.connection is None:
            return
        try:
            messages = link.connection.receive()
        except (EOFError, OSError):
            self.drop(link)
            return
        except ProtocolError as problem:
            self.drop(link)
            self._post(inputs.MalformedMessage(worker, str(problem)))
            return
        link.heard_at_s = self._reactor.now_s()
        self._pass_on(worker, link, messages)

    def _pass_on(self, worker: str, link: Link, messages: list[FromWorker]) -> None:
        is_urgent = False
        for message in messages:
            if isinstance(message, Heartbeat):
                link.activity = message
            else:
                self._post(inputs.MessageReceived(worker, message))
                is_urgent = True
        if not is_urgent:
            return
        self._reactor.hurry()
        if self._queued() > MAX_QUEUED and link.connection is not None:
            self._reactor.unwatch(link.connection)
            self._paused[worker] = link

    def resume(self) -> None:
        """Read on: what was received before has been handled."""
        paused, self._paused = self._paused, {}
        for worker, link in paused.items():
            if link.connection is not None and not self._reactor.watches(link.connection):
                link.heard_at_s = self._reactor.now_s()
                self._watch(worker, link.connection)

    @property
    def are_paused(self) -> bool:
        """Whether a connection is not read for now; from any thread."""
        return bool(self._paused)

    def drop(self, link: Link) -> None:
        """Close a worker's connection, if it has one."""
        if link.connection is not None:
            connection, link.connection = link.connection, None
            self._reactor.unwatch(connection)
            connection.close()

    def tick(self, hello_timeout_s: float) -> None:
        """Close connections that have sent no ``Hello`` in time."""
        if self._strangers or self._paused:
            now_s = self._reactor.now_s()
            for connection, since_s in list(self._strangers.items()):
                if now_s - since_s > hello_timeout_s:
                    self._close_stranger(connection)
            for link in self._paused.values():  # what it sends is not read
                link.heard_at_s = now_s

    def receive_last(self, worker: str) -> None:
        """Read what a worker that has ended has sent, on a connection that it may only just have opened."""
        for _ in range(channel.BACKLOG):
            if not self._accept():
                break
        for connection in list(self._strangers):
            self._admit(connection)
        self.receive(worker)

    def _watch(self, worker: str, connection: SupervisorEnd) -> None:
        self._reactor.watch(connection, lambda: self.receive(worker))

    # --- Connections that have sent no Hello yet ---

    def _accept(self) -> bool:
        try:
            opened, _ = self._listener.accept()
        except OSError as problem:  # none is waiting, or it was closed again
            if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause_accepting()
            return False
        connection = channel.supervisor_end(opened)
        self._strangers[connection] = self._reactor.now_s()
        self._reactor.watch(connection, lambda: self._admit(connection))
        self._limit_strangers()
        return True

    def _limit_strangers(self) -> None:
        """Close the oldest of too many strangers, unless it is a worker whose ``Hello`` has not been read yet."""
        while len(self._strangers) > MAX_STRANGERS + len(self._links):
            oldest, since_s = next(iter(self._strangers.items()))
            self._admit(oldest)
            if oldest in self._strangers:
                self._close_stranger(oldest)
                if self._reactor.now_s() - since_s < ACCEPT_PAUSE_S:
                    self._pause_accepting()

    def _pause_accepting(self) -> None:
        """Leave connections waiting for a moment: a listener that is always ready would keep this thread busy."""
        if self._accept_again is None:
            self._reactor.unwatch(self._listener)
            self._accept_again = self._reactor.call_at(self._reactor.now_s() + ACCEPT_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._accept_again = None
        self._reactor.watch(self._listener, self._accept)

    def _admit(self, connection: SupervisorEnd) -> None:
        """Admit a worker that sends a ``Hello`` with its token; refuse every other connection.

        A process of this job that an earlier supervisor started but did not record ends when it is refused.
        """
        if connection not in self._strangers:  # it was admitted or closed because a worker has ended meanwhile
            return
        try:
            messages = connection.receive()
        except EOFError:  # it only checked that a supervisor listens
            self._close_stranger(connection)
            return
        except (ProtocolError, OSError) as problem:
            self._report_refusal(problem)
            self._close_stranger(connection)
            return
        if not messages or connection in self._refused:  # the first line is incomplete, or it was answered
            return
        first, *others = messages
        try:
            link = self._links.get(first.worker) if isinstance(first, Hello) else None
            hello = channel.admitted(first, None if link is None else link.token)
        except ProtocolError as problem:
            self._refuse(connection, problem)
            return
        assert link is not None
        with contextlib.suppress(OSError):  # it may have ended, and this may be all that it has sent
            connection.send(self._welcome)
        del self._strangers[connection]
        self._reactor.unwatch(connection)
        self.drop(link)
        link.connection, link.heard_at_s = connection, self._reactor.now_s()
        self._watch(hello.worker, connection)
        self._reactor.hurry()
        self._post(inputs.WorkerConnected(hello))
        self._pass_on(hello.worker, link, others)

    def _refuse(self, connection: SupervisorEnd, problem: Exception) -> None:
        """Answer that it is refused. The other side closes: closing here could discard the answer before it is read."""
        self._report_refusal(problem)
        try:
            connection.send(Refused(job=self._job))
            self._refused.add(connection)
        except OSError:
            self._close_stranger(connection)

    def _report_refusal(self, problem: Exception) -> None:
        self._refusals += 1
        if self._reactor.now_s() >= self._report_at_s:
            more = f" ({self._refusals} since the last report)" if self._refusals > 1 else ""
            print(f"geminid: {self._job}: a connection was refused: {problem}{more}", file=sys.stderr, flush=True)
            self._refusals, self._report_at_s = 0, self._reactor.now_s() + REFUSALS_S

    def _close_stranger(self, connection: SupervisorEnd) -> None:
        self._refused.discard(connection)
        del self._strangers[connection]
        self._reactor.unwatch(connection)
        connection.close()
