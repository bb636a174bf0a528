"""The bounds: on the sum of completion times, by prices or by a single machine, and on the makespan."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from scipy.sparse import csc_array

from geminid.solve.bound.lagrangian import lagrangian
from geminid.solve.bound.problem import Array, Indices, Instance
from geminid.solve.bound.search import STEPS, final_levels, good_prices
from geminid.solve.lp import LinearProgram

#: What is taken off every bound for the rounding of the simulator's clock and of the sums here.
ROUNDING = 1e-6

#: Arrivals from which on jobs are bounded together for the makespan.
MAKESPAN_STARTS = 48

#: The horizon of prices, as a multiple of the bound on the makespan.
HORIZON = 1.4


def jct_bound(instance: Instance, steps: int = STEPS) -> float:
    """No schedule has a smaller sum of completion times since arrival, in seconds.

    ``steps`` are those of the search for prices: fewer give a bound that is not as good, and holds as well.
    """
    horizon_s = HORIZON * makespan_bound(instance)
    prices = good_prices(instance, horizon_s, steps)
    usual = prices.per_slot_s.mean(axis=1)
    by_prices = lagrangian(instance, prices, final_levels(prices.per_slot_s)).value_s
    machines = [_type_prices(instance, np.arange(len(instance.kind)))]
    if usual.max() > 0:
        machines.append(usual / float(usual @ instance.capacity))
    total_s = max(by_prices, float(instance.alone_s.sum()), *(_one_machine(instance, each) for each in machines))
    return total_s * (1.0 - ROUNDING)


def makespan_bound(instance: Instance) -> float:
    """No schedule completes all jobs earlier, counted from time 0.

    The last job to complete has to arrive, start and work; and from any time on, all slots together need as long as the
    jobs that arrive later take at prices that sum to 1 over all slots.
    """
    longest_s = float((instance.arrival_s + instance.alone_s).max())
    begin_s = instance.arrival_s + instance.start_up_s
    order = np.argsort(begin_s)
    for first in np.unique(np.linspace(0, len(order) - 1, MAKESPAN_STARTS).astype(int)):
        jobs = order[first:]
        work_s = _one_machine_s(instance, _type_prices(instance, jobs))[jobs].sum()
        longest_s = max(longest_s, float(begin_s[order[first]] + work_s))
    return longest_s * (1.0 - ROUNDING)


def _one_machine_s(instance: Instance, prices: Array) -> Array:
    """Rent of every job at least, at constant prices: seconds on all slots, if all of them cost 1 a second."""
    per_s = np.array([kind.rent(prices) for kind in instance.kinds])
    seconds: Array = per_s[instance.kind] * instance.isolated_s
    return seconds


def _type_prices(instance: Instance, jobs: Indices) -> Array:
    """Prices of the types, of which all slots cost 1 a second together, at which these jobs pay most rent."""
    types, kinds = len(instance.capacity), instance.kinds
    seconds = np.bincount(instance.kind[jobs], weights=instance.isolated_s[jobs], minlength=len(kinds))
    gains = [np.zeros(types)]
    phases = [(index, phase) for index in np.flatnonzero(seconds) for phase in range(len(kinds[index].shares))]
    matrix_rows, upper = [(np.arange(types), instance.capacity)], [1.0]
    for column, (index, phase) in enumerate(phases, start=types):
        kind = kinds[index]
        gains.append(np.array([seconds[index] * kind.shares[phase]]))
        with np.errstate(divide="ignore"):
            slots = kind.slots / kind.rates[phase]
        for gpu_type in np.unique(kind.gpu_type):
            least = float(slots[kind.gpu_type == gpu_type].min())
            if np.isfinite(least):
                matrix_rows.append((np.array([column, gpu_type]), np.array([1.0, -least])))
                upper.append(0.0)
    width = types + len(phases)
    data = np.concatenate([values for _, values in matrix_rows])
    columns = np.concatenate([indices for indices, _ in matrix_rows])
    row = np.repeat(np.arange(len(matrix_rows)), [len(indices) for indices, _ in matrix_rows])
    matrix = csc_array((data, (row, columns)), shape=(len(matrix_rows), width))
    program = LinearProgram(np.concatenate(gains), matrix, np.full(len(upper), -np.inf), np.array(upper))
    optimum = program.solve()
    prices = np.ones(types) if optimum is None else np.maximum(optimum.values[:types], 0.0)
    result: Array = prices / float(prices @ instance.capacity)
    return result


def _one_machine(instance: Instance, prices: Array) -> float:
    """The sum of completion times on one machine as fast as all slots: the shortest remaining time first is best."""
    work_s, begin_s = _one_machine_s(instance, prices), instance.arrival_s + instance.start_up_s
    waiting: list[float] = []
    total_s, now_s = 0.0, 0.0
    order = np.argsort(begin_s)
    for position, job in enumerate(order):
        now_s = max(now_s, float(begin_s[job]))
        heappush(waiting, float(work_s[job]))
        until_s = float(begin_s[order[position + 1]]) if position + 1 < len(order) else np.inf
        while waiting and now_s < until_s:
            left_s = heappop(waiting)
            if now_s + left_s > until_s:
                heappush(waiting, left_s - (until_s - now_s))
                now_s = until_s
            else:
                now_s += left_s
                total_s += now_s
    total_s += now_s * len(waiting)
    return total_s - float(instance.arrival_s.sum())
