"""Fronts, crowding and survival, on points whose answer can be seen."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from geminid.solve.pareto import rank, survivors, tournament

points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30)


def dominates(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a != b and a[0] >= b[0] and a[1] >= b[1]


@given(points)
def test_fronts_are_what_peeling_gives(values: list[tuple[int, int]]) -> None:
    expected = [-1] * len(values)
    left, front = set(range(len(values))), 0
    while left:
        peeled = {i for i in left if not any(dominates(values[j], values[i]) for j in left)}
        for i in peeled:
            expected[i] = front
        left -= peeled
        front += 1
    assert rank(np.array(values, dtype=float))[0].tolist() == expected


def test_distance_is_the_gap_between_neighbours_and_infinite_at_the_ends() -> None:
    front, distance = rank(np.array([[0.0, 10.0], [1.0, 9.0], [6.0, 4.0], [10.0, 0.0]]))
    assert front.tolist() == [0, 0, 0, 0]
    assert distance[[0, 3]].tolist() == [np.inf, np.inf]
    np.testing.assert_allclose(distance[1:3], [0.6 + 0.6, 0.9 + 0.9])


def test_copies_of_a_point_add_no_variety() -> None:
    _, distance = rank(np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]))
    assert sorted(distance[1:3])[0] == 0.0


def test_whole_fronts_survive_first_and_the_least_crowded_of_the_last() -> None:
    values = np.array([[0.0, 0.0], [2.0, 1.0], [1.0, 2.0], [1.5, 1.5], [1.6, 1.4]])
    kept, distance = survivors(values, 3)
    assert set(kept[:2]) == {1, 2}
    assert kept[2] in (3, 4)
    assert len(distance) == 3


def test_a_tournament_is_won_by_the_dominating_then_by_the_less_crowded() -> None:
    values = np.array([[1.0, 1.0], [0.5, 0.5], [2.0, 0.0]])
    distance = np.array([0.1, 9.0, 0.2])
    pairs = np.array([[0, 1], [1, 0], [0, 2], [2, 0]])
    assert tournament(values, distance, pairs).tolist() == [0, 0, 2, 2]
