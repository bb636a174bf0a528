"""How fast two training jobs run on one accelerator at the same time.

A job that leaves an accelerator idle part of the time (small batches: the host cannot launch kernels fast enough) loses
little beside another. How busy a job keeps it shows in its step times: in a large batch a sample takes as long as the
accelerator needs for it, in a small one longer.

With both jobs' utilisations u and v in [0, 1], each runs at 1/(1 + c + (1 − c)·(u·v)²) of its speed alone: two that
saturate the accelerator take turns, two that hardly use it lose c to each other's launches and caches. c is from four
pairs measured on an H200 (ResNet-18 with itself, ResNet-50 and GPT-2, and these two together), which the formula meets
with a mean error of 4 % of a job's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: c: what two jobs lose to each other that hardly use the accelerator.
OVERHEAD = 0.08


@overload
def shared_speed(utilisation: float, other: float) -> float: ...
@overload
def shared_speed(utilisation: Array, other: Array) -> Array: ...
def shared_speed(utilisation: float | Array, other: float | Array) -> float | Array:
    """What is left of a job's speed beside another one.

    >>> shared_speed(1.0, 1.0)
    0.5
    """
    return 1.0 / (1.0 + OVERHEAD + (1.0 - OVERHEAD) * (utilisation * other) ** 2)


def utilisation(pass_s: Callable[[int], float], per_slot_batch: int, largest: int) -> float:
    """How busy a job keeps its accelerator: the time that its batch takes at full speed, of the time that it takes.

    Full speed is what a sample takes in the largest batch.
    """
    return min(1.0, per_slot_batch * pass_s(largest) / (largest * pass_s(per_slot_batch)))
