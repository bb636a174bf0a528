"""Units of the domain, and how people write them.

Inside Geminid a quantity is a plain number whose *name* says its unit (``deadline_s``, ``memory_bytes``); the
aliases below say it once more in signatures. Outside, in files and on command lines, a quantity carries its
unit in its text: ``2h30m``, ``16GiB``, ``300GB/s``. Every ``format_*`` function writes a text that its
``parse_*`` function reads back to exactly the same number; the ``humanize_*`` functions round, for the eye.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final, TypeAlias

Seconds: TypeAlias = float
Samples: TypeAlias = float
"""Useful samples may be fractional: progress is throughput times efficiency."""
GpuSeconds: TypeAlias = float
Slots: TypeAlias = int
Bytes: TypeAlias = int
BytesPerSecond: TypeAlias = float

MAX_SAMPLES: Final = 2**53
"""The most samples that a job can have to process: up to here, a float still counts every single one."""
MAX_BATCH_SIZE: Final = 10**12
"""The largest batch, in samples: far beyond any use, and safe to multiply with any number of slots."""

A_DURATION: Final = "a duration such as 90, 90s, 2h30m or 1d, not negative"
A_SIZE: Final = "a size in bytes such as 123, 16GiB or 40GB, not negative"
A_BANDWIDTH: Final = "a bandwidth in bytes per second such as 300GB/s or 12.5GB/s, above zero"

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?"
# Decimal factors keep decimal texts exact: 5us is the float 5e-6, not 5 times the float 1e-6.
_SECONDS_PER: Final = {
    "d": Decimal(86_400),
    "h": Decimal(3_600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
}
# Largest unit first, each at most once: "30m2h" is more likely a slip than a wish.
_DURATION = re.compile(r"\s*".join(rf"(?:(?P<{unit}>{_NUMBER})\s*{unit})?" for unit in _SECONDS_PER))

_BYTES_PER: Final[dict[str, int]] = {
    "B": 1,
    **{f"{prefix}B": 10**power for prefix, power in zip("KMGTP", range(3, 18, 3), strict=True)},
    **{f"{prefix}iB": 2**power for prefix, power in zip("KMGTP", range(10, 60, 10), strict=True)},
}
# Upper or lower case throughout, but never "Gb": that would be bits, and eight times less.
_SIZE = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>k?B|[KMGTP]i?B?|[kmgtp]i?b?)?")


def parse_duration(value: object) -> Seconds:
    """Read a duration: a number of seconds, or text such as ``90``, ``90s``, ``2h30m``, ``1d`` or ``250ms``.

    Raises:
        ValueError: the value is not a duration; the message says what would be.
    """
    seconds = _duration_in_text(value) if isinstance(value, str) else _as_float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{value!r} is not {A_DURATION}")
    return seconds


def format_duration(duration_s: Seconds) -> str:
    """Write a duration so that :func:`parse_duration` reads back the same number: ``2h30m``, ``0.25s``."""
    if not float(duration_s).is_integer() or duration_s >= 2**53:
        return f"{float(duration_s)!r}s"
    rest, parts = int(duration_s), []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_SECONDS_PER[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def humanize_duration(duration_s: Seconds) -> str:
    """Show a duration in at most two units, rounded down: ``350ms``, ``4.2s``, ``1h 02m``, ``2d 03h``."""
    if not math.isfinite(duration_s):
        return "unknown"
    if duration_s < 0:
        return f"-{humanize_duration(-duration_s)}"
    if duration_s < 1:
        return f"{int(duration_s * 1000)}ms"
    if duration_s < 10:
        return f"{int(duration_s * 10) / 10:.1f}s"
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {seconds:02}s" if minutes else f"{seconds}s"


def parse_size(value: object) -> Bytes:
    """Read a number of bytes: an integer, or text such as ``123``, ``16GiB`` (binary) or ``40GB`` (decimal).

    Raises:
        ValueError: the value is not a size; the message says what would be.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        size = _size_in_text(value)
        if size < 2**63:
            return int(size.to_integral_value())
    raise ValueError(f"{value!r} is not {A_SIZE}")


def format_size(size_bytes: Bytes) -> str:
    """Write a size exactly, in the unit that makes it shortest: ``16GiB``, ``40GB``, ``123B``."""
    exact = [(unit, size_bytes // factor) for unit, factor in _BYTES_PER.items() if size_bytes % factor == 0]
    return min((f"{count}{unit}" for unit, count in exact), key=len)


def humanize_size(size_bytes: float) -> str:
    """Show a size in binary units with one decimal: ``39.6 GiB``, ``512 B``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def parse_bandwidth(value: object) -> BytesPerSecond:
    """Read a bandwidth: a number of bytes per second, or text such as ``300GB/s``.

    Raises:
        ValueError: the value is not a bandwidth; the message says what would be.
    """
    bandwidth = _as_float(value)
    if isinstance(value, str):
        bandwidth = float(_size_in_text(value.strip().removesuffix("/s")))
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise ValueError(f"{value!r} is not {A_BANDWIDTH}")
    return bandwidth


def format_bandwidth(bandwidth: BytesPerSecond) -> str:
    """Write a bandwidth so that :func:`parse_bandwidth` reads back the same number: ``300GB/s``."""
    short = f"{bandwidth / 10**9:g}GB/s"
    return short if parse_bandwidth(short) == bandwidth else f"{float(bandwidth)!r}/s"


def _duration_in_text(text: str) -> Seconds:
    """The seconds that a text means, or infinitely many if it is not a duration."""
    text = text.strip()
    match = _DURATION.fullmatch(f"{text}s" if re.fullmatch(_NUMBER, text) else text)
    if not text or match is None:
        return math.inf
    try:
        parts = [Decimal(number) * _SECONDS_PER[unit] for unit, number in match.groupdict().items() if number]
        return float(sum(parts))
    except ArithmeticError:  # an exponent beyond reason
        return math.inf


def _size_in_text(text: str) -> Decimal:
    """The bytes that a text means, or infinitely many if it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return Decimal("inf")
    unit = (match["unit"] or "B").upper().replace("I", "i")
    try:
        return Decimal(match["number"]) * _BYTES_PER[unit if unit.endswith("B") else f"{unit}B"]
    except ArithmeticError:  # an exponent beyond reason
        return Decimal("inf")


def _as_float(value: object) -> float:
    """The number that was meant, or NaN for anything that is not a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
