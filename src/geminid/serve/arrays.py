"""The life of an array: which elements are made when, what is asked of all of them, and how the array ends.

Pure functions, as in ``lifecycle.py``. ``jobarray.py`` counts an array's elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from geminid.jobstate import JobPhase
from geminid.serve import lifecycle
from geminid.serve import records as r
from geminid.serve.jobarray import array_of, element_id, element_number
from geminid.serve.livejob import LiveJob
from geminid.serve.state import ServiceState

#: The most elements of one array that wait for their first slots.
MAX_WAITING = 256


def expansions(state: ServiceState, free_slots: Mapping[str, int]) -> list[r.Record]:
    """The elements that are to be made now: as many as there are free slots for, and one that waits for the next.

    ``free_slots`` are those of each GPU type that are planned for no job.
    """
    records: list[r.Record] = []
    for job_id in sorted(state.unsettled):
        job = state.jobs[job_id]
        array, numbers = job.array, job.spec.array
        if array is None or numbers is None or job.blocked or job.wish != "run":
            continue
        free = [free_slots.get(name, 0) for name in job.spec.gpu_types.names or free_slots]
        startable = sum(slots // job.spec.min_slots for slots in free)
        count = min(max(startable, 1), MAX_WAITING) - array.waiting
        if numbers.limit is not None:
            count = min(count, numbers.limit - array.active)
        if count > 0 and array.unmade:
            records.append(r.ArrayExpanded(job_id=job_id, elements=array.next_elements(numbers, count)))
    return records


def made_elements(state: ServiceState, array_id: str) -> list[LiveJob]:
    """The elements of an array that have been made and are retained, in the order of their numbers."""
    found = [job for job in state.jobs.values() if array_of(job.id) == array_id]
    return sorted(found, key=lambda job: element_number(job.id))


def unmade_element(jobs: Mapping[str, LiveJob], job_id: str) -> LiveJob | None:
    """An element that has not been made, as it would be: waiting, or cancelled; None if there is no such element."""
    job = jobs.get(array_of(job_id) or "")
    if job is None or job.array is None or job.spec.array is None:
        return None
    element = element_number(job_id)
    if element not in job.spec.array or job_id != element_id(job.id, element):
        return None
    position, stopped_at = job.spec.array.position(element), job.array.stopped_at
    was_cancelled = element in job.array.skipped or (stopped_at is not None and position >= stopped_at)
    if position < job.array.passed and not was_cancelled:
        return None  # it is over, and not retained any more
    made = lifecycle.element(job, element)
    if not was_cancelled:
        return made
    at_s = job.state.updated_at_s
    state = made.state.move(JobPhase.CANCELLED, at_s=at_s, reason="cancelled before it was queued")
    return replace(made, state=state, wish="cancel")
