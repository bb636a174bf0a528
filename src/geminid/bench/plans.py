"""How well step times of execution plans are predicted from a few samples, and what the choice of a plan costs.

From every model's measured rows, samples are drawn at random; the rest is held out. Models of step times are fitted to
the samples, with what the other models' rows say as prior, and predict the rest. The error is |predicted/measured − 1|
of rows held out. The regret of a placement is the measured time of the plan that would be chosen there, over that of
the best plan measured there; a sample counts as measured. Rubick's published formula is refitted in the same way, to
the same samples, with the same prior from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geminid.bench.solver import problem
from geminid.bench.timing import timed
from geminid.executionplan import BUILT_IN_PLANS, ExecutionPlan
from geminid.goodput.planfit import PlanFit, PlanObservation, PlanPrior, fit_many, predict
from geminid.goodput.planmodel import GEMINID, Array, PlanFormula, PlanParameter, PlanShape
from geminid.gputypes import named_gpu_type
from geminid.sim.profiles.rubick import GPU_TYPE, MeasuredModel, PlanMeasurement
from geminid.solve.prices import Priced, solve

#: With fewer rows than this, too little is held out.
FEWEST_ROWS = 20

#: Median error on rows held out is to be at most this.
ERROR_GOAL = 0.10

#: Regret of 95 % of the choices, and of all, is to be at most this.
P95_GOAL, WORST_GOAL = 1.2, 1.5

#: A table of predictions is to take at most this, in seconds of one core.
TABLE_GOAL_S = 3.0

#: A decision of 100,000 slots and 50,000 jobs is to take at most this, in seconds of one core …
DECISION_GOAL_S = 1.0

#: … at a certified gap of at most this.
GAP_GOAL = 1e-3

#: Configurations of the table, each under every plan.
CONFIGURATIONS = 64

_PLAN_SHAPES = (*BUILT_IN_PLANS.values(), ExecutionPlan(name="tp2", tensor_parallel=2))


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One model: error on rows held out, and regret of the plans chosen, ours and the published formula's."""

    model: str
    rows: int
    samples: int
    draws: int
    median_error: float
    p95_regret: float
    worst_regret: float
    published_median_error: float
    published_p95_regret: float
    published_worst_regret: float


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Time to predict every job on every configuration under every plan."""

    jobs: int
    configurations: int
    plans: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """Time and certified gap of one decision about slots and plans."""

    slots: int
    jobs: int
    plans: int
    seconds: float
    cpu_s: float
    gap: float


def run(
    models: Sequence[MeasuredModel],
    *,
    samples: int,
    draws: int,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
) -> list[PlanRow]:
    """Evaluate all models that have rows enough; the others count for the prior only."""
    catalogue = PlanPrior.of_type(named_gpu_type(GPU_TYPE))
    ours = _Evaluation(models, GEMINID, catalogue)
    published = _Evaluation(models, PUBLISHED, PlanPrior.of_formula(PUBLISHED))
    rows = []
    for index, model in enumerate(models):
        count = len(model.measurements)
        if count < max(FEWEST_ROWS, samples + 1):
            continue
        progress(f"fitting {model.name} …")
        rng = np.random.default_rng(seed)
        drawn = np.array([rng.choice(count, samples, replace=False) for _ in range(draws)])
        figures = (*ours.figures(index, drawn), *published.figures(index, drawn))
        rows.append(PlanRow(model.name, count, samples, draws, *figures))
    return rows


def table(jobs: int, *, seed: int) -> PlanTable:
    """Predict jobs that have measured eight configurations each on all configurations and plans."""
    rng = np.random.default_rng(seed)
    placements = [(1 + i,) if i < 8 else (8,) * (i - 6) for i in range(CONFIGURATIONS)]
    shapes = [
        PlanShape.of(plan, placement, 4.0)
        for plan in _PLAN_SHAPES
        for placement in placements
        if sum(placement) % plan.slots_per_replica == 0
    ]
    prior = PlanPrior.of_type(named_gpu_type(GPU_TYPE))
    few = [
        [PlanObservation(shapes[i], float(rng.lognormal(0.0, 0.5))) for i in rng.choice(len(shapes), 8, replace=False)]
        for _ in range(16)
    ]
    fits = fit_many(few, rng.uniform(1e8, 1e10, len(few)).tolist(), prior)
    _, cpu_s, _ = timed(lambda: predict([fits[i % len(fits)] for i in range(jobs)], PlanShape.stack(shapes)))
    return PlanTable(jobs, CONFIGURATIONS, len(_PLAN_SHAPES), cpu_s)


def decision(*, slots: int, jobs: int, types: int, seed: int) -> PlanDecision:
    """One decision of jobs that run under plans: the best plan on every configuration, then the best configurations.

    Plans take no slots of their own, so the best plan of a configuration is part of every best decision: the
    certificate of the decision among configurations is that of the decision among configurations and plans.
    """
    choices, _ = problem(slots, jobs, types, seed=seed)
    rng = np.random.default_rng(seed)
    under = choices.utility[:, :, None] * rng.uniform(0.3, 1.0, (jobs, 1, len(_PLAN_SHAPES)))
    rng.shuffle(under, axis=2)

    def decide() -> Priced:
        return solve(replace(choices, utility=under.max(axis=2)))

    wall_s, cpu_s, found = timed(decide)
    return PlanDecision(slots, jobs, len(_PLAN_SHAPES), wall_s, cpu_s, found.gap)


class _Evaluation:
    """One formula on all models: fits to all rows of each, from which the others get their prior."""

    def __init__(self, models: Sequence[MeasuredModel], formula: PlanFormula, prior: PlanPrior) -> None:
        self._models, self._formula, self._prior = models, formula, prior
        self._rows = [_observations(model) for model in models]
        self._fits: list[PlanFit | None] = [
            fit_many([rows], [model.parameters], prior, formula)[0] if len(rows) >= FEWEST_ROWS else None
            for model, rows in zip(models, self._rows, strict=True)
        ]

    def figures(self, index: int, drawn: NDArray[np.intp]) -> tuple[float, float, float]:
        """Median error, 95th percentile of the regret and worst regret of one model, over draws of samples."""
        model, rows = self._models[index], self._rows[index]
        prior = self._prior.with_jobs([fit for i, fit in enumerate(self._fits) if fit is not None and i != index])
        sampled = [[rows[i] for i in draw] for draw in drawn]
        fits = fit_many(sampled, [model.parameters] * len(drawn), prior, self._formula)
        predicted = predict(fits, PlanShape.stack(row.shape for row in rows))
        measured = np.array([row.step_s for row in rows])
        held_out = np.ones(predicted.shape, dtype=bool)
        np.put_along_axis(held_out, drawn, False, axis=1)
        error = np.abs(predicted / measured - 1.0)[held_out]
        regret = _regrets(model.measurements, np.where(held_out, predicted, measured), measured)
        return float(np.median(error)), float(np.quantile(regret, 0.95)), float(regret.max())


def _observations(model: MeasuredModel) -> list[PlanObservation]:
    """A model's rows; the global batch is dealt out to the replicas in one pass."""
    return [
        PlanObservation(
            PlanShape.of(row.plan, row.placement, model.global_batch * row.plan.slots_per_replica / sum(row.placement)),
            row.step_s,
        )
        for row in model.measurements
    ]


