"""The service's state is a function of its log: whatever is in it, and wherever the process dies."""

from __future__ import annotations

import os
import signal

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.jobstate import JobPhase
from geminid.serve import records as r
from geminid.serve.state import ServiceState
from geminid.serve.store import Store

JOBS = ("j1", "j2", "j3")
ids = st.sampled_from(JOBS)
places = st.sets(st.integers(0, 3), min_size=1).map(lambda slots: Placement.of({"here": slots}))
specs = st.builds(
    JobSpec,
    name=st.just("x"),
    command=st.just(("true",)),
    owner=st.sampled_from(["ann", "bob"]),
    max_retries=st.integers(0, 2),
    env=st.just((("KEY", "secret"),)),
)
numbers = st.one_of(st.none(), st.floats(1e-3, 10.0))
progress = st.builds(
    r.JobProgressed,
    job_id=ids,
    progress=st.floats(0, 1e6),
    samples=st.integers(0, 10**6),
    step=st.integers(0, 100),
    epoch=st.integers(0, 3),
    slots=st.integers(1, 4),
    nodes=st.just(1),
    per_slot_batch=st.integers(1, 64),
    accumulation_steps=st.integers(0, 2),
    accumulation_s=numbers,
    step_s=numbers,
    squared_gradient=numbers,
    variance=numbers,
    metrics=st.dictionaries(st.sampled_from(["loss", "a"]), st.floats(-1, 1), max_size=2),
)
anything = st.one_of(
    st.builds(r.JobSubmitted, job_id=ids, spec=specs, elastic=st.booleans(), request=st.none() | st.just("q")),
    st.builds(r.Planned, targets=st.dictionaries(ids, st.none() | places, max_size=3)),
    st.builds(r.JobStarting, job_id=ids, placement=places),
    st.builds(r.JobRescaling, job_id=ids, placement=places),
    st.builds(r.JobFormed, job_id=ids, placement=places, pause_s=st.none() | st.floats(0, 5), restored=st.booleans()),
    progress,
    st.builds(r.JobCheckpointed, job_id=ids, samples=st.integers(0, 10**6)),
    st.builds(r.JobStopping, job_id=ids, reason=st.just("why")),
    st.builds(
        r.JobEnded, job_id=ids, how=st.sampled_from(["succeeded", "failed", "stopped", "crashed", "lost", "unstarted"])
    ),
    st.builds(r.JobWished, job_id=ids, wish=st.sampled_from(["run", "pause", "cancel"]), by=st.just("ann")),
    st.builds(r.JobChanged, job_id=ids, by=st.just("ann"), priority=st.integers(-5, 5)),
    st.builds(r.SlotCordoned, node=st.just("here"), slot=st.integers(0, 3), cordoned=st.booleans(), by=st.just("op")),
    st.builds(
        r.QuotaSet, of=st.just("owner"), name=st.just("ann"), slots=st.none() | st.integers(0, 4), by=st.just("o")
    ),
    st.builds(r.Noted, level=st.just("warning"), text=st.just("hm")),
    st.builds(r.JobsForgotten, job_ids=st.lists(ids, max_size=2)),
)


def replayed(log: list[r.Record], start: ServiceState | None = None) -> ServiceState:
    state = start or ServiceState()
    for record in log:
        state.apply(state.seq + 1, state.at_s + 0.5, record)
    return state


@given(st.lists(anything, max_size=40), st.data())
@settings(max_examples=examples(150))
def test_any_log_gives_one_state_and_a_snapshot_anywhere_changes_nothing(log, data):
    whole = replayed(log)
    cut = data.draw(st.integers(0, len(log)))
    prefix = replayed(log[:cut])
    through_disk = ServiceState.from_dict(prefix.to_dict())
    assert through_disk.to_dict() == prefix.to_dict()
    assert replayed(log[cut:], through_disk).to_dict() == whole.to_dict()


@given(st.lists(anything, max_size=40))
@settings(max_examples=examples(100))
def test_records_survive_the_wire_and_the_end_absorbs(log):
    state = ServiceState()
    for record in log:
        assert r.decode(r.kind_of(record), r.encode(record)) == record
        before = dict(state.jobs)
        state.apply(state.seq + 1, state.at_s + 1.0, record)
        for job_id, job in before.items():
            if job_id not in state.jobs:
                assert job.phase.is_terminal
                assert isinstance(record, r.JobsForgotten)
                continue
            after = state.jobs[job_id]
            if job.phase.is_terminal:
                assert after == job
            elif not (isinstance(record, r.JobEnded) and record.job_id == job_id):
                assert after.state.progress_samples >= job.state.progress_samples
            else:
                assert after.state.progress_samples >= job.state.durable_samples
            assert after.phase.holds_slots == (after.state.placement is not None)
            if after.phase.is_terminal:
                assert after.target is None


BATCHES: list[list[r.Record]] = [
    [r.JobSubmitted(job_id="j1", spec=JobSpec(name="a", command=("true",)), elastic=True)],
    [r.JobSubmitted(job_id="j2", spec=JobSpec(name="b", command=("true",)), elastic=True)],
    [r.Planned(targets={"j1": Placement.of({"here": [0]}), "j2": Placement.of({"here": [1]})})],
    [
        r.JobStarting(job_id="j1", placement=Placement.of({"here": [0]})),
        r.JobStarting(job_id="j2", placement=Placement.of({"here": [1]})),
    ],
    [r.Planned(targets={"j1": Placement.of({"here": [0, 1]}), "j2": None})],
    [r.JobEnded(job_id="j2", how="stopped"), r.JobFormed(job_id="j1", placement=Placement.of({"here": [0, 1]}))],
    [r.JobEnded(job_id="j1", how="succeeded")],
]


def test_a_process_killed_at_any_write_point_leaves_whole_batches(tmp_path):
    """A real process is killed with SIGKILL at its n-th write point, for every n there is."""
    states = [ServiceState()]
    for batch in BATCHES:
        states.append(replayed(batch, ServiceState.from_dict(states[-1].to_dict())))
    expected = [_comparable(state) for state in states]
    seen = set()
    for n in range(1, 200):
        folder = tmp_path / str(n)
        if not _dies_at(folder, n):
            break
        with Store(folder) as store:
            seen.add(expected.index(_comparable(store.load())))
            assert store.epoch == 2
    else:
        raise AssertionError("there are fewer write points than that")
    assert seen == set(range(len(BATCHES) + 1))


def _comparable(state: ServiceState) -> list[tuple[str, JobPhase, Placement | None]]:
    return [(job.id, job.phase, job.target) for job in state.jobs.values()]


def _dies_at(folder, n: int) -> bool:
    """Run all batches in another process that kills itself at its n-th write point; whether it got there."""
    pid = os.fork()
    if pid == 0:
        points = iter(range(1, 10**6))

        def die(point: str) -> None:
            if next(points) == n:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with Store(folder, before_write=die) as store:
                state = store.load()
                for batch in BATCHES:
                    for entry in store.append(state.at_s + 1.0, batch, state.seq):
                        state.apply(entry.seq, entry.at_s, entry.record)
                    store.snapshot(state)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)
