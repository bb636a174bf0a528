"""What a fit assumes before it has seen enough.

A job that has only ever run on one slot says nothing about synchronisation. Pollux's answer, kept here, is optimism:
what has not been observed costs nothing, so the scheduler tries it and learns. Each function turns a batch of jobs'
observations into a :class:`Search`: where to start, which parameters the data can tell at all, and how strongly the
others are pulled towards what is typical.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.throughput import Array, PolluxModel, Shape, ThroughputModel, TopologyModel

Mask = NDArray[np.bool_]

#: Links between nodes are not assumed to be faster than those within a node.
INTER_NODE_AT_LEAST = 1.1

#: Pull of our model's parameters towards the typical value, divided by the number of observations.
PRIOR_PULL = 1e-2
COMPUTE_PULL = 0.1

#: With fewer observations than this, waiting for the host cannot be distinguished from synchronisation.
ENOUGH_FOR_HOST = 6


@dataclass(frozen=True, slots=True)
class Measured:
    """The observations of B jobs as padded arrays of shape (B, n); weight 0 marks padding and outliers."""

    shape: Shape
    log_accumulation: Array
    log_step: Array
    weight: Array

    def take(self, rows: NDArray[np.intp]) -> Measured:
        """The observations of some of the jobs."""
        s = self.shape
        shape = Shape(
            s.nodes[rows],
            s.slots[rows],
            s.per_slot_batch[rows],
            s.busiest_node_slots[rows],
            np.broadcast_to(s.link_slowdown, s.nodes.shape)[rows],
        )
        return Measured(shape, self.log_accumulation[rows], self.log_step[rows], self.weight[rows])

    def with_weight(self, weight: Array) -> Measured:
        """The same observations, weighted differently."""
        return Measured(self.shape, self.log_accumulation, self.log_step, weight)

    @property
    def present(self) -> Mask:
        """Which entries are observations that count."""
        return self.weight > 0


@dataclass(frozen=True, slots=True)
class Search:
    """A batch of fits to run: variables are logarithms where the parameter is logarithmic.

    The loss adds ``pull² · (variable − centre)²`` per variable, and ``weight · (numerator/denominator)²`` for every
    ratio (Pollux keeps β well below α).
    """

    starts: tuple[Array, ...]
    free: Mask
    centre: Array
    pull: Array
    ratios: tuple[tuple[int, int, float], ...] = ()


@cache
def _logarithmic(model: ThroughputModel) -> Mask:
    """Which parameters are searched for by their logarithm."""
    return np.array([parameter.logarithmic for parameter in model.parameters])


def to_variables(model: ThroughputModel, parameters: Array) -> Array:
    """Search variables of parameter vectors."""
    logarithmic = _logarithmic(model)
    return np.where(logarithmic, np.log(np.where(logarithmic, np.maximum(parameters, 1e-300), 1.0)), parameters)


def to_parameters(model: ThroughputModel, variables: Array) -> Array:
    """Parameter vectors of search variables."""
    logarithmic = _logarithmic(model)
    return np.where(logarithmic, np.exp(np.where(logarithmic, variables, 0.0)), variables)


def bounds(model: ThroughputModel) -> tuple[Array, Array]:
    """Lower and upper bounds of the search variables."""
    lower = np.array([p.lower for p in model.parameters])
    upper = np.array([p.upper for p in model.parameters])
    return to_variables(model, lower), to_variables(model, upper)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What kinds of configurations each job of a batch has run."""

    count: Array
    typical_pass_s: Array
    mean_pass_s: Array
    typical_batch: Array
    batch_sizes: NDArray[np.intp]
    within_node: Mask
    across_nodes: Mask
    beyond_two_slots: Mask
    pair_and_more_nodes: Mask
    crowdings: NDArray[np.intp]

    @classmethod
    def of(cls, measured: Measured) -> _Seen:
        present, s = measured.present, measured.shape
        count = present.sum(axis=1).astype(float)
        log_pass = np.where(present, measured.log_accumulation, np.nan)
        log_batch = np.where(present, np.log(s.per_slot_batch), np.nan)
        return cls(
            count=count,
            typical_pass_s=np.exp(_median(log_pass, count)),
            mean_pass_s=np.nanmean(np.exp(log_pass), axis=1),
            typical_batch=np.exp(_median(log_batch, count)),
            batch_sizes=_distinct(s.per_slot_batch, present),
            within_node=_any((s.nodes == 1) & (s.slots > 1) & present),
            across_nodes=_any((s.nodes > 1) & present),
            beyond_two_slots=_any((s.slots > 2) & present),
            pair_and_more_nodes=_any((s.nodes == 2) & present) & _any((s.nodes > 2) & present),
            crowdings=_distinct(s.busiest_node_slots, present),
        )


def _any(condition: Mask) -> Mask:
    """Whether each row has any entry that meets the condition."""
    return np.asarray(condition.any(axis=1))


