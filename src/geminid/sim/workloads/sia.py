"""Workloads of Sia's simulator: Pollux's columns, and optionally ``category``, what may be changed about a job.

A file without ``category`` looks like one of Pollux's, and means the same: all jobs are adaptive.
An empty cell means the same. Sia's word for a job whose batch size is fixed is ``scale-gpus``.
"""

from __future__ import annotations

from typing import Final

from geminid.job import Adaptivity
from geminid.sim.csvfile import Column, Row
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads import pollux
from geminid.sim.workloads.tables import Table, TextFile

_CATEGORIES: Final = {
    "": Adaptivity.ADAPTIVE,
    "adaptive": Adaptivity.ADAPTIVE,
    "scale-gpus": Adaptivity.FIXED_BATCH,
    "rigid": Adaptivity.RIGID,
}


def _category(text: str) -> Adaptivity:
    try:
        return _CATEGORIES[text.strip()]
    except KeyError:
        raise ValueError from None


CATEGORY: Final = Column(_category, "must be one of adaptive, scale-gpus, rigid", required=False)


def load(file: TextFile) -> Workload:
    """Load a workload, of the category that the file gives for each job."""
    return Table(file, {**pollux.COLUMNS, "category": CATEGORY}).workload(_job, unique="name")


def _job(row: Row) -> TraceJob:
    return TraceJob(
        name=row["name"],
        submit_s=row["time"],
        application=row["application"],
        requested_slots=row["num_replicas"],
        requested_batch=row["batch_size"],
        adaptivity=row.cells.get("category", Adaptivity.ADAPTIVE),
    )
