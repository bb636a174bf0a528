"""The records of the service's log: one for each thing that happened, in the order in which it happened.

The whole state of the service is a function of its records (``state.py``), so a record says what happened and not what
to do. On disk a record is its kind and a JSON object of its fields; records that are there are never changed, and new
fields come with a default, so that older logs can still be read. Secrets of jobs (their environment) are in it: the
file is its owner's alone, and everything that leaves the service is redacted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from geminid.configuration import Placement
from geminid.job import JobSpec
from geminid.serve.jobarray import element_id

#: Written with every store; a store of another number is refused. Version 1 had no hash chain.
SCHEMA_VERSION = 2


class UnreadableRecord(Exception):
    """A record that this version cannot read; one sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStarted:
    """A service took over the store."""

    epoch: int
    version: str
    policy: str
    cluster: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """Somebody submitted a job. ``elastic``: it can be resized while it runs.

    ``job_kind`` is how it is launched, and ``kind_reason`` why: nothing in the logs of earlier versions, where what is
    not elastic is plain.
    ``request`` is the submitter's own name for the request, by which a repeated one is recognised, and ``digest`` what
    stands for what was asked for. ``code`` names the snapshot of its code, if there is one.
    """

    job_id: str
    spec: JobSpec
    elastic: bool
    request: str | None = None
    digest: str = ""
    code: str = ""
    job_kind: str = ""
    kind_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayExpanded:
    """The next elements of an array were made: from now on each is a job that waits for slots."""

    job_id: str
    elements: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementSkipped:
    """An element of an array was cancelled before it was made."""

    job_id: str
    element: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DependenciesSettled:
    """The jobs that a job waits for are over as it asks (``met``), or one of them is not and never will be."""

    job_id: str
    met: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimitNear:
    """A job's time limit is over in this many seconds."""

    job_id: str
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimitReached:
    """A job has had slots for as long as it may: it saves what it has done, and ends or goes back to the queue."""

    job_id: str
    requeue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKindKnown:
    """The kind of a job became known while it runs."""

    job_id: str
    job_kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A decision: the slots that jobs shall have from now on (none: None), for those jobs whose slots change."""

    targets: dict[str, Placement | None]
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarting:
    """A job's processes are being started on these slots."""

    job_id: str
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReady:
    """A job's script has said how it can be run, and what it counts: samples consumed, or progress (useful samples)."""

    job_id: str
    initial_batch: int
    largest_batch: int
    smallest_per_slot: int
    largest_per_slot: int
    parameter_count: int
    dataset_samples: int | None = None
    work_samples: int | None = None
    by_progress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRescaling:
    """A running job is on its way to other slots; the placement is all that it holds meanwhile."""

    job_id: str
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFormed:
    """A job's workers train together on exactly these slots. ``pause_s`` is how long training stood still for it.

    ``samples`` is how many a state that was ``restored``, or is new, has consumed (None: not known).
    """

    job_id: str
    placement: Placement
    pause_s: float | None = None
    restored: bool = False
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed:
    """A job's latest report: how far it is, how fast its steps are, how noisy its gradients, and its own metrics.

    A metric that is not finite is written as ``nan``, ``inf`` or ``-inf``. ``link_slowdown`` is that of the links
    between its nodes (:mod:`geminid.goodput.topology`).
    """

    job_id: str
    progress: float
    samples: int
    step: int
    epoch: int
    slots: int
    nodes: int
    per_slot_batch: int
    accumulation_steps: int
    accumulation_s: float | None = None
    step_s: float | None = None
    squared_gradient: float | None = None
    variance: float | None = None
    learning_rate_factor: float = 1.0
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    link_slowdown: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheckpointed:
    """A job's state is safely on disk, up to this many consumed samples."""

    job_id: str
    samples: int
    size_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """One of a job's workers ended although it should not have."""

    job_id: str
    worker: str
    slot: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopping:
    """A job's processes were asked to end."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """A job's processes are gone.

    ``how``: it ``succeeded``; it ``failed`` and is not tried again; it was ``stopped`` on request; it ``crashed``,
    which counts against its retries; or it was ``lost`` with its machine, or ``unstarted`` because that was short of
    something, which do not; or it is ``held``: paused until its owner resumes it. ``failures`` is how
    many of its workers it failed for, where that was why, ``retry_s`` the first delay after a crash, if a rule sets it.
    """

    job_id: str
    how: str
    reason: str = ""
    failures: int = 0
    retry_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuarantined:
    """Something absurd was reported about a job, which therefore has failed; see ``quarantine.py``."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWished:
    """A job is asked to ``run``, to ``pause`` or to ``cancel``; or it is cancelled because it is ``over_budget``.

    With ``from_scratch`` it is to run from the beginning: nothing that it has saved counts any more.
    """

    job_id: str
    wish: str
    by: str
    over_budget: bool = False
    from_scratch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld:
    """A job cannot come to the slots that it was planned for: it is not tried again, or stays as it is, for a while.

    ``placement`` is where it stays, if it runs.
    """

    job_id: str
    for_s: float
    reason: str
    placement: Placement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged:
    """Somebody changed what a job asks for."""

    job_id: str
    by: str
    priority: int | None = None
    min_slots: int | None = None
    max_slots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node is there, with its slots: for the first time, or again."""

    node: str
    gpu_type: str
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """A node is gone, and every process on it."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeForgotten:
    """A node has been gone for a long time and does not count any more; if it comes back, it is a new one."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsTaken:
    """Exactly these slots of a node are used by processes outside Geminid.

    If the node cannot be used for a while, there is a ``reason``, and they are all that no job of ours is on.
    """

    node: str
    slots: list[int]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaving:
    """The owner of a node is about to take it away, or is not any more."""

    node: str
    leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """An operator lets a node take no more work, or take work again."""

    node: str
    drained: bool
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCordoned:
    """A slot takes no more work, or takes work again."""

    node: str
    slot: int
    cordoned: bool
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSet:
    """The most slots that the jobs of a ``queue`` or an ``owner`` may have together; None lifts the limit.

    With ``borrow`` they may have more while no other job can use them.
    """

    of: str
    name: str
    slots: int | None
    by: str
    borrow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRulesSet:
    """An operator has set who may use a queue, and up to which priority: all of its rules, as they are from now on."""

    queue: str
    max_priority: int
    members: list[str]
    by: str
    open: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something that operators should see: a rejected decision, a refused access, a full disk."""

    level: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecovered:
    """An operator continued with what was left of a log, or with an older copy of it; ``lost`` says what is missing.

    No job gets a number up to ``submitted`` any more: there were jobs of these numbers, known or not. ``continued`` are
    jobs that had run although the log does not know it: they continue from their newest checkpoints.
    """

    submitted: int
    lost: str
    continued: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsForgotten:
    """Jobs that were over for long enough; what they used stays in their owners' totals."""

    job_ids: list[str]


