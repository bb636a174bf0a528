"""Options of policies: what their annotated types allow, read from text and said in words.

A policy's public dataclass fields are its options. Where a number must lie in a range, the annotation says so:
``population: Annotated[int, AtLeast(2)] = 100``. An option that is a document is written as the path of its file.
"""

from __future__ import annotations

import math
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from geminid.documents import Document


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A bound that a number may reach."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value lies within it."""
        return value >= self.bound

    def __str__(self) -> str:
        return f"at least {self.bound:g}"


@dataclass(frozen=True, slots=True)
class AtMost:
    """An upper bound that a number may reach."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value lies within it."""
        return value <= self.bound

    def __str__(self) -> str:
        return f"at most {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Above:
    """A bound that a number may not reach."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value lies within it."""
        return value > self.bound

    def __str__(self) -> str:
        return f"above {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Not:
    """A value that makes no sense."""

    excluded: float

    def holds(self, value: float) -> bool:
        """Whether it is another one."""
        return value != self.excluded

    def __str__(self) -> str:
        return f"other than {self.excluded:g}"


@dataclass(frozen=True, slots=True)
class OrInfinite:
    """A mark: the number may also be ``inf``."""

    def holds(self, value: float) -> bool:
        """Any value lies within it."""
        return True

    def __str__(self) -> str:
        return "inf included"


#: Seconds, GPU-seconds and the like.
Positive = Annotated[float, Above(0.0)]


def document_of(kind: Any) -> type[Document] | None:
    """The kind of document that an option is, if it is one."""
    for part in (kind, *typing.get_args(kind)):
        if isinstance(part, type) and issubclass(part, Document):
            return part
    return None


def parse(text: str, kind: Any) -> Any:
    """Read a value of an annotated type; raises ValueError if the text is none."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        infinite = text.lower() == "inf" and any(isinstance(limit, OrInfinite) for limit in arguments[1:])
        value = math.inf if infinite else parse(text, arguments[0])
        if not all(limit.holds(value) for limit in arguments[1:]):
            raise ValueError
        return value
    if origin in (typing.Union, types.UnionType):
        if type(None) in arguments and text.lower() == "none":
            return None
        return parse(text, next(a for a in arguments if a is not type(None)))
    if origin is tuple:
        return tuple(parse(part, arguments[0]) for part in text.split(";"))
    if origin is typing.Literal:
        if text not in arguments:
            raise ValueError
        return text
    if kind is bool:
        if text.lower() not in ("true", "false", "on", "off"):
            raise ValueError
        return text.lower() in ("true", "on")
    value = kind(text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return value


def describe(kind: Any) -> str:
    """A type in words."""
    if document_of(kind) is not None:
        return "a YAML or JSON file"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return " ".join([describe(arguments[0]), " and ".join(map(str, arguments[1:]))])
    if origin in (typing.Union, types.UnionType):
        inner = describe(next(a for a in arguments if a is not type(None)))
        return f"{inner} or none" if type(None) in arguments else inner
    if origin is tuple:
        return f"{describe(arguments[0])}, several separated by ';'"
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(kind, str(kind))
