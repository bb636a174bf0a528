"""Arrays and dependencies: which elements are made when, what a job waits for, and what survives a restart."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.arrayrange import MAX_ELEMENTS, ArrayRange
from geminid.dependency import Dependency, When, find_cycle
from geminid.fields import InvalidInput
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.policies.registry import make_policy
from geminid.serve import records as r
from geminid.serve.arrays import MAX_WAITING, expansions, unmade_element
from geminid.serve.demand import startable
from geminid.serve.dependencies import read_group, settlements
from geminid.serve.inbox import Refused
from geminid.serve.jobarray import INDEX
from geminid.serve.jobnames import NotOneJob, named_job
from geminid.serve.retention import Retention
from geminid.serve.service import Service
from geminid.serve.state import ServiceState
from geminid.serve.store import Store
from geminid.testing.executor import PretendExecutor
from waiting import until


@pytest.fixture(autouse=True)
def _tick_often(monkeypatch):
    monkeypatch.setattr("geminid.serve.service.TICK_S", 0.02)


def spec(name: str = "x", **fields) -> JobSpec:
    return JobSpec.from_dict({"name": name, "command": ["true"], "owner": "ann", **fields})


class State:
    """A service's state with records applied one after the other."""

    def __init__(self) -> None:
        self.state = ServiceState()

    def apply(self, *records: r.Record) -> None:
        for record in records:
            self.state.apply_or_raise(self.state.seq + 1, float(self.state.seq + 1), record)

    def submit(self, **fields) -> str:
        job_id = f"j{self.state.submitted + 1}"
        self.apply(r.JobSubmitted(job_id=job_id, spec=spec(**fields), elastic=False, job_kind="plain"))
        return job_id

    def end(self, job_id: str, how: str = "succeeded") -> None:
        """As if it had run."""
        from geminid.configuration import Placement

        self.apply(r.JobStarting(job_id=job_id, placement=Placement.of({"n": [0]})), r.JobEnded(job_id=job_id, how=how))

    def follow_up(self, free: int = 4) -> None:
        while records := settlements(self.state):
            self.apply(*records)
        self.apply(*expansions(self.state, {"cpu": free}))

    def phase(self, job_id: str) -> str:
        return self.state.jobs[job_id].phase.value


@pytest.mark.parametrize(
    ("text", "elements", "limit"),
    [
        ("3", [3], None),
        ("0-3%2", [0, 1, 2, 3], 2),
        ("1,5-9:2,20", [1, 5, 7, 9, 20], None),
        ("7,1", [7, 1], None),
    ],
)
def test_array_ranges_are_those_of_slurm(text, elements, limit):
    found = ArrayRange(text)
    assert (list(found), len(found), found.limit) == (elements, len(elements), limit)
    for i, element in enumerate(elements):
        assert found.position(element) == i
        assert list(found.from_position(i)) == elements[i:]
        assert element in found
    assert max(elements) + 1 not in found
    assert JobSpec.from_dict(spec(array=text).to_dict()).array == found


@pytest.mark.parametrize("text", ["", "a", "3-", "9-1", "1,1", "0-5:0", "0-5%0", "0-5%", f"0-{MAX_ELEMENTS}", "1 2"])
def test_array_ranges_that_mean_nothing_are_refused(text):
    with pytest.raises(InvalidInput, match="must be numbers and ranges such as"):
        spec(array=text)


def test_dependencies_are_read_and_written():
    made = spec(after=["prepare", "j7_3:any", "other:failed"]).after
    assert made == (Dependency("prepare"), Dependency("j7_3", When.ANY), Dependency("other", When.FAILED))
    assert spec(after="prepare").after == made[:1]
    assert JobSpec.from_dict(spec(after=["prepare", "x:any"]).to_dict()).after == (made[0], Dependency("x", When.ANY))
    for wrong in ("prepare:maybe", ":ok", "two words"):
        with pytest.raises(InvalidInput, match="may end in a colon and one of ok, any, failed"):
            spec(after=[wrong])


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefx"), max_size=4)))
def test_a_cycle_is_found_exactly_where_there_is_one(after):
    found = find_cycle(after)
    if found:
        assert found[0] == found[-1]
        assert all(second in after[first] for first, second in pairwise(found))
        return
    left = dict(after)  # without a cycle, jobs can start one after the other
    while left:
        ready = [name for name, others in left.items() if not set(others) & left.keys()]
        assert ready
        for name in ready:
            del left[name]


