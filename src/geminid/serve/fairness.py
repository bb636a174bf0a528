"""How fairly owners are served: their share of the slots beside an equal share, and finish-time ratios of their jobs.

The finish-time ratio of a job is its completion time divided by the time that its slots × seconds would have taken on
an equal share of the cluster: all slots, divided by the number of owners who had jobs while it was there, within the
sizes that the job allows. Above 1, a share of the cluster for itself would have served it better. The estimate assumes
that a job's speed is proportional to its slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from geminid.jobstate import JobPhase
from geminid.serve.livejob import LiveJob

#: Ended jobs that are looked at, the last ones.
MAX_JOBS = 500


def shares(jobs: Sequence[LiveJob], slots: int, now_s: float) -> list[dict[str, Any]]:
    """A row for each owner."""
    ratios = finish_time_ratios(jobs, slots)
    owners = sorted({job.spec.owner or "" for job in jobs})
    active = {job.spec.owner or "" for job in jobs if not job.phase.is_terminal}
    entitled = slots / max(len(active), 1)
    rows = []
    for owner in owners:
        own = [job for job in jobs if (job.spec.owner or "") == owner]
        found = [ratios[job.id] for job in own if job.id in ratios]
        rows.append(
            {
                "owner": owner,
                "slots": sum(job.state.num_slots for job in own),
                "slot_hours": sum(job.service_gpu_s(now_s) for job in own) / 3600.0,
                "entitled_slots": entitled if owner in active else 0.0,
                "jobs_ended": len(found),
                "mean_finish_time_ratio": sum(found) / len(found) if found else None,
                "worst_finish_time_ratio": max(found, default=None),
            }
        )
    return rows


def finish_time_ratios(jobs: Sequence[LiveJob], slots: int) -> dict[str, float]:
    """The finish-time ratio of the last jobs that succeeded."""
    ended = [job for job in jobs if job.phase is JobPhase.SUCCEEDED and job.state.attained_service_gpu_s > 0.0]
    ended = sorted(ended, key=lambda job: job.state.finished_at_s or 0.0)[-MAX_JOBS:]
    begins = np.array([job.state.submitted_at_s for job in jobs])
    ends = np.array([inf if job.state.finished_at_s is None else job.state.finished_at_s for job in jobs])
    numbers = {owner: i for i, owner in enumerate({job.spec.owner for job in jobs})}
    owners = np.array([numbers[job.spec.owner] for job in jobs], dtype=int)
    ratios = {}
    for job in ended:
        begin_s, end_s = job.state.submitted_at_s, job.state.finished_at_s or 0.0
        present = owners[(begins <= end_s) & (ends >= begin_s)]
        share = slots / max(len(np.unique(present)), 1)
        most = slots if job.spec.max_slots is None else min(job.spec.max_slots, slots)
        alone_slots = min(max(share, job.spec.min_slots), max(most, job.spec.min_slots))
        alone_s = job.state.attained_service_gpu_s / alone_slots
        ratios[job.id] = (end_s - begin_s) / alone_s
    return ratios
