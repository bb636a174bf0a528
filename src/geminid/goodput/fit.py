"""Fit throughput models to what jobs have measured: one job, or thousands at once.

The loss is Pollux's: the root-mean-square error of log T_acc plus that of log T_step, plus a few mild penalties
(``priors.py``). Fits that cannot work never raise and never return nonsense: the result is then the last good fit or
the optimistic prior, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.leastsquares import Evaluation, Objective, minimise
from geminid.goodput.priors import (
    Measured,
    Search,
    bounds,
    raise_unseen_links,
    search_for,
    to_parameters,
    to_variables,
)
from geminid.goodput.profile import Observation, Profile
from geminid.goodput.throughput import MODELS, Array, Shape, StepTimes, ThroughputModel

#: A fit that misses its own observations by this factor (root mean square) explains nothing.
USELESS_LOSS = float(2 * np.log(2.5))

#: An observation further off than this factor is suspected of being an outlier.
OUTLIER_FACTOR = 5.0

#: Smallest root-mean-square error that the loss distinguishes from a perfect fit.
PERFECT = 1e-6

#: With fewer observations than this nobody can say which of them is the outlier.
FEWEST_FOR_OUTLIERS = 4

#: How far, in log batch size, a measured deviation from the smooth curve reaches to either side.
CORRECTION_REACH = float(np.log(1.12))

#: A deviation counts for n/(n + 1) of itself after n observations at that batch size.
CORRECTION_SHRINKAGE = 1.0

#: At most this many batch sizes have a correction of their own; the most observed ones.
MAX_CORRECTIONS = 12


@dataclass(frozen=True, slots=True)
class Corrections:
    """Measured deviations of the computing time from the fitted curve, at single batch sizes.

    Kernels are tuned for some batch sizes and not for others: on several GPUs a batch of 6 takes longer than one of 8.
    No smooth formula can know that, but it does not depend on the placement, so what was measured on one is used on
    every other. Between the measured sizes the correction falls linearly to none; where several reach, they are
    averaged.
    """

    batch_sizes: tuple[float, ...] = ()
    log_factors: tuple[float, ...] = ()

    def log_factor(self, per_slot_batch: Array) -> Array | float:
        """Logarithm of what multiplies the computing time at these batch sizes."""
        if not self.batch_sizes:
            return 0.0
        log_batch = np.log(per_slot_batch)
        total, weight = np.zeros_like(log_batch), np.zeros_like(log_batch)
        for size, log_factor in zip(self.batch_sizes, self.log_factors, strict=True):
            near = np.maximum(0.0, 1.0 - np.abs(log_batch - np.log(size)) / CORRECTION_REACH)
            total += log_factor * near
            weight += near
        mean: Array = total / np.maximum(weight, 1.0)
        return mean


@dataclass(frozen=True, slots=True)
class ThroughputFit:
    """Parameters of a throughput model for one job on one GPU type, and where they come from.

    ``source`` is ``fitted``, ``previous`` (the data at hand could not be used, an older fit still stands) or
    ``prior`` (nothing is known: one sample per second on every slot, perfect scaling; only ratios mean anything).
    ``reason`` is empty for an ordinary fit, otherwise a sentence for people. ``most_slots`` is the largest number of
    slots among the observations.
    """

    model: str
    parameters: tuple[float, ...]
    source: Literal["fitted", "previous", "prior"]
    loss: float
    observations: int
    corrections: Corrections = Corrections()
    reason: str = ""
    most_slots: int = 0

    def step_times(self, shape: Shape) -> StepTimes:
        """Predicted step times."""
        return MODELS[self.model].step_times(
            np.array(self.parameters), shape, self.corrections.log_factor(shape.per_slot_batch)
        )

    def __getitem__(self, name: str) -> float:
        """A parameter by its name."""
        return self.parameters[MODELS[self.model].index(name)]


def prior_fit(model: ThroughputModel, reason: str) -> ThroughputFit:
    """The optimistic prior: one sample per second on every slot, and nothing else costs time."""
    parameters = {p.name: p.lower for p in model.parameters}
    parameters["beta_c" if "beta_c" in parameters else "per_sample"] = 1.0
    parameters |= {name: 1.0 for name in ("pair_factor",) if name in parameters}
    return ThroughputFit(model.name, tuple(parameters.values()), "prior", float("inf"), 0, reason=reason)


def fit(profile: Profile, model: str = "geminid", *, previous: ThroughputFit | None = None) -> ThroughputFit:
    """Fit one job on one GPU type."""
    return fit_many([profile], model, previous=[previous])[0]


def fit_many(
    profiles: Sequence[Profile],
    model: str = "geminid",
    *,
    previous: Sequence[ThroughputFit | None] | None = None,
) -> list[ThroughputFit]:
    """Fit many jobs at once; the results are in the order of the profiles.

    ``previous`` are the fits that still stand where a profile holds nothing usable.
    """
    chosen = MODELS[model]
    previous = previous if previous is not None else [None] * len(profiles)
    usable: list[list[Observation]] = []
    rejected: list[str] = []
    for profile in profiles:
        problems = [seen.problem() for seen in profile.observations]
        usable.append([seen for seen, bad in zip(profile.observations, problems, strict=True) if bad is None])
        bad = [problem for problem in problems if problem is not None]
        rejected.append(f"{len(bad)} of {len(problems)} observations left out ({bad[0]})" if bad else "")
    results: list[ThroughputFit | None] = [None] * len(profiles)
    warm = [_may_start_from(last, chosen, seen) for last, seen in zip(previous, usable, strict=True)]
    for rows in _similar(usable, warm):
        start = None
        if warm[rows[0]]:
            start = to_variables(chosen, np.array([last.parameters for row in rows if (last := previous[row])]))
        for row, result in zip(rows, _fit_batch(chosen, [usable[row] for row in rows], start), strict=True):
            results[row] = result
    return [
        _settle(chosen, result, last, left_out)
        for result, last, left_out in zip(results, previous, rejected, strict=True)
    ]


def _settle(
    model: ThroughputModel, result: ThroughputFit | None, last: ThroughputFit | None, left_out: str
) -> ThroughputFit:
    """The fit if there is a useful one, else the last good one, else the prior; with the reason."""
    why = left_out or "nothing measured yet"
    if result is not None:
        if np.isfinite(result.parameters).all() and result.loss <= USELESS_LOSS:
            reason = "; ".join(part for part in (left_out, result.reason) if part)
            return replace(result, reason=reason) if reason else result
        why = f"the {result.observations} observations contradict each other"
    if last is not None and last.source != "prior" and last.model == model.name and np.isfinite(last.parameters).all():
        return replace(last, source="previous", reason=f"{why}; the last good fit stands")
    return prior_fit(model, f"{why}; assuming perfect scaling until there is a measurement")


def _may_start_from(last: ThroughputFit | None, model: ThroughputModel, seen: Sequence[Observation]) -> bool:
    """Whether an earlier fit saw most of these observations: then it is a better start than any guess."""
    return (
        last is not None
        and last.source == "fitted"
        and last.model == model.name
        and last.most_slots == max((o.slots for o in seen), default=0)
        and last.observations >= 0.75 * len(seen)
    )


def _similar(usable: Sequence[Sequence[Observation]], warm: Sequence[bool]) -> list[list[int]]:
    """Group jobs by the number of observations (to a power of two), so that padding stays small, and by their start."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for row, seen in enumerate(usable):
        if seen:
            groups.setdefault(((len(seen) - 1).bit_length(), warm[row]), []).append(row)
    return list(groups.values())


