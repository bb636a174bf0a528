"""Fit the model of execution plans to what jobs have measured, thousands of jobs at once.

A job has run on a handful of placements under one or two plans, and the model has 17 parameters. What the data cannot
tell comes from a prior: the GPU catalogue at first, and jobs that ran on the same machines once there are some (their
links and host are the same; how a job computes is its own). What the formula misses is smooth in plan and placement:
the residuals are a Gaussian process, fitted together with the parameters, so that a configuration close to a measured
one is predicted as it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.leastsquares import Evaluation, minimise
from geminid.goodput.planmodel import (
    COMPUTE,
    GEMINID,
    GRADIENT_BYTES,
    Array,
    PlanFormula,
    PlanShape,
    catalogue_typical,
)
from geminid.gputypes import GpuType

#: Standard deviation, in log seconds, of a measurement.
NOISE = 0.08

#: Factors of two (of slots, nodes, fewest slots on a node) over which residuals are alike.
PLACEMENT_SCALE = 0.8

#: The same for degrees of tensor and pipeline parallelism.
SPLIT_SCALE = 1.2

#: The same for the samples of a micro-batch.
BATCH_SCALE = 4.0

#: Distance between a placement with an odd node and one without.
ODD_DISTANCE = 2.0**0.5

#: Distance between plans that differ in one setting: residuals are correlated by 0.95.
SETTING_DISTANCE = 0.32

#: What similar jobs say of a parameter is uncertain by this factor of their spread, plus the least spread.
SPREAD_FACTOR, LEAST_SPREAD = 1.3, 0.3

#: Jobs whose tables are computed together: arrays of this many rows stay in the cache.
JOBS_AT_ONCE = 64

_STEP = 1e-20  # of the complex derivative: small enough to be exact
_PADDING_NOISE = 1e12


@dataclass(frozen=True, slots=True)
class PlanObservation:
    """One measured step: where, under which plan, at which batch, and how long it took."""

    shape: PlanShape
    step_s: float


@dataclass(frozen=True, slots=True)
class PlanPrior:
    """What is assumed of a job's parameters before it is measured: mean and spread of their logarithms."""

    mean: Array
    spread: Array

    @classmethod
    def of_type(cls, gpu_type: GpuType) -> PlanPrior:
        """Our formula's parameters, from the catalogue alone."""
        return cls(np.log(catalogue_typical(gpu_type)), np.array([p.spread for p in GEMINID.parameters]))

    @classmethod
    def of_formula(cls, formula: PlanFormula) -> PlanPrior:
        """The typical values that a formula comes with."""
        typical, spread = zip(*((p.typical, p.spread) for p in formula.parameters), strict=True)
        return cls(np.log(typical), np.array(spread))

    def with_jobs(self, fits: Sequence[PlanFit]) -> PlanPrior:
        """What is assumed once other jobs of the same GPU type have been measured: their median and their spread."""
        if not fits:
            return self
        formula = fits[0].formula
        others = np.log(np.array([fit.parameters for fit in fits]))
        spread = SPREAD_FACTOR * np.sqrt(others.std(axis=0) ** 2 + LEAST_SPREAD**2)
        spread = np.minimum(spread, self.spread)
        for index, known in formula.spreads.items():
            spread[index] = known
        spread[COMPUTE] = self.spread[COMPUTE]
        return PlanPrior(np.median(others, axis=0), spread)


@dataclass(frozen=True, slots=True)
class PlanFit:
    """A fitted job on one GPU type: parameters, and what is known of the residuals near what it has measured.

    ``features`` are the measured shapes, ``weights`` how much each says about a shape like it.
    """

    parameters: Array
    gradient_bytes: float
    features: Array
    weights: Array
    formula: PlanFormula = GEMINID

    def step_times(self, shape: PlanShape) -> Array:
        """Predicted seconds per optimiser step of shapes ``(C,)``."""
        times: Array = predict([self], shape)[0]
        return times


def fit_many(
    observations: Sequence[Sequence[PlanObservation]],
    parameters: Sequence[float],
    prior: PlanPrior,
    formula: PlanFormula = GEMINID,
) -> list[PlanFit]:
    """Fit jobs of one GPU type; ``parameters`` counts those of each job's model. Every job has an observation."""
    if not observations:
        return []
    data = _Measured.of(observations, np.asarray(parameters, dtype=float) * GRADIENT_BYTES, formula)
    mean = np.tile(prior.mean, (len(observations), 1))
    mean[:, COMPUTE] = data.compute_guess()
    precision = 1.0 / prior.spread**2
    inverse = np.linalg.inv(data.covariance())

    def objective(variables: Array, rows: NDArray[np.intp]) -> Evaluation:
        residual, slope = data.residuals(variables, rows)
        off = variables - mean[rows]
        weighted = np.einsum("bnm,bm->bn", inverse[rows], residual)
        loss = 0.5 * np.einsum("bn,bn->b", weighted, residual) + 0.5 * np.sum(precision * off**2, axis=1)
        gradient = -np.einsum("bnp,bn->bp", slope, weighted) + precision * off
        curvature = np.swapaxes(slope, 1, 2) @ inverse[rows] @ slope + np.diag(precision)
        return Evaluation(loss, gradient, curvature)

    bound = 12.0 * np.ones_like(mean)
    free = np.ones(mean.shape, dtype=bool)
    found = minimise(objective, mean, mean - bound, mean + bound, free=free, max_iterations=60).variables
    everyone = np.arange(len(observations))
    residual, _ = data.residuals(found, everyone)
    weights = np.einsum("bnm,bm->bn", inverse, residual) * formula.residual**2
    return [
        PlanFit(
            np.exp(found[row]),
            float(data.gradient_bytes[row, 0]),
            data.features[row, : len(seen)],
            weights[row, : len(seen)],
            formula,
        )
        for row, seen in enumerate(observations)
    ]


