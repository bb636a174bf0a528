"""What a live run leaves for the simulator, and what the simulator makes of it, on a log that is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from geminid.bench.live_fidelity import Arrival, Kind, LiveRun, MeasuredNoise, simulate
from geminid.cluster import Cluster
from geminid.configuration import Placement
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Observation, Profile
from geminid.job import JobSpec
from geminid.nodes import NodeGroup
from geminid.serve import records as r
from geminid.serve.store import Entry

CLUSTER = Cluster.of_groups([NodeGroup(gpu_type="cpu", slots=2, name="local")])

#: Seconds of a step on one slot and on two; a step has 32 samples.
STEP_S = {1: 0.2, 2: 0.11}

#: Reports come every second, and training takes a quarter longer than its steps.
SLOWER = 1.25


def live_log(samples: int) -> list[Entry]:
    """A job that starts after half a second on one slot, and grows to two after ten seconds."""
    log: list[tuple[float, r.Record]] = []
    spec = JobSpec.from_dict({"name": "x", "command": ["x"], "dataset_samples": samples // 4, "epochs": 4})
    one, two = Placement.of({"local": [0]}), Placement.of({"local": [0, 1]})
    nodes = {"gpu_types_by_node": {"local": "cpu"}, "slots": {"local": 2}}
    limits = {"initial_batch": 32, "largest_batch": 32, "smallest_per_slot": 1, "largest_per_slot": 32}
    log += [
        (0.0, r.ServiceStarted(epoch=1, version="0", policy="geminid", cluster=nodes)),
        (0.0, r.JobSubmitted(job_id="j1", spec=spec, elastic=True)),
        (0.0, r.Planned(targets={"j1": one})),
        (0.0, r.JobStarting(job_id="j1", placement=one)),
        (0.5, r.JobReady(job_id="j1", parameter_count=1, work_samples=samples, **limits)),
        (0.5, r.JobFormed(job_id="j1", placement=one, restored=True, samples=0)),
    ]
    at_s, done, slots = 0.5, 0.0, 1
    while done < samples:
        if slots == 1 and at_s >= 10.0:
            slots = 2
            log += [
                (at_s, r.Planned(targets={"j1": two})),
                (at_s, r.JobRescaling(job_id="j1", placement=two)),
                (at_s + 0.1, r.JobFormed(job_id="j1", placement=two, pause_s=0.1)),
            ]
            at_s += 0.1
        at_s += 1.0
        done = min(done + 32 / (SLOWER * STEP_S[slots]), samples)
        report = r.JobProgressed(
            job_id="j1",
            progress=done,
            samples=int(done),
            step=round(done / 32),
            epoch=0,
            slots=slots,
            nodes=1,
            per_slot_batch=32 // slots,
            accumulation_steps=0,
            accumulation_s=0.2 / slots,
            step_s=STEP_S[slots],
        )
        log.append((at_s, report))
    log.append((at_s, r.JobEnded(job_id="j1", how="succeeded", reason="")))
    return [Entry(seq, at_s, record) for seq, (at_s, record) in enumerate(log, 1)]


def test_a_job_is_simulated_as_long_as_it_took() -> None:
    """Alone on two slots it may grow sooner in the simulator: between all on two, and as it was."""
    run = LiveRun.of(live_log(8_000), ["j1"], {"j1": "j1"})
    (job,) = run.jobs
    found = simulate(run, CLUSTER, "geminid:gap=2,refresh=10,fill=true")["j1"]
    assert job.state.jct_s is not None
    all_on_two_s = 0.5 + 8_000 / 32 * SLOWER * STEP_S[2]
    assert 0.95 * all_on_two_s < found.jct_s < 1.05 * job.state.jct_s
    assert found.waited_s == 0.0
    assert [leg.slots for leg in run.courses["j1"]] == [1, 2]
    fastest = max(leg.samples_per_s for leg in found.course if leg.slots == 2)
    assert fastest == pytest.approx(run.courses["j1"][-1].samples_per_s, rel=0.1)


def test_nothing_is_borrowed_from_the_run_but_its_profiles() -> None:
    policy = "geminid:gap=2,refresh=10,fill=true"
    run = LiveRun.of(live_log(8_000), ["j1"], {"j1": "j1"})
    (job,) = run.jobs
    expected = simulate(run, CLUSTER, policy)["j1"]
    run.jobs = [replace(job, pauses_s=(30.0,), stretches=(), story=())]
    assert simulate(run, CLUSTER, policy)["j1"] == expected
    foretold = simulate(run, CLUSTER, policy, foretell=True)["j1"]
    seen = Observation(nodes=1, slots=1, busiest_node_slots=1, per_slot_batch=32, accumulation_s=9.0, step_s=9.0)
    run.jobs = [replace(job, measured=(("cpu", Profile().record(seen)),))]
    run.noise, run.known = {}, {}
    assert simulate(run, CLUSTER, policy, foretell=True)["j1"] == foretold
    assert simulate(run, CLUSTER, policy)["j1"].jct_s > 10 * expected.jct_s


def test_noise_is_not_known_before_it_was_reported() -> None:
    early, late = GradientStats(1.0, 2.0), GradientStats(1.0, 5.0)
    noise = MeasuredNoise.of([(30.0, early), (38.0, late)], work=40.0, epochs=4)
    assert [noise.is_measured(epoch) for epoch in range(4)] == [False, False, True, True]
    assert [noise.at(epoch, 1.0) for epoch in range(1, 5)] == [GradientStats(), early, late, late]


def test_jobs_have_as_much_to_do_as_takes_so_long_on_this_machine() -> None:
    arrival = Arrival(0.0, Kind("x", ("python", "x.py"), dataset_samples=1000), alone_s=30.0)
    assert arrival.epochs(500.0) == 15
    assert arrival.epochs(1.0) == 1
    assert arrival.kind.job(15)["command"] == ["python", "x.py", "--epochs", "15"]
