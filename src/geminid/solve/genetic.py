"""A genetic algorithm over allocations: matrices jobs × nodes of slot counts, a whole population at a time.

NSGA-II with two values to maximise. An individual is a matrix, a population an array (individuals, jobs, nodes).
Matrices are sparse (a cluster of 64 slots has at most 64 cells that are not zero), so mutation and repair look at the
occupied cells only, of all individuals at once. Rows are in the order of precedence: where several jobs want the same,
the earlier row has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminid.solve.pareto import Array, Indices, rank, survivors, tournament

Counts = NDArray[np.signedinteger[Any]]
Mask = NDArray[np.bool_]

#: Probability that two parents exchange the rows before a random job; else their children are copies, then mutated.
CROSSOVER = 0.9

#: Probability that a mutation puts a job back to what it has now.
RESET = 0.1

#: Probability that a job loses slots by mutation.
THIN_JOB = 0.1

#: Probability that such a job loses its slots of any one node.
THIN_CELL = 0.1

#: Fewest pairs that are bred at a time. For every four missing children three pairs are bred: many exist already.
FEWEST_PAIRS = 16

#: Number of times that pairs are bred to find new children.
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Cells:
    """The occupied cells of a population, ordered by individual, job and node; all fields but one are one per cell."""

    shape: tuple[int, int, int]
    flat: Indices
    job: Indices
    node: Indices
    row: Indices
    column: Indices
    slots: Counts

    @classmethod
    def of(cls, population: Counts) -> Cells:
        """Find them."""
        _, jobs, nodes = shape = population.shape
        flat = np.flatnonzero(population.reshape(-1) > 0)
        row = flat // nodes
        individual = row // jobs
        node = flat - row * nodes
        job = row - individual * jobs
        return cls(shape, flat, job, node, row, individual * nodes + node, population.reshape(-1)[flat])

    def per_row(self, weights: NDArray[Any] | None = None) -> Indices:
        """Occupied nodes, or the sum of the weights, of every job of every individual: (individuals, jobs)."""
        individuals, jobs, _ = self.shape
        counts = np.bincount(self.row, weights, individuals * jobs).reshape(individuals, jobs)
        return counts.astype(np.intp, copy=False)

    def per_column(self, weights: NDArray[Any] | None = None) -> Indices:
        """Jobs, or the sum of the weights, on every node of every individual: (individuals, nodes)."""
        individuals, _, nodes = self.shape
        counts = np.bincount(self.column, weights, individuals * nodes).reshape(individuals, nodes)
        return counts.astype(np.intp, copy=False)


#: Two values of each individual, both to be maximised: (individuals, 2).
Evaluate = Callable[[Cells], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which matrices are feasible, and where the search starts from.

    ``allowed`` says on which nodes a job may run; ``node_type`` numbers the nodes' GPU types, of which a job may use
    one. ``pinned`` rows stay as they are in ``current``; they must come first. With ``exclusive`` no node is shared by
    two jobs that are each spread over several nodes.
    """

    capacity: NDArray[np.int64]
    current: NDArray[np.int64]
    min_slots: NDArray[np.int64]
    max_slots: NDArray[np.int64]
    max_nodes: int
    pinned: Mask
    allowed: Mask
    node_type: NDArray[np.int64]
    exclusive: bool

    @property
    def dtype(self) -> type[np.signedinteger[Any]]:
        """The smallest type that holds any count."""
        return np.int8 if self.capacity.max(initial=0) <= np.iinfo(np.int8).max else np.int16

    # --- Repair ---

    def repair(self, population: Counts, rng: np.random.Generator) -> None:
        """Make every matrix feasible, in place, by taking slots away."""
        population[:, self.pinned] = self.current[self.pinned]
        if not self.allowed.all():
            population *= self.allowed
        cells = Cells.of(population)
        if (self.node_type != self.node_type[0]).any():
            cells = self._one_type(population, cells)
        if self.exclusive:
            cells = self._one_distributed_job_per_node(population, cells)
        cells = self._at_most(population, cells, rng)
        self._within_capacity(population, cells)
        if (self.min_slots > 1).any():
            population[population.sum(axis=2, dtype=np.int64) < np.where(self.pinned, 0, self.min_slots)] = 0

    def _one_type(self, population: Counts, cells: Cells) -> Cells:
        """Every job keeps the GPU type on which it has most slots."""
        types = int(self.node_type.max()) + 1
        cell_type = self.node_type[cells.node]
        slots = np.bincount(cells.row * types + cell_type, cells.slots, int(np.prod(cells.shape[:2])) * types)
        best = slots.reshape(-1, types).argmax(axis=1)
        return _without(population, cells, cell_type != best[cells.row])

    def _one_distributed_job_per_node(self, population: Counts, cells: Cells) -> Cells:
        """Of the jobs that are spread over several nodes, only the first stays on each node."""
        spread = np.flatnonzero(cells.per_row().reshape(-1)[cells.row] > 1)
        column = cells.column[spread]
        first = np.empty(cells.shape[0] * cells.shape[2], dtype=np.intp)
        first[column[::-1]] = spread[::-1]  # the last to be written, which is the first job, remains
        late = np.zeros(len(cells.flat), dtype=bool)
        late[spread] = first[column] != spread
        return _without(population, cells, late & ~self.pinned[cells.job])

    def _at_most(self, population: Counts, cells: Cells, rng: np.random.Generator) -> Cells:
        """Cut jobs with too many slots or nodes, at random nodes."""
        slots, nodes = cells.per_row(cells.slots), cells.per_row()
        wide = np.nonzero(((slots > self.max_slots) | (nodes > self.max_nodes)) & ~self.pinned)
        if not wide[0].size:
            return cells
        rows = population[wide].astype(np.int64)
        shuffled = rng.permuted(np.broadcast_to(np.arange(rows.shape[1]), rows.shape), axis=1)
        kept = np.take_along_axis(rows, shuffled, axis=1)
        kept = np.diff(np.minimum(np.cumsum(kept, axis=1), self.max_slots[wide[1], None]), axis=1, prepend=0)
        kept[np.cumsum(kept > 0, axis=1) > self.max_nodes] = 0
        np.put_along_axis(rows, shuffled, kept, axis=1)
        population[wide] = rows
        return Cells.of(population)

    def _within_capacity(self, population: Counts, cells: Cells) -> None:
        """Where a node has been given out more than once, the later jobs are cut."""
        overfull = (cells.per_column(cells.slots) > self.capacity).reshape(-1)
        crowded = np.flatnonzero(overfull[cells.column])
        if not crowded.size:
            return
        crowded = crowded[np.argsort(cells.column[crowded] * cells.shape[1] + cells.job[crowded])]
        column, slots = cells.column[crowded], cells.slots[crowded].astype(np.int64)
        before = np.cumsum(slots) - slots  # slots given out by earlier jobs, from the first cell of the node on
        first = np.empty(len(overfull), dtype=np.intp)
        first[column[::-1]] = before[::-1]
        left = self.capacity[cells.node[crowded]] - before + first[column]
        population.reshape(-1)[cells.flat[crowded]] = np.minimum(slots, np.maximum(left, 0))

    # --- Variation ---

    def mutate(self, population: Counts, rng: np.random.Generator) -> None:
        """Change every matrix a little, in place; the results need repair."""
        _, jobs, nodes = population.shape
        rows = population.reshape(-1, nodes)
        reset = _bernoulli(len(rows), RESET, rng)
        rows[reset] = self.current[reset % jobs]
        thinned = _bernoulli(len(rows), THIN_JOB, rng)
        cells = _bernoulli(len(thinned) * nodes, THIN_CELL, rng)
        rows[thinned[cells // nodes], cells % nodes] = 0
        self._raise(population, rng)
        if (self.min_slots > 1).any():
            self._complete(population, rng)

    def _raise(self, population: Counts, rng: np.random.Generator) -> None:
        """On nodes with free slots, one job on average is raised, and one of those that are there already.

        The new count is uniform between the old one and the node's capacity.
        """
        _, jobs, nodes = population.shape
        cells = Cells.of(population)
        free = (cells.per_column(cells.slots) < self.capacity).reshape(-1)
        there = np.flatnonzero(free[cells.column])
        share = 1.0 / cells.per_column().reshape(-1)[cells.column[there]]
        there = there[rng.random(len(there)) < share]
        columns = np.flatnonzero(free)
        hits = _bernoulli(len(columns) * jobs, 1.0 / jobs, rng)
        column, job = columns[hits // jobs], hits % jobs
        individual, node = np.divmod(column, nodes)
        chosen = np.concatenate([cells.flat[there], (individual * jobs + job) * nodes + node])
        values = population.reshape(-1)
        values[chosen] = rng.integers(values[chosen], self.capacity[chosen % nodes], endpoint=True)

    def _complete(self, population: Counts, rng: np.random.Generator) -> None:
        """Jobs that have slots but fewer than they need get the rest, on the nodes they use and then random others."""
        slots = population.sum(axis=2, dtype=np.int64)
        short = np.nonzero((slots > 0) & (slots < self.min_slots))
        rows = population[short].astype(np.int64)
        order = np.argsort(rng.random(rows.shape) - (rows > 0), axis=1)
        room = np.broadcast_to(self.capacity, rows.shape) * self.allowed[short[1]]
        filled = np.minimum(np.cumsum(np.take_along_axis(room, order, axis=1), axis=1), self.min_slots[short[1], None])
        np.put_along_axis(rows, order, np.diff(filled, axis=1, prepend=0), axis=1)
        population[short] = rows

    def children(self, population: Counts, parents: Indices, rng: np.random.Generator) -> Counts:
        """Two feasible children of every pair of parents (pairs, 2)."""
        _, jobs, nodes = population.shape
        crossing = rng.random((len(parents), 1)) < CROSSOVER
        exchanged = (np.arange(jobs) < rng.integers(jobs, size=(len(parents), 1))) & crossing
        one, other = parents[:, :1], parents[:, 1:]
        source = np.concatenate([np.where(exchanged, other, one), np.where(exchanged, one, other)])
        result: Counts = population.reshape(-1, nodes).take(source * jobs + np.arange(jobs), axis=0)
        self.mutate(result, rng)
        self.repair(result, rng)
        return result


def evolve(
    space: Space,
    evaluate: Evaluate,
    start: NDArray[Any],
    rng: np.random.Generator,
    *,
    population: int = 100,
    generations: int = 100,
) -> tuple[Counts, Array]:
    """The best matrices found, none of which dominates another, and their values (matrices, 2).

    ``start`` (individuals, jobs, nodes) is the first generation, which counts as one; it is repaired first. No matrix
    is twice in a population. The search ends early only if no new matrix can be found.
    """
    people = start.astype(space.dtype)
    space.repair(people, rng)
    people = people[_new(people, set())]
    values = evaluate(Cells.of(people))
    best, distance = survivors(values, population)
    people, values = people[best], values[best]
    for _ in range(generations - 1):
        children = _offspring(space, people, values, distance, population, rng)
        if not len(children):
            break
        people = np.concatenate([people, children])
        values = np.concatenate([values, evaluate(Cells.of(children))])
        best, distance = survivors(values, population)
        people, values = people[best], values[best]
    undominated = rank(values)[0] == 0
    return people[undominated], values[undominated]


def _offspring(
    space: Space, people: Counts, values: Array, distance: Array, wanted: int, rng: np.random.Generator
) -> Counts:
    """As many new individuals as wanted, fewer if the same ones come up again and again."""
    known = set(_keys(people))
    found: list[Counts] = []
    for _ in range(ATTEMPTS):
        pairs = max(3 * wanted // 4, FEWEST_PAIRS)
        contenders = _draw(len(people), 4 * pairs, rng).reshape(-1, 2)
        parents = tournament(values, distance, contenders).reshape(-1, 2)
        children = space.children(people, parents, rng)
        found.append(children[_new(children, known)[:wanted]])
        wanted -= len(found[-1])
        if not wanted:
            break
    return np.concatenate(found)


def _draw(size: int, count: int, rng: np.random.Generator) -> Indices:
    """``count`` of ``size`` individuals, every one about as often: random permutations one after the other."""
    rounds = -(-count // size)
    return rng.permuted(np.broadcast_to(np.arange(size), (rounds, size)), axis=1).reshape(-1)[:count]


def _keys(people: Counts) -> list[bytes]:
    """What identifies each individual."""
    size = people[0].nbytes if len(people) else 1
    keys: list[bytes] = people.reshape(len(people), -1).view(f"V{size}")[:, 0].tolist()
    return keys


def _new(people: Counts, known: set[bytes]) -> list[int]:
    """Indices of the individuals that are not known yet, which become so."""
    result = []
    for index, key in enumerate(_keys(people)):
        if key not in known:
            known.add(key)
            result.append(index)
    return result


def _without(population: Counts, cells: Cells, gone: Mask) -> Cells:
    """Empty some of the occupied cells."""
    if not gone.any():
        return cells
    population.reshape(-1)[cells.flat[gone]] = 0
    kept = ~gone
    fields = (cells.flat, cells.job, cells.node, cells.row, cells.column, cells.slots)
    flat, job, node, row, column, slots = (field[kept] for field in fields)
    return Cells(cells.shape, flat, job, node, row, column, slots)


def _bernoulli(trials: int, probability: float, rng: np.random.Generator) -> Indices:
    """Which of many independent trials succeed, by drawing the gaps between successes."""
    expected = trials * probability
    gaps = rng.geometric(probability, size=int(expected + 6.0 * expected**0.5) + 6)
    successes = np.cumsum(gaps) - 1
    while successes.size and successes[-1] < trials - 1:
        more = np.cumsum(rng.geometric(probability, size=len(gaps))) + successes[-1]
        successes = np.concatenate([successes, more])
    return successes[successes < trials]
