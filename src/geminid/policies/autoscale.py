"""What cluster a policy would wish for, by goodput per dollar.

Every job is asked what it would rent for itself: more slots as long as they bring at least a share of the goodput per
dollar that its most economical configuration brings. With a share of one everybody gets that one; with zero,
everybody gets whatever makes it fastest. The sum over jobs is the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminid.configuration import Configuration

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Wish:
    """Slots of one GPU type that would pay, of how many jobs, and what of the goodput per dollar they would bring.

    ``goodput_per_dollar`` is relative to every job running at its most economical.
    """

    gpu_type: str
    slots: int
    jobs: int
    goodput_per_dollar: float

    @property
    def reason(self) -> str:
        """The wish in words."""
        share = f"{100 * self.goodput_per_dollar:.0f} %"
        slots, jobs = (f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((self.slots, "slot"), (self.jobs, "job")))
        return f"{slots} of {self.gpu_type} for {jobs} at {share} of their best goodput per dollar"


def wishes(
    configurations: Sequence[Configuration], goodput: Array, dollars_per_hour: Mapping[str, float], share: float
) -> list[Wish]:
    """What to rent of each GPU type for jobs (rows) with these goodputs on the configurations (columns)."""
    cost = np.array([c.slots * dollars_per_hour[c.gpu_type] for c in configurations])
    runnable = goodput[(goodput > 0).any(axis=1)]
    if not len(runnable):
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        economy = np.where(runnable > 0, runnable / cost, 0.0)
    best = economy.max(axis=1, keepdims=True)
    surplus = np.where(runnable > 0, runnable - share * best * cost, -np.inf)
    column = np.argmax(surplus, axis=1)
    reached = economy[np.arange(len(column)), column] / best[:, 0]
    result = []
    for gpu_type in dict.fromkeys(c.gpu_type for c in configurations):
        of_type = np.array([configurations[c].gpu_type == gpu_type for c in column])
        if of_type.any():
            slots = sum(configurations[c].slots for c in column[of_type])
            result.append(Wish(gpu_type, slots, int(of_type.sum()), float(reached[of_type].mean())))
    return result
