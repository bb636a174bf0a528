"""What all commands print with: tables for people, JSON for programs, one sentence for mistakes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

#: Width of tables that go to a file or a pipe, where there is no screen to fit.
FILE_WIDTH = 150

#: For results.
console = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)

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


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> None:
    """Print a table whose first ``text_columns`` columns are text and whose others are right-aligned numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < text_columns else "right", min_width=6)
    for row in rows:
        table.add_row(*row[:text_columns], *(cell.replace(" ", "\u00a0") for cell in row[text_columns:]))
    console.print(table)
    console.print()
