"""First in, first out."""

from __future__ import annotations

from collections.abc import Sequence

from geminid.policies.base import ClusterView, JobView
from geminid.policies.queued import QueuedPolicy


class Fifo(QueuedPolicy):
    """Jobs start in the order of their submission, on the slots they ask for, and run to their end.

    Strict: a job that does not fit holds back those behind it (no backfilling), as in Tiresias' simulator.
    """

    name = "fifo"
    paper = "folklore"
    objective = "start in the order of submission; never preempt"
    skips = False
    preempts = False

    @property
    def regards_owners(self) -> bool:
        """It does not."""
        return False

    @property
    def needs_every_job(self) -> bool:
        """No: equal jobs come one after the other, in the order of their arrival."""
        return False

    def order(self, view: ClusterView) -> Sequence[JobView]:
        """By submission."""
        return view.jobs
