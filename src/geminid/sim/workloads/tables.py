"""Read jobs from text files with one job per line: all mistakes at once, with file, line and column.

A loader names the columns of its format and says how a row becomes a job; the rest is here, the same for all formats:
byte-order marks and Windows line ends are accepted, blank lines and columns that nobody asked for are passed over,
jobs are sorted by their submission, and no two of them have the same name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, Self

from geminid.fields import A_NAME, NOT_SHOWN, InvalidInput, Problem, check_name, check_text, suggestion
from geminid.nodes import MAX_SLOTS
from geminid.sim.csvfile import MAX_PROBLEMS, Column, Row
from geminid.sim.workload import TraceJob, Workload

#: Larger files are refused: a simulation of millions of jobs would not fit into memory either.
MAX_BYTES: Final = 256 * 2**20
#: About 300 years; whatever is longer is a mistake of units.
MAX_SECONDS: Final = 1e10
#: Steps and samples are counted in floating point later on, where larger numbers are not exact.
MAX_COUNT: Final = 10**15


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file that has been read: its name, for messages, and its text."""

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of UTF-8 text, with or without a byte-order mark, that holds more than blanks."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InvalidInput([Problem(str(path), NOT_SHOWN, f"cannot be read ({why})")]) from None
        if len(data) > MAX_BYTES:
            limit = f"has more than the {MAX_BYTES // 2**20} MiB that a workload may have"
            raise InvalidInput([Problem(path.name, NOT_SHOWN, limit)])
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InvalidInput([Problem(path.name, NOT_SHOWN, "is not a text file in UTF-8")]) from None
        if not text or text.isspace():
            raise InvalidInput([Problem(path.name, NOT_SHOWN, "is empty")])
        return cls(path.name, text)

    @property
    def stem(self) -> str:
        """The name without its extension."""
        return PurePath(self.name).stem

    @property
    def suffix(self) -> str:
        """The extension in lower case, with its dot."""
        return PurePath(self.name).suffix.lower()

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in io.StringIO(self.text, newline="") if not line.isspace()), "").rstrip("\r\n")


# --- Columns ---


