"""Least attained service, continuously."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geminid.policies.base import ClusterView, JobView
from geminid.policies.options import Positive
from geminid.policies.queued import QueuedPolicy


@dataclass(slots=True)
class LeastAttainedService(QueuedPolicy):
    """The jobs that have had the least service (slots × seconds) run, re-ordered every ``interval_s``.

    Without discretisation two equal jobs take turns at every round: Tiresias' queues exist to avoid exactly that.
    """

    name = "las"
    paper = "Nuyens and Wierman, 2008 (foreground-background)"
    objective = "least attained service first; needs no durations"

    interval_s: Positive | None = 60.0

    @property
    def regards_owners(self) -> bool:
        """It does not."""
        return False

    @property
    def needs_every_job(self) -> bool:
        """No: equal jobs come one after the other, in the order of their arrival."""
        return False

    def order(self, view: ClusterView) -> Sequence[JobView]:
        """By attained service, then by submission."""
        return sorted(view.jobs, key=lambda job: job.attained_service_gpu_s(view.now_s))
