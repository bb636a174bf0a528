"""What a job's state machine knows of its workers, of the newest generation, and of what was reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from geminid.supervise import protocol
from geminid.supervise.events import GroupFormed
from geminid.supervise.group import ElasticGroup, Generation
from geminid.supervise.hangs import Seen
from geminid.supervise.inputs import Contact


@dataclass(slots=True)
class Worker:
    """A worker whose process exists.

    ``ending`` is why it is expected to end, ``failure`` why it fails; it is ``lost`` with its slot, and ``was_split``
    if it lived and could not work together with its peers. After ``kill_at_s`` it is ended.
    """

    slot: str
    pid: int
    generation: int = 0
    leads: bool = False
    finished: bool = False
    ending: str = ""
    failure: str = ""
    lost: bool = False
    was_split: bool = False
    kill_at_s: float = math.inf
    metrics: dict[str, protocol.Metric] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingStart:
    """A worker that is to be started on a slot, not before a time."""

    slot: str
    at_s: float


@dataclass(slots=True)
class Formation:
    """When the newest generation began to form, and what has gone wrong since.

    ``lost_since_s`` is when the first member reported that it has lost its peers, ``retry_at_s`` when members that
    could not work together try again.
    """

    since_s: float = 0.0
    lost_since_s: float | None = None
    lost_reason: str = ""
    retry_at_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Completion:
    """A worker of this generation has finished; the others have until ``by_s``."""

    generation: int
    by_s: float
    leader_finished: bool

    @classmethod
    def after(cls, before: Completion | None, generation: int, by_s: float, leader_finished: bool) -> Completion:
        """Another worker has finished; deadlines never move back."""
        if before is None:
            return cls(generation, by_s, leader_finished)
        return cls(generation, min(before.by_s, by_s), before.leader_finished or leader_finished)


@dataclass(slots=True)
class Reports:
    """What workers have last reported."""

    ready: protocol.Ready | None = None
    progress: protocol.Progress | None = None
    checkpoint: protocol.Checkpointed | None = None
    stopped_at_s: float | None = None
    initialised: bool = False
    finished: bool = False
    cut_short: bool = False

    @property
    def samples(self) -> int:
        """How far training is; -1 before the first report."""
        return -1 if self.progress is None else self.progress.samples


def group_formed(generation: Generation, slots: tuple[str, ...]) -> GroupFormed:
    """The event that a generation, of which all members have joined, trains on these slots."""
    joined = [message for message in map(generation.joined.get, generation.members) if message is not None]
    stopped_s = [one.stopped_at_s for one in joined if one.stopped_at_s is not None]
    # Clocks of different machines are not comparable: each worker's pause is measured by its own.
    pauses_s = [one.resumed_at_s - one.stopped_at_s for one in joined if one.stopped_at_s is not None]
    return GroupFormed(
        generation=generation.number,
        slots=slots,
        step=joined[0].step,
        samples=joined[0].samples,
        pause_s=max(pauses_s, default=None),
        restored=joined[0].restored,
        stopped_at_s=min(stopped_s, default=None),
        resumed_at_s=max(one.resumed_at_s for one in joined),
    )


def seen_as(worker: str, known: Worker, contact: Contact, group: ElasticGroup) -> Seen:
    """A worker as the detection of hangs sees it."""
    return Seen(
        worker=worker,
        standing=group.standing(worker),
        silent_s=contact.silent_s,
        phase=contact.phase,
        phase_s=contact.phase_s + contact.silent_s,
        usual_s=contact.usual_s,
        joined=worker in group.current.joined,
        leads=known.leads,
        finished=known.finished,
        connected=contact.connected,
    )
