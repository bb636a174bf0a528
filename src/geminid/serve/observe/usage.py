"""What owners used: slots × seconds by hour, summed up over the periods of a calendar.

Hours are counted from 1970. Days and weeks begin at midnight of a time zone, to the hour; weeks on Monday.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Literal

#: Length of what usage is counted by.
HOUR_S = 3600.0

DAY_S = 86_400.0

#: The first Monday since 1970 began this long after its beginning.
FIRST_MONDAY_S = 4 * DAY_S

Period = Literal["hour", "day", "week"]

#: Length of each kind of period.
LENGTHS_S: Mapping[Period, float] = {"hour": HOUR_S, "day": DAY_S, "week": 7 * DAY_S}

#: Slots × seconds by hour and owner.
Usage = dict[tuple[int, str], float]


def by_hour(used: Usage, owner: str, from_s: float, to_s: float) -> None:
    """Add one slot of an owner, from one time to another, to what was used."""
    while from_s < to_s:
        hour = int(from_s // HOUR_S)
        until_s = min((hour + 1) * HOUR_S, to_s)
        used[hour, owner] = used.get((hour, owner), 0.0) + until_s - from_s
        from_s = until_s


def period_starts(period: Period, count: int, now_s: float, zone_s: float) -> list[float]:
    """When the last periods begin, the current one last, in a time zone that is ``zone_s`` ahead of UTC."""
    length_s = LENGTHS_S[period]
    shift_s = zone_s - (FIRST_MONDAY_S if period == "week" else 0.0)
    current_s = (now_s + shift_s) // length_s * length_s - shift_s
    current_s = current_s // HOUR_S * HOUR_S  # usage is counted by hours of UTC
    return [current_s - (count - 1 - i) * length_s for i in range(count)]


def by_period(used: Usage, starts_s: list[float]) -> dict[str, list[float]]:
    """Slot-hours of each owner in periods that follow each other; what was before the first is left out."""
    if not starts_s:
        return {}
    length_s = starts_s[1] - starts_s[0] if len(starts_s) > 1 else inf
    table: dict[str, list[float]] = {}
    for (hour, owner), seconds in sorted(used.items(), key=lambda one: one[0][1]):
        number = int((hour * HOUR_S - starts_s[0]) // length_s)
        if 0 <= number < len(starts_s):
            table.setdefault(owner, [0.0] * len(starts_s))[number] += seconds / HOUR_S
    return table
