from __future__ import annotations

import numpy as np
import pytest

from geminid.goodput.throughput import MODELS, PolluxModel, Shape, TopologyModel, p_norm

POLLUX = np.array([0.1, 0.01, 0.4, 0.05, 0.2, 0.02, 1.0])
#             floor slope δ   vol  gro  vol  gro  pair host h/m  sat  uns  γ
OURS = np.array([0.1, 0.01, 5.0, 0.2, 0.02, 0.4, 0.05, 1.5, 0.01, 1e-3, 0.1, 0.5, 1.0])


def test_pollux_without_overlap_adds_computing_and_synchronising() -> None:
    times = PolluxModel().step_times(POLLUX, Shape.of([1, 1, 1, 2], [1, 2, 4, 4], [10, 10, 10, 10]))
    assert times.accumulation_s == pytest.approx([0.2] * 4)
    assert times.step_s == pytest.approx([0.2, 0.2 + 0.2, 0.2 + 0.2 + 2 * 0.02, 0.2 + 0.4 + 2 * 0.05])


def test_pollux_with_full_overlap_is_nearly_the_slower_of_the_two() -> None:
    overlapped = POLLUX.copy()
    overlapped[-1] = 10.0
    step = PolluxModel().step_times(overlapped, Shape.of(4, 16, 10)).step_s
    assert step == pytest.approx(max(0.2, 0.4 + 14 * 0.05), rel=0.01)


def test_accumulation_adds_passes_without_synchronisation() -> None:
    times = PolluxModel().step_times(POLLUX, Shape.of(1, 2, 10))
    assert times.iteration_s(3) == pytest.approx(3 * 0.2 + 0.4)


def test_our_pass_time_has_a_plateau_and_then_a_slope() -> None:
    """Pollux's straight line cannot be flat for small batches and steep for large ones."""
    batch = np.array([1, 2, 4, 8, 64, 128, 256])
    compute = TopologyModel().step_times(OURS, Shape.of(1, 1, batch)).accumulation_s
    assert compute[2] / compute[0] == pytest.approx(1.0, abs=0.01)
    assert compute[-1] / compute[-2] == pytest.approx(2.0, abs=0.01)


def test_workers_on_one_node_wait_for_each_other() -> None:
    """The same slots and nodes, unevenly spread: the fuller node is slower."""
    even = TopologyModel().step_times(OURS, Shape.of(2, 8, 10, busiest_node_slots=4)).step_s
    uneven = TopologyModel().step_times(OURS, Shape.of(2, 8, 10, busiest_node_slots=7)).step_s
    assert uneven > even


def test_crossing_a_slower_link_costs_in_proportion_to_the_volume() -> None:
    model = TopologyModel()
    near = model.step_times(OURS, Shape.of(4, 4, 10)).step_s
    far = model.step_times(OURS, Shape.of(4, 4, 10, link_slowdown=3.0)).step_s
    assert far - near == pytest.approx(2 * 0.4 * 2 * 3 / 4)


def test_a_pair_of_nodes_has_its_own_factor() -> None:
    model = TopologyModel()
    alone = OURS.copy()
    alone[7] = 1.0
    pair = Shape.of([2, 3], [6, 6], [10, 10], [4, 4])
    assert model.step_times(OURS, pair).step_s[0] > model.step_times(alone, pair).step_s[0]
    assert model.step_times(OURS, pair).step_s[1] == model.step_times(alone, pair).step_s[1]


@pytest.mark.parametrize("model", list(MODELS.values()), ids=list(MODELS))
def test_derivatives_are_exact(model: PolluxModel | TopologyModel) -> None:
    rng = np.random.default_rng(1)
    logarithmic = np.array([p.logarithmic for p in model.parameters])
    middle = np.array([(p.lower + p.upper) / 4 for p in model.parameters])
    parameters = np.where(logarithmic, np.exp(rng.normal(-3, 1, (5, len(middle)))), middle)
    nodes = rng.integers(1, 4, (5, 9))
    shape = Shape.of(nodes, nodes * rng.integers(1, 5, (5, 9)), rng.integers(1, 99, (5, 9)))
    factor = np.exp(rng.normal(0.0, 0.1, (5, 9)))
    times, slopes = model.sensitivities(parameters[:, None, :], shape, factor)
    plain = model.step_times(parameters[:, None, :], shape, factor)
    assert times.step_s == pytest.approx(plain.step_s)
    assert times.accumulation_s == pytest.approx(plain.accumulation_s)
    for i, parameter in enumerate(model.parameters):
        step = 1e-6
        up, down = parameters.copy(), parameters.copy()
        up[:, i] = up[:, i] * np.exp(step) if parameter.logarithmic else up[:, i] + step
        down[:, i] = down[:, i] * np.exp(-step) if parameter.logarithmic else down[:, i] - step
        above = model.step_times(up[:, None, :], shape, factor)
        below = model.step_times(down[:, None, :], shape, factor)
        assert slopes.step[..., i] == pytest.approx(np.log(above.step_s / below.step_s) / (2 * step), abs=1e-6)
        assert slopes.accumulation[..., i] == pytest.approx(
            np.log(above.accumulation_s / below.accumulation_s) / (2 * step), abs=1e-6
        )


def test_p_norm_spans_sum_and_maximum_without_overflow() -> None:
    a, b = np.array([3.0, 1e300, 1e-100]), np.array([4.0, 1e300, 1e100])
    assert p_norm(a, b, np.array(1.0)) == pytest.approx([7.0, 2e300, 1e100])
    assert p_norm(a, b, np.array(2.0))[0] == pytest.approx(5.0)
    assert p_norm(a, b, np.array(200.0))[0] == pytest.approx(4.0)
