"""A Ray cluster of several raylets on this machine, each on its own loopback address, for benchmarks and fault tests.

Every process of the cluster carries a mark in its environment, by which it is found and ended. A cleaner process does
that when the process that made the cluster ends, in whatever way. Health checks are short: a node counts as dead within
two seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import Self

import psutil

from geminid.testing.processes import marked_processes, start_cleaner, wait_for_owner
from geminid.testing.waiting import wait_until

#: The environment variable that marks all processes of a cluster.
MARK = "GEMINID_RAY_MARK"

#: The environment variable with the name of the node that a process belongs to.
NODE = "GEMINID_RAY_NODE"

#: How long a start may take on a busy machine, in seconds.
START_TIMEOUT_S = 240.0

#: Ray's health checks: every half second, and a node is dead after three failures.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


class LoopbackCluster:
    """A head, and ``nodes`` nodes ``n1`` … with ``slots`` CPU slots each, in ``racks`` in rotation.

    The head has ``head_slots`` of its own, usually none. With ``durable``, its tables survive :meth:`restart_head`.
    """

    def __init__(
        self, nodes: int, slots: int, *, durable: bool = True, racks: Sequence[str] = (), head_slots: int = 0
    ) -> None:
        self._count, self._slots, self._racks = nodes, slots, racks
        self._head_options: tuple[str, ...] = ()
        self._head_slots = head_slots
        self._started: list[subprocess.Popen[bytes]] = []
        self._mark = secrets.token_hex(8)
        self._folder = Path(tempfile.mkdtemp(prefix="gray-"))  # short: Ray keeps sockets in it
        middle = f"{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}"
        self._network = f"127.{middle}"
        with socket.create_server((f"{self._network}.1", 0)) as probe:
            self._port = int(probe.getsockname()[1])
        self.address = f"{self._network}.1:{self._port}"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            **HEALTH,
            MARK: self._mark,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_AUTO_CONNECT": "0",
            "OMP_NUM_THREADS": "1",
        }
        self._cleaner = start_cleaner("geminid.testing.ray_cluster", self._mark, self._folder)
        if durable:
            self._environment |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self._folder / "gcs")}

    def __enter__(self) -> Self:
        """Start the head, then all nodes."""
        try:
            self.start_head()
            for number in range(1, self._count + 1):
                self.start_node(f"n{number}", wait=False)
            if self._count:
                self.wait_for({"head", *(f"n{number}" for number in range(1, self._count + 1))})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that was started."""
        self.close()

    def start_head(self) -> None:
        """Start the head."""
        self._start(
            *("--head", "--port", str(self._port), "--node-name", "head", "--num-gpus", "0"),
            *("--num-cpus", str(self._head_slots)),
            *(("--resources", json.dumps({"geminid_slot": self._head_slots})) if self._head_slots else ()),
            *("--include-dashboard=false", "--temp-dir", str(self._folder), "--disable-usage-stats"),
            *self._head_options,
            host=f"{self._network}.1",
            name="head",
        )
        self._until(self._answers, "the head of the Ray cluster did not come up")

    def start_node(
        self,
        name: str,
        *,
        wait: bool = True,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a node, or start it again: with CPU slots, or with this many GPUs that it only claims to have."""
        before, number = len(self._sockets()), int(name.removeprefix("n"))
        racks = {"geminid.io/rack": self._racks[(number - 1) % len(self._racks)]} if self._racks else {}
        labels = {**racks, **(labels or {})}
        slots = ("--num-gpus", str(gpus)) if gpus else ("--resources", json.dumps({"geminid_slot": self._slots}))
        self._start(
            *("--address", self.address, "--node-name", name, "--object-store-memory", str(80 << 20)),
            *("--num-cpus", str(self._slots), *slots),
            *(("--labels", ",".join(f"{key}={value}" for key, value in labels.items())) if labels else ()),
            host=f"{self._network}.{number + 1}",
            name=name,
            environment=environment,
        )
        # A raylet takes socket names that are free: the next raylet may only look for one after this one has its own.
        self._until(lambda: len(self._sockets()) > before, f"the raylet of {name} did not start")
        if wait:
            self.wait_for({name})

    def restart_head(self, away_s: float = 2.0, *, wait: bool = True) -> None:
        """Kill the head's control store and start it again; unless its tables are durable, it then knows no node.

        ``ray start --head`` would refuse: on one machine it sees the other nodes' raylets and takes them for a head.
        The process that watches the store is stopped, because it would end the head's raylet too.
        """
        store = next(pid for pid, command in self._processes("head") if "gcs/gcs_server" in command)
        command, environment = psutil.Process(store).cmdline(), psutil.Process(store).environ()
        for pid, words in self._processes("head"):
            if "ray.scripts.scripts" in words:
                os.kill(pid, signal.SIGSTOP)
        os.kill(store, signal.SIGKILL)
        sleep(away_s)
        again = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started.append(again)
        if wait:
            self._until(self._answers, "the head of the Ray cluster did not come back")

    def raylet(self, name: str) -> int:
        """The process id of a node's raylet."""
        return next(pid for pid, command in self._processes(name) if "raylet/raylet" in command)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a node's raylet."""
        os.kill(self.raylet(name), number)

    def kill(self, name: str) -> None:
        """End everything of a node or the head at once, agents and training processes included."""
        for pid, _ in self._processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def drain(self, name: str, within_s: float = 120.0) -> None:
        """Announce to Ray that a node will go away."""
        code = (
            "from geminid.serve.executors.ray.private import control_store\n"
            "import time\n"
            f"node = next(n['NodeID'] for n in ray.nodes() if n['Alive'] and n['NodeName'] == {name!r})\n"
            f"control_store().drain_node(node, 2, 'test', int(1000 * (time.time() + {within_s})))\n"
        )
        self.run(code)

    def pids(self, name: str) -> list[int]:
        """All processes of a node."""
        return [pid for pid, _ in self._processes(name)]

    def alive(self) -> set[str]:
        """The nodes that Ray says are alive."""
        nodes = self.run(
            "import ray; print(json.dumps([n['NodeName'] for n in ray.nodes() if n['Alive']]))", timeout_s=20.0
        )
        try:
            return set(json.loads(nodes))
        except ValueError:  # it failed earlier, or something else was printed last
            return set()

    def wait_for(self, names: set[str]) -> None:
        """Wait until these nodes are alive."""
        self._until(lambda: names <= self.alive(), f"not all of {', '.join(sorted(names))} came up")

    def run(self, code: str, *, timeout_s: float = 60.0) -> str:
        """Run Python code in a process that is connected to the cluster; returns the last line that it prints."""
        host = self.address.partition(":")[0]
        connect = (
            "import json, ray\n"
            f"ray.init(address={self.address!r}, _node_ip_address={host!r}, log_to_driver=False, namespace='others')\n"
        )
        try:
            done = subprocess.run(
                [sys.executable, "-c", connect + code],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
        lines = done.stdout.strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End everything that was started, and remove its files."""
        self._cleaner.communicate()
        for process in self._started:
            process.wait()

    def _start(self, *arguments: str, host: str, name: str, environment: Mapping[str, str] | None = None) -> None:
        log = self._folder / f"{name}.out"
        command = [
            *self._inside(name),
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--node-ip-address",
            host,
            *arguments,
            "--block",
        ]
        with log.open("ab") as out:
            started = subprocess.Popen(
                command,
                env={**self._environment, **(environment or {}), NODE: name},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(started)

    def _inside(self, name: str) -> Sequence[str]:
        """What a node's command begins with; subclasses run nodes in other network namespaces."""
        return ()

    def _sockets(self) -> list[Path]:
        return list(self._folder.glob("session_2*/sockets/raylet*"))

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
        except OSError:
            return False
        return "head" in self.alive()

    def _until(self, reached: Callable[[], bool], problem: str) -> None:
        wait_until(reached, timeout_s=START_TIMEOUT_S, problem=f"{problem}; see {self._folder}", every_s=0.2)

    def _processes(self, name: str) -> list[tuple[int, str]]:
        """Processes of one node."""
        return marked_processes(f"{MARK}={self._mark}", f"{NODE}={name}")


def clean_up(mark: str, folder: Path) -> None:
    """End everything of the cluster with this mark, until nothing is left of it, and remove its files."""
    while processes := marked_processes(f"{MARK}={mark}"):
        for pid, _ in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    wait_for_owner()
    clean_up(sys.argv[1], Path(sys.argv[2]))
