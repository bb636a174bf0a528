"""Processes on the nodes of a cluster, as a supervisor sees them: started, watched and signalled from here.

One thread has a line to the :class:`~geminid.node.agent.NodeServer` of each node. A line that breaks is
opened again: a server that is there tells what became of its processes meanwhile. One that refuses connections is gone,
and all processes with it: :class:`NodeGone` is told, which is for the executor to act on. It knows which jobs go on
without them. Of a node that was given up because others say that it is gone, processes may run for a while:
:class:`NodeEnded` is told when none does any more. Of one that does not answer, :class:`NodeSilent`.

No node delays the others: nobody waits until a line is open or takes something, and only so much of logs is asked for
that whatever else is told comes through.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from geminid.node import messages as m
from geminid.node.agent import FENCE_S, LOGS_ON_THE_WAY_BYTES, PING_S
from geminid.node.machine import SLOTS
from geminid.process.launch import AdoptedProcess, Launch
from geminid.serve.executors.collected import Collected
from geminid.wire.codec import ProtocolError
from geminid.wire.reactor import Reactor

#: A line that broke is opened again after so long, and an attempt takes at most so long.
AGAIN_S, ATTEMPT_S = 0.2, 2.0

#: A server that may be gone is looked at so often, which is how long such a look may take.
PROBE_S = 0.5

#: A server that has not answered for so long hangs, unless told otherwise. Importing PyTorch may keep it for long.
SILENT_S = 120.0

#: So often, attempts and refusals are looked at, and nodes are told how much more of their logs they may send.
TICK_S = 0.1

#: So much of all logs together is taken in a second.
LOGS_PER_S_BYTES = 16 << 20

PING = m.Ping()


@dataclass(frozen=True, slots=True)
class NodeHere:
    """There is a line to a node's server."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node's server is gone, and its processes with it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """Whatever ran on a node that is gone does not any more: it is proven, or so long ago that it was stopped there."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """A node's server is there and does not answer."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """A node's server does not talk with this service, for this reason: it is of another version."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class CodeGone:
    """What was brought to a node for a job to run is not there any more: nothing could be started on these slots."""

    job_id: str
    node: str
    slots: frozenset[str]


NodeEvent = NodeHere | NodeGone | NodeEnded | NodeSilent | NodeRefused | CodeGone


@dataclass(slots=True)
class _Doubt:
    """A node that is gone, whose processes may still run; where its server was, if that is known."""

    until_s: float
    place: tuple[str, int] | None
    probe_at_s: float = 0.0
    probe: m.ServiceEnd | None = None


@dataclass(slots=True)
class _Node:
    """A node's server, and the line to it, if there is one; ``greeted`` if the server has said on it what there is.

    A line that is not open by ``open_by_s`` is given up. ``logs_bytes`` came on it and may come anew.
    """

    host: str
    port: int
    token: str
    line: m.ServiceEnd | None = None
    greeted: bool = False
    open_by_s: float = inf
    here: bool = False
    running: set[str] = field(default_factory=set)
    ended: dict[str, int] = field(default_factory=dict)
    unsent: dict[str, m.Start] = field(default_factory=dict)
    again_at_s: float = 0.0
    unanswered: int = 0
    logs_bytes: int = 0


class RemoteProcess:
    """A process on a node."""

    def __init__(
        self, nodes: Nodes, node: str, key: str, log: Path, pid: int = 0, start: m.Start | None = None
    ) -> None:
        self._nodes, self.node, self.key, self.log, self.pid = nodes, node, key, log, pid
        self.start = start
        self.collected = Collected(key, log)
        self.is_repeatable = True
        self.on_end: Callable[[int, str], None] = lambda code, reason: None
        self.reason = ""
        self._code: int | None = None
        self._readable, self._wake = socket.socketpair()

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its node, its key there, and for those that were announced, what starts it on which server."""
        known = {"node": self.node, "key": self.key, "pid": self.pid, "log": str(self.log)}
        if self.start is None or not self.is_repeatable:
            return known
        return {**known, "start": msgspec.to_builtins(self.start), "server": self._nodes.server(self.node)}

    def begin(self) -> None:
        """Have its node start it, once: whoever is to know of it has written it down."""
        self._nodes.begin(self)

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._readable.fileno()

    def exit_code(self) -> int | None:
        """The exit code, if it has ended."""
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Have its node send it a signal. On a node that is gone, there is nothing left to end."""
        if self._code is None and self._nodes.knows(self.node):
            self._nodes.tell(self.node, m.Signal(key=self.key, signal=number))
        elif number == signal.SIGKILL:
            self.over(AdoptedProcess.UNKNOWN_CODE, f"node {self.node} is gone")

    def over(self, code: int, reason: str = "") -> None:
        """It has ended."""
        if self._code is None:
            self._code, self.reason = code, reason
            with contextlib.suppress(OSError):
                self._wake.send(b"\0")

    def close(self) -> None:
        """Nobody watches it any more."""
        self._readable.close()
        self._wake.close()
        self._nodes.drop(self)


