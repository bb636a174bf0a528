"""What the interface answers, for its description (``openapi.json``) and for authors of clients.

Times ending in ``_at_s`` are seconds since 1970, other times durations. Nothing is checked against these while the
service answers; a test compares all answers with them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from geminid.job import JobKind
from geminid.jobstate import JobPhase


class Errors(TypedDict):
    """Why a request was refused: one sentence for each mistake."""

    errors: list[str]


class Proof(TypedDict):
    """That the service knows a token: a keyed hash (HMAC-SHA256) of the challenge."""

    proof: str


class Eta(TypedDict):
    """From when to when a job will start and finish; ``guessed`` if something about it had to be.

    The times are since the epoch; the forecast is ``age_s`` old.
    """

    start_at_s: list[float] | None
    finish_at_s: list[float]
    guessed: bool
    age_s: float


class Needs(TypedDict):
    """What a waiting job needs at least (without ``gpu_types``, of any), and what the type with most free slots has."""

    slots: int
    gpu_types: list[str]
    free: int
    in_service: int


class Deadline(TypedDict):
    """Whether a job can meet its deadline: the verdict and why, its earliest finish, and what would help."""

    verdict: Literal["can be met", "may be missed", "cannot be met", "was missed", "cannot be judged"]
    why: str
    due_at_s: float
    earliest_finish_at_s: float | None
    help: list[str]


class BatchPlan(TypedDict):
    """How a job makes up its batch."""

    per_slot_batch_samples: int
    accumulation_steps: int


class Array(TypedDict):
    """What has become of an array: its ``elements`` as they were given, and how many are in which state.

    Those that are ``unqueued`` become jobs of their own as soon as they could start.
    """

    elements: str
    total: int
    unqueued: int
    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int


class JobOrigin(TypedDict):
    """What was submitted."""

    id: str
    name: str
    owner: str | None
    queue: str
    priority: int
    kind: JobKind
    kind_reason: str
    min_slots: int
    max_slots: int | None
    budget_gpu_s: float | None
    time_limit_s: float | None
    submitted_at_s: float
    after: list[str]


class Job(JobOrigin):
    """A job. ``slots`` are those that its processes hold, ``target_slots`` those that the last plan gives it.

    One that was cancelled because its ``gpu_time_budget`` (``budget_gpu_s``) is used up is ``over_budget``; one that
    failed because its time limit is over is ``over_time``. All
    times are the service's, which says what time it is for it (``now_s``): other clocks may have been set meanwhile.
    ``late_s`` is by how much it has missed its deadline.
    Where a job that is to run has no ``eta``, ``eta_missing`` says why: it has come or changed since the last forecast,
    or it is not known.
    """

    now_s: float
    phase: JobPhase
    wish: Literal["run", "pause", "cancel"]
    reason: str
    elastic: bool
    slots: int
    target_slots: int
    placement: dict[str, list[int]] | None
    position: int | None
    started_at_s: float | None
    finished_at_s: float | None
    jct_s: float | None
    age_s: float
    done: float | None
    progress_samples: float
    work_samples: float | None
    durable_samples: float
    samples: int
    epoch: int
    step: int
    batch: int | None
    batch_plan: BatchPlan | None
    learning_rate_factor: float
    metrics: dict[str, float | Literal["nan", "inf", "-inf"]]
    gpu_s: float
    over_budget: bool
    over_time: bool
    time_left_s: float | None
    rescales: int
    failures: int
    late_s: float | None
    pauses_s: list[float]
    array: Array | None
    eta: Eta | None
    eta_missing: Literal["being computed", "unknown"] | None
    deadline: Deadline | None
    needs: Needs | None


class Source(TypedDict):
    """Which code a job was submitted with. ``diff`` are changes since the commit, ``complete`` if all are there."""

    commit: str
    branch: str
    diff: str
    complete: bool
    untracked: list[str]


class StoryLine(TypedDict):
    """Something that happened to a job; ``pause_s`` is how long training stood still for it."""

    at_s: float
    text: str
    slots: int
    pause_s: float | None


class Limits(TypedDict):
    """How a job's script can be run, in its own words."""

    initial_batch: int
    largest_batch: int
    smallest_per_slot: int
    largest_per_slot: int
    parameter_count: int
    dataset_samples: int | None
    work_samples: int | None
    by_progress: bool


class JobDetails(Job):
    """A job with its file (without secrets), its story, and the step times that it measured by GPU type.

    Of one that has failed, ``last_lines`` are the last that it printed.
    """

    spec: dict[str, Any]
    limits: Limits | None
    measured: dict[str, list[dict[str, Any]]]
    story: list[StoryLine]
    last_lines: list[str]