def whole_number(at_most: int) -> Column:
    """A column of whole numbers from 1 on; ``4.0`` is one as well, as programs write it."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            number = float(text)
            if not number.is_integer():
                raise
            value = int(number)
        if not 1 <= value <= at_most:
            raise ValueError
        return value

    return Column(parse, f"must be a whole number from 1 to {at_most}")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= MAX_SECONDS:  # nor is NaN
        raise ValueError
    return value


def _seconds_above_zero(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise ValueError
    return value


def _name(text: str) -> str:
    name = text.strip()
    if check_name("", name):
        raise ValueError
    return name


def _text(text: str) -> str:
    stripped = text.strip()
    if not stripped or check_text("", stripped):
        raise ValueError
    return stripped


SECONDS: Final = Column(_seconds, f"must be a number of seconds from 0 to {MAX_SECONDS:g}")
SECONDS_ABOVE_ZERO: Final = Column(
    _seconds_above_zero, f"must be a number of seconds above 0 and at most {MAX_SECONDS:g}"
)
SLOTS: Final = whole_number(MAX_SLOTS)
COUNT: Final = whole_number(MAX_COUNT)
NAME: Final = Column(_name, f"must be {A_NAME}")
TEXT: Final = Column(_text, "must be a text without control characters")


# --- Tables ---


class Table:
    """The rows of a file, and everything that is wrong with them.

    Args:
        file: The file.
        columns: How to read the columns that matter.
        header: The names of the columns, where the file has no line that names them.
        tabs: Are cells separated by tabs, and quotes nothing special?
        closed: Is a column that is not among ``columns`` a mistake?
    """

    def __init__(
        self,
        file: TextFile,
        columns: Mapping[str, Column],
        *,
        header: Sequence[str] | None = None,
        tabs: bool = False,
        closed: bool = False,
    ) -> None:
        self.file = file
        self._problems: list[tuple[int, Problem]] = []
        self.rows: list[Row] = []
        lines = _numbered_lines(file, tabs)
        if header is None:
            line, cells = next(lines, (1, []))
            if not cells:
                raise InvalidInput([Problem(file.name, NOT_SHOWN, "is empty")])
            header = [cell.strip() for cell in cells]
            self._check_header(line, header, columns, closed)
        self._read(lines, header, columns)

    def workload(
        self,
        make: Callable[[Row], TraceJob | None],
        *,
        unique: str | None = None,
        notes: Iterable[str] = (),
    ) -> Workload:
        """The workload of the jobs that ``make`` makes of the rows, where it makes one.

        ``make`` may raise InvalidInput about columns of its row. ``unique`` is the column that names the jobs. Raises
        InvalidInput with everything that is wrong with the file, up to MAX_PROBLEMS.
        """
        jobs: list[TraceJob] = []
        lines: dict[str, int] = {}
        for row in self.rows:
            try:
                job = make(row)
            except InvalidInput as error:
                for problem in error.problems:
                    self._report(row.line, problem.field, problem.value, problem.expected)
                continue
            if job is None:
                continue
            if unique and lines.setdefault(job.name, row.line) != row.line:
                first = f"must be the name of a single job: line {lines[job.name]} has it as well"
                self._report(row.line, unique, job.name, first)
            jobs.append(job)
        if not (jobs or self._problems):
            self._problems.append((0, Problem(self.file.name, NOT_SHOWN, "holds no jobs")))
        self._raise_problems()
        return Workload(self.file.stem, in_order(jobs), tuple(notes))

    def _check_header(self, line: int, header: list[str], columns: Mapping[str, Column], closed: bool) -> None:
        for name, column in columns.items():
            if column.required and name not in header:
                self._report(line, None, NOT_SHOWN, f"has no column {name!r}{suggestion(name, header)}")
            if header.count(name) > 1:
                self._report(line, None, NOT_SHOWN, f"has {header.count(name)} columns {name!r}")
        unknown = [name for name in header if name not in columns] if closed else []
        for name in unknown[:MAX_PROBLEMS]:
            hint = suggestion(name, columns) or f"; there are {', '.join(columns)}"
            self._report(line, None, NOT_SHOWN, f"has a column {name[:60]!r} that is not known{hint}")
        self._raise_problems()

    def _read(
        self, lines: Iterator[tuple[int, list[str]]], header: Sequence[str], columns: Mapping[str, Column]
    ) -> None:
        """Keep the rows that can be read, and report the others, until that is enough."""
        wanted = [(i, name, columns[name].parse) for i, name in enumerate(header) if name in columns]
        for line, cells in lines:
            before = len(self._problems)
            if len(cells) > len(header):
                self._report(line, None, NOT_SHOWN, f"has {len(cells)} cells, but there are {len(header)} columns")
            values: dict[str, Any] = {}
            for i, name, parse in wanted:
                try:
                    values[name] = parse(cells[i])
                except IndexError:
                    if columns[name].required:
                        only = f"is missing: the line has only {len(cells)} cells"
                        self._report(line, name, NOT_SHOWN, only)
                except (ValueError, OverflowError):
                    self._report(line, name, cells[i], columns[name].expected)
            if len(self._problems) == before:
                self.rows.append(Row(line, values))
            elif len(self._problems) > MAX_PROBLEMS:
                break

    def _report(self, line: int, column: str | None, value: object, expected: str) -> None:
        where = f"{self.file.name}, line {line}" + (f", column {column}" if column else "")
        self._problems.append((line, Problem(where, value, expected)))

    def _raise_problems(self) -> None:
        raise_first(self.file, [problem for _, problem in sorted(self._problems, key=lambda entry: entry[0])])


def in_order(jobs: Iterable[TraceJob]) -> tuple[TraceJob, ...]:
    """Jobs by their submission; those of the same moment stay in the order of the file."""
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def raise_first(file: TextFile, problems: Sequence[Problem]) -> None:
    """Raise InvalidInput if there are problems, with the first MAX_PROBLEMS and a word about the others."""
    if not problems:
        return
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        shown.append(Problem(file.name, NOT_SHOWN, f"has more mistakes than these first {MAX_PROBLEMS}"))
    raise InvalidInput(shown)


def _numbered_lines(file: TextFile, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file that are not blank, as cells, with their numbers."""
    if tabs:
        reader = csv.reader(io.StringIO(file.text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(io.StringIO(file.text, newline=""), strict=True)
    try:
        for cells in reader:
            if any(cell and not cell.isspace() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        where = f"{file.name}, line {reader.line_num}"
        raise InvalidInput([Problem(where, NOT_SHOWN, f"cannot be read ({error})")]) from None
