"""A supervisor's lines to its workers: who is let in, what is heard, and what is sent."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from geminid.train import channel, messages
from geminid.train.channel import Connection
from geminid.train.launcher import WorkerProcess
from geminid.train.messages import FromSupervisor, Hello, Message, ProtocolError, Welcome

#: Connections that are refused are told of so often.
REFUSALS_S = 10.0


@dataclass(slots=True)
class Known:
    """A worker's process, the token that only this one has, its line, and what it last said.

    One that is ``apart`` lived, and could not work together with its peers.
    """

    process: WorkerProcess
    slot: str
    token: str
    line: Connection | None = None
    generation: int = 0
    heard_at_s: float = 0.0
    phase: str = "starting"
    phase_s: float = 0.0
    usual_s: float | None = None
    metrics: dict[str, messages.Metric] = field(default_factory=dict)
    leads: bool = False
    finished: bool = False
    last_words: str = ""
    ending: str = ""
    lost: bool = False
    apart: bool = False
    kill_at_s: float | None = None


class Lines:
    """The lines of one job; everything happens in the thread that serves ``selector``.

    ``on_hello`` is called for a worker that has been let in, ``on_message`` for everything that it says afterwards.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        workers: Mapping[str, Known],
        *,
        job: str,
        welcome: Welcome,
        on_hello: Callable[[Hello], None],
        on_message: Callable[[str, Known, Message], None],
    ) -> None:
        self._listener, self._selector, self._workers = listener, selector, workers
        self._job, self._welcome = job, welcome
        self._on_hello, self._on_message = on_hello, on_message
        self._strangers: dict[Connection, float] = {}
        self._unwanted: set[Connection] = set()
        self._refusals, self._tell_at_s = 0, 0.0

    def open(self) -> None:
        """Begin to listen."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Cut all of them."""
        for known in self._workers.values():
            if known.line is not None:
                known.line.close()
        for line in self._strangers:
            line.close()
        self._listener.close()

    def send(self, worker: str, message: FromSupervisor) -> None:
        """Send, if there is a line; a worker without one is either starting or about to be found dead."""
        known = self._workers.get(worker)
        if known is None or known.line is None:
            return
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
        known.heard_at_s = monotonic()
        for message in heard:
            self._on_message(worker, known, message)

    def drop(self, known: Known) -> None:
        """Cut a worker's line, if it has one."""
        if known.line is not None:
            self._selector.unregister(known.line)
            known.line.close()
            known.line = None

    def dismiss_silent(self, patience_s: float) -> None:
        """Cut off whoever has connected and not said for so long who it is."""
        for line, since_s in list(self._strangers.items()):
            if monotonic() - since_s > patience_s:
                self._hang_up(line)

    def hear_last_words(self, worker: str) -> None:
        """Take in what a worker that has ended has said, on a line that it may only just have opened."""
        while self._accept():
            pass
        for line in list(self._strangers):
            self._greet(line)
        self.hear(worker)

    # ------------------------------------------------------------------------------------------- strangers

    def _accept(self) -> bool:
        try:
            opened, _ = self._listener.accept()
        except OSError:  # there is nobody, or whoever it was has gone again
            return False
        line = Connection(opened)
        self._strangers[line] = monotonic()
        self._selector.register(line, selectors.EVENT_READ, lambda: self._greet(line))
        return True

    def _greet(self, line: Connection) -> None:
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
        self._selector.unregister(line)
        self.drop(known)
        known.line, known.heard_at_s = line, monotonic()
        worker = hello.worker
        self._selector.register(line, selectors.EVENT_READ, lambda: self.hear(worker))
        self._on_hello(hello)
        for message in others:
            self._on_message(worker, known, message)

    def _refuse(self, line: Connection, problem: Exception) -> None:
        """Tell it so. The other side hangs up: what it has still to say would keep it from hearing the answer."""
        self._tell(problem)
        try:
            line.send(messages.Refused(job=self._job))
            self._unwanted.add(line)
        except OSError:
            self._hang_up(line)

    def _tell(self, problem: Exception) -> None:
        self._refusals += 1
        if monotonic() >= self._tell_at_s:
            more = f" ({self._refusals} since this was last said)" if self._refusals > 1 else ""
            print(f"geminid: {self._job}: a connection was refused: {problem}{more}", file=sys.stderr, flush=True)
            self._refusals, self._tell_at_s = 0, monotonic() + REFUSALS_S

    def _hang_up(self, line: Connection) -> None:
        self._unwanted.discard(line)
        del self._strangers[line]
        self._selector.unregister(line)
        line.close()