class Nodes:
    """The lines to all nodes; also a launcher, whose processes run where their slot is (``node/slot``).

    ``folder_on`` says where a job's code was brought to on a node, if it was, and ``holders_on`` by which process there
    each of its slots is held. A server that has not answered for ``silent_s`` hangs.
    ``on_end`` is told, before anybody hears of its end, how a process ended, whether it left word that its script ended
    well after training, and its last report if it led.
    """

    def __init__(
        self,
        on_event: Callable[[NodeEvent], None],
        folder_on: Callable[[str, str], str | None] = lambda job, node: None,
        holders_on: Callable[[str], Mapping[str, m.Identity | None]] = lambda node: {},
        silent_s: float = SILENT_S,
        on_end: Callable[[str, int, bool, str], None] = lambda key, code, well, report: None,
    ) -> None:
        self._on_event, self._folder_on, self._holders_on, self._on_end = on_event, folder_on, holders_on, on_end
        self._silent_s = silent_s
        self._nodes: dict[str, _Node] = {}
        self._processes: dict[str, RemoteProcess] = {}
        self._doubts: dict[str, _Doubt] = {}
        self._printing: dict[str, None] = {}
        self._look_at_s = self._ping_at_s = 0.0
        self._lock = threading.RLock()
        self._reactor = Reactor()
        self._closing = False
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._serve, name="geminid nodes", daemon=True)
        self._thread.start()

    # --- For the executor ---

    def know(self, node: str, host: str, port: int, token: str) -> None:
        """A node's server is there: have a line to it, if there is none yet."""
        with self._lock:
            known = self._nodes.get(node)
            if known is not None and (known.host, known.port, known.token) == (host, port, token):
                return
        self._do(lambda: self._replace(node, _Node(host, port, token)))

    def forget(self, node: str) -> None:
        """A node is gone, as others say: if there is a line to it, it is told to end everything."""
        self._do(lambda: self._give_up(node))

    def doubt(self, node: str) -> None:
        """A node is not there, and processes of an earlier service may run on it."""
        self._do(lambda: self._begin_doubt(node, None))

    def leave(self, node: str) -> None:
        """A node's server is about to end, as it was told to: hang up, and tell nobody."""
        self._do(lambda: self._lose(node, tell=False))

    def knows(self, node: str) -> bool:
        """Whether a node has a server, as far as is known."""
        with self._lock:
            return node in self._nodes

    def host(self, node: str) -> str:
        """The address of a node, by which the others reach it; none if it has no server, as far as is known."""
        with self._lock:
            known = self._nodes.get(node)
        return "" if known is None else known.host

    def wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so; whether it is."""
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def running(self) -> dict[str, str]:
        """The node of each process that runs."""
        with self._lock:
            return {key: name for name, node in self._nodes.items() for key in node.running}

    def runs(self, node: str, key: str) -> bool:
        """Whether a process runs on a node."""
        with self._lock:
            return node in self._nodes and key in self._nodes[node].running

    def ended(self) -> dict[str, tuple[str, int]]:
        """Node and exit code of each process whose end nobody has taken notice of."""
        with self._lock:
            return {key: (name, code) for name, node in self._nodes.items() for key, code in node.ended.items()}

    def end(self, key: str, node: str) -> None:
        """End a process that nobody watches."""
        self.tell(node, m.Follow(key=key, offset=1 << 62))
        self.tell(node, m.Signal(key=key, signal=signal.SIGKILL))

    def end_strangers(self, node: str) -> None:
        """End the processes of a node that nobody here watches."""
        with self._lock:
            strangers = (
                [key for key in self._nodes[node].running if key not in self._processes] if node in self._nodes else []
            )
        for key in strangers:
            self.end(key, node)

    def hold(self, node: str) -> None:
        """Have a node know who holds its slots; it is told at the beginning of every line as well."""
        self._do(lambda: self._hold(node))

    def tell(self, node: str, request: m.Request) -> None:
        """Send something to a node's server, if there is a line."""
        self._do(lambda: self._send(node, request))

    # --- For supervisors ---

    def start(self, launch: Launch) -> RemoteProcess:
        """A process on the node of its slot, which is then told to ``begin``; how that went shows in its end."""
        process = self.announce(launch)
        process.is_repeatable = False  # its supervisor knows what to start instead
        return process

    def announce(self, launch: Launch) -> RemoteProcess:
        """A process that is to be started: its identity can be written down before it is."""
        node, job = launch.slot.rpartition("/")[0], launch.name.partition("/")[0]
        key = f"{launch.name}.{secrets.token_hex(4)}"
        brought = self._folder_on(job, node)
        start = m.Start(
            key=key,
            command=list(launch.command),
            environment=dict(launch.environment),
            folder=brought or ("" if launch.folder == Path() else str(launch.folder)),
            brought=brought is not None,
            slots=[slot for slot in launch.environment.get(SLOTS, "").split(",") if slot],
        )
        process = RemoteProcess(self, node, key, launch.log, start=start)
        with self._lock:
            self._processes[key] = process
        return process

    def begin(self, process: RemoteProcess) -> None:
        """Start an announced process. A node's server starts it once, however often it is told to."""
        start = process.start
        assert start is not None
        self._do(lambda: self._begin(process, start))

    def server(self, node: str) -> str | None:
        """By what a node's server is told from an earlier one of the same node; None if there is none."""
        with self._lock:
            known = self._nodes.get(node)
        return None if known is None else hashlib.sha256(known.token.encode()).hexdigest()

    def recover(self, identity: Mapping[str, Any], end: tuple[int, str] | None, *, begin: bool) -> RemoteProcess | None:
        """A process that an earlier service announced; None if it is gone.

        If it has ended, ``end`` says how, or its server does. If its server has never heard of it, it was not started:
        then it is, if it is to ``begin``.
        """
        if end is not None:
            process = RemoteProcess(self, identity["node"], identity["key"], Path(identity["log"]), identity["pid"])
            process.over(int(end[0]), str(end[1]))
            return process
        process_there = self.adopt(identity)
        if process_there is not None or not begin or self.server(identity["node"]) != identity["server"]:
            return process_there
        start = msgspec.convert(identity["start"], m.Start)
        process = RemoteProcess(self, identity["node"], identity["key"], Path(identity["log"]), start=start)
        with self._lock:
            self._processes[process.key] = process
        self.begin(process)
        return process

    def adopt(self, identity: Mapping[str, Any]) -> RemoteProcess | None:
        """Watch a process that an earlier service started."""
        node, key, log = identity["node"], identity["key"], Path(identity["log"])
        with self._lock:
            known = self._nodes.get(node)
            if known is None or key not in known.running | known.ended.keys():
                return None
            process = self._processes[key] = RemoteProcess(self, node, key, log, identity["pid"])
        process.collected.recall()
        self.tell(node, m.Follow(key=key, offset=process.collected.bytes))
        return process

    def drop(self, process: RemoteProcess) -> None:
        """Nobody watches a process any more."""
        with self._lock:
            self._processes.pop(process.key, None)

    def close(self) -> None:
        """Close all lines; processes stay as they are."""
        self._closing = True
        self._do(lambda: None)
        self._thread.join(5.0)

    # --- The thread ---

    def _do(self, command: Callable[[], None]) -> None:
        self._reactor.call_soon(command)

    def _serve(self) -> None:
        while not self._closing:
            self._reactor.step(TICK_S)
            now_s = monotonic()
            if now_s >= self._look_at_s:  # not whenever one of thousands says something
                self._look_at_s = now_s + TICK_S
                for name, node in list(self._nodes.items()):
                    if node.line is None and now_s >= node.again_at_s:
                        self._connect(name, node)
                    elif node.line is not None and now_s >= node.open_by_s:
                        node.open_by_s = inf
                        if not node.line.is_open:
                            self._hang_up(node)
                self._resolve_doubts(now_s)
                self._ask_for_logs()
            if now_s >= self._ping_at_s:
                self._ping_at_s = now_s + PING_S
                for name, node in list(self._nodes.items()):
                    self._send(name, PING)
                    node.unanswered += 1  # not the time: we may have stood still ourselves
                    if node.unanswered > self._silent_s / PING_S:
                        node.unanswered = 0
                        self._on_event(NodeSilent(name))
        lines = [node.line for node in self._nodes.values()] + [doubt.probe for doubt in self._doubts.values()]
        for line in lines:
            if line is not None:
                self._close(line)
        self._reactor.close()

    def _replace(self, name: str, node: _Node) -> None:
        """A new server on a node: whatever the last one had is gone."""
        if name in self._nodes:
            self._lose(name)
        with self._lock:
            self._nodes[name] = node

    def _connect(self, name: str, node: _Node) -> None:
        """Begin to open a line; nobody waits for it."""
        try:
            line = node.line = m.connect(node.host, node.port)
        except ConnectionRefusedError:
            self._refused(name)
        except OSError:
            node.again_at_s = monotonic() + AGAIN_S
        else:
            node.open_by_s = monotonic() + ATTEMPT_S
            self._reactor.watch(line, lambda: self._hear(name, node, line))
            self._send(name, m.Hello(token=node.token))

    def _refused(self, name: str) -> None:
        """Nobody listens where a node's server was."""
        self._lose(name)
        self._on_event(NodeEnded(name))

    def _lose(self, name: str, *, tell: bool = True) -> None:
        with self._changed:
            node = self._nodes.pop(name, None)
            if node is None:
                return
            self._hang_up(node)
            self._changed.notify_all()
        if tell:
            self._on_event(NodeGone(name))

    def _give_up(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is not None:
            self._send(name, m.End())
            self._lose(name)
            self._begin_doubt(name, (node.host, node.port))

    def _ask_for_logs(self) -> None:
        """Tell nodes whose logs came how much more of them may, in the order in which they came."""
        left_bytes = int(LOGS_PER_S_BYTES * TICK_S)
        for name in list(self._printing):
            node = self._nodes.get(name)
            more_bytes = 0 if node is None else min(node.logs_bytes, left_bytes)
            if node is not None and more_bytes > 0:
                node.logs_bytes -= more_bytes
                left_bytes -= more_bytes
                self._send(name, m.More(bytes=more_bytes))
            if left_bytes <= 0:
                return
            del self._printing[name]

    def _begin_doubt(self, name: str, place: tuple[str, int] | None) -> None:
        self._doubts.setdefault(name, _Doubt(monotonic() + FENCE_S, place))

    def _resolve_doubts(self, now_s: float) -> None:
        """See which servers are proven to be gone."""
        for name, doubt in list(self._doubts.items()):
            if now_s >= doubt.until_s:
                self._settle(name)
            elif doubt.place is not None and now_s >= doubt.probe_at_s:
                doubt.probe_at_s = now_s + PROBE_S
                self._probe(name, doubt, *doubt.place)

    def _probe(self, name: str, doubt: _Doubt, host: str, port: int) -> None:
        """Look whether nobody listens there any more, on a machine that answers; nobody waits for it."""
        if doubt.probe is not None:
            self._close(doubt.probe)
            doubt.probe = None
        try:
            probe = doubt.probe = m.connect(host, port)
        except ConnectionRefusedError:
            self._settle(name)
        except OSError:
            pass  # later, perhaps
        else:
            self._reactor.watch(probe, lambda: self._probed(name, probe))

    def _probed(self, name: str, line: m.ServiceEnd) -> None:
        doubt = self._doubts.get(name)
        if doubt is None or doubt.probe is not line:
            return
        try:
            line.receive()
        except ConnectionRefusedError:
            self._settle(name)
        except (OSError, EOFError, ProtocolError):
            self._close(line)
            doubt.probe = None

    def _settle(self, name: str) -> None:
        """Nothing runs any more on a node that is gone."""
        self._end_doubt(name)
        self._on_event(NodeEnded(name))

    def _end_doubt(self, name: str) -> None:
        doubt = self._doubts.pop(name, None)
        if doubt is not None and doubt.probe is not None:
            self._close(doubt.probe)

    def _hang_up(self, node: _Node) -> None:
        if node.line is not None:
            self._close(node.line)
            node.line = None
        node.again_at_s = 0.0 if node.greeted else monotonic() + AGAIN_S
        node.greeted, node.logs_bytes = False, 0

    def _close(self, line: m.ServiceEnd) -> None:
        self._reactor.unwatch(line)
        line.close()

    def _send(self, name: str, request: m.Request) -> None:
        node = self._nodes.get(name)
        if node is not None and node.line is not None:
            try:
                node.line.send(request)
            except ConnectionRefusedError:
                self._refused(name)
            except (OSError, ProtocolError):
                self._hang_up(node)

    def _hold(self, name: str) -> None:
        holders = self._holders_on(name)
        if holders:
            self._send(name, m.Hold(slots=dict(holders)))

    def _begin(self, process: RemoteProcess, start: m.Start) -> None:
        if process.node not in self._nodes:
            process.over(AdoptedProcess.UNKNOWN_CODE, f"node {process.node} is not there")
        else:
            node = self._nodes[process.node]
            node.running.add(process.key)
            if node.greeted:
                self._send(process.node, start)
            else:
                node.unsent[process.key] = start

    def _hear(self, name: str, node: _Node, line: m.ServiceEnd) -> None:
        if node.line is not line:
            return
        try:
            for answer in line.receive():
                self._listen(name, node, answer)
        except ConnectionRefusedError:
            self._refused(name)
        except (OSError, EOFError, ProtocolError):
            self._hang_up(node)

    def _listen(self, name: str, node: _Node, answer: m.Answer) -> None:
        match answer:
            case m.Here():
                self._greet(name, node, answer)
            case m.Refused(reason=reason):
                self._on_event(NodeRefused(name, reason))
            case m.Pong():  # nothing else shows that it hears, least of all logs
                node.unanswered = 0
            case m.Started(key=key, pid=pid):
                with self._lock:
                    process = self._processes.get(key)
                if process is not None:
                    process.pid = pid
            case m.Log():
                self._take_log(name, node, answer)
            case m.Ended():
                self._take_end(name, node, answer)

    def _take_log(self, name: str, node: _Node, log: m.Log) -> None:
        piece = log.text.encode("latin-1", "replace")
        node.logs_bytes += len(piece)
        if node.logs_bytes >= LOGS_ON_THE_WAY_BYTES // 4:
            self._printing[name] = None
        with self._lock:
            process = self._processes.get(log.key)
        if process is not None:
            process.collected.take(log.offset, piece)

    def _take_end(self, name: str, node: _Node, ended: m.Ended) -> None:
        key = ended.key
        self._on_end(key, ended.code, ended.well, ended.report)
        with self._lock:
            process = self._processes.get(key)
            node.running.discard(key)
            if process is None:
                node.ended[key] = ended.code
        if process is not None:
            node.ended.pop(key, None)
            if ended.codeless and process.start is not None:  # told before anybody hears of its end
                slots = frozenset(f"{name}/{index}" for index in process.start.slots)
                self._on_event(CodeGone(key.partition("/")[0], name, slots))
            process.on_end(ended.code, ended.reason)
            process.over(ended.code, ended.reason)
        self._send(name, m.Forget(key=key))

    def _greet(self, name: str, node: _Node, here: m.Here) -> None:
        for key, code in here.ended.items():
            self._on_end(key, code, key in here.well, here.reports.get(key, ""))
        with self._changed:
            first, node.here, node.greeted, node.unanswered = not node.here, True, True, 0
            node.running, node.ended = set(here.running), dict(here.ended)
            mine = [one for one in self._processes.values() if one.node == name and one.key not in node.unsent]
            self._changed.notify_all()
        self._hold(name)
        for key, request in node.unsent.items():
            node.running.add(key)
            self._send(name, request)
        node.unsent = {}
        for process in mine:
            if process.key in node.running or process.key in node.ended:
                self._send(name, m.Follow(key=process.key, offset=process.collected.bytes))
            elif not first:
                process.over(AdoptedProcess.UNKNOWN_CODE, "it was gone when the line to its node was back")
        if first:
            self._end_doubt(name)
            self._on_event(NodeHere(name))
