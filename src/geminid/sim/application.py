"""What a simulated job really does: the truth that schedulers only see through measurements."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from geminid.fields import InvalidInput, Problem, Reader, check_number
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.fit import ThroughputFit
from geminid.goodput.profile import Observation
from geminid.gputypes import LinkClass
from geminid.network import WITHIN_RACK, Path

#: Source of synchronisation times that a profile of the tier contains.
MEASURED = "as profiled"

#: Source of synchronisation times that are computed.
FROM_VOLUME = "gradient volume ÷ bandwidth"

#: Smallest steepness of a loss curve: below it the curve is a straight line, and its formula loses all digits.
LEAST_STEEPNESS = 1e-6


Array = NDArray[np.float64]


class StepTimeTruth(ABC):
    """True step times of one application on one GPU type."""

    @abstractmethod
    def step_times(self, placement: Sequence[int], per_slot_batch: int) -> tuple[float, float]:
        """Seconds of an accumulation step and of a synchronising step, for the slots that a job has on each node."""

    def step_times_over(self, placement: Sequence[int], per_slot_batch: int, path: Path) -> tuple[float, float]:
        """The same where nodes are joined by another path than in the profile.

        Unless it was measured there, what synchronising adds to a profiled step takes longer in proportion to the
        bandwidths: the same volume, over a narrower link.
        """
        accumulation_s, step_s = self.step_times(placement, per_slot_batch)
        if path.slowdown == 1.0 or len(placement) == 1:
            return accumulation_s, step_s
        return accumulation_s, accumulation_s + path.slowdown * (step_s - accumulation_s)

    def observation(self, placement: Sequence[int], per_slot_batch: int, path: Path = WITHIN_RACK.path) -> Observation:
        """The step times as a job measures them."""
        accumulation_s, step_s = self.step_times_over(placement, per_slot_batch, path)
        return Observation(
            nodes=len(placement),
            slots=sum(placement),
            busiest_node_slots=max(placement),
            per_slot_batch=per_slot_batch,
            accumulation_s=accumulation_s,
            step_s=step_s,
            link_slowdown=path.slowdown,
        )

    def all_step_times(
        self, node_slots: Sequence[int], slots: int, batches: Sequence[int], path: Path
    ) -> Iterator[tuple[Array, Array]]:
        """Step times, over per-slot batches, of every way to place this many slots on nodes of these sizes.

        Placements that are equally fast may come once; no placement may be faster than all that come. Several nodes are
        joined by ``path``. Here every placement comes, up to the order of its nodes: for small clusters only.
        """
        for placement in _partitions(slots, sorted(node_slots, reverse=True)):
            times = np.array([self.step_times_over(placement, batch, path) for batch in batches])
            yield times[:, 0], times[:, 1]

    def measured_on(self, tier: LinkClass) -> bool:
        """Whether step times on a tier were measured, in place of following from volume and bandwidth."""
        return False

    @property
    @abstractmethod
    def most_slots(self) -> int:
        """The largest number of slots that the truth covers."""

    @property
    def model(self) -> ThroughputFit | None:
        """The throughput model that these step times follow exactly; None if they follow no model."""
        return None


class GradientTruth(ABC):
    """True gradient statistics of one application over the course of training."""

    @abstractmethod
    def at(self, epoch: int, total_batch: float) -> GradientStats:
        """g² and v (at the initial batch size) during an epoch, when training at this total batch size."""

    def is_measured(self, epoch: int) -> bool:
        """Whether the job itself knows them by then."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Training loss as a function of the part of the work that is done.

    It falls from ``start`` to ``end``: like 1/(1 + ``steepness``·x) as models trained by plain gradient descent do, or,
    with ``exponential``, like exp(−``steepness``·x).
    """

    start: float
    end: float
    steepness: float
    exponential: bool = False

    def __post_init__(self) -> None:
        problems = [*check_number("start", self.start, above=0), *check_number("end", self.end, at_least=0)]
        if not problems and self.end >= self.start:
            expected = f"must be less than start, which is {self.start:g}"
            problems.append(Problem("end", self.end, expected, involves=("start",)))
        problems += check_number("steepness", self.steepness, at_least=LEAST_STEEPNESS)
        if problems:
            raise InvalidInput(problems)

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read the curve of a profile; all but ``exponential`` has to be there."""
        return reader.attempt(
            lambda: cls(
                start=reader.number("start"),
                end=reader.number("end"),
                steepness=reader.number("steepness"),
                exponential=reader.boolean("exponential", False),
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The curve as it is written in a profile."""
        return {
            "start": self.start,
            "end": self.end,
            "steepness": self.steepness,
            "exponential": self.exponential,
        }

    def at(self, done: float) -> float:
        """The loss when this part of the work is done, from 0 to 1."""
        left, at_the_end = self._falls(min(max(done, 0.0), 1.0)), self._falls(1.0)
        return self.end + (self.start - self.end) * (left - at_the_end) / (1.0 - at_the_end)

    def _falls(self, done: float) -> float:
        return math.exp(-self.steepness * done) if self.exponential else 1.0 / (1.0 + self.steepness * done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A kind of training job: how fast, how noisy and how long it trains.

    - ``progress_steps``: for each epoch, the progress at its end, in steps at the initial batch size; training is over
      when the last is reached.
    - ``limits`` and ``truth``: batch limits and step times by GPU type.
    - ``rescale_s``: pause of a cold restart, and of the first start unless ``start_up_s`` is given.
    - ``speed_divisor``: calibrates goodput. Sia's simulator divides by one; a live job takes this many times as long as
      its measured steps.
    - ``pinned_slots`` and ``pinned_batch``: how adaptive policies run an application that they are to leave alone
      (Pollux runs ncf on one slot with a batch of 32,768). Policies that run jobs as requested ignore them.
    - ``counts_samples``: progress counts consumed samples, not useful ones: an epoch is an epoch at any batch size.
    - ``loss``: the training loss that its jobs report; None if it is not known.
    - ``gradient_bytes``: what a step synchronises; None: derived from the profiled time of synchronising in a rack.
    """

    name: str
    progress_steps: NDArray[np.float64]
    gradient: GradientTruth
    truth: Mapping[str, StepTimeTruth]
    limits: Mapping[str, BatchLimits]
    rescale_s: float
    speed_divisor: float = 1.0
    pinned_slots: int | None = None
    pinned_batch: int | None = None
    start_up_s: float | None = None
    counts_samples: bool = False
    loss: LossCurve | None = None
    gradient_bytes: float | None = None

    @property
    def initial_batch(self) -> int:
        """M0, the same on every type."""
        return next(iter(self.limits.values())).initial

    def sync_source(self, gpu_type: str, path: Path) -> str:
        """Where its synchronisation times on a path come from."""
        profiled = path.tier is LinkClass.NODE or (path.tier is LinkClass.RACK and path.slowdown == 1.0)
        return MEASURED if profiled or self.truth[gpu_type].measured_on(path.tier) else FROM_VOLUME

    @property
    def total_steps(self) -> float:
        """Progress, in steps at M0, at which a job is done."""
        return float(self.progress_steps[-1])


def _partitions(slots: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ways to place slots on nodes of these sizes, which descend; the first node has the most slots."""

    def place(left: int, node: int, most: int) -> Iterator[tuple[int, ...]]:
        if left == 0:
            yield ()
        elif node < len(sizes):
            for here in range(min(left, sizes[node], most), 0, -1):
                for rest in place(left - here, node + 1, here):
                    yield (here, *rest)

    return place(slots, 0, slots)
