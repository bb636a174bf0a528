"""Generate workloads with the shape of published production traces.

What is taken from the literature, and where it can be checked:

- *Sizes* are heavy-tailed: most jobs are small, and a few hold most of the GPU-time. Pollux (OSDI '21, section 5.1 and
  table 1) sorts the jobs of Microsoft's Philly trace by GPU-time into small (up to 1 GPU-hour), medium (up to 10),
  large (up to 100) and extra large (up to 1,000), of which there are 72, 20, 6 and 2 %; jobs under a minute are left
  out. Within a category, GPU-time is spread evenly over its logarithm.
- *Slots*: 70, 10, 15 and 5 % of the jobs ask for 1, 2, 4 and 8, the mix of Gavel's multi-GPU traces (OSDI '20).
- *Arrivals* are a Poisson process whose rate follows the time of day, highest in the afternoon, and falls at weekends.
  Between the busiest and the quietest hour lies a factor of about 3 in Philly and 9 in Helios' Venus (SC '21); a day of
  a weekend has 0.5 and 0.65 of a weekday's jobs. The defaults are 4 and 0.6.

The number of jobs is given, and not drawn: their times are then those of a Poisson process that happened to have as
many. The same seed gives the same workload on every platform: only uniform numbers of numpy's PCG64 are drawn, always
in the same order, and times are rounded.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np

from geminid.fields import InvalidInput, Problem, check_integer, check_name, check_number, suggestion
from geminid.job import Adaptivity
from geminid.nodes import MAX_SLOTS
from geminid.sim.workload import TraceJob, Workload

MAX_JOBS: Final = 1_000_000
MAX_HOURS: Final = 10 * 365 * 24.0

T = TypeVar("T")


class SizeCategory(StrEnum):
    """How much GPU-time a job takes, by orders of magnitude."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
    XLARGE = "xlarge"

    @property
    def gpu_seconds(self) -> tuple[float, float]:
        """The least and the most GPU-seconds of a job of this category."""
        return _GPU_SECONDS[self]


_GPU_SECONDS: Final = {
    SizeCategory.SMALL: (60.0, 3.6e3),
    SizeCategory.MEDIUM: (3.6e3, 3.6e4),
    SizeCategory.LARGE: (3.6e4, 3.6e5),
    SizeCategory.XLARGE: (3.6e5, 3.6e6),
}

SIZE_SHARES: Final[Mapping[SizeCategory, float]] = MappingProxyType(
    {SizeCategory.SMALL: 0.72, SizeCategory.MEDIUM: 0.20, SizeCategory.LARGE: 0.06, SizeCategory.XLARGE: 0.02}
)
SLOT_SHARES: Final[Mapping[int, float]] = MappingProxyType({1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05})
ALL_ADAPTIVE: Final[Mapping[Adaptivity, float]] = MappingProxyType({Adaptivity.ADAPTIVE: 1.0})


@dataclass(frozen=True, slots=True)
class ApplicationShare:
    """Which jobs are of an application: those of a size category, in proportion to the weights of that category.

    With ``initial_batch`` (M0) users who ask for several slots ask for as many times that batch size, as is the habit;
    policies that leave jobs as they are run them so.
    """

    category: SizeCategory
    weight: float = 1.0
    initial_batch: int | None = None