def _measured(jobs: Sequence[Sequence[Observation]]) -> Measured:
    """Observations as padded arrays; padding repeats the first observation with weight zero."""
    width = max(len(seen) for seen in jobs)
    table = np.array(
        [
            [
                (o.nodes, o.slots, o.per_slot_batch, o.busiest_node_slots, o.accumulation_s, o.step_s, o.link_slowdown)
                for o in [*seen, *[seen[0]] * (width - len(seen))]
            ]
            for seen in jobs
        ],
        dtype=float,
    )
    weight = (np.arange(width) < np.array([len(seen) for seen in jobs])[:, None]).astype(float)
    shape = Shape.of(table[..., 0], table[..., 1], table[..., 2], table[..., 3], table[..., 6])
    return Measured(shape, np.log(table[..., 4]), np.log(table[..., 5]), weight)


def _fit_batch(
    model: ThroughputModel, jobs: Sequence[Sequence[Observation]], start: Array | None
) -> list[ThroughputFit]:
    measured = _measured(jobs)
    count = len(jobs)
    no_correction = np.zeros_like(measured.weight)
    variables, loss = _solve(model, measured, no_correction, start)

    # Outliers: where a fit misses an observation badly, fit by absolute error (which a few outliers cannot bend),
    # set aside what that fit misses, and fit the rest again.
    suspected = np.flatnonzero(_worst_error(model, variables, measured) > np.log(OUTLIER_FACTOR))
    set_aside = np.zeros(count, dtype=int)
    if suspected.size:
        kept = _without_outliers(model, measured.take(suspected), variables[suspected])
        set_aside[suspected] = ((measured.weight[suspected] > 0) & (kept.weight == 0)).sum(axis=1)
        weight = measured.weight.copy()
        weight[suspected] = kept.weight
        measured = measured.with_weight(weight)
        again = np.flatnonzero(set_aside)
        if again.size:
            variables[again], loss[again] = _solve(model, measured.take(again), no_correction[again])

    corrections = [Corrections()] * count
    if model.name == "geminid":
        corrections, log_factor = _corrections(model, variables, measured)
        variables, loss = _solve(model, measured, log_factor, start=variables)
    parameters = raise_unseen_links(model, to_parameters(model, variables), measured)
    results = []
    for row, seen in enumerate(jobs):
        reason = ""
        if set_aside[row]:
            reason = f"{set_aside[row]} of {len(seen)} observations set aside as outliers"
        elif len(seen) == 1:
            reason = "a single observation: what it does not show is assumed to cost nothing"
        used = len(seen) - int(set_aside[row])
        found = tuple(float(x) for x in parameters[row])
        results.append(
            ThroughputFit(
                model.name,
                found,
                "fitted",
                float(loss[row]),
                used,
                corrections[row],
                reason=reason,
                most_slots=max(o.slots for o in seen),
            )
        )
    return results


