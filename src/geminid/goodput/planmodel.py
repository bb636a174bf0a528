"""How long a training step takes under an execution plan: data parallel, sharded, split, checkpointed or offloaded.

One formula covers all plans, so that what was measured under one plan and placement predicts the others. For a job
with ``dp = slots / (tp · pp)`` replicas, each taking ``passes`` micro-batches of ``m`` samples per optimiser step:

    T = compute + exposed synchronisation + optimiser + transfers to the host + overhead

- Compute is ``c · m · (passes + pp − 1) / (tp · pp)``: pipeline stages that wait for each other are the bubble.
  Recomputing activations multiplies it; so do tensor and pipeline parallelism, which communicate inside the pass.
- Synchronisation moves ``2 (dp − 1)/dp`` times the gradients of one part of the model, over the links inside a node or
  between nodes. Several slots of a ring on one node share its links: time falls with a power of their number. It
  overlaps the backward pass of the last micro-batch as the square root of the sum of squares.
- GPUs are attached in pairs: a node with an odd number of the job's slots breaks a pair, which costs some jobs (ViT in
  Rubick's data) several times their step. Plans that offload are not affected.

Every formula is written for numpy arrays: parameters have shape ``(J, P)``, shapes ``(C,)`` or ``(J, C)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from geminid.executionplan import ExecutionPlan
from geminid.gputypes import GpuType

Array = NDArray[np.float64]

#: Bytes of a parameter's gradient when it is synchronised, in half precision.
GRADIENT_BYTES = 2.0

#: Share of a pass that is the backward pass, which synchronisation overlaps.
BACKWARD_SHARE = 2.0 / 3.0

#: How the cost of a broken pair of slots grows with the slots of the job's busiest node.
ODD_NODE_POWER = 0.6

#: Share of the catalogue's bandwidth between slots of a node, and between nodes, that gradients reach.
NODE_LINK_SHARE, NETWORK_SHARE = 0.12, 0.5


@dataclass(frozen=True, slots=True)
class PlanParameter:
    """One parameter: its value before anything is known, and how far (log scale) it may be from that."""

    name: str
    typical: float
    spread: float


PARAMETERS: tuple[PlanParameter, ...] = (
    PlanParameter("compute_s_per_sample", 1.0, 3.0),
    PlanParameter("overhead_s", 0.03, 1.0),
    PlanParameter("recompute", 0.35, 0.4),
    PlanParameter("node_s_per_byte", 3e-11, 0.7),
    PlanParameter("network_s_per_byte", 1.4e-10, 0.7),
    PlanParameter("ring_sharing", 0.5, 0.3),
    PlanParameter("sharded_volume", 1.1, 0.3),
    PlanParameter("host_s_per_byte", 4e-10, 1.5),
    PlanParameter("host_fixed_s_per_byte", 1.3e-10, 1.0),
    PlanParameter("optimiser_s_per_byte", 3e-11, 1.5),
    PlanParameter("tensor_parallel_cost", 0.25, 1.0),
    PlanParameter("pipeline_cost", 0.03, 1.0),
    PlanParameter("odd_node_s", 0.02, 2.0),
    PlanParameter("hop_growth", 0.08, 1.0),
    PlanParameter("split_factor", 1.5, 0.5),
    PlanParameter("offloaded_volume", 1.0, 0.3),
    PlanParameter("sharded_latency_s", 0.015, 0.7),
)
"""All parameters, in the order of a parameter vector. They are positive and searched for by their logarithm."""

#: Position of the compute time of a sample in the parameter vector of every formula: nothing is known of it beforehand.
COMPUTE = 0


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a step time depends on besides the job's parameters; arrays that broadcast together.

    ``fewest`` and ``busiest`` are the smallest and largest number of the job's slots on one of its nodes, ``odd``
    whether one of several nodes has an odd number. The plan's settings are numbers: flags are 0 or 1. ``micro_batch``
    is what a replica processes in one pass, ``passes`` the micro-batches of one optimiser step.
    """

    nodes: Array
    slots: Array
    fewest: Array
    busiest: Array
    odd: Array
    tensor_parallel: Array
    pipeline_stages: Array
    checkpointing: Array
    sharded: Array
    offloaded: Array
    micro_batch: Array
    passes: Array

    @classmethod
    def of(cls, plan: ExecutionPlan, placement: Sequence[int], micro_batch: float, passes: float = 1.0) -> PlanShape:
        """A plan on the slots that a job has on each node. The slots must be whole replicas.

        Raises:
            ValueError: the slots cannot be split into replicas of the plan.
        """
        slots = sum(placement)
        if slots == 0 or slots % plan.slots_per_replica:
            raise ValueError(f"{slots} slots are not whole replicas of {plan.slots_per_replica} slots each")
        odd = len(placement) > 1 and any(here % 2 for here in placement)
        values = (
            *(len(placement), slots, min(placement), max(placement), odd),
            *(plan.tensor_parallel, plan.pipeline_stages, plan.gradient_checkpointing, plan.zero, plan.offload),
            *(micro_batch, passes),
        )
        return cls(*(np.asarray(float(value)) for value in values))

    @classmethod
    def stack(cls, shapes: Iterable[PlanShape]) -> PlanShape:
        """Several shapes as one, along a new first axis."""
        listed = list(shapes)
        return cls(*(np.array([getattr(s, f.name) for s in listed], dtype=float) for f in fields(cls)))

    def take(self, index: NDArray[np.intp]) -> PlanShape:
        """The shapes at these positions of the first axis."""
        return PlanShape(*(getattr(self, f.name)[index] for f in fields(self)))

    @property
    def replicas(self) -> Array:
        """Replicas of the model."""
        return np.asarray(self.slots / (self.tensor_parallel * self.pipeline_stages))

    @property
    def total_batch(self) -> Array:
        """Samples of one optimiser step."""
        return np.asarray(self.replicas * self.micro_batch * self.passes)


