"""What all commands print with: tables for people, JSON for programs, one sentence for mistakes.

Every row of a table is one line. Where the terminal is too narrow for all columns, the least important ones are left
out and long texts are shortened with "…"; ``--wide``, which every command with a table has, shows everything.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

#: Width of sentences that go to a file or a pipe, in characters.
FILE_WIDTH = 150

#: Width of tables that go to a file or a pipe, in characters, unless ``$COLUMNS`` or ``--wide`` asks for another.
FILE_TABLE_WIDTH = 80

#: Width of a table with ``--wide``: any.
UNLIMITED = 1_000_000

#: Below this width, in characters, tables become lines with one cell each.
NARROWEST_TABLE = 40

#: Texts are not made shorter than this many characters, unless all else is left out.
SHORTEST_TEXT = 12

#: Between two columns.
GAP = "  "

#: For results.
console = Console(highlight=False, width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else FILE_WIDTH)

#: For progress and mistakes, so that standard output holds nothing but results.
error_console = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Print plain data as JSON on standard output; numbers that JSON cannot hold become null."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def gap_percent(gap: float) -> str:
    """How far a decision may be from the best, without the last bits of a float."""
    return f"{max(0.0, round(100 * gap, 6)):.2g} %"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and how it is shortened where there is little room.

    ``drop``: 0 stays always; of the others those with the highest number are left out first. Columns of text are
    aligned to the left. Cells may be shortened to ``least`` characters; None: not while anything else can give way.
    """

    name: str
    drop: int = 0
    text: bool = False
    least: int | None = None


#: Whether this command was called with ``--wide``.
_wide: ContextVar[bool] = ContextVar("wide", default=False)


def _remember_wide(wide: bool) -> bool:
    _wide.set(wide)
    return wide


#: For every command that prints a table.
WideOption = Annotated[
    bool, typer.Option("--wide", callback=_remember_wide, help="Print tables with all columns, whatever the width.")
]

#: For every command that prints a table or a document.
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def table_width() -> int:
    """How wide tables may be: as the terminal or ``$COLUMNS`` says, 80 in files and pipes, any with ``--wide``."""
    if _wide.get():
        return UNLIMITED
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return console.width if console.is_terminal else FILE_TABLE_WIDTH


def print_table(
    title: str, header: Sequence[str | Column], rows: Iterable[Sequence[str]], *, text_columns: int = 1
) -> None:
    """Print a table, one line for each row, that is no wider than ``table_width``.

    Of headers that are plain strings, the first ``text_columns`` are of text; the first stays always, and the others
    are left out from the right.
    """
    columns = [
        name
        if isinstance(name, Column)
        else Column(name, i, i < text_columns, SHORTEST_TEXT if i < text_columns else None)
        for i, name in enumerate(header)
    ]
    cells, width = [list(row) for row in rows], table_width()
    if title:
        console.print(f"[bold]{title}[/]", width=min(width, max(console.width, 1)) if width < UNLIMITED else None)
    if width < NARROWEST_TABLE:
        _print_records(columns, cells)
        return
    drawn, left_out = draw_table(columns, cells, width)
    console.print(drawn, soft_wrap=True)
    if left_out:
        note = f"not shown here: {', '.join(left_out)} (--wide shows all)"
        console.print(f"[dim]{note}[/]", width=min(width, console.width))
    console.print()


