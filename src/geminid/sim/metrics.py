"""What a simulation amounts to: the numbers that papers compare, per run and per job."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from geminid.sim.oracle import mixed_duration_s
from geminid.sim.result import Result
from geminid.sim.simjob import SimJob
from geminid.sim.tenants import tenants
from geminid.sim.timeuse import communication_share, time_shares

#: A deadline is met up to this: ends of jobs are sums of many times.
ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job's life. Times are seconds since the start of the workload.

    ``cost`` is what its slots cost: hours times the relative cost of a slot of their type, whose unit it has.
    ``communication_s`` is what synchronising added to computing, of the ``working_s`` in which it held slots without a
    pause.
    """

    name: str
    application: str
    submission_s: float
    start_s: float | None
    completion_s: float | None
    jct_s: float | None
    queued_s: float
    paused_s: float
    gpu_s: float
    rescales: int
    finish_time_ratio: float | None
    cost: float
    deadline_s: float | None
    working_s: float = 0.0
    communication_s: float = 0.0

    @property
    def communication_share(self) -> float | None:
        """The share of its working time that synchronising took; None if it never worked."""
        return self.communication_s / self.working_s if self.working_s > 0 else None

    @property
    def met(self) -> bool | None:
        """Whether it was done by its deadline; None without one."""
        if self.deadline_s is None:
            return None
        return self.completion_s is not None and self.completion_s <= self.deadline_s + ROUNDING_S


def job_summaries(result: Result) -> list[JobSummary]:
    """Summaries of all jobs in the order of their submission."""
    ratios = _finish_time_ratios(result)
    prices = {gpu_type: result.cluster.gpu_type(gpu_type).relative_cost for gpu_type in result.cluster.type_index}
    return [_job_summary(job, ratio, prices) for job, ratio in zip(result.jobs, ratios, strict=True)]


def _job_summary(job: SimJob, ratio: float | None, prices: Mapping[str, float]) -> JobSummary:
    held = paused = gpu_s = cost = working_s = communication_s = 0.0
    changes = 0
    previous = None
    for stint in job.stints:
        end_s = stint.end_s if stint.end_s is not None else job.at_s
        held += end_s - stint.start_s
        paused += max(0.0, min(stint.works_from_s, end_s) - stint.start_s)
        stint_working_s = max(0.0, end_s - max(stint.works_from_s, stint.start_s))
        working_s += stint_working_s
        communication_s += stint_working_s * communication_share(job, stint)
        slot_s = (end_s - stint.start_s) * sum(stint.placement) * (1.0 if stint.partner is None else 0.5)
        gpu_s += slot_s
        cost += slot_s / 3600.0 * prices[stint.gpu_type]
        new_slots = previous is None or previous.allocation != stint.allocation or previous.end_s != stint.start_s
        changes += new_slots
        previous = stint
    submitted_s = job.facts.submitted_s
    jct_s = None if job.completed_s is None else job.completed_s - submitted_s
    return JobSummary(
        name=job.facts.id,
        application=job.trace.application or "",
        submission_s=submitted_s,
        start_s=job.stints[0].start_s if job.stints else None,
        completion_s=job.completed_s,
        jct_s=jct_s,
        queued_s=max((jct_s or 0.0) - held, 0.0),
        paused_s=paused,
        gpu_s=gpu_s,
        rescales=max(changes - 1, 0),
        finish_time_ratio=ratio,
        cost=cost,
        deadline_s=job.facts.deadline_s,
        working_s=working_s,
        communication_s=communication_s,
    )


def _finish_time_ratios(result: Result) -> list[float | None]:
    """JCT over the time that a fair share of the cluster would have taken, its start included.

    The fair share of a job is the slots of every GPU type divided by the mean number of jobs in the system during its
    life; its speed there is the mean over the types it can run on, by their slots. With fewer slots than it asked for
    it is taken to run proportionally longer than on what it asked for.
    """
    arrivals = sorted(job.facts.submitted_s for job in result.jobs)
    ends = sorted(job.completed_s for job in result.jobs if job.completed_s is not None)
    times = np.array(sorted({*arrivals, *ends}))
    active = np.array([bisect_right(arrivals, t) - bisect_right(ends, t) for t in times], dtype=float)
    area = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(times))]) if len(times) else np.zeros(1)

    def jobs_until(t: float) -> float:
        i = int(np.searchsorted(times, t, side="right")) - 1
        return float(area[i] + active[i] * (t - times[i]))

    ratios: list[float | None] = []
    for job in result.jobs:
        if job.completed_s is None:
            ratios.append(None)
            continue
        start_s, end_s = job.facts.submitted_s, job.completed_s
        contenders = max((jobs_until(end_s) - jobs_until(start_s)) / max(end_s - start_s, 1e-9), 1.0)
        share = result.cluster.total_slots / contenders
        working_s = mixed_duration_s(job, result.cluster) * max(1.0, job.facts.requested_slots / share)
        ratios.append((end_s - start_s) / (job.facts.rescale_s + working_s))
    return ratios


