"""How a job fares: its phase, what it holds, and what it has achieved.

A :class:`JobState` is an immutable value; every change makes a new one. Every change carries its time, which
never goes back: :meth:`JobState.advance` accounts for what has happened since the last change,
:meth:`JobState.move` goes to another phase, and :meth:`JobState.crash` falls back to the last checkpoint.

The phases, and the moves between them::

    pending ──▶ starting ──▶ running ◀──▶ rescaling
     ▲ ▲ │         │            │             │
     │ │ │         └───────┬────┴─────────────┘
     │ │ │                 ▼
     │ │ ├──────────── stopping ──▶ succeeded, failed, cancelled
     │ └─┼─────────────────┤
     │   ▼                 │
     └─ paused ◀───────────┘

- Slots are held in *starting*, *running*, *rescaling* and *stopping*, and in no other phase. A job that
  holds slots and is preempted, paused or cancelled goes through *stopping*, because its slots are free only
  once its processes are gone; a job that holds none is paused or cancelled at once.
- Any phase that holds slots may end in *succeeded* or *failed*, since a process may exit at any moment:
  before the first step, in the middle of a rescale, or while being stopped. It may also fall back to
  *pending*, when a crash or a lost node took the processes and there are retries left.
- *Pending* may end in *failed*, when it turns out that the job can never run (a budget spent, a cluster that
  has shrunk for good).
- *Succeeded*, *failed* and *cancelled* absorb: nothing leaves them, whatever messages still arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

from geminid.configuration import BatchPlan, Placement
from geminid.documents import Document
from geminid.fields import (
    NOT_SHOWN,
    InvalidInput,
    Problem,
    Reader,
    check_choice,
    check_instance,
    check_integer,
    check_name,
    check_number,
    check_optional,
    check_text,
)
from geminid.job import JobSpec
from geminid.units import GpuSeconds, Samples, Seconds


class JobPhase(StrEnum):
    """Where in its life a job is."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RESCALING = "rescaling"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Is the job over?"""
        return not TRANSITIONS[self]

    @property
    def holds_slots(self) -> bool:
        """Does a job in this phase hold slots?"""
        return self in _HOLDING


_P = JobPhase
_HOLDING: Final = frozenset({_P.STARTING, _P.RUNNING, _P.RESCALING, _P.STOPPING})
_ENDS_BY_ITSELF: Final = frozenset({_P.PENDING, _P.SUCCEEDED, _P.FAILED})

TRANSITIONS: Final = MappingProxyType(
    {
        _P.PENDING: frozenset({_P.STARTING, _P.PAUSED, _P.CANCELLED, _P.FAILED}),
        _P.STARTING: frozenset({_P.RUNNING, _P.STOPPING}) | _ENDS_BY_ITSELF,
        _P.RUNNING: frozenset({_P.RESCALING, _P.STOPPING}) | _ENDS_BY_ITSELF,
        _P.RESCALING: frozenset({_P.RUNNING, _P.STOPPING}) | _ENDS_BY_ITSELF,
        _P.STOPPING: frozenset({_P.PAUSED, _P.CANCELLED}) | _ENDS_BY_ITSELF,
        _P.PAUSED: frozenset({_P.PENDING, _P.CANCELLED}),
        _P.SUCCEEDED: frozenset[JobPhase](),
        _P.FAILED: frozenset[JobPhase](),
        _P.CANCELLED: frozenset[JobPhase](),
    }
)
"""The phases that each phase may be followed by; the module's text says why."""


