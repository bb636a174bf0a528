from __future__ import annotations

from pathlib import Path

import pytest

from geminid.cluster import Cluster
from geminid.fields import InvalidInput
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.throughput import MODELS
from geminid.policies.slaq import Slaq
from geminid.sim.application import Application, LossCurve
from geminid.sim.profiles import built_in_applications, load_applications, load_profiles
from geminid.sim.profiles.built_in import FittedTruth, NoiseCurve
from geminid.sim.profiles.bytype import ByType
from geminid.sim.profiles.measured import MeasuredTruth, Shape, ValidationRuns
from geminid.sim.profiles.peers import Settings
from geminid.sim.simulator import Settings as Settled
from geminid.sim.simulator import Simulator
from geminid.sim.workload import TraceJob, Workload

PLACEMENTS = "placement,local_bsz,step_time,sync_time\n"
SHAPES = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
RUN = "progress,iteration,metric,grad_sqr,grad_var\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        {
            "cnn/placements.csv": PLACEMENTS + "1,8,0.2,0.0\n1,16,0.3,0.0\n12,8,0.5,0.2\n12,16,0.7,0.3\n2,8,0.3,0.1\n",
            "cnn/validation-16.csv": RUN + "100,100,0.5,4,8\n200,200,0.6,2,10\n",
            "cnn/validation-64.csv": RUN + "101,30,0.5,8,16\n199,60,0.6,4,30\n",
            "cnn/application.yaml": "{}",
        },
    )


def sentences(directory: Path) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        load_applications(directory)
    return [str(problem) for problem in caught.value.problems]


# --- Measured step times ---


def test_measured_rows_come_back_as_they_were_measured(cnn: Path) -> None:
    truth = load_applications(cnn)["cnn"].truth["v100"]
    assert truth.step_times((1,), 8) == (0.2, 0.2)
    assert truth.step_times((1, 2), 16) == (pytest.approx(0.4), 0.7)
    assert truth.most_slots == 3


def test_jobs_of_a_folder_report_the_losses_that_its_file_gives(cnn: Path) -> None:
    assert load_applications(cnn)["cnn"].loss is None
    write(cnn, {"cnn/application.yaml": "loss: {start: 6.0, end: 1.0, steepness: 4}"})
    application = load_applications(cnn)["cnn"]
    assert application.loss == LossCurve(start=6.0, end=1.0, steepness=4.0)
    job = TraceJob(name="j", submit_s=0.0, requested_slots=1, application="cnn")
    policy = Slaq()
    Simulator(Workload("w", (job,)), {"cnn": application}, Cluster.parse("v100:1x2"), policy, Settled()).run()
    losses = [loss for _, loss in policy._histories["j"].points]
    assert losses == sorted(losses, reverse=True)
    assert 1.0 < losses[-1] < losses[0] <= 6.0


def test_a_placement_is_the_same_wherever_its_ring_of_nodes_begins(cnn: Path) -> None:
    truth = load_applications(cnn)["cnn"].truth["v100"]
    assert truth.step_times((2, 1), 8) == truth.step_times((1, 2), 8) == truth.step_times([2, 1], 8)
    four = MeasuredTruth([(((4, 1, 3), 8), (0.1, 0.2)), (((1, 4, 3), 8), (0.1, 0.4))])
    assert four.step_times((1, 3, 4), 8) == (0.1, 0.2)
    assert four.step_times((3, 1, 4), 8) == (0.1, 0.4)


def test_between_measured_batches_times_are_linear(cnn: Path) -> None:
    truth = load_applications(cnn)["cnn"].truth["v100"]
    assert truth.step_times((1, 2), 12) == (pytest.approx(0.35), pytest.approx(0.6))


def test_beyond_measured_batches_computing_grows_in_proportion_and_synchronising_does_not(cnn: Path) -> None:
    truth = load_applications(cnn)["cnn"].truth["v100"]
    assert truth.step_times((1, 2), 32) == (pytest.approx(0.8), pytest.approx(1.1))
    assert truth.step_times((1, 2), 1) == truth.step_times((1, 2), 8)


