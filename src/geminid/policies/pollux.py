"""Pollux: slots, nodes and batch sizes of all jobs together, for goodput, by a genetic algorithm.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI '21.

A decision is a matrix of slots, jobs × nodes. A job's speed-up is its goodput on N nodes and K slots, at its best batch
size, relative to its goodput on a fair share of the cluster: ceil(slots / jobs) slots on ceil(nodes / slots) nodes.
The fitness is a power mean over all jobs of (speed-up × nodes / slots + 0.001); where a job's row changes, its speed-up
counts times max(age − restarts·δ, 0)/(age + δ). The second value is the speed-up per slot of the nodes in use, which
keeps variety in the population; the matrix with the best fitness is taken. A job may have twice the slots it has been
measured on, at most on 16 nodes, and one that has not been measured counts as scaling perfectly.

NSGA-II searches, warm-started with what the last round left undominated. Infeasible matrices are repaired: one job
that is spread over several nodes per node, at most the job's own limit, the nodes' capacity, at least the job's
minimum; where jobs compete, those with less attained service go first, then those submitted earlier.

This is the policy of the paper's evaluation. The AdaptDL product differs in the fitness, the mutation and the order.

Deviations. What runs now is always in the first generation. Existing children are bred again 5 times, not 100 times.
Jobs that need several slots to run at all are completed by mutation to what they need. Jobs whose batch size
is fixed are tabulated at that size. Which jobs may not be disturbed while they run is an option, for lack of a property
of jobs. The number of nodes to wish for follows from the present speed-up per slot (relative to one slot) instead of a
search over cluster sizes. ``solver=exact`` replaces the genetic algorithm by an integer program on the same objective
(``geminid.solve.shapes``), which proves how good its matrix is: the search leaves many jobs without slots for several
rounds after many have arrived together, the program does not.

Mixed GPU types. Pollux knows only one. Here every job's model is the one of the type it runs on, or else of the type
it has been measured on most, and is taken to hold everywhere; as a job cannot span types, repair leaves it the type on
which a matrix gives it most slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from geminid.configuration import Configuration
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.table import GoodputTable, JobModel
from geminid.job import Adaptivity
from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.options import AtLeast, Positive
from geminid.policies.pollux_objective import IntArray, Objective, mean_of_cost
from geminid.solve.genetic import Space, evolve
from geminid.solve.pareto import Array
from geminid.solve.shapes import best_matrix

#: No job runs on more nodes than these.
MAX_NODES = 16

#: Speed-up per slot below which the cluster should shrink.
LOW_UTILITY = 0.35

#: Speed-up per slot above which the cluster should grow.
HIGH_UTILITY = 0.65

#: Speed-up per slot of the size that is then chosen.
TARGET_UTILITY = 0.5

#: What all GPU types are called in the tables of a policy that cannot tell them apart.
ANY = "any"


def restart_factor(job: JobView, now_s: float, cost_s: float) -> float:
    """How much of a change's gain is left after what changes have cost the job so far."""
    age_s = job.age_s(now_s)
    return max(age_s - job.restarts * cost_s, 0.0) / (age_s + cost_s) if age_s + cost_s > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Round:
    """What is left of a round for the next: matrices (matrices, jobs, nodes), with the names of rows and columns."""

    jobs: tuple[str, ...]
    nodes: tuple[str, ...]
    matrices: NDArray[Any]

    def adapted(self, jobs: Sequence[str], nodes: Sequence[str]) -> NDArray[Any]:
        """The matrices for other jobs and nodes: new ones are empty, old ones gone."""
        result = np.zeros((len(self.matrices), len(jobs), len(nodes)), dtype=self.matrices.dtype)
        rows, columns = _common(self.jobs, jobs), _common(self.nodes, nodes)
        result[:, rows[1][:, None], columns[1]] = self.matrices[:, rows[0][:, None], columns[0]]
        return result


def _common(old: Sequence[str], new: Sequence[str]) -> NDArray[np.intp]:
    """Positions of the common names in the old and the new sequence: (2, names)."""
    known = {name: position for position, name in enumerate(old)}
    pairs = [(known[name], position) for position, name in enumerate(new) if name in known]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2).T


