"""Limits that depend on the time: budgets that are used up, and time limits that are near or over."""

from __future__ import annotations

from collections.abc import Iterable

from geminid.serve import records as r
from geminid.serve.livejob import LiveJob

#: A job is warned this share of its time limit before the end, in seconds …
WARNING_SHARE = 0.1

#: … and at most this long before, in seconds.
MAX_WARNING_S = 600.0


def reached(jobs: Iterable[LiveJob], now_s: float) -> list[r.Record]:
    """What follows for jobs from their limits now."""
    records: list[r.Record] = []
    for job in jobs:
        if job.wish != "run":
            continue
        if _has_spent_budget(job, now_s):
            records.append(r.JobWished(job_id=job.id, wish="cancel", by="geminid", over_budget=True))
        elif job.target is None or (left_s := time_left_s(job, now_s)) is None:
            continue
        elif left_s <= 0.0:
            records.append(r.TimeLimitReached(job_id=job.id, requeue=job.spec.requeue))
        elif not job.time.warned and left_s <= warning_s(job.spec.time_limit_s or 0.0):
            records.append(r.TimeLimitNear(job_id=job.id, left_s=round(left_s, 1)))
    return records


def time_left_s(job: LiveJob, now_s: float) -> float | None:
    """For how long a job may still have slots; None if it has no time limit."""
    limit_s = job.spec.time_limit_s
    return None if limit_s is None else limit_s - (job.executed_s(now_s) - job.time.from_s)


def warning_s(limit_s: float) -> float:
    """How long before the end of a time limit there is a warning."""
    return min(WARNING_SHARE * limit_s, MAX_WARNING_S)


def _has_spent_budget(job: LiveJob, now_s: float) -> bool:
    """Whether a running job has used all of the GPU time that it may use."""
    budget_gpu_s = job.spec.budget_gpu_s
    return budget_gpu_s is not None and job.phase.holds_slots and job.service_gpu_s(now_s) >= budget_gpu_s
