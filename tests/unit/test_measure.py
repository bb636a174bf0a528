"""Measuring: real worker processes train, agree with each other, and leave nothing behind when they fail."""

import os
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from geminid.train.measure import Measurement, Point, measure  # noqa: E402
from geminid.train.models import NoisyPatterns, small_convnet  # noqa: E402
from geminid.train.worker import _flatten  # noqa: E402
from geminid.train.workers import MeasuringFailed, Visit, Workers  # noqa: E402


def is_running(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_one_team_serves_every_number_of_slots():
    with Workers(2, seed=1) as workers:
        pids = workers.pids
        assert len(pids) == 2
        assert 1_000_000 < workers.parameter_count < 3_000_000
        for slots in (2, 1, 2):
            reports = workers.visit(Visit(slots, per_slot_batch=4, repeats=3, warm_up=1))
            assert len(reports) == slots
            for report in reports:
                assert len(report.accumulation_s) == len(report.step_s) == 3
                assert len(report.loss) == len(report.local_norm) == len(report.total_norm) == 4
                assert min(report.accumulation_s + report.step_s) > 0.0
        first, second = reports
        assert first.total_norm == second.total_norm  # both applied the same gradient ...
        assert first.local_norm != second.local_norm  # ... averaged from two different ones,
        for total, *local in zip(first.total_norm, first.local_norm, second.local_norm, strict=True):
            assert total <= sum(local) / 2 * (1 + 1e-5)  # whose noise partly cancelled
    assert not any(is_running(pid) for pid in pids)


def test_the_same_seed_trains_the_same_way_on_one_and_two_slots():
    visits = [Visit(2, per_slot_batch=4, repeats=2), Visit(1, per_slot_batch=8, repeats=2), Visit(2, 2, repeats=2)]

    def losses() -> list[list[float]]:
        with Workers(2, seed=7) as workers:
            return [report.loss for visit in visits for report in workers.visit(visit)]

    assert losses() == losses()


def test_a_recording_is_complete_even_when_there_is_no_time():
    points = [Point(1, 2), Point(2, 2)]
    visited = []
    with Workers(2) as workers:
        recording = measure(workers, points, seconds=0.001, initial_batch=4, on_visit=lambda: visited.append(1))
    assert len(visited) == 4  # each point once to warm up, and once timed
    assert [seen.point for seen in recording.measurements] == points
    for seen in recording.measurements:
        assert len(seen.step_times_s) >= 3 * seen.point.slots
        assert seen.observation().problem() is None
    assert len(recording.loss) == len(recording.batch) == 2 * (6 + 4)
    assert recording.noise_steps == 6 + 4  # steps on one slot say nothing about noise
    assert recording.noise.known


def spoiled(visit: Visit, pids: list[int], sent: signal.Signals | None = None, **options: float) -> None:
    """Start two workers, note their process ids, send the second a signal, and have them train."""
    with Workers(2, **options) as workers:
        pids += workers.pids
        if sent is not None:
            os.kill(pids[1], sent)
        workers.visit(visit)


def test_a_killed_worker_is_named_and_the_others_are_ended():
    pids: list[int] = []
    with pytest.raises(MeasuringFailed, match=r"^worker 1 was ended by SIGKILL while training with 2 slots"):
        spoiled(Visit(2, per_slot_batch=2, repeats=3), pids, signal.SIGKILL)
    assert not any(is_running(pid) for pid in pids)


def test_a_worker_that_hangs_is_given_up_and_ended():
    pids: list[int] = []
    with pytest.raises(MeasuringFailed, match=r"did not answer within 1 s while|failed while training"):
        spoiled(Visit(2, per_slot_batch=2, repeats=3), pids, signal.SIGSTOP, patience_s=1.0)
    assert not any(is_running(pid) for pid in pids)


def test_a_mistake_inside_a_worker_is_told_in_one_line():
    pids: list[int] = []
    with pytest.raises(MeasuringFailed, match=r"^worker [01] failed while training with 2 slots and -1 samples.*: \w+"):
        spoiled(Visit(2, per_slot_batch=-1, repeats=1), pids)
    assert not any(is_running(pid) for pid in pids)


def test_a_measurement_is_the_median_and_its_spread_the_middle_half():
    seen = Measurement(Point(2, 8), (1.0, 2.0, 9.0), (10.0, 20.0, 30.0, 40.0, 1000.0))
    assert seen.accumulation_s == 2.0
    assert seen.step_s == 30.0
    assert seen.spread == pytest.approx((520.0 - 15.0) / 30.0)
    assert seen.observation().busiest_node_slots == 2


def test_flat_gradients_are_those_of_the_ordinary_model():
    images, labels = NoisyPatterns(seed=3, rank=0).batch(4)
    plain, flat = small_convnet(3), small_convnet(3)
    for model in (plain, flat):
        torch.nn.init.eye_(model[-1].weight)  # it begins with zeros, which let no gradient through
    values, gradient = _flatten(flat)
    for model in (plain, flat):
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])
    assert torch.equal(gradient, expected)
    values.sub_(gradient)  # a change to the vector is a change to the model
    assert not torch.equal(flat[0].weight, plain[0].weight)


def test_workers_share_the_task_but_not_the_samples():
    one, two, again = (NoisyPatterns(5, rank).batch(16)[0] for rank in (0, 1, 0))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