def test_a_file_with_several_jobs_is_checked_as_a_whole():
    jobs = [spec("a").to_dict(), spec("b", after=["a"]).to_dict()]
    assert [one.name for one in read_group({"jobs": jobs})] == ["a", "b"]
    with pytest.raises(InvalidInput, match="b → a → b"):
        read_group({"jobs": [spec("b", after=["a"]).to_dict(), spec("a", after=["b"]).to_dict()]})
    with pytest.raises(InvalidInput, match="must be the name of one job in the file"):
        read_group({"jobs": [jobs[0], jobs[0]]})
    with pytest.raises(InvalidInput, match=r"jobs\[1\].name"):
        read_group({"jobs": [jobs[0], {"command": ["true"]}]})
    for wrong in ({}, [], {"jobs": []}, {"jobs": jobs, "name": "x"}):
        with pytest.raises(InvalidInput, match="must be a list of jobs"):
            read_group(wrong)


def test_a_large_array_is_one_job_until_there_are_slots_for_its_elements():
    world = State()
    array = world.submit(array="0-9999")
    world.follow_up(free=0)
    assert list(world.state.jobs) == [array, f"{array}_0"]  # one waits, as any other job
    world.follow_up(free=0)
    assert len(world.state.jobs) == 2
    world.follow_up(free=3)
    assert len(world.state.jobs) == 4
    assert dict(world.state.jobs[f"{array}_2"].spec.env) == {INDEX: "2"}
    world.follow_up(free=100_000)
    assert len(world.state.jobs) == 1 + MAX_WAITING
    again = ServiceState.from_dict(world.state.to_dict())
    assert again == world.state
    assert again.unsettled == {array}


def test_an_array_keeps_to_its_limit_and_ends_with_its_last_element():
    world = State()
    array = world.submit(array="1-5%2", name="train")
    started = []
    while not world.state.jobs[array].phase.is_terminal:
        world.follow_up()
        active = [job.id for job in world.state.jobs.values() if job.id != array and not job.phase.is_terminal]
        assert len(active) <= 2
        started += [job_id for job_id in active if job_id not in started]
        world.end(active[0], "failed" if active[0].endswith("_3") else "succeeded")
    assert started == [f"{array}_{i}" for i in range(1, 6)]
    job = world.state.jobs[array]
    assert (world.phase(array), job.state.reason) == ("failed", f"1 of 5 elements failed: {array}_3")
    assert job.array is not None
    assert (job.array.succeeded, job.array.failed, job.array.active) == (4, 1, 0)
    assert not world.state.unsettled
    totals = world.state.totals(100.0)["ann"]
    assert totals.jobs == 5


def test_elements_are_found_by_number_before_and_after_they_are_made():
    world = State()
    array = world.submit(array="0-9%1", name="train")
    world.follow_up()
    jobs = world.state.jobs
    assert named_job(jobs, "train", "ann", 0.0).id == array
    assert named_job(jobs, "train_0", "ann", 0.0) is jobs[f"{array}_0"]
    later = named_job(jobs, "train_7", "ann", 0.0)
    assert (later.id, later.phase, later.spec.owner) == (f"{array}_7", JobPhase.PENDING, "ann")
    for missing in ("train_10", f"{array}_10", f"{array}_07", "j99_0"):
        with pytest.raises(NotOneJob, match="there is no job"):
            named_job(jobs, missing, "ann", 0.0)
    world.apply(r.ElementSkipped(job_id=array, element=7, by="ann"))
    skipped = unmade_element(world.state.jobs, f"{array}_7")
    assert skipped is not None
    assert skipped.phase is JobPhase.CANCELLED
    world.end(f"{array}_0")
    world.apply(r.JobsForgotten(job_ids=[f"{array}_0"]))
    assert unmade_element(world.state.jobs, f"{array}_0") is None  # over, and not retained


