"""Linear and integer programs through HiGHS, from sparse arrays, without a modelling layer in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array

Array = NDArray[np.float64]

#: Default time limit of a growing linear program, in seconds: far longer than any should take.
LONGEST_S = 60.0


#: HiGHS' number of the dual simplex method, which starts from feasible prices.
_DUAL = 1

#: HiGHS' number of the primal simplex method, which starts from feasible values.
_PRIMAL = 4


#: Seconds since some moment.
Clock = Callable[[], float]


class Allowance:
    """Seconds that are left for one question, however many programs and steps it takes to answer it.

    With a ``clock`` everything counts from now on. Without one, for there is none here, only what HiGHS takes by its
    own: neither interior points nor what happens between the programs does.
    """

    def __init__(
        self, seconds: float = LONGEST_S, clock: Clock | None = None, *, whole: Allowance | None = None
    ) -> None:
        self._seconds, self._clock, self._whole = seconds, clock, whole
        self._taken_s = 0.0
        self._began_s = clock() if clock is not None else 0.0

    @property
    def left_s(self) -> float:
        """What is left."""
        return self._seconds - (self._taken_s if self._clock is None else self._clock() - self._began_s)

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left_s <= 0

    @property
    def late(self) -> bool:
        """Whether nothing is left by a clock, so that what is no program must stop too."""
        return self._clock is not None and self.over

    def take(self, seconds: float) -> None:
        """A program has reached its time limit."""
        self._taken_s += seconds
        if self._whole is not None:
            self._whole.take(seconds)

    def part(self, of_what_is_left: float) -> Allowance:
        """An allowance of a part of what is left, for the first half of a question."""
        return Allowance(of_what_is_left * max(self.left_s, 0.0), self._clock, whole=self)

    def grace(self) -> Allowance:
        """A quarter as much as there was at first, for an answer that is less good and found sooner."""
        return Allowance(0.25 * self._seconds, self._clock)


@dataclass(frozen=True, slots=True)
class Solved:
    """The best values found, what they cost, and a lower bound on the cost of any."""

    values: Array
    cost: float
    bound: float


def minimise(
    cost: Array,
    upper: Array,
    matrix: csc_array,
    row_lower: Array,
    row_upper: Array,
    *,
    integer: bool,
    gap: float = 1e-4,
    tree_nodes: int | None = None,
    seconds: float | None = None,
) -> Solved | None:
    """Minimise cost·x subject to row_lower ≤ matrix·x ≤ row_upper and 0 ≤ x ≤ upper; None if nothing was found.

    Integer programs stop at a relative ``gap``, or at the best found after ``tree_nodes`` or ``seconds``.
    """
    rows, columns = matrix.shape
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.zeros(columns), upper
    lp.row_lower_, lp.row_upper_ = row_lower, row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    if integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * columns
    solver = highspy.Highs()  # type: ignore[no-untyped-call,unused-ignore]
    options: dict[str, bool | int | float] = {"output_flag": False, "threads": 1, "mip_rel_gap": gap}
    if tree_nodes is not None:
        options["mip_max_nodes"] = tree_nodes
    if seconds is not None:
        options["time_limit"] = seconds
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    value = float(info.objective_function_value)
    bound = float(info.mip_dual_bound) if integer else value
    return Solved(np.array(solver.getSolution().col_value), value, bound)


@dataclass(frozen=True, slots=True)
class Optimum:
    """An optimal solution of a linear program, with what one more unit of each row's right-hand side is worth."""

    values: Array
    objective: float
    row_duals: Array


