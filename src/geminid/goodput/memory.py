"""How much memory of a slot a job needs under an execution plan, and how large its micro-batches may be.

The peak of a training step is at one of two moments: in the optimiser step, where parameters, gradients and the
optimiser's state are all there, or at the end of the forward pass, where activations are in place of the gradients.
Measured on an H200 (plain and checkpointed GPTs of 124M to 3B parameters), 16 bytes a parameter is the floor with
Adam in single precision, and the peak is the larger of the two moments, not their sum.

Under a plan, tensor and pipeline parallelism divide everything; sharding divides gradients and optimiser state by the
replicas; offload keeps optimiser state and gradients in the memory of the machine; checkpointing keeps a part of the
activations. A pipeline's first stage holds as many micro-batches as there are stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.planmodel import Array, PlanShape

#: Bytes per parameter in single precision.
PARAMETER_BYTES = 4.0

#: … of its gradient.
GRADIENT_BYTES = 4.0

#: … of Adam's two moments.
ADAM_BYTES = 8.0

#: Share of the activations that checkpointing keeps: the inputs of blocks, and the output of the last layer.
KEPT_ACTIVATIONS = 0.3

#: Part of a slot's memory that is left free: fragmentation, communication buffers.
HEADROOM = 0.05

#: Gradients that an offloading plan has on the slot at a time, as a share of the model's.
OFFLOAD_BUFFER = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """What a model needs: parameters, bytes of each for the optimiser, and bytes of activations per sample."""

    parameters: float
    activation_bytes_per_sample: float
    optimiser_bytes: float = ADAM_BYTES
    kept_activations: float = KEPT_ACTIVATIONS

    def peak_bytes(self, shape: PlanShape) -> Array:
        """Peak bytes on the busiest slot, for every shape."""
        weights, gradients, optimiser = self._state(shape)
        activations = self._activations_per_sample(shape) * shape.micro_batch
        result: Array = weights + optimiser + np.maximum(gradients, activations)
        return result

    def fits(self, shape: PlanShape, slot_bytes: float) -> NDArray[np.bool_]:
        """Which shapes fit a slot of this memory."""
        return np.asarray(self.peak_bytes(shape) <= slot_bytes * (1.0 - HEADROOM))

    def largest_micro_batch(self, shape: PlanShape, slot_bytes: float) -> Array:
        """The largest micro-batch, in whole samples, that fits a slot; 0 where not even one does."""
        weights, gradients, optimiser = self._state(shape)
        room = slot_bytes * (1.0 - HEADROOM) - weights - optimiser
        samples = np.floor(room / np.maximum(self._activations_per_sample(shape), 1e-9) + 1e-9)
        result: Array = np.where((room >= gradients) & (samples >= 1), samples, 0.0)
        return result

    def calibrated(self, shape: PlanShape, measured_bytes: float) -> ModelMemory:
        """The same model with activations as one measured peak implies; unchanged where the peak is the optimiser's."""
        weights, gradients, optimiser = (float(part) for part in self._state(shape))
        activations = measured_bytes - weights - optimiser
        if activations <= gradients:
            return self
        estimated = float(self._activations_per_sample(shape) * shape.micro_batch)
        scale = activations / estimated
        return replace(self, activation_bytes_per_sample=self.activation_bytes_per_sample * scale)

    def _state(self, shape: PlanShape) -> tuple[Array, Array, Array]:
        """Bytes of parameters, gradients and optimiser state on a slot."""
        each = self.parameters / (shape.tensor_parallel * shape.pipeline_stages)
        shards = np.where(shape.sharded > 0, shape.replicas, 1.0)
        offloaded = shape.offloaded > 0
        gradients = each * GRADIENT_BYTES * np.where(offloaded, OFFLOAD_BUFFER, 1.0 / shards)
        optimiser = np.where(offloaded, 0.0, each * self.optimiser_bytes / shards)
        return np.asarray(each * PARAMETER_BYTES), np.asarray(gradients), np.asarray(optimiser)

    def _activations_per_sample(self, shape: PlanShape) -> Array:
        kept = np.where(shape.checkpointing > 0, self.kept_activations, 1.0)
        in_flight = np.minimum(shape.passes, shape.pipeline_stages) / shape.pipeline_stages
        return np.asarray(self.activation_bytes_per_sample * kept * in_flight / shape.tensor_parallel)
