"""Linear and integer programs through HiGHS, from sparse arrays, without a modelling layer in between."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

Array = NDArray[np.float64]


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
