"""Microsoft's Philly trace as Pollux's authors condensed it: opaque jobs that hold a fixed number of GPUs.

A CSV file with the columns ``timestamp`` (a date and time; only differences between them matter), ``duration`` (in
seconds), ``num_gpus`` and, optionally, ``cluster``, the virtual cluster, which becomes the jobs' owner. Rows need not
be in order; submission times count from the earliest. A job of duration 0 never ran: it is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Final

from geminid.fields import check_text
from geminid.job import Adaptivity
from geminid.sim.csvfile import Column, Row
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.tables import SECONDS, SLOTS, Table, TextFile

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _timestamp(text: str) -> float:
    """Seconds since 1970; a time without a zone is taken for UTC."""
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds()


def _cluster(text: str) -> str:
    cluster = text.strip()
    if check_text("", cluster):
        raise ValueError
    return cluster


COLUMNS: Final = {
    "timestamp": Column(_timestamp, "must be a date and time such as 2017-10-09 07:01:55"),
    "duration": SECONDS,
    "num_gpus": SLOTS,
    "cluster": Column(_cluster, "must be a text without control characters", required=False),
}


def load(file: TextFile) -> Workload:
    """Load a trace of rigid jobs, which are numbered from 0 in the order of the file."""
    table = Table(file, COLUMNS)
    start = min((row["timestamp"] for row in table.rows), default=0.0)
    numbers = count()
    never_ran = sum(row["duration"] == 0 for row in table.rows)
    notes = [f"{never_ran} jobs of duration 0 were left out."] if never_ran else []
    return table.workload(lambda row: _job(row, start, numbers), notes=notes)


def _job(row: Row, start: float, numbers: Iterator[int]) -> TraceJob | None:
    number = next(numbers)
    if row["duration"] == 0:
        return None
    return TraceJob(
        name=f"job-{number}",
        submit_s=row["timestamp"] - start,
        requested_slots=row["num_gpus"],
        duration_s=row["duration"],
        adaptivity=Adaptivity.RIGID,
        owner=row.cells.get("cluster", ""),
    )