def draw_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> tuple[Text, list[str]]:
    """A table of this width at most, and the headers of the columns that had to be left out, but for empty ones."""
    texts = [[Text.from_markup(cell.replace("\n", " ")) for cell in row] for row in rows]
    longest = [max((row[i].cell_len for row in texts), default=0) for i in range(len(columns))]
    widths = fit_columns(columns, longest, width)
    drawn = Text(no_wrap=True)
    for number, line in enumerate(_header_lines(columns, widths)):
        drawn.append("\n" if number else "").append(line.rstrip(), style="bold")
    drawn.append("\n" + GAP.join("─" * room for room in widths.values()), style="dim")
    for row in texts:
        drawn.append("\n")
        for place, (i, room) in enumerate(widths.items()):
            cell = row[i]
            if cell.cell_len > room:
                cell.truncate(room, overflow="ellipsis")
            padding = " " * (room - cell.cell_len)
            is_last = place == len(widths) - 1
            drawn.append(GAP if place else "")
            if columns[i].text:
                drawn.append_text(cell).append("" if is_last else padding)
            else:
                drawn.append(padding).append_text(cell)
    return drawn, [column.name for i, column in enumerate(columns) if i not in widths and longest[i]]


def fit_columns(columns: Sequence[Column], longest: Sequence[int], width: int) -> dict[int, int]:
    """Which columns are shown, and how wide, given their longest cells: never wider than ``width`` in all.

    Columns are left out before texts become shorter than their ``least``. What stays always is cut, if it must be.
    """
    shown = list(range(len(columns)))
    smallest = [
        max(_longest_word(column.name), longest[i] if column.least is None else min(longest[i], column.least), 1)
        for i, column in enumerate(columns)
    ]

    def spare(widths: Sequence[int]) -> int:
        return width - sum(widths[i] for i in shown) - len(GAP) * (len(shown) - 1)

    while spare(smallest) < 0 and len(shown) > 1 and (droppable := [i for i in shown if columns[i].drop]):
        shown.remove(max(droppable, key=lambda i: (not longest[i], columns[i].drop, i)))  # empty ones first
    widths = {i: smallest[i] for i in shown}
    room = spare(smallest)
    while room < 0:
        widest = max(widths, key=lambda i: (columns[i].least is not None, widths[i]) if widths[i] > 1 else (False, 0))
        widths[widest] -= 1
        room += 1
    while room > 0 and (short := [i for i in shown if widths[i] < longest[i]]):
        widths[min(short, key=lambda i: widths[i])] += 1
        room -= 1
    return _with_lower_headers(columns, widths, room)


def _with_lower_headers(columns: Sequence[Column], widths: dict[int, int], room: int) -> dict[int, int]:
    """The widths with the room that is left given to the headers that are broken into most lines."""
    waiting = set(widths)
    while waiting:
        tallest = max(waiting, key=lambda i: (len(_broken(columns[i].name, widths[i])), -i))
        height = len(_broken(columns[tallest].name, widths[tallest]))
        wider = range(widths[tallest] + 1, widths[tallest] + room + 1) if height > 1 else range(0)
        enough = next((width for width in wider if len(_broken(columns[tallest].name, width)) < height), None)
        if enough is None:
            waiting.remove(tallest)
        else:
            room -= enough - widths[tallest]
            widths[tallest] = enough
    return widths


def _header_lines(columns: Sequence[Column], widths: dict[int, int]) -> list[str]:
    """The headers, broken between words where their columns are narrow; short ones stand on the last line."""
    broken = {i: _broken(columns[i].name, room) for i, room in widths.items()}
    height = max(map(len, broken.values()), default=0)
    lines = []
    for number in range(height):
        parts = []
        for i, room in widths.items():
            words = broken[i]
            place = number - (height - len(words))
            part = words[place] if place >= 0 else ""
            padding = " " * (room - cell_len(part))
            parts.append(part + padding if columns[i].text else padding + part)
        lines.append(GAP.join(parts))
    return lines


def _broken(name: str, room: int) -> list[str]:
    """A header in lines of at most ``room`` characters."""
    lines = [""]
    for word in name.split():
        joined = f"{lines[-1]} {word}".strip()
        if cell_len(joined) <= room:
            lines[-1] = joined
        else:
            lines.append(word[:room])
    return [line for line in lines if line] or [""]


def _longest_word(name: str) -> int:
    return max(map(cell_len, name.split()), default=0)


def _print_records(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            console.print(f"{column.name}: {cell}" if column.name else cell, width=table_width())
        console.print()
