"""What the Ray executor and its bridge cost with many jobs on many nodes, without Ray and without any process.

Both are the real ones. Only whom they talk with is not there: a bridge that gives every slot at once, agents that are
there at once, and supervisors that do as they are told and say nothing.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from geminid.serve.executors.base import Happening
from geminid.serve.executors.bridge import Bridge
from geminid.serve.executors.line import Line
from geminid.serve.executors.ray import RayExecutor, _Bridged
from geminid.serve.executors.remote import NodeHere, Nodes
from geminid.serve.executors.supervised import _Elastic, _Told
from geminid.serve.livejob import LiveJob
from geminid.train import jobevents as j
from geminid.train.supervisor import Supervisor

if TYPE_CHECKING:
    from geminid.serve.executors.raybridge import Bridge as RayBridge
    from geminid.serve.executors.raynodes import SeenNode


class _Talker(Bridge):
    """A bridge that gives every slot, and tells of these nodes."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]], on_document: Callable[[Mapping[str, Any]], None]) -> None:
        self._on_document, self.trouble = on_document, ""
        on_document({"told": "nodes", "nodes": nodes, "found": {}})

    def send(self, document: Mapping[str, Any]) -> int:
        if document["do"] == "lease":
            seat = {"devices": ["0"], "holder": {"pid": 1, "started_at": 1}}
            held = dict.fromkeys(document["slots"], seat)
            self._on_document({"told": "leased", "id": document["id"], "held": held})
        return 1

    def close(self) -> None:
        pass


