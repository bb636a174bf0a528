"""A job as the service knows it: its state, what was measured of it, where it is to run, and its story.

A value that never changes; :class:`~geminid.serve.state.ServiceState` says what records make of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any

from geminid.configuration import BatchPlan, Placement
from geminid.goodput.batchplan import BatchLimits
from geminid.goodput.efficiency import GradientStats
from geminid.goodput.profile import Observation, Profile
from geminid.job import JobKind, JobSpec
from geminid.jobstate import JobPhase, JobState
from geminid.serve import records as r
from geminid.serve.jobarray import JobArray

#: How a job can be over, in words.
ENDS = {JobPhase.SUCCEEDED: "succeeded", JobPhase.FAILED: "failed", JobPhase.CANCELLED: "was cancelled"}

#: What is said of a job that succeeded although its script left training before it was over.
BEFORE_THE_END = "its script ended with exit code 0 before training was over"

#: How much of a job's story is kept.
LONGEST_STORY = 200

#: How much is kept of why something happened.
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class StoryLine:
    """Something that happened to a job, for people. ``pause_s``: how long training stood still for it."""

    at_s: float
    text: str
    slots: int
    pause_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """How long a job trained in one way, and how many steps it made in that time."""

    gpu_type: str
    slots: int
    per_slot_batch: int
    accumulation_steps: int
    seconds: float
    steps: int

    def alike(self, other: Stretch) -> bool:
        """Whether it was trained in the same way."""
        return replace(self, seconds=other.seconds, steps=other.steps) == other

    def observed(self, profile: Profile | None) -> Observation | None:
        """What was measured of steps like these."""
        seen = () if profile is None else profile.observations
        alike = (one for one in seen if (one.slots, one.per_slot_batch) == (self.slots, self.per_slot_batch))
        return next(alike, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """What a job's script says of itself when it calls ``geminid.init``.

    Its work is counted in samples consumed, or with ``by_progress`` in useful samples.
    """

    batch: BatchLimits
    parameter_count: int
    dataset_samples: int | None = None
    work_samples: int | None = None
    by_progress: bool = False

    @classmethod
    def of(
        cls, *, initial_batch: int, largest_batch: int, smallest_per_slot: int, largest_per_slot: int, **others: Any
    ) -> ScriptFacts:
        """From the fields of a record, a snapshot or the API."""
        batch = BatchLimits(
            initial=initial_batch,
            largest=max(largest_batch, initial_batch),
            smallest_per_slot=smallest_per_slot,
            largest_per_slot=largest_per_slot,
        )
        return cls(batch=batch, **others)

    def to_dict(self) -> dict[str, int | None]:
        """As the fields of a record, a snapshot or the API."""
        others = asdict(self)
        del others["batch"]
        return {
            "initial_batch": self.batch.initial,
            "largest_batch": self.batch.largest,
            "smallest_per_slot": self.batch.smallest_per_slot,
            "largest_per_slot": self.batch.largest_per_slot,
            **others,
        }


@dataclass(frozen=True, slots=True)
class TimeUse:
    """How a job stands to its time limit, which counts from when it had had slots for ``from_s``.

    ``warned``: that the limit is near. ``is_up``: it is over, and the job ends.
    """

    from_s: float = 0.0
    warned: bool = False
    is_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """How a job came to be.

    ``request`` is the submitter's key by which a repeated request is recognised, and ``digest`` stands for what was
    asked for. ``code`` names the snapshot of its code, if the executor has one. It is ``blocked`` until the jobs are
    over that it is to run after. ``array`` is what has become of its elements, if it is an array: such a job holds no
    slots itself.
    """

    request: str | None = None
    digest: str = ""
    code: str = ""
    blocked: bool = False
    array: JobArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob(Submission):
    """A job, as the service knows it.

    ``kind`` is how it is launched, and ``kind_reason`` why; it is ``elastic`` if it can be resized while it runs.
    ``wish`` is what it was last asked to do: ``run``, ``pause`` or ``cancel``, and ``wished`` who asked for it.
    ``held_until_s`` keeps a job that crashed from being started again at once, ``stays_until_s`` one that runs from
    growing, and ``stays_put_until_s`` from moving. ``why`` is the reason of the last plan
    that changed its slots. It is ``over_budget`` if it is cancelled for having used all the slots × time that it may;
    ``time`` is what it has used of its time limit.
    ``measured`` and ``gradient`` are what its reports say of its speed and noise, and
    ``stretches`` how long it trained for how many steps in all; ``reported`` is the last report, by time and step.
    ``saved_samples`` are those of ``samples`` that are safe in a checkpoint. ``fruitless`` is how many failures there
    were in a row, without progress in between: beyond the ``failed_samples`` at which one was before. It has trained on
    the slots that it has since ``formed_at_s``. Its owner had it paused for ``rested_s`` in all, up to
    ``rests_since_s``, if it is.
    """

    state: JobState
    elastic: bool
    kind: JobKind = JobKind.PLAIN
    kind_reason: str = ""
    target: Placement | None = None
    why: str = ""
    wish: str = "run"
    wished: str = ""
    over_budget: bool = False
    time: TimeUse = TimeUse()
    held_until_s: float = 0.0
    stays_until_s: float = 0.0
    stays_put_until_s: float = 0.0
    limits: ScriptFacts | None = None
    measured: tuple[tuple[str, Profile], ...] = ()
    gradient: GradientStats | None = None
    samples: int = 0
    saved_samples: int = 0
    fruitless: int = 0
    failed_samples: int = -1
    step: int = 0
    epoch: int = 0
    learning_rate_factor: float = 1.0
    metrics: tuple[tuple[str, float | str], ...] = ()
    stretches: tuple[Stretch, ...] = ()
    reported: tuple[float, int] | None = None
    pauses_s: tuple[float, ...] = ()
    restarts: int = 0
    target_since_s: float = 0.0
    formed_at_s: float = 0.0
    executed_before_s: float = 0.0
    rested_s: float = 0.0
    rests_since_s: float | None = None
    story: tuple[StoryLine, ...] = ()

    def __post_init__(self) -> None:
        if self.elastic and self.kind is not JobKind.ELASTIC:  # an earlier version wrote nothing else
            object.__setattr__(self, "kind", JobKind.ELASTIC)

    @property
    def id(self) -> str:
        """The job's identifier."""
        return self.state.job_id

    @property
    def spec(self) -> JobSpec:
        """What was asked for."""
        return self.state.spec

    @property
    def phase(self) -> JobPhase:
        """Where in its life it is."""
        return self.state.phase

    @property
    def work_samples(self) -> float | None:
        """All that it has to do, in useful samples; what the script says goes before what the file says."""
        if self.limits is not None and self.limits.work_samples is not None:
            return float(self.limits.work_samples)
        return self.spec.work_samples

    @property
    def done_samples(self) -> float:
        """What it has done of its work, as its script counts: samples consumed, or progress."""
        by_progress = self.limits is not None and self.limits.by_progress
        return self.state.progress_samples if by_progress else float(self.samples)

    @property
    def wants_slots(self) -> bool:
        """Whether a policy should consider it."""
        is_active = not self.phase.is_terminal and self.phase is not JobPhase.PAUSED
        return self.wish == "run" and is_active and not self.blocked and self.array is None

    @property
    def shown_phase(self) -> JobPhase:
        """Its phase, for people: an array runs while one of its elements does."""
        runs = self.array is not None and self.array.running and self.phase is JobPhase.PENDING
        return JobPhase.RUNNING if runs else self.phase

    @property
    def held_slots(self) -> int:
        """The slots that it holds, or that the elements of an array hold."""
        return self.state.num_slots if self.array is None else self.array.slots

    def executed_s(self, now_s: float) -> float:
        """Seconds for which it has been planned to have slots."""
        return self.executed_before_s + (now_s - self.target_since_s if self.target is not None else 0.0)

    def service_gpu_s(self, now_s: float) -> float:
        """Slots × seconds that it has had up to now; of an array, up to the last reports of its elements."""
        if self.array is not None:
            return self.array.gpu_s
        since_s = 0.0 if self.phase.is_terminal else max(now_s - self.state.updated_at_s, 0.0)
        return self.state.attained_service_gpu_s + self.state.num_slots * since_s

    def failed_again(self) -> LiveJob:
        """The job with one failure more in a row, or the first if it had come further than at the last."""
        further = self.samples > self.failed_samples
        return replace(
            self,
            fruitless=1 if further else self.fruitless + 1,
            failed_samples=max(self.samples, self.failed_samples),
        )

    def with_story(self, at_s: float, text: str, pause_s: float | None = None) -> LiveJob:
        """The job with another line in its story, at most ``LONGEST_STORY`` of them."""
        line = StoryLine(at_s, text, self.state.num_slots, pause_s)
        return replace(self, story=(*self.story, line)[-LONGEST_STORY:])


