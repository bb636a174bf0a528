"""Units: what people write is understood exactly, or refused with a reason."""

import math

import pytest

from geminid.units import (
    format_bandwidth,
    format_duration,
    format_size,
    humanize_duration,
    humanize_size,
    parse_bandwidth,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (3600, 3600.0),
        (0, 0.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("90s", 90.0),
        ("2h30m", 9000.0),
        ("1d", 86_400.0),
        ("1d 2h 3m 4s", 93_784.0),
        (" 1.5h ", 5400.0),
        ("250ms", 0.25),
        ("5us", 5e-6),
        ("1e-05s", 1e-5),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_text_with_units(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        "soon",
        "-5s",
        "1h-5m",
        "30m2h",
        "5 parsecs",
        "1e999",
        "٣s",
        "1h\x00",
        None,
        True,
        -1,
        math.nan,
        math.inf,
        [1],
    ],
)
def test_what_is_not_a_duration_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 90, 90s, 2h30m or 1d"):
        parse_duration(written)


def test_an_integer_beyond_floats_is_not_a_duration() -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(10**400)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0s"), (90, "1m30s"), (9000, "2h30m"), (86_400, "1d"), (0.25, "0.25s"), (5400.1, "5400.1s")],
)
def test_durations_are_written_compactly(seconds: float, written: str) -> None:
    assert format_duration(seconds) == written


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.35, "350ms"),
        (4.29, "4.2s"),
        (45.9, "45s"),
        (725, "12m 05s"),
        (3779, "1h 02m"),
        (2 * 86_400 + 3 * 3600, "2d 03h"),
        (-90, "-1m 30s"),
        (math.inf, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_people_see_durations_in_two_units_at_most(seconds: float, shown: str) -> None:
    assert humanize_duration(seconds) == shown


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (123, 123),
        ("123", 123),
        ("123B", 123),
        ("16GiB", 16 * 2**30),
        ("40GB", 40 * 10**9),
        ("40 gb", 40 * 10**9),
        ("1.5 KiB", 1536),
        ("2kB", 2000),
        ("16Gi", 16 * 2**30),
        ("1.1GB", 1_100_000_000),
    ],
)
def test_sizes_are_binary_or_decimal_as_written(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "16Gb", "16 giraffes", "-1", -1, True, 1.5, None, "1e99GB"])
def test_what_is_not_a_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a size in bytes"):
        parse_size(written)


def test_bits_are_not_taken_for_bytes() -> None:
    with pytest.raises(ValueError, match="bytes per second"):
        parse_bandwidth("100Gb/s")


def test_sizes_are_written_in_the_unit_that_makes_them_shortest() -> None:
    assert [format_size(size) for size in (0, 123, 16 * 2**30, 40 * 10**9)] == ["0B", "123B", "16GiB", "40GB"]


def test_people_see_sizes_in_binary_units() -> None:
    assert [humanize_size(size) for size in (512, 40_536 * 2**20, 3 * 2**50)] == [
        "512 B",
        "39.6 GiB",
        "3.0 PiB",
    ]


def test_bandwidths_go_both_ways() -> None:
    assert parse_bandwidth("12.5GB/s") == parse_bandwidth("12.5e9") == parse_bandwidth(12_500_000_000) == 12.5e9
    assert format_bandwidth(12.5e9) == "12.5GB/s"


@pytest.mark.parametrize("written", [0, -1, "0GB/s", "fast", None, math.inf])
def test_a_bandwidth_is_above_zero(written: object) -> None:
    with pytest.raises(ValueError, match="above zero"):
        parse_bandwidth(written)
