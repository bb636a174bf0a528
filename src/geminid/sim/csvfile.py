"""Read CSV files whose every bad cell is reported with file, line, column and what would be right."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geminid.fields import NOT_SHOWN, InvalidInput, Problem, suggestion

#: Reporting stops here: a file in the wrong format has as many mistakes as cells.
MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Column:
    """How to read a column: ``parse`` raises ValueError on a cell that is not ``expected``."""

    parse: Callable[[str], Any]
    expected: str
    required: bool = True


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


def _non_negative(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


def _count(text: str) -> int:
    value = float(text)
    if not (value.is_integer() and value >= 1):
        raise ValueError
    return int(value)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


POSITIVE = Column(_positive, "must be a positive number")
NON_NEGATIVE = Column(_non_negative, "must be a number that is not negative")
COUNT = Column(_count, "must be a whole number of at least 1")
TEXT = Column(_text, "must not be empty")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file: its cells by column, and its number for messages about it."""

    line: int
    cells: Mapping[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]


def read_csv(path: Path, columns: Mapping[str, Column]) -> list[Row]:
    """Read the named columns of a file with a header; other columns are passed over.

    Raises InvalidInput with every problem found, up to MAX_PROBLEMS.
    """
    problems: list[Problem] = []
    rows: list[Row] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            for name, column in columns.items():
                if column.required and name not in header:
                    hint = suggestion(name, header)
                    problems.append(Problem(f"{path.name}, line 1", NOT_SHOWN, f"has no column {name!r}{hint}"))
            if problems:
                raise InvalidInput(problems)
            wanted = [(i, name, columns[name]) for i, name in enumerate(header) if name in columns]
            for cells in reader:
                if cells:
                    rows.append(_row(path, reader.line_num, cells, wanted, problems))
                if len(problems) >= MAX_PROBLEMS:
                    break
    except OSError as error:
        raise InvalidInput([Problem(str(path), NOT_SHOWN, f"cannot be read ({error.strerror})")]) from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput([Problem(str(path), NOT_SHOWN, "is not a CSV file in UTF-8")]) from None
    if problems:
        raise InvalidInput(problems)
    return rows


def _row(
    path: Path, line: int, cells: list[str], wanted: list[tuple[int, str, Column]], problems: list[Problem]
) -> Row:
    values = {}
    for i, name, column in wanted:
        where = f"{path.name}, line {line}, column {name}"
        if i >= len(cells):
            problems.append(Problem(where, NOT_SHOWN, f"is missing: the line has only {len(cells)} cells"))
            continue
        try:
            values[name] = column.parse(cells[i])
        except (ValueError, OverflowError):
            problems.append(Problem(where, cells[i], column.expected))
    return Row(line, values)
