"""The truth as tables of measurements have it, replayed as Pollux's and Sia's simulators replay theirs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from geminid.goodput.efficiency import GradientStats
from geminid.gputypes import LinkClass
from geminid.network import Path
from geminid.sim.application import GradientTruth, StepTimeTruth

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

K = TypeVar("K")

Placement = tuple[int, ...]

#: Seconds of an accumulation step and of a synchronising step.
Times = tuple[float, float]

#: Keys with their measured times; keys may repeat.
Rows = Iterable[tuple[K, Times]]

#: The peers' simulators treat placements on more nodes than this, their most, as on this many.
MOST_NODES = 16

#: In the search for the nearest measured shape, slots count for this much more than nodes.
SLOTS_OVER_NODES = 4.0


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """How many nodes and slots a job has, and samples per slot: all that is known of larger placements."""

    nodes: int
    slots: int
    per_slot_batch: int


class MeasuredTruth(StepTimeTruth):
    """Step times from a table of measured placements and a table of measured shapes.

    - A measured placement is interpolated linearly in the per-slot batch. Placements that differ by a rotation of
      their nodes are the same.
    - Any other placement is interpolated linearly over a Delaunay triangulation of (nodes, slots, per-slot batch), in
      which measured placements of the same shape count by their mean.
    - Outside of what was measured, where the peers' simulators stop, the nearest shape is taken, by nodes and slots.
    - A per-slot batch below those measured takes as long as the smallest; above, computing takes proportionally longer
      and synchronising does not.
    """

    def __init__(
        self,
        placements: Rows[tuple[Placement, int]],
        shapes: Rows[Shape] = (),
        tiers: Mapping[LinkClass, MeasuredTruth] | None = None,
    ) -> None:
        """Take times by placement and per-slot batch, and by shape; what was measured repeatedly counts by its mean.

        ``tiers`` are measurements across racks or zones, where there are any.
        """
        self._tiers = dict(tiers or {})
        known = _averaged(((canonical(placement), batch), times) for (placement, batch), times in placements)
        self._placements = _curves(known)
        self._measured = _measured_shapes(known, shapes)
        self._most_nodes = max(MOST_NODES, *(shape.nodes for shape in self._measured))
        self._known: dict[tuple[Placement, int], Times] = {}
        self._known_shapes: dict[Shape, Times] = {}

    @property
    def most_slots(self) -> int:
        """The largest number of slots measured."""
        return max(shape.slots for shape in self._measured)

    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> Times:
        """Seconds of an accumulation step and of a synchronising step; the second time, from memory."""
        key = (tuple(placement), per_slot_batch)
        times = self._known.get(key)
        if times is None:
            times = self._known[key] = self._interpolate(canonical(key[0]), per_slot_batch)
        return times

    def step_times_over(self, placement: Sequence[int], per_slot_batch: int, path: Path) -> Times:
        """The same over another path: as measured on its tier, else in proportion to the bandwidths."""
        measured = self._tiers.get(path.tier)
        if measured is not None and len(placement) > 1:
            return measured.step_times(placement, per_slot_batch)
        return super().step_times_over(placement, per_slot_batch, path)

    def all_step_times(
        self, node_slots: Sequence[int], slots: int, batches: Sequence[int], path: Path
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Step times of every placement: of those measured, and what others of the same numbers of nodes have."""
        sizes = sorted(node_slots, reverse=True)
        for nodes in range(1, min(len(sizes), slots) + 1):
            if sum(sizes[:nodes]) < slots:
                continue
            measured = self._tiers.get(path.tier, self) if nodes > 1 else self
            for accumulation_s, step_s in measured._times_on(nodes, slots, sizes[0], batches):
                slowdown = path.slowdown if nodes > 1 and measured is self else 1.0
                yield accumulation_s, accumulation_s + slowdown * (step_s - accumulation_s)
            if nodes >= measured._most_nodes:
                return  # more nodes count as that many

    def _times_on(
        self, nodes: int, slots: int, largest_node: int, batches: Sequence[int]
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Step times of all placements on a number of nodes; of those that were not measured, whether any exist."""
        alike = self._by_shape.get((nodes, slots), ())
        curves = [self._placements[placement] for placement in alike if max(placement) <= largest_node]
        for curve in curves:
            times = np.array([curve.at(batch) for batch in batches])
            yield times[:, 0], times[:, 1]
        only_one = nodes < self._most_nodes and (nodes in (1, slots) or slots == nodes * largest_node)
        if not (only_one and curves):
            # One by one: on a degenerate triangulation SciPy answers differently when asked for many at once.
            times = np.array([self._of_shape(min(nodes, self._most_nodes), slots, batch) for batch in batches])
            yield times[:, 0], times[:, 1]

    @cached_property
    def _by_shape(self) -> dict[tuple[int, int], list[Placement]]:
        """Measured placements by their numbers of nodes and slots."""
        found: dict[tuple[int, int], list[Placement]] = {}
        for placement in self._placements:
            found.setdefault((len(placement), sum(placement)), []).append(placement)
        return found

    def measured_on(self, tier: LinkClass) -> bool:
        """Whether there are measurements of this tier."""
        return tier in self._tiers

    def _interpolate(self, placement: Placement, per_slot_batch: int) -> Times:
        curve = self._placements.get(placement)
        if curve is not None:
            return curve.at(per_slot_batch)
        return self._of_shape(min(len(placement), self._most_nodes), sum(placement), per_slot_batch)

    def _of_shape(self, nodes: int, slots: int, per_slot_batch: int) -> Times:
        """Times of a placement that was not measured; the second time, from memory."""
        shape = Shape(nodes, slots, per_slot_batch)
        times = self._known_shapes.get(shape)
        if times is None:
            times = self._known_shapes[shape] = self._interpolate_shape(shape)
        return times

    def _interpolate_shape(self, shape: Shape) -> Times:
        if self._interpolator is not None:
            point = [[shape.nodes, shape.slots, shape.per_slot_batch]]
            accumulation_s, step_s = self._interpolator(point)[0].tolist()
            if not math.isnan(step_s):
                return accumulation_s, step_s
        return self._nearest(shape.nodes, shape.slots).at(shape.per_slot_batch)

    @cached_property
    def _interpolator(self) -> LinearNDInterpolator | None:
        return _interpolator(self._measured)

    @cached_property
    def _shapes(self) -> dict[tuple[int, int], _Curve]:
        return _curves({((s.nodes, s.slots), s.per_slot_batch): times for s, times in self._measured.items()})

    def _nearest(self, nodes: int, slots: int) -> _Curve:
        def distance(shape: tuple[int, int]) -> float:
            return SLOTS_OVER_NODES * abs(math.log(shape[1] / slots)) + abs(math.log(shape[0] / nodes))

        return self._shapes[min(self._shapes, key=distance)]


class ValidationRuns(GradientTruth):
    """Gradient statistics from whole training runs at several batch sizes, one row per epoch.

    Between two runs g² and v are interpolated linearly in the total batch size; beyond the smallest and the largest
    they stay what they are there, as they do after the last epoch.
    """

    def __init__(self, runs: Mapping[int, Sequence[tuple[float, float]]]) -> None:
        """Take g² and v of each epoch, by the total batch size of the run."""
        self._batches = sorted(runs)
        self._runs = [runs[batch] for batch in self._batches]
        self._last_epoch = min(len(run) for run in self._runs) - 1
        self._known: dict[tuple[int, float], GradientStats] = {}

    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """g² and v during an epoch (the first is 0); the second time, from memory."""
        key = (epoch, total_batch)
        stats = self._known.get(key)
        if stats is None:
            stats = self._known[key] = self._interpolate(min(epoch, self._last_epoch), total_batch)
        return stats

    def _interpolate(self, epoch: int, total_batch: float) -> GradientStats:
        upper = bisect_left(self._batches, total_batch)
        if upper == 0 or upper == len(self._batches):
            return GradientStats(*self._runs[min(upper, len(self._batches) - 1)][epoch])
        below, above = self._batches[upper - 1], self._batches[upper]
        share = (total_batch - below) / (above - below)
        (g_below, v_below), (g_above, v_above) = self._runs[upper - 1][epoch], self._runs[upper][epoch]
        return GradientStats(g_below + share * (g_above - g_below), v_below + share * (v_above - v_below))


def canonical(placement: Placement) -> Placement:
    """The lexicographically smallest rotation: nodes form a ring, and where it begins makes no difference."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


@dataclass(frozen=True, slots=True)
class _Curve:
    """Step times over per-slot batch sizes in ascending order."""

    batches: list[int]
    times: list[Times]

    def at(self, per_slot_batch: int) -> Times:
        upper = bisect_left(self.batches, per_slot_batch)
        if upper == len(self.batches):
            accumulation_s, step_s = self.times[-1]
            longer_s = accumulation_s * (per_slot_batch / self.batches[-1] - 1.0)
            return accumulation_s + longer_s, step_s + longer_s
        if upper == 0 or self.batches[upper] == per_slot_batch:
            return self.times[upper]
        below, above = self.batches[upper - 1], self.batches[upper]
        share = (per_slot_batch - below) / (above - below)
        (a_below, s_below), (a_above, s_above) = self.times[upper - 1], self.times[upper]
        return a_below + share * (a_above - a_below), s_below + share * (s_above - s_below)


def _interpolator(measured: Mapping[Shape, Times]) -> LinearNDInterpolator | None:
    """Linear interpolation over the triangulation of measured shapes.

    None if there are too few, or all lie in one plane (a single node, say).
    """
    from scipy.interpolate import LinearNDInterpolator  # slow to import, and often not needed
    from scipy.spatial import Delaunay, QhullError

    points = np.array([(shape.nodes, shape.slots, shape.per_slot_batch) for shape in measured], dtype=float)
    try:
        triangulation = Delaunay(points)
    except QhullError:
        return None
    # Only to save time. SciPy would find the same by thousands of tiny LAPACK calls, each of them shared among threads:
    # seconds on a busy machine.
    triangulation._transform = _barycentric_transforms(points[triangulation.simplices])  # type: ignore[attr-defined]
    return LinearNDInterpolator(triangulation, np.array(list(measured.values())))


def _barycentric_transforms(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """For simplices of four corners, what turns a point into barycentric coordinates, as scipy.spatial.Delaunay has it.

    Each is a 3 × 3 matrix above the last corner, to be taken from the point before; NaN where the simplex is flat.
    """
    last = corners[:, 3:]
    edges = corners[:, :3] - last
    normals = np.cross(np.roll(edges, -1, axis=1), np.roll(edges, -2, axis=1))
    volumes = np.einsum("si,si->s", edges[:, 0], normals[:, 0])
    transforms = np.concatenate([normals / np.where(volumes == 0.0, 1.0, volumes)[:, None, None], last], axis=1)
    transforms[volumes == 0.0] = np.nan  # exactly 0: corners are whole numbers
    return transforms


def _curves(times: Mapping[tuple[K, int], Times]) -> dict[K, _Curve]:
    rows: dict[K, list[tuple[int, Times]]] = {}
    for (key, batch), value in times.items():
        rows.setdefault(key, []).append((batch, value))
    return {key: _Curve([b for b, _ in sorted(row)], [t for _, t in sorted(row)]) for key, row in rows.items()}


def _measured_shapes(placements: Mapping[tuple[Placement, int], Times], shapes: Rows[Shape]) -> dict[Shape, Times]:
    """Means by shape: of placements first, in order of shape, and of the larger ones as they were listed.

    The order matters. Measurements lie on a grid, where several triangulations are equally good, and the one that is
    found depends on it; in this order it is the one that the peers' simulators use.
    """
    of_placements = ((Shape(len(nodes), sum(nodes), batch), times) for (nodes, batch), times in placements.items())
    return _averaged([*_averaged(sorted(of_placements)).items(), *shapes])


def _averaged(rows: Rows[K]) -> dict[K, Times]:
    """The mean of all times with the same key, in the order in which the keys first appear."""
    grouped: dict[K, list[Times]] = {}
    for key, times in rows:
        grouped.setdefault(key, []).append(times)
    return {key: (_mean([t[0] for t in times]), _mean([t[1] for t in times])) for key, times in grouped.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
