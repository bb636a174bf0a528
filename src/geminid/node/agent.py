"""What stands on every node of a cluster for the service: starts processes there, watches them, passes their logs on.

The service connects over TCP and says who it is with a token; ``nodemessages.py`` says what both say then.

Nobody waits for logs: the service says how much of them it will take (``LOGS_ON_THE_WAY_BYTES`` at first), which is
shared out among the processes piece by piece. Of one that prints faster than that, parts are left out (``nodelog.py``).

The processes end with the server, whichever way that ends, and with them all that they have started; and the server
ends with the warm process that they are forked from, and when no service has come for long. What an earlier server of
the same folder left behind is ended before anything is started. A process with ``slots`` runs only
while they are held: it ends when a process does that holds one of them, and its code is ``SLOT_GONE`` then.

Nor do processes run on when this node is cut off. A service that is gone is waited for; but if for ``LEASE_S`` neither
it was heard nor anybody else would vouch that this node still counts, the processes are stopped (``SIGSTOP``) until
somebody does: meanwhile their jobs may have been started elsewhere, after ``FENCE_S``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from msgspec.structs import asdict

from geminid.node import messages as m
from geminid.node.log import NodeLog
from geminid.node.zygote_pool import WarmLauncher
from geminid.process.descendants import MARK, signal_marked
from geminid.process.identity import identity_of, still_runs
from geminid.process.launch import (
    SLOT_GONE,
    Launch,
    LimitedLauncher,
    WorkerProcess,
    end_left,
)
from geminid.supervise.channel import ENDED
from geminid.supervise.handover import report_beside
from geminid.supervise.protocol import LONGEST_LINE_BYTES
from geminid.wire.codec import ProtocolError
from geminid.wire.handshake import check_token, check_version
from geminid.wire.reactor import Reactor

#: Logs are looked at so often, and passed on in pieces of at most so many bytes.
LOGS_S, PIECE_BYTES = 0.3, 1 << 16

#: So much of a node's logs may be on its way to the service: whatever else is told comes behind it.
LOGS_ON_THE_WAY_BYTES = 1 << 20

#: The service says so often that it is there. Processes run for so long after the last sign that this node counts, and
#: jobs are not started again elsewhere before so long after it was given up.
PING_S, LEASE_S, FENCE_S = 2.0, 6.0, 9.0

#: A line on which nothing has been heard for so long is none; the service opens another, if there is one.
DEAF_S = 60.0

#: In a server's folder: what runs, and on which slots.
PROCESSES = "processes.json"

#: In a server's folder: its own process, and the warm one.
SERVER = "server.json"

#: A process that could not be started is said to have ended so.
NOT_STARTED = 127


@dataclass(slots=True)
class _Kept:
    """A process and its log.

    ``slots`` are those that it runs on, and ``unheld`` tells whether one of them was taken away; ``well`` whether it
    has left word that its script ended well after training, ``report`` is its last one if it led, and ``codeless``
    tells whether what was brought here for it to run is gone.
    """

    log: NodeLog
    process: WorkerProcess | None = None
    code: int | None = None
    reason: str = ""
    told: bool = False
    slots: frozenset[str] = frozenset()
    unheld: bool = False
    well: bool = False
    report: str = ""
    codeless: bool = False

    @property
    def word(self) -> Path:
        """What a worker leaves when its script has ended well after training."""
        return self.log.path.with_suffix(".ended")


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process that holds a slot, and its pidfd, by which its end is heard."""

    identity: m.Identity
    descriptor: int


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
    ) -> None:
        self._folder, self._token, self._forsaken_s = folder, token, forsaken_s
        self._lease_s, self._vouched, self._is_there = lease_s, vouched, is_there
        self._environment = environment
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._end_leftovers()
        self._listener = socket.create_server((host, 0))
        modules = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # ours may be there
        held = [self._listener.fileno()]  # who is refused knows: all have ended
        self._warm = WarmLauncher(keep=True, hold=held, environment=modules)
        self._launcher = LimitedLauncher(self._warm)
        self._introduce_itself()
        self._watches_launcher = False
        self._kept: dict[str, _Kept] = {}
        self._holders: dict[str, _Holder | None] = {}
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._line: m.AgentEnd | None = None
        self._strangers: set[m.AgentEnd] = set()
        self._logs_at_s, self._logs_left_bytes = monotonic(), 0
        self._reactor = Reactor()
        self._alone_since_s = self._heard_at_s = self._vouched_at_s = self._line_heard_at_s = monotonic()
        self._stopped_at_s: float | None = None
        self._ended = False

    def serve(self) -> None:
        """Serve until no service has come for long, or until told to end; then end everything."""
        self._reactor.watch(self._listener, self._accept)
        threading.Thread(target=self._ask, name="geminid lease", daemon=True).start()
        try:
            while not (self._ended or self.forsaken):
                ready = self._reactor.step(LOGS_S)
                if self._line is not None and monotonic() - self._line_heard_at_s > DEAF_S:
                    self._drop(self._line)  # no line tells that the machine of its service has vanished
                if not ready or self._stopped_at_s is not None:  # before it stops anything, it hears all that came
                    self._mind_lease()
                if monotonic() >= self._logs_at_s:
                    self._logs_at_s = monotonic() + LOGS_S
                    for kept in self._kept.values():
                        kept.log.trim()
                    self._send_logs()
        finally:
            self.close()

    def watch(self, descriptor: int) -> None:
        """End when this descriptor becomes readable: a pidfd of whoever this server must not outlive."""
        self._reactor.watch(descriptor, self.end)

    def close(self) -> None:
        """End all processes."""
        self._ended = True
        for name in self._kept:
            self._signal(name, signal.SIGKILL)
        for line in [*self._strangers, *([] if self._line is None else [self._line])]:
            self._drop(line)
        for holder in self._holders.values():
            if holder is not None:
                self._unwatch(holder)
        self._holders.clear()
        self._reactor.unwatch(self._listener)
        self._listener.close()
        self._launcher.close()

    def end(self) -> None:
        """End soon, with all processes; from any thread."""
        self._ended = True

    @property
    def forsaken(self) -> bool:
        """Whether no service has come for long."""
        if self._line is not None:
            self._alone_since_s = monotonic()
        return monotonic() - self._alone_since_s > self._forsaken_s

    # --- The lease ---

    def _ask(self) -> None:
        """While the service is silent, or processes are stopped, ask whether this node still counts."""
        while not self._ended:
            asked_at_s = monotonic()
            silent = asked_at_s - self._heard_at_s > 0.3 * self._lease_s
            if (silent or self._stopped_at_s is not None) and self._vouched():
                self._vouched_at_s = asked_at_s
            sleep(0.1 * self._lease_s)

    def _mind_lease(self) -> None:
        """Stop all processes when there has been no sign for too long that this node counts, and let them go on."""
        now_s = monotonic()
        if self._stopped_at_s is None and now_s - max(self._heard_at_s, self._vouched_at_s) > self._lease_s:
            self._stopped_at_s = now_s
            self._signal_all(signal.SIGSTOP)
            _say(f"nobody has said for {self._lease_s:g} s that this node counts: its processes are stopped")
        elif self._stopped_at_s is not None and self._vouched_at_s > self._stopped_at_s:
            _say(f"this node counts: its processes go on after {now_s - self._stopped_at_s:.1f} s")
            self._stopped_at_s = None
            self._heard_at_s = now_s
            self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        for key, kept in self._kept.items():
            if kept.code is None:
                self._signal(key, number)

    def _signal(self, key: str, number: signal.Signals) -> None:
        """Send a signal to a process and its group; where nobody is asked, to all that it has started, too."""
        process = self._kept[key].process
        if process is not None:
            process.signal(number)
            if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT):
                signal_marked(number, self._mark(key).__eq__)

    def _mark(self, key: str = "") -> str:
        """What is in the environment of all that a process starts; what all marks of this server's begin with."""
        return f"{self._folder}/{key}"

    # --- The line to the service ---

    def _accept(self) -> None:
        opened, _ = self._listener.accept()
        line = m.agent_end(opened)
        self._strangers.add(line)
        self._reactor.watch(line, lambda: self._hear(line))

    def _hear(self, line: m.AgentEnd) -> None:
        try:
            for request in line.receive():
                if line in self._strangers:
                    self._admit(line, request)
                elif line is self._line:
                    self._heard_at_s = self._line_heard_at_s = monotonic()
                    self._obey(request)
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
        self._line, self._logs_left_bytes, self._line_heard_at_s = line, LOGS_ON_THE_WAY_BYTES, monotonic()
        for kept in self._kept.values():
            kept.log.sent, kept.told = None, False
        running = {key: kept.process.pid for key, kept in self._kept.items() if kept.code is None and kept.process}
        self._tell(
            m.Here(
                running=running,
                ended={key: kept.code for key, kept in self._kept.items() if kept.code is not None},
                well=[key for key, kept in self._kept.items() if kept.well],
                reports={key: kept.report for key, kept in self._kept.items() if kept.report},
            )
        )

    def _drop(self, line: m.AgentEnd) -> None:
        self._reactor.unwatch(line)
        line.close()
        self._strangers.discard(line)
        if line is self._line:
            self._line = None

    def _tell(self, answer: m.Answer) -> None:
        if self._line is not None:
            try:
                self._line.send(answer)
            except (OSError, ProtocolError):
                self._drop(self._line)

    # --- Processes ---

    def _obey(self, request: m.Request) -> None:
        match request:
            case m.End():
                self._ended = True
            case m.Ping():
                self._tell(m.Pong())
            case m.More():
                self._logs_left_bytes += request.bytes
                self._logs_at_s = monotonic()
            case m.Hold():
                for slot, holder in request.slots.items():
                    self._hold(slot, holder)
            case m.Start():
                self._start(request.key, request)
            case m.Follow(key=key) if key in self._kept:
                self._kept[key].log.sent = request.offset
                self._logs_at_s = monotonic()
            case m.Signal(key=key) if key in self._kept:
                if self._kept[key].code is None:
                    self._signal(key, signal.Signals(request.signal))
            case m.Forget(key=key):
                kept = self._kept.get(key)
                if kept is not None and kept.code is not None:
                    for old in (kept.log.path, kept.word, report_beside(kept.word)):
                        old.unlink(missing_ok=True)
                    del self._kept[key]

    def _start(self, key: str, request: m.Start) -> None:
        if key in self._kept:
            return
        job, _, worker = key.partition("/")
        logs = self._folder / job / "logs"
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = self._kept[key] = _Kept(NodeLog(logs / f"{worker}.log", sent=0), slots=frozenset(request.slots))
        folder = Path(request.folder or self._folder / job)
        kept.codeless = request.brought and not self._is_there(folder)
        environment = {**self._environment, **request.environment, MARK: self._mark(key), ENDED: str(kept.word)}
        launch = Launch(tuple(request.command), environment, folder, kept.log.path)
        try:
            for old in (kept.log.path, kept.word, report_beside(kept.word)):
                old.unlink(missing_ok=True)
            if kept.codeless:
                kept.code, kept.reason = SLOT_GONE, "could not be started: its code is not on the node any more"
            elif kept.slots <= self._holders.keys():
                kept.process = self._launcher.start(launch)
            else:
                kept.code = SLOT_GONE
        except OSError as problem:
            kept.code, kept.reason = NOT_STARTED, f"could not be started: {problem.strerror or problem}"
        if kept.process is None:
            kept.log.path.touch()
            kept.log.finish()
            self._send_logs()
            return
        self._remember()
        kept.process.begin()
        self._watch_launcher()
        self._reactor.watch(kept.process, lambda: self._over(key))
        self._tell(m.Started(key=key, pid=kept.process.pid))

    def _watch_launcher(self) -> None:
        """End with the warm process once it has started something: its workers do, and making another takes long."""
        if not self._watches_launcher and (warm := self._warm.pid) is not None:
            self._watches_launcher = True
            with contextlib.suppress(ProcessLookupError):
                self.watch(os.pidfd_open(warm))
                return
            self.end()

    def _hold(self, slot: str, identity: m.Identity | None) -> None:
        """A slot is held by this process, or by one that will be named."""
        holder = self._holders.get(slot)
        if holder is not None:
            if holder.identity == identity:
                return
            self._unwatch(holder)
        self._holders[slot] = None
        if identity is None:
            return
        try:
            if not still_runs(asdict(identity)):
                raise ProcessLookupError
            holder = self._holders[slot] = _Holder(identity, os.pidfd_open(identity.pid))
            self._reactor.watch(holder.descriptor, lambda: self._unhold(slot))
        except ProcessLookupError:
            self._unhold(slot)

    def _unhold(self, slot: str) -> None:
        """A slot has been taken away: it must not be used any more."""
        holder = self._holders.pop(slot)
        if holder is not None:
            self._unwatch(holder)
        for key, kept in self._kept.items():
            if slot in kept.slots and kept.process is not None and kept.code is None:
                kept.unheld = True
                self._signal(key, signal.SIGKILL)

    def _unwatch(self, holder: _Holder) -> None:
        self._reactor.unwatch(holder.descriptor)
        os.close(holder.descriptor)

    def _over(self, key: str) -> None:
        kept = self._kept[key]
        assert kept.process is not None
        code = kept.process.exit_code()
        if code is None:
            return
        self._reactor.unwatch(kept.process)
        self._signal(key, signal.SIGKILL)  # whatever it left ends with it
        kept.process.close()
        kept.code, kept.well = SLOT_GONE if kept.unheld else code, kept.word.exists()
        with contextlib.suppress(OSError):
            kept.report = report_beside(kept.word).read_text(encoding="utf-8")[:LONGEST_LINE_BYTES]
        kept.log.finish()
        self._remember()
        self._send_logs()

    def _send_logs(self) -> None:
        """Send what there is of logs, a piece of each in turn, until the service takes no more; and which are over."""
        sending = True
        while sending and self._logs_left_bytes > 0 and self._line is not None:
            sending = False
            for key in list(self._kept):
                sending = self._send_piece(key) or sending
        for key in list(self._kept):
            self._tell_end(key)

    def _send_piece(self, key: str) -> bool:
        """Send the next piece of a log, if there is one; then it is the turn of all others."""
        kept = self._kept[key]
        if kept.log.sent is None or self._logs_left_bytes <= 0 or self._line is None:
            return False
        offset, piece = kept.log.piece(min(PIECE_BYTES, self._logs_left_bytes))
        if piece:
            self._kept[key] = self._kept.pop(key)
            self._logs_left_bytes -= len(piece)
            self._tell(m.Log(key=key, offset=offset, text=piece.decode("latin-1")))
        return bool(piece)

    def _tell_end(self, key: str) -> None:
        """Say how a process has ended, once all of its log has been sent."""
        kept = self._kept[key]
        if kept.code is not None and not kept.told and kept.log.complete and self._line is not None:
            kept.told = True
            self._tell(
                m.Ended(
                    key=key,
                    code=kept.code,
                    reason=kept.reason,
                    well=kept.well,
                    report=kept.report,
                    codeless=kept.codeless,
                )
            )

    # --- What an earlier server left ---

    def _remember(self) -> None:
        living = [
            {**kept.process.identity, "key": key, "slots": sorted(kept.slots)}
            for key, kept in self._kept.items()
            if kept.process is not None and kept.code is None
        ]
        made = self._folder / f"{PROCESSES}.new"
        made.write_text(json.dumps(living), encoding="utf-8")
        made.replace(self._folder / PROCESSES)

    def _introduce_itself(self) -> None:
        """Write down who this is, for the next server of this folder."""
        named = [identity_of(pid) for pid in (os.getpid(), self._warm.pid) if pid is not None]
        (self._folder / SERVER).write_text(json.dumps(named), encoding="utf-8")

    def _end_leftovers(self) -> None:
        """A server that was killed, or hangs, may have left processes: their slots are ours now."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for one in json.loads((self._folder / SERVER).read_text(encoding="utf-8")):
                if still_runs(one) and one["pid"] != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one["pid"], signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for one in json.loads((self._folder / PROCESSES).read_text(encoding="utf-8")):
                end_left(one)
        signal_marked(signal.SIGKILL, lambda mark: mark.startswith(self._mark()))
        for old in self._folder.iterdir():
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)


def _say(text: str) -> None:
    """Something for whoever reads the log of this process."""
    with contextlib.suppress(OSError):
        print(f"geminid: {text}", file=sys.stderr, flush=True)
