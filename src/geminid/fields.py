"""Validation of everything that comes from outside: all mistakes at once, each in one sentence.

A :class:`Problem` names a field, its value and what would be right. A value of the domain checks itself when
it is constructed, with the ``check_*`` functions, and raises :class:`InvalidInput` with every problem it has.
A :class:`Reader` turns plain data (what YAML or JSON gives) into such a value: it converts each field to its
type, notices unknown ones, and adds its own findings to those of the constructor, so that a person who made
five mistakes reads five sentences and not one.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from geminid.units import (
    A_BANDWIDTH,
    A_DURATION,
    A_SIZE,
    Bytes,
    BytesPerSecond,
    Seconds,
    parse_bandwidth,
    parse_duration,
    parse_size,
)

#: Most characters of a document, and most bytes of a request.
MAX_TEXT_LENGTH: Final = 2**20

_MAX_UNKNOWN: Final = 20  # looking for what was meant by thousands of unknown fields would take minutes

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)


class _Marker(Enum):
    NOT_SHOWN = "not shown"
    REQUIRED = "required"


NOT_SHOWN: Final = _Marker.NOT_SHOWN
"""Stands for a value that there is none of (a missing field) or that must not be seen (a secret)."""

REQUIRED: Final[Any] = _Marker.REQUIRED
"""The default of a field that has none."""

A_NAME: Final = "a name of up to 63 letters, digits, '.', '_' and '-' that starts with a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

# Control characters, line separators, direction overrides (which make text look like other text) and lone
# surrogates (which no file can hold). Text that may have several lines is allowed line breaks and tabs.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNPRINTABLE_IN_LINES = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: which field, which value, and what would be right.

    ``expected`` completes the sentence "FIELD is VALUE, but …", or "FIELD …" when the value is not shown.
    Where a rule concerns several fields, ``involves`` names the others.
    """

    field: str
    value: object
    expected: str
    involves: tuple[str, ...] = ()

    def __str__(self) -> str:
        subject = self.field or "the input"
        if self.value is NOT_SHOWN:
            return f"{subject} {self.expected}."
        return f"{subject} is {show(self.value)}, but {self.expected}."


class InvalidInput(ValueError):
    """Input that cannot be used, with everything that is wrong with it; its text has one problem per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def show(value: object) -> str:
    """A value as a person would have written it, short and on one line, whatever it is."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 60 else f"{value[:57]}...")
        case int() if value.bit_length() > 128:
            return "a number of absurd size"
        case int() | float():
            return str(value)
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return f"of type {type(value).__name__}"


#: Words that people know from other systems, and what they are called here.
_ELSEWHERE: Final = dict.fromkeys(("gpu", "gpus", "n_gpus", "ngpus", "num_gpus", "num_workers", "nproc"), "slots")


def suggestion(word: str, known: Iterable[str]) -> str:
    """``" (did you mean X?)"`` if one of a manageable number of known words is close, else nothing."""
    candidates = list(known)
    meant = _ELSEWHERE.get(word.lower().replace("-", "_"))
    if meant in candidates:
        return f" (did you mean {meant}?)"
    close = difflib.get_close_matches(word[:100], candidates, n=1) if len(candidates) <= 1000 else []
    return f" (did you mean {close[0]}?)" if close else ""


# --- Checks: each returns the problems it finds, none or one ---


def check_integer(
    field: str, value: object, *, at_least: int | None = None, at_most: int | None = None
) -> list[Problem]:
    """Is it a whole number (a boolean is not) within the range?"""
    fits = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
    )
    return [] if fits else [Problem(field, value, f"must be a whole number{_range(at_least, None, at_most)}")]


def check_number(
    field: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> list[Problem]:
    """Is it a finite number (a boolean is not) within the range?"""
    fits = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and _is_finite(value)
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
    )
    return [] if fits else [Problem(field, value, f"must be a number{_range(at_least, above, at_most)}")]


