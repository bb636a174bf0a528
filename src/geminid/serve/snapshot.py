"""The live jobs at one moment, for what-if simulations: by the command line, and for the web page.

``GET /snapshot`` describes a service; a :class:`Snapshot` is that description as a value, which knows how its jobs are
simulated: which of them can run at all, what they have left to do, and under which rules a policy decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Self

from geminid.cluster import Cluster
from geminid.job import JobSpec
from geminid.jobstate import JobState
from geminid.policies.base import ClusterView, Decision
from geminid.serve.forecast import WAKE_SHARE, Sparing, can_start, restrained
from geminid.serve.livejob import LiveJob, job_from_dict
from geminid.serve.translation import fits
from geminid.serve.whatif import WhatIf, what_if
from geminid.units import format_duration, parse_duration

#: The identifier of a job that does not exist.
EXTRA_JOB = "new"

#: Most slots of that job.
MAX_EXTRA_SLOTS = 100_000

#: Longest time of that job, in seconds.
MAX_EXTRA_S = 1e8


@dataclass(frozen=True, slots=True)
class ExtraJob:
    """One job more than there are: a plain command that holds slots for a time.

    Raises:
        ValueError: no job can be like this.
    """

    slots: int
    seconds: float
    name: str = EXTRA_JOB

    def __post_init__(self) -> None:
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or not 1 <= self.slots <= MAX_EXTRA_SLOTS:
            raise ValueError(f"job.slots must be a whole number from 1 to {MAX_EXTRA_SLOTS:,}")
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float):
            raise ValueError("job.seconds must be a number")
        if not 0.0 < self.seconds <= MAX_EXTRA_S:
            raise ValueError(f"job.seconds must be a number above 0, at most {MAX_EXTRA_S:,.0f}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the short form, slots and a duration: ``2x30m``.

        Raises:
            ValueError: it has another form, or no job can be like this.
        """
        slots, sign, length = text.partition("x")
        if not sign or not slots.strip().isdecimal():
            raise ValueError(f"{text[:50]!r} must have the form SLOTSxDURATION, for example 2x30m")
        return cls(int(slots), parse_duration(length.strip()))

    @property
    def short_form(self) -> str:
        """As ``parse`` reads it."""
        return f"{self.slots}x{format_duration(self.seconds)}"


@dataclass(slots=True)
class Coarse(Sparing):
    """A policy that decides less and less often in a long simulation, also if it decides in rounds.

    Whenever jobs come or go it decides as always; in between, after a share of the time that was simulated already.
    """

    name = "coarse"
    paper = "none"
    objective = "another policy's"

    _decided_at_s: float = -inf
    _jobs: frozenset[str] = frozenset()

    def decide(self, view: ClusterView) -> Decision:
        """Ask the policy, or leave everything as it is if that was done not long ago."""
        jobs = frozenset(job.id for job in view.jobs)
        if (
            self.interval_s is not None
            and jobs == self._jobs
            and view.now_s < self._decided_at_s + WAKE_SHARE * view.now_s
        ):
            return Decision({}, others_stay=True)
        self._decided_at_s, self._jobs = view.now_s, jobs
        return Sparing.decide(self, view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The live jobs, the slots in service and the rules of a service. ``extra`` is one job more, if one was added."""

    now_s: float
    cluster: Cluster | None
    policy_text: str
    patience_s: float
    quotas: Mapping[str, Mapping[str, int]]
    may_borrow: frozenset[str]
    jobs: tuple[LiveJob, ...] = field(repr=False)
    extra: ExtraJob | None = None

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """A snapshot as ``GET /snapshot`` describes it."""
        return cls(
            now_s=plain["now_s"],
            cluster=None if plain["cluster"] is None else Cluster.from_dict(plain["cluster"]),
            policy_text=plain["policy"],
            patience_s=plain["patience_s"],
            quotas=plain["quotas"],
            may_borrow=frozenset(plain["may_borrow"]),
            jobs=tuple(job_from_dict(job) for job in plain["jobs"]),
        )

    def plus(self, extra: ExtraJob) -> Self:
        """The same with one job more, which is submitted now."""
        spec = JobSpec(name=extra.name, command=("true",), min_slots=extra.slots, max_slots=extra.slots)
        state = JobState.submitted(job_id=EXTRA_JOB, spec=spec, at_s=self.now_s)
        return replace(self, jobs=(*self.jobs, LiveJob(state=state, elastic=False)), extra=extra)

    def never(self, cluster: Cluster) -> frozenset[str]:
        """The jobs that want slots and can never have them on a cluster."""
        return frozenset(
            job.id
            for job in self.jobs
            if job.wants_slots
            and not (
                fits(job, cluster)
                and can_start(job, cluster, self.quotas.get(job.id, {}), self.may_borrow.__contains__)
            )
        )

    def world(self, cluster: Cluster, *, rescale_s: float | None = None) -> WhatIf:
        """What the jobs that can run on a cluster have left to do; of the extra job, all."""
        never = self.never(cluster)
        found = what_if([job for job in self.jobs if job.id not in never], cluster, self.now_s, rescale_s=rescale_s)
        if self.extra is None:
            return found
        traces = (
            replace(trace, duration_s=self.extra.seconds) if trace.name == EXTRA_JOB else trace
            for trace in found.workload.jobs
        )
        workload = replace(found.workload, jobs=tuple(traces))
        return replace(found, workload=workload, guessed=found.guessed - {EXTRA_JOB})

    def policy(self, text: str) -> Coarse:
        """A policy under the rules of the service: quotas, protection of running jobs, and what owners have used."""
        return Coarse(
            restrained(
                *(text, self.jobs, self.now_s),
                lambda job_id: self.quotas.get(job_id, {}),
                self.may_borrow.__contains__,
                self.patience_s,
            )
        )


def notes(snapshot: Snapshot, cluster: Cluster, world: WhatIf) -> list[str]:
    """What somebody who reads a simulation's results should know of it."""
    never, guessed = sorted(snapshot.never(cluster)), sorted(world.guessed)
    return [
        *([f"left out, because they need more slots than they can have: {', '.join(never)}"] if never else []),
        *([f"how long these take is a guess: {', '.join(guessed)}"] if guessed else []),
    ]
