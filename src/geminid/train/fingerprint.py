"""What must be the same on all workers, as small hash codes that they can compare by summing them up."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from torch import Tensor

from geminid.train.data import LARGEST_CODE
from geminid.train.sampler import StepSampler
from geminid.train.trainstate import TrainingState


@dataclass(frozen=True, slots=True)
class Codes:
    """Hash codes of one worker's position in training, order of the data, learning rates and weights.

    The weights are compared at some moments only; they have two codes, so that no difference is overlooked.
    """

    position: int = 0
    order: int = 0
    rates: int = 0
    weights: tuple[int, int] = (0, 0)


class Fingerprint:
    """Computes this worker's codes.

    ``questions`` counts calls of ``run.agree`` and ``run.gather`` in this epoch, ``left`` says whether the loop over
    epochs was left, and ``weights`` are codes of the weights while these are compared.
    """

    def __init__(self, state: TrainingState, sampler: StepSampler) -> None:
        self._state, self._sampler = state, sampler
        self.questions, self.left, self.weights = 0, False, (0, 0)

    def codes(self) -> Codes:
        """The codes as of now."""
        position = self._state.position
        rates = (group.get("lr", 0.0) for group in self._state.optimizer.param_groups)
        known = [float(rate) for rate in rates if not (isinstance(rate, Tensor) and rate.is_cuda)]  # without waiting
        return Codes(
            position=_code_of(position.epoch, position.cursor, position.step, self.questions, self.left),
            # Outside of the loop, a worker that has just joined may not know the order yet.
            order=self._sampler.order_code() if self._state.progress.in_loop else 0,
            rates=_code_of(*known),
            weights=self.weights,
        )

    def weight_codes(self) -> tuple[int, int]:
        """Codes of the weights."""
        code = self._state.weights_code()
        return code % LARGEST_CODE, code // LARGEST_CODE % LARGEST_CODE


def _code_of(*values: float) -> int:
    """A code small enough that those of thousands of workers add up exactly in 32-bit floating point."""
    return zlib.crc32(repr(values).encode()) % LARGEST_CODE
