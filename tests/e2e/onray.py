"""A service on a Ray cluster, driven through the command line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from live import Live

from geminid.serve.records import JobFormed
from geminid.serve.store import last_entries
from geminid.testing.ray_cluster import LoopbackCluster
from waiting import until


class OnRay(Live):
    """A service on a Ray cluster."""

    def __init__(self, cluster: LoopbackCluster, *options: str) -> None:
        super().__init__()
        self.cluster = cluster
        self.options = ["--executor", "ray", "--address", cluster.address, "--grace", "10"]
        self.options += ["--policy", "geminid:gap=1,refresh=5,fill=true", *options]

    def submit(self, *command: str, **fields: object) -> str:
        return str(self.client.post("jobs", {"name": "test", "command": list(command), **fields})["id"])

    def nodes(self) -> dict[str, dict]:
        return {node["name"]: node for node in self.client.get("nodes")}

    def on(self, job_id: str) -> set[str]:
        """The nodes that a job trains on."""
        return set(self.job(job_id)["placement"] or {})

    def log_files(self, job_id: str) -> set[str]:
        """The logs of a job that were brought here, by name."""
        return {path.name for path in (self.home / "jobs" / job_id / "logs").glob("*.log")}

    def commands(self, node: str) -> list[str]:
        """What runs on a node."""
        return [command for pid in self.cluster.pids(node) if (command := command_of(pid))]

    def story(self, job_id: str) -> str:
        return "\n".join(line["text"] for line in self.client.get(f"jobs/{job_id}/story"))

    def spread(self, name: str, slots: int, *args: object) -> str:
        """A job on so many slots that may do with one; it takes its time until it is told to :meth:`finish`."""
        job = self.unhurried(name, slots, *args)
        decided = self.client.get("status")["decisions"]
        assert self.run("set", job, "--min-slots", 1).returncode == 0
        self.wait_for(lambda: self.client.get("status")["decisions"] > decided)  # and whatever that changed
        self.until(job, lambda job: job["phase"] == "running")
        return job

    def unhurried(self, name: str, slots: int, *args: object) -> str:
        """A job that trains on so many slots, and takes its time, minutes of it, until it is told to :meth:`finish`."""
        slowly = ("--pause", 0.2, "--until", self.home / f"{name}-enough")
        sizes = {"min_slots": slots, "max_slots": slots, "kind": "elastic"}
        job = self.counting(name, "--samples", 400, "--epochs", 60, "--max-batch", 64, *slowly, *args, **sizes)
        self.settled(job, slots)
        return job

    def finish(self, name: str, job_id: str) -> None:
        """Have an unhurried job end; it must have done exactly what it was to, and must not have failed."""
        (self.home / f"{name}-enough").touch()
        done = self.over(job_id)
        assert (done["phase"], done["failures"]) == ("succeeded", 0), self.story(job_id)
        assert self.exactly_once(name, 400, 60)

    def went_on_after_s(self, name: str, job_id: str, killed_at_s: float, without: str, *, restored: bool) -> float:
        """How long after a kill a job with ``--clock`` made its first step without that node."""
        formed = [
            entry.at_s
            for entry in last_entries(self.home, -1, 0)
            if isinstance(entry.record, JobFormed)
            and (entry.record.job_id, entry.record.restored) == (job_id, restored)
            and entry.at_s > killed_at_s
            and without not in entry.record.placement.node_names
        ]
        steps = [float(at_s) for clock in self.home.glob(f"{name}-clock-*") for at_s in clock.read_text().split()]
        return min(at_s for at_s in steps if at_s > formed[0]) - killed_at_s

    def agent(self, node: str) -> int:
        """The process of a node's agent."""
        return next(pid for pid in self.cluster.pids(node) if command_of(pid).startswith("ray::NodeAgent"))

    def bridge(self) -> int:
        """The process of the service that talks with Ray."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        return next(pid for pid in pids if "bridge_process" in command_of(pid))

    def stop_agent(self, node: str) -> None:
        """Have a node's agent hang."""
        os.kill(self.agent(node), signal.SIGSTOP)

    def settled(self, job_id: str, slots: int) -> dict:
        return self.until(job_id, lambda job: job["phase"] == "running" and job["slots"] == slots)

    def wait_for(self, reached, timeout_s: float = 150.0) -> None:
        until(reached, timeout_s, every_s=0.1, seen=lambda: (self.nodes(), self.run("status").stdout))


def command_of(pid: int) -> str:
    """The words of a process; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_stopped(pid: int) -> bool:
    """Whether a process is there and has been stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
