"""A supervisor's connections to its workers: who is let in, what is heard, and what is sent."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from geminid.process.launch import WorkerProcess
from geminid.supervise import channel, protocol
from geminid.supervise.channel import SupervisorEnd
from geminid.supervise.protocol import FromSupervisor, FromWorker, Heartbeat, Hello, ProtocolError, Welcome
from geminid.wire.reactor import Reactor, Timer

#: Refused connections are reported at most this often.
REFUSALS_S = 10.0

#: How many connections of a job may be open that have not said who they are, beside one for each of its workers.
MOST_STRANGERS = 16

#: After a flood of connections, or when no file descriptors are left, none are accepted for this long.
ACCEPT_PAUSE_S = 0.1

#: The most connections that can be waiting when a worker has ended: those that the system keeps for us (the backlog).
MOST_WAITING = 64


#: While a supervisor has this many messages to handle, no more are read.
MAX_QUEUED = 256


class Doing(NamedTuple):
    """What a worker does that has not sent a heartbeat to say so."""

    phase: str
    phase_s: float = 0.0
    usual_s: float | None = None


STARTING = Doing("starting")


@dataclass(slots=True)
class Known:
    """A worker's process, the token that only this one has, its line, and what it last said.

    What changes with every heartbeat (``line``, ``heard_at_s``, ``doing``) is set by the thread that serves the lines,
    and may be read by any. One that is ``apart`` lived, and could not work together with its peers. It is
    ``initialised`` once its script has called ``geminid.init()``.
    """

    process: WorkerProcess
    slot: str
    token: str
    line: SupervisorEnd | None = None
    generation: int = 0
    heard_at_s: float = 0.0
    doing: Doing | Heartbeat = STARTING
    metrics: dict[str, protocol.Metric] = field(default_factory=dict)
    leads: bool = False
    finished: bool = False
    last_words: str = ""
    ending: str = ""
    lost: bool = False
    apart: bool = False
    initialised: bool = False
    kill_at_s: float | None = None


class Lines:
    """The connections of one job; everything happens in the thread of ``reactor``, except as said.

    However many connections a job opens, few are open at a time: one for each worker, and some (``MOST_STRANGERS``)
    that have not said who they are. For more, the oldest of these are closed. Descriptors are shared by all jobs.

    ``on_hello`` is called for a worker that has been let in, ``on_message`` for everything that it says afterwards but
    heartbeats, which are kept with the worker. No more is read while ``queued`` messages are too many.
    """

    def __init__(
        self,
        listener: socket.socket,
        reactor: Reactor,
        workers: Mapping[str, Known],
        *,
        job: str,
        welcome: Welcome,
        on_hello: Callable[[Hello], None],
        on_message: Callable[[str, Known, FromWorker], None],
        queued: Callable[[], int] = lambda: 0,
    ) -> None:
        self._listener, self._reactor, self._workers = listener, reactor, workers
        self._job, self._welcome = job, welcome
        self._on_hello, self._on_message, self._queued = on_hello, on_message, queued
        self._strangers: dict[SupervisorEnd, float] = {}
        self._unwanted: set[SupervisorEnd] = set()
        self._paused: dict[str, Known] = {}
        self._refusals, self._tell_at_s = 0, 0.0
        self._accept_again: Timer | None = None  # while connections are not accepted

    def open(self) -> None:
        """Begin to listen."""
        self._reactor.watch(self._listener, self._accept)

    def close(self) -> None:
        """Cut all of them."""
        for known in list(self._workers.values()):
            self.drop(known)
        for line in list(self._strangers):
            self._hang_up(line)
        if self._accept_again is not None:
            self._accept_again.cancel()
        self._reactor.unwatch(self._listener)
        self._listener.close()

    def send(self, worker: str, message: FromSupervisor) -> None:
        """Send, if there is a line; a worker without one is either starting or about to be found dead.

        From any thread: it is sent after what was asked for before.
        """
        known = self._workers.get(worker)
        if known is not None:
            self._reactor.call_soon(lambda: self._send(known, message))

    def _send(self, known: Known, message: FromSupervisor) -> None:
        if known.line is not None:
            try:
                known.line.send(message)
            except OSError:
                self.drop(known)

    def hear(self, worker: str) -> None:
        """Take in what a worker has said."""
        known = self._workers.get(worker)
        if known is None or known.line is None:
            return
        try:
            heard = known.line.receive()
        except (EOFError, OSError):
            self.drop(known)
            return
        except ProtocolError as problem:
            known.last_words = f"spoke nonsense: {problem}"
            self.drop(known)
            known.process.signal(signal.SIGKILL)
            return
        known.heard_at_s = self._reactor.now_s()
        self._pass_on(worker, known, heard)

    def _pass_on(self, worker: str, known: Known, heard: list[FromWorker]) -> None:
        urgent = False
        for message in heard:
            if isinstance(message, Heartbeat):
                known.doing = message
            else:
                self._on_message(worker, known, message)
                urgent = True
        if not urgent:
            return
        self._reactor.hurry()
        if self._queued() > MAX_QUEUED and known.line is not None:
            self._reactor.unwatch(known.line)
            self._paused[worker] = known

    def resume(self) -> None:
        """What was said has been handled: read on."""
        paused, self._paused = self._paused, {}
        for worker, known in paused.items():
            if known.line is not None and not self._reactor.watches(known.line):
                known.heard_at_s = self._reactor.now_s()
                self._watch(worker, known.line)

    @property
    def are_paused(self) -> bool:
        """Whether something is not read for now; from any thread."""
        return bool(self._paused)

    def drop(self, known: Known) -> None:
        """Cut a worker's line, if it has one."""
        if known.line is not None:
            line, known.line = known.line, None
            self._reactor.unwatch(line)
            line.close()

    def tick(self, patience_s: float) -> None:
        """Close connections that have not said for this long who they are."""
        if self._strangers or self._paused:
            now_s = self._reactor.now_s()
            for line, since_s in list(self._strangers.items()):
                if now_s - since_s > patience_s:
                    self._hang_up(line)
            for known in self._paused.values():  # what it says is not read
                known.heard_at_s = now_s

    def hear_last_words(self, worker: str) -> None:
        """Take in what a worker that has ended has said, on a line that it may only just have opened."""
        for _ in range(MOST_WAITING):
            if not self._accept():
                break
        for line in list(self._strangers):
            self._greet(line)
        self.hear(worker)

    def _watch(self, worker: str, line: SupervisorEnd) -> None:
        self._reactor.watch(line, lambda: self.hear(worker))

    # ------------------------------------------------------------------------------------------- strangers

    def _accept(self) -> bool:
        try:
            opened, _ = self._listener.accept()
        except OSError as problem:  # there is nobody, or whoever it was has gone again
            if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause_accepting()
            return False
        line = channel.supervisor_end(opened)
        self._strangers[line] = self._reactor.now_s()
        self._reactor.watch(line, lambda: self._greet(line))
        self._make_room()
        return True

    def _make_room(self) -> None:
        """Close the oldest of too many strangers, unless it is a worker whose greeting has not been read yet."""
        while len(self._strangers) > MOST_STRANGERS + len(self._workers):
            oldest, since_s = next(iter(self._strangers.items()))
            self._greet(oldest)
            if oldest in self._strangers:
                self._hang_up(oldest)
                if self._reactor.now_s() - since_s < ACCEPT_PAUSE_S:
                    self._pause_accepting()

    def _pause_accepting(self) -> None:
        """Leave connections waiting for a moment: a listener that is always ready would keep this thread busy."""
        if self._accept_again is None:
            self._reactor.unwatch(self._listener)
            self._accept_again = self._reactor.call_at(self._reactor.now_s() + ACCEPT_PAUSE_S, self._accept_on)

    def _accept_on(self) -> None:
        self._accept_again = None
        self._reactor.watch(self._listener, self._accept)

    def _greet(self, line: SupervisorEnd) -> None:
        """Let a worker in that says who it is and has its token; cut everybody else off.

        A stray process of this job (an earlier supervisor started it, and did not live to write it down) ends then.
        """
        if line not in self._strangers:  # it was let in, or cut off, because a worker has ended meanwhile
            return
        try:
            heard = line.receive()
        except EOFError:  # it only wanted to know whether somebody is there
            self._hang_up(line)
            return
        except (ProtocolError, OSError) as problem:
            self._tell(problem)
            self._hang_up(line)
            return
        if not heard or line in self._unwanted:  # not all of the first line is there yet; or it was answered
            return
        first, *others = heard
        try:
            known = self._workers.get(first.worker) if isinstance(first, Hello) else None
            hello = channel.admitted(first, None if known is None else known.token)
        except ProtocolError as problem:
            self._refuse(line, problem)
            return
        assert known is not None
        with contextlib.suppress(OSError):  # it may have ended, and this may be all that it has to say
            line.send(self._welcome)
        del self._strangers[line]
        self._reactor.unwatch(line)
        self.drop(known)
        known.line, known.heard_at_s = line, self._reactor.now_s()
        self._watch(hello.worker, line)
        self._reactor.hurry()
        self._on_hello(hello)
        self._pass_on(hello.worker, known, others)

    def _refuse(self, line: SupervisorEnd, problem: Exception) -> None:
        """Tell it so. The other side hangs up: what it has still to say would keep it from hearing the answer."""
        self._tell(problem)
        try:
            line.send(protocol.Refused(job=self._job))
            self._unwanted.add(line)
        except OSError:
            self._hang_up(line)

    def _tell(self, problem: Exception) -> None:
        self._refusals += 1
        if self._reactor.now_s() >= self._tell_at_s:
            more = f" ({self._refusals} since this was last said)" if self._refusals > 1 else ""
            print(f"geminid: {self._job}: a connection was refused: {problem}{more}", file=sys.stderr, flush=True)
            self._refusals, self._tell_at_s = 0, self._reactor.now_s() + REFUSALS_S

    def _hang_up(self, line: SupervisorEnd) -> None:
        self._unwanted.discard(line)
        del self._strangers[line]
        self._reactor.unwatch(line)
        line.close()