def test_what_was_measured_repeatedly_counts_by_its_mean() -> None:
    truth = MeasuredTruth([(((1,), 8), (0.1, 0.1)), (((1,), 8), (0.3, 0.3))])
    assert truth.step_times((1,), 8) == (pytest.approx(0.2), pytest.approx(0.2))


def linear(nodes: int, slots: int, batch: int) -> tuple[float, float]:
    return 0.01 * batch + 0.1, 0.01 * batch + 0.02 * slots + 0.05 * nodes + 0.1


@pytest.fixture
def grid() -> MeasuredTruth:
    placements = [((p, b), linear(len(p), sum(p), b)) for p in [(1,), (2,), (4,), (1, 1), (4, 4)] for b in (8, 32)]
    shapes = [(Shape(n, k, b), linear(n, k, b)) for n in (4, 16) for k in (n, 4 * n) for b in (8, 32)]
    return MeasuredTruth(placements, shapes)


@pytest.mark.parametrize(("placement", "batch"), [((1, 3), 20), ((2, 2, 2), 8), ((1,) * 10, 11), ((4,) * 16, 32)])
def test_other_placements_are_interpolated_by_nodes_slots_and_batch(
    grid: MeasuredTruth, placement: tuple[int, ...], batch: int
) -> None:
    assert grid.step_times(placement, batch) == pytest.approx(linear(len(placement), sum(placement), batch))


def test_more_than_sixteen_nodes_count_as_sixteen(grid: MeasuredTruth) -> None:
    assert grid.step_times((1,) * 20, 8) == pytest.approx(linear(16, 20, 8))


def test_outside_of_what_was_measured_the_nearest_shape_stands_in(grid: MeasuredTruth) -> None:
    assert grid.step_times((8,), 8) == pytest.approx(linear(2, 8, 8))  # as many slots, on two nodes
    assert grid.step_times((8,) * 16, 20) == pytest.approx(linear(16, 64, 20))
    flat = MeasuredTruth([(((1,), 8), (0.1, 0.1)), (((2,), 8), (0.1, 0.2))])
    assert flat.step_times((1, 1), 8) == (0.1, 0.2)


def test_placements_of_one_shape_count_by_their_mean() -> None:
    rows = [((p, b), (1.0, s)) for p, s in [((1, 3), 2.0), ((2, 2), 4.0), ((1,), 1.0), ((4,), 1.0)] for b in (8, 16)]
    truth = MeasuredTruth([*rows], [(Shape(6, 6, b), (1.0, 9.0)) for b in (8, 16)])
    assert truth._measured[Shape(2, 4, 8)] == (1.0, 3.0)


# --- Gradients and progress ---


def test_gradient_statistics_are_linear_between_runs_and_constant_beyond_them() -> None:
    runs = ValidationRuns({16: [(4.0, 8.0), (2.0, 10.0)], 64: [(8.0, 16.0), (4.0, 30.0)]})
    assert runs.at(0, 16) == GradientStats(4.0, 8.0)
    assert runs.at(0, 40) == GradientStats(6.0, 12.0)
    assert runs.at(1, 28) == GradientStats(2.5, 15.0)
    assert runs.at(1, 1) == GradientStats(2.0, 10.0)
    assert runs.at(1, 1000) == GradientStats(4.0, 30.0)
    assert runs.at(7, 64) == runs.at(1, 64)


def test_progress_needed_is_the_least_of_all_runs(cnn: Path) -> None:
    application = load_applications(cnn)["cnn"]
    assert application.progress_steps.tolist() == [100.0, 199.0]
    assert application.total_steps == 199.0


# --- Folders ---