def may_be_resized(job: LiveJob, like: LiveJob | None = None) -> bool:
    """Whether a job is elastic, or one ``like`` it is or was: then it will be as soon as it runs."""
    was_elastic = bool(job.measured) or (like is not None and like.elastic)
    return job.elastic or (job.kind is JobKind.UNKNOWN and was_elastic)


def total_batch(job: LiveJob, plan: BatchPlan, slots: int) -> int:
    """The samples of a step: never more than the job's largest batch, for which some slots have one less."""
    total = plan.total_batch(slots)
    return total if job.limits is None else min(total, job.limits.batch.largest)


def observation_of(record: r.JobProgressed) -> Observation | None:
    """The step times of a report, if it has any that can be believed."""
    if record.step_s is None:
        return None
    seen = Observation(
        nodes=record.nodes,
        slots=record.slots,
        per_slot_batch=record.per_slot_batch,
        accumulation_s=record.accumulation_s if record.accumulation_s is not None else record.step_s,
        step_s=record.step_s,
        busiest_node_slots=-(-record.slots // record.nodes),
        link_slowdown=record.link_slowdown,
    )
    return seen if seen.problem() is None else None


def printable(text: str) -> str:
    """Text from a process on one line, without control characters, and not too long."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())[:LONGEST_REASON]


def job_to_dict(job: LiveJob) -> dict[str, Any]:
    """A job as plain data, with its secrets."""
    plain: dict[str, Any] = {one.name: getattr(job, one.name) for one in fields(job)}
    plain["state"] = job.state.to_dict()
    plain["target"] = None if job.target is None else job.target.to_dict()
    plain["limits"] = None if job.limits is None else job.limits.to_dict()
    plain["measured"] = {name: [asdict(seen) for seen in known.observations] for name, known in job.measured}
    plain["gradient"] = None if job.gradient is None else [job.gradient.squared_gradient, job.gradient.variance]
    plain["metrics"] = dict(job.metrics)
    plain["pauses_s"] = list(job.pauses_s)
    plain["stretches"] = [list(astuple(stretch)) for stretch in job.stretches]
    plain["reported"] = None if job.reported is None else list(job.reported)
    plain["time"] = asdict(job.time)
    plain["array"] = None if job.array is None else job.array.to_dict()
    plain["story"] = [[line.at_s, line.text, line.slots, line.pause_s] for line in job.story]
    return plain


def job_from_dict(plain: Mapping[str, Any]) -> LiveJob:
    """The job that was written."""
    values = dict(plain)
    values["state"] = JobState.from_dict(plain["state"])
    values["kind"] = JobKind(plain.get("kind", JobKind.PLAIN))
    values["target"] = None if plain["target"] is None else Placement.from_dict(plain["target"])
    values["limits"] = None if plain["limits"] is None else ScriptFacts.of(**plain["limits"])
    values["measured"] = tuple(
        (name, Profile(tuple(Observation(**seen) for seen in known))) for name, known in plain["measured"].items()
    )
    values["gradient"] = None if plain["gradient"] is None else GradientStats(*plain["gradient"])
    values["metrics"] = tuple(plain["metrics"].items())
    values["pauses_s"] = tuple(plain["pauses_s"])
    values["stretches"] = tuple(Stretch(*stretch) for stretch in plain.get("stretches", ()))
    values["reported"] = None if plain.get("reported") is None else tuple(plain["reported"])
    values["time"] = TimeUse(**plain.get("time", {}))
    values["array"] = None if plain.get("array") is None else JobArray.from_dict(plain["array"])
    values["story"] = tuple(StoryLine(*line) for line in plain["story"])
    return LiveJob(**values)
