"""How far an array has come: how many of its elements wait, run and have ended.

An array is one job of the service whose elements are jobs of their own (``j7_3`` is element 3 of array ``j7``). An
element is made only when it could start, so an array of 10,000 elements costs as much as one job until they run.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from geminid.arrayrange import ArrayRange
from geminid.jobstate import JobPhase

if TYPE_CHECKING:
    from geminid.serve.livejob import LiveJob

#: The variable by which an element knows its number.
INDEX = "GEMINID_ARRAY_INDEX"

#: Elements that failed which are named in the array's reason.
MAX_NAMED = 10

_ELEMENT = re.compile(r"(j[0-9]+)_([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArray:
    """The elements of an array, counted.

    ``passed`` are those, in the order of their start, that have been made or skipped; ``skipped`` are the numbers of
    later ones that were cancelled before they were made; so were all from position ``stopped_at`` on, if it is set. Of
    those made, ``active`` are not over: ``waiting`` for their first slots, ``running`` on ``slots``, paused, or waiting
    to be started again. ``cancelled`` includes those that were never made. ``failed_elements`` are the first few
    numbers of those that failed.
    """

    total: int
    passed: int = 0
    skipped: tuple[int, ...] = ()
    stopped_at: int | None = None
    active: int = 0
    waiting: int = 0
    running: int = 0
    slots: int = 0
    gpu_s: float = 0.0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    failed_elements: tuple[int, ...] = ()

    @property
    def unmade(self) -> int:
        """How many elements are still to be made."""
        return self.total - self.passed - len(self.skipped)

    @property
    def is_over(self) -> bool:
        """Whether all elements have ended."""
        return not self.unmade and not self.active

    def next_elements(self, of: ArrayRange, count: int) -> list[int]:
        """The numbers of the next elements to make."""
        return list(islice((one for one in of.from_position(self.passed) if one not in self.skipped), count))

    def made(self, of: ArrayRange, elements: list[int]) -> JobArray:
        """The array after its next elements were made.

        Raises:
            ValueError: these are not the next ones.
        """
        if not elements or elements != self.next_elements(of, len(elements)):
            raise ValueError(f"the next elements are {self.next_elements(of, len(elements))}, not {elements}"[:200])
        passed = of.position(elements[-1]) + 1
        later = tuple(one for one in self.skipped if of.position(one) >= passed)
        return replace(self, passed=passed, skipped=later, active=self.active + len(elements))

    def skip(self, element: int) -> JobArray:
        """The array after an element was cancelled that had not been made."""
        return replace(self, skipped=(*self.skipped, element), cancelled=self.cancelled + 1)

    def skip_all(self) -> JobArray:
        """The array after all elements were cancelled that had not been made."""
        cancelled = self.cancelled + self.unmade
        return replace(self, passed=self.total, stopped_at=self.passed, cancelled=cancelled, skipped=())

    def counted(self, before: LiveJob | None, after: LiveJob) -> JobArray:
        """The array after one of its elements has changed, or was made."""
        old, new = _counts(before), _counts(after)
        ended = after.phase if after.phase.is_terminal and (before is None or not before.phase.is_terminal) else None
        named = self.failed_elements
        if ended is JobPhase.FAILED and len(named) < MAX_NAMED:
            named = (*named, element_number(after.id))
        return replace(
            self,
            active=self.active - (ended is not None),
            waiting=self.waiting + new[0] - old[0],
            running=self.running + new[1] - old[1],
            slots=self.slots + new[2] - old[2],
            gpu_s=self.gpu_s + new[3] - old[3],
            succeeded=self.succeeded + (ended is JobPhase.SUCCEEDED),
            failed=self.failed + (ended is JobPhase.FAILED),
            cancelled=self.cancelled + (ended is JobPhase.CANCELLED),
            failed_elements=named,
        )

    def outcome(self, array_id: str) -> tuple[JobPhase, str]:
        """How an array has ended whose elements are all over, and why."""
        if self.failed:
            named = ", ".join(f"{array_id}_{element}" for element in self.failed_elements)
            more = f" and {self.failed - len(self.failed_elements)} more" * (self.failed > len(self.failed_elements))
            return JobPhase.FAILED, f"{self.failed} of {self.total} elements failed: {named}{more}"
        if self.cancelled:
            return JobPhase.CANCELLED, f"{self.cancelled} of {self.total} elements were cancelled"
        return JobPhase.SUCCEEDED, ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> JobArray:
        """From plain data."""
        tuples = {name: tuple(plain[name]) for name in ("skipped", "failed_elements")}
        return cls(**{**plain, **tuples})


def _counts(job: LiveJob | None) -> tuple[int, int, int, float]:
    """What an element adds to the counts of its array: waiting, running, slots and slot-seconds."""
    if job is None:
        return 0, 0, 0, 0.0
    waits = job.wants_slots and job.target is None and job.state.first_started_at_s is None
    return waits, job.phase.holds_slots, job.state.num_slots, job.state.attained_service_gpu_s


def element_id(array_id: str, element: int) -> str:
    """The identifier of an element."""
    return f"{array_id}_{element}"


def array_of(job_id: str) -> str | None:
    """The identifier of the array that a job is an element of; None if it is a job of its own."""
    found = _ELEMENT.fullmatch(job_id)
    return None if found is None else found[1]


def element_number(job_id: str) -> int:
    """The number of an element within its array."""
    return int(job_id.rpartition("_")[2])
