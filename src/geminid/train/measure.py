"""Measure real data-parallel training on this machine's CPU: step times, gradient norms and loss.

One set of worker processes serves all measurements. Each configuration is *visited* several times, in shuffled order,
for a few dozen steps: whatever else the machine is doing then disturbs all configurations alike, and the median over
the visits is worth more than one long visit. All steps train the same model, so what is measured is training itself.

    with Workers(2) as workers:
        recording = measure(workers, [Point(1, 16), Point(2, 16)], seconds=5.0, initial_batch=16)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from time import monotonic

from geminid.goodput.noise import NoiseEstimate
from geminid.goodput.profile import Observation
from geminid.train.workers import Visit, VisitReport, Workers

#: Every configuration is visited this often, besides a first visit that only warms up.
ROUNDS = 5

#: Steps of a visit that are not timed; more of them on the first visit, when libraries tune themselves to a shape.
WARM_UP, FIRST_WARM_UP = 1, 3

#: Timed passes and timed steps of one visit, at least and at most.
FEWEST_REPEATS, MOST_REPEATS = 3, 200


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """What is measured: that many slots, each with that many samples per pass."""

    slots: int
    per_slot_batch: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """All timings of one point, over all visits and workers."""

    point: Point
    accumulation_times_s: tuple[float, ...]
    step_times_s: tuple[float, ...]

    @property
    def accumulation_s(self) -> float:
        """A forward-backward pass without synchronisation: the median."""
        return median(self.accumulation_times_s)

    @property
    def step_s(self) -> float:
        """A whole optimiser step: the median."""
        return median(self.step_times_s)

    @property
    def spread(self) -> float:
        """How far the middle half of the step times lies apart, relative to the median: the machine's own noise."""
        lower, _, upper = quantiles(self.step_times_s, n=4)
        return (upper - lower) / self.step_s

    def observation(self) -> Observation:
        """What a fit is shown."""
        return Observation(
            nodes=1,
            slots=self.point.slots,
            per_slot_batch=self.point.per_slot_batch,
            accumulation_s=self.accumulation_s,
            step_s=self.step_s,
            busiest_node_slots=self.point.slots,
            reports=len(self.step_times_s),
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """What was measured: times by point, gradient noise, and every step's loss and batch size in order of training."""

    measurements: tuple[Measurement, ...]
    noise: NoiseEstimate
    noise_steps: int
    loss: tuple[float, ...]
    batch: tuple[int, ...]

    @property
    def first_loss(self) -> float:
        """Mean loss of a sample over the first tenth of the steps."""
        few = max(1, len(self.loss) // 10)
        return fmean(self.loss[:few], self.batch[:few])

    @property
    def last_loss(self) -> float:
        """Mean loss of a sample over the last tenth of the steps."""
        few = max(1, len(self.loss) // 10)
        return fmean(self.loss[-few:], self.batch[-few:])


class _Recorder:
    """A recording in the making."""

    def __init__(self, points: Sequence[Point], initial_batch: int) -> None:
        self._initial_batch = initial_batch
        self._passes: dict[Point, list[float]] = {point: [] for point in points}
        self._steps: dict[Point, list[float]] = {point: [] for point in points}
        self._noise, self._noise_steps = NoiseEstimate.empty(), 0
        self._loss: list[float] = []
        self._batch: list[int] = []

    def add(self, point: Point, reports: Sequence[VisitReport], *, timed: bool) -> None:
        """Take in the workers' reports of one visit; every step counts for noise and loss, also where none is timed."""
        if timed:
            self._passes[point] += [seconds for report in reports for seconds in report.accumulation_s]
            self._steps[point] += [seconds for report in reports for seconds in report.step_s]
        total_batch = point.slots * point.per_slot_batch
        of_all_workers = zip(*(zip(report.loss, report.local_norm, strict=True) for report in reports), strict=True)
        for step, total_norm in zip(of_all_workers, reports[0].total_norm, strict=True):
            self._loss.append(fmean(loss for loss, _ in step))
            self._batch.append(total_batch)
            if point.slots > 1:
                local_norm, scale = fmean(norm for _, norm in step), total_batch / self._initial_batch
                self._noise = self._noise.observe(local_norm, total_norm, micro_gradients=point.slots, scale=scale)
                self._noise_steps += 1

    def recording(self) -> Recording:
        """What has been taken in."""
        measurements = [
            Measurement(point, tuple(self._passes[point]), tuple(self._steps[point])) for point in self._steps
        ]
        return Recording(tuple(measurements), self._noise, self._noise_steps, tuple(self._loss), tuple(self._batch))


def measure(
    workers: Workers,
    points: Sequence[Point],
    *,
    seconds: float,
    initial_batch: int,
    seed: int = 0,
    rounds: int = ROUNDS,
    on_visit: Callable[[], None] = lambda: None,
) -> Recording:
    """Measure the points for about this many seconds; however slow the machine, each gets at least one timed visit.

    ``initial_batch`` is M0, which gradient noise is expressed at. ``on_visit`` is called after each visit, of which
    there are ``len(points) × (rounds + 1)``, or fewer where time runs out.

    Raises:
        MeasuringFailed: a worker failed, died, or did not answer in time.
    """
    end = monotonic() + seconds
    dice = random.Random(seed)
    recorder = _Recorder(points, initial_batch)
    repeat_s: dict[Point, float] = {}
    for turn in range(rounds + 1):
        order = dice.sample(points, len(points))
        for position, point in enumerate(order):
            share_s = (end - monotonic()) / ((rounds - turn + 1) * len(points) - position)
            if share_s <= 0.0 and turn > 1:
                return recorder.recording()
            if turn == 0:
                repeats, warm_up = FEWEST_REPEATS, FIRST_WARM_UP
            else:
                repeats, warm_up = int(share_s / repeat_s[point]) - WARM_UP, WARM_UP
                repeats = min(max(repeats, FEWEST_REPEATS), MOST_REPEATS)
            begin = monotonic()
            reports = workers.visit(Visit(point.slots, point.per_slot_batch, repeats, warm_up))
            repeat_s[point] = (monotonic() - begin) / (repeats + warm_up)
            recorder.add(point, reports, timed=turn > 0)
            on_visit()
    return recorder.recording()
