"""A Ray executor and a bridge with many jobs on many nodes, to measure what they cost without Ray or any process.

Both are the real ones; what they talk to is replaced by the doubles of ``geminid.testing.ray_doubles``.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from geminid.serve.executors.base import ExecutorEvent
from geminid.serve.executors.elasticjob import ElasticJob
from geminid.serve.executors.ray import messages as b
from geminid.serve.executors.ray.executor import ray_executor
from geminid.serve.executors.ray.provider import BridgeAnswer
from geminid.serve.executors.starts import SupervisorEvent
from geminid.serve.livejob import LiveJob
from geminid.supervise import events as j
from geminid.supervise.protocol import Plan, Progress
from geminid.testing.ray_doubles import ConnectedAgents, GrantingBridge, PretendSupervisor, seen_node

if TYPE_CHECKING:
    from geminid.serve.executors.ray.bridge_process import Bridge as RayBridge


class ManyJobs:
    """A Ray executor on which each job runs on the slots of its plan."""

    def __init__(self, folder: Path, nodes: Sequence[str], slots: int, jobs: Iterable[LiveJob]) -> None:
        heard: SimpleQueue[ExecutorEvent] = SimpleQueue()
        seen = [seen_node(name, slots) for name in nodes]
        self._line = b.ANSWERS.encode(b.Nodes(nodes=seen))

        self._executor = ray_executor(
            folder,
            "auto",
            make_agents=ConnectedAgents,
            make_bridge=lambda command, on_answer: GrantingBridge(seen, on_answer),
            make_supervisor=cast("Any", PretendSupervisor),
        )
        self._heard = heard
        self._executor.open(heard.put, [])
        self.jobs = {job.id: job for job in jobs}
        for job in self.jobs.values():
            self._start(job)

    def _start(self, job: LiveJob) -> None:
        """Give a job its slots, and report that its workers train."""
        assert job.target is not None
        self._executor.run(job, job.target)
        self._take_all()
        self._executor.flush()
        running = self._elastic(job.id)
        logs = self._executor.folders.logs_of(job.id)
        logs.mkdir(exist_ok=True)
        for number, slot in enumerate(running.target):
            (logs / f"w{number}.log").touch()
            self._handle(job.id, j.WorkerStarted(f"w{number}", slot, 0))
        self._handle(job.id, j.Resized(running.target))
        self._handle(job.id, _formed(running.target))

    def _elastic(self, job_id: str) -> ElasticJob:
        return cast("ElasticJob", self._executor.jobs.running[job_id])

    def _handle(self, job_id: str, event: j.JobEvent) -> None:
        self._executor.handle(SupervisorEvent(job_id, self._elastic(job_id).supervisor, event))

    def _take_all(self) -> None:
        try:
            while True:
                self._executor.handle(self._heard.get_nowait())
        except Empty:
            pass

    def report(self, job_ids: Iterable[str]) -> None:
        """Have jobs report their progress."""
        for job_id in job_ids:
            self._handle(job_id, _PROGRESS)

    def tick(self) -> None:
        """One periodic call of the executor, without its look at log files."""
        self._executor.logs.skip()
        self._executor.tick(dict)

    def look_at_logs(self) -> None:
        """The executor's look at the sizes of log files."""
        self._executor.logs.look(self._executor.jobs.running)

    def come_and_go(self, job_ids: Iterable[str]) -> None:
        """End jobs, and start others on their slots."""
        for job_id in job_ids:
            job = self.jobs[job_id]
            self._executor.stop(job, "over")
            for worker, slot in list(self._elastic(job_id).workers.items()):
                self._handle(job_id, j.WorkerEnded(worker, slot, "was not needed any more", expected=True))
            self._handle(job_id, j.JobEnded(j.JobPhase.STOPPED, ""))
            self._start(job)

    def hear_nodes(self) -> None:
        """The bridge tells of all nodes."""
        self._executor.handle(BridgeAnswer(b.ANSWERS.decode(self._line)))

    def close(self) -> None:
        """Let go of it."""
        self._executor.close(detach=True)


class ManyNodes:
    """A bridge that holds all slots of many nodes."""

    def __init__(self, nodes: Sequence[str], slots: int) -> None:
        from geminid.serve.executors.ray import bridge_process, node_agents
        from geminid.serve.executors.ray.nodes import Known

        class Placed(node_agents.NodeAgents):
            def place(self, node_id: str, name: str) -> b.AgentPlace | None:
                return b.AgentPlace("127.0.0.1", 1, name)

        self._alive = [_alive(name, slots) for name in nodes]
        self._free = {node["NodeID"]: {"GPU": 0.0, "CPU": 8.0} for node in self._alive}
        self._ours, self._theirs = socket.socketpair()
        known = Known().after(self._alive)
        connection = b.bridge_end(self._ours)
        self._bridge: RayBridge = bridge_process.Bridge(connection, "scale", known, 1.0, 1.0)
        self._bridge._agents = Placed("scale", node_agents.Answers(connection), 1.0, 1.0)
        self._bridge._leases.held = {f"{name}/{index}": cast("Any", None) for name in nodes for index in range(slots)}
        self._said: list[b.SeenNode] = []

    def look(self) -> bool:
        """One look at the cluster, without the calls to Ray; returns whether anything has changed."""
        alive = self._bridge._without_successors(self._alive)
        self._bridge._know(alive)
        last, self._said = self._said, self._bridge._see(alive, self._free, frozenset())
        return last != self._said

    def tell(self) -> bytes:
        """What is reported about the nodes when something has changed."""
        return b.ANSWERS.encode(b.Nodes(nodes=self._said))

    def close(self) -> None:
        """Let go of it."""
        self._ours.close()
        self._theirs.close()


def _alive(name: str, slots: int) -> dict[str, Any]:
    """A node as Ray describes it."""
    resources = {"GPU": float(slots), "CPU": 8.0 * slots, "memory": 1e12, "object_store_memory": 1e11}
    labels = {"ray.io/accelerator-type": "A100", "ray.io/node-id": name}
    place = {"NodeManagerAddress": "127.0.0.1", "NodeName": name}
    return {"NodeID": f"{name:0>56}", "Alive": True, **place, "Resources": resources, "Labels": labels}


def _formed(slots: tuple[str, ...]) -> j.GroupFormed:
    return j.GroupFormed(
        generation=1, slots=slots, step=0, pause_s=None, restored=False, stopped_at_s=None, resumed_at_s=0.0
    )


#: A progress report as a supervisor passes it on.
_PROGRESS = Progress(
    generation=1,
    progress=1000.0,
    samples=1000,
    step=100,
    epoch=0,
    size=4,
    plan=Plan(per_slot_batch=32, accumulation_steps=0),
    total_batch=128,
    accumulation_s=0.18,
    step_s=0.2,
    squared_gradient=1.0,
    variance=10.0,
    learning_rate_factor=1.0,
    metrics={"loss": 1.0},
)
