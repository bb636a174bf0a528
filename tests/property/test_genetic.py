"""Whatever the genetic algorithm is given, what it breeds is feasible."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from geminid.solve.genetic import Cells, Space, evolve


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Clusters of up to two types with a few jobs, of which the first ones may be pinned."""
    nodes, jobs = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    capacity = rng.integers(1, 9, nodes)
    node_type = np.sort(rng.integers(0, draw(st.integers(1, 2)), nodes))
    min_slots = rng.integers(1, draw(st.sampled_from([2, 4])), jobs)
    allowed = np.ones((jobs, nodes), dtype=bool)
    if node_type.any() and draw(st.booleans()):
        allowed[0] = node_type == node_type[-1]
    space = Space(
        capacity=capacity,
        current=np.zeros((jobs, nodes), dtype=np.int64),
        min_slots=min_slots,
        max_slots=min_slots + rng.integers(0, 12, jobs),
        max_nodes=draw(st.integers(1, 4)),
        pinned=np.zeros(jobs, dtype=bool),
        allowed=allowed,
        node_type=node_type,
        exclusive=draw(st.booleans()),
    )
    current = rng.integers(0, capacity + 1, (1, jobs, nodes))
    space.repair(current, rng)
    pinned = (np.arange(jobs) < draw(st.integers(0, jobs))) & current[0].any(axis=1)
    pinned &= np.cumsum(~pinned) == 0  # pinned jobs come first
    fields = {name: getattr(space, name) for name in Space.__slots__}
    return Space(**{**fields, "current": current[0], "pinned": pinned})


def assert_feasible(space: Space, matrix: NDArray[Any]) -> None:
    slots, nodes = matrix.sum(axis=1), np.count_nonzero(matrix, axis=1)
    assert (matrix >= 0).all()
    assert (matrix.sum(axis=0) <= space.capacity).all()
    assert ((slots == 0) | (slots >= space.min_slots)).all()
    assert (slots <= space.max_slots).all()
    assert (nodes <= space.max_nodes).all()
    assert not matrix[~space.allowed].any()
    assert (matrix[space.pinned] == space.current[space.pinned]).all()
    for row in matrix:
        assert len(set(space.node_type[row > 0].tolist())) <= 1
    if space.exclusive:
        assert ((matrix > 0) & (nodes > 1)[:, None]).sum(axis=0).max() <= 1


@given(spaces(), st.integers(0, 2**32))
def test_repair_makes_every_matrix_feasible(space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    population = rng.integers(0, 12, (6, *space.current.shape)).astype(np.int8)
    before = population.copy()
    space.repair(population, rng)
    for matrix, wild in zip(population, before, strict=True):
        assert_feasible(space, matrix)
        assert (matrix <= wild)[~space.pinned].all()


@given(spaces(), st.integers(0, 2**32))
def test_feasible_matrices_need_no_repair(space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    population = space.current[None].astype(np.int8)
    space.repair(population, rng)
    assert (population[0] == space.current).all()


@given(spaces(), st.integers(0, 2**32))
def test_children_are_feasible(space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    population = np.repeat(space.current[None], 4, axis=0).astype(np.int8)
    for _ in range(5):
        population = space.children(population, rng.integers(4, size=(2, 2)), rng)
        for matrix in population:
            assert_feasible(space, matrix)


@given(spaces(), st.integers(0, 2**32))
def test_evolution_keeps_no_copies_and_nothing_dominated(space: Space, seed: int) -> None:
    def evaluate(cells: Cells) -> NDArray[np.float64]:
        slots = cells.per_row(cells.slots)
        return np.stack([np.sqrt(slots).sum(axis=1), -slots.max(axis=1)], axis=1)

    rng = np.random.default_rng(seed)
    matrices, values = evolve(space, evaluate, space.current[None], rng, population=12, generations=6)
    assert len({matrix.tobytes() for matrix in matrices}) == len(matrices)
    for one in values:
        assert not ((values >= one).all(axis=1) & (values > one).any(axis=1)).any()
    for matrix in matrices:
        assert_feasible(space, matrix)
    start = evaluate(Cells.of(space.current[None]))[0]
    assert values[:, 0].max() >= start[0]