class _Lines(Nodes):
    """Agents that are there as soon as they are known."""

    def __init__(self, on_event: Callable[[NodeHere], None], *others: object, **options: object) -> None:
        self._tell_event = on_event
        self._known: set[str] = set()

    def know(self, node: str, host: str, port: int, token: str) -> None:
        if node not in self._known:
            self._known.add(node)
            self._tell_event(NodeHere(node))

    def hold(self, node: str) -> None:
        pass

    def end(self, key: str, node: str) -> None:
        pass

    def running(self) -> dict[str, str]:
        return {}

    def end_strangers(self, node: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Quiet:
    """A supervisor that does as it is told."""

    def __init__(self, slots: tuple[str, ...]) -> None:
        self.status = SimpleNamespace(ready=None, slots=slots, reason="", workers=())
        self.has_ended = False

    def __enter__(self) -> _Quiet:
        return self

    def resize(self, slots: Iterable[str]) -> None:
        self.status.slots = tuple(slots)

    def stop(self, *, save: bool) -> None:
        pass

    def detach(self) -> None:
        pass


class ManyJobs:
    """A Ray executor on which jobs run where their plans say."""

    def __init__(self, folder: Path, nodes: Sequence[str], slots: int, jobs: Iterable[LiveJob]) -> None:
        heard: SimpleQueue[Happening] = SimpleQueue()
        seen = [_told(name, slots) for name in nodes]
        self._line = json.dumps({"told": "nodes", "nodes": seen, "found": None})

        class Alone(RayExecutor):
            _lines = _Lines
            _talker = staticmethod(lambda command, on_document: _Talker(seen, on_document))

            def _supervise(self, job: LiveJob, *, adopt: bool) -> Supervisor:
                return cast("Supervisor", _Quiet(()))

        self._executor, self._heard = Alone(folder, "auto"), heard
        self._executor.open(heard.put, [])
        self.jobs = {job.id: job for job in jobs}
        for job in self.jobs.values():
            self._start(job)

    def _start(self, job: LiveJob) -> None:
        """A job gets its slots, and its workers begin."""
        assert job.target is not None
        self._executor.run(job, job.target)
        self._take_all()
        self._executor.flush()
        running = self._elastic(job.id)
        logs = self._executor.folder_of(job.id) / "logs"
        logs.mkdir(exist_ok=True)
        for number, slot in enumerate(running.asked):
            (logs / f"w{number}.log").touch()
            self._tell(job.id, j.WorkerStarted(f"w{number}", slot, 0))
        self._tell(job.id, j.Resized(running.asked))
        self._tell(job.id, _formed(running.asked))

    def _elastic(self, job_id: str) -> _Elastic:
        return cast("_Elastic", self._executor._running[job_id])

    def _tell(self, job_id: str, event: j.JobEvent) -> None:
        self._executor.take(_Told(job_id, self._elastic(job_id).supervisor, event))

    def _take_all(self) -> None:
        try:
            while True:
                self._executor.take(self._heard.get_nowait())
        except Empty:
            pass

    def report(self, job_ids: Iterable[str]) -> None:
        """Jobs tell how far they are."""
        for job_id in job_ids:
            self._tell(job_id, j.Reported(cast("Any", _PROGRESS)))

    def tick(self) -> None:
        """The executor looks at its clock, and not at logs."""
        self._executor._logs_at_s = math.inf
        self._executor.tick()

    def look_at_logs(self) -> None:
        """The executor looks at how large logs are."""
        self._executor._look_at_logs()

    def come_and_go(self, job_ids: Iterable[str]) -> None:
        """Jobs end, and others start in their places."""
        for job_id in job_ids:
            job = self.jobs[job_id]
            self._executor.stop(job, "over")
            for worker, slot in list(self._elastic(job_id).workers.items()):
                self._tell(job_id, j.WorkerEnded(worker, slot, "was not needed any more", expected=True))
            self._tell(job_id, j.JobEnded(j.JobPhase.STOPPED, ""))
            self._start(job)

    def hear_nodes(self) -> None:
        """The bridge tells of all nodes."""
        self._executor.take(_Bridged(json.loads(self._line)))

    def close(self) -> None:
        """Let go of it."""
        self._executor.close(detach=True)


class ManyNodes:
    """A bridge that holds all slots of many nodes."""

    def __init__(self, nodes: Sequence[str], slots: int) -> None:
        from geminid.serve.executors import raybridge
        from geminid.serve.executors.raynodes import Known

        class Alone(raybridge.Bridge):
            def _agent_on(self, node_id: str, name: str) -> dict[str, Any] | None:
                return {"host": "127.0.0.1", "port": 1, "token": name, "version": ""}

        self._alive = [_alive(name, slots) for name in nodes]
        self._free = {node["NodeID"]: {"GPU": 0.0, "CPU": 8.0} for node in self._alive}
        self._ours, self._theirs = socket.socketpair()
        known = Known().after(self._alive)
        self._bridge: RayBridge = Alone(Line(self._ours), "scale", known, 1.0, 1.0)
        self._bridge._leases = {f"{name}/{index}": cast("Any", None) for name in nodes for index in range(slots)}
        self._said: list[SeenNode] = []

    def look(self) -> bool:
        """All that is done at a look at the cluster, but for what Ray does; whether anything has changed."""
        alive = self._bridge._without_successors(self._alive)
        self._bridge._know(alive)
        last, self._said = self._said, self._bridge._see(alive, self._free, frozenset())
        return last != self._said

    def tell(self) -> str:
        """What is told of the nodes when something has changed."""
        return json.dumps({"told": "nodes", "nodes": [asdict(node) for node in self._said], "found": None})

    def close(self) -> None:
        """Let go of it."""
        self._ours.close()
        self._theirs.close()


def _alive(name: str, slots: int) -> dict[str, Any]:
    """A node as Ray tells of it."""
    resources = {"GPU": float(slots), "CPU": 8.0 * slots, "memory": 1e12, "object_store_memory": 1e11}
    labels = {"ray.io/accelerator-type": "A100", "ray.io/node-id": name}
    place = {"NodeManagerAddress": "127.0.0.1", "NodeName": name}
    return {"NodeID": f"{name:0>56}", "Alive": True, **place, "Resources": resources, "Labels": labels}


def _told(name: str, slots: int) -> dict[str, Any]:
    """A node as the bridge tells of it."""
    agent = {"host": "127.0.0.1", "port": 1, "token": f"{name:0>64}", "version": ""}
    return {
        "id": f"{name:0>56}",
        "name": name,
        "address": "127.0.0.1",
        "gpu_type": "a100",
        "slots": slots,
        "unit": "GPU",
        "bundle": {"GPU": 1.0, "CPU": 1.0},
        "accelerator": "A100",
        "rack": None,
        "zone": None,
        "others": 0,
        "draining": False,
        "resting": False,
        "agent": agent,
    }


def _formed(slots: tuple[str, ...]) -> j.GroupFormed:
    return j.GroupFormed(
        generation=1, slots=slots, step=0, pause_s=None, restored=False, stopped_at_s=None, resumed_at_s=0.0
    )


#: How far a job is, as its supervisor tells.
_PROGRESS = SimpleNamespace(
    progress=1000.0,
    samples=1000,
    step=100,
    epoch=0,
    size=4,
    plan=SimpleNamespace(per_slot_batch=32, accumulation_steps=0),
    accumulation_s=0.18,
    step_s=0.2,
    squared_gradient=1.0,
    variance=10.0,
    learning_rate_factor=1.0,
    metrics={"loss": 1.0},
)
