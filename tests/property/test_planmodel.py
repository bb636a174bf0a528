"""The model of execution plans: facts of its formula, fits that recover what is true, and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.executionplan import BUILT_IN_PLANS, ExecutionPlan
from geminid.goodput.memory import ModelMemory
from geminid.goodput.planfit import PlanObservation, PlanPrior, fit_many, predict
from geminid.goodput.planmodel import GEMINID, PARAMETERS, PlanShape, step_times
from geminid.gputypes import named_gpu_type

DP, CHECKPOINTED, SHARDED, OFFLOADED = (BUILT_IN_PLANS[n] for n in ("dp", "dp-gc", "zero", "zero-offload"))
A100 = named_gpu_type("a100-80gb")
PRIOR = PlanPrior.of_type(A100)
TYPICAL = np.array([[p.typical for p in PARAMETERS]])

parameter_vectors = st.lists(st.floats(-1.5, 1.5), min_size=len(PARAMETERS), max_size=len(PARAMETERS)).map(
    lambda moves: TYPICAL * np.exp([moves])
)
placements = st.lists(st.integers(1, 8), min_size=1, max_size=4).map(tuple)
model_sizes = st.floats(1e8, 1e10)


def pipeline(stages: int, tensor: int = 1) -> ExecutionPlan:
    return ExecutionPlan(name="split", pipeline_stages=stages, tensor_parallel=tensor)


def seconds(parameters: np.ndarray, size: float, *shapes: PlanShape) -> list[float]:
    return step_times(parameters, np.array([[2.0 * size]]), PlanShape.stack(shapes))[0].tolist()


@given(parameter_vectors, model_sizes, placements, st.floats(0.5, 64))
def test_steps_get_longer_with_more_samples_and_with_recomputed_activations(parameters, size, placement, batch) -> None:
    plain = PlanShape.of(DP, placement, batch)
    larger, again = PlanShape.of(DP, placement, 2 * batch), PlanShape.of(CHECKPOINTED, placement, batch)
    once, twice, recomputed = seconds(parameters, size, plain, larger, again)
    assert 0 < once < twice
    assert once < recomputed


@given(parameter_vectors, model_sizes, st.integers(2, 8))
def test_more_micro_batches_fill_a_pipeline(parameters, size, stages) -> None:
    """Per sample, the bubble shrinks; with many micro-batches it is gone but for what stages cost."""
    quiet = parameters.copy()
    quiet[:, 1] = quiet[:, 9] = quiet[:, 11] = 1e-30  # no overhead, optimiser or cost of stages
    quiet[:, 14] = 1.0
    alone = PlanShape.of(DP, (1,), 1.0)
    one, many = (PlanShape.of(pipeline(stages), (stages,), 1.0, passes) for passes in (1, 1000))
    single, bubble, filled = seconds(quiet, size, alone, one, many)
    assert bubble == pytest.approx(single, rel=1e-3)
    assert filled / 1000 == pytest.approx(single / stages, rel=0.02)


@given(parameter_vectors, model_sizes, st.integers(1, 3))
def test_only_plain_plans_suffer_from_nodes_with_an_odd_number_of_slots(parameters, size, pairs) -> None:
    parameters[:, 12] = 100.0
    even, odd = (2 * pairs, 2 * pairs), (2 * pairs - 1, 2 * pairs + 1)
    for plan, suffers in ((DP, True), (SHARDED, True), (OFFLOADED, False)):
        as_pairs, broken = seconds(parameters, size, PlanShape.of(plan, even, 1.0), PlanShape.of(plan, odd, 1.0))
        assert (broken > as_pairs + 50 * (1 - 2 / sum(odd))) == (suffers and sum(odd) > 2)


def test_slots_must_be_whole_replicas() -> None:
    with pytest.raises(ValueError, match="6 slots are not whole replicas of 4 slots each"):
        PlanShape.of(pipeline(2, 2), (6,), 1.0)


@given(parameter_vectors, model_sizes)
def test_derivatives_of_the_formula_are_exact(parameters, size) -> None:
    shapes = PlanShape.stack([PlanShape.of(p, (3, 2), 4.0) for p in (DP, CHECKPOINTED, SHARDED, OFFLOADED)])
    volume = np.array([[2.0 * size]])
    for index in range(len(PARAMETERS)):
        moved = parameters.astype(complex)
        moved[:, index] += 1j * 1e-20 * parameters[:, index]
        exact = step_times(moved, volume, shapes).imag / 1e-20
        up, down = parameters.copy(), parameters.copy()
        up[:, index] *= 1 + 1e-6
        down[:, index] *= 1 - 1e-6
        numeric = (step_times(up, volume, shapes) - step_times(down, volume, shapes)) / 2e-6
        total = step_times(parameters, volume, shapes)
        assert np.allclose(exact / total, numeric / total, atol=1e-6)


# --- Fits ---


def truth_of(seed: int, size: float, count: int) -> tuple[list[PlanObservation], list[PlanObservation]]:
    """Samples and rows held out of a job whose parameters are within the prior's spread."""
    rng = np.random.default_rng(seed)
    parameters = np.exp(PRIOR.mean + rng.normal(0, 0.3, len(PARAMETERS)) * np.minimum(PRIOR.spread, 1.0))[None]
    parameters[0, 0] = 10.0 ** rng.uniform(-3, -1)
    shapes = [
        PlanShape.of(plan, placement, 32 / sum(placement))
        for plan in (DP, CHECKPOINTED, SHARDED, OFFLOADED)
        for placement in ((1,), (2,), (4,), (8,), (1, 1), (2, 2), (4, 4), (8, 8), (2, 2, 2, 2))
    ]
    rows = [PlanObservation(s, t) for s, t in zip(shapes, seconds(parameters, size, *shapes), strict=True)]
    order = rng.permutation(len(rows))
    return [rows[i] for i in order[:count]], [rows[i] for i in order[count:]]