def _regrets(rows: Sequence[PlanMeasurement], believed: Array, measured: Array) -> Array:
    """For every draw and placement with a choice: the time of the chosen plan over the best."""
    places: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        places.setdefault(tuple(sorted(row.placement)), []).append(i)
    regrets = [
        measured[np.array(here)[believed[:, here].argmin(axis=1)]] / measured[here].min()
        for here in places.values()
        if len(here) > 1
    ]
    return np.array(regrets) if regrets else np.ones((1, len(believed)))


# --- The published formula ---
#
# Rubick's forms (their times are milliseconds, here seconds). Bandwidths are as published: constants. What its authors
# measure for every configuration, the forward pass, is fitted as a time per sample. The small volume between pipeline
# stages is left out.

#: Bytes per second inside a node and between nodes.
_PUBLISHED_NODE, _PUBLISHED_NETWORK = 150e9, 20e9

#: Bytes per second between a GPU and the memory of its machine.
_PUBLISHED_PCIE = 8e9

#: Threads of the optimiser on the host, per GPU.
_PUBLISHED_THREADS = 4.0

_PUBLISHED_PARAMETERS = (
    PlanParameter("forward_s_per_sample", 1.0, 3.0),
    PlanParameter("k_bwd", 2.0, 0.5),
    PlanParameter("k_sync", 2.0, 0.7),
    PlanParameter("k_opt_s_per_byte", 1.5e-11, 1.5),
    PlanParameter("k_os_s_per_byte", 1.5e-9, 1.5),
    PlanParameter("k_const_s", 0.01, 1.0),
    PlanParameter("k_swap_s", 0.05, 1.5),
)


def _published_step_times(
    parameters: NDArray[np.inexact], gradient_bytes: Array, shape: PlanShape
) -> NDArray[np.inexact]:
    forward_s, k_bwd, k_sync, k_opt, k_os, k_const, k_swap = (parameters[:, i, None] for i in range(7))
    parts, replicas = shape.tensor_parallel * shape.pipeline_stages, shape.replicas
    forward = forward_s * shape.micro_batch * shape.passes / shape.tensor_parallel
    backward = k_bwd * forward
    bandwidth = np.where(shape.nodes > 1, _PUBLISHED_NETWORK, _PUBLISHED_NODE)
    # 8 bytes a parameter are 4 times the gradients in half precision
    sync = 4.0 * gradient_bytes / parts * (replicas - 1.0) / replicas / bandwidth + 1e-12
    together = (sync**k_sync + backward**k_sync) ** (1.0 / k_sync)
    shards = np.where(shape.sharded > 0, replicas, 1.0)
    on_slot = k_opt * gradient_bytes / (parts * shards)
    on_host = (k_os / _PUBLISHED_THREADS + 2.0 / _PUBLISHED_PCIE) * gradient_bytes / replicas + k_swap
    optimiser = np.where(shape.offloaded > 0, on_host, on_slot)
    result: NDArray[np.inexact] = forward * (1.0 + shape.checkpointing) + together + optimiser + k_const
    return result


PUBLISHED = PlanFormula(_PUBLISHED_PARAMETERS, _published_step_times, spreads={}, residual=1e-6)
"""Rubick's formula, without a model of what it misses."""
