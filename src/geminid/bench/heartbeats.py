"""What heartbeats cost a service: those that supervisors get from workers, and those that it sends to nodes.

Supervisors and connections are real. One other process plays all workers, which send nothing but heartbeats, and all
nodes' agents; so the CPU time of this process is what a service would spend.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from geminid.bench.timing import timed
from geminid.node.agent import PING_S
from geminid.serve.executors.agents import AgentPool
from geminid.supervise import channel
from geminid.supervise.channel import Address
from geminid.supervise.protocol import Heartbeat, Hello, encode
from geminid.supervise.spec import Patience, WorkerSpec
from geminid.supervise.supervisor import Supervisor
from geminid.testing.launcher import PretendLauncher
from geminid.testing.waiting import wait_until

#: Heartbeats of a worker per second.
BEATS_PER_S = 2.0

#: How long starting all workers may take, in seconds.
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Heard:
    """CPU seconds of supervisors: per second and job whose workers are silent, and per heartbeat."""

    watch_s: float
    beat_s: float


def ping(nodes: int, seconds: float) -> float:
    """CPU seconds of sending one heartbeat to one node."""
    with ExitStack() as stack:
        orders, answers = _other_process(stack)
        port = int(answers.readline())
        lines = AgentPool(lambda event: None)
        stack.callback(lines.close)
        for number in range(nodes):
            lines.know(f"n{number}", "127.0.0.1", port, "")
        print(nodes, file=orders, flush=True)
        answers.readline()  # all nodes are connected
        spent_s = timed(lambda: time.sleep(seconds)).cpu_s
    return spent_s / (nodes * seconds / PING_S)


def measure(jobs: int, workers: int, seconds: float, heartbeat_s: float = 0.5) -> Heard:
    """Connect this many workers to the supervisor of each of this many jobs: first silent, then with heartbeats.

    Supervisors check their timeouts as often as they would if workers sent a heartbeat every ``heartbeat_s``.
    """
    launcher = PretendLauncher()
    with tempfile.TemporaryDirectory(prefix="gmd-") as folder, ExitStack() as stack:
        for number in range(jobs):
            where = Path(folder, f"j{number}")
            patience = Patience(heartbeat=heartbeat_s)
            spec = WorkerSpec(command=("true",), folder=where, environment={}, address=Address(), patience=patience)
            supervisor = stack.enter_context(Supervisor(spec, launcher=launcher))
            supervisor.resize([f"n/{slot}" for slot in range(workers)])
        wait_until(
            lambda: len(launcher.environments) == jobs * workers,
            timeout_s=START_TIMEOUT_S,
            problem="the supervisors did not start all workers",
            every_s=0.05,
        )
        orders, answers = _other_process(stack, str(seconds))
        print(json.dumps([dict(environment) for environment in launcher.environments]), file=orders, flush=True)
        answers.readline()  # all workers are connected
        silent_s = timed(lambda: time.sleep(seconds)).cpu_s
        print("begin", file=orders, flush=True)
        busy = timed(lambda: int(answers.readline()))
    return Heard(silent_s / (seconds * jobs), max(0.0, busy.cpu_s - silent_s) / max(1, busy.result))


def _other_process(stack: ExitStack, *arguments: str) -> tuple[IO[str], IO[str]]:
    """Start the process that plays workers or nodes; its standard input and output."""
    command = [sys.executable, "-m", "geminid.bench.heartbeats", *arguments]
    process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _play_workers(seconds: float) -> None:
    """Connect all workers, wait for the order to begin, and send heartbeats as often as workers do."""
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


def _play_nodes() -> None:
    """Accept the connections of all nodes, and send nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        lines = [listener.accept()[0] for _ in range(int(sys.stdin.readline()))]
        print(len(lines), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _play_workers(float(sys.argv[1]))
    else:
        _play_nodes()