def check_text(
    field: str, value: object, *, max_length: int = 4096, lines: bool = False, secret: bool = False
) -> list[Problem]:
    """Is it text without control characters? ``lines`` allows line breaks; a ``secret`` is never shown."""
    unprintable = _UNPRINTABLE_IN_LINES if lines else _UNPRINTABLE
    shown = NOT_SHOWN if secret else value
    if not isinstance(value, str):
        hint = "; write it in quotes" if isinstance(value, int | float) else ""
        return [Problem(field, shown, f"must be text{hint}")]
    if len(value) > max_length:
        return [Problem(field, shown, f"must be text of at most {max_length} characters, not {len(value)}")]
    if unprintable.search(value):
        return [Problem(field, shown, "must be text without control characters")]
    return []


def check_boolean(field: str, value: object) -> list[Problem]:
    """Is it true or false?"""
    return [] if isinstance(value, bool) else [Problem(field, value, "must be true or false")]


def check_choice(field: str, value: object, options: type[StrEnum]) -> list[Problem]:
    """Is it a member of an enumeration (the text of one is not)?"""
    expected = f"must be a {options.__name__}: one of {', '.join(options)}"
    return [] if isinstance(value, options) else [Problem(field, value, expected)]


def check_instance(field: str, value: object, kind: type) -> list[Problem]:
    """Is it a value of a class of the domain?"""
    return [] if isinstance(value, kind) else [Problem(field, value, f"must be of type {kind.__name__}")]


def check_tuple(field: str, value: object, check: Callable[[str, Any], list[Problem]]) -> list[Problem]:
    """Is it a tuple whose elements all pass a check?"""
    if not isinstance(value, tuple):
        return [Problem(field, value, "must be a tuple")]
    return [bad for index, element in enumerate(value) for bad in check(f"{field}[{index}]", element)]


def check_optional(
    check: Callable[..., list[Problem]], field: str, value: object, *args: Any, **limits: Any
) -> list[Problem]:
    """Is it absent, or does it pass a check?"""
    return [] if value is None else check(field, value, *args, **limits)


def check_name(field: str, value: object) -> list[Problem]:
    """Is it a name: safe in file names, addresses, tables and the short forms of the command line?"""
    fits = isinstance(value, str) and _NAME.fullmatch(value)
    return [] if fits else [Problem(field, value, f"must be {A_NAME}")]


def _range(at_least: float | None, above: float | None, at_most: float | None) -> str:
    limits = [
        f"{word} {limit}"
        for word, limit in (("at least", at_least), ("above", above), ("at most", at_most))
        if limit is not None
    ]
    return f", {' and '.join(limits)}" if limits else ""


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


# --- The reader ---