@pytest.mark.parametrize("when", ["ok", "any", "failed"])
@pytest.mark.parametrize("how", ["succeeded", "failed"])
def test_a_dependency_is_met_or_cancels_the_job_and_those_behind_it(when, how):
    world = State()
    first = world.submit()
    second = world.submit(after=[f"{first}:{when}"])
    third = world.submit(after=[second])
    world.follow_up()
    assert [world.state.jobs[job].blocked for job in (first, second, third)] == [False, True, True]
    world.end(first, how)
    world.follow_up()
    if when == "any" or (when == "ok") == (how == "succeeded"):
        assert (world.phase(second), world.state.jobs[second].blocked) == ("pending", False)
        assert world.state.jobs[second].wants_slots
        assert world.state.jobs[third].blocked
    else:
        assert [world.phase(job) for job in (second, third)] == ["cancelled", "cancelled"]
        assert f"{first} must {'succeed' if when == 'ok' else 'fail'} first" in world.state.jobs[second].state.reason


def test_a_job_after_an_array_waits_for_all_elements_and_an_array_may_wait_too():
    world = State()
    first = world.submit(array="0-1")
    element = world.submit(after=[f"{first}_1"])
    second = world.submit(array="0-1", after=[first])
    world.follow_up()
    assert f"{second}_0" not in world.state.jobs
    world.end(f"{first}_0")
    world.follow_up()
    assert world.state.jobs[element].blocked
    world.end(f"{first}_1")
    world.follow_up()
    assert not world.state.jobs[element].blocked
    assert f"{second}_0" in world.state.jobs
    broken = world.submit(array="0-1", after=[f"{second}:failed"])
    for one in ("0", "1"):
        world.end(f"{second}_{one}")
    world.follow_up()
    assert (world.phase(second), world.phase(broken)) == ("succeeded", "cancelled")


def test_an_array_asks_an_autoscaled_cluster_for_all_that_it_may_start():
    world = State()
    for text, blocked, needed in (("0-9", [], 9), ("0-9%4", [], 3), ("0-9", ["j1"], 0)):
        array = world.submit(array=text, after=blocked)
        world.follow_up(free=0)
        assert startable(world.state.jobs[array]) == needed  # one of them is a job already
    assert startable(world.state.jobs["j1_0"]) == 1


def test_what_was_never_made_is_cancelled_with_its_array_and_nothing_else():
    world = State()
    array = world.submit(array="0-9%1")
    world.follow_up()
    world.end(f"{array}_0")
    world.follow_up()
    world.apply(r.JobsForgotten(job_ids=[f"{array}_0"]), r.JobWished(job_id=array, wish="cancel", by="ann"))
    assert unmade_element(world.state.jobs, f"{array}_0") is None
    later = unmade_element(world.state.jobs, f"{array}_2")
    assert later is not None
    assert later.phase is JobPhase.CANCELLED
    assert not world.state.jobs[array].phase.is_terminal  # an element is still there
    world.apply(r.JobWished(job_id=f"{array}_1", wish="cancel", by="ann"))
    assert world.phase(array) == "cancelled"


def test_elements_do_not_displace_other_jobs_from_what_is_retained():
    world = State()
    single = world.submit()
    world.end(single)
    world.submit(array="0-3")
    world.follow_up()
    for i in range(4):
        world.end(f"j2_{i}")
    assert Retention(jobs=2).outdated(world.state, 0.0) == ["j2_0", "j2_1"]


