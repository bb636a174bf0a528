"""Which job is meant by a name that is given instead of an identifier.

An identifier (``j7``) always means that job, whatever others are called; ``j7_3`` is element 3 of array ``j7``, and so
is ``train_3`` if that array is called train and no job is called train_3. A name means the caller's own jobs of that
name, or those of others if the caller has none; if there are several, the one that is not over. If that still is not
one job, nothing is done and the candidates are listed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from geminid.serve.arrays import unmade_element
from geminid.serve.jobarray import array_of, element_id
from geminid.serve.livejob import LiveJob
from geminid.units import humanize_duration

#: What identifiers look like; a name that looks like one means nothing.
IDENTIFIER = re.compile(r"j[0-9]+(_[0-9]+)?")

_NAMED_ELEMENT = re.compile(r"(.+)_(0|[1-9][0-9]*)")

#: Candidates that are listed at most, newest first.
MAX_CANDIDATES = 10


class NotOneJob(Exception):
    """No job is meant, or several may be (``ambiguous``); one sentence says which."""

    def __init__(self, sentence: str, *, ambiguous: bool) -> None:
        super().__init__(sentence)
        self.ambiguous = ambiguous


def named_job(jobs: Mapping[str, LiveJob], given: str, user: str, now_s: float) -> LiveJob:
    """The job of an identifier, or of a name.

    Raises:
        NotOneJob: there is none, or there are several.
    """
    if given in jobs:
        return jobs[given]
    shown = given[:100]
    if IDENTIFIER.fullmatch(given):
        if (element := unmade_element(jobs, given)) is not None:
            return element
        raise NotOneJob(f"there is no job {shown}", ambiguous=False)
    candidates = [job for job in jobs.values() if job.spec.name == given and array_of(job.id) is None]
    if not candidates and (named := _NAMED_ELEMENT.fullmatch(given)):
        arrays = {job_id: job for job_id, job in jobs.items() if job.array is not None and job.spec.name == named[1]}
        if arrays:
            array = named_job(arrays, named[1], user, now_s)
            return named_job(jobs, element_id(array.id, int(named[2])), user, now_s)
    candidates = [job for job in candidates if job.spec.owner == user] or candidates
    active = [job for job in candidates if not job.phase.is_terminal]
    for some in (candidates, active):
        if len(some) == 1:
            return some[0]
    if not candidates:
        raise NotOneJob(f"there is no job {shown}: `geminid queue --all` lists all", ambiguous=False)
    newest = (active or candidates)[::-1]
    listed = ", ".join(
        f"{job.id} ({job.phase.value}, submitted"
        f" {humanize_duration(max(1, round(now_s - job.state.submitted_at_s)))} ago)"
        for job in newest[:MAX_CANDIDATES]
    )
    more = f" and {len(newest) - MAX_CANDIDATES} more" if len(newest) > MAX_CANDIDATES else ""
    raise NotOneJob(f"{shown} is the name of {len(newest)} jobs, so give an id: {listed}{more}", ambiguous=True)
