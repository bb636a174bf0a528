"""What requests to the interface may say, for its description (``openapi.json``) and for authors of clients."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class JobSize(TypedDict):
    """The slots and batches that a job can use."""

    slots: NotRequired[int]
    min_slots: NotRequired[int]
    max_slots: NotRequired[int]
    slots_per_replica: NotRequired[int]
    gpu_types: NotRequired[list[str] | dict[str, list[str]]]
    initial_batch_size: NotRequired[int]
    max_batch_size: NotRequired[int]
    min_per_slot_batch: NotRequired[int]
    max_per_slot_batch: NotRequired[int]
    dataset_samples: NotRequired[int]
    epochs: NotRequired[float]
    scaling_rule: NotRequired[str]
    execution_plans: NotRequired[list[Any]]


class JobFile(JobSize):
    """What to run and what it needs; docs/job-file.md says what the fields mean."""

    name: str
    command: list[str]
    queue: NotRequired[str]
    priority: NotRequired[int]
    working_dir: NotRequired[str]
    env: NotRequired[dict[str, str]]
    deadline: NotRequired[str | float]
    gpu_time_budget: NotRequired[str | float]
    max_retries: NotRequired[int]
    min_runtime: NotRequired[str | float]
    checkpoint_interval: NotRequired[str | float]
    array: NotRequired[str]
    after: NotRequired[list[str]]
    time_limit: NotRequired[str | float]
    requeue: NotRequired[bool]
    retry: NotRequired[list[dict[str, Any]]]
    notify: NotRequired[list[str]]


class JobGroup(TypedDict):
    """Several jobs, which may name each other in ``after``."""

    jobs: list[JobFile]


class JobChange(TypedDict):
    """What can be changed about a job."""

    priority: NotRequired[int]
    min_slots: NotRequired[int]
    max_slots: NotRequired[int]


class JobChanges(TypedDict, total=False):
    """Fields of a job file that another run of a job has; all that are left out stay as they were."""

    name: str
    command: list[str]
    env: dict[str, str]
    slots: int
    min_slots: int
    max_slots: int
    priority: int
    queue: str
