"""The bounds beside the figures of policies that were simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.sim.bound.instance import Bound, bound
from geminid.sim.run import Experiment, simulator_of
from geminid.sim.workload import Workload

#: Any policy will do where only jobs and cluster matter.
ANY_POLICY = "fifo"


def check_whole(asked: Workload, simulated: Workload) -> None:
    """Refuse a bound for a workload of which some jobs cannot be simulated: it would say nothing of the whole."""
    left_out = len(asked.jobs) - len(simulated.jobs)
    if left_out:
        expected = f"needs every job of the workload, and {left_out} of {len(asked.jobs)} were left out"
        raise InvalidInput([Problem("--bound", NOT_SHOWN, expected)])


def with_bounds(results: Sequence[Mapping[str, Any]], experiment: Experiment) -> list[dict[str, Any]]:
    """The results with the bounds of their class: schedules in which jobs shared slots, or those in which none did.

    Where jobs did not finish there is nothing to compare, and both are None.
    """
    known: dict[bool, Bound] = {}
    found = []
    for result in results:
        limit = None
        if not result["unfinished_jobs"]:
            shares = bool(result["shared_slots"])
            if shares not in known:
                known[shares] = bound(simulator_of(ANY_POLICY, experiment), sharing=shares)
            limit = known[shares]
        found.append(
            {
                **result,
                "bound_avg_jct_s": None if limit is None else limit.avg_jct_s,
                "bound_makespan_s": None if limit is None else limit.makespan_s,
                "avg_jct_to_bound": None if limit is None else result["avg_jct_s"] / limit.avg_jct_s,
            }
        )
    return found
