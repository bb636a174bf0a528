"""The service's thread with an executor that only pretends: what it writes, decides, refuses and survives."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from geminid.cluster import Cluster
from geminid.configuration import Configuration, Placement
from geminid.executionplan import ExecutionPlan
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.policies.base import ClusterView, Decision, Policy
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.forecaster import Forecaster
from geminid.serve.inbox import Refused
from geminid.serve.livejob import LiveJob
from geminid.serve.retention import Retention
from geminid.serve.service import Service
from geminid.serve.store import DATABASE, Store, StoreTaken, last_entries
from geminid.serve.targets import name_slots
from geminid.serve.translation import facts_of
from geminid.testing.executor import PretendExecutor
from waiting import until


def spec(name: str = "x", **fields) -> JobSpec:
    return JobSpec(name=name, command=("true",), **fields)


@pytest.fixture(autouse=True)
def _tick_often(monkeypatch):
    """Nothing here is about how often the service looks at its clock."""
    monkeypatch.setattr("geminid.serve.service.TICK_S", 0.02)


class Running:
    """A service for the length of a ``with`` block."""

    def __init__(
        self, folder: Path, policy: Policy | str = "fifo", executor: PretendExecutor | None = None, **options
    ) -> None:
        self.executor = executor or PretendExecutor()
        self.store = Store(folder)
        made = make_policy(policy) if isinstance(policy, str) else policy
        self.service = Service(self.store, self.executor, made, "a policy", gap_s=0.0, **options)

    def __enter__(self) -> Running:
        self.service.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.service.end(detach=True)
        self.store.close()

    def submit(self, **fields) -> str:
        return self.service.operations.submit(spec(**fields), "ann").result(10).id

    def until(self, reached: Callable[[dict[str, LiveJob]], bool]) -> dict[str, LiveJob]:
        until(lambda: reached(self.service.published.state.jobs), seen=lambda: self.service.published.state.jobs)
        self.service.published.state.check()
        return self.service.published.state.jobs

    def note(self, text: str) -> None:
        def notes() -> list[str]:
            return [note for _, _, note in self.service.published.state.notes]

        until(lambda: any(text in note for note in notes()), seen=notes)


def test_jobs_wait_run_and_end(tmp_path):
    with Running(tmp_path) as running:
        first, second = running.submit(min_slots=3), running.submit(min_slots=2)
        jobs = running.until(lambda jobs: jobs[first].phase is JobPhase.RUNNING)
        assert jobs[second].phase is JobPhase.PENDING
        running.executor.report(r.JobEnded(job_id=first, how="succeeded"))
        running.until(lambda jobs: jobs[second].phase is JobPhase.RUNNING)
        with pytest.raises(Refused, match="is over: it succeeded"):
            running.service.operations.request(first, "pause", "ann").result(10)
        running.service.operations.request(second, "pause", "ann").result(10)
        running.until(lambda jobs: jobs[second].phase is JobPhase.PAUSED)
        running.service.operations.request(second, "run", "ann").result(10)
        running.until(lambda jobs: jobs[second].phase is JobPhase.RUNNING)
        running.executor.report(r.JobFormed(job_id=first, placement=Placement.of({"cpu-0": [0]})))  # late, and ignored
        running.service.operations.request(second, "cancel", "ann").result(10)
        jobs = running.until(lambda jobs: jobs[second].phase is JobPhase.CANCELLED)
        assert jobs[first].phase is JobPhase.SUCCEEDED
    assert running.executor.started == [first, second, second]


def test_a_crash_is_retried_after_a_while_and_then_given_up(tmp_path):
    with Running(tmp_path) as running:
        job = running.submit(max_retries=1)
        running.until(lambda jobs: jobs[job].phase is JobPhase.RUNNING)
        running.executor.report(r.JobEnded(job_id=job, how="crashed", reason="segmentation fault"))
        jobs = running.until(lambda jobs: jobs[job].state.failures == 1)
        assert jobs[job].held_until_s > jobs[job].state.updated_at_s
        running.until(lambda jobs: jobs[job].phase is JobPhase.RUNNING)
        running.executor.report(r.JobEnded(job_id=job, how="crashed", reason="segmentation fault"))
        jobs = running.until(lambda jobs: jobs[job].phase is JobPhase.FAILED)
        assert jobs[job].state.reason == "segmentation fault"


def test_quotas_and_cordons_hold_and_elastic_jobs_give_way(tmp_path, monkeypatch):
    for name in ("SETTLE_S", "SETTLE_PAUSES"):
        monkeypatch.setattr(f"geminid.serve.protection.{name}", 0.0)

    @dataclass
    class Greedy(Policy):
        name, paper, objective = "greedy", "", ""

        def decide(self, view: ClusterView) -> Decision:
            free, given = sum(view.usable_slots), {}
            for job in view.jobs:
                slots = min(job.facts.max_slots, free)
                if slots >= job.facts.min_slots:
                    given[job.id] = Configuration(gpu_type="cpu", nodes=1, slots=slots)
                    free -= slots
            return Decision(given)

    with Running(tmp_path, Greedy()) as running:
        running.service.operations.set_quota("owner", "ann", 3, "op").result(10)
        job = running.submit()
        running.until(lambda jobs: jobs[job].state.num_slots == 3 and jobs[job].phase is JobPhase.RUNNING)
        running.service.operations.set_quota("owner", "ann", None, "op").result(10)
        running.service.operations.cordon("cpu-0", 0, True, "op").result(10)
        jobs = running.until(lambda jobs: 0 not in _slots(jobs[job]))
        assert _slots(jobs[job]) == (1, 2, 3)
        running.service.operations.drain("cpu-0", True, "op").result(10)
        running.until(lambda jobs: jobs[job].phase is JobPhase.PENDING)
        running.service.operations.drain("cpu-0", False, "op").result(10)
        running.service.operations.cordon("cpu-0", 0, False, "op").result(10)
        running.until(lambda jobs: len(_slots(jobs[job])) == 4)
        with pytest.raises(Refused, match="there is no slot 9"):
            running.service.operations.cordon("cpu-0", 9, True, "op")


def _slots(job: LiveJob) -> tuple[int, ...]:
    return () if job.state.placement is None else tuple(slot for _, slot in job.state.placement.slots())


def test_a_policy_that_raises_or_takes_too_much_changes_nothing(tmp_path):
    @dataclass
    class Mad(Policy):
        name, paper, objective = "mad", "", ""
        mood: str = "good"

        def decide(self, view: ClusterView) -> Decision:
            if self.mood == "raises":
                raise RuntimeError("I do not know")
            slots = 99 if self.mood == "greedy" else 1
            return Decision({job.id: ((0, slots),) for job in view.jobs})

    policy = Mad()
    with Running(tmp_path, policy) as running:
        first = running.submit()
        running.until(lambda jobs: jobs[first].phase is JobPhase.RUNNING)
        policy.mood = "raises"
        second = running.submit()
        running.note("rejected, the last plan stays: RuntimeError: I do not know")
        policy.mood = "greedy"
        third = running.submit()
        running.note("slots more than it has usable")
        jobs = running.until(lambda jobs: third in jobs)
        assert jobs[first].phase is JobPhase.RUNNING
        assert jobs[second].phase is jobs[third].phase is JobPhase.PENDING
        policy.mood = "good"
        running.submit()
        running.until(lambda jobs: all(job.phase is JobPhase.RUNNING for job in jobs.values()))


def test_with_a_full_disk_requests_are_refused_and_jobs_go_on(tmp_path):
    with Running(tmp_path) as running:
        job = running.submit()
        running.until(lambda jobs: jobs[job].phase is JobPhase.RUNNING)
        database = running.store._database
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(Refused, match="the disk is full") as refused:
            running.submit(env=(("BIG", "x" * 60_000),))
        assert refused.value.status == 507
        running.executor.report(r.JobEnded(job_id=job, how="succeeded", reason="y\n" * 5_000))
        running.until(lambda jobs: jobs[job].phase is JobPhase.SUCCEEDED)  # whoever looks sees what has happened
        with pytest.raises(Refused, match="is over: it succeeded"):
            running.service.operations.request(job, "cancel", "ann").result(10)
        assert running.service.alive
        assert running.service.published.trouble
        assert running.service._journal.state.jobs[job].phase is JobPhase.RUNNING  # and it is not written
        database.execute("PRAGMA max_page_count = 1000000")
        running.until(lambda jobs: running.service._journal.state.jobs[job].phase is JobPhase.SUCCEEDED)  # it was kept
        running.until(lambda jobs: not running.service.published.trouble)


ABSURD = {
    "impossible": {"accumulation_s": 1e-30, "step_s": 1e30, "squared_gradient": -1.0, "variance": 1e300},
    "fast": {"step_s": 1e-12, "squared_gradient": 1e-12, "variance": 1e12},
    "slow": {"step_s": 1e9, "squared_gradient": 1.0, "variance": 1.0},
    "done": {"step_s": 0.1, "progress": 1e300, "samples": 10**15},
}


@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD)
def test_absurd_reports_of_one_job_do_not_touch_the_others(tmp_path, monkeypatch, absurd):
    """They are decided upon, and the neighbour keeps the slots that it has."""
    monkeypatch.setattr("geminid.serve.pacing.MEASUREMENT_GAP_S", 0.0)
    for name in ("SETTLE_S", "SETTLE_PAUSES"):
        monkeypatch.setattr(f"geminid.serve.protection.{name}", 0.0)
    with Running(tmp_path, "geminid:gap=0,refresh=1") as running:
        jobs = good, bad = running.submit(max_slots=4), running.submit(max_slots=4)
        running.until(lambda jobs: jobs[good].phase is jobs[bad].phase is JobPhase.RUNNING)
        limits = {"initial_batch": 8, "largest_batch": 64, "smallest_per_slot": 1, "largest_per_slot": 8}
        for job_id in jobs:
            running.executor.report(r.JobReady(job_id=job_id, parameter_count=1000, work_samples=10_000, **limits))
        step = 0

        def decide_on_reports(**told: float) -> None:
            """Both report what they measure where they are, until two more decisions were made."""
            nonlocal step
            enough = running.service.published.counts.made + 2
            while running.service.published.counts.made < enough:
                step += 1
                for job_id, more in ((good, {}), (bad, told)):
                    slots = running.service.published.state.jobs[job_id].state.num_slots
                    seen = {"progress": 8.0 * step, "samples": 8 * step, "step_s": 0.1 + 0.01 * slots}
                    seen |= {"squared_gradient": 1.0, "variance": 200.0, **more}
                    seen |= {"step": step, "epoch": 0, "slots": slots, "nodes": 1, "per_slot_batch": 8}
                    running.executor.report(r.JobProgressed(job_id=job_id, accumulation_steps=0, **seen))
                time.sleep(0.05)

        def is_even() -> bool:
            decide_on_reports()
            return [running.service.published.state.jobs[job_id].state.num_slots for job_id in jobs] == [2, 2]

        until(is_even)
        decide_on_reports(**absurd)
        after = running.until(lambda jobs: jobs[bad].step == step)
        assert after[good].state.num_slots == 2
        assert after[good].phase is JobPhase.RUNNING
        assert running.service.published.counts.rejected == 0
        assert not after[bad].state.failures


def test_a_job_ends_when_its_budget_is_spent(tmp_path):
    with Running(tmp_path) as running:
        job = running.submit(budget_gpu_s=0.2)
        jobs = running.until(lambda jobs: jobs[job].phase is JobPhase.CANCELLED)
        assert jobs[job].service_gpu_s(0.0) >= 0.2
        assert jobs[job].over_budget
        assert jobs[job].state.reason == "its gpu_time_budget of 0.2 slot-seconds is used up"
        assert jobs[job].story[-1].text == f"cancelled: {jobs[job].state.reason}"


def test_a_repeated_request_has_one_effect(tmp_path):
    with Running(tmp_path) as running:
        first = running.service.operations.submit(spec(), "ann", request="ann:7").result(10)
        assert running.service.operations.submit(spec(), "ann", request="ann:7").result(10).id == first.id
        with pytest.raises(InvalidInput, match="priority"):
            running.service.operations.change(first.id, "ann", priority=5000, min_slots=None, max_slots=None).result(10)


def test_what_is_not_measured_yet_is_opaque_to_policies():
    from geminid.jobstate import JobState
    from geminid.serve.livejob import ScriptFacts

    state = JobState.submitted(job_id="j1", spec=spec(), at_s=0.0)
    limits = ScriptFacts.of(
        initial_batch=8, largest_batch=64, smallest_per_slot=1, largest_per_slot=8, parameter_count=1, work_samples=100
    )
    facts = facts_of(LiveJob(state=state, elastic=True, limits=limits), Cluster.parse("cpu:1x4"))
    assert (facts.limits, facts.max_slots, facts.work) == ({}, 4, 100.0)


def test_names_of_slots_stay_and_are_never_given_twice():
    cluster = Cluster.parse("cpu:1x4")
    current = {"a": Placement.of({"cpu-0": [1, 2]}), "b": Placement.of({"cpu-0": [3]})}
    named = name_slots({"a": ((0, 1),), "b": ((0, 2),), "c": ((0, 1),)}, current, cluster, [])
    assert {job: dict(place.slots_by_node)["cpu-0"] for job, place in named.items()} == {
        "a": (1,), "b": (0, 3), "c": (2,)
    }  # fmt: skip
    moved = name_slots({"b": ((0, 1),)}, current, cluster, [("cpu-0", 3)])
    assert moved["b"] == Placement.of({"cpu-0": [0]})


def test_a_service_killed_at_any_write_point_loses_nothing_and_runs_nothing_twice(tmp_path):
    """A real process with a service is killed at its n-th write point; another takes over and finishes everything."""
    reached = 0
    for n in range(1, 40):
        folder = tmp_path / str(n)
        accepted = folder / "accepted"
        pid = os.fork()
        if pid == 0:
            try:
                _serve_until_killed(folder, accepted, n)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            break
        reached = n
        with Running(folder) as running:
            promised = accepted.read_text().split() if accepted.exists() else []
            jobs = running.service.published.state.jobs
            assert set(promised) <= set(jobs)  # whoever got an answer has a job
            running.until(lambda jobs: all(job.phase is not JobPhase.STARTING for job in jobs.values()))
            running.until(lambda jobs, running=running: _have_all_succeeded(running, jobs))
            assert len(set(running.executor.started)) == len(running.executor.started)
    assert reached >= 9


def _have_all_succeeded(running: Running, jobs: dict[str, LiveJob]) -> bool:
    """Whether all jobs are over; those that run by now come to their end."""
    for job_id, job in jobs.items():
        if job.phase is JobPhase.RUNNING:
            running.executor.report(r.JobEnded(job_id=job_id, how="succeeded"))
    return all(job.phase is JobPhase.SUCCEEDED for job in jobs.values())


def _serve_until_killed(folder: Path, accepted: Path, n: int) -> None:
    points = iter(range(1, 10**6))

    def die(point: str) -> None:
        if next(points) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    folder.mkdir(parents=True)
    running = Running(folder)
    running.store.before_write = die
    with running:
        for i in range(3):
            job_id = running.submit(name=f"n{i}")
            with accepted.open("a") as file:
                file.write(job_id + "\n")
        running.until(lambda jobs: all(job.phase is JobPhase.RUNNING for job in jobs.values()))


def test_a_service_forgets_jobs_that_are_over_and_their_folders(tmp_path):
    executor = PretendExecutor(home=tmp_path)
    with Running(tmp_path / "store", executor=executor, keep=Retention(jobs=1)) as running:
        jobs = [running.submit() for _ in range(3)]
        for job_id in jobs:
            executor.folders.folder_of(job_id).mkdir(parents=True)
            running.until(lambda jobs, job_id=job_id: jobs[job_id].phase is JobPhase.RUNNING)
            running.executor.report(r.JobEnded(job_id=job_id, how="succeeded"))
            running.until(lambda jobs, job_id=job_id: jobs[job_id].phase is JobPhase.SUCCEEDED)
        running.service._forget_at_s = 0.0
        running.until(lambda jobs: set(jobs) == {"j3"})
        until(lambda: [folder.name for folder in (tmp_path / "jobs").iterdir()] == ["j3"])
        assert running.submit() == "j4"  # numbers are not given again
        with pytest.raises(Refused, match="there is no job j1"):
            running.service.operations.request("j1", "cancel", "ann").result(10)


def test_what_a_live_job_cannot_do_is_refused_at_once(tmp_path):
    with Running(tmp_path) as running:
        for fields, told in (
            ({"slots_per_replica": 2, "min_slots": 2}, "slots_per_replica is 2, but must be 1"),
            (
                {"execution_plans": (ExecutionPlan(name="zero", zero=True),)},
                "execution_plans is .zero., but must be left out",
            ),
        ):
            with pytest.raises(InvalidInput, match=told):
                running.submit(**fields)


class Silent(Policy):
    """Gives the first job a slot, and then never answers again: it sleeps, or computes for ever."""

    name, paper, objective = "silent", "none", "none"

    def __init__(self, *, busy: bool) -> None:
        self.busy, self.asked, self.released = busy, 0, False

    def decide(self, view: ClusterView) -> Decision:
        self.asked += 1
        while self.asked > 1 and not self.released:
            if not self.busy:
                time.sleep(0.01)
        return Decision({view.jobs[0].id: Configuration(gpu_type="cpu", nodes=1, slots=1)} if view.jobs else {})


@pytest.mark.parametrize("busy", [False, True])
def test_a_policy_that_never_answers_is_given_up_on_and_everything_else_goes_on(tmp_path, monkeypatch, busy):
    monkeypatch.setattr("geminid.serve.pacing.MEASUREMENT_GAP_S", 0.5)  # it is asked again after so long
    policy = Silent(busy=busy)
    with Running(tmp_path, policy, policy_limit_s=0.2) as running:
        policy.asked = 0
        first = running.submit()
        running.until(lambda jobs: jobs[first].phase is JobPhase.RUNNING)
        second = running.submit()
        running.note("did not decide within 0.2 s")
        running.note("is still busy with an earlier decision")
        third = running.submit()
        running.service.operations.request(third, "cancel", "ann").result(10)
        jobs = running.service.published.state.jobs
        assert jobs[first].phase is JobPhase.RUNNING  # the last plan stays
        assert (jobs[second].phase, jobs[third].phase) == (JobPhase.PENDING, JobPhase.CANCELLED)
        assert running.service.published.counts.rejected >= 2
        policy.released = True
        running.executor.report(r.JobEnded(job_id=first, how="succeeded"))
        running.until(lambda jobs: jobs[second].phase is JobPhase.RUNNING)  # and it is asked again once it has answered


def test_a_solver_that_runs_out_of_time_leaves_a_feasible_plan_and_says_so(tmp_path):
    """Its time is far less than it needs: jobs run all the same, on no more slots than there are, and it is flagged."""
    policy = "max_min_fairness_water_filling_perf:limit=1e-9,round=1"
    with Running(tmp_path, policy, PretendExecutor(slots=2)) as running:
        ids = [running.submit(max_slots=1) for _ in range(3)]
        running.until(lambda jobs: sum(jobs[job_id].phase is JobPhase.RUNNING for job_id in ids) == 2)
        assert any("out_of_time" in reason for reason in running.service.published.reasons.values())
        assert running.service.published.counts.rejected == 0
        for job_id in [job.id for job in running.service.published.state.jobs.values() if job.target]:
            running.executor.report(r.JobEnded(job_id=job_id, how="succeeded"))
        running.until(lambda jobs: sum(jobs[job_id].phase is JobPhase.RUNNING for job_id in ids) == 1)


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_jump_of_the_clock_moves_nobody(tmp_path, monkeypatch, jump_s):
    """The wall clock is set forth or back by a day while jobs run, and once more while the service is away."""
    true_time = time.time
    with Running(tmp_path) as running:
        job = running.submit(min_slots=4)
        running.until(lambda jobs: jobs[job].phase is JobPhase.RUNNING)
        before_s = running.service.clock.now_s()
        monkeypatch.setattr(time, "time", lambda: true_time() + jump_s)
        other = running.submit(min_slots=2)
        ticks = running.executor.ticks
        until(lambda: running.executor.ticks >= ticks + 2)
        jobs = running.until(lambda jobs: other in jobs)
        assert jobs[job].phase is JobPhase.RUNNING
        assert 0.0 < jobs[other].state.submitted_at_s - before_s < abs(jump_s) / 2
        assert 0.0 < jobs[job].service_gpu_s(running.service.clock.now_s()) < 4 * abs(jump_s) / 2
    with Running(tmp_path) as running:  # its processes were lost with the executor that pretends
        jobs = running.until(lambda jobs: any(one.phase is JobPhase.RUNNING for one in jobs.values()))
        assert running.service.clock.now_s() >= jobs[other].state.submitted_at_s
        assert jobs[job].state.failures == 0
        running.until(lambda jobs: all(one.state.updated_at_s >= before_s for one in jobs.values()))


def test_flapping_slots_change_the_plan_far_less_often_than_they_flap(tmp_path):
    with Running(tmp_path, "geminid:gap=0,refresh=1") as running:
        job = running.submit(max_slots=4)
        running.until(lambda jobs: jobs[job].phase is JobPhase.RUNNING)
        planned = len([e for e in last_entries(tmp_path, -1, 0) if isinstance(e.record, r.Planned)])
        for number in range(200):
            running.service.operations.cordon("cpu-0", 3, number % 2 == 0, "op").result(10)
        plans = [e for e in last_entries(tmp_path, -1, 0) if isinstance(e.record, r.Planned)]
        assert len(plans) - planned < 20


def test_a_node_whose_agent_answers_only_while_jobs_are_taken_over_keeps_its_jobs(tmp_path):
    class Adopting(PretendExecutor):
        nodes = 2

        @property
        def cluster(self) -> Cluster:
            return Cluster.parse(f"cpu:{self.nodes}x2")

        def open(self, post, jobs) -> list[r.Record]:
            super().open(post, [])
            self.nodes, self.running = 2, {job.id: job.state.placement for job in jobs}
            return []

    with Running(tmp_path, executor=Adopting()) as running:
        job = running.submit(min_slots=4)
        placement = running.until(lambda jobs: jobs[job].phase is JobPhase.RUNNING)[job].state.placement
    late = Adopting()
    late.nodes = 1
    with Running(tmp_path, executor=late) as again:
        taken_over = again.service.published.state.jobs[job]
        assert (taken_over.phase, taken_over.target) == (JobPhase.RUNNING, placement)
        assert not any("gone" in line.text for line in taken_over.story)
        assert again.submit(min_slots=1)  # decided with both nodes
        assert {node.name for node in again.service.cluster.nodes} == {"cpu-0", "cpu-1"}


def test_a_service_that_fails_ends_and_turns_everybody_away(tmp_path):
    class Broken(PretendExecutor):
        broken = False

        def tick(self, capacity) -> list[r.Record]:
            if self.broken:
                raise RuntimeError("a mistake of ours")
            return []

    running, failed = Running(tmp_path, executor=Broken()), []
    running.service.on_failure = lambda: failed.append(True)
    running.service.start()
    running.submit()
    running.executor.broken = True
    with pytest.raises(Refused, match=r"the service failed|is ending"):  # noqa: PT012
        while True:  # until it looks at its clock
            running.service.operations.drain("cpu-0", False, "ann").result(10)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        running.service.end()
    assert failed == [True]
    running.store.close()
    with Running(tmp_path) as again:  # nothing was lost
        assert again.until(lambda jobs: jobs["j1"].phase is JobPhase.RUNNING)


def test_a_service_whose_store_was_taken_over_ends(tmp_path):
    running, failed = Running(tmp_path), []
    running.service.on_failure = lambda: failed.append(True)
    running.service.start()
    job = running.submit()
    running.until(lambda jobs: jobs[job].phase is JobPhase.RUNNING)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as other, other:
        other.execute("UPDATE meta SET value = 9 WHERE key = 'epoch'")
    with pytest.raises(Refused, match="epoch 9"):
        running.submit()
    with pytest.raises(StoreTaken):
        running.service.end()
    assert failed == [True]
    running.store.close()


def test_slots_that_a_quota_keeps_from_one_go_to_another(tmp_path):
    """Whoever came first may have no more: those who came later get the slots, under a policy that knows no quotas."""
    with Running(tmp_path) as running:  # four slots, first come, first served
        running.service.operations.set_quota("owner", "ann", 1, "op").result(10)
        first, second, third = (running.submit(max_slots=1) for _ in range(3))
        other = running.service.operations.submit(spec(max_slots=1), "bob").result(10).id
        jobs = running.until(lambda jobs: jobs[other].phase is JobPhase.RUNNING)
        assert [jobs[job].phase for job in (first, second, third)] == [
            JobPhase.RUNNING, JobPhase.PENDING, JobPhase.PENDING
        ]  # fmt: skip
        running.executor.report(r.JobEnded(job_id=first, how="succeeded"))
        jobs = running.until(lambda jobs: jobs[second].phase is JobPhase.RUNNING)
        assert jobs[third].phase is JobPhase.PENDING
        running.service.operations.set_quota("owner", "ann", None, "op").result(10)
        running.until(lambda jobs: jobs[third].phase is JobPhase.RUNNING)


def test_why_slots_changed_is_told_only_where_it_can_be_why(tmp_path):
    """A quota that was set before a job came, or that allows more, is no reason for what happens to it."""
    with Running(tmp_path) as running:
        running.service.operations.set_quota("owner", "ann", 1, "op").result(10)
        later = running.submit(max_slots=1)
        jobs = running.until(lambda jobs: jobs[later].phase is JobPhase.RUNNING)
        assert not any("quota" in line.text for line in jobs[later].story)
        running.service.operations.set_quota("owner", "ann", None, "op").result(10)
        running.service.operations.drain("cpu-0", True, "op").result(10)
        jobs = running.until(lambda jobs: jobs[later].target is None)
        assert any("node cpu-0 is drained" in line.text for line in jobs[later].story)
        assert not any("quota" in line.text for line in jobs[later].story)


def test_a_dry_run_knows_the_quotas_that_the_job_would_be_under(tmp_path):
    with Running(tmp_path) as running:
        running.service.policy_text = "fifo"
        forecaster = Forecaster(running.service)

        def told(**fields):
            return forecaster.dry_run(running.service.operations.accepted(spec(**fields), "ann"))

        assert told(max_slots=2)["start_s"][0] == pytest.approx(0.0, abs=1.0)
        running.service.operations.set_quota("owner", "ann", 1, "op").result(10)
        running.until(lambda jobs: running.service.published.state.quotas)
        wide = told(min_slots=2, max_slots=2)
        assert wide["start_s"] is None
        assert wide["never"] == "it needs 2 slots, and the quota of owner ann is 1: it cannot start"
        assert told(max_slots=1)["never"] is None
        assert told(min_slots=5, max_slots=5)["never"].startswith("it needs 5 slots, and there are 4")
        running.submit(max_slots=1)
        running.until(lambda jobs: any(job.phase is JobPhase.RUNNING for job in jobs.values()))
        assert told(max_slots=1)["start_s"] is None or told(max_slots=1)["start_s"][0] > 0.0


def test_python_in_a_command_is_that_of_whoever_submits_it(tmp_path):
    with Running(tmp_path) as running:
        given = JobSpec(name="x", command=("python", "train.py"))
        assert running.service.operations.accepted(given, "ann", "/venv/bin/python").command == (
            "/venv/bin/python",
            "train.py",
        )
        assert running.service.operations.accepted(given, "ann").command == given.command
        other = JobSpec(name="x", command=("/opt/python", "train.py"))
        assert running.service.operations.accepted(other, "ann", "/venv/bin/python").command == other.command
