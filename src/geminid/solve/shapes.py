"""The best allocation matrix by integer programming: one shape for every job, and room on the nodes for every shape.

A shape is a number of nodes and slots, and its pieces, one per node, are as equal as can be. Variables are

- for every job: to stay where it is, or to take one of its shapes elsewhere, or neither;
- for every node and size: how many jobs of that size it has as a whole, and whether it has a piece of that size.

Constraints: as many whole jobs and pieces of each size as the chosen shapes need; no node above its capacity; at most
one piece per node, so that pieces can be handed out to jobs in any order (and distributed jobs do not interfere).
The relaxation is so tight that HiGHS nearly always proves optimality without branching. The bound it proves holds for
all matrices that spread jobs evenly, over as few nodes as possible or one more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from geminid.solve.genetic import Space
from geminid.solve.lp import minimise
from geminid.solve.pareto import Array

#: Relative gap at which the proof stops.
GAP = 1e-4

#: Number of nodes of the search tree after which the proof stops.
TREE_NODES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What is to be minimised, summed over jobs: ``moving`` by job, nodes and slots; inf where impossible."""

    moving: Array
    staying: Array
    idle: Array


@dataclass(frozen=True, slots=True)
class Solution:
    """A matrix, its cost, and a cost below which nothing can be."""

    matrix: NDArray[np.int64]
    cost: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Shape:
    """A choice of one job: slots of one GPU type in pieces, or to stay (no pieces)."""

    job: int
    gpu_type: int
    pieces: tuple[int, ...]


@dataclass(slots=True)
class _Program:
    """The columns and coefficients of the integer program while it is written."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, cost: float, upper: float, coefficients: list[tuple[int, float]]) -> None:
        """One more column."""
        for row, value in coefficients:
            self.rows.append(row)
            self.columns.append(len(self.costs))
            self.values.append(value)
        self.costs.append(cost)
        self.upper.append(upper)


def best_matrix(space: Space, costs: Costs) -> Solution | None:
    """The feasible matrix of least cost; None if none is found, which takes a search tree out of all bounds."""
    jobs, nodes = space.current.shape
    sizes, types = int(space.capacity.max()), int(space.node_type.max()) + 1
    capacity_row, piece_row = jobs, jobs + nodes  # rows: jobs, then capacities, then pieces of nodes, then sizes
    whole_size_row = jobs + 2 * nodes
    piece_size_row = whole_size_row + types * sizes
    program = _Program()
    choices = []
    for shape in _shapes(space, costs):
        job = shape.job
        coefficients: list[tuple[int, float]] = [(job, 1.0)]
        if not shape.pieces:
            cost = costs.staying[job]
            used = np.flatnonzero(space.current[job]).tolist()
            coefficients += [(capacity_row + node, float(space.current[job, node])) for node in used]
            if len(used) > 1 and space.exclusive:
                coefficients += [(piece_row + node, 1.0) for node in used]
        else:
            cost = costs.moving[job, len(shape.pieces), sum(shape.pieces)]
            first = whole_size_row if len(shape.pieces) == 1 else piece_size_row
            for size in set(shape.pieces):
                row = first + shape.gpu_type * sizes + size - 1
                coefficients.append((row, -float(shape.pieces.count(size))))
        program.add(float(cost - costs.idle[job]), 1.0, coefficients)
        choices.append(shape)
    for node, (gpu_type, capacity) in enumerate(zip(space.node_type.tolist(), space.capacity.tolist(), strict=True)):
        for size in range(1, capacity + 1):
            needs = capacity_row + node, float(size)
            of_size = gpu_type * sizes + size - 1
            program.add(0.0, capacity // size, [needs, (whole_size_row + of_size, 1.0)])
            program.add(0.0, 1.0, [needs, (piece_size_row + of_size, 1.0), (piece_row + node, 1.0)])
    height = piece_size_row + types * sizes
    lower, upper = np.full(height, -np.inf), np.zeros(height)
    lower[whole_size_row:] = 0.0
    lower[:jobs][space.pinned] = 1.0
    upper[:jobs], upper[piece_row:whole_size_row] = 1.0, 1.0
    upper[capacity_row:piece_row] = space.capacity
    matrix = csc_array((program.values, (program.rows, program.columns)), shape=(height, len(program.costs)))
    found = minimise(
        np.array(program.costs),
        np.array(program.upper),
        matrix,
        lower,
        upper,
        integer=True,
        gap=GAP,
        tree_nodes=TREE_NODES,
    )
    if found is None:
        return None
    counts = np.rint(found.values).astype(np.int64)
    chosen = [shape for shape, taken in zip(choices, counts, strict=False) if taken]
    idle = float(costs.idle.sum())
    return Solution(_matrix(space, chosen, counts[len(choices) :]), idle + found.cost, idle + found.bound)


def _shapes(space: Space, costs: Costs) -> list[_Shape]:
    """All choices of all jobs that are not worse than another one which fits wherever they do."""
    result = []
    for job in range(len(space.current)):
        if np.isfinite(costs.staying[job]):
            result.append(_Shape(job, -1, ()))
        if space.pinned[job]:
            continue
        for gpu_type in set(space.node_type[space.allowed[job]].tolist()):
            of_type = (space.node_type == gpu_type) & space.allowed[job]
            per_node, nodes = int(space.capacity[of_type].max()), int(of_type.sum())
            cheapest: dict[int, float] = {}
            for slots in range(int(space.min_slots[job]), int(space.max_slots[job]) + 1):
                fewest = -(-slots // per_node)
                for n in range(fewest, min(fewest + 1, slots, nodes, space.max_nodes) + 1):
                    cost = float(costs.moving[job, n, slots])
                    if cost < min(cheapest.get(n, np.inf), costs.idle[job]):
                        cheapest[n] = cost
                        share, more = divmod(slots, n)
                        result.append(_Shape(job, gpu_type, (share + 1,) * more + (share,) * (n - more)))
    return result


def _matrix(space: Space, chosen: list[_Shape], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hand the room on the nodes out to the jobs; ``counts`` are of whole jobs and pieces, by node and size."""
    matrix = np.zeros_like(space.current)
    room: dict[tuple[int, bool, int], list[int]] = {}
    position = 0
    for node, (gpu_type, capacity) in enumerate(zip(space.node_type.tolist(), space.capacity.tolist(), strict=True)):
        for size in range(1, capacity + 1):
            for whole in (True, False):
                room.setdefault((gpu_type, whole, size), []).extend([node] * int(counts[position]))
                position += 1
    for shape in chosen:
        if not shape.pieces:
            matrix[shape.job] = space.current[shape.job]
        for size in shape.pieces:
            matrix[shape.job, room[shape.gpu_type, len(shape.pieces) == 1, size].pop()] += size
    return matrix
