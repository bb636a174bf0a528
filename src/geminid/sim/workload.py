"""A workload: the jobs that users submit over time, as the simulator replays them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from geminid.job import Adaptivity
from geminid.sim.application import LossCurve

#: The queue of jobs that name none.
DEFAULT_QUEUE: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One submitted job, with what its user asked for.

    A job is either of an ``application`` whose profile says how it trains (Pollux, Sia, our own), or it is opaque:
    it runs for ``duration_s`` on ``requested_slots`` slots (Tiresias, Philly), or makes ``steps`` steps at a speed
    that depends on the GPU type (Gavel, where ``application`` names the job type).

    A deadline counts from the submission: ``slo_s`` seconds, or ``slo_factor`` times as long as the job takes when it
    has the slots that it asked for to itself (Gavel). None of both means no deadline. Where ``requested_batch`` is
    None, the user asked for the application's initial batch size. ``opportunistic`` jobs take what others leave.
    ``loss`` is the training loss that this job reports, in place of that of its application. With a ``plan``, the
    execution plan that its user chose, a job makes steps on any slots that the plan can use (Rubick).
    """

    name: str
    submit_s: float
    requested_slots: int
    application: str | None = None
    requested_batch: int | None = None
    adaptivity: Adaptivity = Adaptivity.ADAPTIVE
    duration_s: float | None = None
    steps: int | None = None
    weight: float = 1.0
    slo_s: float | None = None
    slo_factor: float | None = None
    owner: str = ""
    queue: str = DEFAULT_QUEUE
    opportunistic: bool = False
    loss: LossCurve | None = None
    plan: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their submission, and where they come from.

    ``notes`` are sentences for the reader of a report: what of the file was left out or cannot be replayed.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()