def _solve(
    model: ThroughputModel, measured: Measured, log_factor: Array, start: Array | None = None
) -> tuple[Array, Array]:
    """Best variables and loss of every job, from ``start`` or over all of the search's own starting points."""
    search = search_for(model, measured)
    starts = search.starts if start is None else (np.where(search.free, start, search.starts[0]),)
    count, size = search.centre.shape
    lower, upper = bounds(model)
    copies = len(starts)
    objective = _objective(model, measured, search, log_factor)
    solution = minimise(
        lambda variables, rows: objective(variables, rows % count),
        np.concatenate(starts),
        np.tile(lower, (copies * count, 1)),
        np.tile(upper, (copies * count, 1)),
        free=np.tile(search.free, (copies, 1)),
    )
    loss = solution.loss.reshape(copies, count)
    best = np.argmin(loss, axis=0)
    return solution.variables.reshape(copies, count, size)[best, np.arange(count)], loss[best, np.arange(count)]


def _objective(model: ThroughputModel, measured: Measured, search: Search, log_factor: Array) -> Objective:
    """Pollux's loss with its exact gradient, and a curvature that majorises it (both RMS terms are convexified)."""
    of_all = measured.weight / measured.weight.sum(axis=1, keepdims=True)
    pull_of_all = search.pull**2

    def evaluate(variables: Array, rows: NDArray[np.intp]) -> Evaluation:
        data, weight, pull = measured.take(rows), of_all[rows], pull_of_all[rows]
        parameters = to_parameters(model, variables)[:, None, :]
        times, slopes = model.sensitivities(parameters, data.shape, log_factor[rows])
        off = variables - search.centre[rows]
        loss = np.sum(pull * off**2, axis=1)
        gradient = 2.0 * pull * off
        curvature = 2.0 * pull[:, :, None] * np.eye(variables.shape[1])
        for predicted_s, measured_log, slope in (
            (times.accumulation_s, data.log_accumulation, slopes.accumulation),
            (times.step_s, data.log_step, slopes.step),
        ):
            error = np.log(predicted_s) - measured_log
            rms = np.maximum(np.sqrt(np.sum(weight * error**2, axis=1)), PERFECT)
            weighted = slope * (weight / rms[:, None])[:, :, None]
            loss += rms
            gradient += np.einsum("bnp,bn->bp", weighted, error)
            curvature += np.matmul(np.swapaxes(weighted, 1, 2), slope)
        for top, bottom, strength in search.ratios:
            ratio = np.exp(variables[:, top] - variables[:, bottom])
            penalty = strength * ratio**2
            loss += penalty
            for i, sign_i in ((top, 1.0), (bottom, -1.0)):
                gradient[:, i] += 2.0 * sign_i * penalty
                for j, sign_j in ((top, 1.0), (bottom, -1.0)):
                    curvature[:, i, j] += 2.0 * sign_i * sign_j * penalty
        return Evaluation(loss, gradient, curvature)

    return evaluate