@dataclass(slots=True)
class _Goodputs:
    """Goodput by job, nodes and slots. A job is tabulated only up to the power of two above what it may have."""

    _tables: dict[tuple[int, int, int], GoodputTable] = field(default_factory=dict)

    def refresh(
        self, models: Mapping[str, JobModel], max_slots: Mapping[str, int], nodes: int, per_node: int
    ) -> dict[str, tuple[IntArray, IntArray, Array]]:
        """For every job the nodes, slots and goodputs of its possible configurations."""
        by_size: dict[int, dict[str, JobModel]] = {}
        for job_id, model in models.items():
            size = 1 << (max_slots[job_id] - 1).bit_length()
            by_size.setdefault(size, {})[job_id] = model
        tables, result = {}, {}
        for size, members in by_size.items():
            key = size, nodes, per_node
            table = self._tables.get(key) or GoodputTable.empty(_configurations(*key))
            table = tables[key] = table.refresh(members)
            columns = np.array([(c.nodes, c.slots) for c in table.configurations]).T
            for job_id, goodput in zip(table.job_ids, table.goodput, strict=True):
                result[job_id] = columns[0], columns[1], goodput
        self._tables = tables
        return result


def _configurations(most_slots: int, nodes: int, per_node: int) -> list[Configuration]:
    return [
        Configuration(gpu_type=ANY, nodes=n, slots=k)
        for n in range(1, min(nodes, most_slots) + 1)
        for k in range(n, min(n * per_node, most_slots) + 1)
    ]


@dataclass(frozen=True, slots=True)
class Problem:
    """A decision to be made: jobs in order of precedence, what is feasible, what is good, and goodputs as they are."""

    jobs: Sequence[JobView]
    space: Space
    objective: Objective
    goodput: Array