def predict(fits: Sequence[PlanFit], shape: PlanShape) -> Array:
    """Predicted seconds per optimiser step of every job (rows) on every shape (columns); jobs share a formula."""
    if not fits:
        return np.empty((0, shape.slots.size))
    formula = fits[0].formula
    features = _features(shape)
    squares = 0.5 * np.einsum("cf,cf->c", features, features)
    result = np.empty((len(fits), len(features)))
    for first in range(0, len(fits), JOBS_AT_ONCE):
        chunk = fits[first : first + JOBS_AT_ONCE]
        parameters = np.array([fit.parameters for fit in chunk])
        gradient_bytes = np.array([[fit.gradient_bytes] for fit in chunk])
        correction = np.empty((len(chunk), len(features)))
        for row, fit in enumerate(chunk):
            near = features @ fit.features.T
            near -= squares[:, None]
            near -= 0.5 * np.einsum("nf,nf->n", fit.features, fit.features)
            correction[row] = np.exp(near, out=near) @ fit.weights
        times = np.asarray(formula.step_times(parameters, gradient_bytes, shape), dtype=float)
        result[first : first + len(chunk)] = times * np.exp(correction)
    return result


@dataclass(frozen=True, slots=True)
class _Measured:
    """The observations of B jobs as padded arrays ``(B, n)``; ``present`` is False at padding."""

    shape: PlanShape
    log_step: Array
    present: NDArray[np.bool_]
    features: Array
    gradient_bytes: Array
    formula: PlanFormula

    @classmethod
    def of(
        cls, observations: Sequence[Sequence[PlanObservation]], gradient_bytes: Array, formula: PlanFormula
    ) -> _Measured:
        longest = max(len(seen) for seen in observations)
        padded = [[seen[min(i, len(seen) - 1)] for i in range(longest)] for seen in observations]
        shape = PlanShape.stack(PlanShape.stack(o.shape for o in seen) for seen in padded)
        present = np.array([[i < len(seen) for i in range(longest)] for seen in observations])
        log_step = np.log([[o.step_s for o in seen] for seen in padded])
        return cls(shape, log_step, present, _features(shape), gradient_bytes[:, None], formula)

    def compute_guess(self) -> Array:
        """Logarithm of the compute time of a sample, if compute were three fifths of the typical step."""
        samples = self.shape.total_batch / self.shape.slots
        each = np.where(self.present, self.log_step - np.log(samples), np.nan)
        guess: Array = np.nanmedian(each, axis=1) - 0.5
        return guess

    def covariance(self) -> Array:
        """Covariance of the observations of every job around the formula."""
        gaps = self.features[:, :, None, :] - self.features[:, None, :, :]
        alike = self.formula.residual**2 * np.exp(-0.5 * np.einsum("bnmf,bnmf->bnm", gaps, gaps))
        both = self.present[:, :, None] & self.present[:, None, :]
        noise = np.where(self.present, NOISE**2, _PADDING_NOISE)
        covariance: Array = np.where(both, alike, 0.0) + noise[:, :, None] * np.eye(noise.shape[1])
        return covariance

    def residuals(self, variables: Array, rows: NDArray[np.intp]) -> tuple[Array, Array]:
        """Log residuals of some jobs, zero at padding, and the exact derivatives of the logarithm of the formula."""
        shape, gradient_bytes = self.shape.take(rows), self.gradient_bytes[rows]
        parameters = np.exp(variables)
        times = np.asarray(self.formula.step_times(parameters, gradient_bytes, shape), dtype=float)
        residual = np.where(self.present[rows], self.log_step[rows] - np.log(times), 0.0)
        slope = np.empty((*times.shape, variables.shape[1]))
        for index in range(variables.shape[1]):
            moved = parameters.astype(complex)
            moved[:, index] += 1j * _STEP * parameters[:, index]
            slope[:, :, index] = self.formula.step_times(moved, gradient_bytes, shape).imag / _STEP / times
        slope *= self.present[rows][:, :, None]
        return residual, slope


def _features(shape: PlanShape) -> Array:
    """Where shapes lie: residuals of shapes close to each other are alike."""
    split = shape.tensor_parallel * shape.pipeline_stages > 1
    columns = (
        *(np.log2(x) / PLACEMENT_SCALE for x in (shape.slots, shape.nodes, shape.fewest)),
        *(np.log2(x) / SPLIT_SCALE for x in (shape.tensor_parallel, shape.pipeline_stages)),
        np.log2(shape.micro_batch) / BATCH_SCALE,
        ODD_DISTANCE * shape.odd,
        *(SETTING_DISTANCE * flag for flag in (shape.checkpointing, shape.sharded, shape.offloaded, split)),
    )
    features: Array = np.stack(np.broadcast_arrays(*columns), axis=-1)
    return features
