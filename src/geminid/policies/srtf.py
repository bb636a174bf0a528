"""Shortest remaining time first."""

from __future__ import annotations

from collections.abc import Sequence

from geminid.policies.base import ClusterView, JobView
from geminid.policies.queued import QueuedPolicy


class ShortestRemainingTimeFirst(QueuedPolicy):
    """Preemptive: at every event the jobs with the least time left run, as many as fit.

    Knows durations (an oracle): that of the trace, or the time a job with a profile takes on the slots it asks for.
    """

    name = "srtf"
    paper = "Schrage, 1968"
    objective = "least remaining time first, preempting; optimal for the mean JCT of one-slot jobs"
    needs_oracle = True
    not_live = "it must know how long jobs still take, which only a simulator does"

    def order(self, view: ClusterView) -> Sequence[JobView]:
        """By remaining time, then by submission."""
        assert view.oracle is not None
        remaining_s = {job.id: view.oracle.remaining_s(job.id) for job in view.jobs}
        return sorted(view.jobs, key=lambda job: remaining_s[job.id])