def _median(values: Array, count: Array) -> Array:
    """The median of each row's ``count`` entries that are not NaN. NumPy's own takes far longer for short rows."""
    ordered = np.sort(values, axis=1)  # NaN come last
    middle = np.stack([np.maximum(count - 1, 0) // 2, count // 2], axis=1).astype(np.intp)
    return np.asarray(np.take_along_axis(ordered, middle, axis=1).sum(axis=1) / 2.0)


def _distinct(values: Array, present: Mask) -> NDArray[np.intp]:
    """How many different values each row has among its present entries."""
    ordered = np.sort(np.where(present, values, np.inf), axis=1)
    new = np.isfinite(ordered)
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return np.asarray(new.sum(axis=1), dtype=np.intp)


def search_for(model: ThroughputModel, measured: Measured) -> Search:
    """The search that fits ``model`` to the observations."""
    seen = _Seen.of(measured)
    return _pollux_search(seen) if isinstance(model, PolluxModel) else _topology_search(seen)


def _pollux_search(seen: _Seen) -> Search:
    """Pollux's starting point, bounds and optimism, plus a second start on the scale of the data."""
    model, count = PolluxModel(), len(seen.count)
    published = np.tile([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001], (count, 1))
    t, m = seen.typical_pass_s, seen.typical_batch
    scaled = np.stack([t / 2, t / 2 / m, t / 4, t / 100, t / 10, t / 100, np.full(count, 2.0)], axis=1)
    free = np.ones((count, len(model.parameters)), dtype=bool)
    one_batch = seen.batch_sizes <= 1
    for start in (published, scaled):
        start[:, 0] = np.where(one_batch, seen.mean_pass_s / 2, start[:, 0])
    free[:, 0] = ~one_batch
    free[:, 2] = seen.across_nodes
    free[:, 3] = seen.across_nodes & seen.beyond_two_slots
    free[:, 4] = seen.within_node
    free[:, 5] = seen.within_node & seen.beyond_two_slots
    free[:, 6] = seen.across_nodes | seen.within_node
    for start in (published, scaled):
        start[:, 2:6] = np.where(free[:, 2:6], start[:, 2:6], 1e-8)
        start[:, 6] = np.where(free[:, 6], start[:, 6], 1.0)
    centre = np.zeros_like(published)
    centre[:, 6] = 1.0
    pull = np.zeros_like(published)
    pull[:, 6] = np.sqrt(1e-3)
    starts = tuple(to_variables(model, start) for start in (published, scaled))
    return Search(starts, free, centre, pull, ratios=((3, 2, 1e-2), (5, 4, 1e-2)))


def _topology_search(seen: _Seen) -> Search:
    """Typical values on the scale of the data; what was never observed stays at its optimistic bound."""
    model, count = TopologyModel(), len(seen.count)
    t, m, one = seen.typical_pass_s, seen.typical_batch, np.ones(count)
    one_batch = seen.batch_sizes <= 1
    typical = np.stack(
        [
            np.where(one_batch, seen.mean_pass_s / 2, t / 2),
            t / (2 * m),
            np.where(seen.batch_sizes >= 4, 3.0, 1.0),
            t / 20,
            t / 50,
            t / 10,
            t / 50,
            one,
            t / 50,
            t / (50 * m),
            one / 10,
            one / 2,
            2 * one,
        ],
        axis=1,
    )
    crowded = (seen.crowdings >= 2) & seen.beyond_two_slots & (seen.count >= ENOUGH_FOR_HOST)
    free = np.ones((count, len(model.parameters)), dtype=bool)
    free[:, 0] = ~one_batch
    free[:, 2] = seen.batch_sizes >= 4
    free[:, 3] = seen.within_node
    free[:, 4] = seen.within_node & seen.beyond_two_slots
    free[:, 5] = seen.across_nodes
    free[:, 6] = seen.across_nodes & seen.beyond_two_slots
    free[:, 7] = seen.pair_and_more_nodes
    free[:, 8] = crowded
    free[:, 9] = crowded & ~one_batch
    free[:, 10] = crowded & (seen.crowdings >= 3)
    free[:, 11] = crowded
    free[:, 12] = seen.across_nodes | seen.within_node
    lower = np.array([p.lower for p in model.parameters])
    optimistic = [3, 4, 5, 6, 8, 9]
    typical[:, optimistic] = np.where(free[:, optimistic], typical[:, optimistic], lower[optimistic])
    centre = to_variables(model, typical)
    pull = np.sqrt(PRIOR_PULL / np.maximum(seen.count, 1.0))[:, None] * np.ones(len(model.parameters))
    pull[:, :2] *= COMPUTE_PULL  # a pass is measured directly, at every configuration
    no_overlap = centre.copy()
    no_overlap[:, 12], no_overlap[:, 2] = 1.2, np.where(free[:, 2], 1.5, centre[:, 2])
    return Search((centre, no_overlap), free, centre, pull)


def raise_unseen_links(model: ThroughputModel, parameters: Array, measured: Measured) -> Array:
    """Until a job has run across nodes, assume that links between them cost at least what those within one do."""
    pairs = ((2, 4), (3, 5)) if isinstance(model, PolluxModel) else ((5, 3), (6, 4))
    unseen = ~_Seen.of(measured).across_nodes
    result = parameters.copy()
    for across, within in pairs:
        floor = np.where(unseen, INTER_NODE_AT_LEAST * result[:, within], 0.0)
        result[:, across] = np.maximum(result[:, across], floor)
    return result
