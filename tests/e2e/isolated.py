"""A Ray cluster whose nodes have networks of their own, which can be cut off and made slow: as root, on Linux."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from geminid.testing.ray_cluster import LoopbackCluster


class IsolatedCluster(LoopbackCluster):
    """The head is at one end of a switch of this machine's, and every node behind a link of its own at the other."""

    def __init__(self, nodes: int, slots: int, *, patience_s: float) -> None:
        super().__init__(nodes, slots, durable=False)
        self._bridge = f"gmd{os.getpid()}"[:12]
        self._network = f"10.{os.getpid() % 250}.{(os.getpid() // 250) % 250}"
        self.address = f"{self._network}.1:{self._port}"
        self._environment["RAY_health_check_failure_threshold"] = str(max(1, round(patience_s / 0.5)))
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        _ip("link", "add", self._bridge, "type", "bridge")
        try:
            _ip("addr", "add", f"{self._network}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for number, name in enumerate(self._names, 2):
                space, near, far = self._space(name), *self._link(name)
                _ip("netns", "add", space)
                _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
                _ip("link", "set", near, "master", self._bridge, "up")
                _ip("-n", space, "addr", "add", f"{self._network}.{number}/24", "dev", far)
                _ip("-n", space, "link", "set", far, "up")
                _ip("-n", space, "link", "set", "lo", "up")
        except BaseException:
            self._remove_networks()
            raise

    def cut(self, name: str) -> None:
        """Nothing gets to a node any more, nor from it."""
        _ip("link", "set", self._link(name)[0], "down")

    def heal(self, name: str) -> None:
        """All is as it was."""
        _ip("link", "set", self._link(name)[0], "up")

    def part(self, one: str, other: str) -> None:
        """Two nodes do not reach each other any more, and all others still do."""
        self._change_routes("add", one, other)

    def rejoin(self, one: str, other: str) -> None:
        """They do again."""
        self._change_routes("del", one, other)

    def _change_routes(self, change: str, one: str, other: str) -> None:
        for name, unreached in ((one, other), (other, one)):
            address = f"{self._network}.{self._names.index(unreached) + 2}/32"
            _ip("-n", self._space(name), "route", change, "blackhole", address)

    def slow(self, name: str, rate: str) -> None:
        """Everything that goes to a node waits its turn on a line of this rate."""
        shaped = ("root", "tbf", "rate", rate, "burst", "2kb", "latency", "30s")
        subprocess.run(["tc", "qdisc", "replace", "dev", self._link(name)[0], *shaped], check=True)

    def close(self) -> None:
        """End everything that was started, and its networks."""
        super().close()
        self._remove_networks()

    def _remove_networks(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", self._space(name)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", self._link(name)[0]], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def _inside(self, name: str) -> Sequence[str]:
        return () if name == "head" else ("ip", "netns", "exec", self._space(name))

    def _space(self, name: str) -> str:
        return f"{self._bridge}-{name}"

    def _link(self, name: str) -> tuple[str, str]:
        return f"{self._bridge}{name}"[:15], "eth0"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
