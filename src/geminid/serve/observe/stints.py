"""Who holds which slots: stints of jobs on slots, found by comparing two moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from geminid.serve.livejob import LiveJob

#: A slot: the name of its node and its number there.
Slot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Stint:
    """A job on one slot, from when and until when; None if it is still there.

    ``job_slots`` is the size of the job; ``batch`` and ``goodput`` are as measured in the stint, None where they were
    not, or the stint is not over.
    """

    job_id: str
    node: str
    slot: int
    from_s: float
    to_s: float | None
    job_slots: int
    batch: int | None = None
    goodput: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What is on a slot: a job, of how many slots in all. A job that is resized begins a new stint on each slot."""

    job_id: str
    job_slots: int


def holders(jobs: Mapping[str, LiveJob]) -> dict[Slot, Held]:
    """What is on each slot that is in use."""
    return {
        slot: Held(job.id, job.state.num_slots)
        for job in jobs.values()
        if job.state.placement is not None
        for slot in job.state.placement.slots()
    }


@dataclass(frozen=True, slots=True)
class Turnover:
    """The slots whose holder is another one than before: stints that ended there, and stints that begin."""

    ended: Mapping[Slot, Held]
    begun: Mapping[Slot, Held]


def turnover(before: Mapping[Slot, Held], after: Mapping[Slot, Held]) -> Turnover:
    """What has changed between two moments."""
    ended = {slot: held for slot, held in before.items() if after.get(slot) != held}
    begun = {slot: held for slot, held in after.items() if before.get(slot) != held}
    return Turnover(ended, begun)