@pytest.mark.parametrize("seed", range(5))
def test_a_fit_to_twelve_exact_samples_predicts_the_rest(seed) -> None:
    size = 1e9
    samples, rest = truth_of(seed, size, 12)
    (fit,) = fit_many([samples], [size], PRIOR)
    predicted = fit.step_times(PlanShape.stack(row.shape for row in rest))
    error = np.abs(predicted / [row.step_s for row in rest] - 1)
    assert np.median(error) < 0.05


def test_what_was_measured_is_predicted_as_measured_although_the_formula_does_not_follow_it() -> None:
    shape = PlanShape.of(DP, (8, 8), 2.0)
    others = [PlanObservation(PlanShape.of(DP, (n,), 32 / n), 3.2 / n + 0.05) for n in (1, 2, 4, 8)]
    (without,) = fit_many([others], [1e9], PRIOR)
    (fit,) = fit_many([[*others, PlanObservation(shape, 0.9)]], [1e9], PRIOR)
    at = PlanShape.stack([shape])
    assert abs(fit.step_times(at)[0] / 0.9 - 1) < 0.1 < abs(without.step_times(at)[0] / 0.9 - 1)


def test_jobs_are_fitted_together_as_they_are_alone() -> None:
    jobs = [truth_of(seed, 1e9, count)[0] for seed, count in ((0, 3), (1, 9), (2, 1))]
    together = fit_many(jobs, [1e9] * 3, PRIOR)
    shapes = PlanShape.stack(PlanShape.of(DP, (n,), 4.0) for n in (1, 2, 4, 8))
    for fit, seen in zip(together, jobs, strict=True):
        (alone,) = fit_many([seen], [1e9], PRIOR)
        assert np.allclose(np.log(alone.step_times(shapes)), np.log(fit.step_times(shapes)), atol=0.02)
    assert np.array_equal(predict(together, shapes)[1], together[1].step_times(shapes))


