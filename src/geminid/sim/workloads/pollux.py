"""Workloads of Pollux's simulator: adaptive jobs of known applications.

A CSV file with the columns ``name``, ``time`` (of submission, in seconds), ``application``, ``num_replicas`` and
``batch_size``. The last two are what the user asked for, which matters to schedulers that do not tune jobs.
"""

from __future__ import annotations

from typing import Final

from geminid.sim.csvfile import Row
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.tables import COUNT, NAME, SECONDS, SLOTS, TEXT, Table, TextFile

COLUMNS: Final = {"name": NAME, "time": SECONDS, "application": TEXT, "num_replicas": SLOTS, "batch_size": COUNT}


def load(file: TextFile) -> Workload:
    """Load a workload; every job is adaptive."""
    return Table(file, COLUMNS).workload(_job, unique="name")


def _job(row: Row) -> TraceJob:
    return TraceJob(
        name=row["name"],
        submit_s=row["time"],
        application=row["application"],
        requested_slots=row["num_replicas"],
        requested_batch=row["batch_size"],
    )
