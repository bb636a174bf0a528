"""What cluster a policy would wish for, by goodput per dollar.

Every job is asked what it would rent for itself: more slots as long as they bring at least a share of the goodput per
dollar that its most economical configuration brings. With a share of one everybody gets that one; with zero,
everybody gets whatever makes it fastest. The sum over jobs is the cluster. Which type to rent first, the prices say:
the one of which a further slot is worth most now for what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geminid.cluster import Cluster
from geminid.configuration import Configuration
from geminid.fields import InvalidInput

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Wish:
    """Slots of one GPU type that would pay, of how many jobs, and what of the goodput per dollar they would bring.

    ``goodput_per_dollar`` is relative to every job running at its most economical. ``worth_per_dollar`` is what a
    further slot is worth now for its cost, relative to the type where that is most; zero where there are free ones.
    """

    gpu_type: str
    slots: int
    jobs: int
    goodput_per_dollar: float
    worth_per_dollar: float = 0.0

    @property
    def reason(self) -> str:
        """The wish in words."""
        share = f"{100 * self.goodput_per_dollar:.0f} %"
        slots, jobs = (f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((self.slots, "slot"), (self.jobs, "job")))
        wish = f"{slots} of {self.gpu_type} for {jobs} at {share} of their best goodput per dollar"
        if self.worth_per_dollar == 1.0:
            return f"{wish}; to be rented first, a further one is worth most now for its cost"
        if self.worth_per_dollar > 0.0:
            return f"{wish}; a further one is worth {100 * self.worth_per_dollar:.0f} % of that now for its cost"
        return wish


def rentable(cluster: Cluster) -> Cluster:
    """What could be rented: as much of everything again. (A cluster that has grown can grow again.)"""
    taken = set(cluster.node_index)
    again = [replace(node, name=name) for node in cluster.nodes if (name := f"{node.name}-again") not in taken]
    try:
        return replace(cluster, nodes=(*cluster.nodes, *again))
    except InvalidInput:  # larger than any cluster may be
        return cluster


def wishes(
    configurations: Sequence[Configuration],
    goodput: Array,
    dollars_per_hour: Mapping[str, float],
    share: float,
    prices: Mapping[str, float] | None = None,
) -> list[Wish]:
    """What to rent of each GPU type for jobs (rows) with these goodputs on the configurations (columns).

    ``prices`` are what a further slot of each type is worth now; the type to rent first comes first.
    """
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
    worth = {name: price / dollars_per_hour[name] for name, price in (prices or {}).items()}
    most = max(worth.values(), default=0.0)
    result = []
    for gpu_type in dict.fromkeys(c.gpu_type for c in configurations):
        of_type = np.array([configurations[c].gpu_type == gpu_type for c in column])
        if of_type.any():
            slots = sum(configurations[c].slots for c in column[of_type])
            now = worth.get(gpu_type, 0.0) / most if most > 0.0 else 0.0
            result.append(Wish(gpu_type, slots, int(of_type.sum()), float(reached[of_type].mean()), now))
    return sorted(result, key=lambda wish: -wish.worth_per_dollar)


def nodes_for(cluster: Cluster, wished: Sequence[Wish]) -> dict[str, int] | None:
    """The desired number of nodes of each GPU type, for nodes as large as the cluster's; None without wishes."""
    if not wished:
        return None
    size = cluster.largest_node_slots
    return {wish.gpu_type: -(-wish.slots // size[wish.gpu_type]) for wish in wished}
