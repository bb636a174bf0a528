"""What all parts of training in this process share."""

from __future__ import annotations

from dataclasses import dataclass

from geminid.clock import Clock
from geminid.goodput.batchplan import BatchLimits
from geminid.train.advice import Advice
from geminid.train.agent import NoSupervisor
from geminid.train.group_view import GroupView
from geminid.train.saving import Saver
from geminid.train.trainstate import TrainingState
from geminid.train.watching import Watch


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: its connection to the supervisor, its place in the group, its state and its checkpoints (if any)."""

    agent: NoSupervisor
    group: GroupView
    state: TrainingState
    limits: BatchLimits
    saver: Saver | None
    watch: Watch
    advice: Advice
    clock: Clock
