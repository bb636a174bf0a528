"""Put the goodput model to the test: fit it to some measurements, predict the others, and say what follows.

The rule of the game: a model is judged on configurations that it was not shown. Slot counts that are powers of two
are fitted, at three batch sizes each; held out are other batch sizes on them, and the slot counts in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from geminid.goodput.batchplan import BatchLimits, TunedPlan, best_plan
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit, fit
from geminid.goodput.profile import Profile
from geminid.goodput.throughput import MODELS, Shape
from geminid.train.measure import Measurement, Point, Recording

#: Samples per slot that the fit is shown, and samples per slot that it has to predict.
FITTED_BATCHES = (2, 8, 32)
HELD_OUT_BATCHES = (4, 16)

#: The job that the last table is about: tuned by its user for 16 samples, allowed to grow to sixteen times that.
LIMITS = BatchLimits(initial=16, largest=256, smallest_per_slot=FITTED_BATCHES[0], largest_per_slot=FITTED_BATCHES[-1])


@dataclass(frozen=True, slots=True)
class Design:
    """Which points are fitted and which are held out."""

    fitted: tuple[Point, ...]
    held_out: tuple[Point, ...]

    @classmethod
    def of(cls, slots: int) -> Design:
        """The design for a machine on which up to this many slots are used."""
        powers = [2**i for i in range(slots.bit_length())]
        between = sorted({3 * p // 2 for p in powers[1:] if 3 * p // 2 <= slots} | ({slots} - set(powers)))
        fitted = [Point(k, m) for k in powers for m in FITTED_BATCHES]
        new_batch = [Point(k, HELD_OUT_BATCHES[i % len(HELD_OUT_BATCHES)]) for i, k in enumerate(powers)]
        new_slots = [Point(k, m) for k in between for m in (FITTED_BATCHES[1], HELD_OUT_BATCHES[1])]
        return cls(tuple(fitted), tuple(new_batch + new_slots))

    @property
    def points(self) -> tuple[Point, ...]:
        """All points, by slots and batch size."""
        return tuple(sorted(self.fitted + self.held_out))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured point beside what each model predicts for its step time."""

    measured: Measurement
    held_out: bool
    predicted_s: dict[str, float]

    def error(self, model: str) -> float:
        """Relative error of the prediction; positive where it is too slow."""
        return self.predicted_s[model] / self.measured.step_s - 1.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """The best batch plan on a number of slots; ``measured`` if the machine has run that many."""

    slots: int
    plan: TunedPlan
    speedup: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Study:
    """Measurements beside predictions, and what they mean for one job."""

    comparisons: tuple[Comparison, ...]
    fits: dict[str, ThroughputFit]
    gradient: GradientStats
    outlooks: tuple[Outlook, ...]

    def held_out_error(self, model: str) -> float:
        """Mean absolute relative error on the points that the model was not shown."""
        return fmean(abs(row.error(model)) for row in self.comparisons if row.held_out)

    @property
    def held_out_spread(self) -> float:
        """Mean spread of the measurements themselves: the error that no model can be blamed for."""
        return fmean(row.measured.spread for row in self.comparisons if row.held_out)

    @property
    def noise_scale(self) -> float:
        """φ in samples: the batch size at which a sample is worth about half of what it is in a tiny batch."""
        return self.gradient.noise_scale(LIMITS.initial)

    @property
    def best(self) -> Outlook:
        """The number of slots with the best goodput; the fewer where two are equal."""
        return max(self.outlooks, key=lambda outlook: (outlook.plan.goodput, -outlook.slots))


def study(design: Design, recording: Recording) -> Study:
    """Fit every model to the fitted points, and predict all."""
    fitted = set(design.fitted)
    profile = Profile.of(seen.observation() for seen in recording.measurements if seen.point in fitted)
    fits = {model: fit(profile, model) for model in MODELS}
    comparisons = tuple(
        Comparison(seen, seen.point not in fitted, {model: _step_s(fits[model], seen.point) for model in MODELS})
        for seen in recording.measurements
    )
    gradient = recording.noise.stats()
    return Study(comparisons, fits, gradient, _outlooks(fits["geminid"], gradient, [p.slots for p in design.points]))


def _step_s(fitted: ThroughputFit, point: Point) -> float:
    return float(fitted.step_times(Shape.of(1, point.slots, point.per_slot_batch)).step_s)


def _outlooks(fitted: ThroughputFit, gradient: GradientStats, measured: Sequence[int]) -> tuple[Outlook, ...]:
    """Best plans for 1, 2, 4 … slots, up to twice as many as were measured: a scheduler explores no further."""
    counts = sorted(set(measured) | {2 * max(measured)})
    plans = [best_plan(fitted, gradient, LIMITS, nodes=1, slots=slots) for slots in counts]
    return tuple(
        Outlook(slots, plan, plan.goodput / plans[0].goodput, slots in measured)
        for slots, plan in zip(counts, plans, strict=True)
    )
