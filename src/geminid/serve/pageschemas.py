"""What the interface answers to the web page: sessions, rows, curves, lanes and what-if; as in ``schemas.py``."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class LoginLink(TypedDict):
    """A link that logs a browser in, once, and for how long it is good."""

    url: str
    expires_in_s: float


class LogIn(TypedDict, total=False):
    """What begins a browser session: one of these."""

    code: str
    token: str


class Session(TypedDict):
    """Who is logged in."""

    user: str
    role: str


class NewSession(Session):
    """A session that has begun, and the secret that its requests carry in the header ``X-Geminid-Session``."""

    secret: str


class Rows(TypedDict):
    """All jobs as short rows, the newest ``lines`` of their histories, and the change after which they are true."""

    last_id: str
    now_s: float
    seq: int
    columns: list[str]
    rows: list[list[Any]]
    lines: list[dict[str, Any]]
    status: dict[str, Any]


class Series(TypedDict):
    """The curves of a job: a list per column, and its history. ``weight`` counts the measurements behind a point."""

    job: str
    every_s: float
    at_s: list[float]
    weight: list[int]
    slots: list[int]
    samples: list[int]
    progress: list[float]
    step: list[int]
    batch: list[float | None]
    per_slot_batch: list[int | None]
    passes: list[int | None]
    learning_rate_factor: list[float | None]
    noise_scale: list[float | None]
    throughput: list[float | None]
    goodput: list[float | None]
    predicted: list[float | None]
    metrics: dict[str, list[float | None]]
    history: list[dict[str, Any]]


class Lanes(TypedDict):
    """Stints of jobs on slots: job, node, slot, begin, end (none: still there), slots of the job, batch, goodput.

    The last two are as last measured in the stint, none where they were not. Faults: time, job, what happened.
    """

    now_s: float
    from_s: float
    to_s: float
    names: dict[str, str]
    faults: list[list[Any]]
    stints: list[list[Any]]
    complete: bool


class UsagePeriods(TypedDict):
    """Slot-hours of each owner, by period: ``starts_s`` are the beginnings of the periods, the current one last."""

    starts_s: list[float]
    period_s: float
    slot_hours: dict[str, list[float]]


class Share(TypedDict):
    """What an owner has beside what an equal share is, and how the owner's jobs fared."""

    owner: str
    slots: int
    slot_hours: float
    entitled_slots: float
    jobs_ended: int
    mean_finish_time_ratio: float | None
    worst_finish_time_ratio: float | None


class WhatIfJob(TypedDict, total=False):
    """A job that does not exist: how many slots it needs, for how long."""

    name: str
    slots: int
    seconds: float


class WhatIfChange(TypedDict, total=False):
    """What is to be different."""

    policy: str
    cluster: str
    job: WhatIfJob


class WhatIf(TypedDict):
    """The live jobs simulated to their end, as things are and with the change."""

    before: dict[str, Any]
    after: dict[str, Any]
    jobs: list[dict[str, Any]]
    notes: list[str]
