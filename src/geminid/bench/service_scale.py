"""What the service costs on a large cluster: for each of its parts, how often it is needed and how long it takes.

Everything but the machines is real: the store on this disk, the state, the planner with the default policy, the answers
of the interface, the connections of workers, the Ray executor and its bridge (without Ray). There is a job for every
four slots; a job reports as often as live jobs do after their first minutes, and lasts an hour; one node in a hundred
joins or leaves per hour. Times are CPU times; only writing to the disk is measured by the clock.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from geminid.bench import heartbeats
from geminid.bench.executor_scale import ManyJobs, ManyNodes
from geminid.bench.timing import timed
from geminid.clock import Clock
from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.node.agent import PING_S
from geminid.nodes import NodeGroup
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.documents import job_document, node_documents
from geminid.serve.executors.elasticjob import LATE_REPORT_S
from geminid.serve.executors.executor import LOGS_EVERY_S
from geminid.serve.executors.launching import heartbeat_s
from geminid.serve.livejob import LiveJob
from geminid.serve.pacing import MEASUREMENT_GAP_S
from geminid.serve.planner import Planner
from geminid.serve.service import TICK_S
from geminid.serve.state import ServiceState
from geminid.serve.store import Store
from geminid.sim.run import load_policy
from geminid.supervise.protocol import REPORT_S

#: Kinds of jobs with different speeds.
KINDS = 50

#: Slots of a node.
NODE_SLOTS = 8

#: Slots of the cluster per job.
SLOTS_PER_JOB = 4

#: How long a job lasts, in seconds.
JOB_S = 3600.0

#: The part of all nodes that joins or leaves per hour.
NODES_PER_HOUR = 0.01

#: Batches of messages that the service handles per second, at least.
BATCHES_PER_S = 4.0

#: Requests per second for the whole queue, and for all nodes.
LOOKS_PER_S = 0.1

#: Prefix of the parts that run in the bridge's process; all others run in the service's.
BRIDGE = "bridge:"

#: Messages about all nodes when one joins: for the node, and for its agent.
MESSAGES_PER_NODE = 2

#: The default policy, without a minimum time between two decisions.
POLICY = "geminid:gap=0"

#: Jobs with which the cost of workers' heartbeats is measured.
HEARD_JOBS = 100

#: Nodes with which the cost of heartbeats to nodes is measured.
HEARD_NODES = 200

#: How long heartbeats are measured, in seconds; and in a quick run.
HEARD_S = 10.0
QUICK_HEARD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that the service does: how often per second, how long each time, and its share of a core."""

    part: str
    nodes: int
    jobs: int
    per_s: float
    each_ms: float
    share: float