class Reader:
    """Reads the fields of a mapping one by one, and remembers everything that is wrong with them.

    A field that is absent or null takes its default. Where a required field is absent, or a value is of the
    wrong type, the reader notes the problem and hands out a stand-in, so that reading can go on. Everything
    is read inside :meth:`attempt`, which makes sure that no value built from stand-ins ever leaves.
    """

    def __init__(self, data: object, *, at: str = "", problems: list[Problem] | None = None) -> None:
        self.at = at
        self.problems: list[Problem] = [] if problems is None else problems
        self._data: Mapping[Any, object] = data if isinstance(data, Mapping) else {}
        self._is_mapping = isinstance(data, Mapping)
        self._known: set[str] = set()
        if not self._is_mapping:
            self.problems.append(Problem(at, data, "must be a mapping of field names to values"))

    def report(self, field: str, value: object, expected: str) -> None:
        """Note a problem with one of this mapping's fields."""
        self.problems.append(Problem(self.field_name(field), value, expected))

    def raw(self, field: str) -> object:
        """The value of a field as it stands, or None."""
        self._known.add(field)
        return self._data.get(field)

    def names(self) -> list[str]:
        """The keys of a mapping whose keys are data; one that is not a name is reported and left out."""
        names = []
        for key in self._data:
            self._known.add(key)
            if check_name("", key):
                self.report(_label(key), NOT_SHOWN, f"must be {A_NAME}")
            else:
                names.append(key)
        return names

    def text(self, field: str, default: str | D = REQUIRED, *, max_length: int = 4096) -> str | D:
        """Text on one line."""
        value: Any = self.raw(field)
        problems = check_text(self.field_name(field), value, max_length=max_length)
        return self._take(field, value, default, "", problems)

    def integer(
        self,
        field: str,
        default: int | D = REQUIRED,
        *,
        at_least: int | None = None,
        at_most: int | None = None,
    ) -> int | D:
        """A whole number."""
        value: Any = self.raw(field)
        problems = check_integer(self.field_name(field), value, at_least=at_least, at_most=at_most)
        return self._take(field, value, default, 0, problems)

    def number(
        self,
        field: str,
        default: float | D = REQUIRED,
        *,
        at_least: float | None = None,
        above: float | None = None,
        at_most: float | None = None,
    ) -> float | D:
        """A finite number, as a float."""
        value: Any = self.raw(field)
        problems = check_number(self.field_name(field), value, at_least=at_least, above=above, at_most=at_most)
        return self._take(field, value if problems else float(value), default, 0.0, problems)

    def boolean(self, field: str, default: bool | D = REQUIRED) -> bool | D:
        """True or false."""
        value: Any = self.raw(field)
        return self._take(field, value, default, False, check_boolean(self.field_name(field), value))

    def choice(self, field: str, options: type[E], default: E | D = REQUIRED) -> E | D:
        """One of the values of an enumeration."""
        names = [option.value for option in options]
        value = self.raw(field)
        hint = suggestion(value, names) if isinstance(value, str) else ""
        return self._parse(field, options, default, next(iter(options)), f"one of {', '.join(names)}{hint}")

    def duration(self, field: str, default: Seconds | D = REQUIRED) -> Seconds | D:
        """A duration in seconds, written as a number or as text such as ``2h30m``."""
        return self._parse(field, parse_duration, default, 0.0, A_DURATION)

    def size(self, field: str, default: Bytes | D = REQUIRED) -> Bytes | D:
        """A size in bytes, written as a number or as text such as ``16GiB``."""
        return self._parse(field, parse_size, default, 0, A_SIZE)

    def bandwidth(self, field: str, default: BytesPerSecond | D = REQUIRED) -> BytesPerSecond | D:
        """A bandwidth in bytes per second, written as a number or as text such as ``300GB/s``."""
        return self._parse(field, parse_bandwidth, default, 1.0, A_BANDWIDTH)

    def items(self, field: str, default: tuple[object, ...] | D = REQUIRED) -> tuple[object, ...] | D:
        """The elements of a list, as they stand."""
        value: Any = self.raw(field)
        fits = isinstance(value, list | tuple)
        problems = [] if fits else [Problem(self.field_name(field), value, "must be a list")]
        return self._take(field, tuple(value) if fits else (), default, (), problems)

    def texts(
        self,
        field: str,
        default: tuple[str, ...] | D = REQUIRED,
        *,
        max_length: int = 4096,
        lines: bool = False,
    ) -> tuple[str, ...] | D:
        """A list of texts."""
        check = partial(check_text, max_length=max_length, lines=lines)
        return self._elements(field, default, "texts", check)

    def integers(self, field: str, default: tuple[int, ...] | D = REQUIRED) -> tuple[int, ...] | D:
        """A list of whole numbers."""
        return self._elements(field, default, "whole numbers", check_integer)

    def nested(self, field: str) -> Reader | None:
        """A reader over a field that is itself a mapping; None if the field is absent."""
        value = self.raw(field)
        return None if value is None else Reader(value, at=self.field_name(field), problems=self.problems)

    def nested_list(self, field: str) -> list[Reader]:
        """A reader over each element of a list of mappings."""
        return [
            Reader(element, at=f"{self.field_name(field)}[{index}]", problems=self.problems)
            for index, element in enumerate(self.items(field, ()))
        ]

    def nested_by_name(self, field: str) -> dict[str, Reader]:
        """Readers over the values of a mapping whose keys are names; a null value reads as an empty one."""
        entries = self.nested(field)
        if entries is None:
            return {}
        values = {name: entries.raw(name) for name in entries.names()}
        return {
            name: Reader({} if value is None else value, at=entries.field_name(name), problems=self.problems)
            for name, value in values.items()
        }

    def attempt(self, make: Callable[[], T]) -> T | None:
        """Build a value from what is read inside ``make``; None if anything was wrong.

        The constructor's complaints are added to the reader's, except about fields that the reader has found
        unreadable: the constructor only saw stand-ins for those. Fields that nobody asked for come last.
        """
        if not self._is_mapping:
            return None
        before = len(self.problems)
        value = None
        try:
            value = make()
        except InvalidInput as error:
            blamed = {problem.field for problem in self.problems[before:]}
            self.problems += [
                replace(problem, field=self.field_name(problem.field))
                for problem in error.problems
                if not any(self._is_within(blamed, field) for field in (problem.field, *problem.involves))
            ]
        self._report_unknown()
        return value if len(self.problems) == before else None

    def raise_problems(self) -> None:
        """Raise :class:`InvalidInput` if anything was wrong."""
        if self.problems:
            raise InvalidInput(self.problems)

    def field_name(self, field: str) -> str:
        """The full name of a field, with the names of the mappings and lists that it is in."""
        return f"{self.at}.{field}" if self.at and field else self.at or field

    def _is_within(self, blamed: Iterable[str], field: str) -> bool:
        """Is a field one of the blamed ones, or does it contain or belong to one of them?"""
        name = self.field_name(field)
        return any(
            longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}["))
            for other in blamed
            for longer, shorter in ((name, other), (other, name))
        )

    def _take(self, field: str, value: T, default: D, stand_in: T, problems: list[Problem]) -> T | D:
        """The value if all is well with it, the default if it is absent, else a problem and a stand-in."""
        if self.raw(field) is None:
            if default is not REQUIRED:
                return default
            self.report(field, NOT_SHOWN, f"is missing: it {problems[0].expected}")
            return stand_in
        self.problems += problems
        if problems:
            return stand_in if default is REQUIRED else default
        return value

    def _parse(self, field: str, parse: Callable[[Any], T], default: D, stand_in: T, expected: str) -> T | D:
        value, problems = self.raw(field), []
        parsed = stand_in
        try:
            parsed = parse(value)
        except ValueError:
            problems = [Problem(self.field_name(field), value, f"must be {expected}")]
        return self._take(field, parsed, default, stand_in, problems)

    def _elements(
        self, field: str, default: D, kind: str, check: Callable[[str, object], list[Problem]]
    ) -> tuple[Any, ...] | D:
        value, name = self.raw(field), self.field_name(field)
        if not isinstance(value, list | tuple):
            return self._take(field, (), default, (), [Problem(name, value, f"must be a list of {kind}")])
        problems = [bad for i, element in enumerate(value) for bad in check(f"{name}[{i}]", element)]
        return self._take(field, tuple(value), default, (), problems)

    def _report_unknown(self) -> None:
        unknown = [key for key in self._data if key not in self._known]
        for key in unknown[:_MAX_UNKNOWN]:
            hint = suggestion(key, self._known) if isinstance(key, str) else ""
            hint = hint or f"; the fields here are {', '.join(sorted(self._known))}"
            self.report(_label(key), NOT_SHOWN, f"is not a known field{hint}")
        if len(unknown) > _MAX_UNKNOWN:
            self.report("", NOT_SHOWN, f"has {len(unknown) - _MAX_UNKNOWN} more fields that are not known")


def read_value(data: object, read: Callable[[Reader], T | None]) -> T:
    """Read a whole value from plain data, or raise :class:`InvalidInput` with everything wrong with it."""
    reader = Reader(data)
    value = read(reader)
    reader.raise_problems()
    assert value is not None, "a reader that finds nothing wrong must build its value"
    return value


def _label(key: object) -> str:
    """A key as it can appear in the name of a field."""
    return key if isinstance(key, str) and _NAME.fullmatch(key) else show(key)
