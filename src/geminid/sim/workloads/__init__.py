"""Workloads from files, one loader per format; see ``docs/workloads.md``."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from geminid.fields import NOT_SHOWN, InvalidInput, Problem, show, suggestion
from geminid.sim.csvfile import Column
from geminid.sim.workload import Workload
from geminid.sim.workloads import gavel, native, philly, pollux, rubick, sia, tiresias
from geminid.sim.workloads.native import write_native
from geminid.sim.workloads.tables import TextFile

__all__ = ["FORMATS", "Format", "guess_format", "load_workload", "write_native"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of workload files. A CSV file that has all the ``columns`` is taken for one of this format."""

    name: str
    description: str
    load: Callable[[TextFile], Workload]
    columns: frozenset[str]


def _required(columns: Mapping[str, Column]) -> frozenset[str]:
    return frozenset(name for name, column in columns.items() if column.required)


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Format("native", "Geminid's own, YAML or CSV", native.load, _required(native.COLUMNS)),
            Format("pollux", "CSV of Pollux's simulator: adaptive jobs", pollux.load, _required(pollux.COLUMNS)),
            Format("sia", "Pollux's columns and a category", sia.load, _required(pollux.COLUMNS) | {"category"}),
            Format("gavel", "traces of Gavel and Shockwave, separated by tabs", gavel.load, frozenset()),
            Format("tiresias", "CSV of Tiresias' simulator: opaque jobs", tiresias.load, _required(tiresias.COLUMNS)),
            Format(
                "rubick", "CSV of Rubick's simulator: jobs with execution plans", rubick.load, _required(rubick.COLUMNS)
            ),
            Format("philly", "CSV of the Philly trace: opaque jobs", philly.load, _required(philly.COLUMNS)),
        )
    }
)


def load_workload(path: Path, format: str | None = None) -> Workload:
    """Load a workload from a file.

    Args:
        path: The file.
        format: A name in FORMATS; guessed from the file when left out.

    Raises:
        InvalidInput: the file cannot be used, with everything that is wrong with it, up to a limit.
    """
    if format is not None and format not in FORMATS:
        expected = f"must be one of {', '.join(FORMATS)}{suggestion(format, FORMATS)}"
        raise InvalidInput([Problem("format", format, expected)])
    file = TextFile.read(Path(path))
    return FORMATS[guess_format(file) if format is None else format].load(file)


def guess_format(file: TextFile) -> str:
    """The format of a file: by its columns, or, where there is no header, by its extension or its layout.

    Pollux's columns are taken for Pollux's even where the file is one of Sia's without a category: that is the same.

    Raises:
        InvalidInput: the file fits no format, or several; one sentence.
    """
    if native.is_yaml(file):
        return "native"
    first = file.first_line
    if file.suffix == ".trace" or first.count("\t") + 1 in gavel.LAYOUTS:
        return "gavel"
    header = {cell.strip() for cell in next(csv.reader([first[:10_000]]), [])}
    fitting = [entry.name for entry in FORMATS.values() if entry.columns and entry.columns <= header]
    if "sia" in fitting:
        fitting.remove("pollux")
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        fits = f"could be in the format {' or '.join(fitting)}: say which"
        raise InvalidInput([Problem(file.name, NOT_SHOWN, fits)])
    nearest = max(FORMATS.values(), key=lambda entry: len(entry.columns & header))
    missing = nearest.columns - header
    hint = (
        f"; for {nearest.name} it lacks {', '.join(sorted(missing))}" if 2 * len(missing) < len(nearest.columns) else ""
    )
    expected = f"fits none of the formats {', '.join(FORMATS)}: its first line is {show(first)}{hint}"
    raise InvalidInput([Problem(file.name, NOT_SHOWN, expected)])
