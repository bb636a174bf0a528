"""Workloads of Rubick's simulator: jobs that make steps under an execution plan, on slots that may change.

A CSV file with the columns ``name``, ``submission_time`` (seconds), ``application``, ``num_gpus``, ``exec_plan`` (the
plan that the user chose), ``steps`` and ``is_sla`` (1: guaranteed; others are best-effort). Its other columns say
nothing that is needed to replay it. Speeds are those of the profiles (``--profiles``).
"""

from __future__ import annotations

from typing import Final

from geminid.executionplan import ExecutionPlan
from geminid.job import Adaptivity
from geminid.sim.csvfile import COUNT, TEXT, Column, Row
from geminid.sim.profiles.rubick import plan_named
from geminid.sim.workload import TraceJob, Workload
from geminid.sim.workloads.tables import NAME, SECONDS, SLOTS, Table, TextFile


def _plan(text: str) -> ExecutionPlan:
    return plan_named(text.strip())


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text.strip()] if text.strip() in ("0", "1") else _refuse()


def _refuse() -> bool:
    raise ValueError


COLUMNS: Final = {
    "name": NAME,
    "submission_time": SECONDS,
    "application": TEXT,
    "num_gpus": SLOTS,
    "exec_plan": Column(_plan, "must be ga, gc, zero-dp, zero-offload, or three digits from 1 to 9"),
    "steps": COUNT,
    "is_sla": Column(_flag, "must be 0 or 1"),
}


def load(file: TextFile) -> Workload:
    """Load a workload; jobs that are not guaranteed are opportunistic."""
    return Table(file, COLUMNS).workload(_job, unique="name")


def _job(row: Row) -> TraceJob:
    return TraceJob(
        name=row["name"],
        submit_s=row["submission_time"],
        requested_slots=row["num_gpus"],
        application=row["application"],
        steps=row["steps"],
        plan=row["exec_plan"].name,
        adaptivity=Adaptivity.FIXED_BATCH,
        opportunistic=not row["is_sla"],
    )
