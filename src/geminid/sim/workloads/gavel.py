"""Traces of Gavel, and of Shockwave, which extends them: rigid jobs that make a number of steps.

A file without a header, one job per line, cells separated by tabs; the number of cells tells the layout. Steps are
added up over a job's GPUs: a job on 4 GPUs that is to make 100 optimiser steps has 400. A deadline is a multiple of
the job's ideal duration (-1: none). Jobs are numbered from 0 in the order of the file, as Gavel numbers them.

Shockwave's jobs may change their batch size as they go (``accordion``, ``gns``), at epochs that its traces do not hold.
They are replayed at their first batch size, with a note. Its durations follow from steps and measured throughputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Final

from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.job import Adaptivity
from geminid.sim.csvfile import POSITIVE, Column, Row
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.tables import COUNT, SECONDS, SLOTS, TEXT, Table, TextFile

_PROGRAM: Final = ("job_type", "command", "working_directory", "steps_argument", "needs_data_directory")

#: The columns of each layout, by their number.
LAYOUTS: Final[dict[int, tuple[str, ...]]] = {
    7: ("job_type", "command", "steps_argument", "needs_data_directory", "total_steps", "arrival_time", "scale_factor"),
    10: (*_PROGRAM, "total_steps", "scale_factor", "priority_weight", "slo", "arrival_time"),
    12: (*_PROGRAM, "total_steps", "scale_factor", "regime", "priority_weight", "slo", "duration", "arrival_time"),
}


def _slo(text: str) -> float | None:
    value = float(text)
    if not math.isfinite(value) or value == 0:
        raise ValueError
    return value if value > 0 else None


COLUMNS: Final = {
    "job_type": TEXT,
    "total_steps": COUNT,
    "scale_factor": SLOTS,
    "regime": TEXT,
    "priority_weight": POSITIVE,
    "slo": Column(_slo, "must be a multiple of the job's ideal duration, or -1 for no deadline"),
    "arrival_time": SECONDS,
}


def load(file: TextFile) -> Workload:
    """Load a trace in any of the three layouts."""
    cells = file.first_line.count("\t") + 1
    if cells not in LAYOUTS:
        layouts = "7, 10 or, in Shockwave's, 12"
        expected = f"has a first line of {cells} cells separated by tabs, but a job of Gavel's has {layouts}"
        raise InvalidInput([Problem(file.name, NOT_SHOWN, expected)])
    table = Table(file, COLUMNS, header=LAYOUTS[cells], tabs=True)
    numbers = count()
    return table.workload(lambda row: _job(row, numbers), notes=_notes(table.rows))


def _job(row: Row, numbers: Iterator[int]) -> TraceJob:
    return TraceJob(
        name=f"job-{next(numbers)}",
        submit_s=row["arrival_time"],
        application=row["job_type"],
        requested_slots=row["scale_factor"],
        steps=row["total_steps"],
        weight=row.cells.get("priority_weight", 1.0),
        slo_factor=row.cells.get("slo"),
        adaptivity=Adaptivity.RIGID,
    )


def _notes(rows: list[Row]) -> list[str]:
    regimes = Counter(row.cells.get("regime", "static") for row in rows)
    dynamic = ", ".join(f"{jobs} {regime}" for regime, jobs in sorted(regimes.items()) if regime != "static")
    return [f"Jobs that change their batch size as they go keep the first one: {dynamic}."] if dynamic else []