def test_what_an_application_file_leaves_out_follows_from_the_measurements(cnn: Path) -> None:
    application = load_applications(cnn)["cnn"]
    limits = application.limits["any type at all"]
    assert (limits.initial, limits.largest) == (16, 64)
    assert (limits.smallest_per_slot, limits.largest_per_slot) == (8, 16)
    assert (application.rescale_s, application.speed_divisor) == (30.0, 1.0)
    assert (application.pinned_slots, application.pinned_batch) == (None, None)
    assert application.initial_batch == 16


def test_an_application_file_says_the_rest(cnn: Path) -> None:
    lines = ["initial_batch_size: 32", "max_batch_size: 48", "min_per_slot_batch: 4", "max_per_slot_batch: 12"]
    lines += ["epochs: 1", "rescale: 2m", "speed_divisor: 1.5", "pinned_slots: 1", "pinned_batch_size: 32"]
    write(cnn, {"cnn/application.yaml": "\n".join(lines)})
    application = load_applications(cnn)["cnn"]
    limits = application.limits["t4"]
    assert (limits.initial, limits.largest, limits.smallest_per_slot, limits.largest_per_slot) == (32, 48, 4, 12)
    assert (application.total_steps, application.rescale_s, application.speed_divisor) == (100.0, 120.0, 1.5)
    assert (application.pinned_slots, application.pinned_batch) == (1, 32)


def test_settings_survive_a_file() -> None:
    for settings in (
        Settings(initial_batch_size=32, epochs=3, rescale_s=12.5, max_per_slot_batch={"": 8}),
        Settings(max_per_slot_batch={"t4": 8, "v100": 16}, pinned_slots=2, pinned_batch_size=64, speed_divisor=1.2),
        Settings(loss=LossCurve(start=6.9, end=1.0, steepness=25.0)),
        Settings(loss=LossCurve(start=0.7, end=0.1, steepness=8.0, exponential=True)),
        Settings(),
    ):
        assert Settings.from_yaml(settings.to_yaml()) == settings


def test_each_type_has_its_own_times_and_limits(cnn: Path) -> None:
    rows = "1,8,0.1,0.0\n1,64,0.4,0.0\n"
    write(cnn, {"cnn/placements-rtx.csv": PLACEMENTS + rows, "cnn/application.yaml": "max_per_slot_batch: {rtx: 32}"})
    (cnn / "cnn" / "placements.csv").unlink()
    application = load_applications(cnn)["cnn"]
    assert list(application.truth) == ["rtx"]
    assert application.limits["rtx"].largest_per_slot == 32
    assert application.truth["rtx2080ti"] is application.truth["rtx"]
    assert "v100" not in application.limits


def test_the_peers_applications_need_no_application_file(tmp_path: Path) -> None:
    runs = "".join(f"{100 * epoch},1,1,1,1\n" for epoch in range(1, 11))
    common = {"ncf/placements.csv": PLACEMENTS + "1,32,0.1,0\n", "ncf/validation-256.csv": RUN + runs}
    pollux = load_applications(write(tmp_path, common))["ncf"]
    assert (pollux.rescale_s, pollux.speed_divisor, pollux.pinned_slots, pollux.pinned_batch) == (30, 1.0, 1, 32768)
    (tmp_path / "ncf" / "placements.csv").rename(tmp_path / "ncf" / "placements-aws.csv")
    sia = load_applications(tmp_path)["ncf"]
    assert (sia.rescale_s, sia.speed_divisor, sia.pinned_slots) == (15, 1.5, None)


def test_what_cannot_be_replayed_is_left_out_with_the_reason(cnn: Path) -> None:
    files = {"pipe/placements.csv": PLACEMENTS + "8,1,0.1,0.3\n", "new/placements.csv": PLACEMENTS + "1,1,0.1,0\n"}
    write(cnn, {**files, "new/validation-8.csv": RUN + "1,1,1,1,1\n"})
    profiles = load_profiles(cnn)
    assert list(profiles.applications) == ["cnn"]
    assert profiles.skipped["pipe"].startswith("it has no validation-<batch size>.csv")
    assert profiles.skipped["new"].endswith("has no application.yaml")


# --- Mistakes ---


