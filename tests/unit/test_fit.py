from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from geminid.goodput.fit import Corrections, ThroughputFit, fit, fit_many, loss_of
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.throughput import MODELS, Shape

POLLUX = (0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5)
OURS = (0.1, 0.01, 4.0, 0.1, 0.02, 0.3, 0.05, 1.3, 0.01, 0.001, 0.2, 0.5, 1.5)
TRUTHS = {"pollux": POLLUX, "geminid": OURS}
GRID = [(n, n * k, m) for n in (1, 2, 3, 4) for k in (1, 2, 4) for m in (4, 8, 16, 32, 64)]


def observe(model: str, nodes: int, slots: int, batch: int, noise: float = 0.0, seed: int = 0) -> Observation:
    times = MODELS[model].step_times(np.array(TRUTHS[model]), Shape.of(nodes, slots, batch))
    rng = np.random.default_rng([seed, nodes, slots, batch])
    factor = np.exp(rng.normal(0.0, noise, 2))
    return Observation(
        nodes=nodes,
        slots=slots,
        busiest_node_slots=-(-slots // nodes),
        per_slot_batch=batch,
        accumulation_s=float(times.accumulation_s) * factor[0],
        step_s=float(times.step_s) * factor[1],
    )


def profile_of(model: str, *shapes: tuple[int, int, int], noise: float = 0.0) -> Profile:
    return Profile.of(observe(model, *shape, noise=noise) for shape in shapes)


def step_error(fitted: ThroughputFit, model: str, shapes: list[tuple[int, int, int]]) -> float:
    nodes, slots, batch = np.array(shapes, dtype=float).T
    truth = MODELS[model].step_times(np.array(TRUTHS[model]), Shape.of(nodes, slots, batch)).step_s
    return float(np.max(np.abs(fitted.step_times(Shape.of(nodes, slots, batch)).step_s / truth - 1.0)))


def test_pollux_parameters_are_recovered_from_noiseless_timings() -> None:
    fitted = fit(profile_of("pollux", *GRID), "pollux")
    assert fitted.parameters == pytest.approx(POLLUX, rel=0.05)


@pytest.mark.parametrize("model", list(TRUTHS))
@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.02), (0.03, 0.06)])
def test_step_times_are_recovered_within_the_noise(model: str, noise: float, tolerance: float) -> None:
    fitted = fit(profile_of(model, *GRID, noise=noise), model)
    assert step_error(fitted, model, [(2, 6, 12), (1, 3, 24), (4, 10, 48)]) < tolerance


@pytest.mark.parametrize("model", list(TRUTHS))
def test_many_fits_at_once_equal_single_ones(model: str) -> None:
    profiles = [profile_of(model, *GRID[: 5 + i], noise=0.02) for i in range(12)]
    for together, profile in zip(fit_many(profiles, model), profiles, strict=True):
        alone = fit(profile, model)
        assert together.loss == pytest.approx(alone.loss, abs=1e-6)


def test_the_loss_of_a_fit_is_the_loss_it_reports() -> None:
    profile = profile_of("pollux", *GRID, noise=0.02)
    fitted = fit(profile, "pollux")
    assert loss_of("pollux", fitted.parameters, profile) == pytest.approx(fitted.loss, rel=1e-9)


# --- Optimism about what was not observed ---


@pytest.mark.parametrize("model", list(TRUTHS))
def test_a_job_seen_on_one_slot_only_is_expected_to_scale(model: str) -> None:
    fitted = fit(profile_of(model, (1, 1, 8), (1, 1, 16), (1, 1, 32)), model)
    times = fitted.step_times(Shape.of([1, 1, 4], [1, 4, 16], [16, 16, 16])).step_s
    assert times == pytest.approx([times[0]] * 3, rel=1e-3)


@pytest.mark.parametrize("model", list(TRUTHS))
def test_half_of_the_time_is_constant_when_one_batch_size_was_seen(model: str) -> None:
    fitted = fit(profile_of(model, (1, 1, 16)), model)
    assert "a single observation" in fitted.reason
    pass_s = fitted.step_times(Shape.of(1, 1, [16, 32])).accumulation_s
    assert pass_s[1] / pass_s[0] == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("model", list(TRUTHS))
def test_until_seen_links_between_nodes_are_taken_to_be_a_little_slower_than_those_within(model: str) -> None:
    fitted = fit(profile_of(model, (1, 1, 16), (1, 2, 16), (1, 4, 16), (1, 1, 32), (1, 2, 32), (1, 4, 32)), model)
    within, across = fitted.step_times(Shape.of([1, 4], [4, 4], [16, 16], [4, 4])).step_s
    assert across > within
    if model == "pollux":
        assert fitted["alpha_n"] == pytest.approx(1.1 * fitted["alpha_r"])


