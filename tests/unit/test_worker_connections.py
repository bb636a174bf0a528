"""However many connections a job opens to its supervisor: few stay open, and its workers are heard (real sockets)."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from geminid.supervise import connections, inputs, protocol
from geminid.supervise.channel import Address
from geminid.supervise.connections import MAX_QUEUED, MAX_STRANGERS, Link, WorkerConnections
from geminid.wire.reactor import Reactor


class Job:
    """The connections of a job with two workers, and what they have sent."""

    def __init__(self, folder: Path) -> None:
        self.listener, self.address = Address(path=str(folder / "control")).listen()
        self.reactor = Reactor()
        self.queued = 0
        self.workers = {name: Link(cast(Any, None), "0", f"token of {name}") for name in ("w1", "w2")}
        self.greeted: list[str] = []
        self.heard: list[protocol.Message] = []
        self.connections = WorkerConnections(
            self.listener,
            self.reactor,
            self.workers,
            job="x",
            welcome=protocol.Welcome(heartbeat_s=1.0, orphan_s=1.0, report_s=1.0),
            post=self.take,
            queued=lambda: self.queued,
        )
        self.connections.open()

    def take(self, event: inputs.Event) -> None:
        match event:
            case inputs.WorkerConnected(hello):
                self.greeted.append(hello.worker)
            case inputs.MessageReceived(_, message):
                self.heard.append(message)

    def attend(self, until: Callable[[], bool] = lambda: False, *, rounds: int = 40) -> int:
        """Serve the connections for a while, as their supervisor does; how often somebody was ready."""
        ready = 0
        for _ in range(rounds):
            if until():
                break
            ready += self.reactor.step(0.02)
            self.connections.tick(60.0)
        return ready

    def connect(self) -> socket.socket:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        opened.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # so many wait already
            opened.connect(str(self.address.path))
        return opened

    def hello(self, worker: str) -> bytes:
        return protocol.encode(protocol.Hello(token=self.workers[worker].token, worker=worker, pid=1))

    @property
    def open_connections(self) -> int:
        return self.reactor.watched - self.reactor.watches(self.listener)


@pytest.fixture
def job(tmp_path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.connections.close()
    made.reactor.close()


def test_a_flood_of_connections_leaves_few_open_and_a_worker_gets_through(job):
    worker = job.connect()
    worker.sendall(job.hello("w1"))
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as opened:
        for _ in range(10):
            for _ in range(30):
                opened.enter_context(contextlib.closing(job.connect()))
            job.attend(rounds=30)
            assert job.open_connections <= MAX_STRANGERS + 2 * len(job.workers)
        assert len(os.listdir("/proc/self/fd")) - before <= 300 + MAX_STRANGERS + 2 * len(job.workers)
        assert job.greeted == ["w1"]
        assert job.workers["w1"].connection is not None
    late = job.connect()
    late.sendall(job.hello("w2"))
    job.attend(lambda: "w2" in job.greeted, rounds=200)
    assert job.greeted == ["w1", "w2"]
    worker.close()
    late.close()


def test_the_last_words_of_a_worker_are_heard_behind_a_flood_that_does_not_end(job, monkeypatch):
    """Whoever keeps connecting does not keep the supervisor, which also looks after a worker that has ended."""
    opened = [job.connect() for _ in range(20)]
    last = job.connect()
    last.sendall(job.hello("w1") + protocol.encode(protocol.Failed(reason="out of luck")))
    last.close()
    accepted = 0
    accept = job.listener.accept

    def accept_and_connect() -> tuple[socket.socket, object]:
        nonlocal accepted
        accepted += 1
        assert accepted < 1000, "it would go on for ever"
        opened.append(job.connect())
        return accept()

    class Flooded:
        accept = staticmethod(accept_and_connect)

    monkeypatch.setattr(job.connections, "_listener", Flooded())
    monkeypatch.setattr(job.connections, "_pause_accepting", lambda: None)
    job.connections.receive_last("w1")
    monkeypatch.undo()
    assert protocol.Failed(reason="out of luck") in job.heard
    assert job.open_connections <= MAX_STRANGERS + 2 * len(job.workers)
    for one in opened:
        one.close()


def test_without_descriptors_it_waits_instead_of_trying_again_and_again(job, monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(job.reactor, "now_s", lambda: now_s[0])
    worker = job.connect()
    worker.sendall(job.hello("w1"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert job.attend(rounds=20) == 1  # it would be ready all 20 times
        now_s[0] += 2 * connections.ACCEPT_PAUSE_S
        assert job.attend(rounds=20) == 1
        assert job.greeted == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    now_s[0] += 2 * connections.ACCEPT_PAUSE_S
    job.attend(lambda: bool(job.greeted), rounds=200)
    assert job.greeted == ["w1"]
    worker.close()


def test_what_a_supervisor_cannot_handle_yet_is_not_read_and_its_worker_counts_as_heard(job):
    worker = job.connect()
    worker.sendall(job.hello("w1"))
    job.attend(lambda: bool(job.greeted))
    job.queued = MAX_QUEUED + 1
    worker.sendall(protocol.encode(protocol.Finished(step=1, samples=1)))
    job.attend(lambda: bool(job.heard))
    worker.sendall(protocol.encode(protocol.Finished(step=2, samples=2)))
    assert job.attend(rounds=5) == 0
    job.workers["w1"].heard_at_s = 0.0
    job.connections.tick(60.0)
    assert job.workers["w1"].heard_at_s > 0.0
    job.queued = 0
    job.connections.resume()
    job.attend(lambda: len(job.heard) > 1)
    assert [message.step for message in job.heard] == [1, 2]
    worker.close()


def test_heartbeats_are_kept_with_the_worker_and_passed_on_to_nobody(job):
    worker = job.connect()
    beat = protocol.Heartbeat(generation=1, step=2, phase="forward", phase_s=0.5, usual_s=1.5)
    worker.sendall(job.hello("w1") + protocol.encode(beat))
    job.attend(lambda: job.workers["w1"].activity.phase == "forward")
    assert job.workers["w1"].activity == beat
    assert job.heard == []
    worker.close()
