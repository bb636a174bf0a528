"""The elements of a job array, as a person writes them: ``array: 0-99%8``, as with Slurm's ``--array``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final

from geminid.fields import InvalidInput, Problem, Reader

#: The most elements that an array may have.
MAX_ELEMENTS: Final = 100_000

#: The largest number of an element.
MAX_ELEMENT: Final = 10**9

_PART = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?")

_AN_ARRAY: Final = (
    f"must be numbers and ranges such as 0-99, 1,5,9 or 0-90:10, {MAX_ELEMENTS:,} at most, each number once"
    f" and at most {MAX_ELEMENT:,}; %8 at the end limits how many are queued or run at a time"
)


@dataclass(frozen=True)
class ArrayRange:
    """The numbers of an array's elements, in the order in which they start, and how many may be active at a time."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or _parse(self.text) is None:
            raise InvalidInput([Problem("array", self.text, _AN_ARRAY)])

    @cached_property
    def _parsed(self) -> tuple[tuple[range, ...], int | None]:
        parsed = _parse(self.text)
        assert parsed is not None
        return parsed

    @property
    def limit(self) -> int | None:
        """How many elements may be queued or run at a time; None for as many as there is room for."""
        return self._parsed[1]

    def __len__(self) -> int:
        return sum(map(len, self._parsed[0]))

    def __contains__(self, element: int) -> bool:
        return any(element in part for part in self._parsed[0])

    def __iter__(self) -> Iterator[int]:
        for part in self._parsed[0]:
            yield from part

    def position(self, element: int) -> int:
        """Which element a number is, counted from 0 in the order in which they start."""
        before = 0
        for part in self._parsed[0]:
            if element in part:
                return before + part.index(element)
            before += len(part)
        raise ValueError(f"{element} is not in {self.text}")

    def from_position(self, position: int) -> Iterator[int]:
        """The elements from a position on."""
        for part in self._parsed[0]:
            yield from islice(part, min(position, len(part)), None)
            position = max(position - len(part), 0)

    def __str__(self) -> str:
        return self.text


def _parse(text: str) -> tuple[tuple[range, ...], int | None] | None:
    """The ranges and the limit of an array; None if the text is not one."""
    listed, percent, limit_text = text.partition("%")
    if len(text) > 1000 or (percent and not (limit_text.isascii() and limit_text.isdigit() and int(limit_text))):
        return None
    parts: list[range] = []
    for word in listed.split(","):
        found = _PART.fullmatch(word)
        if found is None:
            return None
        first, last, step = (int(number) if number else None for number in found.groups())
        assert first is not None
        part = range(first, (first if last is None else last) + 1, 1 if step is None else max(step, 0) or MAX_ELEMENT)
        if step == 0 or not part or part[-1] > MAX_ELEMENT or sum(map(len, parts)) + len(part) > MAX_ELEMENTS:
            return None
        parts.append(part)
    if len(parts) > 1 and len({number for part in parts for number in part}) < sum(map(len, parts)):
        return None
    return tuple(parts), int(limit_text) if percent else None


def read_array(reader: Reader, field: str) -> ArrayRange | None:
    """The array of a job file; a mistake is reported to the reader."""
    value = reader.raw(field)
    if value is None:
        return None
    try:
        return ArrayRange(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)  # type: ignore[arg-type]
    except InvalidInput as problem:
        reader.report(field, value, problem.problems[0].expected)
        return None
