"""The messages between a job's supervisor and its workers.

Each message is one line of JSON, an object with its ``kind`` and its fields (``geminid.wire``). Reading is strict: an
unknown kind, a missing or surplus field, a value of the wrong type or out of its range, or a line that is too long is a
``ProtocolError``, and the connection that it came from is closed. Every number is bounded by the type of its field, so
that no computation with it can overflow. See ``docs/worker-protocol.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from geminid.wire.codec import MAX_LINE_BYTES, Codec
from geminid.wire.codec import Message as Tagged
from geminid.wire.codec import ProtocolError as ProtocolError

#: The version of the protocol; both ends must have the same.
PROTOCOL_VERSION = 1

#: Time between two reports of a job's leader, in seconds.
REPORT_S = 1.0

#: Time between two searches of the leader for a better batch plan, in seconds.
TUNE_S = 5.0

#: Longest line, in bytes.
LONGEST_LINE_BYTES = MAX_LINE_BYTES

#: How many metrics a message may have; the others are dropped.
MOST_METRICS = 64

#: Longest name of a metric, in characters; longer names are cut.
LONGEST_METRIC_NAME = 64

#: Largest whole number: up to here, floating-point numbers are exact.
LARGEST_COUNT = 2**53

#: Largest absolute value of a time or duration, in seconds: 30,000 years.
LARGEST_TIME_S = 1e12

#: Largest absolute value of other floating-point numbers: their squares and products are still finite.
LARGEST_NUMBER = 1e120

#: Longest text, in characters.
LONGEST_TEXT = 1 << 16

#: Longest list.
LONGEST_LIST = 1 << 16

Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
#: A whole number that may be a divisor.
Positive = Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]
Seconds = Annotated[float, Meta(ge=-LARGEST_TIME_S, le=LARGEST_TIME_S)]
Number = Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Samples = Annotated[float, Meta(ge=-LARGEST_COUNT, le=LARGEST_COUNT)]
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]

#: A metric: a number, or the name of a value that JSON cannot express as a number.
Unbounded = Literal["nan", "inf", "-inf"]
Metric = float | Unbounded
MetricsByName = Annotated[
    dict[Annotated[str, Meta(max_length=LONGEST_METRIC_NAME)], Metric], Meta(max_length=MOST_METRICS)
]

#: What a worker is doing: ``waiting`` for a ``Form``, ``forming`` a group, ``opening`` the first batch, ``loading``
#: data; in the body of the loop ``training``, in the model's ``forward``, ``computing`` gradients, ``compiling``,
#: ``synchronising`` with its peers, ``stepping`` the optimiser; ``between`` epochs; ``left`` the loop; ``finished``.
Phase = Literal[
    "waiting",
    "forming",
    "opening",
    "loading",
    "training",
    "forward",
    "computing",
    "compiling",
    "synchronising",
    "stepping",
    "between",
    "left",
    "finished",
]


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch plan: samples per slot and pass, and the passes that only accumulate before the one that synchronises."""

    per_slot_batch: Positive
    accumulation_steps: Count = 0


# --------------------------------------------------------------------------- from worker to supervisor


class Hello(Tagged, frozen=True):
    """The first line on every connection. A worker that reconnects names its generation; 0 is none."""

    token: Text
    worker: Text
    pid: Count
    version: Count = PROTOCOL_VERSION
    generation: Count = 0


class Ready(Tagged, frozen=True):
    """The script has reached its training loop: everything is imported and built, and the worker waits for a ``Form``.

    The limits are those of its batch sizes. ``dataset_samples`` and ``work_samples`` (samples in all epochs) are None
    for a stream of unknown length. The work is done when ``work_samples`` were consumed or, with ``by_progress``, when
    that much progress was made. ``meeting`` is where others can meet if this worker is the first of a generation:
    ``tcp:host:port`` of a store of its own, on machines that share no folder.
    """

    initial_batch: Positive
    largest_batch: Positive
    smallest_per_slot: Positive
    largest_per_slot: Positive
    parameter_count: Count
    dataset_samples: Count | None = None
    work_samples: Count | None = None
    meeting: Text | None = None
    by_progress: bool = False


class Joined(Tagged, frozen=True):
    """The worker is part of a generation and about to train.

    Times are of the machine's monotonic clock: ``stopped_at_s`` when the last step before ended (None if it was not
    training), ``resumed_at_s`` when training continues. ``received_bytes`` is the size of the state that it was sent; 0
    if it had its own. With ``restored`` the state comes from a checkpoint, or is new; ``samples`` is how far it is.
    """

    generation: Count
    rank: Count
    size: Positive
    step: Count
    resumed_at_s: Seconds
    stopped_at_s: Seconds | None = None
    received_bytes: Count = 0
    restored: bool = False
    samples: Count = 0


class FirstStep(Tagged, frozen=True):
    """The first optimiser step of a generation has ended, at this time of the machine's monotonic clock."""

    generation: Count
    ended_at_s: Seconds


class Lost(Tagged, frozen=True):
    """A collective operation failed: a peer is gone. The state is intact; the worker waits for the next ``Form``."""

    generation: Count
    reason: Text


class Leaving(Tagged, frozen=True):
    """The worker has left or stopped, as requested, and its process is about to end.

    ``stopped_at_s`` is when its last step ended, on the machine's monotonic clock.
    """

    generation: Count
    stopped_at_s: Seconds | None = None


