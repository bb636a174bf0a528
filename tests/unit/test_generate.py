"""Generated workloads have the shape that they are said to have, and are the same for the same seed."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from geminid.fields import InvalidInput
from geminid.job import Adaptivity
from geminid.sim.workloads.generate import (
    BUILT_IN_APPLICATIONS,
    BUILT_IN_WORKLOADS,
    SIZE_SHARES,
    SLOT_SHARES,
    ApplicationShare,
    Arrivals,
    SizeCategory,
    built_in_workload,
    generate_workload,
)

DOCS = Path(__file__).parents[2] / "docs" / "workloads.md"
JOBS = 20_000


def is_share(count: int, total: int, share: float) -> bool:
    """Is a count within five standard deviations of what a share of the total gives? A fair draw is, but for 1e-6."""
    return abs(count - share * total) <= 5 * math.sqrt(total * share * (1 - share))


@pytest.fixture(scope="module")
def opaque_gpu_seconds() -> list[float]:
    workload = generate_workload(jobs=JOBS, hours=168, seed=1, applications=None)
    return [job.requested_slots * (job.duration_s or 0) for job in workload.jobs]


# --- The same, and different ---


def test_the_same_seed_gives_the_same_workload_and_another_seed_another() -> None:
    assert built_in_workload("day", seed=5) == built_in_workload("day", seed=5)
    assert built_in_workload("day", seed=5) != built_in_workload("day", seed=6)


def test_what_a_seed_gives_is_fixed_for_good() -> None:
    first = [(job.name, job.submit_s, job.requested_slots) for job in built_in_workload("small").jobs[:4]]
    assert first == [
        ("lstm-wikitext2-0", 86.0, 1),
        ("deepspeech2-1", 349.0, 4),
        ("lstm-wikitext2-2", 629.0, 1),
        ("lstm-wikitext2-3", 717.0, 1),
    ]
    opaque = generate_workload(jobs=3, hours=1, seed=42, applications=None)
    assert [(job.name, job.submit_s, job.requested_slots, job.duration_s) for job in opaque.jobs] == [
        ("small-0", 2394.0, 1, 2018.0),
        ("medium-1", 2799.0, 1, 4835.0),
        ("medium-2", 2842.0, 1, 9993.0),
    ]


def test_other_shares_leave_the_rest_of_a_workload_as_it_was() -> None:
    usual = generate_workload(jobs=100, hours=5, seed=3)
    others = generate_workload(jobs=100, hours=5, seed=3, slots={16: 1}, adaptivity={Adaptivity.RIGID: 1})
    assert {(job.requested_slots, job.adaptivity) for job in others.jobs} == {(16, Adaptivity.RIGID)}
    assert [(job.name, job.submit_s) for job in others.jobs] == [(job.name, job.submit_s) for job in usual.jobs]


# --- Sizes ---


def test_size_categories_have_their_published_shares(opaque_gpu_seconds: list[float]) -> None:
    edges = [0.0, 3.6e3, 3.6e4, 3.6e5, 3.7e6]
    for (low, high), share in zip(pairwise(edges), SIZE_SHARES.values(), strict=True):
        assert is_share(sum(low < size <= high for size in opaque_gpu_seconds), JOBS, share)


def test_sizes_are_heavy_tailed(opaque_gpu_seconds: list[float]) -> None:
    ordered = sorted(opaque_gpu_seconds)
    largest = sum(ordered[-JOBS // 50 :])
    # The largest 2 % of the jobs hold 70 % of the work; the share's deviation comes from the 400 that they are.
    assert largest / sum(ordered) == pytest.approx(0.70, abs=5 * 0.3 / math.sqrt(JOBS / 50))
    assert sum(ordered) / JOBS > 20 * ordered[JOBS // 2]


def test_sizes_are_even_over_the_logarithm_within_a_category(opaque_gpu_seconds: list[float]) -> None:
    medium = [size for size in opaque_gpu_seconds if 3.6e3 < size <= 3.6e4]
    assert is_share(sum(size <= 3.6e3 * math.sqrt(10) for size in medium), len(medium), 0.5)


def test_no_opaque_job_is_shorter_than_its_category_allows(opaque_gpu_seconds: list[float]) -> None:
    assert min(opaque_gpu_seconds) >= 60 - 8  # a rounding of up to a second on up to 8 slots
    assert max(opaque_gpu_seconds) <= 3.6e6 + 8


# --- Slots, applications, adaptivity ---


def test_slots_have_their_published_shares() -> None:
    counts = Counter(job.requested_slots for job in generate_workload(jobs=JOBS, hours=48, seed=2).jobs)
    assert set(counts) == set(SLOT_SHARES)
    assert all(is_share(counts[slots], JOBS, share) for slots, share in SLOT_SHARES.items())


def test_applications_share_their_category_by_weight() -> None:
    counts = Counter(job.application for job in generate_workload(jobs=JOBS, hours=48, seed=2).jobs)
    weights = Counter[SizeCategory]()
    for entry in BUILT_IN_APPLICATIONS.values():
        weights[entry.category] += entry.weight  # type: ignore[assignment]
    for name, entry in BUILT_IN_APPLICATIONS.items():
        share = SIZE_SHARES[entry.category] * entry.weight / weights[entry.category]
        assert is_share(counts[name], JOBS, share)


def test_own_applications_take_the_place_of_the_built_in_ones() -> None:
    own = {"tiny": ApplicationShare(SizeCategory.SMALL), "huge": ApplicationShare(SizeCategory.XLARGE)}
    sizes = {SizeCategory.SMALL: 3.0, SizeCategory.XLARGE: 1.0}
    workload = generate_workload(jobs=4000, hours=24, applications=own, sizes=sizes)
    counts = Counter(job.application for job in workload.jobs)
    assert is_share(counts["huge"], 4000, 0.25)
    assert counts["tiny"] + counts["huge"] == 4000


def test_jobs_may_be_of_mixed_adaptivity() -> None:
    mix = {Adaptivity.ADAPTIVE: 0.5, Adaptivity.FIXED_BATCH: 0.3, Adaptivity.RIGID: 0.2}
    counts = Counter(job.adaptivity for job in generate_workload(jobs=4000, hours=24, adaptivity=mix).jobs)
    assert all(is_share(counts[kind], 4000, share) for kind, share in mix.items())


# --- Arrivals ---


def hours_of(arrivals: Arrivals, hours: float, jobs: int = JOBS) -> list[float]:
    """When jobs are submitted, in hours from the midnight before the start of the first Monday."""
    workload = generate_workload(jobs=jobs, hours=hours, seed=4, arrivals=arrivals)
    return [job.submit_s / 3600 + arrivals.start_hour for job in workload.jobs]


def test_days_are_busier_than_nights_by_the_given_ratio() -> None:
    times = hours_of(Arrivals(day_night_ratio=4, peak_hour=16), 5 * 24)
    by_day = sum(15 <= time % 24 < 17 for time in times)
    by_night = sum(3 <= time % 24 < 5 for time in times)
    deviation = 4 * math.sqrt(1 / by_day + 1 / by_night)
    assert by_day / by_night == pytest.approx(4, abs=5 * deviation + 0.1)  # two hours around the extremes, not a moment


def test_arrivals_follow_the_rate_hour_by_hour() -> None:
    arrivals = Arrivals(start_hour=0, weekend_factor=1)
    times = hours_of(arrivals, 24)
    total = sum(arrivals.rate(hour + 0.5) for hour in range(24))
    for hour in range(24):
        share = arrivals.rate(hour + 0.5) / total
        assert is_share(sum(hour <= time < hour + 1 for time in times), JOBS, share)


def test_weekends_are_quieter_by_the_given_factor() -> None:
    times = hours_of(Arrivals(weekend_factor=0.6, start_hour=0), 168)
    assert is_share(sum(time >= 120 for time in times), JOBS, 2 * 0.6 / (5 + 2 * 0.6))


def test_arrivals_are_even_where_day_and_night_are_alike() -> None:
    times = hours_of(Arrivals(day_night_ratio=1, weekend_factor=1), 168)
    assert is_share(sum(time - 8 < 84 for time in times), JOBS, 0.5)


def test_gaps_between_arrivals_are_those_of_a_poisson_process() -> None:
    times = hours_of(Arrivals(day_night_ratio=1, weekend_factor=1), 1000)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    # Of exponential gaps, a share of 1/e is longer than their mean.
    assert is_share(sum(gap > mean for gap in gaps), len(gaps), math.exp(-1))


def test_jobs_come_in_order_at_whole_seconds_within_the_hours() -> None:
    times = [job.submit_s for job in generate_workload(jobs=5000, hours=3.3, seed=9).jobs]
    assert times == sorted(times)
    assert all(time.is_integer() for time in times)
    assert times[0] >= 0
    assert times[-1] <= 3.3 * 3600


# --- Built in ---


@pytest.mark.parametrize("name", BUILT_IN_WORKLOADS)
def test_built_in_workloads_are_as_large_as_their_table_says(name: str) -> None:
    entry, workload = BUILT_IN_WORKLOADS[name], built_in_workload(name)
    assert workload.name == name
    assert len(workload.jobs) == entry.jobs
    assert 0.9 * entry.hours < workload.jobs[-1].submit_s / 3600 <= entry.hours
    assert len({job.name for job in workload.jobs}) == entry.jobs


def test_load_multiplies_the_jobs_and_leaves_the_time() -> None:
    double = built_in_workload("day", load=2)
    assert len(double.jobs) == 320
    assert double.jobs[-1].submit_s <= 8 * 3600
    assert len(built_in_workload("small", load=0.001).jobs) == 1


def test_the_documentation_lists_the_built_in_workloads() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (.*) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    table = BUILT_IN_WORKLOADS.values()
    assert rows == [(entry.name, f"{entry.jobs}", f"{entry.hours:g}", entry.description) for entry in table]


# --- What is refused ---


def test_an_unknown_built_in_workload_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        built_in_workload("busyday")
    known = "small, day, busy-day, scale (did you mean busy-day?)"
    assert str(caught.value) == f"workload is 'busyday', but must be one of {known}."


def test_every_impossible_parameter_is_reported() -> None:
    with pytest.raises(InvalidInput) as caught:
        generate_workload(
            jobs=0,
            hours=-1,
            seed=-1,
            load=0,
            slots={0: 1.0, 2: -1.0},
            sizes={SizeCategory.SMALL: 0.0},
            adaptivity={},
            applications={"a b": ApplicationShare(SizeCategory.SMALL, 0)},
        )
    assert [str(problem) for problem in caught.value.problems] == [
        "jobs is 0, but must be a whole number, at least 1 and at most 1000000.",
        "hours is -1, but must be a number, above 0 and at most 87600.0.",
        "seed is -1, but must be a whole number, at least 0.",
        "load is 0, but must be a number, above 0 and at most 1000000.0.",
        "sizes is a mapping, but must give some share to something.",
        "slots.2 is -1.0, but must be a number, at least 0.",
        "slots is 0, but must be a whole number, at least 1 and at most 1000000.",
        "adaptivity is a mapping, but must give some share to something.",
        "applications is 'a b', but must be a name of up to 63 letters, digits, '.', '_' and '-' that starts with a "
        "letter or digit.",
        "applications.a b is 0, but must be a number, above 0.",
    ]


def test_a_size_category_without_an_application_is_reported() -> None:
    with pytest.raises(InvalidInput, match="must have one of the size category xlarge"):
        generate_workload(
            jobs=5,
            hours=1,
            applications={"a": ApplicationShare(SizeCategory.SMALL)},
            sizes={SizeCategory.SMALL: 1.0, SizeCategory.LARGE: 0.0, SizeCategory.XLARGE: 1.0},
        )


def test_a_load_of_too_many_jobs_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must leave at most 1000000 jobs"):
        built_in_workload("scale", load=1000)


def test_impossible_arrivals_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        Arrivals(day_night_ratio=0.5, peak_hour=25, weekend_factor=0, start_hour=-1)
    assert len(caught.value.problems) == 4
