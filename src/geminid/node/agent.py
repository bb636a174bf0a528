"""The agent of a node: starts processes there for the service, watches them, and passes their logs on.

The same on one machine and on every node of a cluster. The service connects over TCP and identifies itself with a
token; ``messages.py`` has what both send then.

The processes end with the agent, however that ends, and with them all that they have started; and the agent ends with
the warm process that they are forked from, and when no service has connected for long. What an earlier agent of the
same folder left behind is ended before anything is started. A process with ``slots`` runs only while they are held: it
ends when a process does that holds one of them, and its code is ``SLOT_GONE`` then.

Nor do processes run on when this node is cut off. A service that is gone is waited for; but if for ``LEASE_S`` neither
the service has sent anything nor anybody else confirms that this node still counts, the processes are stopped
(``SIGSTOP``) until that is so again: meanwhile their jobs may have been started elsewhere, after ``FENCE_S``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from geminid.clock import Clock
from geminid.node import messages as m
from geminid.node.holders import SlotHolders
from geminid.node.processes import LOGS_ON_THE_WAY_BYTES as LOGS_ON_THE_WAY_BYTES
from geminid.node.processes import ProcessTable, end_leftovers, write_agent
from geminid.node.zygote_pool import WarmLauncher
from geminid.process.launch import LimitedLauncher
from geminid.wire.codec import ProtocolError
from geminid.wire.handshake import check_token, check_version
from geminid.wire.reactor import Reactor

#: Time between two looks at logs.
LOGS_S = 0.3

#: Time between two messages by which the service shows that it is there.
PING_S = 2.0

#: How long processes run after the last sign that this node counts.
LEASE_S = 6.0

#: Jobs are not started again elsewhere before this time after a node was given up.
FENCE_S = 9.0

#: A connection on which nothing has come for this time is closed; the service opens another one, if there is one.
DEAF_S = 60.0


class Lease:
    """Whether this node may run processes: the service, or somebody else who knows (``vouched``), says that it counts.

    ``vouched`` may take long, so it is asked in a thread of its own.
    """

    def __init__(self, lease_s: float, vouched: Callable[[], bool], clock: Clock) -> None:
        self._lease_s, self._vouched, self._clock = lease_s, vouched, clock
        self._heard_at_s = self._vouched_at_s = clock.monotonic_s()
        self._stopped_at_s: float | None = None
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._ask, name="geminid lease", daemon=True).start()

    def close(self) -> None:
        """Stop asking."""
        self._closing.set()

    @property
    def has_ended(self) -> bool:
        """Whether processes are stopped."""
        return self._stopped_at_s is not None

    def heard(self) -> None:
        """The service has sent something."""
        self._heard_at_s = self._clock.monotonic_s()

    def check(self) -> signal.Signals | None:
        """What all processes are to be sent: to stop, because the lease has ended, or to go on; None for neither."""
        now_s = self._clock.monotonic_s()
        if self._stopped_at_s is None and now_s - max(self._heard_at_s, self._vouched_at_s) > self._lease_s:
            self._stopped_at_s = now_s
            _print(f"nobody has said for {self._lease_s:g} s that this node counts: its processes are stopped")
            return signal.SIGSTOP
        if self._stopped_at_s is not None and self._vouched_at_s > self._stopped_at_s:
            _print(f"this node counts: its processes go on after {now_s - self._stopped_at_s:.1f} s")
            self._stopped_at_s, self._heard_at_s = None, now_s
            return signal.SIGCONT
        return None

    def _ask(self) -> None:
        """While the service is silent, or processes are stopped, ask whether this node still counts."""
        while not self._closing.is_set():
            asked_at_s = self._clock.monotonic_s()
            silent = asked_at_s - self._heard_at_s > 0.3 * self._lease_s
            if (silent or self._stopped_at_s is not None) and self._vouched():
                self._vouched_at_s = asked_at_s
            self._closing.wait(0.1 * self._lease_s)


class NodeServer:
    """See the module. Everything happens in the thread that calls :meth:`serve`."""

    def __init__(
        self,
        host: str,
        folder: Path,
        token: str,
        environment: Mapping[str, str],
        *,
        forsaken_s: float = 900.0,
        lease_s: float = LEASE_S,
        vouched: Callable[[], bool] = lambda: True,
        is_there: Callable[[Path], bool] = Path.is_dir,
        clock: Clock | None = None,
    ) -> None:
        self.folder, self._token, self._forsaken_s, self._clock = folder, token, forsaken_s, clock or Clock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        end_leftovers(folder)
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        modules = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # ours may be there
        held = [self._listener.fileno()]  # a refused connection proves that all processes have ended
        self._warm = WarmLauncher(keep=True, hold=held, environment=modules)
        self._launcher = LimitedLauncher(self._warm)
        write_agent(folder, os.getpid(), self._warm.pid)
        self._watches_launcher = self._ended = False
        self._reactor = Reactor()
        self._processes = ProcessTable(
            folder,
            environment,
            self._launcher,
            self._reactor,
            send=self._send,
            held_slots=lambda: self._holders.slots,
            is_there=is_there,
            on_started=self._watch_launcher,
        )
        self._holders = SlotHolders(self._reactor, self._processes.lose_slot)
        self._lease = Lease(lease_s, vouched, self._clock)
        self._line: m.AgentEnd | None = None
        self._strangers: set[m.AgentEnd] = set()
        self._alone_since_s = self._line_heard_at_s = self._logs_at_s = self._clock.monotonic_s()

    def serve(self) -> None:
        """Serve until no service has connected for long, or until asked to end; then end everything."""
        self._reactor.watch(self._listener, self._accept)
        self._lease.start()
        try:
            while not (self._ended or self.forsaken):
                ready = self._reactor.step(LOGS_S)
                now_s = self._clock.monotonic_s()
                if self._line is not None and now_s - self._line_heard_at_s > DEAF_S:
                    self._drop(self._line)  # a connection does not show that the machine of its service has vanished
                if not ready or self._lease.has_ended:  # before it stops anything, it reads all that came
                    number = self._lease.check()
                    if number is not None:
                        self._processes.signal_running(number)
                if now_s >= self._logs_at_s:
                    self._logs_at_s = now_s + LOGS_S
                    self._processes.trim_logs()
                    self._processes.send_logs()
        finally:
            self.close()

    def watch(self, descriptor: int) -> None:
        """End when this descriptor becomes readable: the pidfd of a process that this agent must not outlive."""
        self._reactor.watch(descriptor, self.end)

    def close(self) -> None:
        """End all processes."""
        self._ended = True
        self._lease.close()
        self._processes.close()
        for line in [*self._strangers, *([] if self._line is None else [self._line])]:
            self._drop(line)
        self._holders.close()
        self._reactor.unwatch(self._listener)
        self._listener.close()
        self._launcher.close()

    def end(self) -> None:
        """End soon, with all processes; from any thread."""
        self._ended = True

    @property
    def forsaken(self) -> bool:
        """Whether no service has connected for long."""
        if self._line is not None:
            self._alone_since_s = self._clock.monotonic_s()
        return self._clock.monotonic_s() - self._alone_since_s > self._forsaken_s

    # --- The connection with the service ---

    def _accept(self) -> None:
        opened, _ = self._listener.accept()
        line = m.agent_end(opened)
        self._strangers.add(line)
        self._reactor.watch(line, lambda: self._receive(line))

    def _receive(self, line: m.AgentEnd) -> None:
        try:
            for request in line.receive():
                if line in self._strangers:
                    self._admit(line, request)
                elif line is self._line:
                    self._line_heard_at_s = self._clock.monotonic_s()
                    self._lease.heard()
                    self._handle(request)
        except (OSError, EOFError, ProtocolError, ValueError):  # the last: there is no such signal
            self._drop(line)

    def _admit(self, line: m.AgentEnd, request: m.Request) -> None:
        """The newest service with the right token is the one that counts."""
        if not isinstance(request, m.Hello):
            raise ProtocolError("the first message was not a hello")
        check_token(request.token, self._token)
        try:
            check_version("the service", request.version, m.PROTOCOL_VERSION)
        except ProtocolError as problem:
            line.send(m.Refused(reason=str(problem)))
            raise
        if self._line is not None:
            self._drop(self._line)
        self._strangers.discard(line)
        self._line, self._line_heard_at_s = line, self._clock.monotonic_s()
        self._send(self._processes.greet())

    def _drop(self, line: m.AgentEnd) -> None:
        self._reactor.unwatch(line)
        line.close()
        self._strangers.discard(line)
        if line is self._line:
            self._line = None
            self._processes.disconnected()

    def _send(self, answer: m.Answer) -> None:
        if self._line is not None:
            try:
                self._line.send(answer)
            except (OSError, ProtocolError):
                self._drop(self._line)

    def _handle(self, request: m.Request) -> None:
        match request:
            case m.End():
                self._ended = True
            case m.Ping():
                self._send(m.Pong())
            case m.More():
                self._processes.allow_logs(request.bytes)
                self._logs_at_s = self._clock.monotonic_s()
            case m.Hold():
                self._holders.hold(request.slots)
            case m.Start():
                self._processes.start(request)
            case m.Follow(key=key):
                self._processes.follow(key, request.offset)
                self._logs_at_s = self._clock.monotonic_s()
            case m.Signal(key=key):
                self._processes.signal_running(signal.Signals(request.signal), key)
            case m.Forget(key=key):
                self._processes.forget(key)

    def _watch_launcher(self) -> None:
        """End with the warm process once it has started something: its workers do, and making another takes long."""
        if not self._watches_launcher and (warm := self._warm.pid) is not None:
            self._watches_launcher = True
            with contextlib.suppress(ProcessLookupError):
                self.watch(os.pidfd_open(warm))
                return
            self.end()


def _print(text: str) -> None:
    """Something for the log of this process."""
    with contextlib.suppress(OSError):
        print(f"geminid: {text}", file=sys.stderr, flush=True)
