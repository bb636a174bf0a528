"""SLAQ: losses are fitted and predicted, and slots go where they are predicted to fall most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.engine.engine import Engine
from geminid.engine.events import Reported, Submitted, Tick
from geminid.engine.models import ModelKeeper
from geminid.policies.base import ClusterView, JobFacts
from geminid.policies.lossfits import LossFits, falling, fit_losses
from geminid.policies.slaq import History, Slaq
from geminid.sim.application import LossCurve
from geminid.sim.profiles.built_in import built_in_applications
from geminid.sim.simulator import Settings, Simulator
from geminid.sim.workload import TraceJob, Workload


def points(curve: LossCurve, until: float, count: int = 20) -> list[tuple[float, float]]:
    return [(x, curve.at(x)) for x in np.linspace(until / count, until, count).tolist()]


@settings(deadline=None)
@given(
    exponential=st.booleans(),
    steepness=st.floats(2.0, 30.0),
    until=st.floats(0.05, 0.5),
    start=st.floats(1.0, 500.0),
    scale=st.floats(1e-3, 1e9),
)
def test_both_families_are_recognised_and_predicted(
    exponential: bool, steepness: float, until: float, start: float, scale: float
) -> None:
    curve = LossCurve(start=start, end=0.1 * start, steepness=steepness, exponential=exponential)
    history = points(curve, until)
    fits = fit_losses([[(scale * x, loss) for x, loss in history]])
    true = curve.at(until) - curve.at(1.2 * until)
    seen = history[0][1] - history[-1][1]
    predicted = float(fits.falls_by(np.array([[0.2 * until * scale]]))[0, 0]) * seen
    assert fits.known[0]
    assert predicted == pytest.approx(true, rel=0.15, abs=0.01 * seen)


def test_recent_points_weigh_more() -> None:
    """A loss that fell fast and then hardly at all is predicted to go on hardly falling."""
    early = [(float(x), 10.0 - x) for x in range(8)]
    late = [(float(x), 2.0 - 0.001 * x) for x in range(8, 20)]
    fits = fit_losses([early + late])
    assert float(fits.falls_by(np.array([[1.0]]))[0, 0]) < 0.01


def test_what_a_point_weighs_falls_with_its_age() -> None:
    """A kink in the middle: without weights the drop of the next step is predicted as 0.048 of the range seen."""
    kinked = [(float(x), 10.0 - 0.2 * min(x, 10) - 0.8 * max(x - 10, 0)) for x in range(1, 21)]
    predicted = float(fit_losses([kinked]).falls_by(np.array([[1.0]]))[0, 0])
    assert 0.052 < predicted < 0.8 / 9.8


def test_losses_that_do_not_fall_and_few_points_promise_nothing() -> None:
    rising = [(float(x), 1.0 + x) for x in range(10)]
    fits = fit_losses([rising, [(1.0, 2.0), (2.0, 1.0)], []])
    assert not fits.falls_by(np.ones((3, 2))).any()
    assert fits.known.tolist() == [False, False, False]


@pytest.mark.parametrize(
    ("steepness", "until", "exponential"), [(10.0, 0.5, False), (20.0, 0.9, False), (5.0, 0.5, True)]
)
def test_noise_does_not_raise_what_is_predicted(steepness: float, until: float, exponential: bool) -> None:
    """Losses that fall by 1.0 to 1.6 with a noise of 0.2: half of the predictions are above the truth, half below."""
    curve = LossCurve(start=3.0, end=1.0, steepness=steepness, exponential=exponential)
    rng = np.random.default_rng(7)
    histories = [[(x, loss + 0.2 * rng.standard_normal()) for x, loss in points(curve, until)] for _ in range(200)]
    fits = fit_losses(histories)
    predicted = fits.falls_by(np.full((200, 1), 0.1 * until))[:, 0] * fits.width
    true = curve.at(until) - curve.at(1.1 * until)
    assert 0.6 * true < np.median(predicted) < 1.4 * true
    assert np.mean(predicted) < 2.0 * true


def test_the_nearest_falling_sequence_keeps_what_falls_and_averages_what_rises() -> None:
    loss = np.array([[5.0, 4.0, 2.0, 4.0, 1.0, 0.0], [3.0, 1.0, 2.0, 0.0, 9.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    weight = np.array([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0, 0.0, 0.0], [1.0] * 6])
    smooth = falling(loss, weight)
    assert smooth[0].tolist() == pytest.approx([5.0, 4.0, 3.0, 3.0, 1.0, 0.0])
    assert smooth[1, :4].tolist() == pytest.approx([3.0, 4.0 / 3.0, 4.0 / 3.0, 0.0])
    assert smooth[2].tolist() == pytest.approx([3.5] * 6)


class Linear:
    """Every job is as fast as it has slots."""

    def of(self, view: ClusterView) -> tuple[tuple[Configuration, ...], NDArray[np.float64]]:
        sizes = tuple(Configuration(gpu_type="v100", nodes=1, slots=slots) for slots in range(1, 17))
        return sizes, np.tile([float(c.slots) for c in sizes], (len(view.jobs), 1))


def shares(histories: Mapping[str, list[tuple[float, float]]], **options: Any) -> dict[str, int]:
    """How many of 16 slots jobs get that have reported these losses."""
    policy = Slaq(**options)
    engine = Engine(Cluster.parse("v100:1x16"), policy, ModelKeeper(), debug=True)
    policy._goodputs = Linear()  # type: ignore[assignment]
    for name in histories:
        facts = JobFacts(id=name, submitted_s=0.0, requested_slots=1, max_slots=16)
        engine.handle(Submitted(0.0, facts))
    for turn in range(max(map(len, histories.values()))):
        for name, history in histories.items():
            if turn < len(history):
                engine.handle(Reported(5.0 * turn, name, progress=history[turn][0], loss=history[turn][1]))
        engine.handle(Tick(5.0 * turn))
    return {name: job.slots for name, job in engine.jobs.items()}


STEEP = [(100.0 * x, LossCurve(start=5.0, end=1.0, steepness=3.0).at(x / 100)) for x in range(1, 21)]
FLAT = [(100.0 * x, LossCurve(start=5.0, end=1.0, steepness=300.0).at(x / 100)) for x in range(1, 21)]


def test_the_job_on_the_steep_part_of_its_curve_gets_more_slots() -> None:
    got = shares({"flat": FLAT, "steep": STEEP})
    assert got["steep"] > got["flat"] >= 1
    assert sum(got.values()) == 16


def test_equal_slopes_give_equal_shares() -> None:
    assert set(shares({"a": STEEP, "b": STEEP}).values()) == {8}
    assert set(shares(dict.fromkeys("abcd", FLAT)).values()) == {4}


def test_fair_shares_do_not_look_at_losses() -> None:
    assert set(shares({"flat": FLAT, "steep": STEEP}, share="fair").values()) == {8}


def test_losses_of_different_units_compare() -> None:
    """The same curve in other units: drops are relative to the largest that each job has seen."""
    got = shares({"a": STEEP, "b": [(x, 1000.0 * loss) for x, loss in STEEP]})
    assert abs(got["a"] - got["b"]) <= 1


def test_drops_are_relative_to_the_largest_drop_seen_since_the_beginning() -> None:
    """Of two equal recent histories, that of a job which has come a long way counts less."""
    before = [(5.0 * x, 100.0 - x) for x in range(1, 16)]
    got = shares({"far": [*before, *STEEP], "near": STEEP})
    assert got["near"] > got["far"] >= 1


def test_a_job_whose_loss_has_stopped_falling_gets_its_smallest_size() -> None:
    """Enough points that do not fall are no reason to take a job for a new one."""
    rising = [(100.0 * x, 1.0 + 0.01 * x) for x in range(1, 21)]
    assert shares({"steep": STEEP, "rising": rising}) == {"steep": 15, "rising": 1}


def test_only_jobs_with_new_points_are_fitted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []

    def counting(histories: Sequence[Sequence[tuple[float, float]]]) -> LossFits:
        fitted.append(len(histories))
        return fit_losses(histories)

    monkeypatch.setattr("geminid.policies.slaq.fit_losses", counting)
    shares({"moves": STEEP, "stands": STEEP[:5] + [STEEP[5]] * 15})
    assert sum(fitted) == len(STEEP) + 6
    assert max(fitted) == 2


def test_reports_between_two_points_count_by_their_mean() -> None:
    history = History(4.0, [(100.0, 4.0)], 100.0)
    for progress, loss in ((102.0, 3.0), (104.0, 3.6), (106.0, 3.3), (106.0, 9.0)):
        history.report(progress, loss)
    assert history.points == [(100.0, 4.0), (pytest.approx(104.0), pytest.approx(3.3))]


def test_a_simulated_workload_is_finished_and_jobs_with_and_without_losses_share() -> None:
    applications = built_in_applications()
    silent = replace(applications["yolov3"], loss=None, name="silent")
    jobs = tuple(
        TraceJob(name=f"j{i}", submit_s=30.0 * i, requested_slots=1, application=application)
        for i, application in enumerate(["resnet18-cifar10", "silent", "neumf-ml20m", "yolov3", "lstm-wikitext2"])
    )
    world = Simulator(
        Workload("w", jobs),
        {**applications, "silent": silent},
        Cluster.parse("v100:2x4"),
        Slaq(),
        Settings(rescale_s=1.0, debug=True),
    )
    assert all(job.completed_s is not None for job in world.run().jobs)


def test_loss_curves_of_a_workload_decide_who_gets_slots() -> None:
    """Jobs that differ in nothing but the loss that the workload gives them: 8 slots are 4, 2 and 2 for three jobs."""
    curves = {"a": 1e4, "b": 1e4, "improves": 1.0}
    jobs = tuple(
        TraceJob(
            name=name,
            submit_s=0.0,
            requested_slots=1,
            application="lstm-wikitext2",
            loss=LossCurve(start=5.0, end=1.0, steepness=steepness),
        )
        for name, steepness in curves.items()
    )

    def first(policy: Slaq) -> str:
        world = Simulator(
            Workload("w", jobs), built_in_applications(), Cluster.parse("v100:1x8"), policy, Settings(rescale_s=0.0)
        )
        return min(world.run().jobs, key=lambda job: job.completed_s or math.inf).facts.id

    assert first(Slaq()) == "improves"
    assert first(Slaq(share="fair")) != "improves"


def test_a_loss_that_a_job_repeats_until_the_next_epoch_counts_once() -> None:
    history = History(4.0, [(100.0, 4.0)], 100.0, last_loss=4.0)
    for progress in (110.0, 150.0, 190.0):
        history.report(progress, 4.0)
    history.report(200.0, 3.0)
    assert history.points == [(100.0, 4.0), (200.0, 3.0)]
    for progress in (300.0, 400.0, 800.0):  # it does not fall any more
        history.report(progress, 3.0)
    assert history.points[2:] == [(400.0, 3.0), (800.0, 3.0)]