def summary(result: Result, *, timings: bool = True, stints: bool = False) -> dict[str, Any]:
    """One run as plain data, in the form that ``geminid simulate --json`` writes.

    ``timings`` adds what deciding and simulating cost in real time, the only numbers that differ from run to run;
    ``stints`` adds to every job its stretches of time with one allocation and batch size.
    """
    jobs = job_summaries(result)
    several_racks = result.cluster.links.several_racks
    jct = np.array([job.jct_s for job in jobs if job.jct_s is not None])
    end_s = max((job.completion_s for job in jobs if job.completion_s is not None), default=0.0)
    gpu_s = sum(job.gpu_s for job in jobs)
    working_s = sum(job.working_s for job in jobs)
    ratios = np.array([job.finish_time_ratio for job in jobs if job.finish_time_ratio is not None])
    deadlines = [job.met for job in jobs]
    decisions = 1000.0 * np.array(result.decision_s or [0.0])
    return {
        "policy": result.policy,
        "jobs": len(jobs),
        "avg_jct_s": float(jct.mean()) if jct.size else None,
        "median_jct_s": float(np.median(jct)) if jct.size else None,
        "p99_jct_s": float(np.percentile(jct, 99)) if jct.size else None,
        "makespan_s": end_s,
        "gpu_hours": gpu_s / 3600.0,
        "rescales_per_job": float(np.mean([job.rescales for job in jobs])) if jobs else None,
        "avg_queue_s": float(np.mean([job.queued_s for job in jobs])) if jobs else None,
        "worst_ftf": float(ratios.max()) if ratios.size else None,
        "unfair_fraction": float((ratios > 1.0).mean()) if ratios.size else None,
        "utilization": gpu_s / (result.cluster.total_slots * end_s - result.returned_slot_s) if end_s else None,
        "communication_share": sum(job.communication_s for job in jobs) / working_s if working_s else None,
        "decisions": len(result.decision_s),
        "cost": sum(job.cost for job in jobs),
        "deadlines_missed": sum(met is False for met in deadlines)
        if any(met is not None for met in deadlines)
        else None,
        "reasons": result.reasons.counts(),
        "unfinished_jobs": sum(job.completion_s is None for job in jobs),
        "rejected_decisions": len(result.rejected),
        "rejected_because": Counter(reason for _, reason in result.rejected).most_common(1)[0][0]
        if result.rejected
        else None,
        "node_failures": result.failures,
        "node_hours": result.node_s / 3600.0,
        **tenants(result, [job.finish_time_ratio for job in jobs]),
        "decision_ms_mean": float(decisions.mean()) if timings else None,
        "decision_ms_p99": float(np.percentile(decisions, 99)) if timings else None,
        "wall_s": result.wall_s if timings else None,
        "per_job": [
            {
                "name": job.name,
                "application": job.application,
                "submission_s": job.submission_s,
                "start_s": job.start_s,
                "completion_s": job.completion_s,
                "jct_s": job.jct_s,
                "queued_s": job.queued_s,
                "paused_s": job.paused_s,
                "gpu_s": job.gpu_s,
                "communication_s": job.communication_s,
                "communication_share": job.communication_share,
                "rescales": job.rescales,
                "ftf": job.finish_time_ratio,
                "cost": job.cost,
                "deadline_s": job.deadline_s,
                "met": job.met,
                **({"stints": _stints(sim_job, several_racks=several_racks)} if stints else {}),
            }
            for job, sim_job in zip(jobs, result.jobs, strict=True)
        ],
    }


def _stints(job: SimJob, *, several_racks: bool) -> list[dict[str, Any]]:
    """A job's stints as plain data: when, where, with which batch, and how fast compared with perfect scaling.

    Where there are several racks, also how far apart its nodes are.
    """
    return [
        {
            "start_s": stint.start_s,
            "works_from_s": min(stint.works_from_s, end_s),
            "end_s": end_s,
            "gpu_type": stint.gpu_type,
            "slots": sum(stint.placement),
            **({"partner": stint.partner} if stint.partner is not None else {}),
            "nodes": [node for node, _ in stint.allocation],
            "slots_per_node": list(stint.placement),
            "total_batch": stint.batch.total if stint.batch else None,
            "per_slot_batch": stint.batch.per_slot if stint.batch else None,
            "accumulation_steps": stint.batch.accumulation if stint.batch else None,
            **({"plan": stint.plan} if stint.plan is not None else {}),
            **time_shares(job, stint),
            "communication_share": communication_share(job, stint),
            **({"tier": stint.crossing.path.tier.value} if several_racks else {}),
        }
        for stint in job.stints
        if (end_s := stint.end_s if stint.end_s is not None else job.at_s) > stint.start_s
    ]
