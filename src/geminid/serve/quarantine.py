"""Quarantine: a job about which something absurd was reported fails, so that no other job is affected.

Before records are written they are applied to a copy of the state. A job's record that cannot be applied is not
written; in its place stands a :class:`~geminid.serve.records.JobQuarantined`, by which the job fails with the reason,
and its processes are ended. The same holds for records that an earlier version has written: ``ServiceState.apply`` puts
the job into quarantine when it comes to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from geminid.jobstate import JobPhase
from geminid.serve import records as r
from geminid.serve.livejob import LiveJob, job_from_dict, printable
from geminid.supervise.protocol import LARGEST_COUNT

if TYPE_CHECKING:
    from geminid.serve.state import ServiceState

#: How the reason of a job in quarantine begins.
QUARANTINED = "quarantined: "


#: What a job's processes have reported of it, by the names of its fields; a job in quarantine has none of it.
MEASURED = ("limits", "measured", "gradient", "metrics", "stretches", "reported", "learning_rate_factor")


_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(LiveJob)}


class Absurd(Exception):
    """A value that nothing can be computed with; one sentence says which."""


def check_numbers(record: r.Record) -> None:
    """Make sure that the numbers of a record can be computed with.

    Raises:
        Absurd: one of them cannot.
    """
    for one in fields(record):
        _check(one.name, getattr(record, one.name))


def check_job(job: LiveJob) -> None:
    """Make sure that the numbers of a job that was read from a snapshot can be computed with.

    Raises:
        Absurd: one of them cannot.
    """
    for one in fields(job):
        _check(one.name, getattr(job, one.name))
    if job.limits is not None:
        for name, value in job.limits.to_dict().items():
            _check(name, value)


def _check(name: str, value: object) -> None:
    if isinstance(value, bool):
        return
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        raise Absurd(f"{name} is a number of {_digits(value)} digits, and at most {LARGEST_COUNT:,} can be counted")
    if isinstance(value, float) and not math.isfinite(value):
        raise Absurd(f"{name} is {value}, which is not a finite number")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, int | float):
                _check(f"{name}.{printable(str(key))[:40]}", item)


def _digits(number: int) -> int:
    """How many digits a number has, without writing it down: Python refuses to write very long ones."""
    return math.floor(abs(number).bit_length() * math.log10(2)) + 1


def number_of(job_id: str) -> int:
    """The number in the name of a job; 0 if it has none."""
    return int(job_id[1:]) if job_id[:1] == "j" and job_id[1:].isascii() and job_id[1:].isdigit() else 0


def quarantined(job: LiveJob, at_s: float, reason: str) -> LiveJob:
    """The job in quarantine: it has failed, holds nothing, and what was measured of it is forgotten."""
    state, at_s = job.state, max(at_s, job.state.updated_at_s)
    if state.phase is JobPhase.PAUSED:
        state = state.move(JobPhase.PENDING, at_s=at_s)
    if not state.phase.is_terminal:
        state = state.move(JobPhase.FAILED, at_s=at_s, reason=QUARANTINED + printable(reason))
    ended = replace(
        job,
        state=state,
        target=None,
        target_since_s=at_s,
        executed_before_s=job.executed_s(at_s),
        samples=min(job.samples, LARGEST_COUNT),
        saved_samples=min(job.saved_samples, LARGEST_COUNT),
        failed_samples=min(job.failed_samples, LARGEST_COUNT),
        step=min(job.step, LARGEST_COUNT),
        epoch=min(job.epoch, LARGEST_COUNT),
        **{name: _DEFAULTS[name] for name in MEASURED},
    )
    return ended if job.phase.is_terminal else ended.with_story(at_s, state.reason)


def read_job(plain: Mapping[str, Any]) -> LiveJob:
    """A job of a snapshot; in quarantine if an earlier version has kept something absurd of it."""
    try:
        job = job_from_dict(plain)
        check_job(job)
        return job
    except (Absurd, ValueError, TypeError, ArithmeticError) as problem:
        empty: dict[str, Any] = {"limits": None, "measured": {}, "gradient": None, "metrics": {}}
        bare = job_from_dict({**plain, **empty, "stretches": [], "reported": None, "learning_rate_factor": 1.0})
        return quarantined(bare, bare.state.updated_at_s, f"what is kept of it cannot be used: {problem}")


def reason_of(record: r.Record, problem: Exception) -> str:
    """Why a job is in quarantine, in a sentence."""
    said = str(problem) if isinstance(problem, Absurd) else f"{type(problem).__name__}: {str(problem)[:200]}"
    return f"its {r.kind_of(record)} record cannot be used: {said}"


def tried(
    state: ServiceState, at_s: float, records: Sequence[r.Record], probe: Callable[[LiveJob], object]
) -> list[r.Record]:
    """Apply records to a copy of the state; those to write, where quarantine stands for what cannot be applied.

    ``probe`` is called with every job that they are about: if it raises, the job is put into quarantine too.
    """
    kept: list[r.Record] = []
    for record in records:
        kept += _applied(state, at_s, record)
    about = dict.fromkeys(job_id for record in kept for job_id in r.jobs_of(record))
    return kept + implausible(state, at_s, [state.jobs[job_id] for job_id in about if job_id in state.jobs], probe)


def implausible(
    state: ServiceState, at_s: float, jobs: Iterable[LiveJob], probe: Callable[[LiveJob], object]
) -> list[r.Record]:
    """Put those of some jobs into quarantine for which ``probe`` raises; what is to be written of it."""
    records: list[r.Record] = []
    for job in jobs:
        if job.phase.is_terminal:
            continue
        try:
            probe(job)
        except Exception as problem:
            reason = f"nothing can be planned with what it reports: {type(problem).__name__}: {str(problem)[:200]}"
            records += _applied(state, at_s, r.JobQuarantined(job_id=job.id, reason=reason))
    return records


def _applied(state: ServiceState, at_s: float, record: r.Record) -> list[r.Record]:
    try:
        r.encode(record)
        state.apply_or_raise(state.seq + 1, at_s, record)
        return [record]
    except Exception as problem:
        records: list[r.Record] = []
        if isinstance(record, r.Planned) and len(record.targets) > 1:
            for job_id, target in record.targets.items():
                reasons = {job_id: record.reasons[job_id]} if job_id in record.reasons else {}
                records += _applied(state, at_s, r.Planned(targets={job_id: target}, reasons=reasons))
            return records
        for job_id in sorted(r.jobs_of(record)):
            records.append(r.JobQuarantined(job_id=job_id, reason=reason_of(record, problem)))
        if not records:
            records.append(r.Noted(level="alert", text=f"not written: {reason_of(record, problem)}"))
        for instead in records:
            state.apply(state.seq + 1, at_s, instead)
        return records


def unreadable(job_id: str, kind: str, problem: Exception) -> r.Record:
    """What stands for a record of a job that was written and cannot be read."""
    return r.JobQuarantined(job_id=job_id, reason=f"its {kind} record cannot be read: {str(problem)[:200]}")
