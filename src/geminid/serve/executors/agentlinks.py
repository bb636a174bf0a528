"""Connections with the agents of all nodes, in one thread.

A connection that breaks is opened again: an agent that is there says what became of its processes meanwhile. One that
refuses connections is gone, and all processes with it. No node delays the others: nobody waits until a connection is
open or takes something, and logs are requested in small amounts, so that all other messages come through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from geminid.clock import Clock
from geminid.node import messages as m
from geminid.node.agent import FENCE_S, LOGS_ON_THE_WAY_BYTES, PING_S
from geminid.process.launch import UNKNOWN_CODE
from geminid.serve.executors.agentevents import (
    AgentConnected,
    AgentEvent,
    AgentGone,
    AgentRefused,
    AgentSilent,
    CodeGone,
    NothingRuns,
)
from geminid.serve.executors.doubts import Doubts
from geminid.serve.executors.remoteprocess import RemoteProcess
from geminid.wire.codec import ProtocolError
from geminid.wire.reactor import Reactor

#: A connection that broke is opened again after this time.
RECONNECT_S = 0.2

#: Longest time for opening a connection.
CONNECT_S = 2.0

#: An agent that has not answered for this time hangs. Importing PyTorch may keep it busy for long.
SILENT_S = 120.0

#: Time between two looks at connections that are to be opened, and at how much of logs may be sent.
TICK_S = 0.1

#: Total rate at which logs are taken, in bytes per second.
LOG_BYTES_PER_S = 16 << 20


@dataclass(slots=True)
class AgentState:
    """A node's agent, and the connection with it, if there is one; ``greeted`` once it has said what it runs.

    A connection that is not open by ``open_by_s`` is given up. ``logs_bytes`` came on it and may come again.
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


