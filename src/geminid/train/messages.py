"""What a job's supervisor and its workers say to each other: plain values, and their form on the wire.

Each message is one line of JSON, an object with its ``kind`` and its fields; nothing is ever unpickled. Reading is
strict: an unknown kind, a missing or surplus field, a value of the wrong type or a line that is too long is a
``ProtocolError``, and the connection that it came from is closed. See ``docs/worker-protocol.md``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

#: Both ends must speak the same.
PROTOCOL_VERSION = 1

#: How often the leader of a job's workers reports, and how often it looks for a better batch plan.
REPORT_S, TUNE_S = 1.0, 5.0

#: Longer lines are refused.
LONGEST_LINE_BYTES = 1 << 20

#: At most so many metrics are passed on, under names of at most so many characters.
MOST_METRICS, LONGEST_METRIC_NAME = 64, 64

#: A metric: a number, or by name what JSON has no number for. A loss that is one of these is worth knowing.
Unbounded = Literal["nan", "inf", "-inf"]
Metric = float | Unbounded

#: What a worker may be doing: waiting to be told its place, forming a group, loading data, being in the body of the
#: user's loop, there in the model's backward, waiting for its peers in a collective operation, being in the rest of the
#: body, being between two epochs, having left the loop over epochs, or having come to its end.
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


class ProtocolError(Exception):
    """A line that is no message; one sentence says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch plan: samples per slot and pass, and the passes that only accumulate before the one that synchronises."""

    per_slot_batch: int
    accumulation_steps: int = 0


# --------------------------------------------------------------------------- from worker to supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first line on every connection. A worker that reconnects says which generation it is in; 0 is none."""

    token: str
    worker: str
    pid: int
    version: int = PROTOCOL_VERSION
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The script has got as far as its training loop: all is imported and built, and the worker waits for a ``Form``.

    The limits are those of its batch sizes; ``dataset_samples`` is None for a stream of unknown length, and ``work``
    (samples in all epochs) with it. Work is done when so many samples were consumed or, with ``by_progress``, when so
    much progress was made.
    ``meeting`` is where others can meet if this worker is the first of a generation:
    ``tcp:host:port`` of a store of its own, on machines that share no folder.
    """

    initial_batch: int
    largest_batch: int
    smallest_per_slot: int
    largest_per_slot: int
    parameter_count: int
    dataset_samples: int | None = None
    work_samples: int | None = None
    meeting: str | None = None
    by_progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The worker is part of a generation and about to train.

    Times are of the machine's monotonic clock: ``stopped_at_s`` when the last step before ended (None for one that was
    not training), ``resumed_at_s`` when training may go on. ``received_bytes`` is the state it was sent: none where it
    had its own. ``restored`` says that the state comes from a checkpoint, or is fresh; ``samples`` how far it is.
    """

    generation: int
    rank: int
    size: int
    step: int
    resumed_at_s: float
    stopped_at_s: float | None = None
    received_bytes: int = 0
    restored: bool = False
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """The first optimiser step of a generation has ended, at this time of the machine's monotonic clock."""

    generation: int
    ended_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A collective operation failed: somebody is gone. The state is intact; the worker waits for the next ``Form``."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The worker has left or stopped, as it was told, and its process is about to end.

    ``stopped_at_s`` is when its last step ended, on the machine's monotonic clock.
    """

    generation: int
    stopped_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Sent twice a second by a thread of its own, with what the training thread is doing and for how long.

    ``usual_s`` is the longest that any part of a pass took (loading, forward, backward, stepping); None where no pass
    has shown yet what is usual.
    """

    generation: int
    step: int
    phase: Phase
    phase_s: float
    usual_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the leader measured since its last report, and how far training is.

    Step times are means over ``steps`` steps with this plan (None where no step was timed): ``accumulation_s`` of a
    pass without synchronisation, ``step_s`` of one with it. ``squared_gradient`` and ``variance`` (at M0) give the
    noise scale; None while unknown. ``samples`` counts consumed samples of all epochs, ``progress`` useful ones.
    """

    generation: int
    step: int
    epoch: int
    samples: int
    progress: float
    size: int
    plan: Plan
    total_batch: int
    steps: int = 0
    accumulation_s: float | None = None
    step_s: float | None = None
    squared_gradient: float | None = None
    variance: float | None = None
    learning_rate_factor: float = 1.0
    metrics: dict[str, Metric] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of a worker that does not lead."""

    generation: int
    metrics: dict[str, Metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """A checkpoint is safely on disk. ``pause_s`` is how long training stood still for it."""

    step: int
    samples: int
    path: str
    size_bytes: int
    seconds: float
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Training is complete; the script may still do something before it ends."""

    step: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The script raised an exception, and the process is about to end."""

    reason: str


# --------------------------------------------------------------------------- from supervisor to worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to a ``Hello`` with the right token: how often to say that one lives, and to report."""

    heartbeat_s: float
    orphan_s: float
    report_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The answer to any other ``Hello``: this job has no such worker. Whoever takes itself for one ends at once."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Form this generation of the group at the next step that all of its workers agree on.

    ``members`` are the workers by rank; those who have the state come first. A worker of the current generation who
    is not among them leaves. ``rendezvous`` is where the members find each other: ``file:`` and an absolute path, or
    ``tcp:host:port/name``, where the first member listens. Without a plan the leader chooses one. ``broken`` says that
    the current generation cannot go on (a member is gone): there is nothing to agree on, and whoever waits in it need
    not wait any longer.
    """

    generation: int
    members: tuple[str, ...]
    rendezvous: str
    plan: Plan | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retune:
    """Train with this batch plan from now on; with None, choose for yourselves again."""

    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Write a checkpoint now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
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

_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Message)}
_HINTS: dict[type[Any], dict[str, Any]] = {kind: get_type_hints(kind) for kind in (Plan, *get_args(Message))}


def encode(message: Message) -> bytes:
    """The message as a line of JSON, with its newline. Numbers that JSON cannot hold are refused."""
    document = {"kind": type(message).__name__.lower(), **_plain(message)}
    line = json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    if len(line) > LONGEST_LINE_BYTES:
        raise ProtocolError(f"a message of {len(line)} bytes is longer than {LONGEST_LINE_BYTES}")
    return line


def decode(line: bytes) -> Message:
    """The message of a line.

    Raises:
        ProtocolError: the line is not a message.
    """
    if len(line) > LONGEST_LINE_BYTES:
        raise ProtocolError(f"a line of {len(line)} bytes is longer than {LONGEST_LINE_BYTES}")
    try:
        document = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise ProtocolError(f"not JSON: {str(problem)[:80]}") from None
    if not isinstance(document, dict):
        raise ProtocolError("a message is a JSON object")
    name = document.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError(f"unknown kind of message: {str(name)[:40]!r}")
    value = _read(kind, document, str(name))
    assert isinstance(value, get_args(Message))
    return value  # type: ignore[no-any-return]


def credible_metrics(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """Metrics that may be sent: numbers, not too many of them, under names that are not too long."""
    kept: dict[str, Metric] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            continue
        if len(kept) < MOST_METRICS:
            kept[str(name)[:LONGEST_METRIC_NAME]] = number if math.isfinite(number) else _name_of(number)
    return kept


def averaged(reports: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Metrics of several workers: every one is the mean over the workers that have it."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            values.setdefault(name, []).append(float(value))
    return credible_metrics({name: sum(some) / len(some) for name, some in values.items()})


def _name_of(number: float) -> Unbounded:
    if math.isnan(number):
        return "nan"
    return "inf" if number > 0.0 else "-inf"


def _plain(value: Any) -> dict[str, Any]:
    document = {}
    for one in fields(value):
        item = getattr(value, one.name)
        document[one.name] = _plain(item) if isinstance(item, Plan) else item
    return document


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _read(kind: type[Any], document: dict[str, Any], where: str) -> Any:
    """Make a value of this kind, checking every field."""
    hints = _HINTS[kind]
    if surplus := set(document) - set(hints):
        raise ProtocolError(f"{where}: surplus field {str(min(surplus))[:40]!r}")
    values = {
        name: _checked(hint, document[name], f"{where}.{name}") for name, hint in hints.items() if name in document
    }
    try:
        return kind(**values)
    except TypeError:
        missing = min(set(hints) - set(values))
        raise ProtocolError(f"{where}: field {missing!r} is missing") from None


def _checked(hint: Any, value: Any, where: str) -> Any:
    """The value, if it has the type that the hint says."""
    if get_origin(hint) in (Union, UnionType):
        options = get_args(hint)
        if value is None and NoneType in options:
            return None
        return _checked(next(option for option in options if option is not NoneType), value, where)
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif hint in (str, bool):
        if isinstance(value, hint):
            return value
    elif get_origin(hint) is tuple:
        if isinstance(value, list):
            return tuple(_checked(get_args(hint)[0], item, where) for item in value)
    elif get_origin(hint) is dict:
        if isinstance(value, dict) and len(value) <= MOST_METRICS:
            return {name[:LONGEST_METRIC_NAME]: _metric(item, where) for name, item in value.items()}
    elif isinstance(value, dict):
        return _read(hint, value, where)
    raise ProtocolError(f"{where} cannot be {str(value)[:40]!r}")


def _metric(value: Any, where: str) -> Metric:
    return _checked(Unbounded if isinstance(value, str) else float, value, where)  # type: ignore[no-any-return]
