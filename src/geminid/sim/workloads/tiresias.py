"""Traces of Tiresias' simulator: opaque jobs that hold a fixed number of GPUs for a known time.

A CSV file with the columns ``job_id``, ``num_gpu``, ``submit_time`` and ``duration`` (both in seconds; the duration is
that of a run without interruption). Its other columns (``iterations``, ``model_name``, ``interval``) say nothing that
is needed to replay it.
"""

from __future__ import annotations

from typing import Final

from geminid.job import Adaptivity
from geminid.sim.csvfile import Row
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.tables import NAME, SECONDS, SECONDS_ABOVE_ZERO, SLOTS, Table, TextFile

COLUMNS: Final = {"job_id": NAME, "num_gpu": SLOTS, "submit_time": SECONDS, "duration": SECONDS_ABOVE_ZERO}


def load(file: TextFile) -> Workload:
    """Load a trace of rigid jobs, named by their identifiers."""
    return Table(file, COLUMNS).workload(_job, unique="job_id")


def _job(row: Row) -> TraceJob:
    return TraceJob(
        name=row["job_id"],
        submit_s=row["submit_time"],
        requested_slots=row["num_gpu"],
        duration_s=row["duration"],
        adaptivity=Adaptivity.RIGID,
    )
