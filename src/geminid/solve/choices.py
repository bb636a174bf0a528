"""One configuration per job, within the slots of every GPU type and the limits of groups: the problem, and prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.intp]

#: Stands for −∞ in utilities: nobody chooses it, and it can be multiplied by zero.
IMPOSSIBLE = -1e30


@dataclass(frozen=True, slots=True)
class Choices:
    """What is to be decided.

    ``utility`` is jobs × configurations, anything at or below ``IMPOSSIBLE`` (−inf too) where a job cannot use a
    configuration; having none is worth nothing. ``slots`` and ``resource`` say how many slots of which type a
    configuration takes, ``capacity`` how many there are of each type. Where ``group`` is given (an index per job, −1
    for none), the jobs of group g may together take ``group_capacity[g]`` at most, counted by ``group_use`` per
    configuration (its slots, where left out: a quota; its price per hour: a budget).
    """

    utility: Array
    slots: Array
    resource: IntArray
    capacity: Array
    group: IntArray | None = None
    group_capacity: Array | None = None
    group_use: Array | None = None

    @property
    def groups(self) -> int:
        """How many groups have a limit."""
        return 0 if self.group_capacity is None else len(self.group_capacity)

    @property
    def limits(self) -> Array:
        """The slots of every type, then the limit of every group."""
        return self.capacity if self.group_capacity is None else np.concatenate([self.capacity, self.group_capacity])

    @property
    def use(self) -> Array:
        """What a configuration counts for in its job's group."""
        return self.slots if self.group_use is None else self.group_use


@dataclass(frozen=True, slots=True)
class Prices:
    """What a slot of each type is worth now, and what membership in a group costs per unit of its use on top."""

    types: Array
    groups: Array

    @property
    def all(self) -> Array:
        """Both, one after the other: in the order of a problem's limits."""
        return np.concatenate([self.types, self.groups])
