"""What it costs to hear workers and to be heard by nodes: real supervisors and lines, and nobody else at the other end.

All workers, which do nothing but say that they live, and all nodes' agents are played by one other process, so that the
time of this one is what a service would spend.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from geminid.serve.executors.nodeserver import PING_S
from geminid.serve.executors.remote import Nodes
from geminid.train import channel
from geminid.train.channel import Address
from geminid.train.jobspec import JobSpec, Patience
from geminid.train.launcher import Launch
from geminid.train.messages import Heartbeat, Hello, encode
from geminid.train.supervisor import Supervisor

#: Workers say that they live so often.
BEATS_PER_S = 2.0


@dataclass(frozen=True, slots=True)
class Heard:
    """The time that supervisors took: of a core for each second of a job that is silent, and for each heartbeat."""

    watch_s: float
    beat_s: float


class _NoProcess:
    """A process that there is not, and that never ends by itself."""

    pid, reason = 0, ""

    def __init__(self) -> None:
        self._readable, self._wake = socket.socketpair()
        self._code: int | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"pid": 0, "started_at": None}

    def begin(self) -> None:
        pass

    def fileno(self) -> int:
        return self._readable.fileno()

    def exit_code(self) -> int | None:
        return self._code

    def signal(self, number: signal.Signals) -> None:
        if self._code is None:
            self._code = -int(number)
            self._wake.send(b"\0")

    def close(self) -> None:
        self._readable.close()
        self._wake.close()


class _NoLauncher:
    """Starts nothing, and remembers what it was to start."""

    def __init__(self) -> None:
        self.workers: list[Mapping[str, str]] = []

    def start(self, launch: Launch) -> _NoProcess:
        names = (channel.CONTROL, channel.TOKEN, channel.WORKER)
        self.workers.append({name: launch.environment[name] for name in names})
        return _NoProcess()

    def adopt(self, identity: Mapping[str, Any]) -> None:
        return None

    def close(self) -> None:
        pass


def ping(nodes: int, seconds: float) -> float:
    """The time of a core that it takes to tell one node once that the service is there."""
    with ExitStack() as stack:
        tell, told = _others(stack)
        port = int(told.readline())
        lines = Nodes(lambda event: None)
        stack.callback(lines.close)
        for number in range(nodes):
            lines.know(f"n{number}", "127.0.0.1", port, "")
        print(nodes, file=tell, flush=True)
        told.readline()  # all lines are there
        spent_s = _spent(lambda: time.sleep(seconds))
    return spent_s / (nodes * seconds / PING_S)


def measure(jobs: int, workers: int, seconds: float, heartbeat_s: float = 0.5) -> Heard:
    """Have supervisors of so many jobs hear so many workers each: first silent ones, then ones that live.

    Supervisors look at the clock as often as they would if workers said that they live every ``heartbeat_s``.
    """
    launcher = _NoLauncher()
    with tempfile.TemporaryDirectory(prefix="gmd-") as folder, ExitStack() as stack:
        for number in range(jobs):
            where = Path(folder, f"j{number}")
            patience = Patience(heartbeat=heartbeat_s)
            spec = JobSpec(command=("true",), folder=where, environment={}, address=Address(), patience=patience)
            supervisor = stack.enter_context(Supervisor(spec, launcher=launcher))
            supervisor.resize([f"n/{slot}" for slot in range(workers)])
        while len(launcher.workers) < jobs * workers:
            time.sleep(0.05)
        tell, told = _others(stack, str(seconds))
        print(json.dumps(launcher.workers), file=tell, flush=True)
        told.readline()  # all have said hello
        silent_s = _spent(lambda: time.sleep(seconds))
        print("begin", file=tell, flush=True)
        sent: list[int] = []
        busy_s = _spent(lambda: sent.append(int(told.readline())))
    return Heard(silent_s / (seconds * jobs), max(0.0, busy_s - silent_s) / max(1, sent[0]))


def _others(stack: ExitStack, *arguments: str) -> tuple[IO[str], IO[str]]:
    """The process that plays everybody else, and how to tell it something and be told."""
    command = [sys.executable, "-m", "geminid.serve.heartbeats", *arguments]
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _spent(work: Callable[[], object]) -> float:
    """The time of a core that all threads take while something is done."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _chorus(seconds: float) -> None:
    """Play all workers: say hello, wait until told, and send heartbeats as often as workers do."""
    lines = []
    for worker in json.loads(sys.stdin.readline()):
        line = Address.parse(worker[channel.CONTROL]).connect(10.0)
        line.sendall(encode(Hello(token=worker[channel.TOKEN], worker=worker[channel.WORKER], pid=0)))
        line.recv(1 << 16)
        lines.append(line)
    print("here", flush=True)
    sys.stdin.readline()
    beat = encode(Heartbeat(generation=0, step=1234, phase="waiting", phase_s=0.2))
    began_s, sent = time.monotonic(), 0
    while time.monotonic() < began_s + seconds:
        lines[sent % len(lines)].sendall(beat)
        sent += 1
        time.sleep(max(0.0, began_s + sent / (BEATS_PER_S * len(lines)) - time.monotonic()))
    print(sent, flush=True)
    sys.stdin.readline()


def _audience() -> None:
    """Play all nodes: let everybody in and say nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        lines = [listener.accept()[0] for _ in range(int(sys.stdin.readline()))]
        print(len(lines), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _chorus(float(sys.argv[1]))
    else:
        _audience()