@dataclass(slots=True)
class Pollux(Policy):
    """Goodput by genetic algorithm; see the module's docstring.

    ``p`` is the exponent of the power mean (more negative: fairer). ``restart_s`` is δ; with None, every job's own
    rescale cost. ``interference`` avoids that distributed jobs share nodes. ``pinned`` names jobs that keep their slots
    once they run. ``autoscale`` asks for more or fewer nodes.
    """

    name = "pollux"
    paper = "Qiao et al., OSDI '21"
    objective = "power mean of goodputs relative to a fair share, by genetic algorithm; sizes and batches adapt"
    adapts_batch = True
    needs_models = True

    p: float = -1.0
    interval_s: Positive | None = 60.0
    population: Annotated[int, AtLeast(2)] = 100
    generations: Annotated[int, AtLeast(0)] = 100
    restart_s: Annotated[float, AtLeast(0.0)] | None = 30.0
    interference: bool = True
    autoscale: bool = False
    pinned: tuple[str, ...] = ()
    solver: Literal["genetic", "exact"] = "genetic"
    seed: int = 0
    _rng: np.random.Generator = field(init=False)
    _goodputs: _Goodputs = field(default_factory=_Goodputs)
    _last: _Round | None = None
    _bound: float | None = None

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def decide(self, view: ClusterView) -> Decision:
        """Search for the best matrix, starting from the last round's."""
        nodes = np.flatnonzero(view.usable_slots)
        if not view.jobs or not nodes.size:
            return Decision({})
        problem = self._problem(view, nodes)
        matrix = self._solve(problem) if self.solver == "exact" else None
        if matrix is None:
            matrix = self._search(problem, [view.cluster.nodes[node].name for node in nodes.tolist()])
        desired = _by_type(view, self._desired_nodes(problem, matrix)) if self.autoscale else None
        return Decision(_assignments(problem.jobs, nodes, matrix), desired_nodes=desired)

    @property
    def bound(self) -> float | None:
        """No matrix that spreads jobs evenly has a better fitness at the last decision; None if nothing is proven."""
        return self._bound

    def _search(self, problem: Problem, nodes: Sequence[str]) -> NDArray[Any]:
        """The best matrix that the genetic algorithm finds."""
        ids = [job.id for job in problem.jobs]
        start = [problem.space.current[None]]
        if self._last is not None:
            start.append(self._last.adapted(ids, nodes))
        matrices, values = evolve(
            problem.space,
            problem.objective,
            np.concatenate(start),
            self._rng,
            population=self.population,
            generations=self.generations,
        )
        self._last = _Round(tuple(ids), tuple(nodes), matrices)
        self._bound = None
        best: NDArray[Any] = matrices[values[:, 0].argmax()]
        return best

    def _solve(self, problem: Problem) -> NDArray[Any] | None:
        """The best matrix; None if even the search for one has to be given up."""
        solution = best_matrix(problem.space, problem.objective.costs(problem.space))
        if solution is None:
            return None
        self._bound = mean_of_cost(solution.bound / len(problem.jobs), self.p)
        return solution.matrix

    # --- Setting up ---

    def _problem(self, view: ClusterView, nodes: NDArray[np.intp]) -> Problem:
        """The search space and the objective of this moment, jobs in order of precedence."""
        capacity = np.array(view.usable_slots, dtype=np.int64)[nodes]
        pinned = {
            job.id for job in view.jobs if job.id in self.pinned and job.allocation and job.stands(view.usable_slots)
        }
        jobs = sorted(
            view.jobs,
            key=lambda job: (
                job.id not in pinned,
                job.attained_service_gpu_s(view.now_s),
                job.facts.submitted_s,
            ),
        )
        position = {int(node): column for column, node in enumerate(nodes)}
        current = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
        for row, job in enumerate(jobs):
            for node, slots in job.allocation:
                if node in position:
                    current[row, position[node]] = slots
        np.minimum(current, capacity, out=current)
        node_type = view.cluster.node_type[nodes]
        type_names = np.array([gpu_type.name for gpu_type in view.cluster.gpu_types])
        max_slots = np.array([min(_most_slots(job), int(capacity.sum())) for job in jobs], dtype=np.int64)
        space = Space(
            capacity=capacity,
            current=current,
            min_slots=np.array([job.facts.min_slots for job in jobs], dtype=np.int64),
            max_slots=max_slots,
            max_nodes=MAX_NODES,
            pinned=np.array([job.id in pinned for job in jobs]),
            allowed=np.array([_allowed(job, type_names)[node_type] for job in jobs]),
            node_type=node_type,
            exclusive=self.interference,
        )
        costs_s = [job.facts.rescale_s if self.restart_s is None else self.restart_s for job in jobs]
        goodput = self._goodput(jobs, space)
        objective = Objective(
            speedup=goodput / self._fair_goodput(jobs, space)[:, None, None],
            current=current,
            factor=np.array([restart_factor(job, view.now_s, cost) for job, cost in zip(jobs, costs_s, strict=True)]),
            must_move=current.sum(axis=1) < [job.slots for job in jobs],
            capacity=capacity,
            scale=len(nodes) / int(capacity.sum()),
            p=self.p,
        )
        return Problem(jobs, space, objective, goodput)

    def _goodput(self, jobs: Sequence[JobView], space: Space) -> Array:
        """Goodput by job, nodes and slots; jobs without a model have as much as they have slots."""
        nodes, most = min(len(space.capacity), MAX_NODES), int(max(space.max_slots.max(), space.current.sum(1).max()))
        models = {job.id: _blind_model(job) for job in jobs}
        known = {job_id: model for job_id, model in models.items() if model is not None}
        sizes = {job.id: max(int(size), job.slots) for job, size in zip(jobs, space.max_slots, strict=True)}
        tables = self._goodputs.refresh(known, sizes, nodes, int(space.capacity.max()))
        result = np.zeros((len(jobs), len(space.capacity) + 1, most + 1))
        for row, job in enumerate(jobs):
            if job.id in tables:
                n, k, goodput = tables[job.id]
                fits = k <= most
                result[row, n[fits], k[fits]] = goodput[fits]
            else:
                result[row, 1:] = np.arange(most + 1)
        return result

    def _fair_goodput(self, jobs: Sequence[JobView], space: Space) -> Array:
        """Goodput on the fair share, of which a job uses no more than its batch can be divided over."""
        total = int(space.capacity.sum())
        nodes, slots = -(-len(space.capacity) // total), -(-total // len(jobs))
        result = np.full(len(jobs), float(slots))
        members: dict[int, dict[str, JobModel]] = {}
        for job in jobs:
            model = _blind_model(job)
            if model is not None:
                usable = max(min(slots, _divisible(model.limits[ANY])), 1)
                members.setdefault(usable, {})[job.id] = model
        row = {job.id: i for i, job in enumerate(jobs)}
        for usable, models in members.items():
            table = GoodputTable.of([Configuration(gpu_type=ANY, nodes=nodes, slots=usable)], models)
            result[[row[job_id] for job_id in table.job_ids]] = table.goodput[:, 0]
        return np.where(result > 0, result, 1.0)

    def _desired_nodes(self, problem: Problem, matrix: NDArray[Any]) -> int:
        """As many nodes as now while slots are used well, else as many as would be if speed-ups stayed as they are."""
        one_slot = problem.goodput[:, 1, 1]
        rows = np.flatnonzero((one_slot > 0) & (matrix.sum(axis=1) > 0))
        reached = problem.goodput[rows, np.count_nonzero(matrix[rows], axis=1), matrix[rows].sum(axis=1)]
        nodes = len(problem.space.capacity)
        utility = float((reached / one_slot[rows]).sum()) / int(problem.space.capacity.sum())
        if LOW_UTILITY <= utility <= HIGH_UTILITY:
            return nodes
        return min(max(round(nodes * utility / TARGET_UTILITY), 1), 2 * nodes)


def _by_type(view: ClusterView, nodes: int) -> dict[str, int]:
    """This many nodes, in the proportions of the cluster's types: to Pollux, one node is as good as another."""
    share = np.bincount(view.cluster.node_type) * nodes / len(view.cluster.nodes)
    counts = np.floor(share).astype(int)
    counts[np.argsort(counts - share, kind="stable")[: nodes - counts.sum()]] += 1
    return {name: int(counts[index]) for name, index in view.cluster.type_index.items()}


def _assignments(jobs: Sequence[JobView], nodes: NDArray[np.intp], matrix: NDArray[Any]) -> dict[str, Allocation]:
    result: dict[str, list[tuple[int, int]]] = {}
    for row, column in zip(*(axis.tolist() for axis in np.nonzero(matrix)), strict=True):
        result.setdefault(jobs[row].id, []).append((int(nodes[column]), int(matrix[row, column])))
    return {job_id: tuple(allocation) for job_id, allocation in result.items()}


def _allowed(job: JobView, type_names: NDArray[np.str_]) -> NDArray[np.bool_]:
    types = job.facts.gpu_types
    return np.array([types is None or str(name) in types for name in type_names])


def _most_slots(job: JobView) -> int:
    """Twice what it has been measured on, within its own bounds and what its batch can be divided over."""
    facts = job.facts
    most = min(max(2 * job.most_slots_measured, facts.min_slots, 1), facts.max_slots)
    divisible = max((_divisible(limits) for limits in facts.limits.values()), default=most)
    return max(min(most, divisible), 1)


def _divisible(limits: BatchLimits) -> int:
    return limits.largest // limits.smallest_per_slot


def _blind_model(job: JobView) -> JobModel | None:
    """The job's model on the GPU type it runs on or else knows best, as if there were no other."""
    if job.model is None:
        return None
    known = {name: fitted for name, fitted in job.model.fits.items() if name in job.model.limits}
    if not known:
        return None
    gpu_type = job.gpu_type if job.gpu_type in known else max(known, key=lambda name: known[name].observations)
    assert gpu_type is not None
    limits = job.model.limits[gpu_type]
    if job.facts.adaptivity is not Adaptivity.ADAPTIVE and job.facts.requested_batch is not None:
        limits = replace(limits, initial=job.facts.requested_batch, largest=job.facts.requested_batch)
    return JobModel({ANY: known[gpu_type]}, {ANY: limits}, job.model.gradient)
