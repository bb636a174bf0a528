"""How long one training step takes: Pollux's model, and ours.

Both answer the same question: given how many nodes and slots a job has, and how many samples each slot
processes at once, how long are a forward-backward pass and a whole optimiser step? Throughput follows:

    throughput = M / T_iter,   M = slots × per-slot batch × (accumulation + 1)
    T_iter     = accumulation × T_acc + T_step

where ``T_acc`` is a pass without synchronisation (a gradient-accumulation step) and ``T_step`` the last pass of
the optimiser step, which synchronises gradients.

Every formula is written for numpy arrays: parameters have shape ``(..., P)`` and broadcast against the arrays of
a :class:`Shape`, so the same lines serve one job and a table of ten thousand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

#: Stands for "takes no time" where a logarithm is needed.
TINY_S = 1e-12

#: exp of this, added to one, changes nothing in double precision.
NEGLIGIBLE_LOG = -40.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step time depends on besides the job's own parameters; arrays that broadcast together.

    ``busiest_node_slots`` is the job's largest number of slots on one node (its workers there share the host);
    ``link_slowdown`` is how much slower the narrowest link of the placement is than the GPU type's own link between two
    nodes of a rack (1 unless the job crosses racks or zones, or the cluster's network is another).
    """

    nodes: Array
    slots: Array
    per_slot_batch: Array
    busiest_node_slots: Array
    link_slowdown: Array

    @classmethod
    def of(
        cls,
        nodes: ArrayLike,
        slots: ArrayLike,
        per_slot_batch: ArrayLike,
        busiest_node_slots: ArrayLike | None = None,
        link_slowdown: ArrayLike = 1.0,
    ) -> Shape:
        """Build a shape; without ``busiest_node_slots`` the slots are spread evenly over the nodes."""
        nodes_, slots_ = np.asarray(nodes, dtype=float), np.asarray(slots, dtype=float)
        if busiest_node_slots is None:
            busiest = np.ceil(slots_ / nodes_)
        else:
            busiest = np.asarray(busiest_node_slots, dtype=float)
        return cls(
            nodes_,
            slots_,
            np.asarray(per_slot_batch, dtype=float),
            busiest,
            np.asarray(link_slowdown, dtype=float),
        )