Record = (
    ServiceStarted
    | JobSubmitted
    | ArrayExpanded
    | ElementSkipped
    | DependenciesSettled
    | TimeLimitNear
    | TimeLimitReached
    | JobKindKnown
    | Planned
    | JobStarting
    | JobReady
    | JobRescaling
    | JobFormed
    | JobProgressed
    | JobCheckpointed
    | WorkerLost
    | JobStopping
    | JobEnded
    | JobQuarantined
    | JobWished
    | JobHeld
    | JobChanged
    | NodeJoined
    | NodeLeft
    | NodeForgotten
    | SlotsTaken
    | NodeLeaving
    | NodeDrained
    | SlotCordoned
    | QuotaSet
    | QueueRulesSet
    | Noted
    | LogRecovered
    | JobsForgotten
)

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Record)}
_HINTS: dict[type[Any], dict[str, Any]] = {kind: get_type_hints(kind) for kind in KINDS.values()}


def kind_of(record: Record) -> str:
    """The name of the kind of a record."""
    return type(record).__name__


def job_of(record: Record) -> str | None:
    """The job that a record is about, if it is about one."""
    return getattr(record, "job_id", None)


def jobs_of(record: Record) -> set[str]:
    """All jobs that a record is about."""
    if isinstance(record, Planned):
        return set(record.targets)
    if isinstance(record, ArrayExpanded):
        return {record.job_id, *(element_id(record.job_id, element) for element in record.elements)}
    job_id = job_of(record)
    return set() if job_id is None else {job_id}


def to_plain(record: Record) -> dict[str, Any]:
    """The fields of a record as plain data, with the job's secrets."""
    return {one.name: _plain(getattr(record, one.name)) for one in fields(record)}


def encode(record: Record) -> str:
    """The fields of a record as JSON. Numbers that JSON cannot hold are refused."""
    return json.dumps(to_plain(record), allow_nan=False, separators=(",", ":"))


def decode(kind: str, body: str) -> Record:
    """The record of a kind with these fields.

    Raises:
        UnreadableRecord: the kind is unknown, or the fields are not its own.
    """
    known = KINDS.get(kind)
    if known is None:
        raise UnreadableRecord(f"there is no kind of record called {kind!r}")
    try:
        plain = json.loads(body)
        hints = _HINTS[known]
        made: Record = known(**{name: _read(hints[name], value) for name, value in plain.items()})
    except Exception as problem:
        raise UnreadableRecord(f"{kind}: {type(problem).__name__}: {problem}") from None
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, Placement | JobSpec):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _read(hint: Any, value: Any) -> Any:
    if hint in (Placement, Placement | None):
        return None if value is None else Placement.from_dict(value)
    if hint is JobSpec:
        return JobSpec.from_dict(value)
    if hint == dict[str, Placement | None]:
        return {key: None if item is None else Placement.from_dict(item) for key, item in value.items()}
    return value