class LinearProgram:
    """A linear program that grows: maximise gain·x subject to rows, and solve again from where it stood.

    Columns have lower bounds of 0 unless given. Rows, columns, bounds and gains can be changed between solves; HiGHS
    starts from the last basis. All solves together may take what ``within`` has left.
    """

    def __init__(
        self,
        gain: Array,
        matrix: csc_array,
        row_lower: Array,
        row_upper: Array,
        *,
        lower: Array | None = None,
        within: Allowance | None = None,
    ) -> None:
        rows, columns = matrix.shape
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = columns, rows
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = gain
        lp.col_lower_ = np.zeros(columns) if lower is None else lower
        lp.col_upper_ = np.full(columns, np.inf)
        lp.row_lower_, lp.row_upper_ = row_lower, row_upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
        self._within = Allowance() if within is None else within
        self._refused = False
        self._solver = highspy.Highs()  # type: ignore[no-untyped-call,unused-ignore]
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        self._solver.setOptionValue("primal_feasibility_tolerance", 1e-9)
        self._solver.passModel(lp)

    def add_rows(self, matrix: csr_array, lower: Array, upper: Array) -> None:
        """Add constraints lower ≤ matrix·x ≤ upper."""
        starts, indices = matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32)
        self._solver.setOptionValue("simplex_strategy", _DUAL)  # the last prices still are
        self._solver.addRows(matrix.shape[0], lower, upper, matrix.nnz, starts, indices, matrix.data)

    def add_columns(self, gain: Array, matrix: csc_array) -> None:
        """Add columns of at least 0."""
        starts, indices = matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32)
        count = len(gain)
        most = np.full(count, np.inf)
        self._solver.addCols(count, gain, np.zeros(count), most, matrix.nnz, starts, indices, matrix.data)
        self._solver.setOptionValue("simplex_strategy", _PRIMAL)  # the last solution is still feasible

    def set_gain(self, gain: Array) -> None:
        """Maximise something else."""
        self._solver.changeColsCost(len(gain), np.arange(len(gain), dtype=np.int32), gain)

    def set_bounds(self, column: int, lower: float, upper: float) -> None:
        """Keep one column within other bounds."""
        self._solver.changeColBounds(column, lower, upper)

    def set_row(self, row: int, column: int, coefficient: float, lower: float) -> None:
        """Change one coefficient of a row, and its lower bound."""
        self._solver.changeCoeff(row, column, coefficient)
        self._solver.changeRowBounds(row, lower, np.inf)

    def basis(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which columns and which rows are basic."""
        basic, basis = highspy.HighsBasisStatus.kBasic, self._solver.getBasis()
        return (
            np.array([status == basic for status in basis.col_status], dtype=bool),
            np.array([status == basic for status in basis.row_status], dtype=bool),
        )

    def set_basis(self, columns: NDArray[np.bool_], rows: NDArray[np.bool_], upper: NDArray[np.bool_]) -> None:
        """Start from these basic columns and rows; other columns are at their lower bounds, rows where ``upper`` says.

        It need not be a basis of this program: HiGHS makes one of it.
        """
        status = highspy.HighsBasisStatus
        basis = highspy.HighsBasis()
        basis.col_status = [status.kBasic if basic else status.kLower for basic in columns.tolist()]
        basis.row_status = [
            status.kBasic if basic else status.kUpper if at_upper else status.kLower
            for basic, at_upper in zip(rows.tolist(), upper.tolist(), strict=True)
        ]
        basis.valid = basis.alien = True
        self._solver.setBasis(basis)

    @property
    def outcome(self) -> str:
        """How the last solve ended, in HiGHS' words."""
        if self._refused:
            return "Time limit reached"
        return str(self._solver.modelStatusToString(self._solver.getModelStatus()))

    def solve(self, *, centre: bool = False) -> Optimum | None:
        """The optimum, or None where there is none (infeasible, unbounded, or the solver gave up, as it does when the
        time is over).

        Where several solutions are optimal a vertex is returned, or, with ``centre``, a point well inside the set of
        optimal solutions, as an interior-point method without crossover leaves it.
        """
        self._solver.setOptionValue("solver", "ipm" if centre else "choose")
        self._solver.setOptionValue("run_crossover", "off" if centre else "on")
        self._refused = self._within.over
        if self._refused:
            return None
        ran_s = self._solver.getRunTime()
        self._solver.setOptionValue("time_limit", ran_s + self._within.left_s)  # its clock runs on
        self._solver.run()
        self._within.take(self._solver.getRunTime() - ran_s)
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._solver.getSolution()
        objective = float(self._solver.getInfo().objective_function_value)
        return Optimum(np.array(solution.col_value), objective, np.array(solution.row_dual))
