"""Records of jobs, made from what their processes report."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from geminid.configuration import Placement
from geminid.job import JobKind, JobSpec
from geminid.process.disk_full import SHORTAGES
from geminid.serve import records as r
from geminid.serve.livejob import BEFORE_THE_END
from geminid.supervise.protocol import Progress, Ready

#: First delay before a failed move is tried again; it doubles with each failure, up to MOVE_RETRY_MAX_S.
MOVE_RETRY_S = 30.0

#: Longest delay before a failed move is tried again.
MOVE_RETRY_MAX_S = 600.0

#: Longest reason in a record, in characters.
MAX_REASON_CHARS = 500


class CheckpointsGone(ValueError):
    """A job has saved checkpoints, and they are gone; one sentence says what to do."""


def progressed(job_id: str, report: Progress, nodes: int, link_slowdown: float = 1.0) -> r.JobProgressed:
    """What a leader reported; ``nodes`` is their number."""
    return r.JobProgressed(
        job_id=job_id,
        progress=report.progress,
        samples=report.samples,
        step=report.step,
        epoch=report.epoch,
        slots=report.size,
        nodes=nodes,
        per_slot_batch=report.plan.per_slot_batch,
        accumulation_steps=report.plan.accumulation_steps,
        accumulation_s=report.accumulation_s,
        step_s=report.step_s,
        squared_gradient=report.squared_gradient,
        variance=report.variance,
        learning_rate_factor=report.learning_rate_factor,
        metrics=report.metrics,
        link_slowdown=link_slowdown,
    )


def job_ready(job_id: str, ready: Ready) -> r.JobReady:
    """What a job's script has said of its batches and its data."""
    return r.JobReady(
        job_id=job_id,
        initial_batch=ready.initial_batch,
        largest_batch=ready.largest_batch,
        smallest_per_slot=ready.smallest_per_slot,
        largest_per_slot=ready.largest_per_slot,
        parameter_count=ready.parameter_count,
        dataset_samples=ready.dataset_samples,
        work_samples=ready.work_samples,
        by_progress=ready.by_progress,
    )


def stopped(job_id: str) -> r.Record:
    """A job has stopped, as it was asked to."""
    return r.JobEnded(job_id=job_id, how="stopped")


def elastic_now(job_id: str) -> r.Record:
    """A job of unknown kind is elastic."""
    return r.JobKindKnown(job_id=job_id, job_kind=JobKind.ELASTIC.value, reason="the script called geminid.init()")


def ended_early(*, initialised: bool, slots: int, times: int = 1) -> str:
    """What there is to say of a job whose script ended well, and not by having trained to its end.

    ``times`` is how many processes ran it: one on every slot, if it was submitted as elastic.
    """
    if initialised:
        return BEFORE_THE_END
    many = "1 slot" if slots == 1 else f"{slots} slots"
    ran = f"it ran {times} times, once on each slot," if times > 1 else f"it ran on {many}"
    return f"finished without calling geminid.init(): {ran} and could not be resized; submit it with --kind plain"


def not_started(job_id: str, problem: Exception) -> r.Record:
    """A job could not be started: it is tried again, as after any other crash; a shortage does not count as one."""
    if isinstance(problem, CheckpointsGone):
        return r.JobEnded(job_id=job_id, how="held", reason=str(problem)[:MAX_REASON_CHARS])
    how = "unstarted" if getattr(problem, "errno", None) in SHORTAGES else "crashed"
    text = str(problem)
    if isinstance(problem, OSError) and problem.strerror is not None:
        text = f"{problem.filename}: {problem.strerror}" if problem.filename is not None else problem.strerror
    return r.JobEnded(job_id=job_id, how=how, reason=f"it could not be started: {text}"[:MAX_REASON_CHARS])


def held(job_id: str, reason: str, times: int, placement: Placement | None) -> list[r.Record]:
    """A job could not get to its slots for the ``times``-th time in a row: it is left as it is for a while.

    If it runs, it stays on this placement.
    """
    for_s = min(MOVE_RETRY_S * 2.0 ** max(times - 1, 0), MOVE_RETRY_MAX_S)
    warning = f"{job_id}: {reason}; it is tried again in {for_s:g} s"
    record = r.JobHeld(job_id=job_id, for_s=for_s, reason=reason, placement=placement)
    return [r.Noted(level="warning", text=warning), record]


def way_out(nodes: Collection[str]) -> str:
    """What an operator can do for a job that needs nodes that do not reach each other."""
    return f" (`geminid drain` one of {', '.join(sorted(nodes))} to have it elsewhere)" if len(nodes) > 1 else ""


def worker_options(spec: JobSpec) -> dict[str, Any]:
    """What a job's file says of batch sizes, which overrides what its script says."""
    options = {
        "initial_batch_size": spec.initial_batch_size,
        "max_batch_size": spec.max_batch_size,
        "max_per_slot_batch": spec.max_per_slot_batch,
        "min_per_slot_batch": spec.min_per_slot_batch if spec.min_per_slot_batch > 1 else None,
        "scaling_rule": None if spec.scaling_rule.value == "auto" else spec.scaling_rule.value,
        "checkpoint_interval_s": spec.checkpoint_interval_s,
    }
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Refusal:
    """How many times in a row a job could not train on more slots than these."""

    times: int = 0
    slots: int = 0


class Refusals:
    """The jobs that could not grow, or could not start, and how often."""

    def __init__(self) -> None:
        self._refusals: dict[str, Refusal] = {}

    def __contains__(self, job_id: str) -> bool:
        """Whether a job could not."""
        return job_id in self._refusals

    def add(self, job_id: str, slots: int) -> int:
        """A job cannot train on more slots than these; how many times in a row now."""
        before = self._refusals.get(job_id, Refusal())
        self._refusals[job_id] = Refusal(before.times + 1, max(before.slots, slots))
        return before.times + 1

    def trained(self, job_id: str, slots: int) -> None:
        """A job trains on this number of slots."""
        if slots > self._refusals.get(job_id, Refusal()).slots:
            self._refusals.pop(job_id, None)

    def drop(self, job_id: str) -> None:
        """A job is over."""
        self._refusals.pop(job_id, None)