class IllegalTransition(ValueError):
    """A change that the life of a job does not allow; its text says which, and what would be allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(Document):
    """A job at a moment.

    Attributes:
        job_id: The job's unique name.
        spec: What was asked for.
        submitted_at_s: When it was submitted. All times are on the clock of the engine's driver.
        updated_at_s: The moment that this state describes.
        phase: Where in its life the job is.
        phase_since_s: When it came into this phase.
        first_started_at_s: When it was first given slots.
        finished_at_s: When it came to its end.
        placement: The slots it holds; none in phases that hold none.
        batch_plan: The batch plan it was last given.
        progress_samples: Useful samples done.
        durable_samples: Useful samples that are safe in a checkpoint: what a crash leaves of the progress.
        attained_service_gpu_s: Slots held × time held, over its life.
        rescales: How often it changed its slots while running.
        failures: How often it crashed or lost its node.
        max_slots_used: The most slots it has ever held; policies let it at most double this.
        reason: Why it is in this phase, for people.
    """

    job_id: str
    spec: JobSpec
    submitted_at_s: Seconds
    updated_at_s: Seconds
    phase: JobPhase = JobPhase.PENDING
    phase_since_s: Seconds
    first_started_at_s: Seconds | None = None
    finished_at_s: Seconds | None = None
    placement: Placement | None = None
    batch_plan: BatchPlan | None = None
    progress_samples: Samples = 0.0
    durable_samples: Samples = 0.0
    attained_service_gpu_s: GpuSeconds = 0.0
    rescales: int = 0
    failures: int = 0
    max_slots_used: int = 0
    reason: str = ""

    @classmethod
    def submitted(cls, *, job_id: str, spec: JobSpec, at_s: Seconds) -> Self:
        """The state of a job that has just been submitted."""
        return cls(job_id=job_id, spec=spec, submitted_at_s=at_s, updated_at_s=at_s, phase_since_s=at_s)

    # --- Changes ---

    def advance(
        self,
        *,
        at_s: Seconds,
        progress_samples: Samples | None = None,
        durable_samples: Samples | None = None,
        batch_plan: BatchPlan | None = None,
    ) -> JobState:
        """The same job later on, in the same phase: slots held since then are charged, reports are taken in.

        Raises:
            IllegalTransition: time or progress would go back, or the job is over or reports without slots.
        """
        if self.phase.is_terminal:
            raise IllegalTransition(f"Job {self.job_id} is {self.phase} and cannot change any more.")
        if not (math.isfinite(at_s) and at_s >= self.updated_at_s):
            raise IllegalTransition(
                f"Job {self.job_id} is at {self.updated_at_s} s and cannot go to {at_s} s: time never goes back."
            )
        progress = self.progress_samples if progress_samples is None else progress_samples
        durable = self.durable_samples if durable_samples is None else durable_samples
        if progress != self.progress_samples and not self.phase.holds_slots:
            raise IllegalTransition(f"Job {self.job_id} is {self.phase} and cannot make progress.")
        if not (self.progress_samples <= progress < math.inf and self.durable_samples <= durable <= progress):
            raise IllegalTransition(
                f"Job {self.job_id} has done {self.progress_samples} samples ({self.durable_samples} of them "
                f"durable) and cannot have done {progress} ({durable}): progress never goes back, and what "
                "is durable is part of it."
            )
        held = self.placement.num_slots if self.placement else 0
        return replace(
            self,
            updated_at_s=at_s,
            progress_samples=progress,
            durable_samples=durable,
            batch_plan=batch_plan or self.batch_plan,
            attained_service_gpu_s=self.attained_service_gpu_s + held * (at_s - self.updated_at_s),
        )

    def move(
        self,
        to: JobPhase,
        *,
        at_s: Seconds,
        reason: str = "",
        placement: Placement | None = None,
        batch_plan: BatchPlan | None = None,
    ) -> JobState:
        """The job in another phase.

        A placement is needed to start; without a new one, a job keeps its slots for as long as it holds any.
        While it rescales, its placement is every slot that it holds: old and new, perhaps more than it asked
        for. It starts and runs on as many slots as it asked for.

        Raises:
            IllegalTransition: the phase cannot follow the present one, time would go back, or a placement is
                missing, not wanted, too small or too large.
        """
        if to not in TRANSITIONS[self.phase]:
            allowed = ", ".join(sorted(TRANSITIONS[self.phase])) or "nothing"
            raise IllegalTransition(
                f"Job {self.job_id} is {self.phase} and cannot become {to}; what can follow is {allowed}."
            )
        if to is JobPhase.STARTING and placement is None:
            raise IllegalTransition(f"Job {self.job_id} cannot start without a placement.")
        if placement is not None and not to.holds_slots:
            raise IllegalTransition(f"Job {self.job_id} cannot hold slots when it is {to}.")
        held = (placement or self.placement) if to.holds_slots else None
        if held is not None and to in (JobPhase.STARTING, JobPhase.RUNNING):
            self._check_size(held.num_slots)
        charged = self.advance(at_s=at_s, batch_plan=batch_plan)
        starts = to is JobPhase.STARTING and self.first_started_at_s is None
        return replace(
            charged,
            phase=to,
            phase_since_s=at_s,
            first_started_at_s=at_s if starts else self.first_started_at_s,
            finished_at_s=at_s if to.is_terminal else None,
            placement=held,
            rescales=self.rescales + (to is JobPhase.RESCALING),
            max_slots_used=max(self.max_slots_used, held.num_slots if held else 0),
            reason=reason,
        )

    def crash(self, *, at_s: Seconds, reason: str, counts: bool = True, in_a_row: int | None = None) -> JobState:
        """The job after its processes were lost: back to its last checkpoint, and pending or given up.

        This is the only change by which progress shrinks. What is nobody's failure (a machine that was switched off)
        does not count as one. A job is given up for failures ``in_a_row``, without progress in between; None for all.

        Raises:
            IllegalTransition: the job holds no slots, so that nothing of it can crash; or time would go back.
        """
        if not self.phase.holds_slots:
            raise IllegalTransition(f"Job {self.job_id} is {self.phase} and runs nothing that could crash.")
        failures = self.failures + counts
        given_up = (failures if in_a_row is None else in_a_row) > self.spec.max_retries
        to = JobPhase.FAILED if given_up else JobPhase.PENDING
        after = self.move(to, at_s=at_s, reason=reason)
        return replace(after, failures=failures, progress_samples=self.durable_samples)

    def _check_size(self, slots: int) -> None:
        """Refuse a number of slots that the job did not ask for."""
        least, most = self.spec.min_slots, self.spec.max_slots
        if slots < least:
            raise IllegalTransition(f"Job {self.job_id} needs at least {least} slots and cannot run on {slots}.")
        if most is not None and slots > most:
            raise IllegalTransition(f"Job {self.job_id} may have at most {most} slots and cannot run on {slots}.")

    # --- What follows from the state ---

    @property
    def age_s(self) -> Seconds:
        """Time since submission, up to the end if the job is over."""
        return (self.updated_at_s if self.finished_at_s is None else self.finished_at_s) - self.submitted_at_s

    @property
    def jct_s(self) -> Seconds | None:
        """Job completion time: from submission to the end; None while the job is not over."""
        return None if self.finished_at_s is None else self.finished_at_s - self.submitted_at_s

    @property
    def remaining_samples(self) -> Samples | None:
        """Useful samples left to do; None if the specification does not say how much work there is."""
        work = self.spec.work_samples
        return None if work is None else max(work - self.progress_samples, 0.0)

    @property
    def num_slots(self) -> int:
        """How many slots the job holds."""
        return self.placement.num_slots if self.placement else 0

    # --- What must hold ---

    def __post_init__(self) -> None:
        problems = self._field_problems()
        problems += self._rule_problems({problem.field for problem in problems})
        if problems:
            raise InvalidInput(problems)

    def _field_problems(self) -> list[Problem]:
        """What is wrong with each field by itself."""
        return [
            *check_name("job_id", self.job_id),
            *check_instance("spec", self.spec, JobSpec),
            *check_choice("phase", self.phase, JobPhase),
            *check_number("submitted_at_s", self.submitted_at_s),
            *check_number("updated_at_s", self.updated_at_s),
            *check_number("phase_since_s", self.phase_since_s),
            *check_optional(check_number, "first_started_at_s", self.first_started_at_s),
            *check_optional(check_number, "finished_at_s", self.finished_at_s),
            *check_optional(check_instance, "placement", self.placement, Placement),
            *check_optional(check_instance, "batch_plan", self.batch_plan, BatchPlan),
            *check_number("progress_samples", self.progress_samples, at_least=0),
            *check_number("durable_samples", self.durable_samples, at_least=0),
            *check_number("attained_service_gpu_s", self.attained_service_gpu_s, at_least=0),
            *check_integer("rescales", self.rescales, at_least=0),
            *check_integer("failures", self.failures, at_least=0),
            *check_integer("max_slots_used", self.max_slots_used, at_least=0),
            *check_text("reason", self.reason),
        ]

    def _rule_problems(self, faulty: set[str]) -> Iterator[Problem]:
        """What is wrong with fields taken together, leaving out those that are faulty by themselves."""
        if not faulty & {"updated_at_s", *_EARLIER_TIMES}:
            started = self.phase_since_s if self.first_started_at_s is None else self.first_started_at_s
            finished = self.updated_at_s if self.finished_at_s is None else self.finished_at_s
            if not self.submitted_at_s <= started <= self.phase_since_s <= finished <= self.updated_at_s:
                expected = "must be the latest time, after submission, first start, phase and end in this order"
                yield Problem("updated_at_s", self.updated_at_s, expected, involves=_EARLIER_TIMES)
        if not faulty & {"durable_samples", "progress_samples"} and self.durable_samples > self.progress_samples:
            expected = f"must be at most progress_samples, which is {self.progress_samples}"
            yield Problem("durable_samples", self.durable_samples, expected, involves=("progress_samples",))
        if not faulty & {"max_slots_used", "placement"} and self.max_slots_used < self.num_slots:
            expected = f"must be at least the number of slots that it holds, which is {self.num_slots}"
            yield Problem("max_slots_used", self.max_slots_used, expected, involves=("placement",))
        if "phase" not in faulty:
            yield from self._phase_problems(faulty)

    def _phase_problems(self, faulty: set[str]) -> Iterator[Problem]:
        """What is there and should not be in this phase, or is not there and should be."""
        wrong = {
            "placement": self.phase.holds_slots != (self.placement is not None),
            "finished_at_s": self.phase.is_terminal != (self.finished_at_s is not None),
            "first_started_at_s": self.phase.holds_slots and self.first_started_at_s is None,
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong and name not in faulty):
            verb = "must not be given" if getattr(self, name) is not None else "must be given"
            yield Problem("phase", self.phase.value, f"then {name} {verb}", involves=(name,))

    # --- How it is written ---

    @classmethod
    def read(cls, reader: Reader) -> Self | None:
        """Read a state."""
        return reader.attempt(lambda: cls(**_read_fields(reader)))

    def to_dict(self) -> dict[str, Any]:
        """The fields under their own names, without those that are not set; the job's secrets included."""
        plain = {
            "job_id": self.job_id,
            "spec": self.spec.to_dict(),
            "submitted_at_s": self.submitted_at_s,
            "updated_at_s": self.updated_at_s,
            "phase": self.phase.value,
            "phase_since_s": self.phase_since_s,
            "first_started_at_s": self.first_started_at_s,
            "finished_at_s": self.finished_at_s,
            "placement": self.placement.to_dict() if self.placement else None,
            "batch_plan": self.batch_plan.to_dict() if self.batch_plan else None,
            "progress_samples": self.progress_samples,
            "durable_samples": self.durable_samples,
            "attained_service_gpu_s": self.attained_service_gpu_s,
            "rescales": self.rescales,
            "failures": self.failures,
            "max_slots_used": self.max_slots_used,
            "reason": self.reason,
        }
        return {name: value for name, value in plain.items() if value is not None}