#: Where the built-in profiles belong by the GPU-time that they take.
BUILT_IN_APPLICATIONS: Final[Mapping[str, ApplicationShare]] = MappingProxyType(
    {
        "resnet18-cifar10": ApplicationShare(SizeCategory.SMALL, 3.0, initial_batch=128),
        "neumf-ml20m": ApplicationShare(SizeCategory.SMALL, 2.0, initial_batch=2048),
        "lstm-wikitext2": ApplicationShare(SizeCategory.SMALL, 2.0, initial_batch=20),
        "dlrm-small": ApplicationShare(SizeCategory.SMALL, initial_batch=2048),
        "bert-base-squad": ApplicationShare(SizeCategory.MEDIUM, initial_batch=12),
        "deepspeech2": ApplicationShare(SizeCategory.MEDIUM, initial_batch=20),
        "yolov3": ApplicationShare(SizeCategory.LARGE, initial_batch=8),
        "gpt2-124m": ApplicationShare(SizeCategory.LARGE, initial_batch=32),
        "resnet50-imagenet": ApplicationShare(SizeCategory.XLARGE, initial_batch=256),
        "vit-b16-imagenet": ApplicationShare(SizeCategory.XLARGE, initial_batch=1024),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How the rate of submissions goes with the time of day and of week.

    Attributes:
        day_night_ratio: The rate of the busiest moment of a day over that of the quietest; 1 for no difference.
        peak_hour: When it is busiest, in hours from midnight; the quietest is twelve hours later.
        weekend_factor: The rate on Saturdays and Sundays over that of the same time on other days.
        start_hour: When the workload begins, in hours from midnight of a Monday; 120 is Saturday.
    """

    day_night_ratio: float = 4.0
    peak_hour: float = 16.0
    weekend_factor: float = 0.6
    start_hour: float = 8.0

    def __post_init__(self) -> None:
        problems = [
            *check_number("day_night_ratio", self.day_night_ratio, at_least=1, at_most=1e6),
            *check_number("peak_hour", self.peak_hour, at_least=0, at_most=24),
            *check_number("weekend_factor", self.weekend_factor, above=0, at_most=1e6),
            *check_number("start_hour", self.start_hour, at_least=0, at_most=168),
        ]
        if problems:
            raise InvalidInput(problems)

    def rate(self, hour: float) -> float:
        """The arrival rate this many hours after the start, relative to a weekday's mean."""
        hour += self.start_hour
        swing = (self.day_night_ratio - 1) / (self.day_night_ratio + 1)
        weekend = self.weekend_factor if hour % 168 >= 120 else 1.0
        return weekend * (1 + swing * math.cos(2 * math.pi * (hour - self.peak_hour) / 24))

    def times(self, hours: float, uniform: Iterable[float]) -> list[float]:
        """The moments in seconds, sorted and rounded, to which uniform numbers belong by the share of jobs before."""
        steps = math.ceil(hours * 12)  # the rate is taken as constant for five minutes or less
        step = hours / steps
        rates = [self.rate((i + 0.5) * step) for i in range(steps)]
        before = [0.0, *accumulate(rates)]
        times = []
        for share in sorted(uniform):
            target = share * before[-1]
            i = min(bisect_right(before, target) - 1, steps - 1)
            times.append(3600 * step * (i + (target - before[i]) / rates[i]))
        return [float(round(time)) for time in times]


def generate_workload(
    *,
    jobs: int,
    hours: float,
    seed: int = 0,
    load: float = 1.0,
    applications: Mapping[str, ApplicationShare] | None = BUILT_IN_APPLICATIONS,
    sizes: Mapping[SizeCategory, float] = SIZE_SHARES,
    slots: Mapping[int, float] = SLOT_SHARES,
    adaptivity: Mapping[Adaptivity, float] = ALL_ADAPTIVE,
    arrivals: Arrivals = Arrivals(),
    name: str = "generated",
) -> Workload:
    """Generate a workload.

    Args:
        jobs: How many jobs there are at load 1.
        hours: The time over which they are submitted.
        seed: What tells this workload from others of the same shape.
        load: Multiplies the number of jobs; the time stays.
        applications: What the jobs of each size category are. None for opaque, rigid jobs, whose duration is their
            GPU-time divided by their slots.
        sizes: The shares of the size categories; like all shares, they need not add up to 1.
        slots: The shares of the numbers of slots that users ask for.
        adaptivity: The shares of what may be changed about jobs of an application.
        arrivals: How submissions are spread over time.
        name: The workload's name.

    Raises:
        InvalidInput: arguments that make no workload, with everything that is wrong.
    """
    problems = [
        *check_integer("jobs", jobs, at_least=1, at_most=MAX_JOBS),
        *check_number("hours", hours, above=0, at_most=MAX_HOURS),
        *check_integer("seed", seed, at_least=0),
        *check_number("load", load, above=0, at_most=1e6),
        *_check_shares("sizes", sizes),
        *_check_shares("slots", slots),
        *[bad for count in slots for bad in check_integer("slots", count, at_least=1, at_most=MAX_SLOTS)],
        *_check_shares("adaptivity", adaptivity),
        *_check_applications(applications, sizes),
    ]
    if not problems and round(jobs * load) > MAX_JOBS:
        problems = [Problem("load", load, f"must leave at most {MAX_JOBS} jobs")]
    if problems:
        raise InvalidInput(problems)

    count = max(1, round(jobs * load))
    # One column per question, whether it is asked or not: what is answered otherwise then leaves the rest as it was.
    draws = np.random.Generator(np.random.PCG64(seed)).random((count, 6)).tolist()
    pick_size, pick_slots, pick_adaptivity = _chooser(sizes), _chooser(slots), _chooser(adaptivity)
    pick_application = {
        category: _chooser(
            {app: entry.weight for app, entry in (applications or {}).items() if entry.category is category}
        )
        for category in sizes
        if applications is not None and sizes[category] > 0
    }
    made = []
    for i, submit_s in enumerate(arrivals.times(hours, (draw[0] for draw in draws))):
        _, u_size, u_amount, u_slots, u_application, u_adaptivity = draws[i]
        category, requested = pick_size(u_size), pick_slots(u_slots)
        if applications is None:
            duration_s = max(1.0, float(round(_gpu_seconds(category, u_amount) / requested)))
            job = TraceJob(
                name=f"{category}-{i}",
                submit_s=submit_s,
                requested_slots=requested,
                duration_s=duration_s,
                adaptivity=Adaptivity.RIGID,
            )
        else:
            application = pick_application[category](u_application)
            initial_batch = applications[application].initial_batch
            job = TraceJob(
                name=f"{application}-{i}",
                submit_s=submit_s,
                requested_slots=requested,
                requested_batch=None if initial_batch is None else initial_batch * requested,
                application=application,
                adaptivity=pick_adaptivity(u_adaptivity),
            )
        made.append(job)
    return Workload(name, tuple(made))


def _gpu_seconds(category: SizeCategory, uniform: float) -> float:
    least, most = category.gpu_seconds
    return least * math.pow(most / least, uniform)


def _chooser(shares: Mapping[T, float]) -> Callable[[float], T]:
    """A function from uniform numbers to the keys, in proportion to their shares."""
    keys = [key for key, share in shares.items() if share > 0]
    ends = list(accumulate(shares[key] for key in keys))
    return lambda uniform: keys[min(bisect_right(ends, uniform * ends[-1]), len(keys) - 1)]


def _check_shares(field: str, shares: Mapping[T, float]) -> list[Problem]:
    problems = [bad for key, share in shares.items() for bad in check_number(f"{field}.{key}", share, at_least=0)]
    if not problems and not sum(shares.values()) > 0:
        problems = [Problem(field, shares, "must give some share to something")]
    return problems


def _check_applications(
    applications: Mapping[str, ApplicationShare] | None, sizes: Mapping[SizeCategory, float]
) -> list[Problem]:
    if applications is None:
        return []
    problems: list[Problem] = []
    for name, entry in applications.items():
        problems += check_name("applications", name)
        problems += check_number(f"applications.{name}", entry.weight, above=0)
    covered = {entry.category for entry in applications.values()}
    for category, share in sizes.items():
        if share > 0 and category not in covered:
            problems.append(Problem("applications", applications, f"must have one of the size category {category}"))
    return problems


# --- Built in ---


@dataclass(frozen=True, slots=True)
class BuiltInWorkload:
    """A workload that needs no file."""

    name: str
    jobs: int
    hours: float
    description: str


BUILT_IN_WORKLOADS: Final[Mapping[str, BuiltInWorkload]] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            BuiltInWorkload("small", 40, 2.0, "a short morning, for a first look and for tests"),
            BuiltInWorkload("day", 160, 8.0, "a working day, with as many jobs as Pollux's workloads"),
            BuiltInWorkload("busy-day", 960, 48.0, "two days and nights, with as many jobs as Sia's longest workloads"),
            BuiltInWorkload(
                "scale", 10_000, 168.0, "a week with its nights and its weekend, for clusters of many hundred slots"
            ),
        )
    }
)


def built_in_workload(
    name: str,
    *,
    seed: int = 0,
    load: float = 1.0,
    applications: Mapping[str, ApplicationShare] | None = BUILT_IN_APPLICATIONS,
) -> Workload:
    """A built-in workload by its name; the arguments are those of generate_workload."""
    if name not in BUILT_IN_WORKLOADS:
        known = f"must be one of {', '.join(BUILT_IN_WORKLOADS)}{suggestion(name, BUILT_IN_WORKLOADS)}"
        raise InvalidInput([Problem("workload", name, known)])
    shape = BUILT_IN_WORKLOADS[name]
    return generate_workload(
        jobs=shape.jobs, hours=shape.hours, seed=seed, load=load, applications=applications, name=name
    )
