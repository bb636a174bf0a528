"""The executor with a provider of a few lines, in virtual time: what a new engine has to bring, and no more."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence

import pytest

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.node.agent import Lease
from geminid.nodes import NodeGroup
from geminid.serve import records as r
from geminid.serve.executors.agentevents import AgentConnected, AgentGone, NothingRuns
from geminid.serve.executors.base import Executor, ExecutorEvent
from geminid.serve.executors.elasticjob import LATE_REPORT_S, ProgressReports
from geminid.serve.executors.executor import AgentExecutor, Inbox
from geminid.serve.executors.folders import JobFolders
from geminid.serve.executors.launching import Launching
from geminid.serve.executors.nodepool import FORGET_NODE_S, NodePool
from geminid.serve.executors.provider import (
    AgentPlace,
    NodeEvent,
    NodeGone,
    NodeProvider,
    NodeSeen,
    Seat,
    SlotsChanged,
    SlotsLost,
)
from geminid.serve.executors.slotnames import NodeSlotNames
from geminid.serve.executors.starts import SupervisorEvent
from geminid.serve.executors.topology import Topology
from geminid.serve.livejob import LiveJob
from geminid.supervise.events import WorkerStarted
from geminid.supervise.spec import Patience
from geminid.testing.clock import ManualClock
from geminid.testing.ray_doubles import ConnectedAgents, PretendSupervisor


class SmallEngine(NodeProvider):
    """Events are posted as they are; slots are leased when a test says so."""

    names = NodeSlotNames()
    host = "127.0.0.1"

    def __init__(self) -> None:
        self.leased: set[str] = set()
        self.asked: list[Sequence[str]] = []

    def open(self, post: Callable[[ExecutorEvent], None], jobs: Collection[str]) -> None: ...

    def handle(self, event: NodeEvent) -> list[NodeEvent]:
        return [event]

    def lease(self, job_id: str, code: str, slots: Sequence[str]) -> None:
        self.asked.append(slots)

    def seat(self, slot: str) -> Seat | None:
        return Seat() if slot in self.leased else None

    def release(self, slots: Collection[str]) -> None:
        self.leased -= set(slots)

    def close(self, *, detach: bool) -> None: ...


class Cluster:
    """The executor of such an engine, with agents that answer at once."""

    def __init__(self, folder) -> None:
        self.clock, self.engine, inbox = ManualClock(1000.0), SmallEngine(), Inbox()
        agents = ConnectedAgents(lambda event: None)
        agents.doubt = agents.forget = lambda node: None
        nodes = NodePool(self.engine, agents, Topology(), self.clock)
        launching = Launching(
            self.engine, agents, nodes, JobFolders(folder), Patience(), make_supervisor=PretendSupervisor
        )
        self.executor = AgentExecutor(self.engine, nodes, launching, None, None, inbox, self.clock)
        self.executor.open(lambda event: None, [])

    def join(self, name: str) -> list[r.Record]:
        agent = AgentPlace("127.0.0.1", 1, "token")
        self.executor.handle(NodeSeen(NodeGroup(gpu_type="cpu", slots=2, name=name), agent))
        return self.executor.handle(AgentConnected(name))

    def lease(self, *slots: str) -> list[r.Record]:
        self.engine.leased |= set(slots)
        return self.executor.handle(SlotsChanged(frozenset(slots)))

    def run(self, job_id: str, **slots: list[int]) -> list[r.Record]:
        spec = JobSpec(name="x", command=("true",), max_slots=4)
        state = JobState.submitted(job_id=job_id, spec=spec, at_s=0.0)
        job = LiveJob(state=state, elastic=True, target=Placement.of(slots))
        return self.executor.run(job, job.target)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    assert made.join("n") == [r.NodeJoined(node="n", gpu_type="cpu", slots=2)]
    return made


def test_a_node_that_goes_before_the_service_begins_is_recorded_as_gone(tmp_path):
    made = Cluster(tmp_path)
    made.join("n")
    made.executor.handle(AgentGone("n"))
    gone = made.executor.nodes.begin()
    assert gone == [r.NodeLeft(node="n", reason="node n is gone")]


def test_an_executor_has_at_most_eight_methods():
    names = [name for name in vars(Executor) if not name.startswith("_")]
    methods = [name for name in names if not isinstance(vars(Executor)[name], property)]
    assert len(methods) <= 8


def test_a_job_starts_when_its_slots_are_leased_and_grows_when_others_are(cluster):
    assert cluster.run("j1", n=[0]) == []
    assert cluster.engine.asked == [["n/0"]]
    assert cluster.lease("n/0") == [r.JobStarting(job_id="j1", placement=Placement.of({"n": [0]}))]
    cluster.executor.flush()
    assert cluster.run("j1", n=[0, 1]) == []
    assert cluster.lease("n/1") == [r.JobRescaling(job_id="j1", placement=Placement.of({"n": [0, 1]}))]


def test_two_jobs_that_are_to_swap_their_slots_do_not_wait_for_each_other(cluster):
    for number, job_id in enumerate(("j1", "j2")):
        cluster.run(job_id, n=[number])
        cluster.lease(f"n/{number}")
        cluster.executor.flush()
        supervisor = cluster.executor.jobs.running[job_id].supervisor
        cluster.executor.handle(SupervisorEvent(job_id, supervisor, WorkerStarted("w1", f"n/{number}", 1)))
    assert cluster.run("j1", n=[1]) == []  # j2 is expected to leave
    stopping = [record for record in cluster.run("j2", n=[0]) if isinstance(record, r.JobStopping)]
    assert [record.job_id for record in stopping] == ["j1"]


def test_a_job_that_loses_its_node_waits_until_nothing_of_it_runs_there(cluster):
    cluster.join("m")
    cluster.run("j1", n=[0])
    cluster.lease("n/0")
    cluster.executor.flush()
    running = cluster.executor.jobs.running["j1"]
    running.supervisor.lose = running.supervisor.kill = lambda *arguments: None
    cluster.executor.handle(SupervisorEvent("j1", running.supervisor, WorkerStarted("w1", "n/0", 1)))
    left = cluster.executor.handle(AgentGone("n"))
    assert left == [r.NodeLeft(node="n", reason="node n is gone")]
    assert not cluster.engine.leased
    cluster.executor.jobs.drop("j1")
    cluster.engine.leased.add("m/0")
    assert cluster.run("j1", m=[0]) == []
    assert "may still run on n" in cluster.executor.delay_of("j1")
    assert [type(one) for one in cluster.executor.handle(NothingRuns("n"))] == [r.JobStarting]


def test_a_slot_that_is_taken_back_is_not_wanted_any_more(cluster):
    cluster.run("j1", n=[0])
    assert cluster.executor.handle(SlotsLost(("n/0",), "taken back")) == []
    assert "j1" not in cluster.executor.jobs.wanted


def test_a_node_that_is_gone_for_long_is_forgotten(cluster):
    cluster.join("m")
    cluster.executor.handle(NodeGone("n"))
    cluster.executor.handle(AgentGone("n"))
    cluster.clock.at_s += FORGET_NODE_S - 1.0
    assert cluster.executor.tick(dict) == []
    assert cluster.executor.cluster.total_slots == 4
    cluster.clock.at_s += 2.0
    assert cluster.executor.tick(dict) == [r.NodeForgotten(node="n")]
    assert cluster.executor.cluster.total_slots == 2


def test_progress_is_recorded_at_intervals():
    reports, record = ProgressReports(formed_at_s=0.0), r.Noted(level="info", text="stands for progress")
    found = []
    for now_s in range(100, 130):
        reports.latest = record
        found += reports.due(float(now_s))
    assert len(found) == 30 / LATE_REPORT_S


def test_processes_of_a_node_stop_with_its_lease_and_go_on_when_somebody_says_that_it_counts():
    clock = ManualClock(100.0)
    lease = Lease(6.0, lambda: False, clock)
    clock.at_s += 5.0
    assert lease.check() is None
    lease.heard()
    clock.at_s += 5.0
    assert lease.check() is None
    clock.at_s += 1.5
    assert lease.check() is signal.SIGSTOP
    assert lease.check() is None
    lease._vouched_at_s = clock.at_s + 0.1
    assert lease.check() is signal.SIGCONT
    assert not lease.has_ended