_EARLIER_TIMES: Final = ("submitted_at_s", "phase_since_s", "first_started_at_s", "finished_at_s")


def _read_fields(reader: Reader) -> dict[str, Any]:
    """The constructor's arguments; a field that is left out is left to the constructor's default."""
    spec, placement, batch_plan = (reader.nested(name) for name in ("spec", "placement", "batch_plan"))
    if spec is None:
        reader.report("spec", NOT_SHOWN, "is missing: it must be the specification of a job")
    arguments = {
        "job_id": reader.text("job_id"),
        "spec": spec and JobSpec.read(spec),
        "submitted_at_s": reader.number("submitted_at_s"),
        "updated_at_s": reader.number("updated_at_s"),
        "phase": reader.choice("phase", JobPhase, None),
        "phase_since_s": reader.number("phase_since_s"),
        "first_started_at_s": reader.number("first_started_at_s", None),
        "finished_at_s": reader.number("finished_at_s", None),
        "placement": placement and Placement.read(placement),
        "batch_plan": batch_plan and BatchPlan.read(batch_plan),
        "progress_samples": reader.number("progress_samples", None),
        "durable_samples": reader.number("durable_samples", None),
        "attained_service_gpu_s": reader.number("attained_service_gpu_s", None),
        "rescales": reader.integer("rescales", None),
        "failures": reader.integer("failures", None),
        "max_slots_used": reader.integer("max_slots_used", None),
        "reason": reader.text("reason", None),
    }
    return {"spec": None} | {name: value for name, value in arguments.items() if value is not None}