def measure(nodes: int, progress: Callable[[str], None] = lambda text: None, *, heard_s: float = HEARD_S) -> list[Part]:
    """The parts of a service for ``nodes`` nodes, the most expensive first."""
    scene = _Scene(nodes)
    jobs = len(scene.state.jobs)
    reports_per_s = jobs / LATE_REPORT_S
    changes_per_s = jobs / JOB_S
    found: list[Part] = []

    def add(
        part: str,
        per_s: float,
        work: Callable[[], object],
        *,
        before: Callable[[], None] = lambda: None,
        repeat: int = 3,
        at_once: int = 1,
        by_clock: bool = False,
    ) -> None:
        progress(f"{nodes:,} nodes: {part}")
        seconds = []
        for _ in range(repeat):
            before()
            took = timed(work)
            seconds.append(took.wall_s if by_clock else took.cpu_s)
        add_seconds(part, per_s, min(seconds) / at_once)

    def add_seconds(part: str, per_s: float, each_s: float) -> None:
        found.append(Part(part=part, nodes=nodes, jobs=jobs, per_s=per_s, each_ms=1e3 * each_s, share=per_s * each_s))

    some = scene.reports(500)
    progress(f"{nodes:,} nodes: heartbeats")
    slots = nodes * NODE_SLOTS
    heard = heartbeats.measure(HEARD_JOBS, SLOTS_PER_JOB, heard_s, heartbeat_s(slots))
    add_seconds("heartbeats: heard by jobs' supervisors", slots / heartbeat_s(slots), heard.beat_s)
    add_seconds("supervisors: watching their jobs", float(jobs), heard.watch_s)
    add_seconds("nodes: pinged by the service", nodes / PING_S, heartbeats.ping(HEARD_NODES, heard_s))
    add("reports: written to the log", reports_per_s, lambda: scene.write(some), at_once=len(some), by_clock=True)
    add("reports: taken into the state", reports_per_s, lambda: scene.apply(some), at_once=len(some))
    add("batches: a copy of the state for readers", BATCHES_PER_S, scene.state.copy)
    add("decisions: after news only", 1.0 / MEASUREMENT_GAP_S, scene.planner.decide, before=scene.some_news, repeat=2)
    add(
        "decisions: jobs that come and go",
        min(changes_per_s, 1.0),
        scene.planner.decide,
        before=scene.a_job_comes,
        repeat=2,
    )
    nodes_per_s = nodes * NODES_PER_HOUR / 3600.0
    add("nodes that come and go: new plan", nodes_per_s, scene.follow)
    add("interface: the whole queue", LOOKS_PER_S, scene.queue)
    add("interface: all nodes", LOOKS_PER_S, scene.node_list)
    add("snapshot of the state", 1.0 / 300.0, scene.snapshot, repeat=1)
    progress(f"{nodes:,} nodes: executor")
    with scene.executor() as many:
        chosen = list(many.jobs)[: len(some)]
        each = len(chosen)
        add("executor: reports of jobs", jobs / REPORT_S, lambda: many.report(chosen), at_once=each)
        add("executor: jobs that come and go", changes_per_s, lambda: many.come_and_go(chosen), at_once=each)
        add("executor: its look at the clock", 1.0 / TICK_S, many.tick)
        add("executor: sizes of logs", 1.0 / LOGS_EVERY_S, many.look_at_logs)
        add("executor: hearing of all nodes", MESSAGES_PER_NODE * nodes_per_s, many.hear_nodes)
    if importlib.util.find_spec("ray") is not None:
        from geminid.serve.executors.ray.node_agents import LOOK_S

        with scene.bridge() as bridge:
            add(f"{BRIDGE} its look at all nodes, but for Ray", 1.0 / LOOK_S, bridge.look)
            add(f"{BRIDGE} telling of all nodes", MESSAGES_PER_NODE * nodes_per_s, bridge.tell)
    scene.close()
    return sorted(found, key=lambda part: -part.share)