class Size(TypedDict):
    """What a job's model predicts for a number of slots."""

    gpu_type: str
    slots: int
    nodes: int
    goodput: float
    throughput: float
    efficiency: float
    batch: int
    current: bool


class Explained(Job):
    """Why a job waits, or has the size it has; what would change it."""

    job_id: NotRequired[str]
    explanation: str
    numbers: list[str]
    suggestions: list[str]
    sizes: list[Size]
    prices: dict[str, float]
    factors: dict[str, float]


class DryRun(TypedDict):
    """What would become of a job; ``delays_s`` by how much others would end later.

    ``guessed`` if something had to be, about it or others before it; ``unlike`` if nothing like it has run before;
    ``never``: why it could not start as things are.
    """

    dry_run: Literal[True]
    spec: dict[str, Any]
    elastic: bool
    kind: JobKind
    kind_reason: str
    position: int
    start_s: list[float] | None
    finish_s: list[float] | None
    guessed: bool
    unlike: bool
    delays_s: dict[str, float]
    never: str | None
    deadline: Deadline | None


class Node(TypedDict):
    """A node; ``jobs`` are those on its slots, ``planned`` those that the last plan puts there.

    An operator has ``drained`` it; its owner is about to take it away (``leaving``), or it is gone (``down``). Slots
    that are ``taken`` are used by others; or cannot be used for now, if the node is ``unfit`` for a reason.
    ``agent_version`` is the version of Geminid that its agent reported; empty if it has not yet.
    """

    name: str
    gpu_type: str
    slots: int
    rack: str
    zone: str
    drained: bool
    leaving: bool
    down: bool
    taken: list[int]
    unfit: str
    agent_version: str
    cordoned: list[int]
    jobs: list[str | None]
    planned: list[str | None]


class QuotaLine(TypedDict):
    """The most slots of a queue's or an owner's jobs together, and those in use; more, if they may ``borrow``.

    ``beyond`` are those of ``used`` that are more than ``slots``: borrowed, or of commands from before it was set.
    """

    of: Literal["queue", "owner"]
    name: str
    slots: int
    used: int
    beyond: int
    borrow: bool


class Drain(TypedDict):
    """The jobs that are on a node: plain commands that it ``stops``, and elastic jobs that it ``moves``."""

    stops: list[str]
    moves: list[str]


class QueueRules(TypedDict):
    """Up to which priority users of a queue may go; it takes jobs of its members, or if ``open`` of everybody."""

    queue: str
    max_priority: int
    members: list[str]
    open: bool


class QueueChange(TypedDict):
    """What can be changed about a queue."""

    max_priority: NotRequired[int]
    add_members: NotRequired[list[str]]
    remove_members: NotRequired[list[str]]
    open: NotRequired[bool]


class Usage(TypedDict):
    """What an owner has used and is using."""

    owner: str
    jobs: int
    running: int
    waiting: int
    slots: int
    gpu_hours: float
    quota: int | None


class Event(TypedDict):
    """A record of the log: its number, time and kind; its other fields depend on the kind."""

    seq: int
    at_s: float
    kind: str


class Note(TypedDict):
    """Something for operators."""

    at_s: float
    level: str
    text: str


class Status(TypedDict):
    """The service at a glance; while it is ``ending``, with the jobs that it waits for (``awaited``)."""

    url: str
    pid: int
    version: str
    uptime_s: float
    user: str
    role: str
    ending: bool
    awaited: list[str]
    prices: dict[str, float]
    gap: float | None
    wishes: list[dict[str, Any]]
    policy: str
    epoch: int
    seq: int
    slots: int
    slots_held: int
    gpu_types: dict[str, int]
    drained: list[str]
    leaving: list[str]
    down: list[str]
    taken: list[str]
    cordoned: list[str]
    jobs: dict[JobPhase, int]
    decisions: int
    rejected_decisions: int
    last_decision_ms: float
    trouble: str
    notes: list[Note]


class Snapshot(TypedDict):
    """The active jobs with all that was measured of them, and others like them, for what-if simulations.

    ``cluster`` is what of it is in service, null where nothing is; ``quotas`` are those that each job is under, with
    their slots, of which ``may_borrow`` may be exceeded.
    """

    now_s: float
    cluster: dict[str, Any] | None
    policy: str
    patience_s: float
    quotas: dict[str, dict[str, int]]
    may_borrow: list[str]
    jobs: list[dict[str, Any]]


class Ending(TypedDict):
    """The service is ending."""

    ending: bool