def test_a_folder_without_applications_is_refused(tmp_path: Path) -> None:
    assert sentences(tmp_path / "missing")[0].endswith("must be a folder with one folder per application.")
    assert sentences(tmp_path)[0].endswith("holds no application with measurements.")
    write(tmp_path, {"new/placements.csv": PLACEMENTS + "1,1,0.1,0\n"})
    assert "; new: it has no validation" in sentences(tmp_path)[0]


def test_mistakes_in_all_applications_are_reported_at_once(cnn: Path) -> None:
    write(
        cnn,
        {
            "cnn/validation-64.csv": RUN + "101,30,0.5,8,16\n99,60,0.6,4,30\n",
            "cnn/validation-big.csv": RUN,
            "rnn/application.yaml": "{}",
            "rnn/placements.csv": PLACEMENTS + "1,8,0.2,0.2\n",
            "rnn/validation-8.csv": RUN + "1,1,1,1,1\n",
        },
    )
    assert sentences(cnn) == [
        "cnn/validation-64.csv, line 3, column progress is 99.0, but must be more than in the line before.",
        "cnn/validation-big.csv must be named validation-<total batch size>.csv.",
        "rnn/placements.csv, line 2, column sync_time is 0.2, but must be less than step_time, which is 0.2.",
    ]


def test_a_run_must_have_a_row_for_every_epoch(cnn: Path) -> None:
    write(cnn, {"cnn/application.yaml": "epochs: 3"})
    assert sentences(cnn)[0] == "cnn/validation-16.csv must have a row for each of 3 epochs."


def test_mistakes_in_an_application_file_are_sentences(cnn: Path) -> None:
    write(cnn, {"cnn/application.yaml": "epochs: many\nrescales: 3s\nmax_per_slot_batch: {t4: 0}"})
    assert sentences(cnn) == [
        "cnn/application.yaml, epochs is 'many', but must be a whole number.",
        "cnn/application.yaml, max_per_slot_batch.t4 is 0, but must be a whole number, at least 1.",
        "cnn/application.yaml, rescales is not a known field (did you mean rescale?).",
    ]
    write(cnn, {"cnn/application.yaml": "loss: {start: 1, end: 2, steepnes: 3, exponential: maybe}"})
    assert sentences(cnn) == [
        "cnn/application.yaml, loss.steepness is missing: it must be a number.",
        "cnn/application.yaml, loss.exponential is 'maybe', but must be true or false.",
        "cnn/application.yaml, loss.end is 2.0, but must be less than start, which is 1.",
        "cnn/application.yaml, loss.steepnes is not a known field (did you mean steepness?).",
    ]
    write(cnn, {"cnn/application.yaml": "loss: {start: 2, end: -1, steepness: 0}"})
    assert sentences(cnn) == [
        "cnn/application.yaml, loss.end is -1.0, but must be a number, at least 0.",
        "cnn/application.yaml, loss.steepness is 0.0, but must be a number, at least 1e-06.",
    ]
    write(cnn, {"cnn/application.yaml": "loss: falls"})
    assert sentences(cnn) == ["cnn/application.yaml, loss is 'falls', but must be a mapping of field names to values."]
    write(cnn, {"cnn/application.yaml": "max_batch_size: 8\nmax_per_slot_batch: 4"})
    assert sentences(cnn) == [
        "cnn/application.yaml, max_batch_size is 8, but must be at least initial_batch_size, which is 16.",
        "cnn/application.yaml, max_per_slot_batch is 4, but must be at least min_per_slot_batch, which is 8.",
    ]
    (cnn / "cnn" / "application.yaml").write_bytes(b"\xff\xfe")
    assert sentences(cnn) == ["cnn/application.yaml cannot be read as UTF-8 text."]


def test_empty_measurements_are_refused(cnn: Path) -> None:
    write(cnn, {"cnn/placements.csv": PLACEMENTS})
    assert sentences(cnn) == ["cnn/placements.csv has no measurements."]


# --- By type ---