class Running:
    """A service with an executor that pretends, which can be restarted as after a crash."""

    def __init__(self, folder) -> None:
        self.executor = PretendExecutor(elastic=False)
        self.store = Store(folder)
        self.service = Service(self.store, self.executor, make_policy("fifo"), "fifo", gap_s=0.0)

    def __enter__(self) -> Running:
        self.service.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.service.end(detach=True)
        self.store.close()

    @property
    def jobs(self):
        return self.service.published.state.jobs


def test_every_element_runs_once_however_often_the_service_is_replaced(tmp_path):
    ended: Counter[str] = Counter()
    with Running(tmp_path) as running:
        operations = running.service.operations
        array = operations.submit(spec(array="0-11%3", max_retries=0), "ann").result(10).id
        last = operations.submit(spec("last", after=[array]), "ann").result(10).id
    for _ in range(13):
        with Running(tmp_path) as running:
            until(lambda: running.executor.started)
            job_id = running.executor.started[0]
            ended[job_id] += 1
            running.executor.report(r.JobEnded(job_id=job_id, how="succeeded"))
            until(lambda job_id=job_id: running.jobs[job_id].phase.is_terminal)
    assert ended == {**{f"{array}_{i}": 1 for i in range(12)}, last: 1}
    assert {job.phase for job in running.jobs.values()} == {JobPhase.SUCCEEDED}


def test_an_array_is_paused_resumed_changed_and_cancelled_as_a_whole(tmp_path):
    with Running(tmp_path) as running:
        operations = running.service.operations
        array = operations.submit(spec(array="0-99"), "ann").result(10).id
        until(lambda: len(running.executor.started) == 4)
        operations.request(array, "pause", "ann").result(10)
        until(lambda: not running.executor.running)
        operations.request(array, "run", "ann").result(10)
        until(lambda: len(running.executor.running) == 4)
        operations.change(array, "ann", priority=7, min_slots=None, max_slots=None).result(10)
        assert {job.spec.priority for job in running.jobs.values()} == {7}
        assert operations.request(f"{array}_50", "cancel", "ann").result(10).phase is JobPhase.CANCELLED
        for refused in (
            lambda: operations.request(f"{array}_51", "pause", "ann"),
            lambda: operations.change(f"{array}_51", "ann", priority=1, min_slots=None, max_slots=None),
        ):
            with pytest.raises(Refused, match="has not been queued yet"):
                refused().result(10)
        operations.request(array, "cancel", "ann").result(10)
        until(lambda: running.jobs[array].phase is JobPhase.CANCELLED)
        assert not running.executor.running
        array_job = running.jobs[array]
        assert array_job.array is not None
        assert array_job.array.cancelled == 100


def test_submissions_name_jobs_that_exist_and_groups_are_submitted_whole(tmp_path):
    with Running(tmp_path) as running:
        operations = running.service.operations
        with pytest.raises(InvalidInput, match="after is 'nobody', but must be one job: there is no job nobody"):
            operations.submit(spec(after=["nobody"]), "ann").result(10)
        group = [spec("c", after=["a", "b:any"]), spec("a"), spec("b", array="0-1")]
        jobs = operations.submit_group(group, "ann", request="k", digest="d").result(10)
        assert [str(one) for one in jobs[0].spec.after] == [jobs[1].id, f"{jobs[2].id}:any"]
        again = operations.submit_group(group, "ann", request="k", digest="d").result(10)
        assert [job.id for job in again] == [job.id for job in jobs]
        with pytest.raises(InvalidInput, match="there is no job nobody"):
            operations.submit_group([spec("fine"), spec("d", after=["nobody"])], "ann").result(10)
        assert len([job for job in running.jobs.values() if job.spec.name == "fine"]) == 0
        until(lambda: {jobs[1].id, f"{jobs[2].id}_0", f"{jobs[2].id}_1"} <= running.executor.running.keys())
        running.executor.report(r.JobEnded(job_id=jobs[1].id, how="failed"))
        until(lambda: running.jobs[jobs[0].id].phase is JobPhase.CANCELLED)
        with pytest.raises(InvalidInput, match="can never be met"):
            operations.submit(spec(after=[jobs[1].id]), "ann").result(10)
