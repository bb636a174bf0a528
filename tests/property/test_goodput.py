"""What must hold of the goodput model for any job and any configuration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminid.configuration import Configuration
from geminid.goodput.batchplan import BatchLimits, best_plan, candidate_plans, evaluate
from geminid.goodput.efficiency import GradientStats, efficiency, gain
from geminid.goodput.fit import Corrections, ThroughputFit, fit_many
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.table import GoodputTable, JobModel
from geminid.goodput.throughput import MODELS, Shape

times = st.floats(1e-6, 10.0)
any_float = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def limits(draw: st.DrawFn) -> BatchLimits:
    initial = draw(st.integers(1, 512))
    smallest = draw(st.integers(1, initial))
    return BatchLimits(
        initial=initial,
        largest=initial * draw(st.integers(1, 64)),
        smallest_per_slot=smallest,
        largest_per_slot=smallest + draw(st.integers(0, 1024)),
    )


@st.composite
def fits(draw: st.DrawFn) -> ThroughputFit:
    model = draw(st.sampled_from(sorted(MODELS)))
    parameters = tuple(
        draw(times) if p.upper > 100 else draw(st.floats(p.lower, p.upper)) for p in MODELS[model].parameters
    )
    sizes = draw(st.lists(st.integers(1, 512), unique=True, max_size=3)) if model == "geminid" else []
    factors = tuple(draw(st.floats(-0.5, 0.5)) for _ in sizes)
    return ThroughputFit(model, parameters, "fitted", 0.0, 1, Corrections(tuple(map(float, sizes)), factors))


gradients = st.builds(GradientStats, st.floats(0.0, 1e3), st.floats(1e-6, 1e3))
shapes = st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 8 * n)))


@given(
    st.lists(st.tuples(fits(), limits(), gradients), min_size=1, max_size=4), st.lists(shapes, min_size=1, max_size=4)
)
def test_the_table_equals_the_scalar_definition(
    rows: list[tuple[ThroughputFit, BatchLimits, GradientStats]], columns: list[tuple[int, int]]
) -> None:
    configurations = [Configuration(gpu_type="any", nodes=n, slots=k) for n, k in columns]
    models = {
        str(i): JobModel({"any": fitted}, {"any": limit}, gradient) for i, (fitted, limit, gradient) in enumerate(rows)
    }
    table = GoodputTable.of(configurations, models)
    for i, (fitted, limit, gradient) in enumerate(rows):
        for j, (nodes, slots) in enumerate(columns):
            best = best_plan(fitted, gradient, limit, nodes=nodes, slots=slots)
            # The table picks the candidate in single precision; what it reports for it is exact.
            assert table.goodput[i, j] == pytest.approx(best.goodput, rel=2e-6)
            if best.goodput > 0:
                batch, steps = int(table.per_slot_batch[i, j]), int(table.accumulation_steps[i, j])
                assert (batch, steps) in set(candidate_plans(limit, slots))
                plan = evaluate(
                    fitted,
                    gradient,
                    limit,
                    nodes=nodes,
                    slots=slots,
                    per_slot_batch=batch,
                    accumulation_steps=steps,
                )
                assert plan.goodput == pytest.approx(table.goodput[i, j], rel=1e-9)
                assert plan.efficiency <= 1.0
            else:
                assert table.per_slot_batch[i, j] == table.accumulation_steps[i, j] == 0


@given(limits(), st.integers(1, 64))
def test_every_candidate_respects_every_limit(limit: BatchLimits, slots: int) -> None:
    for batch, steps in candidate_plans(limit, slots):
        assert steps >= 0
        assert limit.smallest_per_slot <= batch <= limit.largest_per_slot
        assert limit.initial <= limit.total(slots, batch, steps) <= limit.largest
        assert slots * (batch - 1) * (steps + 1) < limit.largest


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(1.0, 1e4), st.floats(1.0, 1e4))
def test_efficiency_falls_with_the_batch_and_gain_rises(g: float, v: float, first: float, second: float) -> None:
    small, large = sorted((first, second))
    assert efficiency(g, v, large) <= efficiency(g, v, small) + 1e-12 <= 1.0 + 2e-12
    assert gain(g, v, large) >= gain(g, v, small) * (1 - 1e-12)
    assert 1.0 - 1e-9 <= gain(g, v, large) <= large * (1 + 1e-9)


@given(fits(), limits(), shapes, st.floats(0.01, 100.0), st.floats(1.0, 100.0))
def test_more_noise_never_asks_for_a_smaller_batch(
    fitted: ThroughputFit, limit: BatchLimits, shape: tuple[int, int], noise: float, more: float
) -> None:
    nodes, slots = shape
    calm = best_plan(fitted, GradientStats(1.0, noise), limit, nodes=nodes, slots=slots)
    noisy = best_plan(fitted, GradientStats(1.0, noise * more), limit, nodes=nodes, slots=slots)
    same = math.isclose(calm.throughput, noisy.throughput, rel_tol=1e-9)
    assert noisy.total_batch >= calm.total_batch or same


observations = st.builds(
    Observation,
    nodes=st.integers(-1, 4),
    slots=st.integers(-1, 16),
    per_slot_batch=st.one_of(st.integers(-1, 1024), any_float, st.just(10**400), st.none()),
    accumulation_s=st.one_of(any_float, times),
    step_s=st.one_of(any_float, times),
    busiest_node_slots=st.integers(-1, 16),
    link_slowdown=st.one_of(st.just(1.0), any_float),
    reports=st.integers(-1, 3),
)


@given(st.lists(st.lists(observations, max_size=6), min_size=1, max_size=4), st.sampled_from(sorted(MODELS)))
def test_whatever_is_measured_a_fit_is_finite_and_positive(rows: list[list[Observation]], model: str) -> None:
    for fitted in fit_many([Profile.of(job) for job in rows], model):
        assert np.isfinite(fitted.parameters).all()
        for parameter, value in zip(MODELS[model].parameters, fitted.parameters, strict=True):
            assert parameter.lower * (1 - 1e-9) <= value <= parameter.upper * 1.2
        step = fitted.step_times(Shape.of([1, 1, 4], [1, 8, 32], [1, 64, 512])).step_s
        assert np.isfinite(step).all()
        assert (step > 0).all()
        assert fitted.source == "fitted" or fitted.reason


@given(fits(), shapes, st.integers(1, 512))
def test_synchronising_never_makes_a_step_faster(fitted: ThroughputFit, shape: tuple[int, int], batch: int) -> None:
    predicted = fitted.step_times(Shape.of(*shape, batch))
    assert predicted.step_s >= predicted.accumulation_s * (1 - 1e-12)