def loss_of(model: str, parameters: Sequence[float], profile: Profile) -> float:
    """The loss that a fit minimises, at given parameters."""
    chosen = MODELS[model]
    measured = _measured([profile.observations])
    search = search_for(chosen, measured)
    objective = _objective(chosen, measured, search, np.zeros_like(measured.weight))
    variables = to_variables(chosen, np.array([parameters], dtype=float))
    return float(objective(variables, np.array([0])).loss[0])


def _errors(model: ThroughputModel, variables: Array, measured: Measured) -> Array:
    """The larger of the two absolute log errors of every observation; zero at padding."""
    times = model.step_times(to_parameters(model, variables)[:, None, :], measured.shape)
    accumulation = np.abs(np.log(times.accumulation_s) - measured.log_accumulation)
    step = np.abs(np.log(times.step_s) - measured.log_step)
    errors: Array = np.maximum(accumulation, step) * measured.present
    return errors


def _worst_error(model: ThroughputModel, variables: Array, measured: Measured) -> Array:
    worst: Array = _errors(model, variables, measured).max(axis=1)
    return worst


def _without_outliers(model: ThroughputModel, measured: Measured, variables: Array) -> Measured:
    """Weights with outliers at zero: what a fit by absolute error misses by OUTLIER_FACTOR, if they are few.

    Many of them are no outliers but something that the model cannot express, and it must not look away from that.
    """
    no_correction = np.zeros_like(measured.weight)
    for _ in range(5):
        robust = measured.with_weight(measured.weight / np.maximum(_errors(model, variables, measured), 0.05))
        variables, _ = _solve(model, robust, no_correction, start=variables)
    outlier = _errors(model, variables, measured) > np.log(OUTLIER_FACTOR)
    count = measured.present.sum(axis=1)
    few = outlier.sum(axis=1) <= np.where(count >= FEWEST_FOR_OUTLIERS, np.maximum(count // 8, 1), 0)
    return measured.with_weight(np.where(outlier & few[:, None], 0.0, measured.weight))


def _corrections(model: ThroughputModel, variables: Array, measured: Measured) -> tuple[list[Corrections], Array]:
    """Mean deviation of the measured pass time from the fit, per job and batch size, shrunk towards none."""
    times = model.step_times(to_parameters(model, variables)[:, None, :], measured.shape)
    deviation = measured.log_accumulation - np.log(times.accumulation_s)
    log_factor = np.zeros_like(deviation)
    corrections = []
    for row, present in enumerate(measured.present):
        batch = measured.shape.per_slot_batch[row]
        sizes, size_of, often = np.unique(batch[present], return_inverse=True, return_counts=True)
        mean = np.bincount(size_of, deviation[row, present]) / (often + CORRECTION_SHRINKAGE)
        kept = np.sort(np.argsort(-often, kind="stable")[:MAX_CORRECTIONS]) if len(sizes) > 1 else np.array([], int)
        found = Corrections(tuple(sizes[kept].tolist()), tuple(mean[kept].tolist()))
        corrections.append(found)
        log_factor[row] = found.log_factor(batch)
    return corrections, log_factor
