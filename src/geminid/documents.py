"""YAML and JSON text to plain data and back, and the base class of values that are written to files.

Text comes from strangers, so the YAML that is read here is the plain part of the language: mappings, lists,
text, numbers, true, false and null, as in YAML 1.2. There are no anchors, aliases or tags (a few lines of
aliases can expand to gigabytes, and tags name code), no duplicate keys (one of the two would be lost in
silence), and none of YAML 1.1's surprises: ``no`` is a text, ``12:30`` is not 750, and ``1e9`` is a number.
Keys are always texts.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final, Self

import yaml

from geminid.fields import MAX_TEXT_LENGTH, NOT_SHOWN, InvalidInput, Problem, Reader, read_value, show

MAX_DEPTH: Final = 32

_INTEGER = re.compile(r"[-+]?[0-9]{1,100}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# The parser written in C is ten times faster, where PyYAML was built with it.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Dumper(yaml.SafeDumper):
    """Writes what :func:`load_yaml` reads: quotes every text that it would take for something else."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Unusual line breaks survive only where they are escaped, in double quotes."""
    style = '"' if re.search("[\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
for _pattern, _tag in ((_INTEGER, "tag:yaml.org,2002:int"), (_FLOAT, "tag:yaml.org,2002:float")):
    _whole = re.compile(f"(?:{_pattern.pattern})$")
    _Dumper.add_implicit_resolver(_tag, _whole, list("-+.0123456789"))


def load_yaml(text: str) -> Any:
    """Read one YAML document.

    Raises:
        InvalidInput: the text is too long, is not YAML, or uses a part of YAML that is refused; one sentence,
            with line and column.
    """
    _check_length(text)
    try:
        events = yaml.parse(text, Loader=_Loader)
        return _document(events)
    except yaml.MarkedYAMLError as error:
        raise _unreadable(error.problem or "it is not YAML", error.problem_mark) from None
    except (yaml.YAMLError, UnicodeError):
        raise _unreadable("it has characters that YAML does not allow") from None


def dump_yaml(data: object) -> str:
    """Write plain data as YAML that :func:`load_yaml` reads back to the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def load_json(text: str) -> Any:
    """Read one JSON document.

    Raises:
        InvalidInput: the text is too long or too deep, is not JSON, or repeats a key; one sentence.
    """
    _check_length(text)
    try:
        return json.loads(text, object_pairs_hook=_mapping_without_duplicates, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _unreadable(f"{error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise _unreadable("it is nested too deeply") from None
    except InvalidInput:
        raise
    except ValueError:
        raise _unreadable("it has a number of absurd size") from None


def dump_json(data: object) -> str:
    """Write plain data as JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


class Document(ABC):
    """A value that can be written to YAML, JSON and plain data, and read back without loss."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read the value, reporting every problem to the reader; None if there were any."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The value as plain data: mappings, lists, texts, numbers and booleans."""

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Read the value from plain data; raises :class:`InvalidInput` with every problem."""
        return read_value(data, cls.read)

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Read the value from YAML text; raises :class:`InvalidInput` with every problem."""
        return cls.from_dict(load_yaml(text))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the value from JSON text; raises :class:`InvalidInput` with every problem."""
        return cls.from_dict(load_json(text))

    def to_yaml(self) -> str:
        """The value as YAML text."""
        return dump_yaml(self.to_dict())

    def to_json(self) -> str:
        """The value as JSON text."""
        return dump_json(self.to_dict())


def _document(events: Iterator[yaml.Event]) -> Any:
    """The data of a stream of parser events that holds one document, or none."""
    next(events)  # the start of the stream
    if isinstance(next(events), yaml.StreamEndEvent):
        return None
    value = _value(next(events), events, 0)
    next(events)  # the end of the document
    after = next(events)
    if not isinstance(after, yaml.StreamEndEvent):
        raise _unreadable("there is a second document", after.start_mark)
    return value


def _value(event: Any, events: Iterator[Any], depth: int) -> Any:
    """The data of the node that starts with an event."""
    mark = event.start_mark
    if event.anchor is not None:  # an alias has one as well
        raise _unreadable("anchors and aliases are not allowed", mark)
    if event.tag is not None:
        raise _unreadable("tags are not allowed", mark)
    if depth > MAX_DEPTH:
        raise _unreadable(f"it is nested more than {MAX_DEPTH} levels deep", mark)
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event.value) if event.implicit[0] else event.value
    if isinstance(event, yaml.SequenceStartEvent):
        return [_value(item, events, depth + 1) for item in _until(yaml.SequenceEndEvent, events)]
    mapping: dict[str, Any] = {}
    for key in _until(yaml.MappingEndEvent, events):
        if not isinstance(key, yaml.ScalarEvent):
            raise _unreadable("a key must be a simple text", key.start_mark)
        if key.value in mapping:
            raise _unreadable(f"the key {show(key.value)} appears twice", key.start_mark)
        mapping[key.value] = _value(next(events), events, depth + 1)
    return mapping


def _until(end: type[yaml.Event], events: Iterator[Any]) -> Iterator[Any]:
    while not isinstance(event := next(events), end):
        yield event


def _scalar(text: str) -> str | int | float | bool | None:
    """The value of a text without quotes, as in the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _mapping_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise _unreadable(f"the key {show(key)} appears twice")
        mapping[key] = value
    return mapping


def _refuse_constant(name: str) -> None:
    raise _unreadable(f"{name} is not a number")


def _check_length(text: str) -> None:
    if len(text) > MAX_TEXT_LENGTH:
        raise _unreadable(f"it has {len(text):,} characters, and at most {MAX_TEXT_LENGTH:,} are allowed")


def _unreadable(why: str, mark: Any = None) -> InvalidInput:
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return InvalidInput([Problem("the text", NOT_SHOWN, f"cannot be read: {why}{where}")])