def test_links_between_nodes_may_be_found_faster_once_seen() -> None:
    """Some machines are slower inside than between: only what was never observed is assumed."""
    rows = [replace(observe("pollux", 1, k, m), step_s=3.0) for k in (2, 4) for m in (8, 16)]
    rows += [observe("pollux", 2, k, m) for k in (2, 4) for m in (8, 16)]
    rows += [observe("pollux", 1, 1, m) for m in (8, 16)]
    fitted = fit(Profile.of(rows), "pollux")
    assert fitted["alpha_n"] < fitted["alpha_r"]


# --- Fits that cannot work ---


GOOD = observe("pollux", 1, 1, 16)


@pytest.mark.parametrize("model", list(TRUTHS))
@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, step_s=math.nan),
        replace(GOOD, accumulation_s=-1.0),
        replace(GOOD, accumulation_s=math.inf, step_s=math.inf),
        replace(GOOD, step_s=0.0),
        replace(GOOD, step_s=1e9),
        replace(GOOD, per_slot_batch=0),
        replace(GOOD, nodes=2),
    ],
    ids=["nan", "negative", "infinite", "zero", "absurd", "no batch", "more nodes than slots"],
)
def test_a_profile_of_nonsense_gives_the_prior_or_the_last_good_fit_with_a_reason(model: str, bad: Observation) -> None:
    nothing = fit(Profile((bad,)), model)
    assert nothing.source == "prior"
    assert "1 of 1 observations left out" in nothing.reason
    good = fit(profile_of(model, *GRID[:8]), model)
    kept = fit(Profile((bad,)), model, previous=good)
    assert kept.source == "previous"
    assert kept.parameters == good.parameters
    assert "last good fit" in kept.reason


@pytest.mark.parametrize("model", list(TRUTHS))
def test_the_prior_scales_perfectly(model: str) -> None:
    prior = fit(Profile(), model)
    assert "nothing measured yet" in prior.reason
    times = prior.step_times(Shape.of([1, 1, 8], [1, 8, 64], [10, 10, 10])).step_s
    assert times == pytest.approx([10.0] * 3, rel=1e-3)


@pytest.mark.parametrize("model", list(TRUTHS))
def test_nonsense_among_good_observations_is_left_out_and_said(model: str) -> None:
    clean = profile_of(model, *GRID)
    dirty = Profile((*clean.observations, replace(GOOD, step_s=math.nan)))
    fitted = fit(dirty, model)
    assert fitted.source == "fitted"
    assert fitted.parameters == pytest.approx(fit(clean, model).parameters)
    assert "1 of 61 observations left out (step_s is nan)" in fitted.reason


@pytest.mark.parametrize("model", list(TRUTHS))
@pytest.mark.parametrize("factor", [20.0, 1000.0])
def test_huge_outliers_are_set_aside_and_said(model: str, factor: float) -> None:
    rows = [observe(model, *shape, noise=0.02) for shape in GRID]
    for i in (7, 31):
        rows[i] = replace(rows[i], step_s=rows[i].step_s * factor)
    fitted = fit(Profile.of(rows), model)
    assert "2 of 60 observations set aside as outliers" in fitted.reason
    assert step_error(fitted, model, GRID) < 0.1


@pytest.mark.parametrize("model", list(TRUTHS))
def test_equal_observations_are_fitted_without_complaint(model: str) -> None:
    fitted = fit(Profile((GOOD,) * 5), model)
    assert fitted.source == "fitted"
    assert float(fitted.step_times(Shape.of(1, 1, 16)).step_s) == pytest.approx(GOOD.step_s, rel=1e-3)


@pytest.mark.parametrize("model", list(TRUTHS))
def test_observations_that_contradict_each_other_are_not_believed(model: str) -> None:
    """Two, a factor of a thousand apart: nobody can say which is wrong."""
    mad = Profile.of([observe(model, 1, 1, 16), replace(observe(model, 1, 1, 32), accumulation_s=1e3, step_s=1e3)])
    mad = Profile.of([*mad.observations, replace(observe(model, 1, 1, 64), accumulation_s=1e-3, step_s=1e-3)])
    good = fit(profile_of(model, *GRID), model)
    kept = fit(mad, model, previous=good)
    assert (kept.source, kept.parameters) == ("previous", good.parameters)
    assert "contradict" in kept.reason


def test_a_last_good_fit_of_another_model_or_of_nonsense_does_not_stand() -> None:
    pollux = fit(profile_of("pollux", *GRID), "pollux")
    assert fit(Profile(), "geminid", previous=pollux).source == "prior"
    broken = replace(pollux, parameters=(math.nan,) * 7)
    assert fit(Profile(), "pollux", previous=broken).source == "prior"


# --- The loss, term by term, and what is assumed of what was not observed ---


