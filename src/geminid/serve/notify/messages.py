"""What is worth a notification: pure functions that compare a job with what was last said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from geminid.jobstate import JobPhase
from geminid.serve.livejob import LiveJob
from geminid.serve.quarantine import number_of
from geminid.serve.state import ServiceState


class Occasion(StrEnum):
    """What a notification is about."""

    START = "start"
    END = "end"
    FAILURE = "failure"
    DEADLINE = "deadline"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One notification. Nothing in it is a secret: no command, folder or environment."""

    occasion: Occasion
    job: str
    name: str
    owner: str
    queue: str
    phase: str
    text: str
    at_s: float

    @property
    def subject(self) -> str:
        """The message in one line."""
        return f"geminid: {self.job} ({self.name}) {self.text}"


@dataclass(frozen=True, slots=True)
class Said:
    """What has been said so far: the occasions of each job that is not over, and how many jobs there were."""

    occasions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    submitted: int = 0


def messages_of(
    state: ServiceState, said: Said, now_s: float, at_risk: Callable[[LiveJob], str]
) -> tuple[list[Message], Said]:
    """What is to be said now of jobs, and what has been said then.

    ``said`` is from the last look; a job that was there and is not in it was over already. ``at_risk`` is why the
    deadline of a job may not be met, or empty. Elements of arrays are not mentioned, their arrays are.
    """
    found: list[Message] = []
    after: dict[str, frozenset[str]] = {}
    known = [job_id for job_id in said.occasions if job_id in state.jobs]
    for job in (state.jobs[job_id] for job_id in [*known, *_new_jobs(state, said.submitted)]):
        before = said.occasions.get(job.id, frozenset())
        occasions = dict(_occasions(job, "" if Occasion.DEADLINE in before else at_risk(job)))
        new = {occasion: text for occasion, text in occasions.items() if occasion not in before}
        found += [_message(job, occasion, text, now_s) for occasion, text in new.items()]
        if not job.phase.is_terminal:
            after[job.id] = before | {occasion.value for occasion in new}
    return found, Said(after, state.submitted)


def _new_jobs(state: ServiceState, submitted: int) -> list[str]:
    """The jobs submitted after the first ``submitted`` ones, without elements of arrays."""
    found: list[str] = []
    for job_id in reversed(state.jobs):
        number = number_of(job_id)  # 0 for an element
        if 0 < number <= submitted:
            break
        found += [job_id] if number else []
    return found[::-1]


def _occasions(job: LiveJob, risk: str) -> Iterable[tuple[Occasion, str]]:
    """What can be said of a job as it is."""
    if job.state.first_started_at_s is not None:
        yield Occasion.START, "has started"
    if risk and not job.phase.is_terminal:
        yield Occasion.DEADLINE, f"has a deadline that {risk}"
    if job.time.warned and not job.phase.is_terminal:
        yield Occasion.TIME, "will soon have used up its time limit"
    why = f": {job.state.reason}" if job.state.reason else ""
    if job.phase is JobPhase.SUCCEEDED:
        yield Occasion.END, f"has succeeded{why}"
    elif job.phase is JobPhase.FAILED:
        yield Occasion.FAILURE, f"has failed{why}"
    elif job.phase is JobPhase.CANCELLED:
        yield Occasion.END, f"was cancelled{why}"


def _message(job: LiveJob, occasion: Occasion, text: str, now_s: float) -> Message:
    return Message(
        occasion=occasion,
        job=job.id,
        name=job.spec.name,
        owner=job.spec.owner or "",
        queue=job.spec.queue,
        phase=job.phase.value,
        text=text,
        at_s=now_s,
    )