class AgentLinks:
    """The connections. Everything happens in its thread (``do``); others read ``agents`` and ``processes`` locked.

    ``holders_on`` says by which process each leased slot of a node is held. An agent that has not answered for
    ``silent_s`` hangs. ``on_end`` is called, before anybody else learns of it, with how a process ended, whether its
    script ended well after training, and its last report if it led.
    """

    def __init__(
        self,
        on_event: Callable[[AgentEvent], None],
        holders_on: Callable[[str], Mapping[str, m.Identity | None]],
        on_end: Callable[[str, int, bool, str], None],
        *,
        silent_s: float = SILENT_S,
        ping_s: float = PING_S,
        fence_s: float = FENCE_S,
        clock: Clock | None = None,
    ) -> None:
        self._on_event, self._holders_on, self._on_end = on_event, holders_on, on_end
        self._silent_s, self._ping_s, self._clock = silent_s, ping_s, clock or Clock()
        self.agents: dict[str, AgentState] = {}
        self.processes: dict[str, RemoteProcess] = {}
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.reactor = Reactor()
        self.doubts = Doubts(self.reactor, self._clock, lambda node: on_event(NothingRuns(node)), fence_s)
        self._printing: dict[str, None] = {}
        self._look_at_s = self._ping_at_s = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="geminid agents", daemon=True)
        self._thread.start()

    def do(self, command: Callable[[], None]) -> None:
        """Have something done in the thread."""
        self.reactor.call_soon(command)

    def close(self) -> None:
        """Close all connections; processes stay as they are."""
        self._closing = True
        self.do(lambda: None)
        self._thread.join(5.0)

    def _serve(self) -> None:
        while not self._closing:
            self.reactor.step(TICK_S)
            now_s = self._clock.monotonic_s()
            if now_s >= self._look_at_s:  # not whenever one of thousands sends something
                self._look_at_s = now_s + TICK_S
                for name, node in list(self.agents.items()):
                    if node.line is None and now_s >= node.again_at_s:
                        self._connect(name, node)
                    elif node.line is not None and now_s >= node.open_by_s:
                        node.open_by_s = inf
                        if not node.line.is_open:
                            self._hang_up(node)
                self.doubts.resolve()
                self._ask_for_logs()
            if now_s >= self._ping_at_s:
                self._ping_at_s = now_s + self._ping_s
                for name, node in list(self.agents.items()):
                    self.send(name, m.Ping())
                    node.unanswered += 1  # not the time: we may have stood still ourselves
                    if node.unanswered > self._silent_s / self._ping_s:
                        node.unanswered = 0
                        self._on_event(AgentSilent(name))
        for node in self.agents.values():
            if node.line is not None:
                self._close(node.line)
        self.doubts.close()
        self.reactor.close()

    def replace(self, name: str, node: AgentState) -> None:
        """A new agent on a node: whatever the last one had is gone."""
        if name in self.agents:
            self.lose(name)
        with self.lock:
            self.agents[name] = node

    def _connect(self, name: str, node: AgentState) -> None:
        """Begin to open a connection; nobody waits for it."""
        try:
            line = node.line = m.connect(node.host, node.port)
        except ConnectionRefusedError:
            self._refused(name)
        except OSError:
            node.again_at_s = self._clock.monotonic_s() + RECONNECT_S
        else:
            node.open_by_s = self._clock.monotonic_s() + CONNECT_S
            self.reactor.watch(line, lambda: self._receive(name, node, line))
            self.send(name, m.Hello(token=node.token))

    def _refused(self, name: str) -> None:
        """Nothing listens where a node's agent was."""
        self.lose(name)
        self._on_event(NothingRuns(name))

    def lose(self, name: str, *, report: bool = True) -> None:
        """The agent of a node is gone; disconnect, and report it or not."""
        with self.changed:
            node = self.agents.pop(name, None)
            if node is None:
                return
            self._hang_up(node)
            self.changed.notify_all()
        if report:
            self._on_event(AgentGone(name))

    def give_up(self, name: str) -> None:
        """A node is gone: have its agent end everything, if it can be reached, and wait until nothing runs there."""
        node = self.agents.get(name)
        if node is not None:
            self.send(name, m.End())
            self.lose(name)
            self.doubts.add(name, (node.host, node.port))

    def _ask_for_logs(self) -> None:
        """Say to nodes whose logs came how much more may come, in the order in which they came."""
        left_bytes = int(LOG_BYTES_PER_S * TICK_S)
        for name in list(self._printing):
            node = self.agents.get(name)
            more_bytes = 0 if node is None else min(node.logs_bytes, left_bytes)
            if node is not None and more_bytes > 0:
                node.logs_bytes -= more_bytes
                left_bytes -= more_bytes
                self.send(name, m.More(bytes=more_bytes))
            if left_bytes <= 0:
                return
            del self._printing[name]

    def _hang_up(self, node: AgentState) -> None:
        if node.line is not None:
            self._close(node.line)
            node.line = None
        node.again_at_s = 0.0 if node.greeted else self._clock.monotonic_s() + RECONNECT_S
        node.greeted, node.logs_bytes = False, 0

    def _close(self, line: m.ServiceEnd) -> None:
        self.reactor.unwatch(line)
        line.close()

    def send(self, name: str, request: m.Request) -> None:
        """Send something to the agent of a node, if there is a connection."""
        node = self.agents.get(name)
        if node is not None and node.line is not None:
            try:
                node.line.send(request)
            except ConnectionRefusedError:
                self._refused(name)
            except (OSError, ProtocolError):
                self._hang_up(node)

    def hold(self, name: str) -> None:
        """Send the agent of a node the processes that hold its slots."""
        holders = self._holders_on(name)
        if holders:
            self.send(name, m.Hold(slots=dict(holders)))

    def begin(self, process: RemoteProcess, start: m.Start) -> None:
        """Have a process started on its node, now or as soon as its agent is connected."""
        if process.node not in self.agents:
            process.over(UNKNOWN_CODE, f"node {process.node} is not there")
        else:
            node = self.agents[process.node]
            node.running.add(process.key)
            if node.greeted:
                self.send(process.node, start)
            else:
                node.unsent[process.key] = start

    def _receive(self, name: str, node: AgentState, line: m.ServiceEnd) -> None:
        if node.line is not line:
            return
        try:
            for answer in line.receive():
                self._handle(name, node, answer)
        except ConnectionRefusedError:
            self._refused(name)
        except (OSError, EOFError, ProtocolError):
            self._hang_up(node)

    def _handle(self, name: str, node: AgentState, answer: m.Answer) -> None:
        match answer:
            case m.Here():
                self._greet(name, node, answer)
            case m.Refused(reason=reason):
                self._on_event(AgentRefused(name, reason))
            case m.Pong():  # nothing else shows that it reads, least of all logs
                node.unanswered = 0
            case m.Started(key=key, pid=pid):
                with self.lock:
                    process = self.processes.get(key)
                if process is not None:
                    process.pid = pid
            case m.Log():
                self._store_log(name, node, answer)
            case m.Ended():
                self._process_ended(name, node, answer)

    def _store_log(self, name: str, node: AgentState, log: m.Log) -> None:
        piece = log.text.encode("latin-1", "replace")
        node.logs_bytes += len(piece)
        if node.logs_bytes >= LOGS_ON_THE_WAY_BYTES // 4:
            self._printing[name] = None
        with self.lock:
            process = self.processes.get(log.key)
        if process is not None:
            process.collected.take(log.offset, piece)

    def _process_ended(self, name: str, node: AgentState, ended: m.Ended) -> None:
        key = ended.key
        self._on_end(key, ended.code, ended.well, ended.report)
        with self.lock:
            process = self.processes.get(key)
            node.running.discard(key)
            if process is None:
                node.ended[key] = ended.code
        if process is not None:
            node.ended.pop(key, None)
            if ended.codeless and process.start is not None:  # reported before its end is
                slots = frozenset(f"{name}/{index}" for index in process.start.slots)
                self._on_event(CodeGone(key.partition("/")[0], name, slots))
            process.on_end(ended.code, ended.reason)
            process.over(ended.code, ended.reason)
        self.send(name, m.Forget(key=key))

    def _greet(self, name: str, node: AgentState, here: m.Here) -> None:
        for key, code in here.ended.items():
            self._on_end(key, code, key in here.well, here.reports.get(key, ""))
        with self.changed:
            first, node.here, node.greeted, node.unanswered = not node.here, True, True, 0
            node.running, node.ended = set(here.running), dict(here.ended)
            mine = [one for one in self.processes.values() if one.node == name and one.key not in node.unsent]
            self.changed.notify_all()
        self.hold(name)
        for key, request in node.unsent.items():
            node.running.add(key)
            self.send(name, request)
        node.unsent = {}
        for process in mine:
            if process.key in node.running or process.key in node.ended:
                self.send(name, m.Follow(key=process.key, offset=process.collected.bytes))
            elif not first:
                process.over(UNKNOWN_CODE, "it was gone when the connection with its node was back")
        if first:
            self.doubts.drop(name)
            self._on_event(AgentConnected(name))