def test_similar_jobs_teach_the_links_of_the_machines() -> None:
    """A job measured on one node only predicts several nodes better with what others have seen there."""
    slow = TYPICAL.copy()
    slow[0, 4] = 2e-9  # links between nodes an order of magnitude slower than the catalogue says
    slow[0, 0] = 0.01
    one_node = [PlanShape.of(DP, (n,), 32 / n) for n in (1, 2, 4, 8)]
    several = [PlanShape.of(DP, placement, 32 / sum(placement)) for placement in ((2, 2), (4, 4), (8, 8))]

    def observed(*shapes: PlanShape) -> list[PlanObservation]:
        return [PlanObservation(s, t) for s, t in zip(shapes, seconds(slow, 1e9, *shapes), strict=True)]

    similar = fit_many([observed(*one_node, *several)], [1e9], PRIOR)
    truth, at = np.array([row.step_s for row in observed(*several)]), PlanShape.stack(several)
    (alone,), (taught,) = (fit_many([observed(*one_node)], [1e9], p) for p in (PRIOR, PRIOR.with_jobs(similar)))
    assert np.abs(taught.step_times(at) / truth - 1).max() < 0.1 < np.abs(alone.step_times(at) / truth - 1).min()


def test_the_catalogue_gives_faster_links_to_faster_machines() -> None:
    slow, fast = (PlanPrior.of_type(named_gpu_type(name)) for name in ("t4", "h100"))
    assert (slow.mean[3:5] > fast.mean[3:5]).all()
    assert PRIOR.with_jobs([]) is PRIOR
    assert fit_many([], [], PRIOR) == []
    assert GEMINID.parameters is PARAMETERS


# --- Memory ---

GIB = 2.0**30
GPT_3B = ModelMemory(parameters=2.7e9, activation_bytes_per_sample=3.55e9)


@given(placements, st.floats(0.5, 64), model_sizes, st.floats(1e6, 1e10))
def test_no_saving_plan_needs_more_memory_than_the_plain_one(placement, batch, size, activations) -> None:
    model = ModelMemory(parameters=size, activation_bytes_per_sample=activations)
    plain, *saving = (PlanShape.of(p, placement, batch) for p in (DP, CHECKPOINTED, SHARDED, OFFLOADED))
    peaks = model.peak_bytes(PlanShape.stack([plain, *saving]))
    assert (peaks[1:] <= peaks[0]).all()
    assert peaks[0] >= 16 * size * (1 - 1e-12)


@given(placements, model_sizes, st.floats(1e7, 1e10), st.floats(8, 192), st.sampled_from(list(BUILT_IN_PLANS.values())))
def test_the_largest_micro_batch_fits_and_one_more_sample_does_not(placement, size, activations, gib, plan) -> None:
    model = ModelMemory(parameters=size, activation_bytes_per_sample=activations)
    shape = PlanShape.of(plan, placement, 1.0)
    largest = float(model.largest_micro_batch(shape, gib * GIB))
    if largest:
        assert model.fits(replace(shape, micro_batch=np.asarray(largest)), gib * GIB)
    assert not model.fits(replace(shape, micro_batch=np.asarray(largest + 1)), gib * GIB)


def test_peaks_are_those_measured_on_an_h200() -> None:
    """GPT of 2.7 billion parameters, Adam in single precision; gigabytes measured by PyTorch."""
    for batch, measured in ((2, 44.4), (4, 51.5), (8, 65.7), (16, 94.2)):
        assert float(GPT_3B.peak_bytes(PlanShape.of(DP, (1,), batch))) == pytest.approx(measured * 1e9, rel=0.1)
    h200 = named_gpu_type("h200").memory_bytes
    plain = float(GPT_3B.largest_micro_batch(PlanShape.of(DP, (1,), 1), h200))
    assert 16 <= plain < 32 <= float(GPT_3B.largest_micro_batch(PlanShape.of(CHECKPOINTED, (1,), 1), h200))


def test_a_measured_peak_corrects_the_activations_only() -> None:
    shape = PlanShape.of(DP, (1,), 8.0)
    doubled = ModelMemory(parameters=1e9, activation_bytes_per_sample=2e9)
    halved = replace(doubled, activation_bytes_per_sample=1e9)
    assert halved.calibrated(shape, float(doubled.peak_bytes(shape))).activation_bytes_per_sample == pytest.approx(2e9)
    small = PlanShape.of(DP, (1,), 0.1)
    assert doubled.calibrated(small, float(doubled.peak_bytes(small))) is doubled
