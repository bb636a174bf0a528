"""Sia: goodput on mixed GPU types, as one integer linear program per round.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP '23.

Configurations of each GPU type are 1, 2, 4, … slots within a node, then whole nodes. Every job's goodputs are divided
by its smallest positive one; where the configuration differs from the current one they are multiplied by the restart
factor max(age − restarts·δ, 0)/(age + δ), or 1 for jobs younger than δ. The program picks at most one configuration
per job within the slots of each type, minimising Σ G^p + λ·(jobs left out) for p < 0 (maximising Σ G^p + λ·(jobs
served) for p > 0).

A type that a job has not run on in several slots is predicted from one it has, by the ratio of the one-slot step times;
jobs bring a one-slot profile of every type. A job starts on one slot, and may then use at most twice the largest number
of slots it has run on. Rigid jobs choose a type only. Jobs that are still restarting keep what they have.

Deviations. δ is the job's own rescale cost (the published code has a second table of slightly different constants for
it). Goodputs are not rounded to two decimals before the program is solved. Moves within one configuration are charged
like any other change; the published simulator does not charge them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from geminid.configuration import Configuration
from geminid.goodput.transfer import Method
from geminid.policies.base import Allocation, ClusterView, Decision, JobView, Policy
from geminid.policies.goodputs import Goodputs
from geminid.policies.options import AtLeast, Not, Positive
from geminid.solve.lp import minimise

Array = NDArray[np.float64]


def restart_factor(job: JobView, now_s: float, cost_s: float) -> float:
    """How much of a change's gain is left after what changes have cost the job so far."""
    age = job.age_s(now_s)
    return 1.0 if age < cost_s else max(age - job.restarts * cost_s, 0.0) / (age + cost_s)


@dataclass(slots=True)
class Sia(Policy):
    """The integer program of Sia; see the module's docstring."""

    name = "sia"
    paper = "Jayaram Subramanya et al., SOSP '23"
    objective = "power mean of goodputs relative to each job's smallest configuration, by ILP, on mixed GPU types"
    adapts_batch = True
    needs_models = True
    brings_profiles = True

    p: Annotated[float, Not(0.0)] = -0.5
    serve: Annotated[float, AtLeast(0.0)] = 1.1
    interval_s: Positive | None = 60.0
    transfer_method: Method = "scaled"
    _goodputs: Goodputs = field(init=False)

    def __post_init__(self) -> None:
        self._goodputs = Goodputs(growth=2.0, profiled_slots=0, transfer_method=self.transfer_method)

    @property
    def regards_priority(self) -> bool:
        """It does: jobs count by their weight."""
        return True

    def decide(self, view: ClusterView) -> Decision:
        """Solve the program for all jobs that may change."""
        configurations, goodput = self._goodputs.of(view)
        keep: dict[str, Configuration | Allocation] = {}
        rows = []
        for row, job in enumerate(view.jobs):
            if job.allocation and view.now_s < job.paused_until_s and job.stands(view.usable_slots):
                keep[job.id] = job.allocation
            else:
                rows.append(row)
        capacity = view.usable_slots_per_type()
        for job in view.jobs:
            if job.id in keep and job.gpu_type is not None:
                capacity[job.gpu_type] -= job.slots
        utility = self._utilities(view, rows, configurations, goodput)
        chosen = choose(utility, configurations, capacity)
        assignments = dict(keep)
        for row, column in zip(rows, chosen, strict=True):
            if column is not None:
                assignments[view.jobs[row].id] = configurations[column]
        return Decision(assignments)

    def _utilities(
        self, view: ClusterView, rows: Sequence[int], configurations: Sequence[Configuration], goodput: Array
    ) -> Array:
        """What choosing a configuration is worth, −inf where it is impossible; leaving a job out is worth nothing."""
        utility = np.full((len(rows), len(configurations)), -np.inf)
        for i, row in enumerate(rows):
            job, values = view.jobs[row], goodput[row]
            positive = values > 0
            if not positive.any():
                continue
            relative = values[positive] / values[positive].min()
            factor = restart_factor(job, view.now_s, job.facts.rescale_s)
            current = np.array([job.has(c) for c in configurations])[positive]
            relative = np.maximum(np.where(current, relative, relative * factor), 1e-3)
            gain = self.serve - relative**self.p if self.p < 0 else self.serve + relative**self.p
            utility[i, positive] = job.facts.weight * gain
        return utility


def choose(
    utility: Array,
    configurations: Sequence[Configuration],
    capacity: Mapping[str, int],
    *,
    seconds: float | None = None,
) -> list[int | None]:
    """The exact optimum: at most one configuration per job, within the slots of each type, of largest utility.

    With ``seconds``, the best that is found in that time.
    """
    job, column = np.nonzero(np.isfinite(utility) & (utility > 0))
    if not job.size:
        return [None] * len(utility)
    types = list(capacity)
    slots = np.array([configurations[c].slots for c in column.tolist()], dtype=float)
    type_row = np.array([types.index(configurations[c].gpu_type) for c in column.tolist()])
    variables = np.arange(len(job))
    matrix = csc_array(
        (
            np.concatenate([np.ones(len(job)), slots]),
            (np.concatenate([job, len(utility) + type_row]), np.concatenate([variables, variables])),
        ),
        shape=(len(utility) + len(types), len(job)),
    )
    upper = np.concatenate([np.ones(len(utility)), [float(capacity[t]) for t in types]])
    lower = np.full(len(upper), -np.inf)
    found = minimise(-utility[job, column], np.ones(len(job)), matrix, lower, upper, integer=True, seconds=seconds)
    chosen: list[int | None] = [None] * len(utility)
    if found is not None:
        for variable in np.flatnonzero(found.values > 0.5):
            chosen[int(job[variable])] = int(column[variable])
    return chosen