def test_types_go_by_their_aliases_and_one_may_stand_for_all() -> None:
    named = ByType({"aws": 1, "h100": 2})
    assert (named["t4"], named["T4"], named["h100"]) == (1, 1, 2)
    assert "v100" not in named
    assert dict(named) == {"aws": 1, "h100": 2}
    every = ByType({"h100": 2}, 0)
    assert (every["h100"], every["v100"], every["cpu"]) == (2, 0, 0)
    assert (list(every), len(every)) == (["h100", "any"], 2)


# --- Built in ---


@pytest.fixture(scope="module")
def built_in() -> dict[str, Application]:
    return built_in_applications()


def test_ten_models_on_seven_types_are_built_in(built_in: dict[str, Application]) -> None:
    assert len(built_in) == 10
    for name, application in built_in.items():
        assert application.name == name
        assert set(application.truth) == set(application.limits)
        assert {"t4", "v100", "rtx2080ti", "a100-40gb", "a100-80gb", "h100", "h200"} == set(application.truth)
        assert "a100" in application.truth  # by its alias


def test_limits_leave_every_type_a_way_to_run_every_model(built_in: dict[str, Application]) -> None:
    for application in built_in.values():
        for limits in application.limits.values():
            assert 1 <= limits.smallest_per_slot <= limits.largest_per_slot <= limits.largest
            assert limits.smallest_per_slot <= limits.initial <= limits.largest


def test_larger_memories_take_larger_batches(built_in: dict[str, Application]) -> None:
    for application in built_in.values():
        largest = [application.limits[t].largest_per_slot for t in ("rtx2080ti", "t4", "v100", "a100-80gb", "h200")]
        assert largest == sorted(largest)


def test_newer_types_are_faster(built_in: dict[str, Application]) -> None:
    for application in built_in.values():
        batch = application.limits["rtx2080ti"].largest_per_slot
        times = [application.truth[t].step_times((1,), batch)[1] for t in ("t4", "v100", "a100-40gb", "h100", "h200")]
        assert times == sorted(times, reverse=True)


# Milliseconds of a step on one H200 by batch size.
MEASURED_MS = {
    "resnet50-imagenet": {16: 20.7, 32: 21.8, 64: 21.9, 128: 29.4, 256: 54.5, 512: 104.2},
    "resnet18-cifar10": {64: 8.8, 128: 9.7, 256: 9.1, 512: 10.5, 1024: 10.1, 2048: 10.5, 4096: 12.1},
    "gpt2-124m": {2: 37.0, 4: 30.9, 8: 56.5, 16: 106.5, 32: 205.3},
}


@pytest.mark.parametrize("name", MEASURED_MS)
def test_built_in_step_times_are_those_measured_on_h200(built_in: dict[str, Application], name: str) -> None:
    truth = built_in[name].truth["h200"]
    errors = [truth.step_times((1,), batch)[1] * 1e3 / ms - 1.0 for batch, ms in MEASURED_MS[name].items()]
    assert max(map(abs, errors[-2:])) < 0.04  # off the plateau
    assert sum(map(abs, errors)) / len(errors) < 0.07  # on it, the measurements themselves differ by up to 20 %


def test_noise_grows_from_start_to_end_whatever_the_batch() -> None:
    curve = NoiseCurve(start=10.0, end=1000.0, shape=1.0, epochs=2, initial_batch=5)
    assert curve.at(0, 5).noise_scale(5) == pytest.approx(10.0 * 100.0**0.25)
    assert curve.at(1, 5) == curve.at(1, 500) == curve.at(99, 5)


def test_fitted_truth_wants_every_parameter_by_name() -> None:
    names = {p.name: p.lower for p in MODELS["pollux"].parameters} | {"alpha_c": 0.1, "beta_c": 0.01, "gamma": 1.0}
    assert FittedTruth(names, model="pollux", most_slots=8).step_times((1,), 10) == (pytest.approx(0.2),) * 2
    with pytest.raises(KeyError, match="launch_floor"):
        FittedTruth(names)