class _Scene:
    """The parts of a service for a cluster of some size, with jobs that have been measured."""

    def __init__(self, nodes: int) -> None:
        self.cluster = Cluster.of_groups([NodeGroup(gpu_type="a100", slots=NODE_SLOTS, count=nodes, prefix="n")])
        names = [node.name for node in self.cluster.nodes]
        self.state, self.clock = ServiceState(), Clock()
        self._folder = tempfile.TemporaryDirectory(prefix="geminid-")
        self._store = Store(Path(self._folder.name))
        types = dict.fromkeys(names, "a100")
        self._apply(r.ServiceStarted(epoch=1, version="0", policy="", cluster={"gpu_types_by_node": types}))
        draw = np.random.default_rng(3)
        per_node = NODE_SLOTS // SLOTS_PER_JOB
        kinds = [self._measured(f"kind{kind}", names[0], float(draw.uniform(0.8, 1.2))) for kind in range(KINDS)]
        self.state.jobs.clear()
        for number in range(nodes * per_node):
            like = kinds[number % KINDS]
            first = SLOTS_PER_JOB * (number % per_node)
            place = Placement.of({names[number // per_node]: range(first, first + SLOTS_PER_JOB)})
            state = replace(like.state, job_id=f"j{number}", placement=place)
            self.state.jobs[f"j{number}"] = replace(like, state=state, target=place)
        self.policy = make_policy(POLICY, load_policy)
        self.planner = Planner(self.cluster, self.policy, "geminid", self.state, self.clock)
        self._count = 0

    def _apply(self, record: r.Record) -> None:
        self.state.apply(self.state.seq + 1, self.clock.now_s(), record)

    def _measured(self, name: str, node: str, slower: float) -> LiveJob:
        """A running job that has reported its speed."""
        spec = JobSpec(name=name, command=("python", "train.py"), owner=name, max_slots=64)
        place = Placement.of({node: range(SLOTS_PER_JOB)})
        self._apply(r.JobSubmitted(job_id=name, spec=spec, elastic=True, request=None))
        self._apply(r.Planned(targets={name: place}, reasons={}))
        self._apply(r.JobStarting(job_id=name, placement=place))
        self._apply(_ready(name, 1e7 * slower))
        self._apply(r.JobFormed(job_id=name, placement=place))
        for batch in (32, 64):
            self._apply(_report(name, batch, 0.1 + 0.002 * batch * slower))
        return self.state.jobs[name]

    def reports(self, count: int) -> list[r.Record]:
        return [_report(f"j{number % len(self.state.jobs)}", 32, 0.2) for number in range(count)]

    def write(self, records: list[r.Record]) -> None:
        self._store.append(self.clock.now_s(), records, self._count)
        self._count += len(records)

    def apply(self, records: list[r.Record]) -> None:
        for record in records:
            self._apply(record)
            self.planner.notice(record)

    def some_news(self) -> None:
        self.apply(self.reports(len(self.state.jobs) // 20))

    def a_job_comes(self) -> None:
        job_id = f"new{self.state.seq}"
        spec = JobSpec(name="kind1", command=("python", "train.py"), owner="u1", max_slots=64)
        self._apply(r.JobSubmitted(job_id=job_id, spec=spec, elastic=True, request=None))
        self.planner.sync([job_id])

    def follow(self) -> None:
        self.planner.follow(self.cluster)

    def queue(self) -> str:
        now_s = self.clock.now_s()
        return json.dumps([job_document(job, now_s) for job in self.state.jobs.values()])

    def node_list(self) -> str:
        return json.dumps(node_documents(self.state, self.cluster))

    def snapshot(self) -> None:
        state = self.state.copy()
        state.seq = self._store.last.seq  # the scene was made without writing its records
        self._store.snapshot(state)

    def executor(self) -> AbstractContextManager[ManyJobs]:
        names = [node.name for node in self.cluster.nodes]
        placed = [
            job for job in self.state.jobs.values() if job.target is not None and job.state.placement == job.target
        ]
        return closing(ManyJobs(Path(self._folder.name, "executor"), names, NODE_SLOTS, placed))

    def bridge(self) -> AbstractContextManager[ManyNodes]:
        return closing(ManyNodes([node.name for node in self.cluster.nodes], NODE_SLOTS))

    def close(self) -> None:
        self._store.close()
        self._folder.cleanup()


def _ready(job_id: str, work: float) -> r.JobReady:
    return r.JobReady(
        job_id=job_id,
        initial_batch=128,
        largest_batch=4096,
        smallest_per_slot=1,
        largest_per_slot=64,
        parameter_count=1_000_000,
        dataset_samples=1_000_000,
        work_samples=int(work),
    )


def _report(job_id: str, batch: int, step_s: float) -> r.JobProgressed:
    return r.JobProgressed(
        job_id=job_id,
        progress=1000.0,
        samples=1000,
        step=100,
        epoch=0,
        slots=SLOTS_PER_JOB,
        nodes=1,
        per_slot_batch=batch,
        accumulation_steps=0,
        accumulation_s=0.9 * step_s,
        step_s=step_s,
        squared_gradient=1.0,
        variance=10.0,
        metrics={"loss": 1.0},
    )