def step_times(parameters: NDArray[np.inexact], gradient_bytes: Array, shape: PlanShape) -> NDArray[np.inexact]:
    """Seconds per optimiser step, of shape ``(J, C)``: jobs by shapes.

    ``parameters`` is ``(J, P)`` and ``gradient_bytes`` ``(J, 1)``. Complex parameters give exact derivatives.
    """

    def p(index: int) -> NDArray[np.inexact]:
        return parameters[:, index, None]

    tp, pp, replicas, passes = shape.tensor_parallel, shape.pipeline_stages, shape.replicas, shape.passes
    parts = tp * pp
    several_nodes = shape.nodes > 1
    # What a job's parameters are multiplied by; none of it depends on the job.
    samples = shape.micro_batch * (passes + pp - 1.0) / parts
    ring = np.minimum(replicas, np.maximum(1.0, shape.fewest / tp))
    across = several_nodes & (ring < replicas)
    volume = 2.0 * (replicas - 1.0) / replicas / parts
    hops = np.log2(np.maximum(shape.nodes, 2.0) / 2.0)
    broken = shape.odd * (1.0 - shape.offloaded) * (parts == 1)
    broken = broken * shape.busiest**ODD_NODE_POWER * (1.0 - 2.0 / np.maximum(shape.slots, 2.0))
    sharded = shape.sharded * (1.0 - shape.offloaded)

    split = np.where(parts > 1, p(14) * (1.0 + p(10) * (tp - 1.0) + p(11) * (pp - 1.0)), 1.0)
    compute = p(0) * samples * (1.0 + p(2) * shape.checkpointing) * split
    traffic = np.where(shape.offloaded > 0, p(15), np.where(shape.sharded > 0, p(6), 1.0)) * volume
    per_byte = np.where(across, p(4) * ring ** -p(5) * (1.0 + p(13) * hops), p(3))
    synchronise = gradient_bytes * traffic * per_byte
    backward = compute * (BACKWARD_SHARE / (passes + pp - 1.0) * pp)
    exposed = np.sqrt(synchronise**2 + backward**2) - backward
    optimiser = p(9) * gradient_bytes / (parts * np.where(shape.sharded > 0, replicas, 1.0))
    host = shape.offloaded * gradient_bytes * (p(7) / replicas + p(8)) / parts
    overhead = p(1) * passes + p(16) * (across * sharded) + p(12) * broken
    result: NDArray[np.inexact] = compute + exposed + optimiser + host + overhead
    return result


@dataclass(frozen=True, slots=True)
class PlanFormula:
    """A formula of step times with its parameters.

    ``spreads`` are the spreads between jobs on the same machines of parameters that are known to differ little or much,
    by position; the others' are estimated from such jobs. ``residual`` is the standard deviation, in log seconds, of
    what the formula misses.
    """

    parameters: tuple[PlanParameter, ...]
    step_times: Callable[[NDArray[np.inexact], Array, PlanShape], NDArray[np.inexact]]
    spreads: Mapping[int, float]
    residual: float


GEMINID = PlanFormula(
    parameters=PARAMETERS,
    step_times=step_times,
    spreads=MappingProxyType({4: 0.2, 5: 0.15, 7: 0.8, 12: 1.5}),
    residual=0.12,
)
"""Our formula. Links belong to the machines; broken pairs of slots and work on the host differ between jobs."""


def catalogue_typical(gpu_type: GpuType) -> Array:
    """Typical parameters on a GPU type: bandwidths from the catalogue, the rest as everywhere."""
    typical = np.array([parameter.typical for parameter in PARAMETERS])
    links = gpu_type.interconnect
    typical[3] = 1.0 / (NODE_LINK_SHARE * links.node.bandwidth_bytes_per_s)
    typical[4] = 1.0 / (NETWORK_SHARE * links.efficiency * links.rack.bandwidth_bytes_per_s)
    return typical
