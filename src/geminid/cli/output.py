"""What all commands print with: tables for people, JSON for programs, one sentence for mistakes."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Width of tables that go to a file or a pipe, where there is no screen to fit and ``$COLUMNS`` says nothing.
FILE_WIDTH = 150

#: Below this width, tables become lines.
NARROWEST_TABLE = 60

#: In a table, text is folded between words, and within a word that is longer than this.
WIDEST_WORD = 16

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


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> None:
    """Print a table whose first ``text_columns`` columns are text and whose others are right-aligned numbers.

    Where it is narrow, texts are folded and headers broken between words; numbers stay whole. Where it is too
    narrow for that, every cell gets a line of its own, with its header.
    """
    rows = [[*row[:text_columns], *(cell.replace(" ", "\u00a0") for cell in row[text_columns:])] for row in rows]
    if _print_whole(title, header, rows, text_columns):
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, name in enumerate(header):
        is_text = i < text_columns
        longest = max((_longest_word(row[i]) for row in rows), default=0)
        least = max(6, _longest_word(name), min(longest, WIDEST_WORD) if is_text else longest)
        table.add_column(name, justify="left" if is_text else "right", min_width=least, overflow="fold")
    for row in rows:
        table.add_row(*row)
    least_width = sum(column.min_width or 0 for column in table.columns) + 3 * len(header) + 1
    if console.width < max(NARROWEST_TABLE, least_width):
        _print_records(title, header, rows)
    else:
        console.print(table)
        console.print()


def _print_whole(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> bool:
    """Print a table in which nothing has to be folded as Rich would, but many times faster; whether there was room."""
    plain = [[_plain(cell) for cell in row] for row in rows]
    shown = [list(header), *plain]
    widths = [max(6, *(cell_len(row[i]) for row in shown)) for i in range(len(header))]
    whole = max(NARROWEST_TABLE, cell_len(title), sum(widths) + 3 * len(header) + 1)
    if console.width < whole or any("\n" in cell for row in shown for cell in row):
        return False

    def line(row: Sequence[str], bare: Sequence[str], edge: str, style: str = "") -> str:
        padded = []
        for i, (cell, seen) in enumerate(zip(row, bare, strict=True)):
            room = " " * (widths[i] - cell_len(seen))
            filled = cell + room if i < text_columns else room + cell
            padded.append(f" [{style}]{filled}[/] " if style else f" {filled} ")
        return edge + edge.join(padded) + edge

    def rule(left: str, fill: str, between: str, right: str) -> str:
        return left + between.join(fill * (width + 2) for width in widths) + right

    lines = [
        f"[bold]{title}[/]",
        rule("┏", "━", "┳", "┓"),
        line(header, header, "┃", "bold"),
        rule("┡", "━", "╇", "┩"),
        *(line(row, bare, "│") for row, bare in zip(rows, plain, strict=True)),
        rule("└", "─", "┴", "┘"),
    ]
    console.print("\n".join(lines), soft_wrap=True)
    console.print()
    return True


def _plain(cell: str) -> str:
    """A cell as it is seen."""
    return Text.from_markup(cell).plain if "[" in cell or ":" in cell else cell


def _longest_word(cell: str) -> int:
    """How wide a cell is at least, if it is broken at spaces only (those of numbers do not break)."""
    return max((cell_len(word) for word in Text.from_markup(cell).plain.split(" ")), default=0)


def _print_records(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console.print(f"[bold]{title}[/]")
    for row in rows:
        for name, cell in zip(header, row, strict=True):
            console.print(f"{name}: {cell}" if name else cell)
        console.print()
