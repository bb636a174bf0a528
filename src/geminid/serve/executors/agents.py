"""Processes on the nodes of a cluster: started, watched and signalled through the agent of each node."""

from __future__ import annotations

import hashlib
import secrets
import signal
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from geminid.clock import Clock
from geminid.node import messages as m
from geminid.node.agent import FENCE_S, PING_S
from geminid.node.machine import SLOTS
from geminid.process.launch import Launch
from geminid.serve.executors.agentevents import AgentEvent
from geminid.serve.executors.agentlinks import SILENT_S, AgentLinks, AgentState
from geminid.serve.executors.remoteprocess import RemoteProcess


class AgentPool:
    """The agents of all nodes; a launcher, whose processes run where their slot is (``node/slot``).

    ``folder_on`` says where a job's code was brought to on a node, if it was, and ``holders_on`` by which process there
    each of its slots is held. ``on_end`` is called, before anybody else learns of it, with how a process ended, whether
    its script ended well after training, and its last report if it led.
    """

    def __init__(
        self,
        on_event: Callable[[AgentEvent], None],
        folder_on: Callable[[str, str], str | None] = lambda job, node: None,
        holders_on: Callable[[str], Mapping[str, m.Identity | None]] = lambda node: {},
        on_end: Callable[[str, int, bool, str], None] = lambda key, code, well, report: None,
        *,
        silent_s: float = SILENT_S,
        ping_s: float = PING_S,
        fence_s: float = FENCE_S,
        clock: Clock | None = None,
    ) -> None:
        self._folder_on = folder_on
        self._links = AgentLinks(
            on_event, holders_on, on_end, silent_s=silent_s, ping_s=ping_s, fence_s=fence_s, clock=clock
        )

    def know(self, node: str, host: str, port: int, token: str) -> bool:
        """Connect to a node's agent, unless that is done; an event follows when it is connected."""
        with self._links.lock:
            known = self._links.agents.get(node)
            if known is not None and (known.host, known.port, known.token) == (host, port, token):
                return False
        self._links.do(lambda: self._links.replace(node, AgentState(host, port, token)))
        return False

    def forget(self, node: str) -> None:
        """The engine no longer has a node: its agent ends everything, or its lease runs out."""
        self._links.do(lambda: self._links.give_up(node))

    def doubt(self, node: str) -> bool:
        """A node is not there, and processes of an earlier service may run on it."""
        self._links.do(lambda: self._links.doubts.add(node, None))
        return True

    def leave(self, node: str) -> None:
        """A node's agent is about to end, as it should: disconnect, and report nothing."""
        self._links.do(lambda: self._links.lose(node, report=False))

    def knows(self, node: str) -> bool:
        """Whether a node has an agent, as far as is known."""
        with self._links.lock:
            return node in self._links.agents

    def host(self, node: str) -> str:
        """The address at which other nodes reach a node; empty if it has no agent, as far as is known."""
        with self._links.lock:
            known = self._links.agents.get(node)
        return "" if known is None else known.host

    def wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition holds; whether it does."""
        with self._links.changed:
            return self._links.changed.wait_for(reached, timeout_s)

    def running(self) -> dict[str, str]:
        """The node of each process that runs."""
        with self._links.lock:
            return {key: name for name, node in self._links.agents.items() for key in node.running}

    def runs(self, identity: Mapping[str, Any]) -> bool:
        """Whether a process of an earlier service still runs."""
        with self._links.lock:
            agent = self._links.agents.get(identity.get("node", ""))
            return agent is not None and identity.get("key") in agent.running

    def ended(self) -> dict[str, tuple[str, int]]:
        """Node and exit code of each process that has ended and that nobody watched."""
        with self._links.lock:
            return {key: (name, code) for name, node in self._links.agents.items() for key, code in node.ended.items()}

    def end(self, key: str, node: str) -> None:
        """End a process that nobody watches."""
        self.send(node, m.Follow(key=key, offset=1 << 62))
        self.send(node, m.Signal(key=key, signal=signal.SIGKILL))

    def end_strangers(self, node: str) -> None:
        """End the processes of a node that this service does not watch."""
        with self._links.lock:
            agent, watched = self._links.agents.get(node), self._links.processes
            strangers = [] if agent is None else [key for key in agent.running if key not in watched]
        for key in strangers:
            self.end(key, node)

    def hold(self, node: str) -> None:
        """Send a node's agent the processes that hold its slots; they are also sent with every new connection."""
        self._links.do(lambda: self._links.hold(node))

    def send(self, node: str, request: m.Request) -> None:
        """Send something to a node's agent, if there is a connection."""
        self._links.do(lambda: self._links.send(node, request))

    def start(self, launch: Launch) -> RemoteProcess:
        """A process on the node of its slot, which then is to ``begin``; how that went shows in its end."""
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
        with self._links.lock:
            self._links.processes[key] = process
        return process

    def begin(self, process: RemoteProcess) -> None:
        """Start an announced process. An agent starts it once, however often it is asked to."""
        start = process.start
        assert start is not None
        self._links.do(lambda: self._links.begin(process, start))

    def server(self, node: str) -> str | None:
        """What identifies a node's agent among those that the node has had; None if there is none."""
        with self._links.lock:
            known = self._links.agents.get(node)
        return None if known is None else hashlib.sha256(known.token.encode()).hexdigest()

    def recover(self, identity: Mapping[str, Any], end: Sequence[Any] | None, *, begin: bool) -> RemoteProcess | None:
        """A process that an earlier service announced; None if it is gone.

        If it has ended, ``end`` says how, or its agent does. If its agent does not know it, it was not started: then it
        is, if it is to ``begin``.
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
        with self._links.lock:
            self._links.processes[process.key] = process
        self.begin(process)
        return process

    def adopt(self, identity: Mapping[str, Any]) -> RemoteProcess | None:
        """Watch a process that an earlier service started."""
        node, key, log = identity["node"], identity["key"], Path(identity["log"])
        with self._links.lock:
            known = self._links.agents.get(node)
            if known is None or key not in known.running | known.ended.keys():
                return None
            process = self._links.processes[key] = RemoteProcess(self, node, key, log, identity["pid"])
        process.collected.recall()
        self.send(node, m.Follow(key=key, offset=process.collected.bytes))
        return process

    def drop(self, process: RemoteProcess) -> None:
        """Stop watching a process."""
        with self._links.lock:
            self._links.processes.pop(process.key, None)

    def close(self) -> None:
        """Close all connections; processes stay as they are."""
        self._links.close()

    def end_unknown(self, jobs: Collection[str], keys: Set[str]) -> None:
        """End the processes that no service has written down: none has begun anything yet."""
        running = self.running()
        for key in running.keys() - keys:
            self.end(key, running[key])
