"""A job as one row of a table that many people watch: few fields, rounded so that they change only when it matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log10
from typing import Any

from geminid.serve.documents import done_share
from geminid.serve.livejob import LiveJob, total_batch

#: Digits of the share of its work that a job has done.
DONE_DIGITS = 3

#: A forecast is rounded to two digits of the time that it is away.
FORECAST_DIGITS = 2

#: Longest reason in a row, in characters.
MAX_REASON_LENGTH = 160

#: What a row says, in this order.
COLUMNS = (
    "id",
    "name",
    "owner",
    "queue",
    "priority",
    "phase",
    "kind",
    "slots",
    "target_slots",
    "min_slots",
    "max_slots",
    "batch",
    "done",
    "position",
    "submitted_at_s",
    "started_at_s",
    "finished_at_s",
    "start_s",
    "finish_s",
    "rescales",
    "failures",
    "reason",
)

Row = tuple[Any, ...]


def row_of(job: LiveJob, position: int | None, outlook: Mapping[str, Any], reason: str, now_s: float) -> Row:
    """The row of a job. ``outlook`` is its forecast, ``reason`` why it waits."""
    state, plan, done = job.state, job.state.batch_plan, done_share(job)
    eta = outlook.get("eta") or {}
    return (
        job.id,
        job.spec.name,
        job.spec.owner,
        job.spec.queue,
        job.spec.priority,
        job.shown_phase.value,
        job.kind.value,
        job.held_slots,
        job.target.num_slots if job.target else 0,
        job.spec.min_slots,
        job.spec.max_slots,
        total_batch(job, plan, state.num_slots) if plan and state.num_slots else None,
        None if done is None else round(done, DONE_DIGITS),
        position,
        _second(state.submitted_at_s),
        _second(state.first_started_at_s),
        _second(state.finished_at_s),
        _interval(eta, "start", now_s),
        _interval(eta, "finish", now_s),
        state.rescales,
        state.failures,
        reason[:MAX_REASON_LENGTH],
    )


def _second(at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s, 1)


def _interval(eta: Mapping[str, Any], name: str, now_s: float) -> list[float] | None:
    """A forecast as two times, rounded the more the farther they are away."""
    given = eta.get(f"{name}_at_s")
    return None if given is None else [coarse(at_s, now_s) for at_s in given]


def coarse(at_s: float, now_s: float) -> float:
    """A time in the future, to two digits of its distance from now."""
    ahead_s = max(at_s - now_s, 1.0)
    step_s = 10.0 ** (int(log10(ahead_s)) - FORECAST_DIGITS + 1)
    return round(round(at_s / step_s) * step_s, 1)


def changes_of(before: Row, after: Row) -> dict[str, Any]:
    """The fields in which two rows of a job differ."""
    pairs = zip(COLUMNS, before, after, strict=True)
    return {name: new for name, old, new in pairs if new is not old and new != old}


def difference(before: Mapping[str, Row], after: Mapping[str, Row]) -> dict[str, Any]:
    """What turns one table into another: whole rows of new jobs, changed fields of others, and jobs that are gone."""
    new = [row for job_id, row in after.items() if job_id not in before]
    changed = {
        job_id: changes
        for job_id, row in after.items()
        if (old := before.get(job_id)) is not None and old is not row and (changes := changes_of(old, row))
    }
    gone = [job_id for job_id in before if job_id not in after]
    parts: Sequence[tuple[str, Any]] = (("new", new), ("changed", changed), ("gone", gone))
    return {name: part for name, part in parts if part}


#: Makes the row of a job, as it is now.
RowMaker = Callable[[LiveJob], Row]