class Heartbeat(Tagged, frozen=True):
    """Sent twice a second by a separate thread, with what the training thread is doing and for how long.

    ``usual_s`` is the longest duration of any part of a pass so far (loading, forward, backward, stepping); None before
    enough passes were measured.
    """

    generation: Count
    step: Count
    phase: Phase
    phase_s: Seconds
    usual_s: Seconds | None = None


class Progress(Tagged, frozen=True):
    """What the leader measured since its last report, and how far training is.

    Step times are means over ``steps`` steps with this plan (None if no step was timed): ``accumulation_s`` of a pass
    without synchronisation, ``step_s`` of one with it. ``squared_gradient`` and ``variance`` (at M0) give the
    noise scale; None while unknown. ``samples`` counts consumed samples of all epochs, ``progress`` useful ones.
    """

    generation: Count
    step: Count
    epoch: Count
    samples: Count
    progress: Samples
    size: Positive
    plan: Plan
    total_batch: Count
    steps: Count = 0
    accumulation_s: Seconds | None = None
    step_s: Seconds | None = None
    squared_gradient: Number | None = None
    variance: Number | None = None
    learning_rate_factor: Number = 1.0
    metrics: MetricsByName = field(default_factory=dict)


class Metrics(Tagged, frozen=True):
    """The metrics of a worker that does not lead."""

    generation: Count
    metrics: MetricsByName


class Checkpointed(Tagged, frozen=True):
    """A checkpoint is on disk. ``pause_s`` is how long training paused for it."""

    step: Count
    samples: Count
    path: Text
    size_bytes: Count
    seconds: Number
    pause_s: Seconds


class Finished(Tagged, frozen=True, omit_defaults=True):
    """Training is complete; the script may continue before it ends.

    It was ``cut_short`` if the script has ended with exit code 0 inside its loop over epochs (``sys.exit``).
    """

    step: Count
    samples: Count
    cut_short: bool = False


class Failed(Tagged, frozen=True, omit_defaults=True):
    """The script raised an exception, and the process is about to end.

    With ``hold``, a retry is useless before a person has dealt with the reason.
    """

    reason: Text
    hold: bool = False


# --------------------------------------------------------------------------- from supervisor to worker


class Welcome(Tagged, frozen=True):
    """The answer to a ``Hello`` with the right token: the time between heartbeats and between reports.

    After ``orphan_s`` without a supervisor, a worker saves and stops.
    """

    heartbeat_s: Seconds
    orphan_s: Seconds
    report_s: Seconds = 1.0


class Refused(Tagged, frozen=True):
    """The answer to any other ``Hello``: this job has no such worker. The process that sent it ends at once."""

    job: Text


class Form(Tagged, frozen=True, omit_defaults=True):
    """Form this generation of the group at the next step that all of its workers agree on.

    ``members`` are the workers by rank; those that have the state come first. A worker of the current generation that
    is not among them leaves. ``rendezvous`` is where the members meet: ``file:`` and an absolute path, or
    ``tcp:host:port/name``, where the first member listens. Without a plan the leader chooses one. With ``broken`` the
    current generation cannot continue (a member is gone): there is nothing to agree on, and workers that wait in it
    stop waiting. With ``hold`` the members are fewer than the job needs: they take no step before the next ``Form``.
    """

    generation: Count
    members: Annotated[tuple[Text, ...], Meta(max_length=LONGEST_LIST)]
    rendezvous: Text
    plan: Plan | None = None
    broken: bool = False
    hold: bool = False


class Retune(Tagged, frozen=True):
    """Train with this batch plan from now on; with None, the leader chooses again."""

    plan: Plan | None


class SaveCheckpoint(Tagged, frozen=True):
    """Write a checkpoint now."""


class Stop(Tagged, frozen=True):
    """Stop at the next step, after writing a checkpoint if ``save``, and end the process."""

    save: bool = True


FromWorker = (
    Hello
    | Ready
    | Joined
    | FirstStep
    | Lost
    | Leaving
    | Heartbeat
    | Progress
    | Metrics
    | Checkpointed
    | Finished
    | Failed
)
FromSupervisor = Welcome | Refused | Form | Retune | SaveCheckpoint | Stop
Message = FromWorker | FromSupervisor

FROM_WORKER: Codec[FromWorker] = Codec(FromWorker)
FROM_SUPERVISOR: Codec[FromSupervisor] = Codec(FromSupervisor)
_ANY: Codec[Message] = Codec(Message)

encode, decode = _ANY.encode, _ANY.decode


def credible_metrics(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """The metrics that are sent: at most ``MOST_METRICS`` numbers, with names that are not too long."""
    kept: dict[str, Metric] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            continue
        if len(kept) < MOST_METRICS:
            kept[str(name)[:LONGEST_METRIC_NAME]] = number if math.isfinite(number) else _name_of(number)
    return kept


def credible(number: float | None, largest: float = LARGEST_NUMBER) -> float | None:
    """A measurement that may be sent; None if it is not finite or implausibly large."""
    return number if number is not None and abs(number) <= largest else None


def averaged(reports: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Metrics of several workers: each is the mean over the workers that have it."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            values.setdefault(name, []).append(float(value))
    return credible_metrics({name: sum(some) / len(some) for name, some in values.items()})


def _name_of(number: float) -> Unbounded:
    if math.isnan(number):
        return "nan"
    return "inf" if number > 0.0 else "-inf"
