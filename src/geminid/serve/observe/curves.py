"""The curve of one job over time, in a bounded number of points.

A curve has at most ``MAX_POINTS`` points. When it is full, neighbours are merged in pairs, so that it always covers the
whole life of the job with even resolution: a job of an hour keeps a point every 20 s, a job of a month one every 4 h.
Counts keep their last value, rates and metrics their mean over all measurements that were merged.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from geminid.serve.livejob import LiveJob, total_batch
from geminid.serve.translation import batch_limits

#: Points of a curve at most.
MAX_POINTS = 256

#: Metrics of a job that are kept at most: losses first, then by name.
MAX_METRICS = 8

#: Columns that keep the last of two merged values; ``weight`` is summed, the others keep the mean.
LAST_VALUES = frozenset({"at_s", "slots", "samples", "progress", "step", "per_slot_batch", "passes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A job at one moment.

    ``samples`` and ``progress`` count from the beginning of the job. ``throughput`` and ``goodput`` are samples and
    useful samples per second since the point before; ``predicted`` is the goodput that the job's model expects.
    ``weight`` counts the measurements that were merged into the point.
    """

    at_s: float
    weight: int = 1
    slots: int = 0
    samples: int = 0
    progress: float = 0.0
    step: int = 0
    batch: float | None = None
    per_slot_batch: int | None = None
    passes: int | None = None
    learning_rate_factor: float | None = None
    noise_scale: float | None = None
    throughput: float | None = None
    goodput: float | None = None
    predicted: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


#: The columns of a curve on disk and in the interface.
COLUMNS = tuple(one.name for one in fields(Point) if one.name != "metrics")


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a job, oldest first. New points are merged until a point spans ``every_s`` seconds."""

    points: tuple[Point, ...] = ()
    every_s: float = 1.0

    def plus(self, point: Point) -> Curve:
        """The curve with one point more, thinned out if it is full."""
        points = self.points
        if len(points) >= 2 and point.at_s - points[-2].at_s < self.every_s and points[-1].slots == point.slots:
            points = (*points[:-1], merged(points[-1], point))
        else:
            points = (*points, point)
        if len(points) <= MAX_POINTS:
            return replace(self, points=points)
        pairs = [merged(*points[i : i + 2]) for i in range(0, len(points) - 1, 2)]
        odd = points[len(pairs) * 2 :]
        return Curve((*pairs, *odd), self.every_s * 2)

    def to_columns(self) -> dict[str, Any]:
        """One list per column, and one per metric."""
        names = kept_metrics({name for point in self.points for name in point.metrics})
        return {
            **{column: [getattr(point, column) for point in self.points] for column in COLUMNS},
            "metrics": {name: [point.metrics.get(name) for point in self.points] for name in names},
        }

    def measured(self, job_slots: int) -> tuple[int | None, float | None]:
        """The last batch, and the mean goodput, since the job has had its present size.

        None where nothing was measured, or the job does not have ``job_slots`` at the end of the curve.
        """
        batch, useful, weight = None, 0.0, 0
        for point in reversed(self.points):
            if point.slots != job_slots:
                break
            batch = batch if batch is not None or point.batch is None else round(point.batch)
            if point.goodput is not None:
                useful, weight = useful + point.goodput * point.weight, weight + point.weight
        return batch, useful / weight if weight else None

    def packed(self) -> bytes:
        """As it is kept on disk."""
        return zlib.compress(json.dumps({"every_s": self.every_s, **self.to_columns()}).encode(), 6)

    @staticmethod
    def unpacked(data: bytes) -> Curve:
        """A curve that was kept on disk. Columns that it does not have are empty."""
        plain = json.loads(zlib.decompress(data))
        count = len(plain["at_s"])
        metrics = plain.get("metrics", {})
        points = tuple(
            Point(
                **{column: plain[column][i] for column in COLUMNS if column in plain},
                metrics={name: values[i] for name, values in metrics.items() if values[i] is not None},
            )
            for i in range(count)
        )
        return Curve(points, plain["every_s"])


def merged(first: Point, second: Point) -> Point:
    """One point for two neighbours; each counts by its measurements."""

    def mean(one: float | None, other: float | None) -> float | None:
        if one is None or other is None:
            return other if one is None else one
        return (one * first.weight + other * second.weight) / (first.weight + second.weight)

    values: dict[str, Any] = {
        column: getattr(second, column)
        if column in LAST_VALUES
        else mean(getattr(first, column), getattr(second, column))
        for column in COLUMNS
        if column != "weight"
    }
    metrics = {
        name: mean(first.metrics.get(name), second.metrics.get(name)) for name in {**first.metrics, **second.metrics}
    }
    return Point(
        **values,
        weight=first.weight + second.weight,
        metrics={name: value for name, value in metrics.items() if value is not None},
    )


def point_of(job: LiveJob, at_s: float, before: Point | None, predicted: float | None = None) -> Point:
    """A job as it is now, with its speed since the point ``before``."""
    state, plan = job.state, job.state.batch_plan
    samples, progress = job.samples, state.progress_samples
    elapsed_s = 0.0 if before is None else at_s - before.at_s
    moved = before is not None and elapsed_s > 0.0 and samples >= before.samples and state.num_slots > 0
    return Point(
        at_s=round(at_s, 3),
        slots=state.num_slots,
        samples=samples,
        progress=progress,
        step=job.step,
        batch=float(total_batch(job, plan, state.num_slots)) if plan and state.num_slots else None,
        per_slot_batch=plan.per_slot_batch_samples if plan and state.num_slots else None,
        passes=plan.accumulation_steps + 1 if plan and state.num_slots else None,
        learning_rate_factor=job.learning_rate_factor if job.elastic else None,
        noise_scale=noise_scale_of(job),
        throughput=(samples - before.samples) / elapsed_s if moved and before is not None else None,
        goodput=max(progress - before.progress, 0.0) / elapsed_s if moved and before is not None else None,
        predicted=predicted,
        metrics=numbers_of(job.metrics),
    )


def noise_scale_of(job: LiveJob) -> float | None:
    """The noise scale of a job, in samples; None before it is measured, and where the true gradient vanishes."""
    limits = batch_limits(job)
    if job.gradient is None or limits is None:
        return None
    scale = job.gradient.noise_scale(limits.initial)
    return scale if math.isfinite(scale) else None


def numbers_of(metrics: Sequence[tuple[str, float | str]]) -> dict[str, float]:
    """The metrics that are kept of those that a job has reported: numbers only."""
    numbers = {name: float(value) for name, value in metrics if isinstance(value, float | int)}
    return {name: numbers[name] for name in kept_metrics(numbers)}


def kept_metrics(names: Collection[str]) -> list[str]:
    """The metrics of which curves are kept, in the order in which they are shown."""
    return sorted(names, key=lambda name: ("loss" not in name.lower(), name))[:MAX_METRICS]