def written_out_loss(p: tuple[float, ...], rows: list[Observation]) -> float:
    """Pollux's loss as its paper's code has it, for one job, in plain Python."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = p
    grad_errors, step_errors = [], []
    for row in rows:
        grad = alpha_c + beta_c * row.per_slot_batch
        alpha, beta = (alpha_r, beta_r) if row.nodes == 1 else (alpha_n, beta_n)
        sync = alpha + beta * max(row.slots - 2, 0) if row.slots > 1 else 1e-12
        step = (grad**gamma + sync**gamma) ** (1 / gamma)
        grad_errors.append((math.log(grad) - math.log(row.accumulation_s)) ** 2)
        step_errors.append((math.log(step) - math.log(row.step_s)) ** 2)
    n = len(rows)
    penalty = 1e-3 * (gamma - 1) ** 2 + 1e-2 * ((beta_n / alpha_n) ** 2 + (beta_r / alpha_r) ** 2)
    return math.sqrt(sum(grad_errors) / n) + math.sqrt(sum(step_errors) / n) + penalty


@pytest.mark.parametrize(
    "parameters", [POLLUX, (0.2, 0.02, 0.3, 0.3, 0.1, 0.2, 7.0), (0.05, 0.003, 1.0, 1e-4, 0.5, 1e-4, 1.0)]
)
def test_the_loss_is_pollux_s(parameters: tuple[float, ...]) -> None:
    profile = profile_of("pollux", *GRID, noise=0.05)
    expected = written_out_loss(parameters, list(profile.observations))
    assert loss_of("pollux", parameters, profile) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("shapes", "at_the_bound"),
    [
        ([(1, 1, 8), (1, 1, 16)], {"alpha_r", "beta_r"}),
        ([(1, 1, 8), (1, 2, 16)], {"beta_r"}),
        ([(1, 1, 8), (2, 2, 16)], {"alpha_r", "beta_r", "beta_n"}),
        ([(1, 1, 8), (2, 4, 16), (2, 6, 16)], {"alpha_r", "beta_r"}),
        ([(1, 1, 8), (1, 2, 16), (2, 2, 32)], {"beta_r", "beta_n"}),
    ],
)
def test_what_was_not_observed_stays_at_its_optimistic_bound(
    shapes: list[tuple[int, int, int]], at_the_bound: set[str]
) -> None:
    fitted = fit(profile_of("pollux", *shapes), "pollux")
    names = ("alpha_r", "beta_r", "alpha_n", "beta_n")
    assert {n for n in names if fitted[n] <= 1.2e-8} - {"alpha_n", "beta_n"} == at_the_bound - {"beta_n"}
    assert ("beta_n" in at_the_bound) <= (fitted["beta_n"] <= 1.2e-8)


# --- Corrections at single batch sizes ---


def test_a_slow_batch_size_is_remembered_on_placements_where_it_was_never_run() -> None:
    """A batch of 24 takes 30 % longer than the curve through its neighbours: no formula of m and K can know that."""
    slow = {24: 1.3}
    rows = []
    for k in (1, 2):
        for m in (8, 16, 24, 32, 48, 64):
            seen = observe("geminid", 1, k, m)
            rows.append(replace(seen, accumulation_s=seen.accumulation_s * slow.get(m, 1.0), step_s=seen.step_s))
    fitted = fit(Profile.of(rows), "geminid")
    at = fitted.step_times(Shape.of(1, 4, [16, 24, 32])).accumulation_s
    assert at[1] > 1.1 * math.sqrt(at[0] * at[2])


def test_neighbouring_corrections_are_averaged_not_added() -> None:
    sizes = tuple(float(m) for m in range(96, 104))
    corrections = Corrections(sizes, (math.log(1.3),) * len(sizes))
    assert np.exp(corrections.log_factor(np.array(sizes))) == pytest.approx([1.3] * len(sizes))


def test_corrections_never_make_a_fit_worse_on_what_it_was_given() -> None:
    """A jagged curve, several sizes within each other's reach."""
    rng = np.random.default_rng(5)
    rows = []
    for m in (8, 16, 30, 32, 34, 60, 64, 96, 98, 100, 102, 104, 200, 400):
        factor = math.exp(rng.normal(0.0, 0.2))
        seen = observe("geminid", 1, 1, m)
        rows.append(replace(seen, accumulation_s=factor * seen.accumulation_s, step_s=factor * seen.step_s))
    fitted = fit(Profile.of(rows), "geminid")
    smooth = replace(fitted, corrections=Corrections())
    batch, measured = np.array([(r.per_slot_batch, r.step_s) for r in rows]).T
    error, smooth_error = (
        float(np.sqrt(np.mean(np.log(f.step_times(Shape.of(1, 1, batch)).step_s / measured) ** 2)))
        for f in (fitted, smooth)
    )
    assert error < smooth_error


def test_a_correction_reaches_its_neighbourhood_only() -> None:
    corrections = Corrections((32.0,), (math.log(1.2),))
    factor = np.exp(corrections.log_factor(np.array([16.0, 31.0, 32.0, 33.0, 64.0])))
    assert factor[[0, 4]] == pytest.approx([1.0, 1.0])
    assert factor[2] == pytest.approx(1.2)
    assert 1.0 < factor[1] < 1.2
    assert 1.0 < factor[3] < 1.2