@dataclass(frozen=True, slots=True)
class Parameter:
    """One fitted number of a model: its name, what it means, and the interval it must lie in.

    Parameters that range over orders of magnitude (``logarithmic``) are searched for by their logarithm.
    """

    name: str
    meaning: str
    lower: float
    upper: float
    logarithmic: bool = True


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of an accumulation step and of a synchronising step, as arrays of one shape."""

    accumulation_s: Array
    step_s: Array

    def iteration_s(self, accumulation_steps: ArrayLike) -> Array:
        """Seconds of one optimiser step with this many accumulation steps before the synchronising one."""
        return np.asarray(accumulation_steps, dtype=float) * self.accumulation_s + self.step_s


@dataclass(frozen=True, slots=True)
class LogSensitivities:
    """Derivatives of log T_acc and log T_step by each search variable, arrays of shape ``(..., P)``."""

    accumulation: Array
    step: Array

    @classmethod
    def of(
        cls, accumulation: Mapping[int, Array], step: Mapping[int, Array], shape: tuple[int, ...]
    ) -> LogSensitivities:
        """From the derivatives by each parameter that matters; the others are zero."""
        arrays = np.zeros(shape), np.zeros(shape)
        for array, derivatives in zip(arrays, (accumulation, step), strict=True):
            for parameter, derivative in derivatives.items():
                array[..., parameter] = derivative
        return cls(*arrays)


def log_p_norm(log_a: Array, log_b: Array, exponent: Array) -> Array:
    """Logarithm of (a^p + b^p)^(1/p) from log a and log b: of a + b at p = 1, of the larger of the two as p grows.

    Logarithms neither overflow nor crawl through denormal numbers. Most of the time of a goodput table is spent here:
    hence few passes over the arrays, and few temporaries.
    """
    result = np.empty(np.broadcast(log_a, log_b, exponent).shape, np.result_type(log_a, log_b))
    np.subtract(log_a, log_b, out=result)
    np.abs(result, out=result)
    result *= -exponent
    np.maximum(result, NEGLIGIBLE_LOG, out=result)
    np.exp(result, out=result)
    result += 1.0
    np.log(result, out=result)
    result /= exponent
    result += np.maximum(log_a, log_b)
    return result


def p_norm(a: Array, b: Array, exponent: Array) -> Array:
    """(a^p + b^p)^(1/p) for positive a and b: their sum at p = 1, the larger of the two as p grows."""
    norm: Array = np.exp(log_p_norm(np.log(a), np.log(b), exponent))
    return norm


def _p_norm_sensitivities(a: Array, b: Array, exponent: Array) -> tuple[Array, Array, Array]:
    """The p_norm, with the derivatives of its logarithm: by log a (by log b it is one minus that), by the exponent."""
    log_a, log_b = np.log(a), np.log(b)
    share_a = 1.0 / (1.0 + np.exp(np.minimum(np.maximum(-exponent * (log_a - log_b), -700.0), 700.0)))
    log_norm = log_p_norm(log_a, log_b, exponent)
    by_exponent = (share_a * log_a + (1.0 - share_a) * log_b - log_norm) / exponent
    return np.exp(log_norm), share_a, by_exponent


def _each(parameters: Array) -> Array:
    """Parameter vectors (..., P) with the parameters first, to be taken apart."""
    return parameters.transpose(-1, *range(parameters.ndim - 1))


class ThroughputModel(ABC):
    """A family of step-time formulas with named parameters."""

    name: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]

    @classmethod
    def index(cls, name: str) -> int:
        """Position of a parameter in the vectors that this model reads."""
        return [p.name for p in cls.parameters].index(name)

    @abstractmethod
    def step_times(self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0) -> StepTimes:
        """Seconds of an accumulation step and of a synchronising step.

        ``log_compute_factor`` is the logarithm of a factor on the computing part: what has been measured at single
        batch sizes beyond the formula.
        """

    def step_s(self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0) -> Array:
        """Seconds of a synchronising step alone, for plans without accumulation."""
        return self.step_times(parameters, shape, log_compute_factor).step_s

    @abstractmethod
    def sensitivities(
        self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0
    ) -> tuple[StepTimes, LogSensitivities]:
        """The step times with their exact derivatives, for fitting."""


class PolluxModel(ThroughputModel):
    """The throughput model of Pollux (OSDI '21, section 3.2).

    - T_grad(m) = α_c + β_c·m: one forward and backward pass over m samples on one slot.
    - T_sync(N, K) = 0 on one slot, α_r + β_r·max(K − 2, 0) within a node, α_n + β_n·max(K − 2, 0) across nodes.
    - T_step = (T_grad^γ + T_sync^γ)^(1/γ): γ = 1 means no overlap of computing and synchronising, γ = 10 almost full.
    """

    name = "pollux"
    parameters = (
        Parameter("alpha_c", "constant part of a forward-backward pass, s", 1e-8, 1e4),
        Parameter("beta_c", "forward-backward pass per sample, s", 1e-8, 1e4),
        Parameter("alpha_n", "synchronisation across nodes, s", 1e-8, 1e4),
        Parameter("beta_n", "the same per slot beyond two, s", 1e-8, 1e4),
        Parameter("alpha_r", "synchronisation within a node, s", 1e-8, 1e4),
        Parameter("beta_r", "the same per slot beyond two, s", 1e-8, 1e4),
        Parameter("gamma", "overlap of computing and synchronising", 1.0, 10.0, logarithmic=False),
    )

    def step_times(self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0) -> StepTimes:
        """T_grad, and T_grad overlapped with T_sync."""
        alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = _each(parameters)
        grad_s = (alpha_c + beta_c * shape.per_slot_batch) * np.exp(log_compute_factor)
        beyond_two = np.maximum(shape.slots - 2.0, 0.0)
        within_node = shape.nodes == 1
        sync_s = np.where(within_node, alpha_r, alpha_n) + np.where(within_node, beta_r, beta_n) * beyond_two
        sync_s = np.where(shape.slots == 1, TINY_S, sync_s)
        step_s = p_norm(grad_s, sync_s, gamma)
        return StepTimes(np.broadcast_to(grad_s, step_s.shape), step_s)

    def sensitivities(
        self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0
    ) -> tuple[StepTimes, LogSensitivities]:
        """Step times and the derivatives of their logarithms by log α, log β and γ."""
        alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = _each(parameters)
        factor = np.exp(log_compute_factor)
        grad_s = (alpha_c + beta_c * shape.per_slot_batch) * factor
        beyond_two = np.maximum(shape.slots - 2.0, 0.0)
        within_node = (shape.nodes == 1) & (shape.slots > 1)
        across_nodes = (shape.nodes > 1) & (shape.slots > 1)
        sync_s = (
            within_node * (alpha_r + beta_r * beyond_two)
            + across_nodes * (alpha_n + beta_n * beyond_two)
            + (shape.slots == 1) * TINY_S
        )
        step_s, grad_share, by_gamma = _p_norm_sensitivities(grad_s, sync_s, gamma)
        sync_share = (1.0 - grad_share) / sync_s
        by_alpha_c = alpha_c * factor / grad_s
        by_beta_c = 1.0 - by_alpha_c
        accumulation = {0: by_alpha_c, 1: by_beta_c}
        step = {
            0: grad_share * by_alpha_c,
            1: grad_share * by_beta_c,
            2: sync_share * across_nodes * alpha_n,
            3: sync_share * across_nodes * beta_n * beyond_two,
            4: sync_share * within_node * alpha_r,
            5: sync_share * within_node * beta_r * beyond_two,
            6: by_gamma,
        }
        times = StepTimes(np.broadcast_to(grad_s, step_s.shape), step_s)
        return times, LogSensitivities.of(accumulation, step, (*step_s.shape, len(self.parameters)))


class TopologyModel(ThroughputModel):
    """Our model: Pollux's structure, bent where measurements bend.

    Three things that real measurements show and Pollux's formulas cannot express:

    - **The launch plateau.** Below some batch size a pass costs what the host needs to launch its kernels, whatever
      the batch: T_compute(m) = (floor^δ + (slope·m)^δ)^(1/δ).
    - **The host is shared.** Workers on one node compete for its CPU cores, memory and input pipeline. With c workers
      on the busiest node a step waits T_host = (host + host_per_sample·m)·(c−1)/(1 + saturation·(c−1)) longer; a
      fraction of that is already seen in passes that do not synchronise.
    - **Synchronisation follows the topology.** All-reduce moves 2·(K−1)/K times the model over the narrowest link,
      and waits for more stragglers as K doubles: T_sync = volume·2(K−1)/K·slowdown + growth·log2(K/2), with
      constants for links within a node and between nodes, and a factor for pairs of nodes (with just two nodes the
      collective library has a single path). ``slowdown`` is the bandwidth ratio of the link that the placement
      crosses to the one the constant was measured on, so a fit within a rack predicts a placement across racks.
    """

    name = "geminid"
    parameters = (
        Parameter("launch_floor", "a pass with a tiny batch, s", 1e-8, 1e4),
        Parameter("per_sample", "a pass per sample, large batches, s", 1e-10, 1e4),
        Parameter("plateau_sharpness", "how sharply the plateau turns into the slope", 1.0, 10.0, logarithmic=False),
        Parameter("volume_node", "moving half the all-reduce volume within a node, s", 1e-8, 1e4),
        Parameter("growth_node", "the same, growth per doubling of slots, s", 1e-8, 1e4),
        Parameter("volume_rack", "moving half the all-reduce volume between nodes, s", 1e-8, 1e4),
        Parameter("growth_rack", "the same, growth per doubling of slots, s", 1e-8, 1e4),
        Parameter("pair_factor", "slowdown of the link when a job is on exactly two nodes", 0.1, 10.0),
        Parameter("host", "waiting per further worker on the busiest node, s", 1e-8, 1e4),
        Parameter("host_per_sample", "the same per sample of the per-slot batch, s", 1e-10, 1e4),
        Parameter("host_saturation", "how fast that waiting levels off with more workers", 1e-4, 10.0),
        Parameter("host_unsynced", "fraction of it seen without synchronising", 0.0, 1.0, logarithmic=False),
        Parameter("gamma", "overlap of computing and synchronising", 1.0, 10.0, logarithmic=False),
    )

    def step_times(self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0) -> StepTimes:
        """Compute, overlapped with synchronisation, plus waiting for the shared host."""
        log_compute, host_s, step_s = self._parts(_each(parameters), shape, log_compute_factor)
        accumulation_s = np.exp(log_compute)
        accumulation_s += parameters[..., self.index("host_unsynced")] * host_s
        return StepTimes(np.broadcast_to(accumulation_s, step_s.shape), step_s)

    def step_s(self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0) -> Array:
        """Seconds of a synchronising step alone."""
        return self._parts(_each(parameters), shape, log_compute_factor)[2]

    def _parts(self, p: Array, shape: Shape, log_compute_factor: Array | float) -> tuple[Array, Array, Array]:
        """Computing (its logarithm), waiting for the host, and the whole synchronising step."""
        log_compute = log_p_norm(np.log(shape.per_slot_batch) + np.log(p[1]), np.log(p[0]), p[2])
        if not (isinstance(log_compute_factor, float) and log_compute_factor == 0.0):
            log_compute = log_compute + log_compute_factor
        sync_s = np.where(shape.slots == 1, TINY_S, self._sync_s(p, shape))
        others = shape.busiest_node_slots - 1.0
        shared = others / (1.0 + p[10] * others)
        host_s = np.asarray(shape.per_slot_batch * (p[9] * shared))
        host_s += p[8] * shared
        step_s = log_p_norm(log_compute, np.log(sync_s), p[12])
        np.exp(step_s, out=step_s)
        step_s += host_s
        return log_compute, host_s, step_s

    @staticmethod
    def _sync_s(p: Array, shape: Shape) -> Array:
        within_node = shape.nodes == 1
        volume = 2.0 * (shape.slots - 1.0) / shape.slots
        doublings = np.log2(np.maximum(shape.slots, 2.0) / 2.0)
        link = np.where(within_node, p[3], p[5] * np.where(shape.nodes == 2, p[7], 1.0) * shape.link_slowdown)
        result: Array = link * volume + np.where(within_node, p[4], p[6]) * doublings
        return result

    def sensitivities(
        self, parameters: Array, shape: Shape, log_compute_factor: Array | float = 0.0
    ) -> tuple[StepTimes, LogSensitivities]:
        """Step times and the derivatives of their logarithms by each search variable."""
        p = _each(parameters)
        m = shape.per_slot_batch
        formula_s, floor_share, by_sharpness = _p_norm_sensitivities(p[0], p[1] * m, p[2])
        compute_s = formula_s * np.exp(log_compute_factor)

        synced, within_node = shape.slots > 1, shape.nodes == 1
        volume = 2.0 * (shape.slots - 1.0) / shape.slots
        doublings = np.log2(np.maximum(shape.slots, 2.0) / 2.0)
        pair = shape.nodes == 2
        within, across = within_node & synced, ~within_node & synced
        rack_volume = p[5] * np.where(pair, p[7], 1.0) * shape.link_slowdown * volume * across
        terms = [
            p[3] * volume * within,
            p[4] * doublings * within,
            rack_volume,
            p[6] * doublings * across,
            rack_volume * pair,
        ]
        sync_s = np.where(synced, terms[0] + terms[1] + terms[2] + terms[3], TINY_S)

        others = shape.busiest_node_slots - 1.0
        shared = others / (1.0 + p[10] * others)
        host_s = (p[8] + p[9] * m) * shared
        accumulation_s = compute_s + p[11] * host_s
        overlapped_s, compute_share, by_gamma = _p_norm_sensitivities(compute_s, sync_s, p[12])
        step_s = overlapped_s + host_s

        compute_terms = [floor_share, 1.0 - floor_share, by_sharpness]
        host_terms = [p[8] * shared, p[9] * m * shared, -host_s * p[10] * shared]
        in_accumulation, in_step = compute_s / accumulation_s, overlapped_s / step_s
        accumulation = {i: term * in_accumulation for i, term in enumerate(compute_terms)}
        accumulation |= {i: p[11] * term / accumulation_s for i, term in enumerate(host_terms, start=8)}
        accumulation[11] = host_s / accumulation_s
        by_compute, by_sync = compute_share * in_step, (1.0 - compute_share) / sync_s * in_step
        step = {i: term * by_compute for i, term in enumerate(compute_terms)}
        step |= {i: term * by_sync for i, term in enumerate(terms, start=3)}
        step |= {i: term / step_s for i, term in enumerate(host_terms, start=8)}
        step[12] = by_gamma * in_step
        times = StepTimes(np.broadcast_to(accumulation_s, step_s.shape), step_s)
        return times, LogSensitivities.of(accumulation, step, (*step_s.shape, len(p)))


MODELS: dict[str, ThroughputModel] = {model.name: model for model in (PolluxModel(), TopologyModel())}
